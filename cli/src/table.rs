//! Tables that fit the window, with one line for each row.
//!
//! A table crate would wrap cells at words and shrink all columns alike. Here the last columns are
//! left out first, and only text is cut.

use unicode_width::UnicodeWidthStr as _;

use crate::printable::{cut, printable};

/// Between two columns.
const GAP: &str = "  ";
/// Text is cut to this width before a column is left out.
const LEAST: usize = 12;

#[derive(Debug)]
pub(crate) struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns by their titles, the most important one first. They have text, which may be cut.
    /// Those with a `>` in front have numbers or times, which are not cut and stand on the right.
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

    /// The titles and the rows. With a width, no line is longer, and no column is empty. Without
    /// one, every column is there and nothing is cut.
    pub(crate) fn lines(&self, window: Option<usize>) -> impl Iterator<Item = String> + '_ {
        let widths = match window {
            Some(window) => self.fit(window),
            None => self.natural_widths(),
        };
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(&widths).enumerate();
            let shown = cells.filter(|(_, (_, width))| **width > 0);
            let shown = shown.map(|(at, (cell, width))| self.padded(at, cell, *width));
            shown.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        })
    }

    fn is_text(&self, at: usize) -> bool {
        !self.columns[at].starts_with('>')
    }

    /// The cell in exactly this many columns of a terminal.
    fn padded(&self, at: usize, cell: &str, width: usize) -> String {
        let cell = cut(cell, width);
        let padding = " ".repeat(width.saturating_sub(cell.width()));
        match self.is_text(at) {
            true => cell + &padding,
            false => padding + &cell,
        }
    }

    /// The width of each column; 0 for a column that is left out.
    fn fit(&self, window: usize) -> Vec<usize> {
        let mut widths = self.natural_widths();
        let rows = &self.rows[1..];
        for (at, width) in widths.iter_mut().enumerate() {
            if !rows.is_empty() && rows.iter().all(|row| row[at].is_empty()) {
                *width = 0;
            }
        }
        let least = |(at, width): (usize, &usize)| match self.is_text(at) {
            true => LEAST.min(*width),
            false => *width,
        };
        while line_width(widths.iter().enumerate().map(least)) > window
            && let Some(last) = widths.iter().rposition(|width| *width > 0)
            && widths[..last].iter().any(|width| *width > 0)
        {
            widths[last] = 0;
        }
        while line_width(widths.iter().copied()) > window
            && let Some(widest) =
                (0..widths.len()).max_by_key(|at| (self.is_text(*at), widths[*at]))
            && widths[widest] > 0
        {
            widths[widest] -= 1;
        }
        widths
    }

    fn natural_widths(&self) -> Vec<usize> {
        let widest = |at: usize| self.rows.iter().map(|row| row[at].width()).max();
        let columns = 0..self.columns.len();
        columns.map(|at| widest(at).unwrap_or(0)).collect()
    }
}

fn line_width(widths: impl Iterator<Item = usize>) -> usize {
    let shown = widths.filter(|width| *width > 0);
    shown
        .map(|width| width + GAP.len())
        .sum::<usize>()
        .saturating_sub(GAP.len())
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
        let rows = [
            ["数据库迁移任务数据库迁移任务", "3.2s", "nightly"],
            [&accents, "59m59s", "🦀🦀🦀🦀🦀🦀🦀🦀"],
            ["plain", "", ""],
        ];
        for width in 1..60 {
            for line in lines(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn text_is_cut_before_the_last_column_is_left_out() {
        let rows = [["invoices:2026:42", "3.2s", "nightly"]];
        for (width, titles, row) in [
            (
                31,
                "NAME              HELD  LABEL",
                "invoices:2026:42  3.2s  nightly",
            ),
            (
                27,
                "NAME          HELD  LABEL",
                "invoices:20…  3.2s  nightly",
            ),
            (26, "NAME              HELD", "invoices:2026:42  3.2s"),
            (17, "NAME", "invoices:2026:42"),
            (9, "NAME", "invoices…"),
        ] {
            assert_eq!(lines(&rows, Some(width)), [titles, row]);
        }
    }
}
