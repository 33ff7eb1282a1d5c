//! Kept locks in short: the figures that tell whether a lock is worth keeping.

use crate::support::cores::Cores;
use crate::support::figure::Line;
use crate::{digits, peers};

struct Row {
    head: &'static str,
    parts: &'static [Part],
}

/// Figures of one title, and the words behind their medians.
struct Part {
    title: &'static str,
    cases: &'static [&'static str],
    cores: Cores,
    words: &'static str,
}

const fn part(
    title: &'static str,
    cases: &'static [&'static str],
    cores: Cores,
    words: &'static str,
) -> Part {
    Part {
        title,
        cases,
        cores,
        words,
    }
}

const P50: &str = "Lock + drop of a kept name, p50";
const FLOOR: &str = "The floor by lock + drop of a kept name, p50";
const TIMES_FASTER: &str = "times faster than the floor";
const BY_TURNS: &str = "Two processes by turns: time with keep / without";
const TO_PLAIN: &str = "× without keep";

const ROWS: [Row; 8] = [
    Row {
        head: "lock + drop, one thread, by handle",
        parts: &[
            part(P50, &["1 thread, by handle"], Cores::Any, "ns"),
            part(FLOOR, &["1 thread, by handle"], Cores::Any, TIMES_FASTER),
        ],
    },
    Row {
        head: "lock + drop, one thread, by name",
        parts: &[
            part(P50, &["1 thread, by name"], Cores::Any, "ns"),
            part(FLOOR, &["1 thread, by name"], Cores::Any, TIMES_FASTER),
        ],
    },
    Row {
        head: "32 threads on as many names, 1 µs of work",
        parts: &[
            part(
                "Kept names: lock + drop",
                &["32 threads on as many names, 1 µs of work"],
                Cores::Any,
                "a second",
            ),
            part(
                "Kept names, by the same without keep",
                &["32 threads on as many names, 1 µs of work"],
                Cores::Any,
                TO_PLAIN,
            ),
        ],
    },
    Row {
        head: "8 threads on one name: turns",
        parts: &[part(
            "Turns on a kept name, by local hand-overs",
            &["8 threads on one name"],
            Cores::Any,
            "× by local hand-overs",
        )],
    },
    Row {
        head: "two processes by turns, 1, 2, 4, 8 and 64 locks in a row: time, two cores",
        parts: &[part(
            BY_TURNS,
            &[
                "this host, 1 in a row",
                "this host, 2 in a row",
                "this host, 4 in a row",
                "this host, 8 in a row",
                "this host, 64 in a row",
            ],
            Cores::Two,
            TO_PLAIN,
        )],
    },
    Row {
        head: "the same over a link of 1 ms",
        parts: &[part(
            BY_TURNS,
            &[
                "link of 1 ms, 1 in a row",
                "link of 1 ms, 2 in a row",
                "link of 1 ms, 4 in a row",
                "link of 1 ms, 8 in a row",
                "link of 1 ms, 64 in a row",
            ],
            Cores::Any,
            TO_PLAIN,
        )],
    },
    Row {
        head: "2, 3 and 10 managers that all wait: hand-over, p50, two cores",
        parts: &[part(
            "All wait: hand-over p50, by that without keep",
            &["2 managers, keep", "3 managers, keep", "10 managers, keep"],
            Cores::Two,
            TO_PLAIN,
        )],
    },
    Row {
        head: "lock of a name that another manager keeps",
        parts: &[
            part(
                "Lock of a name that another manager has",
                &["kept"],
                Cores::Any,
                "round trips",
            ),
            part(
                "Lock of a name that another manager has",
                &["free"],
                Cores::Any,
                "if nobody keeps it",
            ),
        ],
    },
];

/// Empty if kept locks were not measured.
pub(crate) fn table(lines: &[Line]) -> String {
    let rows: Vec<String> = ROWS.iter().filter_map(|row| row.show(lines)).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("||median|\n|---|---|\n{}", rows.concat())
}

impl Row {
    /// `None` if nothing of it was measured.
    fn show(&self, lines: &[Line]) -> Option<String> {
        let parts: Vec<String> = self
            .parts
            .iter()
            .filter_map(|part| part.show(lines))
            .collect();
        let head = self.head;
        (!parts.is_empty()).then(|| format!("|{head}|{}|\n", parts.join("; ")))
    }
}

impl Part {
    fn show(&self, lines: &[Line]) -> Option<String> {
        let find = |case: &str| {
            let mut lines = lines.iter();
            lines.find(|line| {
                line.figure.title == self.title
                    && line.figure.case == case
                    && line.cores == self.cores
            })
        };
        let found: Vec<Option<&Line>> = self.cases.iter().map(|case| find(case)).collect();
        if found.iter().all(Option::is_none) {
            return None;
        }
        let numbers = found
            .into_iter()
            .map(|line| line.map_or("–".to_owned(), number));
        let numbers: Vec<String> = numbers.collect();
        Some(format!("{} {}", numbers.join(", "), self.words))
    }
}

fn number(line: &Line) -> String {
    if line.median >= 1000.0 {
        return peers::with_commas(line.median.round() as u64);
    }
    let digits = digits(line);
    format!("{:.digits$}", line.median)
}
