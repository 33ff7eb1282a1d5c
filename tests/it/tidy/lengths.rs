//! Pages are short enough that people read them.

use std::fs;

use super::{none, root};

/// The pages for users, each of which is a file in docs/ but for the README.
const FOR_USERS: [&str; 9] = [
    "README.md",
    "docs/GUIDE.md",
    "docs/SERVERS.md",
    "docs/CONFIGURATION.md",
    "docs/OPERATIONS.md",
    "docs/COMMAND_LINE.md",
    "docs/METRICS.md",
    "docs/SAFETY.md",
    "docs/COMPARISON.md",
];

/// Words of all of them.
const MAX_FOR_USERS: usize = 26_000;

/// A page, and how many lines and words it may have.
const LIMITS: [(&str, usize, usize); 5] = [
    ("README.md", 130, 900),
    ("ARCHITECTURE.md", 200, usize::MAX),
    ("CHANGELOG.md", 120, usize::MAX),
    ("docs/SAFETY.md", usize::MAX, 2_500),
    ("docs/BENCHMARKS.md", usize::MAX, 1_500),
];

/// Lines and words.
fn length(page: &str) -> (usize, usize) {
    let text = fs::read_to_string(root().join(page)).expect(page);
    (text.lines().count(), text.split_whitespace().count())
}

#[test]
fn pages_keep_their_limits() {
    let long = LIMITS
        .into_iter()
        .filter_map(|(page, max_lines, max_words)| {
            let (lines, words) = length(page);
            (lines > max_lines || words > max_words)
                .then(|| format!("{page} has {lines} lines and {words} words"))
        });
    none(&long.collect::<Vec<_>>(), "these pages are too long");
}

#[test]
fn pages_for_users_can_be_read_in_an_afternoon() {
    let words: usize = FOR_USERS.iter().map(|page| length(page).1).sum();
    assert!(
        words <= MAX_FOR_USERS,
        "they have {words} words; the limit is {MAX_FOR_USERS}"
    );
}
