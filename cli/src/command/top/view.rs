//! The contents of the screen, and what a key changes. Pure: no I/O, and the time is passed in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::key::Key;
use super::look::{Look, Trouble};
use super::order::{self, Column, Order};
use super::seen::{self, Opened, Owner, Row, Seen};
use crate::parties::is_taken;

/// All that is shown.
#[derive(Debug)]
pub(super) struct View {
    /// All names of the last look that succeeded, in the chosen order.
    pub(super) rows: Vec<Row>,
    pub(super) order: Order,
    /// Only rows with this text are shown.
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) opened: Option<OpenedName>,
    /// The name under the cursor, wherever its row is after a look.
    pub(super) selected: Option<Arc<str>>,
    /// Where that row was. If the name is gone, the cursor stays there.
    pub(super) selected_at: usize,
    /// The first row on the screen, and how many fit. Drawing keeps them right.
    pub(super) first: usize,
    pub(super) page: usize,
    pub(super) looks: Looks,
    /// The outcome of the last key, until the next key.
    pub(super) notice: Option<String>,
}

/// The meaning of keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Browsing,
    /// Keys are the text of the filter.
    Filtering,
    Help,
    /// A lock will be released by force, if the next key is `y`.
    Confirming(Box<Release>),
}

/// A release by force, as the question shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) name: Arc<str>,
    pub(super) fence: u64,
    pub(super) holder: Owner,
    pub(super) waiters: u64,
}

/// The name that is open. `Err` has the reason why nothing is known yet.
#[derive(Debug)]
pub(super) struct OpenedName {
    pub(super) name: Arc<str>,
    pub(super) seen: Result<Option<Box<Opened>>, String>,
    /// The row under the cursor: the holders come first, then the queue.
    pub(super) selected: usize,
    pub(super) first: usize,
}

/// Notes of the header about the looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The last look that succeeded, without its names.
    pub(super) last: Option<Look>,
    /// How many names the look that runs now has found, if it takes long.
    pub(super) found: Option<usize>,
    /// Why the looks since then failed, and since when.
    pub(super) outage: Option<(Instant, Trouble)>,
}

/// Work for the main loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Suspend,
    Redraw,
    /// Look at the name that is open now.
    Watch(Arc<str>),
    /// Look at no single name any more.
    Unwatch,
    Release(Arc<str>, u64),
}

impl View {
    pub(super) fn new(column: Column) -> View {
        View {
            rows: Vec::new(),
            order: Order::by(column),
            filter: String::new(),
            mode: Mode::Browsing,
            opened: None,
            selected: None,
            selected_at: 0,
            first: 0,
            page: 1,
            looks: Looks::default(),
            notice: None,
        }
    }

    /// The rows that pass the filter.
    pub(super) fn shown(&self) -> Vec<&Row> {
        let is_shown = |row: &&Row| order::matches(row, &self.filter);
        self.rows.iter().filter(is_shown).collect()
    }

    pub(super) fn on_look(&mut self, looked: Result<Look, Trouble>, now: Instant) {
        self.looks.found = None;
        match looked {
            Ok(mut look) => {
                self.rows = seen::rows(&self.rows, std::mem::take(&mut look.names));
                self.sort();
                self.looks.last = Some(look);
                self.looks.outage = None;
            }
            Err(trouble) => self.looks.fail(trouble, now),
        }
    }

    pub(super) fn on_look_at_one(
        &mut self,
        name: &str,
        seen: Result<Option<Box<Opened>>, Trouble>,
        now: Instant,
    ) {
        let Some(opened) = self.opened.as_mut().filter(|opened| *opened.name == *name) else {
            return;
        };
        match seen {
            Ok(seen) => opened.seen = Ok(seen),
            // The rows stay on the screen. The header says that it grows old.
            Err(trouble) => {
                if opened.seen.is_err() {
                    opened.seen = Err(trouble.why.clone());
                }
                self.looks.fail(trouble, now);
            }
        }
    }

    pub(super) fn on_released(&mut self, name: &str, released: Result<bool, Trouble>) {
        self.notice = Some(match released {
            Ok(true) => format!("released {name:?} by force"),
            Ok(false) => format!("not released: {name:?} is free, or has another holder by now"),
            Err(trouble) => format!("not released, as far as known: {}", trouble.why),
        });
    }

    fn sort(&mut self) {
        let order = self.order;
        self.rows.sort_by(|a, b| order.compare(a, b));
    }

