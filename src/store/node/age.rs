//! Which connections of a node may still be used. They are retired by their age, many in one step, also
//! while threads use them.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::stream::Stream;
use crate::error::Step;
use crate::store::StoreFault;

/// The age of a connection: the steps that had been taken when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Age {
    node: u64,
    pool: u64,
}

#[derive(Default)]
pub(super) struct Ages {
    /// Older connections are no longer used. One step retires them all: the lanes', the renewal
    /// thread's and the subscription (R17, subscription).
    node: AtomicU64,
    /// The same for the lanes alone: connections that were idle together are closed together.
    pool: AtomicU64,
    /// The sockets of all connections, for [`Ages::end`].
    sockets: Mutex<Vec<Weak<Stream>>>,
}

/// The age of a node that has ended.
const ENDED: u64 = u64::MAX;

impl Ages {
    /// The age of a connection that is opened now.
    pub(super) fn now(&self) -> Age {
        Age {
            node: self.node.load(Ordering::Acquire),
            pool: self.pool.load(Ordering::Acquire),
        }
    }

    /// Whether connections of this age must no longer be used.
    pub(super) fn is_retired(&self, age: Age) -> bool {
        age.node != self.now().node
    }

    /// Whether a lane must look whether its connection of this age is still open.
    pub(super) fn is_retired_from_pool(&self, age: Age) -> bool {
        age != self.now()
    }

    /// The age of a lane's connection that was not closed with others of its age.
    pub(super) fn still_open(&self, age: Age) -> Age {
        let pool = self.now().pool;
        Age { pool, ..age }
    }

    pub(super) fn retire(&self, age: Age) {
        step(&self.node, age.node);
    }

    pub(super) fn retire_from_pool(&self, age: Age) {
        step(&self.pool, age.pool);
    }

    /// Closes all connections, also those that threads use just now. The node opens no other.
    pub(super) fn end(&self) {
        self.node.store(ENDED, Ordering::Release);
        let sockets = std::mem::take(&mut *self.sockets.lock());
        for socket in sockets.iter().filter_map(Weak::upgrade) {
            socket.close();
        }
    }

    pub(super) fn check_not_ended(&self) -> Result<(), StoreFault> {
        if self.now().node == ENDED {
            return Err(StoreFault::unavailable(
                Step::Connect,
                "another server took over from this one",
            ));
        }
        Ok(())
    }

    /// Keeps the socket of a new connection for [`Ages::end`].
    pub(super) fn keep_socket(&self, socket: Weak<Stream>) -> Result<(), StoreFault> {
        let mut sockets = self.sockets.lock();
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(socket);
        drop(sockets);
        // The node may have ended while this one was opened.
        self.check_not_ended()
    }
}

/// Takes a step, once for all threads that have seen the same age.
fn step(age: &AtomicU64, seen: u64) {
    let _ = age.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire);
}
