//! The leases that this thread took for its guards. They show at once that it waits for itself.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::HeldLease;
use crate::store::clock::Time;

/// Which engine keeps a lease: its address. Two engines may have locks of the same name. A lease that
/// is held keeps its engine alive, so no other engine can have that address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EngineId(pub(crate) usize);

/// A lease that this thread took. It may be over.
struct TakenLease {
    engine: EngineId,
    lease: Weak<HeldLease>,
}

thread_local! {
    static TAKEN: RefCell<Taken> = const {
        RefCell::new(Taken {
            leases: Vec::new(),
            room: LEAST_ROOM,
            told: None,
        })
    };
}

struct Taken {
    /// The newest last.
    leases: Vec<TakenLease>,
    /// With this many, those that are over are forgotten.
    room: usize,
    /// What the log has said last: that this thread waits for itself, and when.
    told: Option<(Arc<str>, Time)>,
}

impl Taken {
    fn forget_ended(&mut self) {
        self.leases.retain(|taken| is_live(&taken.lease));
        self.room = LEAST_ROOM.max(self.leases.len() * 2);
    }
}

/// This many entries are never looked through, so a thread that takes and releases locks seldom
/// does.
const LEAST_ROOM: usize = 16;
/// How long the log does not say again that a thread waits for a name that it took.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Of a thread that holds more locks than this, a wait searches only the newest.
const MOST_SEARCHED: usize = 1024;

/// This thread took the lease for a guard. The guard may go to another thread, which nobody sees.
///
/// Every lock that is taken comes here: it costs an entry of two words, and no allocation unless a
/// thread holds more locks than ever before. An entry keeps the memory of its lease until the entry
/// is forgotten.
pub(crate) fn note_taken(engine: EngineId, lease: &Arc<HeldLease>) {
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
        taken.leases.push(TakenLease {
            engine,
            lease: Arc::downgrade(lease),
        });
    });
}

/// The newest lease of this name that this thread took and still has, if a wait for the name that
/// begins now is for such leases. `waits_for` decides, by all their permits. For a name again only after
/// a minute: the guard may be with another thread, and this one wait for it again and again.
pub(crate) fn first_wait_for_own(
    engine: EngineId,
    name: &Arc<str>,
    now: Time,
    waits_for: impl Fn(u64) -> bool,
) -> Option<Arc<HeldLease>> {
    let found = TAKEN.try_with(|taken| {
        let mut taken = taken.try_borrow_mut().ok()?;
        if taken.leases.len() <= MOST_SEARCHED {
            taken.forget_ended();
        }
        let told = taken.told.as_ref();
        let is_told = told.is_some_and(|(last, at)| last == name && now < *at + TOLD_FOR);
        let newest = taken.leases.iter().rev().take(MOST_SEARCHED);
        let mut own = newest.filter_map(|taken| {
            let lease = taken.lease.upgrade()?;
            let is_own = taken.engine == engine && lease.request.key.name == *name;
            (is_own && !lease.is_over()).then_some(lease)
        });
        let lease = own.next()?;
        let others: u64 = own.map(|lease| u64::from(lease.permits())).sum();
        let is_news = !is_told && waits_for(u64::from(lease.permits()) + others);
        is_news.then(|| {
            taken.told = Some((Arc::clone(name), now));
            lease
        })
    });
    found.ok().flatten()
}

fn is_live(lease: &Weak<HeldLease>) -> bool {
    lease.upgrade().is_some_and(|lease| !lease.is_over())
}

#[cfg(all(test, feature = "memory"))]
mod tests;
