//! What is taken: the kinds of lock. A kind is data for a family of scripts; how it is won and kept is the
//! engine's.

mod all;
mod mutex;
mod reentrant;
mod striped;

use crate::engine::Request;
use crate::error::Result;
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::Family;

pub use all::{MAX_NAMES, MultiGuard};
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use striped::Striped;

/// One wish for a lock, on the handle's terms.
fn request(manager: &LockManager, key: Key) -> Result<Request> {
    manager.engine().config.check_options(&manager.options)?;
    Ok(Request::new(Family::Mutex, key, &manager.options))
}

/// The same, if it is to wait.
fn request_to_wait(manager: &LockManager, key: Key) -> Result<Request> {
    manager.engine().config.check_wait(&manager.options)?;
    request(manager, key)
}
