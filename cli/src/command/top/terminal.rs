//! The terminal: its screen, its keys and its signals.
//!
//! The screen is taken with raw mode and the alternate screen, and given back on every way out.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;
use crossterm::event;
use crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;

use super::Event;
use crate::exit::Exit;

/// The alternate screen, no cursor, and brackets around what is pasted.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?2004h";
const LEAVE: &str = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l";

/// How long to ask crossterm for more after a key. It may have read more keys at once, of which the
/// terminal says nothing any more.
const BURST: Duration = Duration::from_millis(100);
/// How long the main loop has to end. It may be stuck: nobody reads what it writes to the terminal.
const GRACE: Duration = Duration::from_secs(2);

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The screen, while the program has it.
pub(super) struct Screen {
    /// Never dropped: its drop prints an error if the terminal is gone, and panics if nobody can
    /// read that either.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<BufWriter<File>>>>,
    /// The text that it shows. Empty if that is not known.
    area: Rect,
}

impl Screen {
    /// Takes the terminal. Threads of their own send its keys and the signals from now on.
    pub(super) fn enter(events: &Sender<Event>) -> io::Result<Screen> {
        restore_on_panic();
        // A frame is one write.
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, output()?));
        let viewport = Viewport::Fixed(Rect::ZERO);
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })?;
        send_signals(events.clone())?;
        take()?;
        let keys = events.clone();
        thread::spawn(move || {
            while send_keys(&keys).is_ok() {}
            let _ = keys.send(Event::Signal(SIGHUP));
        });
        Ok(Screen {
            terminal: ManuallyDrop::new(terminal),
            area: Rect::ZERO,
        })
    }

    /// Draws a frame, but not while the terminal is restored and a signal to stop is on its way.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        if !IS_TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (columns, rows) = match size()? {
            // A serial console does not say how large its window is.
            (0, _) | (_, 0) => (80, 24),
            known => known,
        };
        let area = Rect::new(0, 0, columns, rows);
        if self.area != area {
            // `Terminal::clear` would ask the terminal for the cursor, and wait for its answer
            // among the keys.
            self.terminal.resize(area)?;
            self.area = area;
        }
        let drawn = self.terminal.draw(|frame| {
            draw(frame);
            if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
                let cells = frame.buffer_mut().content.iter_mut();
                cells.for_each(|cell| cell.fg = Color::Reset);
            }
        });
        drawn.map(|_| ())
    }

    /// Takes the terminal again after the process was stopped, and forgets what it showed.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        // The shell may have set other modes since. crossterm sets its own only if it does not
        // believe that they are set already.
        let _ = disable_raw_mode();
        self.forget();
        take()
    }

    /// The next frame draws every cell.
    pub(super) fn forget(&mut self) {
        self.area = Rect::ZERO;
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::SeqCst);
    output()?.write_all(ENTER.as_bytes())
}

/// Gives the terminal back as it was, and says whether it was taken. If the terminal is gone, there
/// is nothing to restore.
pub(super) fn restore() -> bool {
    let is_taken = IS_TAKEN.swap(false, Ordering::SeqCst);
    if is_taken {
        // The modes first: this never waits, and the write may, if nobody reads.
        let _ = disable_raw_mode();
        let _ = output().and_then(|mut output| output.write_all(LEAVE.as_bytes()));
    }
    is_taken
}

/// Standard output without its buffer: what a panic leaves there would be written after the
/// terminal is restored.
fn output() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// A panic of any thread ends the program: else the report would be on the alternate screen, which
/// goes away.
fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
        std::process::exit(i32::from(Exit::INTERNAL.0));
    }));
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

/// Sends signals from now on.
fn send_signals(events: Sender<Event>) -> io::Result<()> {
    let numbers = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGWINCH];
    let mut signals = Signals::new(numbers)?;
    thread::spawn(move || {
        for number in &mut signals {
            let _ = events.send(Event::Signal(number));
            if ![SIGTSTP, SIGCONT, SIGWINCH].contains(&number) {
                thread::sleep(GRACE);
                // This waits for nobody, and a write to the terminal would.
                let _ = disable_raw_mode();
                std::process::exit(i32::from(Exit::of_signal(number).0));
            }
        }
    });
    Ok(())
}
