//! How other threads wake the renewal thread.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::store::clock::Time;

/// Wakes the renewal thread, but only if it would sleep for too long.
///
/// The thread publishes its wake-up time, fences, and looks again for what was sent. A sender
/// sends, fences, and compares. So at least one of the two sees the other, and no wake-up is
/// missed.
pub(crate) struct Waker {
    slot: Sender<()>,
    /// Until when the thread sleeps, in ns. 0 while it is awake: it will look again before it
    /// sleeps.
    asleep_until: AtomicU64,
}

impl Waker {
    /// A waker, and the channel on which the renewal thread sleeps.
    pub(crate) fn new() -> (Waker, Receiver<()>) {
        let (slot, woken) = bounded(1);
        let waker = Waker {
            slot,
            asleep_until: AtomicU64::new(0),
        };
        (waker, woken)
    }

    pub(crate) fn wake(&self) {
        // If the slot is full, the thread will wake anyway.
        let _ = self.slot.try_send(());
    }

    /// To be called after something due at `due` was sent or registered.
    pub(crate) fn wake_if_late_for(&self, due: Time) {
        fence(Ordering::SeqCst);
        if due.as_nanos() < self.asleep_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Before the renewal thread sleeps until `until`. It must then look again for what was
    /// sent.
    pub(in crate::engine) fn publish_sleep(&self, until: Time) {
        self.asleep_until.store(until.as_nanos(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// After the renewal thread slept.
    pub(in crate::engine) fn publish_awake(&self) {
        self.asleep_until.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
