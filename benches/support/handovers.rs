//! Threads of one process that take turns with one lock, as fast as they can.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fairlock::LockManager;
use parking_lot::{FairMutex, FairMutexGuard};

use crate::support::{median, now};
use crate::throughput::throughput;

pub(crate) const THREADS: usize = 8;
/// The most local hand-overs in a row.
pub(crate) const MAX: u32 = 1000;
const RUN_FOR: Duration = Duration::from_millis(500);

/// The work of the threads in one round.
pub(crate) struct Seen {
    /// A second.
    pub(crate) turns: u64,
    /// The median, in ns.
    pub(crate) handover: u64,
}

pub(crate) fn lock_turns(manager: &LockManager) -> Seen {
    turns(|| {
        let guard = manager.lock("local").expect("a lock");
        let taken = now();
        (taken, move || drop(guard))
    })
}

pub(crate) fn mutex_turns(mutex: &FairMutex<()>) -> Seen {
    turns(|| {
        let guard = mutex.lock();
        let taken = now();
        (taken, move || FairMutexGuard::unlock_fair(guard))
    })
}

/// All threads take turns. A turn says when it began, and how it ends.
fn turns<R: FnOnce()>(take: impl Fn() -> (u64, R) + Sync) -> Seen {
    let released = AtomicU64::new(0);
    let last = AtomicUsize::new(THREADS);
    let seen = parking_lot::Mutex::new(Vec::new());
    let cycles = (0..THREADS).map(|thread| {
        let (take, released, last) = (&take, &released, &last);
        let mut handovers = OwnHandovers::new(&seen);
        move || {
            let (taken, release) = take();
            let before = released.load(Ordering::Relaxed);
            // A bare mutex is handed over only to a thread that sleeps by then. Its own thread may
            // have it many times in a row, which is no hand-over.
            if last.swap(thread, Ordering::Relaxed) != thread {
                handovers.push(taken.saturating_sub(before));
            }
            released.store(now(), Ordering::Relaxed);
            release();
        }
    });
    let turns = throughput(RUN_FOR, cycles.collect());
    Seen {
        turns,
        handover: median(seen.into_inner()),
    }
}

/// One thread's hand-overs, which join those of all when it ends.
struct OwnHandovers<'a> {
    all: &'a parking_lot::Mutex<Vec<u64>>,
    own: Cell<Vec<u64>>,
}

impl<'a> OwnHandovers<'a> {
    fn new(all: &'a parking_lot::Mutex<Vec<u64>>) -> OwnHandovers<'a> {
        OwnHandovers {
            all,
            own: Cell::new(Vec::new()),
        }
    }

    fn push(&mut self, handover: u64) {
        self.own.get_mut().push(handover);
    }
}

impl Drop for OwnHandovers<'_> {
    fn drop(&mut self) {
        self.all.lock().append(self.own.get_mut());
    }
}
