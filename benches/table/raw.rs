//! benches/RESULTS.md: all figures, and the texts about them.

use std::collections::BTreeSet;

use crate::results::Results;
use crate::support::figure::{Figure, Line};
use crate::{peers, spread, verdict};

/// The first has figures of several clients; in the others all figures are fairlock's.
const SECTIONS: [&str; 10] = [
    "Beside other clients",
    "A lock that nobody else wants",
    "Hand-over",
    "The length of the queue",
    "Waiting",
    "Holding many locks",
    "A slow link",
    "Permits",
    "Local hand-overs",
    "Kept locks",
];

/// Figures that no bench of this folder makes.
const MEASURED_APART: &str = include_str!("measured_apart.md");

/// The text that explains the figures. Instructions do not depend on the machine; they were counted
/// by valgrind's callgrind on redis-server 7.0.15, as the difference of 2000 and 1000 requests.
const WHERE_THE_TIME_GOES: &str = include_str!("where_the_time_goes.md");

pub(crate) fn page(results: &Results) -> String {
    let lines = &results.lines;
    let mut page = format!(
        "# All results of the benches

`benches/run.sh` wrote this page. [BENCHMARKS.md](../docs/BENCHMARKS.md) says how to run and read it, and
has the figures in short. The benches ran on {}. `results.tsv` has the same figures for programs.

A figure is the median of its rounds (least..most). The head of each bench says what it measures.
",
        results.about()
    );
    let numbers: BTreeSet<u8> = lines.iter().map(|line| line.figure.section).collect();
    for number in numbers {
        let mut section: Vec<&Line> = lines
            .iter()
            .filter(|line| line.figure.section == number)
            .collect();
        let title = SECTIONS.get(usize::from(number) - 1).unwrap_or(&"More");
        // Those of one title together, and otherwise as they were measured.
        let titles: Vec<String> = section
            .iter()
            .map(|line| line.figure.title.clone())
            .collect();
        section.sort_by_key(|line| titles.iter().position(|title| *title == line.figure.title));
        page += &format!("\n## {number}. {title}\n\n");
        page += &if number == 1 {
            peers::parts(&section)
        } else {
            rows(&section)
        };
    }
    page + "\n" + MEASURED_APART + WHERE_THE_TIME_GOES
}

/// A row for each figure.
fn rows(lines: &[&Line]) -> String {
    let mut rows =
        "| figure | cores | median (least..most) | rounds | beside | wanted | | bench |\n"
            .to_owned();
    rows += "|---|---|---|---|---|---|---|---|\n";
    for line in lines {
        let Line {
            bench,
            figure,
            cores,
            rounds,
            ..
        } = line;
        let Figure {
            title,
            case,
            unit,
            floor,
            bound,
            ..
        } = figure;
        let (value, verdict) = (spread(line), verdict(line.is_met()));
        rows += &format!(
            "| {title}: {case} | {cores} | {value} {unit} | {rounds} | {floor} | {bound} | {verdict} | `{bench}` |\n"
        );
    }
    rows
}
