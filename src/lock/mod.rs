//! The kinds of lock. A kind is data for a family of scripts. The engine wins and keeps locks of
//! every kind.

mod multi;
mod mutex;
mod reentrant;
mod rw_lock;
mod semaphore;
mod striped;

use std::sync::Arc;

use crate::engine::{Lease, Request};
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::LockSpec;
use crate::store::clock::Time;
use crate::waiter::Waiter;

pub use multi::{MAX_NAMES, MultiGuard};
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{MAX_PERMITS, Semaphore, SemaphoreGuard};
pub use striped::Striped;

/// A request that may not wait, with the options of the handle.
fn request_to_try(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    let engine = manager.engine();
    engine.config.check_options(&manager.options)?;
    engine.check_family(spec.family)?;
    Ok(Request::new(spec, key, &manager.options))
}

/// A request that may wait, with the options of the handle.
fn request_to_wait(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    manager.engine().config.check_wait(&manager.options)?;
    request_to_try(manager, key, spec)
}

/// Takes the lock. Waits for as long as Redis answers.
fn take(manager: &LockManager, key: Key, spec: LockSpec) -> Result<LockGuard> {
    let request = Arc::new(request_to_wait(manager, key, spec)?);
    loop {
        // A wait without a deadline ends with a grant or an error, never with `None`.
        if let Some(lease) = manager.engine().acquire(&request, &[], Time::NEVER)? {
            return Ok(LockGuard::new(lease, manager.running()));
        }
    }
}

fn try_take(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Option<LockGuard>> {
    let request = Arc::new(request_to_try(manager, key, spec)?);
    Ok(guard(manager, manager.engine().try_acquire(&request)?))
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
    let request = Arc::new(request_to_wait(manager, key, spec)?);
    Ok(guard(
        manager,
        manager.engine().acquire(&request, &[], until)?,
    ))
}

/// Takes a place in the queue, for a waiter that returns the guard of this kind.
fn enqueue<G>(
    manager: &LockManager,
    key: Key,
    spec: LockSpec,
    into_guard: fn(LockGuard) -> G,
) -> Result<Waiter<G>> {
    let request = Arc::new(request_to_wait(manager, key, spec)?);
    let queued = manager.engine().enqueue(&request)?;
    Ok(Waiter::new(queued, manager.running(), into_guard))
}

fn guard(manager: &LockManager, lease: Option<Arc<Lease>>) -> Option<LockGuard> {
    lease.map(|lease| LockGuard::new(lease, manager.running()))
}
