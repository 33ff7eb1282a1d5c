//! The resource: a file that counts its entries, and that breaks when two write at once.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How long a turn takes.
const WORK: Duration = Duration::from_millis(2);

pub(crate) struct Ledger {
    count: PathBuf,
    /// There only while somebody is at the ledger.
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

    /// Reads the count, works for a while, and writes the next one: of two at once, one would be lost.
    /// Answers whether nobody else was at it, which the file system knows and Redis has no part in.
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
        // What two writers at once left behind may be anything.
        Ok(fs::read_to_string(&self.count)?.parse().unwrap_or(0))
    }
}
