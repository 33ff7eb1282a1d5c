//! The tables of docs/OPERATIONS.md, which have the expected counts.

use std::{fs, path::Path};

use fairlock_tests::ROOT;

/// The cost of one operation.
#[derive(Debug)]
pub(super) struct Costs {
    /// Calls of a script.
    pub(super) requests: f64,
    /// Commands within the scripts.
    pub(super) commands: f64,
    /// In both directions.
    pub(super) bytes: f64,
    /// `None` if the page has none.
    pub(super) system_calls: Option<f64>,
    /// After a plus: those whose number depends on the load, where they are counted apart.
    pub(super) by_load: Option<f64>,
}

impl Costs {
    /// The row of this operation.
    #[track_caller]
    pub(super) fn of(operation: &str) -> Costs {
        let path = Path::new(ROOT).join("docs/OPERATIONS.md");
        let page = fs::read_to_string(path).expect("docs/OPERATIONS.md");
        let start = format!("| {operation} | ");
        let mut rows = page.lines().filter_map(|line| line.strip_prefix(&start));
        let row = rows
            .next()
            .unwrap_or_else(|| panic!("docs/OPERATIONS.md has no row {operation:?}"));
        assert!(rows.next().is_none(), "two rows {operation:?}");
        let mut cells: Vec<Option<f64>> = row
            .trim_end_matches(" |")
            .replace(" + ", " | ")
            .split(" | ")
            .map(|cell| cell.parse().ok())
            .collect();
        cells.resize(5, None);
        let [
            Some(requests),
            Some(commands),
            Some(bytes),
            system_calls,
            by_load,
        ] = cells[..]
        else {
            panic!("{operation}: {row}");
        };
        Costs {
            requests,
            commands,
            bytes,
            system_calls,
            by_load,
        }
    }

    /// Without the names that each take of a lock sends, since their lengths differ: those of the host and
    /// of this thread, and the numbers of the process and of the thread.
    pub(super) fn without_names(mut self, thread: &str) -> Costs {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy().chars().take(64).count();
        let number = std::process::id().to_string().len();
        let takes = self.requests / 2.0;
        self.bytes -= takes * (host + thread.len() + 2 * number) as f64;
        self
    }

    /// Renewals and checks may add the fractions during a measurement.
    pub(super) fn is_within(&self, row: &Costs) -> bool {
        self.requests <= row.requests + 0.1
            && self.commands <= row.commands + 0.5
            && self.bytes <= row.bytes + 1.0
    }

    /// As the row, and not less: the page must stay true.
    pub(super) fn is(&self, row: &Costs) -> bool {
        self.is_within(row)
            && self.requests >= row.requests - 0.05
            && self.commands >= row.commands - 0.1
            && self.bytes >= row.bytes * 0.9
    }
}
