//! fairlock beside other clients: a small table, which is the README's too, and all figures.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::Range;

use crate::spread;
use crate::support::cores::Cores;
use crate::support::figure::Line;

/// A column of the small table.
struct Column {
    head: &'static str,
    /// Names the figure, and the cores that it was measured on.
    title: &'static str,
    cores: Cores,
}

const COLUMNS: [Column; 5] = [
    Column {
        head: "1 thread: lock + release, µs",
        title: "One thread, lock + release: p50",
        cores: Cores::Two,
    },
    Column {
        head: "32 threads, own names: per s",
        title: "32 threads on as many names: locks",
        cores: Cores::Any,
    },
    Column {
        head: "8 threads, one name: turns/s",
        title: "8 threads on one name, not held: turns",
        cores: Cores::Any,
    },
    Column {
        head: "hand-over, µs",
        title: "8 threads on one name, held for 1ms: hand-over, p50",
        cores: Cores::Any,
    },
    Column {
        head: "longest wait, ms",
        title: "8 threads on one name, held for 1ms: longest wait",
        cores: Cores::Any,
    },
];

/// They surround the README's table.
const BEGIN: &str = "<!-- benches/run.sh writes this table. -->\n";
const END: &str = "<!-- Its end. -->\n";

/// A row for each client with its own defaults. Empty if these benches did not run.
pub(crate) fn table(lines: &[Line]) -> String {
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| lines.iter().any(|line| column.shows(line)))
        .collect();
    if columns.is_empty() {
        return String::new();
    }
    let heads: Vec<&str> = columns.iter().map(|column| column.head).collect();
    // Without spaces around the bars, which would count as words of the README.
    let mut table = format!("||{}|\n", heads.join("|"));
    table += &format!("|---|{}\n", "--:|".repeat(columns.len()));
    let of_peers: Vec<&Line> = lines
        .iter()
        .filter(|line| line.figure.section == 1)
        .collect();
    for case in cases(&of_peers) {
        // A peer with another setting than the first, as a shorter retry.
        if case.contains(", ") && !case.contains("fairlock") {
            continue;
        }
        let cells: Vec<String> = columns
            .iter()
            .map(|column| {
                let mut lines = lines.iter();
                let line = lines.find(|line| column.shows(line) && line.figure.case == case);
                line.map_or("–".to_owned(), plain)
            })
            .collect();
        table += &format!("|{case}|{}|\n", cells.join("|"));
    }
    table
}

/// Says so if the clients for a language did not run: benches/peers leaves them out where their
/// tools are not installed.
pub(crate) fn left_out(lines: &[Line]) -> String {
    let ran = |language: &str| {
        lines
            .iter()
            .any(|line| line.figure.case.contains(&format!("({language})")))
    };
    let absent = ["Go", "Java"].into_iter().filter(|language| !ran(language));
    absent
        .map(|language| format!("Without clients for {language}, which did not run.\n"))
        .collect()
}

impl Column {
    fn shows(&self, line: &Line) -> bool {
        line.figure.title == self.title && line.cores == self.cores
    }
}

/// This page with the small table between its two comments.
pub(crate) fn renew(page: &str, lines: &[Line]) -> String {
    let table = table(lines);
    let place = place(page).expect("two comments for the table");
    if table.is_empty() {
        return page.to_owned();
    }
    page[..place.start].to_owned() + &table + &page[place.end..]
}

fn place(page: &str) -> Option<Range<usize>> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    Some(begin..begin + page[begin..].find(END)?)
}

/// A table for each part of the bench, which their titles begin with: "8 threads on one name: turns".
/// A row for each client, a column for each figure.
pub(crate) fn parts(lines: &[&Line]) -> String {
    let parts = distinct(lines.iter().map(|line| split(line).0));
    let tables = parts.into_iter().map(|part| {
        let lines: Vec<&Line> = lines
            .iter()
            .copied()
            .filter(|line| split(line).0 == part)
            .collect();
        format!("{part}:\n\n{}", by_client(&lines))
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn by_client(lines: &[&Line]) -> String {
    let columns = distinct(lines.iter().map(|line| (split(line).1, line.cores)));
    let heads: Vec<String> = columns
        .iter()
        .map(|(what, cores)| {
            let mut lines = lines.iter();
            let line = lines.find(|line| split(line).1 == *what);
            let unit = line.map_or("", |line| line.figure.unit.as_str());
            match cores {
                Cores::Any => format!("{what}, {unit}"),
                cores => format!("{what}, {unit}, cores: {cores}"),
            }
        })
        .collect();
    let mut table = format!("| | {} |\n", heads.join(" | "));
    table += &format!("|---|{}\n", "---|".repeat(columns.len()));
    for case in cases(lines) {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| {
                let mut of_case = lines.iter().filter(|line| line.figure.case == case);
                let line = of_case.find(|line| (split(line).1, line.cores) == *column);
                line.map_or("–".to_owned(), |line| spread(line))
            })
            .collect();
        table += &format!("| {case} | {} |\n", cells.join(" | "));
    }
    table
}

/// The part of the bench, and what was measured in it.
fn split(line: &Line) -> (&str, &str) {
    let title = line.figure.title.as_str();
    title.split_once(": ").unwrap_or((title, ""))
}

/// The names of the clients.
fn cases<'a>(lines: &[&'a Line]) -> Vec<&'a str> {
    distinct(lines.iter().map(|line| line.figure.case.as_str()))
}

/// Each one once, in the order in which they were measured.
fn distinct<T: Copy + Eq + Hash>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.filter(|one| seen.insert(*one)).collect()
}

/// The median for people: "62,331"; the head has the unit.
fn plain(line: &Line) -> String {
    if line.median < 1.0 {
        format!("{:.2}", line.median)
    } else if line.median < 10.0 {
        format!("{:.1}", line.median)
    } else {
        with_commas(line.median.round() as u64)
    }
}

pub(crate) fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}
