//! Notes on standard error.

use std::fmt;
use std::io::Write as _;

/// Prints on standard error, like `eprint!`. If nobody can read it, as on a full disk, the command
/// goes on without it: `eprint!` would panic.
macro_rules! note {
    ($($text:tt)*) => { $crate::note::to_stderr(format_args!($($text)*)) };
}
macro_rules! note_line {
    ($($text:tt)*) => { $crate::note::to_stderr(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use {note, note_line};

pub(crate) fn to_stderr(text: fmt::Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}
