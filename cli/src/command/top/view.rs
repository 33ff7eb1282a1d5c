//! What the screen shows, and what a key changes in it. Pure: no I/O, and the time is passed in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use fairlock::{Error, inspect::LockInfo};
use ratatui::widgets::TableState;

use super::row::{Column, Row, rate};
use crate::parties::{fence_of, is_taken};

/// All that is shown.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The Redis, without passwords.
    pub(super) server: String,
    /// The names of the last look that succeeded, in the chosen order.
    pub(super) rows: Vec<Row>,
    pub(super) column: Column,
    pub(super) is_reversed: bool,
    /// Only rows with this text are shown.
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// A key that was pressed before the question was drawn is no answer to it.
    pub(super) is_question_drawn: bool,
    /// The name that is open.
    pub(super) opened: Option<Arc<str>>,
    /// The name under the cursor, wherever its row is after a look. If it is gone, the cursor stays
    /// where it was.
    pub(super) selected: Option<Arc<str>>,
    /// The cursor and the first row on the screen: of the table, and of the name that is open.
    pub(super) table: TableState,
    pub(super) lines: TableState,
    /// How many rows fit. Drawing sets it.
    pub(super) page: u16,
    /// When the last look ended that succeeded.
    pub(super) seen: Option<Instant>,
    /// Why the looks since then failed, and since when.
    pub(super) outage: Option<(Instant, Error)>,
    /// The outcome of the last key, until the next key.
    pub(super) notice: Option<String>,
}

/// The meaning of keys.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Mode {
    #[default]
    Browsing,
    /// Keys are the text of the filter.
    Filtering,
    Help,
    /// A lock will be released by force, if the next key is `y`: the name, the fence and the holder
    /// as they were when the question came.
    Confirming(Arc<str>, u64, String),
}

/// Work for the main loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Redraw,
    Release(Arc<str>, u64),
}

