//! `fairlock top`: all locks, live.
//!
//! The main loop draws, and waits for events: keys, looks at Redis, signals. Threads of their own
//! make the events, so that nothing delays the keys. The view, and what keys change in it, are
//! pure, and so is the drawing.

mod draw;
mod look;
mod row;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam_channel::{Receiver, Sender, unbounded};
use crossterm::event::Event as Input;
use fairlock::{LockManager, inspect::LockInfo};
use ratatui::Frame;
use signal_hook::consts::{SIGHUP, SIGTSTP, SIGWINCH};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use row::Column;
use terminal::Screen;
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
    Input(Input),
    Signal(i32),
    Looked(fairlock::Result<Vec<LockInfo>>),
    Released(Arc<str>, fairlock::Result<bool>),
}

impl Top {
    /// Runs until a key or a signal ends it.
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(Failure::usage(
                "top needs a terminal for its keys and its screen; `fairlock ls` prints once",
            ));
        }
        let (manager, server) = (connection.manager()?, connection.addresses()?);
        // Lines of the log would be written over the screen, and the header says what is wrong.
        log::set_max_level(log::LevelFilter::Off);
        let (events, incoming) = unbounded();
        let column = self.sort;
        let view = View {
            server,
            column,
            ..View::default()
        };
        let ended = Screen::enter(&events).and_then(|screen| {
            let (glob, interval) = (self.glob.clone(), self.interval);
            let main = Loop {
                screen,
                view,
                wake: look::start(manager.clone(), glob, interval, events.clone()),
                manager,
                events,
            };
            main.run(&incoming)
        });
        terminal::restore();
        ended.map_err(|error| Failure::internal(format!("the terminal cannot be used: {error}")))
    }
}

/// The main loop, and what it acts on.
struct Loop {
    screen: Screen,
    view: View,
    manager: LockManager,
    events: Sender<Event>,
    /// Makes the thread that looks do so at once. If this is gone, the thread ends.
    wake: Sender<()>,
}

impl Loop {
    /// Draws, then waits for what changes the view.
    fn run(mut self, incoming: &Receiver<Event>) -> io::Result<Exit> {
        loop {
            let view = &mut self.view;
            let draw = |frame: &mut Frame| draw::draw(frame, view, Instant::now());
            // The terminal went away, and its signal did not come yet, or is ignored.
            if self.screen.draw(draw).is_err() {
                return Ok(Exit::of_signal(SIGHUP));
            }
            // Ages grow on the screen although nothing happens.
            let first = incoming.recv_timeout(TICK).into_iter();
            for event in first.chain(incoming.try_iter()) {
                if let Some(exit) = self.on_event(event)? {
                    return Ok(exit);
                }
            }
        }
    }

    /// Returns the exit code if the program ends.
    fn on_event(&mut self, event: Event) -> io::Result<Option<Exit>> {
        match event {
            Event::Input(input) => match self.view.on_input(input) {
                Some(Action::Quit) => return Ok(Some(Exit::OK)),
                Some(Action::Redraw) => self.screen.forget()?,
                Some(Action::Release(name, fence)) => self.release(name, fence),
                None => {}
            },
            // The next frame finds the new size.
            Event::Signal(SIGTSTP | SIGWINCH) => {}
            Event::Signal(number) => return Ok(Some(Exit::of_signal(number))),
            Event::Looked(Ok(infos)) => self.view.on_look(infos, Instant::now()),
            Event::Looked(Err(error)) => self.view.on_failure(error, Instant::now()),
            Event::Released(name, released) => {
                self.view.on_released(&name, released);
                // The thread ends only after this loop.
                let _ = self.wake.send(());
            }
        }
        Ok(None)
    }

    fn release(&self, name: Arc<str>, fence: u64) {
        let (manager, events) = (self.manager.clone(), self.events.clone());
        thread::spawn(move || {
            let released = manager.force_release(&name, fence);
            // If the main loop has ended, nobody wants to know.
            let _ = events.send(Event::Released(name, released));
        });
    }
}
