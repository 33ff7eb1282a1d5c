//! The terminal: its screen, its keys and its signals.
//!
//! The screen is taken with raw mode and the alternate screen, and given back on every way out.

use std::io::{self, stdout};
use std::mem::ManuallyDrop;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;
use crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste};
use crossterm::execute;
use crossterm::terminal::disable_raw_mode;
use ratatui::style::Color;
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;

use super::Event;
use crate::exit::Exit;

/// How long to ask crossterm for more after a key. It may have read more keys at once, of which the
/// terminal says nothing any more.
const BURST: Duration = Duration::from_millis(100);
/// How long the main loop has to end. It may be stuck: nobody reads what it writes to the terminal.
const GRACE: Duration = Duration::from_secs(2);

/// The screen. Never dropped: its drop prints an error if the terminal is gone, and panics if
/// nobody can read that either.
pub(super) struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    /// Takes the terminal. Threads of their own send its keys and the signals from now on.
    pub(super) fn enter(events: &Sender<Event>) -> io::Result<Screen> {
        send_signals(events.clone())?;
        let terminal = ratatui::try_init()?;
        execute!(stdout(), EnableBracketedPaste)?;
        let keys = events.clone();
        thread::spawn(move || {
            while send_keys(&keys).is_ok() {}
            let _ = keys.send(Event::Signal(SIGHUP));
        });
        Ok(Screen(ManuallyDrop::new(terminal)))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        let drawn = self.0.draw(|frame| {
            draw(frame);
            if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
                let cells = frame.buffer_mut().content.iter_mut();
                cells.for_each(|cell| cell.fg = Color::Reset);
            }
        });
        drawn.map(|_| ())
    }

    /// The next frame draws every cell.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        let area = self.0.size()?;
        self.0.resize(area.into())
    }
}

/// Gives the terminal back as it was. If it is gone, there is nothing to restore.
pub(super) fn restore() {
    let _ = execute!(stdout(), DisableBracketedPaste, crossterm::cursor::Show);
    let _ = ratatui::try_restore();
}

/// Waits for keys and sends them. Fails if the terminal is gone.
fn send_keys(events: &Sender<Event>) -> io::Result<()> {
    let keyboard = rustix::stdio::stdin();
    let mut polled = [PollFd::new(&keyboard, PollFlags::IN)];
    match poll(&mut polled, None) {
        Err(Errno::INTR) => return Ok(()),
        ready => ready?,
    };
    // crossterm would read the end of the file again and again.
    if polled[0].revents() != PollFlags::IN {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    while event::poll(BURST)? {
        // Nobody receives it if the main loop has ended.
        let _ = events.send(Event::Input(event::read()?));
    }
    Ok(())
}

/// Sends signals from now on. One that would stop the program does nothing: nobody would restore
/// the terminal.
fn send_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH])?;
    thread::spawn(move || {
        for number in &mut signals {
            let _ = events.send(Event::Signal(number));
            if ![SIGTSTP, SIGWINCH].contains(&number) {
                thread::sleep(GRACE);
                // This waits for nobody, and a write to the terminal would.
                let _ = disable_raw_mode();
                std::process::exit(i32::from(Exit::of_signal(number).0));
            }
        }
    });
    Ok(())
}
