//! A clock that runs on with the host's and can be put forward.

use std::convert::Infallible;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::store::clock::{Sleepers, Time, TimeSource, host_time, nanos};

/// How far a clock can be put forward in all: the scripts' numbers are exact for two hundred years
/// from now.
const FURTHEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

/// The longest that [`MovableClock::advance`] waits, in the host's time: a background thread that
/// waits for a reply settles only when that wait is over.
const SETTLING: Duration = Duration::from_secs(1);

/// The host's clock, put forward.
pub(super) struct MovableClock {
    /// How far it was put forward, in ns.
    shift: AtomicU64,
    /// A sleeping thread holds a clone of the receiver, and wakes when the sender is dropped.
    next_jump: Mutex<(Sender<Infallible>, Receiver<Infallible>)>,
    sleepers: Mutex<Vec<Weak<dyn Sleepers>>>,
}

impl MovableClock {
    pub(super) fn new() -> MovableClock {
        MovableClock {
            shift: AtomicU64::new(0),
            next_jump: Mutex::new(bounded(0)),
            sleepers: Mutex::new(Vec::new()),
        }
    }

    /// Puts the clock forward and wakes every thread that sleeps by it. Then waits until everything
    /// that is due is done, but no longer than [`SETTLING`].
    pub(super) fn advance(&self, by: Duration) {
        let further = |ns: u64| Some(ns.saturating_add(nanos(by)).min(FURTHEST));
        let _ = self
            .shift
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, further);
        // The time is changed first, so a thread that takes the next receiver sees it.
        let over = std::mem::replace(&mut *self.next_jump.lock(), bounded(0));
        drop(over);
        let sleepers = self.sleepers.lock().clone();
        let settled: Vec<_> = sleepers
            .iter()
            .filter_map(Weak::upgrade)
            .map(|sleepers| sleepers.wake_all())
            .collect();
        let deadline = Instant::now() + SETTLING;
        for settled in settled {
            let _ = settled.recv_deadline(deadline);
        }
    }

    fn shift(&self) -> Duration {
        Duration::from_nanos(self.shift.load(Ordering::SeqCst))
    }
}

impl TimeSource for MovableClock {
    fn now(&self) -> Time {
        host_time() + self.shift()
    }

    fn next_jump(&self) -> Receiver<Infallible> {
        self.next_jump.lock().1.clone()
    }

    fn on_jump(&self, sleepers: Weak<dyn Sleepers>) {
        let mut all = self.sleepers.lock();
        all.retain(|sleepers| sleepers.strong_count() > 0);
        all.push(sleepers);
    }
}

impl fmt::Debug for MovableClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MovableClock({:?})", self.shift())
    }
}
