//! How the renewal thread finds threads that wait for a lock that they took themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{Thread, ThreadId};

use super::thread::RenewalThread;
use crate::engine::lease::Lease;
use crate::engine::waiter::WaiterEntry;

impl RenewalThread {
    /// Warns of each of these waiters, all of one name, whose thread took what it waits for.
    ///
    /// The lease is renewed for as long as its guard lives, so such a wait may never end. It may
    /// also be right, if another thread has the guard by now: so this is a warning, not an error.
    pub(super) fn warn_of_self_waits(&mut self, waiters: &[Arc<WaiterEntry>]) {
        let asleep: Vec<(Thread, &Arc<WaiterEntry>)> = waiters
            .iter()
            .filter_map(|waiter| Some((waiter.state.lock().take_sleeper()?, waiter)))
            .collect();
        let Some((_, first)) = asleep.first() else {
            return;
        };
        let mut taken: HashMap<ThreadId, Vec<&Lease>> = asleep
            .iter()
            .map(|(thread, _)| (thread.id(), Vec::new()))
            .collect();
        let name = &first.request.key.name;
        // Each wait is looked at once, so the look must see every lease. Those that were taken since
        // this turn of the loop began are not scheduled yet, and those that are being renewed are
        // not scheduled either.
        let now = self.engine.now();
        self.take_in_leases(now);
        let scheduled = self.leases.iter().map(|scheduled| &*scheduled.lease);
        for lease in scheduled.chain(self.in_hand.iter().map(|lease| &**lease)) {
            if let Some(thread) = lease.taken_by()
                && let Some(leases) = taken.get_mut(&thread)
                && lease.request.key.name == *name
                && lease.is_held(now)
                && leases.iter().all(|other| other.token != lease.token)
            {
                leases.push(lease);
            }
        }
        for (thread, waiter) in &asleep {
            let leases = &taken[&thread.id()];
            let permits = leases.iter().map(|l| u64::from(l.permits()));
            if let Some(lease) = leases.first()
                && waiter.request.spec.must_wait_for(permits.sum())
                && still_waits(waiter)
            {
                warn_of(thread, waiter, lease);
            }
        }
    }
}

/// Notes that the waiter's thread is warned, unless its wait has ended. It may have been granted
/// since the first look. Then the lease that was found is its own grant.
fn still_waits(waiter: &WaiterEntry) -> bool {
    let mut state = waiter.state.lock();
    let waits = !state.is_ended();
    state.is_warned |= waits;
    waits
}

fn warn_of(thread: &Thread, waiter: &WaiterEntry, lease: &Lease) {
    log::warn!(
        "thread {:?} waits for {:?} (label {:?}), which it took itself (label {:?}, fence {}) and which is still held: drop that guard first, or use reentrant_mutex",
        thread.name().unwrap_or("-"),
        waiter.request.key.name,
        waiter.request.label(),
        lease.request.label(),
        lease.fence
    );
}
