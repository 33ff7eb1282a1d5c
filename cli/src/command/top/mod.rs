//! `fairlock top`: all locks, live.
//!
//! The main loop draws, and waits for events: keys, looks at Redis, signals. Threads of their own
//! make the events, so that nothing delays the keys. The view, what keys change in it, and the
//! frame are pure.

mod draw;
mod key;
mod look;
mod order;
#[cfg(test)]
mod samples;
mod screen;
mod seen;
mod signal;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::job;
use draw::{Palette, Setting};
use key::Key;
use look::{Look, Looker, Trouble};
use order::Column;
use screen::Screen;
use seen::Opened;
use signal::Signal;
use view::{Action, View};

/// Shows the busiest locks, live
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlock top
  fairlock top 'invoices:*' --sort oldest
  fairlock top --interval 5s

Keys: ? shows them all. f releases a lock by force, after a question.")]
pub(crate) struct Top {
    /// Only names that match: * ? [a-z] and \ as escape
    #[arg(default_value = "*")]
    glob: String,
    /// How often to look, at most: 100ms to 1d. Looks at many names are rarer, to spare the server
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::interval)]
    interval: Duration,
    /// The column to sort by, at first
    #[arg(long, value_name = "COLUMN", default_value = "busy")]
    sort: Column,
}

/// How long the screen may show the same ages.
const TICK: Duration = Duration::from_secs(1);

/// An event that the main loop waits for.
#[derive(Debug)]
enum Event {
    Key(Key),
    /// The terminal is gone.
    KeyboardGone,
    Signal(Signal),
    /// A look runs, and has found this many names.
    Looking(usize),
    Looked(Result<Look, Trouble>),
    LookedAtOne(Arc<str>, Result<Option<Box<Opened>>, Trouble>),
    Released(Arc<str>, Result<bool, Trouble>),
}

impl Top {
    /// Runs until a key or a signal ends it.
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        if !screen::is_there() {
            return Err(Failure::usage(
                "top needs a terminal for its keys and its screen; `fairlock ls` prints once",
            ));
        }
        let manager = connection.manager()?;
        let (events, incoming) = unbounded();
        signal::listen(events.clone())?;
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let setting = Setting {
            server: connection.addresses()?,
            interval: self.interval,
            palette: if no_color {
                Palette::Plain
            } else {
                Palette::Colors
            },
        };
        let looker = Looker {
            manager,
            glob: self.glob.clone(),
            interval: self.interval,
            events: events.clone(),
        };
        // Lines of the log would be written over the screen, and the header says what is wrong.
        log::set_max_level(log::LevelFilter::Off);
        let screen = Screen::enter().map_err(no_terminal)?;
        thread::spawn(move || key::read_all(&events));
        Loop::new(screen, setting, looker, self.sort).run(&incoming)
    }
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::internal(format!("the terminal cannot be used: {error}"))
}

/// The main loop, and what it acts on.
struct Loop {
    screen: Screen,
    setting: Setting,
    view: View,
    looker: Looker,
    /// Makes the thread that looks at all names look soon. If this is gone, the thread ends.
    wake: Sender<()>,
    /// While it exists, a thread looks at the name that is open.
    watching: Option<Sender<()>>,
    /// The terminal is restored, and the signal that stops the job is on its way.
    is_stopping: bool,
}

/// Why the main loop ends.
struct End(Exit);

impl Loop {
    fn new(screen: Screen, setting: Setting, looker: Looker, sort: Column) -> Loop {
        let (wake, woken) = bounded(1);
        looker.clone().watch_all(woken);
        Loop {
            screen,
            setting,
            view: View::new(sort),
            looker,
            wake,
            watching: None,
            is_stopping: false,
        }
    }

    /// The main loop: draws, then waits for what changes the view.
    fn run(mut self, incoming: &Receiver<Event>) -> Result<Exit, Failure> {
        loop {
            // The terminal went away, and its signal did not come yet, or is ignored.
            if !self.is_stopping && self.draw().is_err() {
                return Ok(Exit::of_signal(signal::HANGUP));
            }
            // Ages grow on the screen although nothing happens.
            let Ok(first) = incoming.recv_timeout(TICK) else {
                continue;
            };
            let mut asks_unseen = false;
            for event in std::iter::once(first).chain(incoming.try_iter()) {
                // A key that was pressed before the question was drawn is no answer to it. After
                // ctrl-z, ctrl-l would clear the shell's screen.
                if (asks_unseen || self.is_stopping) && matches!(event, Event::Key(_)) {
                    continue;
                }
                let asked = self.view.asks();
                if let Some(End(exit)) = self.on_event(event).map_err(no_terminal)? {
                    return Ok(exit);
                }
                asks_unseen |= !asked && self.view.asks();
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let (view, setting) = (&mut self.view, &self.setting);
        self.screen
            .draw(|frame| draw::draw(frame, view, setting, Instant::now()))
    }

    fn on_event(&mut self, event: Event) -> io::Result<Option<End>> {
        let now = Instant::now();
        match event {
            Event::Key(key) => {
                if let Some(action) = self.view.on_key(key) {
                    return self.act(action);
                }
            }
            Event::KeyboardGone => return Ok(Some(End(Exit::of_signal(signal::HANGUP)))),
            Event::Signal(Signal::End(number)) => return Ok(Some(End(Exit::of_signal(number)))),
            Event::Signal(Signal::Stop) => self.stop()?,
            Event::Signal(Signal::Continue) => {
                // When a process is continued, the kernel discards a stop that is on its way.
                self.is_stopping = false;
                self.screen.take_again()?;
            }
            // The next frame finds the new size.
            Event::Signal(Signal::Resize) => {}
            Event::Looking(found) => self.view.looks.found = Some(found),
            Event::Looked(looked) => self.view.on_look(looked, now),
            Event::LookedAtOne(name, seen) => self.view.on_look_at_one(&name, seen, now),
            Event::Released(name, released) => {
                self.view.on_released(&name, released);
                self.look_soon();
            }
        }
        Ok(None)
    }

    fn act(&mut self, action: Action) -> io::Result<Option<End>> {
        match action {
            Action::Quit => return Ok(Some(End(Exit::OK))),
            Action::Suspend if job::can_be_continued() => {
                // Before a script around this program stops. Then its shell takes the terminal, and
                // this process could not restore it any more.
                screen::restore();
                self.is_stopping = true;
                signal::stop_group();
            }
            Action::Suspend => self.say_no_shell(),
            Action::Redraw => self.screen.forget()?,
            Action::Watch(name) => self.watch(name),
            Action::Unwatch => self.watching = None,
            Action::Release(name, fence) => self.looker.clone().release(name, fence),
        }
        Ok(None)
    }

    /// Stops as the terminal's Ctrl-Z asks, until a shell continues this process.
    fn stop(&mut self) -> io::Result<()> {
        if job::can_be_continued() {
            screen::restore();
            signal::stop_here();
        } else {
            self.say_no_shell();
        }
        self.is_stopping = false;
        self.screen.take_again()
    }

    fn say_no_shell(&mut self) {
        self.view.notice = Some("there is no shell to suspend to".to_owned());
    }

    fn watch(&mut self, name: Arc<str>) {
        let (watching, stop) = bounded(1);
        self.watching = Some(watching);
        self.looker.clone().watch_one(name, stop);
    }

    fn look_soon(&mut self) {
        // If the message before was not read yet, that look comes late enough as well.
        let _ = self.wake.try_send(());
        let name = self.view.opened.as_ref().map(|opened| &opened.name);
        if let Some(name) = name.cloned() {
            self.watch(name);
        }
    }
}
