//! The frame, from the view. Pure: the time is passed in.

mod dialog;
mod header;
mod name;
mod table;

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use unicode_width::UnicodeWidthStr as _;

use super::view::{Mode, View};
use crate::printable::cut;

/// Settings that do not change while the program runs.
#[derive(Debug)]
pub(super) struct Setting {
    /// The Redis, without passwords.
    pub(super) server: String,
    pub(super) interval: Duration,
    pub(super) palette: Palette,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Palette {
    Colors,
    /// NO_COLOR: bold, dim and reversed text alone.
    Plain,
}

/// The meaning of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Usual,
    Title,
    Selected,
    /// Something is wrong, or will be taken away.
    Alarm,
    /// It is no more, or only explains.
    Faint,
}

impl Palette {
    fn style(self, meaning: Meaning) -> Style {
        let plain = Style::new();
        let style = match meaning {
            Meaning::Usual => plain,
            Meaning::Title => plain.add_modifier(Modifier::BOLD),
            Meaning::Selected => plain.add_modifier(Modifier::REVERSED),
            Meaning::Alarm => plain.add_modifier(Modifier::BOLD),
            Meaning::Faint => plain.add_modifier(Modifier::DIM),
        };
        match (self, meaning) {
            (Palette::Colors, Meaning::Title) => style.fg(Color::Cyan),
            (Palette::Colors, Meaning::Alarm) => style.fg(Color::Red),
            _ => style,
        }
    }
}

/// Draws everything. Also tells the view how many rows fit, and scrolls to the one under the
/// cursor.
pub(super) fn draw(frame: &mut Frame, view: &mut View, setting: &Setting, now: Instant) {
    let area = frame.area();
    // In a low window the rows are worth more than the second line of the header.
    let header_height = if area.height < 6 { 1 } else { 2 };
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(header_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    header::draw(frame, top, view, setting, now);
    match view.opened {
        Some(_) => name::draw(frame, middle, view, setting, now),
        None => table::draw(frame, middle, view, setting, now),
    }
    footer(frame, bottom, view, setting);
    match &view.mode {
        Mode::Help => dialog::help(frame, middle, setting),
        Mode::Confirming(release) => dialog::release(frame, middle, release, view, setting),
        Mode::Browsing | Mode::Filtering => {}
    }
}

/// One line: what is typed, what happened last, or which keys there are.
fn footer(frame: &mut Frame, area: Rect, view: &View, setting: &Setting) {
    let columns = usize::from(area.width);
    let (line, meaning) = match (&view.mode, &view.notice) {
        (Mode::Filtering, _) => {
            // The end is what changes, so it has to be seen.
            let mut typed = view.filter.as_str();
            while typed.width() + "filter: _".len() > columns && !typed.is_empty() {
                typed = &typed[typed.chars().next().map_or(0, char::len_utf8)..];
            }
            (format!("filter: {typed}_"), Meaning::Title)
        }
        (_, Some(notice)) => (cut(notice, columns), Meaning::Title),
        (_, None) => {
            let keys: &[&str] = match view.opened {
                Some(_) => &["q back", "? help", "f release by force"],
                None => &[
                    "q quit",
                    "? help",
                    "enter open",
                    "/ filter",
                    "s sort",
                    "r reverse",
                    "f release by force",
                ],
            };
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            (joined(&keys, columns), Meaning::Faint)
        }
    };
    let style = setting.palette.style(meaning);
    frame.render_widget(Line::styled(line, style), area);
}

/// The first row to show, so that the one under the cursor is among so many.
fn scrolled(first: usize, selected: usize, page: usize, rows: usize) -> usize {
    let first = first.min(rows.saturating_sub(page));
    first.clamp(
        (selected + 1).saturating_sub(page),
        selected.max((selected + 1).saturating_sub(page)),
    )
}

/// A few lines at the top of an area, each cut to its width.
fn lines(frame: &mut Frame, area: Rect, lines: impl IntoIterator<Item = (String, Style)>) {
    for (row, (line, style)) in area.rows().zip(lines) {
        let line = cut(&line, usize::from(area.width));
        frame.render_widget(Line::styled(line, style), row);
    }
}

/// The text in exactly this many columns, at their left.
fn left(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let padding = columns.saturating_sub(text.width());
    text + &" ".repeat(padding)
}

/// As many of these parts as fit, with two blanks between them. The first is cut if it must be.
fn joined(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if line.is_empty() {
            line = cut(part, columns);
        } else if line.width() + 2 + part.width() <= columns {
            line = format!("{line}  {part}");
        } else {
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out() {
        let parts = ["one", "two", "", "three"].map(str::to_owned);
        assert_eq!(joined(&parts, 20), "one  two  three");
        assert_eq!(joined(&parts, 14), "one  two");
        assert_eq!(joined(&parts, 2), "o…");
        assert_eq!(left("漢", 4), "漢  ");
    }
}
