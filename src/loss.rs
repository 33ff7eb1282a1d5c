//! The news that a lock was lost, and how the holder before ended.

use std::fmt;
use std::sync::Arc;

/// A lock was lost: told once for each guard, through [`lost()`](crate::LockGuard::lost), `on_lost` and
/// [`Error::Lost`](crate::Error::Lost).
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Loss {
    /// The name of the lock.
    pub name: Arc<str>,
    /// The fence of the grant that was lost.
    pub fence: u64,
    /// Why.
    pub reason: LossReason,
}

/// Why a lock was lost.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// Its time ran out: no renewal was confirmed before the local deadline, or Redis says it lapsed.
    Expired,
    /// Redis no longer names us as the owner, or names us under another fence: its data was lost or deleted, or is older
    /// than it was.
    Taken,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// Somebody released it by force.
    Forced,
    /// The manager was shut down while the guard was alive.
    Shutdown,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "its time ran out",
            LossReason::Taken => "redis no longer names us as its owner",
            LossReason::MaxHold => "it was held for as long as max_hold allows",
            LossReason::Forced => "it was released by force",
            LossReason::Shutdown => "the manager was shut down",
        })
    }
}

/// How the holder before this one ended, as far as Redis knows.
///
/// `Lapsed` and `Forced` stay until a holder releases the lock properly, so whoever comes after a crash
/// knows that what the lock protects may be half done, as with a poisoned `std::sync::Mutex`.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PreviousHolder {
    /// Nothing is recorded: the first holder, or the record was lost or grew too old.
    Unknown,
    /// It released the lock.
    Released,
    /// It lost the lock: it crashed, was paused or cut off, held it up to `max_hold`, or was shut down.
    Lapsed,
    /// It was released with [`force_release`](crate::LockManager::force_release).
    Forced,
}
