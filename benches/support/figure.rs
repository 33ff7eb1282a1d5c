//! Figures for the table and the chart: one line each in the file that `FAIRLOCK_BENCH_RESULTS`
//! names.

use std::env;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

use super::Rounds;
use super::cores::Cores;

/// One figure; its numbers are those of the rounds.
#[derive(Clone)]
pub(crate) struct Figure {
    /// Of benches/RESULTS.md.
    pub(crate) section: u8,
    /// Figures of one title that differ in their case share one picture.
    pub(crate) title: String,
    pub(crate) case: String,
    pub(crate) unit: String,
    /// The name and the value of the floor.
    pub(crate) floor: String,
    pub(crate) bound: Bound,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    None,
    AtMost(f64),
    AtLeast(f64),
}

/// A line of the results.
pub(crate) struct Line {
    pub(crate) bench: String,
    pub(crate) figure: Figure,
    /// Those that the bench and the server ran on.
    pub(crate) cores: Cores,
    pub(crate) rounds: usize,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Figure {
    pub(crate) fn new(section: u8, title: &str, case: impl Into<String>, unit: &str) -> Figure {
        let (title, unit) = (title.to_owned(), unit.to_owned());
        Figure {
            section,
            title,
            case: case.into(),
            unit,
            floor: "–".to_owned(),
            bound: Bound::None,
        }
    }

    pub(crate) fn beside(mut self, floor: impl Into<String>) -> Figure {
        self.floor = floor.into();
        self
    }

    pub(crate) fn bound(mut self, bound: Bound) -> Figure {
        self.bound = bound;
        self
    }

    /// Writes its line, if anybody wants it.
    pub(crate) fn note(self, rounds: &Rounds) {
        let Some(file) = env::var_os("FAIRLOCK_BENCH_RESULTS") else {
            return;
        };
        let Some(line) = self.line(rounds) else {
            return;
        };
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .expect("a file for the results");
        writeln!(file, "{}", line.to_text()).expect("the results can be written");
    }

    /// `None` if there was no round.
    pub(crate) fn line(self, rounds: &Rounds) -> Option<Line> {
        let (least, most) = rounds.spread()?;
        let bench = env!("CARGO_CRATE_NAME").to_owned();
        Some(Line {
            bench,
            figure: self,
            cores: Cores::present(),
            rounds: rounds.0.len(),
            median: rounds.median(),
            least,
            most,
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::None => f.write_str("–"),
            Bound::AtMost(most) => write!(f, "≤ {most}"),
            Bound::AtLeast(least) => write!(f, "≥ {least}"),
        }
    }
}

impl Line {
    pub(crate) fn to_text(&self) -> String {
        let Figure {
            section,
            title,
            case,
            unit,
            floor,
            bound,
        } = &self.figure;
        let Line {
            bench,
            cores,
            rounds,
            median,
            least,
            most,
            ..
        } = self;
        format!(
            "{section}\t{bench}\t{title}\t{case}\t{unit}\t{cores}\t{floor}\t{bound}\t{rounds}\t{median}\t{least}\t{most}"
        )
    }

    /// `None` if it is not a line of the results.
    pub(crate) fn parse(text: &str) -> Option<Line> {
        let fields: Vec<&str> = text.split('\t').collect();
        let [
            section,
            bench,
            title,
            case,
            unit,
            cores,
            floor,
            bound,
            rounds,
            median,
            least,
            most,
        ] = fields[..]
        else {
            return None;
        };
        let bound = match bound.split_once(' ') {
            Some(("≤", most)) => Bound::AtMost(most.parse().ok()?),
            Some(("≥", least)) => Bound::AtLeast(least.parse().ok()?),
            _ => Bound::None,
        };
        let figure = Figure::new(section.parse().ok()?, title, case, unit)
            .beside(floor)
            .bound(bound);
        let [median, least, most] = [median, least, most].map(|number| number.parse().ok());
        let rounds = rounds.parse().ok()?;
        Some(Line {
            bench: bench.to_owned(),
            figure,
            cores: Cores::parse(cores)?,
            rounds,
            median: median?,
            least: least?,
            most: most?,
        })
    }

    /// `None` if it has no bound.
    pub(crate) fn is_met(&self) -> Option<bool> {
        match self.figure.bound {
            Bound::None => None,
            Bound::AtMost(most) => Some(self.median <= most),
            Bound::AtLeast(least) => Some(self.median >= least),
        }
    }
}
