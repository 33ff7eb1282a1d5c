//! The frame, from the view. Pure: the time is passed in.

use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use fairlock::inspect::LockState;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, Wrap};

use super::row::{Column, Row};
use super::view::{Mode, View};
use crate::age;
use crate::parties::{all_holders, is_taken};
use crate::printable::printable;
use crate::times;

const USUAL: Style = Style::new();
const TITLE: Style = USUAL.add_modifier(Modifier::BOLD).fg(Color::Cyan);
const SELECTED: Style = USUAL.add_modifier(Modifier::REVERSED);
/// Something is wrong, or will be taken away.
const ALARM: Style = USUAL.add_modifier(Modifier::BOLD).fg(Color::Red);
/// It is no more, or only explains.
const FAINT: Style = USUAL.add_modifier(Modifier::DIM);

/// The narrowest window that shows each column.
const WIDTHS: [u16; 7] = [0, 30, 21, 48, 39, 100, 62];

const KEYS: &str = "q quit  ? help  enter open  / filter  s sort  r reverse  f release by force";
const KEYS_OF_A_NAME: &str = "q back  ? help  f release by force";
const HELP: &str = "\
up down, k j   move; also page up, page down, home, end
enter          open a name: its holders and its queue
/              show only names and holders with a text
s S, 1 to 7    sort by the next, the previous, or this column
r              reverse the order; BUSY counts hand-overs per second
f              release a lock by force; asks first
ctrl-l         draw again
q, escape      back
q, ctrl-c      quit";

/// Draws everything. Also tells the view how many rows fit, scrolls to the one under the cursor,
/// and takes note that a question was drawn.
pub(super) fn draw(frame: &mut Frame, view: &mut View, now: Instant) {
    let bottom = bottom(view);
    let columns = usize::from(frame.area().width.max(1));
    let height = match view.mode {
        Mode::Browsing => 1,
        _ => bottom.iter().map(|line| line.width() / columns + 1).sum(),
    };
    let [top, middle, below] = Layout::vertical([
        Constraint::Max(2),
        Constraint::Fill(1),
        Constraint::Length(u16::try_from(height).unwrap_or(u16::MAX)),
    ])
    .areas(frame.area());
    view.page = middle.height.saturating_sub(1).max(1);
    frame.render_widget(Paragraph::new(header(view, now)), top);
    let elapsed = now.saturating_duration_since(view.seen.unwrap_or(now));
    match view.opened {
        Some(_) => draw_name(frame, middle, view, elapsed),
        None => draw_table(frame, middle, view, elapsed),
    }
    frame.render_widget(Paragraph::new(bottom).wrap(Wrap { trim: false }), below);
    view.is_question_drawn = true;
}

fn line(text: &str, style: Style) -> Line<'static> {
    Line::styled(printable(text).into_owned(), style)
}

/// Which Redis and how it answers, and the numbers of all names or the trouble with them.
fn header(view: &View, now: Instant) -> Vec<Line<'static>> {
    let ago = |then| age::short(now.saturating_duration_since(then));
    let mut first = format!("Locks on {}", view.server);
    if let Some(seen) = view.seen {
        first += &format!("  data {} old", ago(seen));
    }
    let count = |is: &dyn Fn(&Row) -> bool| view.rows.iter().filter(|row| is(row)).count();
    let second = match &view.outage {
        Some((since, error)) => line(&format!("Failing for {}: {error}", ago(*since)), ALARM),
        None if view.seen.is_none() => line("looking …", USUAL),
        None => {
            let all = view.rows.len();
            let held = count(&|row| row.info.state == LockState::Held);
            let awaited = count(&|row| times::is_awaited(&row.info));
            let lapsed = count(&|row| row.info.state == LockState::Lapsed);
            let text = format!("names: {all}, held: {held}, awaited: {awaited}, lapsed: {lapsed}");
            line(&text, USUAL)
        }
    };
    vec![line(&first, TITLE), second]
}

