//! The handle that every kind of lock wraps, and the verbs that all kinds share.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{count_end, request_for_one, request_to_try_one};
use crate::engine;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::Key;
use crate::lease::Lease;
use crate::local::PinnedSlot;
use crate::manager::LockManager;
use crate::script::{Family, LockSpec};
use crate::store::clock::Time;
use crate::waiter::Waiter;

/// A name of a manager. `Clone` and `'static`.
#[derive(Clone)]
pub(super) struct Handle {
    manager: LockManager,
    key: std::result::Result<Key, RefusedName>,
    /// The slot of a name that is kept.
    slot: OnceLock<PinnedSlot>,
}

/// A name that is not allowed. The verbs say why.
#[derive(Clone)]
struct RefusedName {
    name: Arc<str>,
    why: Error,
}

/// Nobody changes the error.
impl UnwindSafe for RefusedName {}
impl RefUnwindSafe for RefusedName {}

impl Handle {
    pub(super) fn new(manager: &LockManager, name: &str) -> Handle {
        let key = manager.key(name).map_err(|why| RefusedName {
            name: name.into(),
            why,
        });
        Handle {
            manager: manager.clone(),
            key,
            slot: OnceLock::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        match &self.key {
            Ok(key) => &key.name,
            Err(RefusedName { name, .. }) => name,
        }
    }

    pub(super) fn manager(&self) -> &LockManager {
        &self.manager
    }

    pub(super) fn key(&self) -> Result<Key> {
        match &self.key {
            Ok(key) => Ok(key.clone()),
            Err(RefusedName { why, .. }) => Err(why.clone()),
        }
    }

    /// The name as this kind of lock.
    pub(super) fn with_spec(&self, spec: LockSpec) -> Wanted<'_> {
        Wanted {
            manager: &self.manager,
            name: match &self.key {
                Ok(key) => Name::Key(key),
                Err(RefusedName { why, .. }) => Name::Refused(why),
            },
            slot: Some(&self.slot),
            spec,
        }
    }
}

/// A name as a kind of lock, for one call. The verbs that use no handle make it without one.
pub(super) struct Wanted<'a> {
    manager: &'a LockManager,
    name: Name<'a>,
    slot: Option<&'a OnceLock<PinnedSlot>>,
    spec: LockSpec,
}

/// A kept lock needs no key. So a name that is no key yet becomes one only when Redis is asked.
enum Name<'a> {
    Text(&'a str),
    Key(&'a Key),
    Refused(&'a Error),
}

impl<'a> Wanted<'a> {
    pub(super) fn mutex(manager: &'a LockManager, name: &'a str) -> Wanted<'a> {
        Wanted {
            manager,
            name: Name::Text(name),
            slot: None,
            spec: LockSpec::MUTEX,
        }
    }

    /// Waits for as long as Redis answers.
    pub(super) fn lock(self) -> Result<LockGuard> {
        if let Some(guard) = self.kept() {
            return Ok(guard);
        }
        let request = request_for_one(self.manager, self.key()?, self.spec)?;
        loop {
            let end = self.manager.running().acquire(&request, Time::NEVER);
            // A wait without a deadline ends with a grant or an error, never with `None`.
            if let Some(guard) = guard(self.manager, end)? {
                return Ok(guard);
            }
        }
    }

    pub(super) fn try_lock(self) -> Result<Option<LockGuard>> {
        if let Some(guard) = self.kept() {
            return Ok(Some(guard));
        }
        let request = request_to_try_one(self.manager, self.key()?, self.spec)?;
        let end = self.manager.running().try_acquire(&Arc::new(request));
        guard(self.manager, end)
    }

    pub(super) fn try_lock_for(self, at_most: Duration) -> Result<Option<LockGuard>> {
        if at_most.is_zero() {
            return self.try_lock();
        }
        let until = self.manager.engine().now() + at_most;
        if let Some(guard) = self.kept() {
            return Ok(Some(guard));
        }
        let request = request_for_one(self.manager, self.key()?, self.spec)?;
        guard(
            self.manager,
            self.manager.running().acquire(&request, until),
        )
    }

    /// Takes a place in the queue, for a waiter that returns the guard of this kind.
    pub(super) fn enqueue<G>(self, into_guard: fn(LockGuard) -> G) -> Result<Waiter<G>> {
        let request = request_for_one(self.manager, self.key()?, self.spec)?;
        let engine = self.manager.engine();
        let queued = self.manager.running().enqueue(&request);
        let queued = queued.inspect_err(|error| engine.client().on_acquire_error(error))?;
        Ok(Waiter::new(queued, self.manager.running(), into_guard))
    }

    /// The guard of a lock that this manager has kept for the next one.
    fn kept(&self) -> Option<LockGuard> {
        let name = match self.name {
            Name::Text(name) => name,
            Name::Key(key) => &key.name,
            Name::Refused(_) => return None,
        };
        if self.spec.family != Family::Mutex {
            return None;
        }
        let (manager, running) = (self.manager, self.manager.running());
        let lent = running.lend_kept(name, &manager.options, self.slot)?;
        Some(LockGuard {
            lease: Lease::of_kept(lent, running),
        })
    }

    fn key(&self) -> Result<Key> {
        match self.name {
            Name::Text(name) => self.manager.key(name),
            Name::Key(key) => Ok(key.clone()),
            Name::Refused(why) => Err(why.clone()),
        }
    }
}

/// The guard of a granted lease. Counts how the request ended.
fn guard(
    manager: &LockManager,
    end: Result<Option<Arc<engine::HeldLease>>>,
) -> Result<Option<LockGuard>> {
    count_end(manager.engine(), &end);
    Ok(end?.map(|lease| LockGuard {
        lease: Lease::new(lease, manager.running()),
    }))
}
