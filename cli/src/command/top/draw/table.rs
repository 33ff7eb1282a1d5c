//! The table: a row for each name.

use std::time::{Duration, Instant};

use fairlock::inspect::LockState;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{Meaning, Setting, lines, scrolled};
use crate::age;
use crate::command::top::order::{Direction, Order};
use crate::command::top::seen::{Owner, Row, Seen};
use crate::command::top::view::View;
use crate::table::{Column, GAP, Table};

const COLUMNS: [Column; 7] = [
    Column::text("NAME", 12, 0).filling(),
    Column::number("PER SEC", 2).at_least(7),
    Column::number("WAITING", 1).at_least(7),
    Column::number("OLDEST", 4).at_least(7),
    Column::number(HELD, 3).at_least(7),
    Column::number("LEFT", 6).at_least(7),
    Column::text(HOLDER, 10, 5).filling(),
];
const HELD: &str = "HELD";
const HOLDER: &str = "HOLDER";
/// In narrower windows, names and holders need the place of LEFT.
const LEAST_WINDOW_FOR_LEFT: usize = 100;

pub(super) fn draw(
    frame: &mut Frame,
    area: Rect,
    view: &mut View,
    setting: &Setting,
    now: Instant,
) {
    view.page = usize::from(area.height.saturating_sub(1)).max(1);
    let shown = view.shown();
    let selected = view.position(&shown);
    let first = scrolled(view.first, selected, view.page, shown.len());
    let width = usize::from(area.width);
    let visible = || shown.iter().enumerate().skip(first).take(view.page);
    let mut table = Table::new(&COLUMNS);
    for (_, row) in visible() {
        table.add(cells(row, width, now));
    }
    table.mark(view.order.column.title(), sign(view.order));
    let mut lines = table.cells(Some(width));
    let style = |meaning| setting.palette.style(meaning);
    let titles = line(lines.next().unwrap_or_default(), |_| style(Meaning::Title));
    let rows = visible().zip(lines).map(|((at, row), cells)| {
        let line = line(cells, |title| style(meaning(title, row)));
        let meaning = if at == selected {
            Meaning::Selected
        } else {
            Meaning::Usual
        };
        line.patch_style(style(meaning))
    });
    for (row, line) in area.rows().zip(std::iter::once(titles).chain(rows)) {
        frame.render_widget(line, row);
    }
    if shown.is_empty() && view.looks.last.is_some() {
        nothing(frame, area, view, setting);
    }
    (view.first, view.selected_at) = (first, selected);
}

/// Says why there are no rows.
fn nothing(frame: &mut Frame, area: Rect, view: &View, setting: &Setting) {
    let why = if view.rows.is_empty() {
        "nothing is held, and nobody waits"
    } else {
        "no name matches the filter"
    };
    let heading = (String::new(), Style::new());
    let faint = setting.palette.style(Meaning::Faint);
    lines(frame, area, [heading, (why.to_owned(), faint)]);
}

/// The cells of [`COLUMNS`].
fn cells(row: &Row, window: usize, now: Instant) -> Vec<String> {
    let seen = &row.seen;
    vec![
        seen.name.to_string(),
        rate(row.rate),
        seen.waiters.to_string(),
        grown(seen.oldest_wait, seen, now),
        held(seen, now),
        if window >= LEAST_WINDOW_FOR_LEFT {
            time_left(seen, now)
        } else {
            String::new()
        },
        holder(seen),
    ]
}

fn sign(order: Order) -> char {
    match order.direction {
        Direction::Usual => '▾',
        Direction::Reversed => '▴',
    }
}

/// The meaning of a cell in the column with this title.
fn meaning(title: &str, row: &Row) -> Meaning {
    match (title, row.seen.state) {
        (HELD, LockState::Lapsed) => Meaning::Alarm,
        (HOLDER, state) if state != LockState::Held => Meaning::Faint,
        _ => Meaning::Usual,
    }
}

fn line(cells: Vec<(&str, String)>, style: impl Fn(&str) -> Style) -> Line<'static> {
    let mut line = Line::default();
    for (title, cell) in cells {
        if !line.spans.is_empty() {
            line.push_span(GAP);
        }
        line.push_span(Span::styled(cell, style(title)));
    }
    line
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 100.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// An age as of the look, and the time since then.
pub(super) fn grown(age: Option<Duration>, seen: &Seen, now: Instant) -> String {
    age.map_or_else(
        || "–".to_owned(),
        |age| age::short(age + now.saturating_duration_since(seen.at)),
    )
}

fn held(seen: &Seen, now: Instant) -> String {
    match seen.state {
        LockState::Held => grown(seen.held_for(), seen, now),
        state => state.to_string(),
    }
}

pub(super) fn time_left(seen: &Seen, now: Instant) -> String {
    match seen.state {
        LockState::Held | LockState::Detached | LockState::Cooling => {
            let elapsed = now.saturating_duration_since(seen.at);
            age::short(seen.time_left.saturating_sub(elapsed))
        }
        _ => "–".to_owned(),
    }
}

fn holder(seen: &Seen) -> String {
    match (&seen.holder, seen.state) {
        (Some(holder), LockState::Held | LockState::Cooling) => {
            let others = match seen.holders {
                0 | 1 => String::new(),
                many => format!(" +{}", many - 1),
            };
            format!("{}{others}", owner(holder))
        }
        (Some(holder), LockState::Detached) => format!("by: {}", owner(holder)),
        (Some(holder), _) => format!("last: {}", owner(holder)),
        (None, _) => "–".to_owned(),
    }
}

/// `web-1:4711 nightly`
pub(super) fn owner(owner: &Owner) -> String {
    let label = match &*owner.label {
        "" => String::new(),
        label => format!(" {label}"),
    };
    format!("{}:{}{label}", owner.host, owner.pid)
}
