//! What came out: raw as JSON, and as the tables of README.md.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    figures::{digits, median_of, millis},
    machine::Machine,
    wrk::Round,
};

/// What a figure has to be.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    fn written(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("≥ {}", digits(bound)),
            Self::AtMost(bound) => format!("≤ {}", digits(bound)),
        }
    }
}

/// A figure beside what it has to be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) must: Option<Bound>,
    pub(crate) aim: Option<Bound>,
    /// Why it says too little for a verdict.
    pub(crate) doubt: Option<String>,
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, unit, must: None, aim: None, doubt: None }
    }

    pub(crate) fn must(mut self, bound: Bound) -> Self {
        self.must = Some(bound);
        self
    }

    pub(crate) fn aim(mut self, bound: Bound) -> Self {
        self.aim = Some(bound);
        self
    }

    /// Without a verdict, where there is a reason.
    pub(crate) fn doubted(mut self, doubt: Option<String>) -> Self {
        self.doubt = doubt;
        self
    }

    /// Whether it isn't what it has to be.
    pub(crate) fn is_missed(&self) -> bool {
        self.must.is_some_and(|bound| !bound.holds(self.value))
    }

    fn verdict(&self) -> String {
        if let Some(doubt) = &self.doubt {
            return format!("no verdict: {doubt}");
        }
        let holds = |bound: Option<Bound>| bound.map(|bound| bound.holds(self.value));
        let verdict = match (holds(self.must), holds(self.aim)) {
            (Some(false), _) => "**missed**",
            (_, Some(true)) => "aim",
            (Some(true), _) => "met",
            (None, Some(false)) => "below the aim",
            (None, None) => "",
        };
        verdict.to_owned()
    }
}

/// A route under load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Route {
    pub(crate) what: String,
    /// Requests a second ÷ those of the empty handler beside it.
    pub(crate) ratio: Option<f64>,
    pub(crate) rounds: Vec<Round>,
}

/// A run's results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(skip)]
    path: PathBuf,
    began: String,
    machine: Machine,
    quick: bool,
    routes: Vec<Route>,
    figures: Vec<Figure>,
    raw: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(output: &Path, machine: Machine, quick: bool) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the day stands below the tables")]
        let began = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let path = output.join(format!("{}.json", began.replace(':', "")));
        Self { path, began, machine, quick, routes: Vec::new(), figures: Vec::new(), raw: Map::new() }
    }

    /// Adds a route under load, and says so.
    pub(crate) fn route(&mut self, what: &str, ratio: Option<f64>, rounds: Vec<Round>) {
        let route = Route { what: what.to_owned(), ratio, rounds };
        eprintln!("   {}", written_route(&route));
        self.routes.push(route);
    }

    /// Adds a figure, and says so.
    pub(crate) fn figure(&mut self, figure: Figure) {
        eprintln!("   {}", written_figure(&figure));
        self.figures.push(figure);
    }

    /// Adds what is in no table.
    pub(crate) fn raw(&mut self, name: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("plain structs of numbers and text");
        self.raw.insert(name.to_owned(), value);
    }

    /// Writes what there is so far, so that a run that is stopped leaves it.
    pub(crate) fn save(&self) -> anyhow::Result<&Path> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(&self.path, &json)?;
        fs::write(self.path.with_file_name("latest.json"), &json)?;
        fs::write(self.path.with_file_name("latest.md"), self.tables())?;
        Ok(&self.path)
    }

    /// In Markdown.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        if !self.figures.is_empty() {
            text += "| what | measured | must | aim | |\n| --- | --- | --- | --- | --- |\n";
            for figure in &self.figures {
                text += &written_figure(figure);
                text.push('\n');
            }
            text.push('\n');
        }
        if !self.routes.is_empty() {
            text +=
                "| route | ÷ no-op | requests/s | service, µs a request | Redis, µs | p50, ms | p99, ms |\n";
            text += "| --- | --- | --- | --- | --- | --- | --- |\n";
            for route in &self.routes {
                text += &written_route(route);
                text.push('\n');
            }
            text.push('\n');
        }
        let quick = if self.quick { " (quick: shorter rounds, a tenth of the viewers)" } else { "" };
        let _ = writeln!(text, "{}, {}{quick}.", self.machine.line(), &self.began[..10]);
        text
    }
}

fn written_figure(figure: &Figure) -> String {
    let bound = |bound: Option<Bound>| bound.map(Bound::written).unwrap_or_default();
    let Figure { what, value, unit, must, aim, .. } = figure;
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    format!(
        "| {what} | {}{unit} | {} | {} | {} |",
        digits(*value),
        bound(*must),
        bound(*aim),
        figure.verdict()
    )
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a round, and errors in it")]
fn written_route(route: &Route) -> String {
    let Route { what, ratio, rounds } = route;
    let ratio = ratio.map(digits).unwrap_or_default();
    let redis = rounds.first().and_then(|round| round.redis_micros);
    let redis = redis.map(|_| digits(median_of(rounds, |round| round.redis_micros.unwrap_or_default())));
    let bad: u64 = rounds.iter().map(|round| round.said.bad()).sum();
    let bad = if bad == 0 { String::new() } else { format!(" (**{} failed**)", digits(bad as f64)) };
    format!(
        "| {what}{bad} | {ratio} | {} | {} | {} | {} | {} |",
        digits(median_of(rounds, |round| round.requests_per_second)),
        digits(median_of(rounds, |round| round.server_micros)),
        redis.unwrap_or_default(),
        millis(median_of(rounds, |round| round.said.p50 as f64)),
        millis(median_of(rounds, |round| round.said.p99 as f64)),
    )
}
