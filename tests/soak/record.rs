//! Writing a history down, so that it survives SIGKILL.

use std::{
    fmt::Display,
    fs::File,
    io::Write as _,
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// A file of one process, to which each line goes in one write of its own: nothing is buffered
/// here, and what the kernel has been given stays.
pub(crate) struct Record {
    file: File,
    who: String,
}

impl Record {
    pub(crate) fn new(dir: &Path, who: &str) -> Record {
        let file = if who == "-" { "coordinator" } else { who };
        let path = dir.join(format!("{file}.log"));
        let file = File::options().append(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Record {
            file,
            who: who.to_owned(),
        }
    }

    pub(crate) fn now(&self, what: impl Display) {
        self.at(now(), what);
    }

    pub(crate) fn at(&self, at: u64, what: impl Display) {
        self.of(&self.who, at, what);
    }

    /// As [`at`](Self::at), in the name of another.
    pub(crate) fn of(&self, who: &str, at: u64, what: impl Display) {
        let wall = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |age| age.as_millis());
        let line = format!("{at} {wall} {who} {what}\n");
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }

    /// Looks at the clock for ever, and notes when it was kept from that for so long that other
    /// threads may have been.
    pub(crate) fn watch_clock(&self) {
        let mut last = now();
        loop {
            thread::sleep(Duration::from_millis(20));
            let next = now();
            if next - last > Duration::from_millis(100).as_nanos() as u64 {
                self.at(next, format_args!("gap {last}"));
            }
            last = next;
        }
    }
}

/// Nanoseconds of a clock that all processes of this machine share, and that counts while they are
/// stopped.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