/// A row for each name.
fn draw_table(frame: &mut Frame, area: Rect, view: &mut View, elapsed: Duration) {
    let columns = Column::value_variants().iter().zip(WIDTHS);
    let columns = columns.filter(|(_, least)| area.width >= *least);
    let columns: Vec<Column> = columns.map(|(column, _)| *column).collect();
    let is_text = |column| matches!(column, Column::Name | Column::Holder);
    let aligned = |column, text: &str, style| match is_text(column) {
        true => line(text, style),
        false => line(text, style).right_aligned(),
    };
    let titles = Cells::new(columns.iter().map(|column| {
        let sign = match (view.column == *column, view.is_reversed) {
            (false, _) => "",
            (true, false) => "▾",
            (true, true) => "▴",
        };
        aligned(*column, &format!("{}{sign}", column.title()), TITLE)
    }));
    let shown = view.shown();
    let rows = shown.iter().map(|row| {
        Cells::new(columns.iter().map(|column| {
            let (text, style) = cell(row, *column, elapsed);
            aligned(*column, text.as_deref().unwrap_or("–"), style)
        }))
    });
    let widths = columns.iter().map(|column| match is_text(*column) {
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

fn cell(row: &Row, column: Column, elapsed: Duration) -> (Option<String>, Style) {
    let info = &row.info;
    let age = |age: Duration| age::short(age + elapsed);
    let left = || age::short(info.time_left.saturating_sub(elapsed));
    match column {
        Column::Name => (Some(info.name.to_string()), USUAL),
        Column::Busy => (row.rate.map(|rate| format!("{rate:.1}")), USUAL),
        Column::Waiting => (Some(info.waiters.to_string()), USUAL),
        Column::Oldest => (times::oldest_wait(info).map(age), USUAL),
        Column::Left => (is_taken(info.state).then(left), USUAL),
        Column::Held if info.state == LockState::Held => (row.held().map(age), USUAL),
        Column::Held if info.state == LockState::Lapsed => (Some("lapsed".to_owned()), ALARM),
        Column::Held => (Some(info.state.to_string()), USUAL),
        Column::Holder if info.state == LockState::Held => (row.holder_text(), USUAL),
        Column::Holder => (row.holder_text(), FAINT),
    }
}

/// One name: its holders, and its queue in order.
fn draw_name(frame: &mut Frame, area: Rect, view: &mut View, elapsed: Duration) {
    let (title, lines) = match view.row() {
        Some(row) => (row.info.to_string(), lines(row, elapsed)),
        None => ("It is free.".to_owned(), vec![]),
    };
    let [top, middle] = Layout::vertical([Constraint::Max(3), Constraint::Fill(1)]).areas(area);
    let title = Paragraph::new(line(&title, TITLE)).wrap(Wrap { trim: true });
    frame.render_widget(title, top);
    let rows = lines.into_iter().map(|line| Cells::new([line]));
    let table = Table::new(rows, [Constraint::Fill(1)]).row_highlight_style(SELECTED);
    frame.render_stateful_widget(table, middle, &mut view.lines);
}

/// The first line is a heading, and the holders follow: the view counts on that.
fn lines(row: &Row, elapsed: Duration) -> Vec<Line<'static>> {
    let age = |party| age::short(times::waited(&row.info, party) + elapsed);
    let holders = all_holders(&row.info).map(|holder| match holder.lapsed_for {
        Some(_) => line(&format!("  lapsed: {holder}"), ALARM),
        None => line(&format!("  held for {}: {holder}", age(holder)), USUAL),
    });
    let waiters = row.info.queue.iter().zip(1..).map(|(waiter, position)| {
        let (waited, heard) = (age(waiter), times::heard(waiter));
        let text = format!("{position:>5}. waits for {waited} (heard: {heard}): {waiter}");
        let style = [USUAL, ALARM][usize::from(times::is_silent(waiter))];
        line(&text, style)
    });
    let lines = std::iter::once(line("HOLDERS", TITLE)).chain(holders);
    lines.chain([line("QUEUE", TITLE)]).chain(waiters).collect()
}

/// The line that is typed or asked, the last event, or the keys.
fn bottom(view: &View) -> Vec<Line<'static>> {
    match (&view.mode, &view.notice) {
        (Mode::Filtering, _) => vec![line(&format!("filter: {}_", view.filter), TITLE)],
        (Mode::Help, _) => HELP.lines().map(Line::from).collect(),
        (Mode::Confirming(name, fence, holder), _) => question(view, name, *fence, holder),
        (Mode::Browsing, Some(notice)) => vec![line(notice, TITLE)],
        (Mode::Browsing, None) if view.opened.is_some() => vec![line(KEYS_OF_A_NAME, FAINT)],
        (Mode::Browsing, None) => vec![line(KEYS, FAINT)],
    }
}

/// The question before a release by force.
fn question(view: &View, name: &str, fence: u64, holder: &str) -> Vec<Line<'static>> {
    let row = view.find(name).into_iter();
    let mut holders = row.flat_map(|row| &row.info.holders);
    let now = holders.find(|holder| holder.fence == Some(fence));
    let note = match now.map(|holder| holder.shared) {
        None => "The holder has changed since. This releases only the one above.",
        Some(true) => "All readers lose it. Until their next renewal they may not notice.",
        Some(false) => "Until it renews or unlocks, the holder may believe that it holds it.",
    };
    let keys = "Release by force?  y: release it  any other key: do nothing";
    let asked = format!("{name:?}, fence {fence}, {holder}");
    vec![line(keys, TITLE), line(&asked, USUAL), line(note, ALARM)]
}
