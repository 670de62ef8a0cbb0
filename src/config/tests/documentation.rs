//! `config/default.toml` is the documentation, so it must be complete and true.

use std::time::Duration;

use crate::config::{
    load::DEFAULTS,
    settings::{Allowed, SETTINGS},
};

#[test]
fn the_file_of_defaults_and_the_table_name_the_same_settings_in_the_same_order() {
    // That the types name them too is told by loading: no field has a default, and none may be new.
    let mut section = String::new();
    let mut named = Vec::new();
    for line in DEFAULTS.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            named.push(format!("{section}{name}"));
        }
    }
    let known: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, known);
}

#[test]
fn every_setting_is_explained_right_above_it() {
    let lines: Vec<&str> = DEFAULTS.lines().collect();
    for pair in lines.windows(2) {
        let is_setting = pair[1].contains(" = ") && !pair[1].starts_with('#');
        assert!(!is_setting || pair[0].starts_with('#'), "no comment above {:?}", pair[1]);
    }
}

/// A duration as the comments write it.
fn short(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size));
    let (size, name) = unit.unwrap_or(if millis == 0 { (1_000, "s") } else { (1, "ms") });
    format!("{}{name}", millis / size)
}

/// A number as the comments write it: 10,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
fn the_comment_above_a_setting_states_the_range_that_is_checked() {
    let mut comment = String::new();
    let mut settings = SETTINGS.iter();
    for line in DEFAULTS.lines() {
        if let Some(text) = line.strip_prefix('#') {
            comment.push_str(text);
        } else if line.contains(" = ") {
            let (name, allowed) = settings.next().unwrap();
            let range = match allowed {
                Allowed::Time(from, to) => format!(" {} to {}", short(*from), short(*to)),
                Allowed::Number(from, to) => format!(" {} to {}", grouped(*from), grouped(*to)),
                Allowed::AutoOrPowerOfTwo(to) => format!(" 1 to {}", grouped(*to)),
                _ => String::new(),
            };
            assert!(comment.contains(&range), "{name}: {range:?} is not in {comment:?}");
            comment.clear();
        }
    }
}
