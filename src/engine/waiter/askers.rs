//! The waiters that ask again, name by name: where the store has no queue, nobody else serves them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::engine::waiter::entry::WaiterEntry;
use crate::store::clock::Time;
use crate::sync::Mutex;

/// R21 (asking again): the callers of one manager that pause between two requests for a lock.
///
/// Order of mutexes: a thread that holds a waiter's state never asks for this mutex.
pub(crate) struct Askers(Mutex<HashMap<Arc<str>, AskersOfName>>);

#[derive(Default)]
struct AskersOfName {
    waiters: BTreeMap<u64, Arc<WaiterEntry>>,
    /// How many releases this manager has made since the first of these waiters came.
    releases: u32,
}

/// P9 (nothing starves): some releases of a name, at fixed intervals, wake nobody here. Otherwise
/// the threads of one manager could hand a lock to each other forever, while other processes sit
/// out their pauses.
const PASSED_OVER: u32 = 16;

impl Askers {
    pub(crate) fn new() -> Askers {
        Askers(Mutex::new(HashMap::new()))
    }

    /// Until the result is dropped, a release by this manager may wake the waiter.
    pub(crate) fn enter<'a>(&'a self, waiter: &'a Arc<WaiterEntry>) -> Asking<'a> {
        let mut names = self.0.lock();
        let askers = names.entry(Arc::clone(&waiter.request.key.name));
        let waiters = &mut askers.or_default().waiters;
        waiters.insert(waiter.order(), Arc::clone(waiter));
        Asking {
            askers: self,
            waiter,
        }
    }

    pub(crate) fn are_any(&self, name: &str) -> bool {
        self.0.lock().contains_key(name)
    }

    #[cfg(all(test, feature = "memory"))]
    pub(crate) fn count(&self, name: &str) -> usize {
        let names = self.0.lock();
        names.get(name).map_or(0, |askers| askers.waiters.len())
    }

    /// A lock of this name was released here. The waiter that came first asks at once.
    pub(crate) fn wake_first(&self, name: &str) {
        let first = {
            let mut names = self.0.lock();
            let Some(askers) = names.get_mut(name) else {
                return;
            };
            askers.releases += 1;
            if askers.releases.is_multiple_of(PASSED_OVER) {
                return;
            }
            askers.waiters.values().next().cloned()
        };
        if let Some(waiter) = first {
            // It is due. If its request is under way, that may have come before the release, and
            // the waiter does not pause after it.
            waiter.state.lock().ask_at = Time::from_nanos(0);
            waiter.changed.notify_one();
        }
    }
}

/// A waiter that asks again, for as long as its caller waits.
pub(crate) struct Asking<'a> {
    askers: &'a Askers,
    waiter: &'a Arc<WaiterEntry>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut names = self.askers.0.lock();
        let name = &self.waiter.request.key.name;
        if let Some(askers) = names.get_mut(name) {
            askers.waiters.remove(&self.waiter.order());
            if askers.waiters.is_empty() {
                names.remove(name);
            }
        }
    }
}
