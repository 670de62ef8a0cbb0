//! Asks a Postgres what it is and how it is set, over connections of its own.

use std::{str::FromStr, time::Duration};

use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection, Row as _, SqlSafeStr,
    postgres::{PgConnectOptions, PgRow},
};

use super::{Answer, postgres::Facts};
use crate::{
    config,
    store::postgres::{explained, migrations},
};

/// An answer that takes longer isn't waited for: a doctor is no request.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many connections used in turn show whether a pooler shares server processes among them.
const CONNECTIONS: usize = 3;
const ROUNDS: usize = 3;

/// The steps of the schema that went through, with their names.
pub(super) async fn applied_steps(settings: &config::Postgres) -> Answer<Vec<(i64, String)>> {
    let mut asking = Asking::connect(&options(settings)?).await?;
    let steps = asking.steps().await?.unwrap_or_default();
    asking.close().await;
    Ok(steps.into_iter().filter(|step| step.done).map(|step| (step.number, step.name)).collect())
}

fn options(settings: &config::Postgres) -> Answer<PgConnectOptions> {
    // The error's own text may repeat the URL, and the URL may hold a password.
    let options = PgConnectOptions::from_str(settings.url.expose())
        .map_err(|_| "the address can't be read".to_owned())?
        .application_name("headcount doctor")
        // A pooler refuses this parameter; no number here is a float.
        .extra_float_digits(None)
        .disable_statement_logging();
    Ok(options)
}

/// The facts, or why there is no way to this Postgres.
pub(super) async fn ask(settings: &config::Postgres) -> Answer<Facts> {
    let options = options(settings)?;
    let mut first = Asking::connect(&options).await?;
    let facts = Facts {
        version: first.version().await,
        standby: first.flag("select pg_is_in_recovery()::text").await,
        read_only: first.flag("select current_setting('default_transaction_read_only')").await,
        commit: first.text("select current_setting('synchronous_commit')").await,
        fsync: first.flag("select current_setting('fsync')").await,
        connections: first
            .number(
                "select (current_setting('max_connections')::int \
                 - current_setting('superuser_reserved_connections')::int)::text",
            )
            .await,
        steps: first
            .steps()
            .await
            .map(|steps| steps.map(|steps| steps.into_iter().map(|step| (step.number, step.done)).collect())),
        known: known_steps(),
        backends: backends(&options).await,
        prepared: if settings.prepared_statements { Some(prepared(&options).await) } else { None },
    };
    first.close().await;
    Ok(facts)
}

/// A step of the schema that was tried.
struct Step {
    number: i64,
    name: String,
    done: bool,
}

struct Asking {
    connection: PgConnection,
}

impl Asking {
    async fn connect(options: &PgConnectOptions) -> Answer<Self> {
        let connection = within(PgConnection::connect_with(options)).await?;
        Ok(Self { connection })
    }

    /// By the simple protocol, which prepares nothing and so works behind every pooler.
    async fn rows(&mut self, sql: impl SqlSafeStr) -> Answer<Vec<PgRow>> {
        within(sqlx::raw_sql(sql).fetch_all(&mut self.connection)).await
    }

    async fn text(&mut self, sql: &'static str) -> Answer<String> {
        let rows = self.rows(sql).await?;
        let row = rows.first().ok_or("it answered without a row")?;
        row.try_get(0).map_err(|error| error.to_string())
    }

    async fn flag(&mut self, sql: &'static str) -> Answer<bool> {
        self.text(sql).await.map(|text| matches!(text.as_str(), "true" | "on"))
    }

    async fn number<T: FromStr>(&mut self, sql: &'static str) -> Answer<T> {
        let text = self.text(sql).await?;
        text.parse().map_err(|_| format!("{text:?} is no number"))
    }

    async fn version(&mut self) -> Answer<(u32, String)> {
        let number = self.number("select current_setting('server_version_num')").await?;
        Ok((number, self.text("select current_setting('server_version')").await?))
    }

    /// `None` where the schema was never begun.
    async fn steps(&mut self) -> Answer<Option<Vec<Step>>> {
        if !self.flag("select (to_regclass('_sqlx_migrations') is not null)::text").await? {
            return Ok(None);
        }
        let asked = "select version, description, success from _sqlx_migrations order by version";
        let rows = self.rows(asked).await?;
        let step =
            |row: &PgRow| Ok(Step { number: row.try_get(0)?, name: row.try_get(1)?, done: row.try_get(2)? });
        let steps: Result<Vec<_>, sqlx::Error> = rows.iter().map(step).collect();
        steps.map(Some).map_err(|error| error.to_string())
    }

    async fn close(self) {
        // Everything was said; a connection that can't say goodbye is no failure.
        let _ = within(self.connection.close()).await;
    }
}

/// Which server process answers, statement by statement, on connections used in turn.
async fn backends(options: &PgConnectOptions) -> Answer<Vec<Vec<i32>>> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Asking::connect(options).await?);
    }
    let mut seen = vec![Vec::new(); CONNECTIONS];
    for _ in 0..ROUNDS {
        for (connection, seen) in connections.iter_mut().zip(&mut seen) {
            seen.push(connection.number("select pg_backend_pid()::text").await?);
        }
    }
    for connection in connections {
        connection.close().await;
    }
    Ok(seen)
}

/// Whether each connection still finds what it prepared when others had their turn meanwhile. The
/// driver names statements alike on every connection, so that a pooler that doesn't follow them
/// mixes them up.
async fn prepared(options: &PgConnectOptions) -> Answer<()> {
    let mut left = Asking::connect(options).await?;
    let mut right = Asking::connect(options).await?;
    for round in 0..2_i32 {
        for connection in [&mut left, &mut right] {
            let echo = sqlx::query_scalar::<_, i32>("select $1::int4").bind(round);
            let said = within(echo.fetch_one(&mut connection.connection)).await?;
            if said != round {
                return Err("the answer was another statement's".to_owned());
            }
        }
    }
    left.close().await;
    right.close().await;
    Ok(())
}

async fn within<T>(asked: impl Future<Output = Result<T, sqlx::Error>>) -> Answer<T> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(explained(&error)),
        Err(_elapsed) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// The steps of the schema that this version has.
fn known_steps() -> Vec<i64> {
    migrations().iter().map(|step| step.version).collect()
}