    pub(super) fn on_key(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Control('c') => return Some(Action::Quit),
            Key::Control('z') => return Some(Action::Suspend),
            Key::Control('l') => return Some(Action::Redraw),
            _ => {}
        }
        match std::mem::replace(&mut self.mode, Mode::Browsing) {
            Mode::Filtering => {
                self.on_filter_key(key);
                None
            }
            Mode::Help => None,
            Mode::Confirming(release) => self.on_answer(&key, &release),
            Mode::Browsing => {
                self.notice = None;
                match self.opened {
                    Some(_) => self.on_key_in_name(key),
                    None => self.on_key_in_table(key),
                }
            }
        }
    }

    fn on_filter_key(&mut self, key: Key) {
        self.mode = Mode::Filtering;
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Pasted(text) => self.filter.extend(text.chars().filter(|c| !c.is_control())),
            Key::Control('u') => self.filter.clear(),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.mode = Mode::Browsing,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Browsing;
            }
            _ => self.move_selection(&key),
        }
    }

    fn on_answer(&mut self, key: &Key, release: &Release) -> Option<Action> {
        if *key == Key::Char('y') {
            self.notice = Some(format!("releasing {:?} …", release.name));
            return Some(Action::Release(Arc::clone(&release.name), release.fence));
        }
        self.notice = Some("nothing was released".to_owned());
        None
    }

    fn on_key_in_table(&mut self, key: Key) -> Option<Action> {
        let column = self.order.column;
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Escape if self.filter.is_empty() => return Some(Action::Quit),
            Key::Escape => self.filter.clear(),
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filtering,
            Key::Char('s') | Key::Right => self.sort_by(Order::by(column.next())),
            Key::Char('S') | Key::Left => self.sort_by(Order::by(column.previous())),
            Key::Char(digit @ '1'..='6') => {
                self.sort_by(Order::by(Column::ALL[digit as usize - '1' as usize]));
            }
            Key::Char('r') => self.sort_by(self.order.reversed()),
            Key::Char('f') => return self.ask_about_row(),
            Key::Enter => return self.open(),
            key => self.move_selection(&key),
        }
        None
    }

    fn on_key_in_name(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char('q') | Key::Escape | Key::Backspace | Key::Left => {
                self.opened = None;
                return Some(Action::Unwatch);
            }
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('f') => self.ask_about_holder(),
            key => {
                let page = self.page;
                if let Some(opened) = &mut self.opened {
                    opened.selected = moved(&key, opened.selected, page, opened.parties());
                }
            }
        }
        None
    }

    fn sort_by(&mut self, order: Order) {
        self.order = order;
        self.sort();
    }

    fn move_selection(&mut self, key: &Key) {
        let shown = self.shown();
        let at = moved(key, self.position(&shown), self.page, shown.len());
        let selected = shown.get(at).map(|row| Arc::clone(&row.seen.name));
        (self.selected, self.selected_at) = (selected, at);
    }

    /// Where the cursor is: on its name, or where that was.
    pub(super) fn position(&self, shown: &[&Row]) -> usize {
        let is_selected = |row: &&Row| Some(&row.seen.name) == self.selected.as_ref();
        let at = shown.iter().position(is_selected);
        at.unwrap_or(self.selected_at.min(shown.len().saturating_sub(1)))
    }

    /// The row under the cursor.
    fn row(&self) -> Option<&Row> {
        let shown = self.shown();
        shown.get(self.position(&shown)).copied()
    }

    fn open(&mut self) -> Option<Action> {
        let name = Arc::clone(&self.row()?.seen.name);
        self.selected = Some(Arc::clone(&name));
        self.opened = Some(OpenedName {
            name: Arc::clone(&name),
            seen: Err("asking Redis …".to_owned()),
            selected: 0,
            first: 0,
        });
        Some(Action::Watch(name))
    }

    /// If there are several holders, one has to be chosen first: that opens the name.
    fn ask_about_row(&mut self) -> Option<Action> {
        let seen = self.row()?.seen.clone();
        if seen.holders > 1 {
            self.notice = Some("several hold it: choose one, then press f again".to_owned());
            return self.open();
        }
        let holder = seen.holder.clone();
        self.ask(&seen, holder);
        None
    }

    fn ask_about_holder(&mut self) {
        let Some(OpenedName {
            seen: Ok(Some(opened)),
            selected,
            ..
        }) = &self.opened
        else {
            return;
        };
        let chosen = match opened.holders.get(*selected) {
            None if opened.seen.holders > 1 => {
                self.notice = Some("several hold it: choose one, then press f again".to_owned());
                return;
            }
            None => opened.holders.first(),
            chosen => chosen,
        };
        let (seen, holder) = (opened.seen.clone(), chosen.cloned());
        self.ask(&seen, holder);
    }

    /// Whether the next key answers a question.
    pub(super) fn asks(&self) -> bool {
        matches!(self.mode, Mode::Confirming(_))
    }

    fn ask(&mut self, seen: &Seen, holder: Option<Owner>) {
        match holder.filter(|holder| is_taken(seen.state) && holder.lapsed_for.is_none()) {
            None => self.notice = Some(format!("nobody holds {:?}", seen.name)),
            Some(holder) => {
                self.mode = Mode::Confirming(Box::new(Release {
                    name: Arc::clone(&seen.name),
                    fence: holder.fence.unwrap_or(seen.fence),
                    holder,
                    waiters: seen.waiters,
                }));
            }
        }
    }
}

impl OpenedName {
    /// How many holders and waiters there are to choose from.
    fn parties(&self) -> usize {
        match &self.seen {
            Ok(Some(opened)) => opened.holders.len() + opened.queue.len(),
            _ => 0,
        }
    }
}

impl Looks {
    /// The outage goes on, or begins.
    fn fail(&mut self, trouble: Trouble, now: Instant) {
        let since = self.outage.as_ref().map_or(now, |(since, _)| *since);
        self.outage = Some((since, trouble));
    }

    /// How old the rows are.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let last = self.last.as_ref()?;
        Some(now.saturating_duration_since(last.ended))
    }
}

/// The row that a key leads to, of so many.
fn moved(key: &Key, from: usize, page: usize, rows: usize) -> usize {
    let to = match key {
        Key::Up | Key::Char('k') => from.saturating_sub(1),
        Key::Down | Key::Char('j') => from + 1,
        Key::PageUp | Key::Control('b') => from.saturating_sub(page),
        Key::PageDown | Key::Control('f') => from + page,
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => usize::MAX,
        _ => from,
    };
    to.min(rows.saturating_sub(1))
}
