//! Tables that fit the window, with one line for each row.
//!
//! A table crate would wrap cells at words and shrink all columns alike. Here the last columns are
//! cut off first.

use unicode_width::UnicodeWidthStr as _;

use crate::printable::{cut, printable};

/// Between two columns.
const GAP: &str = "  ";

#[derive(Debug)]
pub(crate) struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns by their titles, the most important one first. Those with a `>` in front have
    /// numbers or times, which stand on the right.
    pub(crate) fn new(columns: &'static [&'static str]) -> Table {
        let titles = columns.iter().map(|title| title.replace('>', ""));
        Table {
            columns,
            rows: vec![titles.collect()],
        }
    }

    /// Adds a row, which has a cell for each column.
    pub(crate) fn add(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.columns.len());
        let shown = row.iter().map(|cell| printable(cell).into_owned());
        self.rows.push(shown.collect());
    }

    /// The titles and the rows. With a width, no line is longer, no column has more than half of
    /// it, and none is empty. Without one, every column is there and nothing is cut.
    pub(crate) fn lines(&self, window: Option<usize>) -> impl Iterator<Item = String> + '_ {
        let (most, window) = (
            window.map(|window| window / 2),
            window.unwrap_or(usize::MAX),
        );
        let widest = |at: usize| self.rows.iter().map(|row| row[at].width()).max();
        let widths = (0..self.columns.len()).map(|at| match most {
            Some(_) if self.rows[1..].iter().all(|row| row[at].is_empty()) => 0,
            _ => widest(at).unwrap_or(0).min(most.unwrap_or(usize::MAX)),
        });
        let widths: Vec<usize> = widths.collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(&widths).enumerate();
            let shown = cells.filter(|(_, (_, width))| **width > 0);
            let shown = shown.map(|(at, (cell, width))| self.padded(at, cell, *width));
            let line = shown.collect::<Vec<_>>().join(GAP);
            cut(line.trim_end(), window)
        })
    }

    /// The cell in exactly this many columns of a terminal.
    fn padded(&self, at: usize, cell: &str, width: usize) -> String {
        let cell = cut(cell, width);
        let padding = " ".repeat(width.saturating_sub(cell.width()));
        match self.columns[at].starts_with('>') {
            true => padding + &cell,
            false => cell + &padding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &[[&str; 3]], width: Option<usize>) -> Vec<String> {
        let mut table = Table::new(&["NAME", ">HELD", "LABEL"]);
        for row in rows {
            table.add(row.map(str::to_owned).to_vec());
        }
        table.lines(width).collect()
    }

    #[test]
    fn no_line_is_wider_than_the_window() {
        let accents = "e\u{301}".repeat(16);
        let keyboards = "\u{2328}\u{fe0f}".repeat(9);
        let rows = [
            ["数据库迁移任务数据库迁移任务", "3.2s", "nightly"],
            [&accents, "59m59s", "🦀🦀🦀🦀🦀🦀🦀🦀"],
            ["plain", "", &keyboards],
        ];
        for width in 1..60 {
            for line in lines(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn last_columns_are_cut_off_and_long_text_leaves_room_for_them() {
        let rows = [["invoices:2026:42", "3.2s", ""]];
        let titles = "NAME              HELD";
        for (width, shown) in [
            (Some(60), [titles, "invoices:2026:42  3.2s"]),
            (Some(33), [titles, "invoices:2026:42  3.2s"]),
            (Some(24), ["NAME          HELD", "invoices:20…  3.2s"]),
            (Some(9), ["NAME  HE…", "inv…  3.…"]),
            (
                None,
                ["NAME              HELD  LABEL", "invoices:2026:42  3.2s"],
            ),
        ] {
            assert_eq!(lines(&rows, width), shown);
        }
    }
}
