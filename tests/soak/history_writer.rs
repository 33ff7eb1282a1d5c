//! Writes a history so that it survives SIGKILL.

use std::{
    fmt::Display,
    fs::File,
    io::Write as _,
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// The file of one process. Each line is one write without buffering: what the kernel has received
/// survives the process.
pub(crate) struct HistoryWriter {
    file: File,
    who: String,
}

impl HistoryWriter {
    pub(crate) fn new(dir: &Path, who: &str) -> HistoryWriter {
        let file = if who == "-" { "coordinator" } else { who };
        let path = dir.join(format!("{file}.log"));
        let file = File::options().append(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        HistoryWriter {
            file,
            who: who.to_owned(),
        }
    }

    pub(crate) fn log(&self, what: impl Display) {
        self.log_at(now(), what);
    }

    pub(crate) fn log_at(&self, at: u64, what: impl Display) {
        self.log_for(&self.who, at, what);
    }

    /// As [`log_at`](Self::log_at), for another process.
    pub(crate) fn log_for(&self, who: &str, at: u64, what: impl Display) {
        let wall = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |age| age.as_millis());
        let line = format!("{at} {wall} {who} {what}\n");
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }

    /// Reads the clock forever. Logs a gap when this thread could not run for so long that other
    /// threads may have been delayed too.
    pub(crate) fn watch_clock(&self) {
        self.watch_clock_until(|| false);
    }

    /// As [`watch_clock`](Self::watch_clock), until this returns true.
    pub(crate) fn watch_clock_until(&self, over: impl Fn() -> bool) {
        let mut last = now();
        while !over() {
            // Time itself is under test: a gap shows that this thread did not run.
            thread::sleep(Duration::from_millis(20));
            let next = now();
            if next - last > Duration::from_millis(100).as_nanos() as u64 {
                self.log_at(next, format_args!("gap {last}"));
            }
            last = next;
        }
    }
}

/// Nanoseconds of a clock that all processes of this machine share. It goes on while they are
/// stopped.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
