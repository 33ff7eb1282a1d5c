//! The life of a manager in its process: whether it is open, its threads and their end, and whether
//! this is a forked child.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::error::{Error, Result};
use crate::logging::{self, Logger};
use crate::loss::Loss;
use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::sync::{Condvar, Mutex};

/// How long the end of a manager waits for the program's logger.
const LOG_FLUSH: Duration = Duration::from_secs(1);

pub(crate) struct Life {
    clock: Clock,
    /// The process that made the manager. A forked child has another id.
    process: u32,
    /// Tells that child from its parent.
    fork: forkguard::Guard,
    /// No new locks: the manager was shut down or stopped, or its renewal thread has ended.
    closed: AtomicBool,
    stopping: AtomicBool,
    threads: Mutex<Vec<Thread>>,
    /// With `guard_dropped`: a shutdown waits for the last guard.
    drained: Mutex<()>,
    guard_dropped: Condvar,
    /// A disconnected channel, for forked children.
    never: Receiver<Loss>,
    /// A disconnected channel, for waiters that never wait again.
    disconnected: Receiver<()>,
}

struct Thread {
    handle: JoinHandle<()>,
    /// Disconnected when the thread is over.
    over: Receiver<()>,
}

impl Life {
    pub(super) fn new(clock: Clock) -> Life {
        Life {
            clock,
            process: std::process::id(),
            fork: forkguard::new(),
            closed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            drained: Mutex::new(()),
            guard_dropped: Condvar::new(),
            never: bounded(0).1,
            disconnected: bounded(0).1,
        }
    }

    /// [`Error::Closed`] after a shutdown.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// From now on the manager gives out no locks.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// [`Error::Closed`] in a forked child, which has none of the threads.
    pub(super) fn check_fork(&self) -> Result<()> {
        if self.is_forked() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// The id of this process. [`Error::Closed`] in a forked child.
    pub(crate) fn process(&self) -> Result<u32> {
        self.check_fork().map(|()| self.process)
    }

    /// Reads a word that a handler of `fork` changes in the child. In a child only the thread that
    /// forked runs on, and no call of this crate forks. So a public call looks once, when it begins.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.clone().detected_fork()
    }

    /// The channel for losses in a forked child: disconnected, and reached without a mutex.
    pub(crate) fn never(&self) -> &Receiver<Loss> {
        &self.never
    }

    /// The channel of a waiter that has returned its guard, or in a forked child: disconnected, and
    /// reached without a mutex.
    pub(crate) fn disconnected(&self) -> &Receiver<()> {
        &self.disconnected
    }

    /// The guard is not counted any more.
    pub(super) fn on_guard_dropped(&self) {
        // Pairs with the fence in `await_guards`. Either a shutdown does not count this guard, or
        // this thread sees `closed` and wakes it.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Acquire) {
            self.wake_sleepers();
        }
    }

    /// After `close`: waits until no guard is held, until `until` at most.
    pub(super) fn await_guards(&self, are_held: impl Fn() -> bool, until: Time) {
        // Pairs with the fence in `on_guard_dropped`.
        fence(Ordering::SeqCst);
        let mut drained = self.drained.lock();
        while are_held() && self.clock.now() < until {
            self.clock.wait(&self.guard_dropped, &mut drained, until);
        }
    }

    /// Has the callers that shut the manager down look again.
    pub(super) fn wake_sleepers(&self) {
        // A thread holds the mutex from its look at the clock to its sleep. After this it sleeps,
        // and is woken below.
        drop(self.drained.lock());
        self.guard_dropped.notify_all();
    }

    pub(super) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let (alive, over) = bounded::<()>(0);
        let body = self.clock.attended(move || {
            let _alive = alive;
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                log::error!(logger: Logger, "a thread of fairlock panicked");
            }
        });
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| StoreFault::no_thread(error).into_error(None, Duration::ZERO))?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.handle.is_finished());
        threads.push(Thread { handle, over });
        Ok(())
    }

    /// The threads are to end.
    pub(super) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until all threads have ended, until `until` at most.
    pub(super) fn join_threads(&self, until: Time) {
        let threads = std::mem::take(&mut *self.threads.lock());
        let here = thread::current().id();
        for thread in threads {
            // A callback may drop the last handle. A thread that joins itself never ends.
            if thread.handle.thread().id() == here {
                continue;
            }
            let _ = self.clock.receive(&thread.over, until);
            if thread.handle.is_finished() {
                let _ = thread.handle.join();
            }
        }
        logging::flush((until - self.clock.now()).min(LOG_FLUSH));
    }
}
