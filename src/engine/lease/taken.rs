//! The leases that this thread took for its guards. A thread that waits may wait for itself, or for
//! threads that wait for it. Only the threads' own lists can show that at once: the renewal thread
//! has the leases of all threads, and would have to go through all of them for each wait.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::Lease;

/// Which engine keeps a lease: its address. Two engines may have locks of the same name. A lease that
/// is held keeps its engine alive, so no other engine can have that address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EngineId(pub(crate) usize);

/// A lease that a thread took and that is not over.
#[derive(Clone)]
pub(crate) struct TakenLease {
    pub(crate) engine: EngineId,
    pub(crate) lease: Arc<Lease>,
}

thread_local! {
    static TAKEN: RefCell<Taken> = const {
        RefCell::new(Taken {
            leases: Vec::new(),
            room: LEAST_ROOM,
        })
    };
}

struct Taken {
    /// The newest last. Some may be over.
    leases: Vec<(EngineId, Weak<Lease>)>,
    /// With this many, those that are over are forgotten.
    room: usize,
}

impl Taken {
    fn forget_ended(&mut self) {
        self.leases.retain(|(_, lease)| is_live(lease));
        self.room = LEAST_ROOM.max(self.leases.len() * 2);
    }
}

/// This many entries are never looked through, so a thread that takes and releases locks seldom
/// does.
const LEAST_ROOM: usize = 16;
/// A thread that holds more locks than this shows only the newest. Otherwise each of its waits
/// would have to search through all of them.
const MOST_SHOWN: usize = 1024;

/// This thread took the lease for a guard. The guard may go to another thread, which nobody sees.
///
/// Every lock that is taken comes here: it costs an entry of two words, and no allocation unless a
/// thread holds more locks than ever before. An entry keeps the memory of its lease until the entry
/// is forgotten.
pub(crate) fn note_taken(engine: EngineId, lease: &Arc<Lease>) {
    // In two cases the lease is not noted, and a warning may be missing. At the end of the thread
    // there is no list any more. And a change of the list below may drop a lease for the last time,
    // and with it a callback of the user. That may take a lock itself.
    let _ = TAKEN.try_with(|taken| {
        let Ok(mut taken) = taken.try_borrow_mut() else {
            return;
        };
        if taken.leases.len() >= taken.room {
            taken.forget_ended();
        }
        taken.leases.push((engine, Arc::downgrade(lease)));
    });
}

/// The leases that this thread took and that are neither released nor lost, the newest first.
pub(crate) fn taken_by_this_thread() -> Vec<TakenLease> {
    let live = |(engine, lease): &(EngineId, Weak<Lease>)| {
        let lease = lease.upgrade().filter(|lease| !lease.is_over())?;
        Some(TakenLease {
            engine: *engine,
            lease,
        })
    };
    let shown = TAKEN.try_with(|taken| {
        let mut taken = taken.try_borrow_mut().ok()?;
        let leases = taken.leases.iter().rev().filter_map(live);
        let shown: Vec<TakenLease> = leases.take(MOST_SHOWN).collect();
        // After a thread has released very many locks, the next waits must not look at all of them.
        if shown.len() < MOST_SHOWN && taken.leases.len() > LEAST_ROOM + 2 * shown.len() {
            taken.forget_ended();
        }
        Some(shown)
    });
    shown.ok().flatten().unwrap_or_default()
}

fn is_live(lease: &Weak<Lease>) -> bool {
    lease.upgrade().is_some_and(|lease| !lease.is_over())
}

#[cfg(all(test, feature = "memory"))]
mod tests;
