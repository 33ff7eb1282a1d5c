//! The frame, from the view. Pure: the time is passed in.

use std::time::Instant;

use fairlock::inspect::{LockInfo, LockState, Party};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, Wrap};

use super::row::{Column, Row};
use super::view::{Mode, View};
use crate::age;
use crate::parties::all_holders;
use crate::printable::printable;
use crate::times;

const USUAL: Style = Style::new();
const TITLE: Style = USUAL.add_modifier(Modifier::BOLD).fg(Color::Cyan);
const SELECTED: Style = USUAL.add_modifier(Modifier::REVERSED);
/// Something is wrong, or will be taken away.
const ALARM: Style = USUAL.add_modifier(Modifier::BOLD).fg(Color::Red);
/// It is no more, or only explains.
const FAINT: Style = USUAL.add_modifier(Modifier::DIM);

/// Each column with its title, and the narrowest window that shows it.
const COLUMNS: [(Column, &str, u16); 7] = [
    (Column::Name, "NAME", 0),
    (Column::Busy, "PER SEC", 30),
    (Column::Waiting, "WAITING", 21),
    (Column::Oldest, "OLDEST", 48),
    (Column::Held, "HELD", 39),
    (Column::Left, "LEFT", 100),
    (Column::Holder, "HOLDER", 62),
];

const HELP: &str = "\
up down, k j   move; also page up, page down, home, end
enter          open a name: its holders and its queue
/              show only names and holders with a text
s S, 1 to 7    sort by the next, the previous, or this column
r              reverse the order
f              release a lock by force; asks first
ctrl-l         draw again
ctrl-z         suspend
q, escape      back
q, ctrl-c      quit

PER SEC counts hand-overs between two looks. A lock that was
taken while nobody waited counts once.";

/// Draws everything. Also tells the view how many rows fit, and scrolls to the one under the
/// cursor.
pub(super) fn draw(frame: &mut Frame, view: &mut View, now: Instant) {
    let bottom = bottom(view);
    let columns = usize::from(frame.area().width.max(1));
    let height = match view.mode {
        Mode::Browsing => 1,
        _ => bottom.iter().map(|line| line.width() / columns + 1).sum(),
    };
    let [top, middle, below] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Max(u16::try_from(height).unwrap_or(u16::MAX)),
    ])
    .areas(frame.area());
    view.page = middle.height.saturating_sub(1).max(1);
    frame.render_widget(Paragraph::new(header(view, now)), top);
    match view.opened {
        Some(_) => draw_name(frame, middle, view, now),
        None => draw_table(frame, middle, view, now),
    }
    frame.render_widget(Paragraph::new(bottom).wrap(Wrap { trim: false }), below);
}

fn line(text: &str, style: Style) -> Line<'static> {
    Line::styled(printable(text).into_owned(), style)
}

/// Which Redis and how it answers, and the numbers of all names or the trouble with them.
fn header(view: &View, now: Instant) -> Vec<Line<'static>> {
    let ago = |then| age::short(now.saturating_duration_since(then));
    let mut first = format!("Locks on {}", view.server);
    if let Some(last) = &view.last {
        let (trip, data, period) = (last.round_trip, ago(last.ended), age::short(last.period));
        first += &format!("  round trip {trip:.1?}  data {data} old  a look each {period}");
    }
    let second = match &view.outage {
        Some((since, error)) => line(&format!("Failing for {}: {error}", ago(*since)), ALARM),
        None if view.last.is_none() => line("looking …", USUAL),
        None => {
            let infos = || view.rows.values().map(|row| &row.info);
            let in_state = |state| infos().filter(|info| info.state == state).count();
            let names = view.rows.len();
            let held = in_state(LockState::Held);
            let awaited = infos().filter(|info| times::is_awaited(info)).count();
            let lapsed = in_state(LockState::Lapsed);
            let text =
                format!("names: {names}, held: {held}, awaited: {awaited}, lapsed: {lapsed}");
            line(&text, USUAL)
        }
    };
    vec![line(&first, TITLE), second]
}

/// A row for each name.
fn draw_table(frame: &mut Frame, area: Rect, view: &mut View, now: Instant) {
    let columns = || COLUMNS.iter().filter(|(.., least)| area.width >= *least);
    let is_text = |column| matches!(column, Column::Name | Column::Holder);
    let aligned = |column, text: &str, style| match is_text(column) {
        true => line(text, style),
        false => line(text, style).right_aligned(),
    };
    let titles = Cells::new(columns().map(|(column, title, _)| {
        let sign = match (view.column == *column, view.is_reversed) {
            (false, _) => "",
            (true, false) => "▾",
            (true, true) => "▴",
        };
        aligned(*column, &format!("{title}{sign}"), TITLE)
    }));
    let shown = view.shown();
    let rows: Vec<Cells> = shown
        .iter()
        .map(|row| {
            Cells::new(columns().map(|(column, ..)| {
                let (text, style) = cell(row, *column, now);
                aligned(*column, &text.unwrap_or("–".to_owned()), style)
            }))
        })
        .collect();
    let widths = columns().map(|(column, ..)| match is_text(*column) {
        true => Constraint::Fill(1),
        false => Constraint::Length(8),
    });
    let table = Table::new(rows, widths)
        .header(titles)
        .column_spacing(2)
        .row_highlight_style(SELECTED);
    view.table.select(Some(view.cursor(&shown)));
    frame.render_stateful_widget(table, area, &mut view.table);
}

