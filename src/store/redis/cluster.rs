//! Calls in a cluster: each command goes to the node that has its slot, those of different nodes at the
//! same time, and follows its slot where that has moved.
//!
//! A node that is away fails its own commands and no others, and at once: who waits for it would keep
//! everybody behind it waiting. So does a slot that has gone to a node which this connection doesn't know:
//! what was formed for this one may be wrong there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::{
    connection::Connection,
    node::{Node, pipeline_of},
    reply::{away, server_error_code, unheard},
    slots::{SlotMap, slot_of_command},
};

/// How often a command follows its slot from node to node.
const REDIRECTS: usize = 5;

/// How long to wait until a command is tried again whose keys are on their way to another node.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A command and where it belongs among those of a call.
struct Waiting {
    index: usize,
    command: Cmd,
    to: Option<Arc<Node>>,
    /// Its slot is on its way there, and the node must be told that we know.
    asking: bool,
    /// What it was refused with.
    refused: Value,
}

/// What one node gets.
struct Share {
    node: Arc<Node>,
    waiting: Vec<Waiting>,
}

/// What a refusal says of where to go.
enum Redirect {
    Moved(String),
    Ask(String),
    /// Some of its keys are there and some are here, for the moment.
    Later,
}

impl Connection {
    pub(super) async fn exchange_by_slot(
        &self,
        slots: &SlotMap,
        commands: Vec<Cmd>,
        last: Option<&Cmd>,
        until: Instant,
    ) -> (Vec<Value>, Vec<Value>) {
        // In this order: each value, and what the `last` behind it said.
        let patience = until - self.shared.way.deadline / 2;
        let mut values = vec![Value::Nil; commands.len()];
        let mut lasts = values.clone();
        let mut waiting: Vec<Waiting> = commands
            .into_iter()
            .enumerate()
            .map(|(index, command)| {
                let to = self.owner(slots, &command);
                Waiting { index, command, to, asking: false, refused: Value::Nil }
            })
            .collect();
        for round in 0.. {
            let shares = shares(waiting, &mut values);
            let answers = join_all(shares.iter().map(|share| share.send(last, until))).await;
            let (mut again, mut later) = (Vec::new(), false);
            for (share, answer) in shares.into_iter().zip(answers) {
                let Share { node, waiting } = share;
                let (answers, last) = match answer {
                    Ok(answers) => answers,
                    Err(error) => {
                        for one in waiting {
                            values[one.index] = unheard(&error);
                        }
                        continue;
                    }
                };
                for (mut one, answer) in waiting.into_iter().zip(answers) {
                    match redirect(&answer, &node) {
                        None => {
                            values[one.index] = answer;
                            lasts[one.index] = last.clone().unwrap_or(Value::Nil);
                            continue;
                        }
                        Some(Redirect::Later) => later = true,
                        Some(Redirect::Moved(address)) => {
                            self.shared.broke.notify_one();
                            (one.to, one.asking) = (self.node_at(&address), false);
                        }
                        Some(Redirect::Ask(address)) => {
                            (one.to, one.asking) = (self.node_at(&address), true);
                        }
                    }
                    one.refused = answer;
                    again.push(one);
                }
            }
            let over = round >= REDIRECTS && !later || later && Instant::now() >= patience;
            if again.is_empty() || over {
                for one in again {
                    values[one.index] = one.refused;
                }
                break;
            }
            if later {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            waiting = again;
        }
        (values, lasts)
    }

    /// The node that has a command's keys; any for one that has none.
    fn owner(&self, slots: &SlotMap, command: &Cmd) -> Option<Arc<Node>> {
        match slot_of_command(command) {
            Some(slot) => {
                let address = slots.primaries.get(slots.owner(slot)?)?;
                self.node_at(address)
            }
            None => self.live.nodes.load().iter().find(|node| !node.is_broken()).cloned(),
        }
    }

    fn node_at(&self, address: &str) -> Option<Arc<Node>> {
        self.live.nodes.load().iter().find(|node| &*node.address == address).cloned()
    }
}

/// Shares commands out among their nodes; those that have none fail.
fn shares(waiting: Vec<Waiting>, values: &mut [Value]) -> Vec<Share> {
    let mut shares: BTreeMap<*const Node, Share> = BTreeMap::new();
    for one in waiting {
        match one.to.clone().filter(|node| !node.is_broken()) {
            Some(node) => {
                let share = shares.entry(Arc::as_ptr(&node));
                share.or_insert_with(|| Share { node, waiting: Vec::new() }).waiting.push(one);
            }
            None if one.refused == Value::Nil => {
                values[one.index] = away(one.to.as_ref().map_or("nobody has its slot", |node| &node.address));
            }
            None => values[one.index] = one.refused,
        }
    }
    shares.into_values().collect()
}

impl Share {
    /// The answers, and the one to `last`, if there is one.
    async fn send(
        &self,
        last: Option<&Cmd>,
        until: Instant,
    ) -> Result<(Vec<Value>, Option<Value>), crate::error::StoreError> {
        let mut answers =
            self.node.exchange(&self.pipeline(last), usize::from(last.is_some()), until).await?;
        let last = last.and_then(|_| answers.pop());
        let mut answers = answers.into_iter();
        let answers = self.waiting.iter().filter_map(|one| {
            if one.asking {
                answers.next();
            }
            answers.next()
        });
        Ok((answers.collect(), last))
    }

    fn pipeline(&self, last: Option<&Cmd>) -> Pipeline {
        let commands = self.waiting.iter().flat_map(|one| {
            let asking = one.asking.then(|| redis::cmd("ASKING"));
            asking.into_iter().chain([one.command.clone()])
        });
        pipeline_of(commands.chain(last.cloned()))
    }
}

fn redirect(answer: &Value, node: &Node) -> Option<Redirect> {
    let code = server_error_code(answer)?;
    if code == "TRYAGAIN" {
        return Some(Redirect::Later);
    }
    let Value::ServerError(error) = answer else { return None };
    let address = || {
        let (_slot, address) = error.details()?.split_once(' ')?;
        let host = node.address.rsplit_once(':').map_or("", |(host, _)| host);
        // A node that doesn't know how it is called means the host that was asked.
        let port = address.strip_prefix(':').or_else(|| address.strip_prefix("?:"));
        Some(port.map_or_else(|| address.to_owned(), |port| format!("{host}:{port}")))
    };
    match code {
        "MOVED" => address().map(Redirect::Moved),
        "ASK" => address().map(Redirect::Ask),
        _ => None,
    }
}
