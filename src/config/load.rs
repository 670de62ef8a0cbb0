//! Reads the settings from their three layers and checks them, each alone and all together.
//!
//! `config/default.toml` is compiled in; a file comes over it, `HEADCOUNT_` variables over both.
//! Everything that is wrong is told at once, before a socket opens.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use config::{File, FileFormat, Source as _, Value, ValueKind};

use super::{
    Config,
    invalid::{Invalid, Problem},
    kafka,
    settings::{SETTINGS, allowed},
};

/// The first layer, and the documentation of every setting.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

/// What every variable of ours begins with.
const PREFIX: &str = "HEADCOUNT_";

/// Settings that passed every check.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// What is allowed and yet likely a mistake; to be logged at start.
    pub warnings: Vec<String>,
    /// The settings that were given, as `name = value (where)`, without secrets.
    pub given: Vec<String>,
}

/// One value of one setting, and who gave it.
struct Given {
    value: Value,
    source: Origin,
}

#[derive(Clone)]
enum Origin {
    Defaults,
    File(String),
    Variable(String),
}

impl Origin {
    fn describe(&self) -> String {
        match self {
            Self::Defaults => "the default".into(),
            Self::File(path) => path.clone(),
            Self::Variable(name) => name.clone(),
        }
    }
}

/// Reads `file` and the variables over the defaults. Tests hand in `variables`; with `None` they are
/// the process's own.
///
/// # Errors
/// The file can't be read, or settings are unknown or not allowed; all of them are told.
#[expect(clippy::implicit_hasher, reason = "a test's map has the usual hasher")]
pub fn load(file: Option<&Path>, variables: Option<HashMap<String, String>>) -> Result<Loaded, Invalid> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut settings = BTreeMap::new();

    let defaults =
        File::from_str(DEFAULTS, FileFormat::Toml).collect().map_err(|error| unreadable(&error))?;
    for (name, value) in leaves(defaults) {
        settings.insert(name, Given { value, source: Origin::Defaults });
    }
    if let Some(path) = file {
        let shown = path.display().to_string();
        let read = read(path).map_err(|problem| Invalid { problems: vec![problem] })?;
        for (name, value) in leaves(read) {
            if allowed(&name).is_some() {
                settings.insert(name, Given { value, source: Origin::File(shown.clone()) });
            } else {
                problems.push(Problem::unknown(&name, &shown));
            }
        }
    }
    let mut passed_over = Vec::new();
    let variables = variables.map_or_else(process_variables, Ok)?;
    for (variable, value) in BTreeMap::from_iter(variables) {
        let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
        let name = rest.to_lowercase().replace("__", ".");
        if allowed(&name).is_some() {
            let value = Value::new(None, ValueKind::String(value));
            settings.insert(name, Given { value, source: Origin::Variable(variable) });
        } else if is_set_by_kubernetes(rest, &value) {
            passed_over.push(variable);
        } else {
            problems.push(Problem::unknown(&name, &variable));
        }
    }
    if !passed_over.is_empty() {
        warnings.push(format!(
            "passed over {}: Kubernetes sets such variables for a Service of that name; the address to \
             listen at is HEADCOUNT_SERVER__LISTEN",
            passed_over.join(", ")
        ));
    }

    problems.extend(settings.iter().filter_map(|(name, given)| refusal(name, given)));
    if problems.is_empty() {
        let config = typed(&settings)?;
        let check = super::check::check(&config);
        if check.problems.is_empty() {
            warnings.extend(check.warnings);
            return Ok(Loaded { config, warnings, given: shown(&settings) });
        }
        problems = check.problems;
    } else if let Some(config) = best_effort(&settings) {
        // So that one start tells all: combinations of the settings that are fine by themselves.
        let wrong = |name: &str| problems.iter().any(|problem| problem.setting == name);
        let check = super::check::check(&config).problems;
        let together: Vec<Problem> = check
            .into_iter()
            .filter(|problem| !wrong(&problem.setting) && !problem.with.iter().any(|name| wrong(name)))
            .collect();
        problems.extend(together);
    }
    Err(Invalid { problems })
}

/// What a file holds.
fn read(path: &Path) -> Result<config::Map<String, Value>, Problem> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Problem::unreadable(&format!("{shown} can't be read: {error}")))?;
    File::from_str(&text, FileFormat::Toml).collect().map_err(|error| {
        // The parser says neither which setting it was nor where.
        too_long(&text).map_or_else(
            || Problem::unreadable(&format!("{shown} can't be read: {error}")),
            |(name, number)| match allowed(&name) {
                Some(allowed) => Problem::value(&name, &number, &shown, &allowed.to_string()),
                None => Problem::unknown(&name, &shown),
            },
        )
    })
}

/// The first setting whose value is a whole number that no parser here takes, and that number.
fn too_long(text: &str) -> Option<(String, String)> {
    let mut section = String::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = format!("{}.", name.trim());
        }
        let Some((name, value)) = line.split_once('=') else { continue };
        let number = value.trim().replace('_', "");
        let digits = number.trim_start_matches(['+', '-']);
        let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_whole && number.parse::<i64>().is_err() {
            return Some((format!("{section}{}", name.trim()), number));
        }
    }
    None
}

