//! All figures that have a bound, in short: a row for each title and bound, whatever its cases.

use std::collections::HashSet;

use crate::support::cores::Cores;
use crate::support::figure::{Bound, Line};
use crate::{digits, verdict};

/// Without spaces around the bars, which would count as words of the page.
pub(crate) fn table(lines: &[Line]) -> String {
    let bounded: Vec<&Line> = lines
        .iter()
        .filter(|line| line.is_met().is_some())
        .collect();
    let mut table = "|||measured|bound||\n|--:|---|---|---|---|\n".to_owned();
    let mut seen = HashSet::new();
    for first in &bounded {
        if seen.insert(key(first)) {
            let group: Vec<&Line> = bounded
                .iter()
                .copied()
                .filter(|line| key(line) == key(first))
                .collect();
            table += &row(&group);
        }
    }
    table
}

/// How many figures have a bound, and how many of them meet it.
pub(crate) fn count(lines: &[Line]) -> (usize, usize) {
    let verdicts: Vec<bool> = lines.iter().filter_map(Line::is_met).collect();
    let met = verdicts.iter().filter(|is_met| **is_met).count();
    (verdicts.len(), met)
}

/// Figures with this in common share a row.
fn key(line: &Line) -> (u8, &str, String) {
    let figure = &line.figure;
    (figure.section, &figure.title, figure.bound.to_string())
}

fn row(group: &[&Line]) -> String {
    let by_excess = |one: &&&Line, other: &&&Line| excess(one).total_cmp(&excess(other));
    let Some(worst) = group.iter().max_by(by_excess) else {
        return String::new();
    };
    let figure = &worst.figure;
    let digits = digits(worst);
    let medians = group.iter().map(|line| line.median);
    let (least, most) = medians.fold((f64::MAX, f64::MIN), |(least, most), median| {
        (median.min(least), median.max(most))
    });
    let missed = group.iter().filter(|line| line.is_met() == Some(false));
    let cases = match (missed.count(), group.len()) {
        (_, 1) => of(worst),
        (0, all) => format!("{all} cases"),
        (missed, all) => format!("{missed} of {all} miss, worst: {}", of(worst)),
    };
    let [least, most] = [least, most].map(|median| format!("{median:.digits$}"));
    let measured = if least == most {
        least
    } else {
        format!("{least} to {most}")
    };
    format!(
        "|{}|{} ({cases})|{measured} {}|{}|{}|\n",
        figure.section,
        figure.title,
        figure.unit,
        figure.bound,
        verdict(worst.is_met()),
    )
}

/// The case, and its cores unless the scheduler chose them.
fn of(line: &Line) -> String {
    let case = &line.figure.case;
    match line.cores {
        Cores::Any => case.clone(),
        cores => format!("{case}, cores: {cores}"),
    }
}

/// How far it is beyond its bound; below zero if it is met.
fn excess(line: &Line) -> f64 {
    match line.figure.bound {
        Bound::None => 0.0,
        Bound::AtMost(most) => line.median - most,
        Bound::AtLeast(least) => least - line.median,
    }
}
