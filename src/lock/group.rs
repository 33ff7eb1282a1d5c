//! Several locks under one guard: who learns of a loss.

use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, bounded};

use crate::engine::{LeaseOwner, LostBy, Request};
use crate::loss::{Loss, LossWatcher};
use crate::script::{Mode, Token};
use crate::sync::{AtomicBool, Mutex, fence};

/// Several locks under one guard. The loss of one is the loss of all.
pub(super) struct LockGroup {
    /// All are granted, and the caller has the guard.
    guarded: AtomicBool,
    /// Of no channel after the first loss, or the release.
    watcher: Mutex<LossWatcher>,
    pub(super) lost: Receiver<Loss>,
}

impl LockGroup {
    pub(super) fn new() -> Arc<LockGroup> {
        let (sender, lost) = bounded(1);
        Arc::new(LockGroup {
            guarded: AtomicBool::new(false),
            watcher: Mutex::new(LossWatcher::on(sender)),
            lost,
        })
    }

    /// The caller then looks at the leases. The renewal thread loses a lease, and then looks here.
    /// The fences make sure that one of them sees the other, so that the loss is reported.
    pub(super) fn mark_guarded(&self) {
        self.guarded.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether all are granted, and the caller has the guard.
    fn is_guarded(&self) -> bool {
        // See `mark_guarded`.
        fence(Ordering::SeqCst);
        self.guarded.load(Ordering::Acquire)
    }

    /// The guard was released: no loss is reported any more.
    pub(super) fn close(&self) {
        drop(mem::take(&mut *self.watcher.lock()));
    }
}

impl RefUnwindSafe for LockGroup {}

impl LeaseOwner for LockGroup {
    /// A lock of a group has no guard before all of the group are granted. Its caller finds it lost,
    /// and has not used it. The first loss covers all later ones.
    fn on_lost(&self, _: &Request, _: Token, _: &Loss) -> LostBy {
        if !self.is_guarded() {
            return LostBy::Owner {
                mode: Mode::Unused,
                queue_first: None,
            };
        }
        LostBy::Guard(mem::take(&mut *self.watcher.lock()))
    }
}

#[cfg(all(test, fairlock_loom))]
mod loom_models;
