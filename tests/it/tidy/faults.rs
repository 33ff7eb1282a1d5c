//! docs/FAULTS.md says which tests provoke each fault, and which one fails without each rule.

use std::fs;

use super::{code::code_of, none, read, root};

#[test]
fn every_row_of_faults_md_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/FAULTS.md")).expect("docs/FAULTS.md");
    let tests = tests();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for (number, line) in page.lines().enumerate() {
        let Some(cells) = line.strip_prefix("| ") else {
            continue;
        };
        let cells: Vec<&str> = cells.trim_end_matches(" |").split(" | ").collect();
        let Some(named) = cells
            .last()
            .filter(|_| cells[0] != "fault" && cells[0] != "rule")
        else {
            continue;
        };
        rows += 1;
        let place = format!("docs/FAULTS.md:{}", number + 1);
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
                wrong.push(format!("{place}: {name} is {meant} tests"));
            }
        }
    }
    assert!(rows > 60, "docs/FAULTS.md has {rows} rows");
    none(&wrong, "docs/FAULTS.md names tests that are none");
}

#[test]
fn every_rule_has_a_row_in_faults_md() {
    let page = fs::read_to_string(root().join("docs/FAULTS.md")).expect("docs/FAULTS.md");
    let absent: Vec<String> = (1..=20)
        // R18 concerns replica_acks alone.
        .filter(|rule| *rule != 18)
        .map(|rule| format!("\n| R{rule} | "))
        .filter(|row| !page.contains(row.as_str()))
        .collect();
    none(&absent, "docs/FAULTS.md does not say what fails without");
}

/// The names of all tests: those of a store or of none, claims that are held on both, and units of `src`.
fn tests() -> Vec<String> {
    let mut tests = Vec::new();
    for (path, text) in ["tests/it", "tests/sim", "src"]
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
            let signature = code[at + 3 + name.len()..].split(')').next().unwrap_or("");
            let parameters: String = signature.split_whitespace().collect();
            let claim = on_both && parameters.trim_end_matches(',') == "(place:&Place";
            if claim || code[..at].trim_end().ends_with("#[test]") {
                tests.push(name);
            }
        }
    }
    assert!(tests.len() > 200, "{} tests", tests.len());
    tests
}
