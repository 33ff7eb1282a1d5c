//! Tests do not sleep to wait: they poll with a deadline (`until`), or for as long as something must
//! not change (`throughout`). On no store: the tests read the sources.

use super::code::{code_of, words};
use super::{none, place, read};

/// The comment above a sleep begins with one of these.
const REASONS: [&str; 2] = [
    "// Time itself is under test",
    "// A pause between two polls",
];

#[test]
fn tests_do_not_sleep_without_a_reason() {
    let mut wrong = Vec::new();
    for folder in ["tests", "cli/tests", "src", "cli/src"] {
        let files = read(folder, "rs");
        assert!(files.len() > 5, "{folder} is not read");
        for (path, text) in files {
            let is_product = folder.ends_with("src") && !path.ends_with("tests.rs");
            // `code_of` keeps positions.
            for at in words(&code_of(&text), "sleep(") {
                let is_test = !is_product || text[..at].contains("\nmod tests {");
                if is_test && !has_reason(&text[..at]) {
                    wrong.push(place(&path, &text, at));
                }
            }
        }
    }
    none(&wrong, "these tests sleep and do not say why");
}

/// Whether the comment above the last line of this text says why it sleeps.
fn has_reason(text: &str) -> bool {
    let above = text.lines().rev().skip(1).map(str::trim_start);
    let mut comment = above.take_while(|line| line.starts_with("//"));
    comment.any(|line| REASONS.iter().any(|reason| line.starts_with(reason)))
}

#[test]
fn reason_to_sleep_stands_right_above_it() {
    let reason = "// Time itself is under test: it passes,\n    // and passes.\n";
    assert!(has_reason(&format!("    {reason}    thread::sleep(")));
    assert!(!has_reason(&format!("{reason}    work();\n    sleep(")));
    assert!(!has_reason("    // For the server.\n    thread::sleep("));
}
