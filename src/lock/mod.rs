//! The kinds of lock. A kind is data for a family of scripts. The engine wins and keeps locks of
//! every kind.

mod group;
mod handle;
mod multi;
mod mutex;
mod reentrant;
mod rw_lock;
mod semaphore;

use std::sync::Arc;

use crate::engine::{Engine, Request};
use crate::error::Result;
use crate::key::Key;
use crate::manager::LockManager;
use crate::options::LockOptions;
use crate::script::LockSpec;
use crate::stats::Count;

pub use multi::MultiGuard;
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rw_lock::{ReadGuard, RwLock};
pub use semaphore::{Semaphore, SemaphoreGuard};

/// A request that may not wait, with the options of the handle.
fn request_to_try(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    check_options(manager, spec)?;
    make_request(manager, key, spec, Request::new)
}

/// Every call that takes a lock comes by here first, and so finds out whether this is a forked child.
fn make_request(
    manager: &LockManager,
    key: Key,
    spec: LockSpec,
    make: impl FnOnce(LockSpec, Key, &LockOptions, u32) -> Request,
) -> Result<Request> {
    let process = manager.engine().life().process()?;
    let request = make(spec, key, &manager.options, process);
    Ok(request.asked_at(manager.engine().now()))
}

fn check_options(manager: &LockManager, spec: LockSpec) -> Result<()> {
    let engine = manager.engine();
    engine.config().check_options(&manager.options)?;
    engine.client().check_family(spec.family)?;
    manager
        .running()
        .check_options(spec.family, &manager.options)
}

/// A request that may wait, with the options of the handle.
fn request_to_wait(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    manager.engine().config().check_wait(&manager.options)?;
    request_to_try(manager, key, spec)
}

/// A request that waits for this lock alone, with local hand-overs if the options allow them.
fn request_for_one(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Arc<Request>> {
    let checked = manager.engine().config().check_wait(&manager.options);
    checked.map_err(|error| error.about(&key.name))?;
    // In a forked child another thread of the parent may have had the mutexes behind the next line.
    manager.engine().life().process()?;
    let handovers = manager.running().handovers(&key, &manager.options);
    check_options(manager, spec).map_err(|error| error.about(&key.name))?;
    make_request(manager, key, spec, |spec, key, options, process| {
        Request::with_handovers(spec, key, options, process, handovers)
    })
    .map(Arc::new)
}

/// A request that does not wait for this lock, with what this manager may do with its grant.
fn request_to_try_one(manager: &LockManager, key: Key, spec: LockSpec) -> Result<Request> {
    // In a forked child another thread of the parent may have had the mutexes behind the next line.
    manager.engine().life().process()?;
    let running = manager.running();
    let handovers = running.handovers_of_try(&key, &manager.options);
    check_options(manager, spec).map_err(|error| error.about(&key.name))?;
    make_request(manager, key, spec, |spec, key, options, process| {
        Request::with_handovers(spec, key, options, process, handovers)
    })
}

/// Counts a request that ended without a lock. A guard counts itself.
fn count_end<T>(engine: &Engine, end: &Result<Option<T>>) {
    match end {
        Ok(Some(_)) => {}
        Ok(None) => engine.client().on_not_granted(Count::TimedOut),
        Err(error) => engine.client().on_acquire_error(error),
    }
}
