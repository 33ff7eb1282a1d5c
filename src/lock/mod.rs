//! The kinds of lock. A kind is data for a family of scripts. The engine wins and keeps locks of
//! every kind.

mod multi;
mod mutex;
mod reentrant;
mod rw_lock;
mod semaphore;
mod striped;

use std::sync::Arc;

use crate::engine::{Engine, Lease, Request};
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::stats::AcquireEnd;
use crate::store::clock::Time;
use crate::waiter::Waiter;

pub use multi::{MAX_NAMES, MultiGuard};
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{MAX_PERMITS, Semaphore, SemaphoreGuard};
pub use striped::Striped;

/// A request that may not wait, with the options of the handle. Every call that takes a lock makes
/// one first, and so finds out whether this is a forked child.
fn request_to_try(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    check_options(manager, spec)?;
    let process = manager.engine().process()?;
    let request = Request::new(spec, key, &manager.options, process);
    Ok(request.asked_at(manager.engine().now()))
}

fn check_options(manager: &LockManager, spec: LockSpec) -> Result<()> {
    let engine = manager.engine();
    engine.config.check_options(&manager.options)?;
    engine.check_family(spec.family)?;
    engine.check_local_handovers(spec.family, &manager.options)
}

/// A request that may wait, with the options of the handle.
fn request_to_wait(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    manager.engine().config.check_wait(&manager.options)?;
    request_to_try(manager, key, spec)
}

/// A request that waits for this lock alone, in a line if the options allow local hand-overs.
fn request_for_one(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Arc<Request>> {
    manager.engine().config.check_wait(&manager.options)?;
    check_options(manager, spec)?;
    let process = manager.engine().process()?;
    let request = Request::in_line(spec, key, &manager.options, process);
    Ok(Arc::new(request.asked_at(manager.engine().now())))
}

/// Takes the lock. Waits for as long as Redis answers.
fn take(manager: &LockManager, key: Key, spec: LockSpec) -> Result<LockGuard> {
    let request = request_for_one(manager, key, spec)?;
    loop {
        // A wait without a deadline ends with a grant or an error, never with `None`.
        if let Some(guard) = guard(
            manager,
            manager.engine().acquire(&request, &[], Time::NEVER),
        )? {
            return Ok(guard);
        }
    }
}

fn try_take(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Option<LockGuard>> {
    let request = Arc::new(request_to_try(manager, key, spec)?);
    guard(manager, manager.engine().try_acquire(&request))
}

fn take_until(
    manager: &LockManager,
    key: Key,
    spec: LockSpec,
    until: Time,
) -> Result<Option<LockGuard>> {
    if until <= manager.engine().now() {
        return try_take(manager, key, spec);
    }
    let request = request_for_one(manager, key, spec)?;
    guard(manager, manager.engine().acquire(&request, &[], until))
}

/// Takes a place in the queue, for a waiter that returns the guard of this kind.
fn enqueue<G>(
    manager: &LockManager,
    key: Key,
    spec: LockSpec,
    into_guard: fn(LockGuard) -> G,
) -> Result<Waiter<G>> {
    let request = request_for_one(manager, key, spec)?;
    let engine = manager.engine();
    let queued = engine.enqueue(&request);
    let queued = queued.inspect_err(|error| engine.on_acquire_error(error))?;
    Ok(Waiter::new(queued, manager.running(), into_guard))
}

/// The guard of a granted lease. Counts how the request ended.
fn guard(manager: &LockManager, end: Result<Option<Arc<Lease>>>) -> Result<Option<LockGuard>> {
    count_end(manager.engine(), &end);
    Ok(end?.map(|lease| LockGuard::new(lease, manager.running())))
}

/// Counts a request that ended without a lock. A guard counts itself.
fn count_end<T>(engine: &Engine, end: &Result<Option<T>>) {
    match end {
        Ok(Some(_)) => {}
        Ok(None) => engine.on_not_granted(AcquireEnd::TimedOut),
        Err(error) => engine.on_acquire_error(error),
    }
}
