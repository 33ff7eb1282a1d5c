//! The figures, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::measure::{Measured, Measurement};
use crate::exit::Failure;
use crate::output;
use crate::table::{Column, Table};

const COLUMNS: [Column; 7] = [
    Column::word("", 0),
    Column::number("p50", 1).at_least(7),
    Column::number("p90", 4).at_least(7),
    Column::number("p99", 2).at_least(7),
    Column::number("max", 3).at_least(7),
    Column::number("trips", 6),
    Column::number("per sec", 5),
];

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
pub(super) fn json(all: &[Measured], requests: u64) -> Result<(), Failure> {
    for measured in all {
        output::json(&Figures::of(measured, all))?;
    }
    output::json(&Whole {
        measurement: "all",
        requests,
    })
}

/// A table with a row for each measurement, and the meaning of the rows.
pub(super) fn print(all: &[Measured], requests: u64) -> Result<(), Failure> {
    output::table(&table(all), output::width())?;
    output::line(format_args!(
        "
trips       the median as a multiple of the round trip's median
round trip  inspect of a free name: one request, a script that reads one key
hand-over   from the drop of a guard to the return of wait in another manager
{requests} requests were sent to Redis in all"
    ))
}

fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for measured in all {
        let figures = Figures::of(measured, all);
        let trips = figures.round_trips.map(|trips| format!("{trips:.1}"));
        table.add(vec![
            measured.measurement.title(),
            time(figures.p50),
            time(figures.p90),
            time(figures.p99),
            time(figures.max),
            trips.unwrap_or_default(),
            format!("{:.0}", figures.per_second),
        ]);
    }
    table
}

impl Figures {
    fn of(measured: &Measured, all: &[Measured]) -> Figures {
        let times = &measured.times;
        let quantile = |quantile| seconds(times.value_at_quantile(quantile));
        let is_bare = |other: &&Measured| other.measurement == Measurement::RoundTrip;
        let bare = all.iter().find(is_bare);
        let bare = bare.map_or(0.0, |bare| seconds(bare.times.value_at_quantile(0.5)));
        let p50 = quantile(0.5);
        Figures {
            measurement: measured.measurement.id(),
            threads: measured.measurement.threads(),
            count: times.len(),
            per_second: times.len() as f64 / measured.elapsed.as_secs_f64().max(1e-9),
            p50,
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: seconds(times.max()),
            mean: times.mean() / 1e9,
            round_trips: (bare > 0.0).then(|| p50 / bare),
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Three or four digits and a unit.
fn time(seconds: f64) -> String {
    let (micros, millis) = (seconds * 1e6, seconds * 1e3);
    match micros {
        ..100.0 => format!("{micros:.1} µs"),
        ..1000.0 => format!("{micros:.0} µs"),
        _ if millis < 100.0 => format!("{millis:.2} ms"),
        _ if millis < 1000.0 => format!("{millis:.0} ms"),
        _ => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

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
            measured(Measurement::LockUnlock(1), &[100, 100, 100, 1600]),
        ];
        let lines: Vec<String> = table(&all).lines(None).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].starts_with("lock + unlock"), "{lines:?}");
        for figure in ["100 µs", "1.60 ms", " 2.0 "] {
            assert!(lines[2].contains(figure), "{figure}: {lines:?}");
        }
        let figures = Figures::of(&all[1], &all);
        let figures = serde_json::to_value(figures).expect("JSON");
        assert_eq!(figures["measurement"], "lock_unlock");
        assert_eq!(figures["per_second"], 2.0);
    }

    #[test]
    fn table_fits_a_window_of_eighty_columns() {
        let slow = [40, 5_000_000, 59_000_000];
        let all = Measurement::all(1024).map(|of| measured(of, &slow));
        let titles = table(&all).lines(Some(80)).next();
        let titles = titles.expect("the titles");
        for column in &COLUMNS {
            assert!(titles.contains(column.title), "{titles:?}");
        }
    }

    #[test]
    fn nothing_measured_is_a_table_without_rows() {
        assert_eq!(table(&[]).lines(Some(80)).count(), 1);
    }

    #[test]
    fn times_have_three_or_four_digits() {
        for (nanos, shown) in [
            (37_940, "37.9 µs"),
            (282_000, "282 µs"),
            (1_090_000, "1.09 ms"),
            (120_000_000, "120 ms"),
            (59_000_000_000, "59.00 s"),
        ] {
            assert_eq!(time(seconds(nanos)), shown);
        }
    }
}
