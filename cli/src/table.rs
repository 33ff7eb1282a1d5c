//! Tables that fit the window.
//!
//! A table crate would wrap cells at words and shrink all columns alike. Here a row is one line,
//! less important columns are left out first, and only names and labels are cut.

use unicode_width::UnicodeWidthStr as _;

use crate::printable::{cut, printable};

/// Between two columns.
pub(crate) const GAP: &str = "  ";

/// A column, and what becomes of it in a narrow window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    align: Align,
    /// It is never narrower, so that it stays in its place when its cells change.
    least: usize,
    /// Its cells are cut to this width if need be. `None`: never.
    cut_to: Option<usize>,
    /// It shares what other columns leave of the window, whatever is in its cells.
    fills: bool,
    /// The column with the highest rank is left out first.
    rank: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

impl Column {
    /// A word from a small set.
    pub(crate) const fn word(title: &'static str, rank: u8) -> Column {
        Column {
            title,
            align: Align::Left,
            least: 0,
            cut_to: None,
            fills: false,
            rank,
        }
    }

    /// Text that may be cut.
    pub(crate) const fn text(title: &'static str, cut_to: usize, rank: u8) -> Column {
        Column {
            cut_to: Some(cut_to),
            ..Column::word(title, rank)
        }
    }

    /// A number or a time.
    pub(crate) const fn number(title: &'static str, rank: u8) -> Column {
        Column {
            align: Align::Right,
            ..Column::word(title, rank)
        }
    }

    pub(crate) const fn at_least(self, least: usize) -> Column {
        Column { least, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Table {
        let titles = columns.iter().map(|column| column.title.to_owned());
        Table {
            columns: columns.to_vec(),
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
        self.cells(window).map(|row| {
            let cells: Vec<String> = row.into_iter().map(|(_, cell)| cell).collect();
            cells.join(GAP).trim_end().to_owned()
        })
    }

    /// The cells of each of these lines, as wide as their columns, and the titles of these.
    pub(crate) fn cells(
        &self,
        window: Option<usize>,
    ) -> impl Iterator<Item = Vec<(&'static str, String)>> + '_ {
        let widths = match window {
            Some(window) => self.fit(window),
            None => self.natural_widths().into_iter().map(Some).collect(),
        };
        self.rows.iter().map(move |row| {
            let columns = self.columns.iter().zip(row).zip(&widths);
            columns
                .filter_map(|((column, cell), width)| {
                    Some((column.title, column.padded(cell, (*width)?)))
                })
                .collect()
        })
    }

    /// The width of each column; `None` for a column that is left out.
    fn fit(&self, window: usize) -> Vec<Option<usize>> {
        let mut widths: Vec<Option<usize>> = self.natural_widths().into_iter().map(Some).collect();
        for (at, width) in widths.iter_mut().enumerate() {
            let column = &self.columns[at];
            if column.fills {
                *width = column.cut_to;
            }
            let mut cells = self.rows.iter().skip(1).map(|row| &row[at]);
            if self.rows.len() > 1 && cells.all(String::is_empty) {
                *width = None;
            }
        }
        let least = |at: usize, width: usize| {
            let cut_to = self.columns[at].cut_to.unwrap_or(width);
            width.min(cut_to)
        };
        while line_width(&widths, least) > window && widths.iter().flatten().count() > 1 {
            let shown = (0..widths.len()).filter(|at| widths[*at].is_some());
            let Some(last) = shown.max_by_key(|at| self.columns[*at].rank) else {
                break;
            };
            widths[last] = None;
        }
        while line_width(&widths, |_, width| width) > window {
            let widest = widths.iter_mut().enumerate().filter_map(|(at, width)| {
                let width = width.as_mut()?;
                (*width > least(at, *width)).then_some(width)
            });
            let Some(widest) = widest.max() else { break };
            *widest -= 1;
        }
        // One column is left, and even that is too wide.
        if let [only] = &mut widths.iter_mut().flatten().collect::<Vec<_>>()[..] {
            **only = window.min(**only);
        }
        self.fill(&mut widths, window);
        widths
    }

    /// Gives the columns that fill the window what is left of it, in equal shares.
    fn fill(&self, widths: &mut [Option<usize>], window: usize) {
        let left = window.saturating_sub(line_width(widths, |_, width| width));
        let columns = self.columns.iter().zip(widths);
        let mut filling: Vec<&mut usize> = columns
            .filter_map(|(column, width)| width.as_mut().filter(|_| column.fills))
            .collect();
        let count = filling.len();
        for (at, width) in filling.iter_mut().enumerate() {
            **width += left / count + usize::from(at < left % count);
        }
    }

    fn natural_widths(&self) -> Vec<usize> {
        let columns = self.columns.iter().enumerate();
        let widest = |at: usize| self.rows.iter().map(|row| row[at].width()).max();
        let natural = columns.map(|(at, column)| widest(at).unwrap_or(0).max(column.least));
        natural.collect()
    }
}

impl Column {
    /// The cell in exactly this many columns of a terminal.
    fn padded(&self, cell: &str, width: usize) -> String {
        let cell = cut(cell, width);
        let padding = " ".repeat(width.saturating_sub(cell.width()));
        match self.align {
            Align::Left => cell + &padding,
            Align::Right => padding + &cell,
        }
    }
}

fn line_width(widths: &[Option<usize>], width_of: impl Fn(usize, usize) -> usize) -> usize {
    let all = widths.iter().enumerate();
    let shown = all.filter_map(|(at, width)| width.map(|width| width_of(at, width) + GAP.len()));
    shown.sum::<usize>().saturating_sub(GAP.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column::text("NAME", 6, 0),
        Column::number("HELD", 1),
        Column::text("LABEL", 5, 2),
    ];

    fn table(rows: &[[&str; 3]]) -> Table {
        let mut table = Table::new(&COLUMNS);
        for row in rows {
            table.add(row.map(str::to_owned).to_vec());
        }
        table
    }

    fn lines(table: &Table, width: Option<usize>) -> Vec<String> {
        table.lines(width).collect()
    }

    #[test]
    fn no_line_is_wider_than_the_window() {
        let rows = [
            ["数据库迁移任务", "3.2s", "nightly"],
            [
                "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}",
                "59m59s",
                "🦀🦀🦀🦀",
            ],
            ["plain", "", ""],
        ];
        let table = table(&rows);
        for width in 1..60 {
            for line in lines(&table, Some(width)) {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn the_least_important_column_leaves_first() {
        let table = table(&[["invoices", "3.2s", "nightly"]]);
        let shown = |width| lines(&table, Some(width)).remove(0);
        assert_eq!(shown(23), "NAME      HELD  LABEL");
        assert_eq!(shown(19), "NAME    HELD  LABEL");
        assert_eq!(shown(16), "NAME      HELD");
        assert_eq!(shown(9), "NAME");
    }

    #[test]
    fn a_pipe_gets_every_column_uncut() {
        let long = "n".repeat(300);
        let shown = lines(&table(&[[&long, "1s", ""]]), None);
        assert!(shown[0].ends_with("LABEL"), "{shown:?}");
        assert!(shown[1].contains(&long), "{shown:?}");
    }

    #[test]
    fn cells_stay_on_their_line() {
        let shown = lines(&table(&[["a\nb", "1s", "\x1b[31m"]]), Some(80));
        assert_eq!(shown[1], "a\\nb    1s  \\u{1b}[31m");
    }
}
