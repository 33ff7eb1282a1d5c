//! The library's log lines, on standard error.

use std::io::Write as _;

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Logger;

/// Prints what the library logs from now on: errors, and with each `-v` more. A command under cron
/// has its output mailed, so a warning that nobody asked for would be noise.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Info,
        _ => LevelFilter::Trace,
    };
    // Nobody else in this process sets one.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Logger {
    /// Other libraries stay silent: what they log is nothing that a user can act on.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().split(':').next() == Some("fairlock")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                Level::Error => "error",
                Level::Warn => "warning",
                Level::Info => "info",
                Level::Debug | Level::Trace => "debug",
            };
            // A terminal that is gone must not end the thread that renews the locks.
            let _ = writeln!(anstream::stderr(), "fairlock: {level}: {}", record.args());
        }
    }

    fn flush(&self) {}
}
