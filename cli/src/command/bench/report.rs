//! The figures, for people and for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::measure::{Measured, Measurement};

const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];
/// The columns of a table with its histograms.
const WIDE: usize = 77 + 2 + STEPS;
/// How many steps the small histogram has.
const STEPS: usize = 24;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The figures of a measurement. Times are in seconds.
#[derive(Debug, Serialize)]
struct Figures {
    measurement: &'static str,
    threads: u32,
    count: u64,
    per_second: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    mean: f64,
    /// The median, as a multiple of the bare round trip's.
    round_trips: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Whole {
    measurement: &'static str,
    requests: u64,
}

/// One JSON object per line: each measurement, then the number of requests of all.
pub(super) fn json(all: &[Measured], requests: u64) -> String {
    let mut lines = String::new();
    for measured in all {
        let times = &measured.times;
        let [p50, p90, p99] = QUANTILES.map(|q| seconds(times.value_at_quantile(q)));
        let figures = Figures {
            measurement: measured.measurement.id(),
            threads: measured.measurement.threads(),
            count: times.len(),
            per_second: per_second(measured),
            p50,
            p90,
            p99,
            max: seconds(times.max()),
            mean: times.mean() / 1e9,
            round_trips: round_trips(measured, all),
        };
        lines += &line(&figures);
    }
    let whole = Whole {
        measurement: "all",
        requests,
    };
    lines + &line(&whole)
}

fn line(figures: &impl Serialize) -> String {
    let json = serde_json::to_string(figures).expect("numbers and names are JSON");
    json + "\n"
}

/// A table, a small histogram for each row, and what the rows are. The histograms have rows of
/// their own if the window is not wide enough for both.
pub(super) fn table(all: &[Measured], requests: u64, window: Option<usize>) -> String {
    let axis = Axis::of(all);
    let is_wide = window.is_none_or(|columns| columns >= WIDE);
    let (mut text, mut below) = (heading(is_wide), String::new());
    for measured in all {
        let title = format!("{:<25}", measured.measurement.title());
        let bars = axis.bars(&measured.times);
        text += &format!("{title}{}", figures(measured, all));
        if is_wide {
            text += &format!("  {bars}");
        } else {
            below += &format!("{title}  {bars}\n");
        }
        text += "\n";
    }
    text + "\n"
        + &below
        + &format!(
            "\
histogram   from {} to {}, each step {:.1} times the one before
trips       the median as a multiple of the round trip's median
round trip  inspect of a free name: one request, a script that reads one key
hand-over   from the call of unlock to the return of wait in the next holder
{requests} requests were sent to Redis in all
",
            time(axis.from as u64),
            time(axis.to as u64),
            axis.step()
        )
}

fn heading(is_wide: bool) -> String {
    let histogram = if is_wide { "  histogram" } else { "" };
    format!(
        "{:<25}{:>9}{:>9}{:>9}{:>9}{:>7}{:>9}{histogram}\n",
        "", "p50", "p90", "p99", "max", "trips", "per sec"
    )
}

fn figures(measured: &Measured, all: &[Measured]) -> String {
    let times = &measured.times;
    let [p50, p90, p99] = QUANTILES.map(|quantile| time(times.value_at_quantile(quantile)));
    let trips = round_trips(measured, all);
    let trips = trips.map_or_else(String::new, |trips| format!("{trips:.1}"));
    format!(
        "{p50:>9}{p90:>9}{p99:>9}{:>9}{trips:>7}{:>9.0}",
        time(times.max()),
        per_second(measured)
    )
}

/// The common scale of all small histograms, in nanoseconds. It is logarithmic.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn of(all: &[Measured]) -> Axis {
        let least = all.iter().map(|measured| measured.times.min()).min();
        let most = all.iter().map(|measured| measured.times.max()).max();
        let from = least.unwrap_or(1).max(1) as f64;
        Axis {
            from,
            to: (most.unwrap_or(1) as f64).max(from * 2.0),
        }
    }

    fn step(&self) -> f64 {
        (self.to / self.from).powf(1.0 / STEPS as f64)
    }

    fn bars(&self, times: &Histogram<u64>) -> String {
        let mut counts = [0; STEPS];
        for step in times.iter_recorded() {
            let value = step.value_iterated_to() as f64;
            let at = (value / self.from).ln() / self.step().ln();
            counts[(at.max(0.0) as usize).min(STEPS - 1)] += step.count_since_last_iteration();
        }
        let most = counts.iter().max().copied().unwrap_or_default().max(1);
        let bar = |count: u64| match count {
            0 => ' ',
            count => BARS[((count * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
        };
        let bars: String = counts.into_iter().map(bar).collect();
        bars.trim_end().to_owned()
    }
}

fn round_trips(measured: &Measured, all: &[Measured]) -> Option<f64> {
    let is_bare = |other: &&Measured| other.measurement == Measurement::RoundTrip;
    let bare = all.iter().find(is_bare)?.times.value_at_quantile(0.5);
    (bare > 0).then(|| measured.times.value_at_quantile(0.5) as f64 / bare as f64)
}

fn per_second(measured: &Measured) -> f64 {
    measured.times.len() as f64 / measured.elapsed.as_secs_f64().max(1e-9)
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Three or four digits and a unit.
fn time(nanos: u64) -> String {
    let micros = nanos as f64 / 1e3;
    match nanos {
        0..100_000 => format!("{micros:.1} µs"),
        100_000..1_000_000 => format!("{micros:.0} µs"),
        1_000_000..100_000_000 => format!("{:.2} ms", micros / 1e3),
        100_000_000..1_000_000_000 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(measurement: Measurement, micros: &[u64]) -> Measured {
        let mut times = Histogram::new(3).expect("three digits");
        for micros in micros {
            times.record(micros * 1000).expect("in range");
        }
        Measured {
            measurement,
            times,
            elapsed: Duration::from_secs(2),
        }
    }

    #[test]
    fn figures_stand_next_to_the_round_trip() {
        let all = [
            measured(Measurement::RoundTrip, &[50; 10]),
            measured(Measurement::LockUnlock, &[100, 100, 100, 1600]),
        ];
        let table = table(&all, 77, None);
        let row = table.lines().find(|line| line.starts_with("lock + unlock"));
        let row = row.expect("a row");
        for figure in ["100 µs", "1.60 ms", " 2.0 "] {
            assert!(row.contains(figure), "{figure}: {row}");
        }
        assert!(table.contains("77 requests"), "{table}");
        let json = json(&all, 77);
        let lines: Vec<serde_json::Value> = json
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1]["measurement"], "lock_unlock");
        assert_eq!(lines[1]["per_second"], 2.0);
        assert_eq!(lines[2]["requests"], 77);
    }

    #[test]
    fn table_fits_a_window_of_eighty_columns() {
        let slow = [40, 5_000_000, 59_000_000];
        let all = Measurement::all(1024).into_iter();
        let all: Vec<Measured> = all.map(|of| measured(of, &slow)).collect();
        let table = table(&all, 1_000_000_000, Some(80));
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{table}");
        let rows = table.lines().filter(|line| line.contains('█'));
        assert_eq!(rows.count(), 6, "{table}");
    }

    #[test]
    fn histograms_share_one_axis() {
        let all = [
            measured(Measurement::RoundTrip, &[50]),
            measured(Measurement::LockUnlock, &[3200, 3200, 50]),
        ];
        let axis = Axis::of(&all);
        assert_eq!(axis.bars(&all[0].times), "█");
        let bars = axis.bars(&all[1].times);
        assert_eq!(bars.chars().count(), STEPS);
        assert!(bars.starts_with('▄') && bars.ends_with('█'), "{bars}");
    }

    #[test]
    fn nothing_measured_is_a_table_without_rows() {
        assert!(table(&[], 0, None).contains("0 requests"));
    }
}
