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

    /// The widths of the columns that are shown; 0 for an empty one. All texts are cut alike.
    fn fit(&self, window: usize) -> Vec<usize> {
        let mut natural = self.natural_widths();
        let rows = &self.rows[1..];
        for (at, width) in natural.iter_mut().enumerate() {
            if !rows.is_empty() && rows.iter().all(|row| row[at].is_empty()) {
                *width = 0;
            }
        }
        let cut = |shown: usize, most: usize| {
            let of = |at: usize| match at == 0 || self.is_text(at) {
                true => most.min(natural[at]),
                false => natural[at],
            };
            let widths: Vec<usize> = (0..shown).map(of).collect();
            let gaps = widths.iter().filter(|width| **width > 0).skip(1).count() * GAP.len();
            (widths.iter().sum::<usize>() + gaps <= window).then_some(widths)
        };
        let mut fewer = (1..=natural.len()).rev();
        let shown = fewer.find(|shown| cut(*shown, LEAST).is_some());
        let mut smaller = (0..=window).rev();
        let widths = smaller.find_map(|most| cut(shown.unwrap_or(1), most));
        widths.unwrap_or_default()
    }

    fn natural_widths(&self) -> Vec<usize> {
        let widest = |at: usize| self.rows.iter().map(|row| row[at].width()).max();
        let columns = 0..self.columns.len();
        columns.map(|at| widest(at).unwrap_or(0)).collect()
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
