//! Which rows are shown, and in which order.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::seen::Row;

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// Hand-overs per second, then the length of the queue
    Busy,
    /// The length of the queue
    Waiting,
    /// The time that the oldest waiter has waited
    Oldest,
    /// The time that the holder has held the lock
    Held,
    /// The holder's host, process and label
    Holder,
    /// The name
    Name,
}

/// A column, and whether its order is turned around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) column: Column,
    pub(super) direction: Direction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Numbers: the largest first. Texts: by the alphabet.
    Usual,
    Reversed,
}

impl Column {
    /// In the order of the keys 1 to 6.
    pub(super) const ALL: [Column; 6] = [
        Column::Busy,
        Column::Waiting,
        Column::Oldest,
        Column::Held,
        Column::Holder,
        Column::Name,
    ];

    /// Its title in the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Busy => "PER SEC",
            Column::Waiting => "WAITING",
            Column::Oldest => "OLDEST",
            Column::Held => "HELD",
            Column::Holder => "HOLDER",
            Column::Name => "NAME",
        }
    }

    pub(super) fn next(self) -> Column {
        self.step(1)
    }

    pub(super) fn previous(self) -> Column {
        self.step(Column::ALL.len() - 1)
    }

    fn step(self, by: usize) -> Column {
        let at = Column::ALL.iter().position(|column| *column == self);
        Column::ALL[(at.unwrap_or_default() + by) % Column::ALL.len()]
    }
}

impl Order {
    pub(super) fn by(column: Column) -> Order {
        Order {
            column,
            direction: Direction::Usual,
        }
    }

    pub(super) fn reversed(self) -> Order {
        let direction = match self.direction {
            Direction::Usual => Direction::Reversed,
            Direction::Reversed => Direction::Usual,
        };
        Order { direction, ..self }
    }

    /// Rows that are equal otherwise are in the order of their names, so that they stay in place.
    pub(super) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let (x, y) = (&a.seen, &b.seen);
        let waiting = || y.waiters.cmp(&x.waiters);
        let rate = |row: &Row| row.rate.unwrap_or_default();
        let usual = match self.column {
            Column::Busy => rate(b).total_cmp(&rate(a)).then_with(waiting),
            Column::Waiting => waiting(),
            Column::Oldest => y.oldest_wait.cmp(&x.oldest_wait),
            Column::Held => y.held_for().cmp(&x.held_for()),
            Column::Holder => holder(a).cmp(&holder(b)),
            Column::Name => x.name.cmp(&y.name),
        };
        let directed = match self.direction {
            Direction::Usual => usual,
            Direction::Reversed => usual.reverse(),
        };
        directed.then_with(|| x.name.cmp(&y.name))
    }
}

/// Names without a holder come last.
fn holder(row: &Row) -> (bool, Option<(&str, u32, &str)>) {
    let holder = row.seen.holder.as_ref();
    let parts = holder.map(|holder| (&*holder.host, holder.pid, &*holder.label));
    (parts.is_none(), parts)
}

/// Whether a row has this text in its name or its holder. Upper and lower case are the same.
pub(super) fn matches(row: &Row, text: &str) -> bool {
    let text = text.to_lowercase();
    let has = |field: &str| field.to_lowercase().contains(&text);
    text.is_empty()
        || has(&row.seen.name)
        || row.seen.holder.as_ref().is_some_and(|holder| {
            has(&holder.label) || has(&holder.host) || has(&holder.pid.to_string())
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::command::top::samples::{owner, row};

    /// Three rows whose order differs by each column.
    fn three() -> Vec<Row> {
        let mut rows = vec![row("b"), row("a"), row("c")];
        for (row, (rate, waiters, oldest, held, host)) in rows.iter_mut().zip([
            (3.0, 1, 7, 5, "web-2"),
            (1.0, 9, 3, 6, "web-3"),
            (2.0, 5, 8, 4, "web-1"),
        ]) {
            row.rate = Some(rate);
            row.seen.waiters = waiters;
            row.seen.oldest_wait = Some(Duration::from_secs(oldest));
            row.seen.holder = Some(owner(host, Duration::from_secs(held)));
        }
        rows
    }

    #[test]
    fn each_column_sorts_both_ways() {
        for (column, sorted) in [
            (Column::Busy, "bca"),
            (Column::Waiting, "acb"),
            (Column::Oldest, "cba"),
            (Column::Held, "abc"),
            (Column::Holder, "cba"),
            (Column::Name, "abc"),
        ] {
            let order = Order::by(column);
            for (order, sorted) in [
                (order, sorted.to_owned()),
                (order.reversed(), sorted.chars().rev().collect()),
            ] {
                let mut rows = three();
                rows.sort_by(|a, b| order.compare(a, b));
                let names: String = rows.iter().map(|row| &*row.seen.name).collect();
                assert_eq!(names, sorted, "{order:?}");
            }
        }
    }

    #[test]
    fn filter_finds_names_and_holders() {
        let row = Row {
            ..row("Invoices:42")
        };
        for found in ["", "invoices", "S:4", "web-1", "471", "NIGHTLY"] {
            assert!(matches(&row, found), "{found}");
        }
        assert!(!matches(&row, "invoices:43"));
    }
}
