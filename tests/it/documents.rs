//! What docs/trouble.md promises is tested by the tests that it names.

use std::{collections::BTreeSet, path::Path};

/// Every test of the sources.
fn tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            found.extend(marked(&text));
            found.extend(laws(&text));
        }
    }
}

/// The project's folder, and every test in it.
fn all_tests() -> (&'static Path, BTreeSet<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for folder in ["src", "tests"] {
        tests(&root.join(folder), &mut known);
    }
    (root, known)
}

/// Functions that an attribute makes a test of, and that no other leaves out.
fn marked(text: &str) -> impl Iterator<Item = String> {
    let (mut is_test, mut is_left_out) = (false, false);
    text.lines().filter_map(move |line| {
        let line = line.trim();
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        is_left_out |= line.starts_with("#[ignore");
        let (start, rest) = line.split_once("fn ")?;
        if !start.split_whitespace().all(|word| matches!(word, "pub" | "async")) {
            return None;
        }
        let is_one = std::mem::take(&mut is_test) && !std::mem::take(&mut is_left_out);
        is_one.then(|| rest.split(['(', '<']).next().map(str::to_owned))?
    })
}

/// Functions that the macro makes a test of for each backend.
fn laws(text: &str) -> impl Iterator<Item = String> {
    let lists = text.split("on_every_backend!(").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    lists.flat_map(|list| list.split(',')).map(|law| law.trim().to_owned())
}

#[test]
fn only_what_is_run_is_taken_for_a_test() {
    let text = "
        on_every_backend!(
            a_law,
        );
        async fn a_law(world: World) {}
        fn helper() {}
        #[test]
        fn plain() {}
        fn after_it() {}
        /// With a reason.
        #[tokio::test(flavor = \"multi_thread\")]
        #[cfg(unix)]
        async fn with_servers() {}
        #[test]
        #[ignore]
        fn left_out() {}
    ";
    let found: Vec<String> = marked(text).chain(laws(text)).filter(|name| !name.is_empty()).collect();
    assert_eq!(found, ["plain", "with_servers", "a_law"]);
}

#[test]
fn each_line_of_the_table_of_troubles_names_tests_and_there_are_those_tests() {
    let (root, known) = all_tests();
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

#[test]
fn what_is_said_of_instances_that_differ_names_tests_and_there_are_those_tests() {
    let (root, known) = all_tests();
    let text = std::fs::read_to_string(root.join("docs/fleet.md")).unwrap();
    let is_name =
        |word: &&str| word.len() > 20 && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_name).collect();
    assert!(named.len() >= 8, "{named:?}");
    for test in named {
        assert!(known.contains(test), "there is no test {test}");
    }
}

#[test]
fn the_image_has_neither_the_empty_handlers_of_the_bench_nor_failpoints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recipe = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let builds: Vec<&str> = recipe.split("cargo build --release").skip(1).collect();
    let features = builds.iter().map(|build| build.split_once("--features ")?.1.split_whitespace().next());
    assert!(!builds.is_empty() && features.into_iter().all(|features| features == Some("kafka")));
    assert!(!recipe.contains("--all-features"));
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert!(!manifest.lines().any(|line| line.starts_with("default = [")), "features are asked for by name");
}
