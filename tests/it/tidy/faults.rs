//! tests/README.md lists the tests that provoke each fault, and the tests that fail without each
//! rule.

use std::fs;

use super::{code::code_of, none, read, root};

#[test]
fn every_row_of_faults_md_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("tests/README.md")).expect("tests/README.md");
    let tests = tests();
    let mut wrong = Vec::new();
    let mut rows = 0;
    let mut lists_tests = false;
    for (number, line) in page.lines().enumerate() {
        let Some(cells) = line.strip_prefix("| ") else {
            lists_tests &= line.starts_with('|');
            continue;
        };
        let cells: Vec<&str> = cells.trim_end_matches(" |").split(" | ").collect();
        if matches!(cells[0], "fault" | "rule") {
            lists_tests = true;
            continue;
        }
        let Some(named) = cells.last().filter(|_| lists_tests) else {
            continue;
        };
        rows += 1;
        let place = format!("tests/README.md:{}", number + 1);
        let names: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("{place}: no test"));
        }
        for name in names {
            let meant = match name.strip_suffix('…') {
                Some(cut) => tests.iter().filter(|test| test.starts_with(cut)).count(),
                None => tests.iter().filter(|test| *test == name).count(),
            };
            if meant != 1 {
                wrong.push(format!("{place}: {name} matches {meant} tests"));
            }
        }
    }
    assert!(rows > 60, "tests/README.md has {rows} rows");
    none(&wrong, "tests/README.md names tests that do not exist");
}

#[test]
fn every_rule_has_a_row_in_faults_md() {
    let page = fs::read_to_string(root().join("tests/README.md")).expect("tests/README.md");
    let absent: Vec<String> = (1..=22)
        .map(|rule| format!("\n| R{rule} | "))
        .filter(|row| !page.contains(row.as_str()))
        .collect();
    none(&absent, "tests/README.md has no row for these rules");
}

/// The names of all tests: those of one store or none, the claims about both stores, those of the
/// command line, and the unit tests of `src`.
fn tests() -> Vec<String> {
    let mut tests = Vec::new();
    for (path, text) in [
        "tests/it",
        "tests/sim",
        "tests/topologies",
        "cli/tests",
        "src",
    ]
    .map(|dir| read(dir, "rs"))
    .into_iter()
    .flatten()
    {
        let code = code_of(&text);
        let on_both = path.starts_with("tests/it/behaviour");
        for (at, _) in code.match_indices("fn ") {
            let name: String = code[at + 3..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            // rustfmt breaks the line of a long name, so the parameter is compared without spaces.
            let mut parameters = code[at + 3 + name.len()..]
                .chars()
                .filter(|c| !c.is_whitespace());
            let mut expected = "(backend:&Backend".chars();
            let claim = on_both && expected.all(|c| parameters.next() == Some(c));
            if claim || code[..at].trim_end().ends_with("#[test]") {
                tests.push(name);
            }
        }
    }
    assert!(tests.len() > 200, "{} tests", tests.len());
    tests
}
