//! The loss of a lock, and how the previous holder ended.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Sender;

/// A lock was lost. Reported once for each guard by [`lost()`](crate::Lease::lost) and by
/// [`on_lost`](crate::LockOptions::on_lost); also part of [`Error::Lost`](crate::Error::Lost).
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Loss {
    /// The name of the lock.
    pub lock: Arc<str>,
    /// The fence of the grant that was lost.
    pub fence: u64,
    /// Why.
    pub reason: LossReason,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss {
            lock,
            fence,
            reason,
        } = self;
        write!(f, "lost {lock:?} (fence {fence}): {reason}")
    }
}

/// Receives the loss of one guard, if anybody has asked for that channel. It is told when the loss is
/// counted.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct LossWatcher(Option<Sender<Loss>>);

impl LossWatcher {
    pub(crate) fn on(channel: Sender<Loss>) -> LossWatcher {
        LossWatcher(Some(channel))
    }

    pub(crate) fn tell(self, loss: &Loss) {
        if let Some(channel) = self.0 {
            // The one message of this channel, which has room for it.
            let _ = channel.try_send(loss.clone());
        }
    }
}

/// Why a lock was lost.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum LossReason {
    /// Its time ran out: no renewal was confirmed before the local deadline, or Redis says that it
    /// lapsed.
    Expired,
    /// Redis names another owner, or none, or this one under another fence. Redis lost its data or went
    /// back to an older copy, or somebody deleted the key. From [`attach`](crate::LockManager::attach):
    /// also if somebody attached the lock before.
    NotOwner,
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
            LossReason::NotOwner => "redis names another owner, or none",
            LossReason::MaxHold => "it was held for as long as max_hold allows",
            LossReason::Forced => "it was released by force",
            LossReason::Shutdown => "the manager was shut down",
        })
    }
}

/// How the previous holder's lock ended, as far as Redis knows.
///
/// `Lapsed` and `Forced` stay until a holder releases the lock properly. So every holder after a
/// crash learns that the protected work may be half done, as with a poisoned `std::sync::Mutex`.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(
    all(feature = "serde", feature = "unstable-servers"),
    derive(serde::Deserialize)
)]
pub enum PreviousHolder {
    /// Nothing is recorded. There was no holder before, or the record was lost, or it expired an
    /// hour after its last use, or somebody deleted the name with
    /// [`delete`](crate::LockManager::delete).
    Unknown,
    /// It released the lock.
    Released,
    /// It lost the lock: it crashed, was paused or cut off, held it up to `max_hold`, or its
    /// manager was shut down. Or it left its work half done: its thread panicked, or it gave the
    /// lock up with [`abandon`](crate::LockGuard::abandon).
    Lapsed,
    /// Somebody took the lock away with [`force_release`](crate::LockManager::force_release).
    Forced,
}

impl fmt::Display for PreviousHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PreviousHolder::Unknown => "unknown",
            PreviousHolder::Released => "released",
            PreviousHolder::Lapsed => "lapsed",
            PreviousHolder::Forced => "forced",
        })
    }
}
