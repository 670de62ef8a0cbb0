//! What docs/trouble.md promises is tested by the tests that it names.

use std::{collections::BTreeSet, path::Path};

/// Every function of the sources.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            found.extend(
                text.split("fn ").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())),
            );
        }
    }
}

#[test]
fn each_line_of_the_table_of_troubles_names_tests_and_there_are_those_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for folder in ["src", "tests"] {
        functions(&root.join(folder), &mut known);
    }
    let text = std::fs::read_to_string(root.join("docs/trouble.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let mut lines = 0;
    for row in rows.filter(|row| !row.starts_with("| what happens")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 6, "{row}");
        let tests: Vec<&str> = cells[5].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            assert!(known.contains(test), "there is no test {test}");
        }
        lines += 1;
    }
    assert!(lines > 30, "{lines}");
}
