//! What is wrong with the settings, told so that it can be mended: which setting, what was given
//! and by whom, and what is allowed. Secrets are never part of it.

use std::fmt;

use super::{kafka, settings::SETTINGS};

/// Settings that can't be used. Its text names every problem.
#[derive(Debug)]
pub struct Invalid {
    /// What is wrong, one a setting.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting's full name, as in `presence.window`; empty where no setting can be named.
    pub setting: String,
    /// Other settings without which it would be right.
    pub with: Vec<&'static str>,
    /// The whole story, for a person.
    pub text: String,
}

impl std::error::Error for Invalid {}

impl fmt::Display for Invalid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the settings can't be used:")?;
        for problem in &self.problems {
            write!(formatter, "\n  - {}", problem.text)?;
        }
        Ok(())
    }
}

impl Problem {
    /// A value outside of what is allowed.
    pub(super) fn value(setting: &str, value: &str, source: &str, allowed: &str) -> Self {
        // Who has set the variable needn't be told its name twice.
        let place = if source == variable(setting) { setting.to_owned() } else { place(setting) };
        Self::new(setting, format!("{place} is {value} in {source}; allowed: {allowed}"))
    }

    /// A value that is wrong beside that of others.
    pub(super) fn together(setting: &str, value: &str, with: Vec<&'static str>, must: &str) -> Self {
        let place = place(setting);
        Self { with, ..Self::new(setting, format!("{place} is {value}, but must be {must}")) }
    }

    /// A name that is none of ours.
    pub(super) fn unknown(name: &str, source: &str) -> Self {
        let hint = if is_section(name) {
            format!("it is a section: its settings are {name}.…")
        } else {
            match near(name).as_slice() {
                [] => "config/default.toml names every setting".to_owned(),
                near => format!("did you mean {}?", near.join(" or ")),
            }
        };
        Self::new(name, format!("{name}, given in {source}, is no setting; {hint}"))
    }

    /// A variable that isn't text.
    pub(super) fn not_text(variable: &str) -> Self {
        Self::new(variable, format!("{variable} holds bytes that are not UTF-8"))
    }

    /// A layer that can't be read at all.
    pub(super) fn unreadable(error: &str) -> Self {
        // A parser's error shows the line it stumbled on, and that line may hold a password.
        let is_excerpt =
            |line: &&str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
        let told: Vec<&str> = error.lines().filter(|line| !is_excerpt(line)).map(str::trim).collect();
        Self::new("", told.join(": "))
    }

    fn new(setting: &str, text: String) -> Self {
        Self { setting: setting.to_owned(), with: Vec::new(), text }
    }
}

/// The setting's name, and that of its variable.
fn place(setting: &str) -> String {
    format!("{setting} ({})", variable(setting))
}

fn variable(setting: &str) -> String {
    format!("HEADCOUNT_{}", setting.replace('.', "__").to_uppercase())
}

/// Whether settings lie below this name.
pub(super) fn is_section(name: &str) -> bool {
    name == kafka::PROPERTIES.trim_end_matches('.')
        || SETTINGS
            .iter()
            .any(|(known, _)| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The settings whose name is likely meant, best first.
fn near(name: &str) -> Vec<&'static str> {
    // One underscore where two are needed is the commonest slip, a missing section the next.
    let plain = |name: &str| name.replace(['.', '-'], "_");
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let mut near: Vec<(usize, &'static str)> = SETTINGS
        .iter()
        .filter_map(|(known, _)| {
            let whole = distance(&plain(name), &plain(known));
            let leaf = if last(name) == last(known) { 1 } else { usize::MAX };
            let least = whole.min(leaf);
            (least <= 1 + name.len() / 6).then_some((least, *known))
        })
        .collect();
    near.sort_unstable();
    let best = near.first().map_or(0, |(least, _)| *least);
    near.into_iter().filter(|(least, _)| *least == best).map(|(_, known)| known).take(4).collect()
}

/// Levenshtein's distance: how many letters must change, come or go.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in right.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}