/// The problem with one value, if there is one.
fn refusal(name: &str, given: &Given) -> Option<Problem> {
    let allowed = allowed(name)?;
    let value = match given.value.clone().into_string() {
        Ok(text) if allowed.takes(&text) => return None,
        Ok(text) => allowed.show(&text),
        Err(_) => "a list or a table".into(),
    };
    Some(Problem::value(name, &value, &given.source.describe(), &allowed.to_string()))
}

/// The settings as types. Every value has passed its check, so that this fails only where the table
/// of settings and the types disagree.
fn typed(settings: &BTreeMap<String, Given>) -> Result<Config, Invalid> {
    let mut builder = config::Config::builder();
    let mut properties = kafka::Properties::default();
    for (name, given) in settings {
        if let Some(property) = name.strip_prefix(kafka::PROPERTIES) {
            let value = given.value.clone().into_string().map_err(|error| unreadable(&error))?;
            properties.set(property, &value);
        } else {
            builder = builder.set_override(name, given.value.clone()).map_err(|error| unreadable(&error))?;
        }
    }
    let read = builder.build().and_then(config::Config::try_deserialize::<Config>);
    let mut config = read.map_err(|error| unreadable(&error))?;
    config.kafka.properties = properties;
    Ok(config)
}

/// The settings with the default in place of every value that is wrong.
fn best_effort(settings: &BTreeMap<String, Given>) -> Option<Config> {
    let mut defaults: HashMap<_, _> =
        leaves(File::from_str(DEFAULTS, FileFormat::Toml).collect().ok()?).into_iter().collect();
    let good = settings
        .iter()
        .filter_map(|(name, given)| {
            let value =
                if refusal(name, given).is_some() { defaults.remove(name)? } else { given.value.clone() };
            Some((name.clone(), Given { value, source: given.source.clone() }))
        })
        .collect();
    typed(&good).ok()
}

/// What was given beyond the defaults.
fn shown(settings: &BTreeMap<String, Given>) -> Vec<String> {
    let properties = settings.keys().filter(|name| name.starts_with(kafka::PROPERTIES));
    SETTINGS
        .iter()
        .map(|(name, _)| *name)
        .chain(properties.map(String::as_str))
        .filter_map(|name| {
            let (given, allowed) = (settings.get(name)?, allowed(name)?);
            let value = given.value.clone().into_string().ok()?;
            let source = given.source.describe();
            let is_default = matches!(given.source, Origin::Defaults);
            (!is_default).then(|| format!("{name} = {} ({source})", allowed.show(&value)))
        })
        .collect()
}

/// A layer's values by their full names. A table that stands where a value should is a name nobody
/// knows; so is a value where a table should be.
fn leaves(table: impl IntoIterator<Item = (String, Value)>) -> Vec<(String, Value)> {
    leaves_below("", table)
}

fn leaves_below(above: &str, table: impl IntoIterator<Item = (String, Value)>) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, value) in table {
        let name = if above.is_empty() { name } else { format!("{above}.{name}") };
        match value.kind {
            ValueKind::Table(inner) if !inner.is_empty() => found.extend(leaves_below(&name, inner)),
            // What a variable gives with commas in between, a file may give as a list.
            ValueKind::Array(ref items) if items.iter().all(is_text) => {
                let items: Vec<String> = items.iter().cloned().flat_map(Value::into_string).collect();
                found.push((name, Value::new(None, ValueKind::String(items.join(",")))));
            }
            // An empty section says nothing, as long as there is such a section.
            ValueKind::Table(_) if super::invalid::is_section(&name) => {}
            _ => found.push((name, value)),
        }
    }
    found
}

fn is_text(value: &Value) -> bool {
    matches!(value.kind, ValueKind::String(_))
}

/// Kubernetes gives every container variables for each Service of its namespace, named after it: a
/// Service called `headcount` (or `headcount-…`) would otherwise stop the program from starting.
fn is_set_by_kubernetes(rest: &str, value: &str) -> bool {
    let service = |tail: &str| rest == tail || rest.ends_with(&format!("_{tail}"));
    let ours = rest.contains("__");
    rest.starts_with("PORT")
        || rest.starts_with("SERVICE_")
        || !ours
            && (service("SERVICE_HOST")
                || rest.contains("_SERVICE_PORT")
                || rest.contains("_PORT_") && rest.contains("_TCP")
                || rest.contains("_PORT_") && rest.contains("_UDP")
                || service("PORT") && value.contains("://"))
}

/// The process's own variables with our prefix.
fn process_variables() -> Result<HashMap<String, String>, Invalid> {
    let mut variables = HashMap::new();
    let mut problems = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        match value.into_string() {
            Ok(value) => {
                variables.insert(name.to_owned(), value);
            }
            Err(_) => problems.push(Problem::not_text(name)),
        }
    }
    if problems.is_empty() { Ok(variables) } else { Err(Invalid { problems }) }
}

fn unreadable(error: &config::ConfigError) -> Invalid {
    Invalid { problems: vec![Problem::unreadable(&error.to_string())] }
}