fn cell(row: &Row, column: Column, now: Instant) -> (Option<String>, Style) {
    let info = &row.info;
    let age = |party: &Party| age::short(row.age(party, now));
    match column {
        Column::Name => (Some(info.name.to_string()), USUAL),
        Column::Busy => (row.rate.map(|rate| format!("{rate:.1}")), USUAL),
        Column::Waiting => (Some(info.waiters.to_string()), USUAL),
        Column::Oldest => (row.oldest().map(age), USUAL),
        Column::Left => (row.time_left(now).map(age::short), USUAL),
        Column::Held if info.state == LockState::Held => (row.holder().map(age), USUAL),
        Column::Held if info.state == LockState::Lapsed => (Some("lapsed".to_owned()), ALARM),
        Column::Held => (Some(info.state.to_string()), USUAL),
        Column::Holder if info.state == LockState::Held => (row.holder_text(), USUAL),
        Column::Holder => (row.holder_text(), FAINT),
    }
}

/// One name: its holders, and its queue in order.
fn draw_name(frame: &mut Frame, area: Rect, view: &mut View, now: Instant) {
    let (title, lines) = match view.row() {
        Some(row) => (row.info.to_string(), lines(row, now)),
        None => (
            "It is free: its last holder released it.".to_owned(),
            vec![],
        ),
    };
    let [top, middle] = Layout::vertical([Constraint::Max(3), Constraint::Fill(1)]).areas(area);
    let title = Paragraph::new(line(&title, TITLE)).wrap(Wrap { trim: true });
    frame.render_widget(title, top);
    let rows = lines.into_iter().map(|line| Cells::new([line]));
    let table = Table::new(rows, [Constraint::Fill(1)]).row_highlight_style(SELECTED);
    frame.render_stateful_widget(table, middle, &mut view.lines);
}

/// The first line is a heading, and the holders follow: the view counts on that.
fn lines(row: &Row, now: Instant) -> Vec<Line<'static>> {
    let age = |party| age::short(row.age(party, now));
    let mut lines = vec![line("HOLDERS", TITLE)];
    lines.extend(
        all_holders(&row.info).map(|holder| match holder.lapsed_for {
            Some(_) => line(&format!("  lapsed: {holder}"), ALARM),
            None => line(&format!("  held for {}: {holder}", age(holder)), USUAL),
        }),
    );
    lines.push(line("QUEUE", TITLE));
    let queue = row.info.queue.iter().zip(1..);
    lines.extend(queue.map(|(waiter, position)| {
        let text = format!("{position:>5}. waits for {}", age(waiter));
        match times::is_silent(waiter) {
            true => line(
                &format!("{text}, {}: {waiter}", times::heard(waiter)),
                ALARM,
            ),
            false => line(&format!("{text}: {waiter}"), USUAL),
        }
    }));
    lines
}

/// The line that is typed or asked, the last event, or the keys.
fn bottom(view: &View) -> Vec<Line<'static>> {
    let keys = match view.opened {
        Some(_) => "q back  ? help  f release by force",
        None => "q quit  ? help  enter open  / filter  s sort  r reverse  f release by force",
    };
    match (&view.mode, &view.notice) {
        (Mode::Filtering, _) => vec![line(&format!("filter: {}_", view.filter), TITLE)],
        (Mode::Help, _) => HELP.lines().map(Line::from).collect(),
        (Mode::Confirming(asked), _) => question(&asked.0.info, &asked.1, view),
        (Mode::Browsing, Some(notice)) => vec![line(notice, TITLE)],
        (Mode::Browsing, None) => vec![line(keys, FAINT)],
    }
}

/// The question before a release by force.
fn question(asked: &LockInfo, holder: &Party, view: &View) -> Vec<Line<'static>> {
    let held = if holder.keeps { "held or kept" } else { "held" };
    let fence = holder.fence.unwrap_or(asked.fence);
    let is_there = view.rows.get(&asked.name).is_some_and(|row| {
        let mut holders = row.info.holders.iter();
        holders.any(|other| other.fence == holder.fence)
    });
    let note = if !is_there {
        "The holder has changed since. This releases only the one above."
    } else if holder.shared {
        "All readers lose it. Until their next renewal they may not notice."
    } else {
        "Until it renews or unlocks, the holder may believe that it holds it."
    };
    vec![
        line(
            "Release by force?  y: release it  any other key: do nothing",
            TITLE,
        ),
        line(
            &format!("{:?}, fence {fence}, {held} by {holder}", asked.name),
            USUAL,
        ),
        line(note, ALARM),
    ]
}
