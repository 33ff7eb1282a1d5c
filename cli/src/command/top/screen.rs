//! The terminal: raw mode and the alternate screen, and back on every way out.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use crate::exit::Exit;

/// The alternate screen, no cursor, and brackets around what is pasted.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?2004h";
const LEAVE: &str = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l";

/// A serial console does not say how large its window is.
const UNKNOWN_SIZE: Rect = Rect::new(0, 0, 80, 24);

static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The screen, while the program has it. Dropping it restores the terminal.
pub(super) struct Screen {
    /// Never dropped: its drop prints an error if the terminal is gone, and panics if nobody can
    /// read that either.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<BufWriter<File>>>>,
}

/// Whether there is a terminal to read keys from and to draw on.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

impl Screen {
    pub(super) fn enter() -> io::Result<Screen> {
        restore_on_panic();
        // A descriptor of its own: a frame is one write, and what a panic leaves in the buffer of
        // the standard output would be written after the terminal is restored.
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        take()?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, output));
        let viewport = match size() {
            Ok((0, _) | (_, 0)) => Viewport::Fixed(UNKNOWN_SIZE),
            _ => Viewport::Fullscreen,
        };
        let entered = Terminal::with_options(backend, TerminalOptions { viewport });
        let entered = entered.map(|terminal| Screen {
            terminal: ManuallyDrop::new(terminal),
        });
        entered.inspect_err(|_| restore())
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Takes the terminal again after the process was stopped, and forgets what it showed.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        // The shell may have set other modes since. crossterm sets its own only if it does not
        // believe that they are set already.
        let _ = disable_raw_mode();
        take()?;
        self.forget()
    }

    /// The next frame draws every cell.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal for the cursor, and wait for its answer among
        // the keys.
        let area = match size()? {
            (0, _) | (_, 0) => UNKNOWN_SIZE,
            (columns, rows) => Rect::new(0, 0, columns, rows),
        };
        self.terminal.resize(area)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    IS_ENTERED.store(true, Ordering::SeqCst);
    write(ENTER).inspect_err(|_| restore())
}

/// Gives the terminal back as it was. A second call does nothing. If the terminal is gone, there is
/// nothing to restore.
pub(super) fn restore() {
    if IS_ENTERED.swap(false, Ordering::SeqCst) {
        // The modes first: this never waits, and the write may, if nobody reads.
        let _ = disable_raw_mode();
        let _ = write(LEAVE);
    }
}

fn write(mut text: &str) -> io::Result<()> {
    while !text.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), text.as_bytes()) {
            Ok(count) => text = &text[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
