//! The table: a row for each name.

use std::time::{Duration, Instant};

use fairlock::LockState;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::text::{left, right};
use super::{Meaning, Setting, lines, scrolled};
use crate::age;
use crate::command::top::order::{Column, Direction, Order};
use crate::command::top::rate::Row;
use crate::command::top::seen::{Owner, Seen};
use crate::command::top::view::View;

/// A column of numbers, with the heading that is right-aligned above it.
struct Field {
    heading: &'static str,
    column: Option<Column>,
    width: usize,
    /// Narrower windows leave it out.
    least_window: usize,
    text: fn(&Row, Instant) -> String,
}

const FIELDS: [Field; 5] = [
    Field {
        heading: "PER SEC",
        column: Some(Column::Busy),
        width: 8,
        least_window: 30,
        text: |row, _| rate(row.rate),
    },
    Field {
        heading: "WAITING",
        column: Some(Column::Waiting),
        width: 9,
        least_window: 0,
        text: |row, _| row.seen.waiters.to_string(),
    },
    Field {
        heading: "OLDEST",
        column: Some(Column::Oldest),
        width: 8,
        least_window: 50,
        text: |row, now| grown(row.seen.oldest_wait, &row.seen, now),
    },
    Field {
        heading: "HELD",
        column: Some(Column::Held),
        width: 8,
        least_window: 40,
        text: |row, now| held(&row.seen, now),
    },
    Field {
        heading: "LEFT",
        column: None,
        width: 8,
        least_window: 100,
        text: |row, now| time_left(&row.seen, now),
    },
];
/// Narrower windows leave the holder out.
const LEAST_WINDOW_FOR_HOLDER: usize = 60;

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
    let columns = Columns::new(usize::from(area.width));
    let heading = columns.heading(view.order, setting);
    let rows = shown.iter().enumerate().skip(first).take(view.page);
    let rows = rows.map(|(at, row)| {
        let line = columns.row(row, setting, now);
        let meaning = if at == selected {
            Meaning::Selected
        } else {
            Meaning::Usual
        };
        line.patch_style(setting.palette.style(meaning))
    });
    for (row, line) in area.rows().zip(std::iter::once(heading).chain(rows)) {
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
    let heading = area.height.min(1);
    let below = Rect {
        y: area.y + heading,
        height: area.height - heading,
        ..area
    };
    let faint = setting.palette.style(Meaning::Faint);
    lines(frame, below, [(why.to_owned(), faint)]);
}

/// How wide the columns are in a window.
struct Columns {
    name: usize,
    holder: usize,
    fields: Vec<&'static Field>,
}

impl Columns {
    fn new(window: usize) -> Columns {
        let fits = |field: &&Field| window >= field.least_window;
        let fields: Vec<&Field> = FIELDS.iter().filter(fits).collect();
        let numbers: usize = fields.iter().map(|field| field.width).sum();
        let rest = window.saturating_sub(numbers);
        let holder = if window >= LEAST_WINDOW_FOR_HOLDER {
            rest / 2
        } else {
            0
        };
        Columns {
            name: rest - holder,
            holder,
            fields,
        }
    }

    fn heading(&self, order: Order, setting: &Setting) -> Line<'static> {
        let sign = match order.direction {
            Direction::Usual => "▾",
            Direction::Reversed => "▴",
        };
        let marked = |heading: &str, column: Option<Column>| match column == Some(order.column) {
            true => format!("{heading}{sign}"),
            false => heading.to_owned(),
        };
        let mut line = left(&marked("NAME", Some(Column::Name)), self.name);
        for field in &self.fields {
            line += &right(&marked(field.heading, field.column), field.width);
        }
        if self.holder > 0 {
            line += "  ";
            let heading = marked("HOLDER", Some(Column::Holder));
            line += &left(&heading, self.holder.saturating_sub(2));
        }
        Line::styled(line, setting.palette.style(Meaning::Title))
    }

    fn row(&self, row: &Row, setting: &Setting, now: Instant) -> Line<'static> {
        let alarm = setting.palette.style(Meaning::Alarm);
        let is_lapsed = row.seen.state == LockState::Lapsed;
        let mut line = Line::default();
        // A blank keeps a long name apart from the first number.
        let name = left(&row.seen.name, self.name.saturating_sub(1));
        line.push_span(Span::raw(left(&name, self.name)));
        for field in &self.fields {
            let style = match field.column {
                Some(Column::Held) if is_lapsed => alarm,
                _ => Style::new(),
            };
            let text = right(&(field.text)(row, now), field.width);
            line.push_span(Span::styled(text, style));
        }
        if self.holder > 0 {
            let holder = format!("  {}", holder(&row.seen));
            let style = match row.seen.state {
                LockState::Held => Style::new(),
                _ => setting.palette.style(Meaning::Faint),
            };
            line.push_span(Span::styled(left(&holder, self.holder), style));
        }
        line
    }
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
        LockState::Held | LockState::Cooling => {
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
