//! Lua scripts: declared once beside their `.lua` file, loaded once a server, called by hash.
//!
//! A script's header in its `.lua` file is its documentation: KEYS, ARGV, what it returns, an example.

use std::sync::OnceLock;

use redis::{Cmd, ToRedisArgs};

/// One script. `static`, so that its hash is computed once and not at each call.
pub struct LuaScript {
    name: &'static str,
    source: &'static str,
    script: OnceLock<redis::Script>,
}

impl LuaScript {
    /// Declares a script; `name` is what errors call it.
    #[must_use]
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, script: OnceLock::new() }
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its Lua text.
    #[must_use]
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The SHA-1 by which Redis knows it.
    #[expect(clippy::disallowed_methods, reason = "the one place that makes a Script, once each")]
    pub fn hash(&'static self) -> &'static str {
        self.script.get_or_init(|| redis::Script::new(self.source)).get_hash()
    }

    /// The command that runs it by its hash.
    pub fn call<K: ToRedisArgs, A: ToRedisArgs>(&'static self, keys: &[K], args: &[A]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.hash()).arg(keys.len()).arg(keys).arg(args);
        command
    }
}

impl std::fmt::Debug for LuaScript {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("LuaScript").field(&self.name).finish()
    }
}
