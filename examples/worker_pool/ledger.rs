//! The resource: a file that counts its entries, and loses some if two workers write at once.
//!
//! It checks no fence, to show what the lock does alone. So a worker that is stopped past its TTL
//! can spoil it. Data that must not be lost remembers the newest fence: see the example `fencing`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How long a turn takes.
const WORK: Duration = Duration::from_millis(2);

pub(crate) struct Ledger {
    count: PathBuf,
    /// A file that exists only while somebody writes into the ledger.
    occupied: PathBuf,
}

impl Ledger {
    pub(crate) fn create(dir: &Path) -> io::Result<Ledger> {
        let ledger = Ledger::open(dir);
        fs::write(&ledger.count, "0")?;
        Ok(ledger)
    }

    pub(crate) fn open(dir: &Path) -> Ledger {
        Ledger {
            count: dir.join("count"),
            occupied: dir.join("occupied"),
        }
    }

    /// Reads the count, works for a while, and writes the next count. If two workers do that at
    /// once, one entry is lost.
    ///
    /// Returns whether this worker was alone. The file system decides that, without Redis.
    pub(crate) fn add_entry(&self) -> io::Result<bool> {
        let alone = File::create_new(&self.occupied).is_ok();
        let count = self.entries()?;
        sleep(WORK);
        fs::write(&self.count, (count + 1).to_string())?;
        if alone {
            fs::remove_file(&self.occupied)?;
        }
        Ok(alone)
    }

    pub(crate) fn entries(&self) -> io::Result<u64> {
        // Two writers at once may have left anything here.
        Ok(fs::read_to_string(&self.count)?.parse().unwrap_or(0))
    }
}