impl View {
    /// The rows that pass the filter, in the chosen order.
    pub(super) fn shown(&self) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.matches(&self.filter)).collect()
    }

    /// Where the cursor is in the table: on its name, or where that was.
    pub(super) fn cursor(&self, shown: &[&Row]) -> usize {
        let is_selected = |row: &&Row| Some(&row.info.name) == self.selected.as_ref();
        let at = shown.iter().position(is_selected).or(self.table.selected());
        at.unwrap_or(0).min(shown.len().saturating_sub(1))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| &*row.info.name == name)
    }

    /// The row of the name that is open, or the one under the cursor.
    pub(super) fn row(&self) -> Option<&Row> {
        if let Some(name) = &self.opened {
            return self.find(name);
        }
        let shown = self.shown();
        shown.get(self.cursor(&shown)).copied()
    }

    pub(super) fn on_look(&mut self, infos: Vec<LockInfo>, now: Instant) {
        let rows = self.rows.iter();
        let before: HashMap<_, _> = rows.map(|row| (&row.info.name, &row.info)).collect();
        let row = |info: LockInfo| Row {
            rate: before
                .get(&info.name)
                .and_then(|before| rate(before, &info)),
            info,
        };
        self.rows = infos.into_iter().map(row).collect();
        (self.seen, self.outage) = (Some(now), None);
        self.sort();
    }

    fn sort(&mut self) {
        self.rows.sort_by(|a, b| self.column.compare(a, b));
        if self.is_reversed {
            self.rows.reverse();
        }
    }

    pub(super) fn on_failure(&mut self, error: Error, now: Instant) {
        let since = self.outage.as_ref().map_or(now, |(since, _)| *since);
        self.outage = Some((since, error));
    }

    pub(super) fn on_released(&mut self, name: &str, released: fairlock::Result<bool>) {
        self.notice = Some(match released {
            Ok(true) => format!("released {name:?} by force"),
            Ok(false) => format!("not released: {name:?} is free, or has another holder by now"),
            Err(error) => format!("not released, as far as known: {error}"),
        });
    }

    pub(super) fn on_input(&mut self, input: Input) -> Option<Action> {
        match input {
            Input::Key(key) if key.kind != KeyEventKind::Release => self.on_key(key),
            // It is never taken for commands: it could force a release.
            Input::Paste(text) if self.mode == Mode::Filtering => {
                self.filter.extend(text.chars().filter(|c| !c.is_control()));
                None
            }
            Input::Paste(_) => self.on_key(KeyCode::Null.into()),
            _ => None,
        }
    }

    fn on_key(&mut self, key: KeyEvent) -> Option<Action> {
        let code = match (key.code, key.modifiers) {
            (KeyCode::Char('c'), KeyModifiers::CONTROL) => return Some(Action::Quit),
            (KeyCode::Char('l'), KeyModifiers::CONTROL) => return Some(Action::Redraw),
            (code, KeyModifiers::NONE | KeyModifiers::SHIFT) => code,
            // An escape and a letter in one read are one key, with alt. The letter alone could
            // confirm a question that the escape was to end.
            _ => KeyCode::Null,
        };
        match std::mem::take(&mut self.mode) {
            Mode::Browsing => return self.on_command(code),
            Mode::Filtering => self.on_filter_key(code),
            Mode::Help => {}
            asked @ Mode::Confirming(..) if !self.is_question_drawn => self.mode = asked,
            Mode::Confirming(name, fence, _) if code == KeyCode::Char('y') => {
                self.notice = Some(format!("releasing {name:?} …"));
                return Some(Action::Release(name, fence));
            }
            Mode::Confirming(..) => self.notice = Some("nothing was released".to_owned()),
        }
        None
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.filter.clear(),
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            _ => self.move_cursor(code),
        }
        self.mode = Mode::Filtering;
    }

    fn on_command(&mut self, code: KeyCode) -> Option<Action> {
        self.notice = None;
        let order = (self.column, self.is_reversed);
        match (code, &self.opened) {
            (KeyCode::Char('?' | 'h'), _) => self.mode = Mode::Help,
            (KeyCode::Char('f'), _) => self.ask(),
            (KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left, Some(_)) => {
                self.opened = None;
            }
            (_, Some(_)) => moved(&mut self.lines, code, self.page),
            (KeyCode::Char('q'), None) => return Some(Action::Quit),
            // It does not end the program: an arrow key on a slow line begins with an escape.
            (KeyCode::Esc, None) => self.filter.clear(),
            (KeyCode::Char('/'), None) => self.mode = Mode::Filtering,
            (KeyCode::Char('s') | KeyCode::Right, None) => self.column = self.column.step(1),
            (KeyCode::Char('S') | KeyCode::Left, None) => self.column = self.column.step(6),
            (KeyCode::Char(digit @ '1'..='7'), None) => {
                self.column = Column::Name.step(digit as usize - '1' as usize);
            }
            (KeyCode::Char('r'), None) => self.is_reversed = !self.is_reversed,
            (KeyCode::Enter, None) => self.open(),
            (_, None) => self.move_cursor(code),
        }
        if (self.column, self.is_reversed) != order {
            self.sort();
        }
        None
    }

    fn move_cursor(&mut self, code: KeyCode) {
        self.table.select(Some(self.cursor(&self.shown())));
        moved(&mut self.table, code, self.page);
        self.selected = None;
        self.selected = self.row().map(|row| Arc::clone(&row.info.name));
    }

    fn open(&mut self) {
        self.opened = self.row().map(|row| Arc::clone(&row.info.name));
        self.selected = self.opened.clone();
        // The line behind the heading: the first holder.
        self.lines = TableState::new().with_selected(1);
    }

    /// Asks whether to release the lock. If there are several holders, one has to be chosen first:
    /// that opens the name.
    fn ask(&mut self) {
        let Some(row) = self.row() else { return };
        let (name, info) = (&row.info.name, &row.info);
        let holders = match is_taken(info.state) {
            true => &info.holders[..],
            false => &[],
        };
        let line = self.opened.as_ref().and(self.lines.selected());
        let chosen = line.and_then(|line| holders.get(line.checked_sub(1)?));
        match (chosen, holders) {
            (None, []) => self.notice = Some(format!("nobody holds {name:?}")),
            (Some(holder), _) | (None, [holder]) => {
                let held = if holder.keeps { "held or kept" } else { "held" };
                let (fence, text) = (fence_of(info, holder), format!("{held} by {holder}"));
                self.mode = Mode::Confirming(Arc::clone(name), fence, text);
                self.is_question_drawn = false;
            }
            (None, _) => {
                self.open();
                self.notice = Some("several hold it: choose one, then press f again".to_owned());
            }
        }
    }
}

/// Moves a cursor. Drawing keeps it within its rows.
fn moved(cursor: &mut TableState, code: KeyCode, page: u16) {
    match code {
        KeyCode::Up | KeyCode::Char('k') => cursor.select_previous(),
        KeyCode::Down | KeyCode::Char('j') => cursor.select_next(),
        KeyCode::PageUp => cursor.scroll_up_by(page),
        KeyCode::PageDown => cursor.scroll_down_by(page),
        KeyCode::Home | KeyCode::Char('g') => cursor.select_first(),
        KeyCode::End | KeyCode::Char('G') => cursor.select_last(),
        _ => {}
    }
}
