//! A server whose wall clock a test moves. All processes of a machine share its clock, so the server
//! runs with a preloaded library that shifts the time it reads.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    time::{Duration, UNIX_EPOCH},
};

use tempfile::TempDir;

use super::{Server, preload::library, until};

/// A server, and the file with the offset of its clock.
pub(crate) struct Shifted {
    pub(crate) server: Server,
    by: File,
    _dir: TempDir,
}

impl Shifted {
    pub(crate) fn start() -> Shifted {
        Shifted::start_as(Server::start_with_env)
    }

    pub(crate) fn start_as(start: impl Fn(&[(&str, &str)]) -> Server) -> Shifted {
        let dir = tempfile::tempdir().unwrap();
        let library = library(dir.path(), "clock", include_str!("shifted_clock.c"));
        let by = dir.path().join("by");
        fs::write(&by, 0i64.to_ne_bytes()).unwrap();
        let preload = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("SHIFTED_CLOCK", by.to_str().unwrap()),
        ];
        Shifted {
            server: start(&preload),
            by: File::options().write(true).open(&by).unwrap(),
            _dir: dir,
        }
    }

    /// From now on its clock is off by this many µs.
    pub(crate) fn step_to(&self, micros: i64) {
        self.by.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
        // Valkey does not read the clock for every request.
        until(Duration::from_secs(8), "the server has noticed", || {
            let real = UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
            let (seconds, rest): (i64, i64) = self.server.query(&["TIME"]);
            let off = seconds * 1_000_000 + rest - real;
            (off - micros).abs() < 10_000_000
        });
    }
}
