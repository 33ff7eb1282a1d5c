//! Standard output, line by line.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::table::Table;

/// The width of a window whose terminal does not say how wide it is.
const DEFAULT_WIDTH: usize = 80;

/// Prints one line, or nothing where nobody reads any more, as after `| head`.
pub(crate) fn line(line: impl Display) -> Result<(), Failure> {
    match writeln!(anstream::stdout().lock(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::internal(format!(
            "cannot write the output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// Ends the process as soon as nobody reads its output any more, whatever it waits for. For a verb
/// that leaves nothing behind.
pub(crate) fn end_when_unread() {
    thread::spawn(|| {
        wait_until_unread();
        std::process::exit(Exit::OK.0.into());
    });
}

/// Blocks until nobody can read the output any more: its reader has ended, as after `| head -1`, or
/// the terminal is gone.
pub(crate) fn wait_until_unread() {
    let stdout = io::stdout();
    // The end of a reader is reported though no event is asked for. A signal ends the call early.
    while poll(&mut [PollFd::new(&stdout, PollFlags::empty())], None).is_err() {}
}

/// Prints one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::internal(format!("cannot write JSON: {error}")))?;
    line(text)
}

/// The name that a value has in JSON.
pub(crate) fn name_in_json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

/// Prints a table that fits a window of this width, with its titles in bold.
pub(crate) fn table(table: &Table, width: Option<usize>) -> Result<(), Failure> {
    let bold = anstyle::Style::new().bold();
    let mut lines = table.lines(width);
    if let Some(titles) = lines.next() {
        line(format_args!("{bold}{titles}{bold:#}"))?;
    }
    lines.try_for_each(line)
}

/// How many columns the window has. `None` if standard output is no terminal.
pub(crate) fn width() -> Option<usize> {
    let stdout = io::stdout();
    stdout.is_terminal().then(|| columns(stdout))
}

/// How many columns a terminal has.
pub(crate) fn columns(terminal: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(terminal);
    let columns = size.map_or(0, |size| size.ws_col.into());
    if columns == 0 { DEFAULT_WIDTH } else { columns }
}
