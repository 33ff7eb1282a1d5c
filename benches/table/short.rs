//! All figures that have a bound, in short: a row for each title, whatever its cases.

use std::collections::HashSet;

use crate::support::cores::Cores;
use crate::support::figure::{Bound, Line};
use crate::{digits, verdict};

pub(crate) fn table(lines: &[Line]) -> String {
    let bounded: Vec<&Line> = lines
        .iter()
        .filter(|line| line.is_met().is_some())
        .collect();
    let mut table = "| | cores | measured | bound | |\n|---|---|---|---|---|\n".to_owned();
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

/// Figures with this in common share a row.
fn key(line: &Line) -> (u8, &str, Cores, String) {
    let figure = &line.figure;
    let bound = figure.bound.to_string();
    (figure.section, &figure.title, line.cores, bound)
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
    let (case, measured) = if group.len() == 1 {
        (figure.case.clone(), format!("{:.digits$}", worst.median))
    } else {
        let missed = group.iter().filter(|line| line.is_met() == Some(false));
        let cases = match missed.count() {
            0 => format!("{} cases", group.len()),
            missed => format!(
                "{missed} of {} cases miss; worst: {}",
                group.len(),
                figure.case
            ),
        };
        (cases, format!("{least:.digits$} to {most:.digits$}"))
    };
    format!(
        "| {}. {} ({case}) | {} | {measured} {} | {} | {} |\n",
        figure.section,
        figure.title,
        worst.cores,
        figure.unit,
        figure.bound,
        verdict(worst.is_met()),
    )
}

/// How far it is beyond its bound; below zero if it is met.
fn excess(line: &Line) -> f64 {
    match line.figure.bound {
        Bound::None => 0.0,
        Bound::AtMost(most) => line.median - most,
        Bound::AtLeast(least) => least - line.median,
    }
}
