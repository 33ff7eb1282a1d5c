//! fairlock beside the other crates: a small table, which is the README's too, and all figures.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;

use crate::spread;
use crate::support::cores::Cores;
use crate::support::figure::Line;

/// A column of the small table.
struct Column {
    head: &'static str,
    /// Of the figure, and of the cores that it was measured on.
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

/// A row for each crate with its own defaults. Empty if these benches did not run.
pub(crate) fn table(lines: &[Line]) -> String {
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| lines.iter().any(|line| column.shows(line)))
        .collect();
    if columns.is_empty() {
        return String::new();
    }
    let heads: Vec<&str> = columns.iter().map(|column| column.head).collect();
    let mut table = format!("| | {} |\n", heads.join(" | "));
    table += &format!("|---|{}\n", "--:|".repeat(columns.len()));
    let of_peers: Vec<&Line> = lines
        .iter()
        .filter(|line| line.figure.section == 1)
        .collect();
    for case in cases(&of_peers) {
        // They are set to poll faster than they do by default.
        if case.contains(", retry") {
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
        table += &format!("| {case} | {} |\n", cells.join(" | "));
    }
    table
}

impl Column {
    fn shows(&self, line: &Line) -> bool {
        line.figure.title == self.title && line.cores == self.cores
    }
}

/// Puts the small table between the two comments of this file.
pub(crate) fn renew(file: &str, lines: &[Line]) {
    let table = table(lines);
    let page = fs::read_to_string(file).expect("the file of the table");
    let place = place(&page).expect("two comments for the table");
    if !table.is_empty() {
        let page = page[..place.start].to_owned() + &table + &page[place.end..];
        fs::write(file, page).expect("the file can be written to");
    }
}

fn place(page: &str) -> Option<Range<usize>> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    Some(begin..begin + page[begin..].find(END)?)
}

/// A row for each figure, a column for each crate.
pub(crate) fn matrix(lines: &[&Line]) -> String {
    let cases = cases(lines);
    let mut matrix = format!("| figure | cores | {} |\n", cases.join(" | "));
    matrix += &format!("|---|---|{}\n", "---|".repeat(cases.len()));
    let mut seen = HashSet::new();
    for first in lines {
        if !seen.insert((&first.figure.title, first.cores)) {
            continue;
        }
        let of_row =
            |line: &&&Line| line.figure.title == first.figure.title && line.cores == first.cores;
        let cells: Vec<String> = cases
            .iter()
            .map(|case| {
                let mut row = lines.iter().filter(of_row);
                let line = row.find(|line| line.figure.case == **case);
                line.map_or("–".to_owned(), |line| spread(line))
            })
            .collect();
        let (title, unit) = (&first.figure.title, &first.figure.unit);
        let cells = cells.join(" | ");
        matrix += &format!("| {title}, {unit} | {} | {cells} |\n", first.cores);
    }
    matrix
}

/// In the order in which they were measured.
fn cases<'a>(lines: &[&'a Line]) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    let cases = lines.iter().map(|line| line.figure.case.as_str());
    cases.filter(|case| seen.insert(*case)).collect()
}

/// The median for people: "62,331"; the head has the unit.
fn plain(line: &Line) -> String {
    if line.median < 10.0 {
        format!("{:.1}", line.median)
    } else {
        with_commas(line.median.round() as u64)
    }
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}
