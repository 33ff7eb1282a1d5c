//! The life of an engine: its start, its threads, its end.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::background::Command;
use crate::engine::background::RenewalThread;
use crate::engine::callbacks::Callbacks;
use crate::engine::subscription::{self, SubscriptionStatus};
use crate::engine::waiter::WaiterRegistry;
use crate::error::{Error, Result, Step};
use crate::script::CallerId;
use crate::stats::Counters;
use crate::store::clock::{Sleepers, Time};
use crate::store::{Store, StoreFault};
use crate::sync::{Condvar, Mutex};

pub(super) struct Thread {
    handle: JoinHandle<()>,
    /// Disconnected when the thread is over.
    over: Receiver<()>,
}

/// Wakes the renewal thread, but only if it would sleep for too long.
pub(super) struct Waker {
    slot: Sender<()>,
    /// Until when it sleeps, in ns; 0 while it is awake and will look at the intake anyway.
    asleep_until: AtomicU64,
}

impl Waker {
    pub(super) fn wake(&self) {
        // A full slot means that it will wake anyway.
        let _ = self.slot.try_send(());
    }

    /// To be called after something due at `due` was put into the intake.
    pub(super) fn wake_if_late_for(&self, due: Time) {
        fence(Ordering::SeqCst);
        if due.as_nanos() < self.asleep_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// After this, the intake must be looked at once more before sleeping.
    pub(super) fn publish(&self, until: Time) {
        self.asleep_until.store(until.as_nanos(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// Keeps an engine running: the last one to go stops it. Threads never hold one.
pub(crate) struct EngineHandle(Arc<Engine>);

impl EngineHandle {
    pub(crate) fn start(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> Result<EngineHandle> {
        let (engine, renewal) = Engine::new(config, store, caller_id);
        let sleepers: Weak<dyn Sleepers> = Arc::downgrade(&engine) as _;
        engine.clock.on_jump(sleepers);
        engine.spawn("fairlock-renewal", move || renewal.run_to_the_end())?;
        Ok(EngineHandle(engine))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Sleepers for Engine {
    fn wake_all(&self) -> Receiver<Infallible> {
        for waiter in self.waiters.all() {
            drop(waiter.state.lock());
            waiter.changed.notify_all();
        }
        self.subscription.wake();
        drop(self.drained.lock());
        self.guard_dropped.notify_all();
        let (hold, settled) = bounded(0);
        self.send_to_background(Command::Settle(hold));
        settled
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.0.is_forked() {
            // The child has none of the threads and must not touch the parent's connections and mutexes.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.0.stop();
    }
}

impl Engine {
    /// An engine, and what its renewal thread is to run.
    pub(super) fn new(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> (Arc<Engine>, RenewalThread) {
        let (intake, received) = unbounded();
        let (slot, bell) = bounded(1);
        let engine = Arc::new(Engine {
            clock: store.clock(),
            config,
            store,
            counters: Counters::default(),
            caller_id,
            waiters: WaiterRegistry::new(),
            intake,
            new_leases: unbounded(),
            dropping_ended: Mutex::new(()),
            waker: Arc::new(Waker {
                slot,
                asleep_until: AtomicU64::new(0),
            }),
            subscription: SubscriptionStatus::new(),
            callbacks: Callbacks::new(),
            closed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            unanswered_since: AtomicU64::new(0),
            never: bounded(0).1,
            drained: Mutex::new(()),
            guard_dropped: Condvar::new(),
            threads: Mutex::new(Vec::new()),
            process: std::process::id(),
        });
        let renewal = RenewalThread::new(Arc::clone(&engine), received, bell);
        (engine, renewal)
    }

    pub(crate) fn guard_made(&self) {
        self.counters.granted.add(1);
        self.counters.held.add(1);
    }

    pub(crate) fn guard_dropped(&self) {
        self.counters.held.sub(1);
        // With the one in shut_down: either the guard is not counted there, or its drop is told.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Acquire) {
            drop(self.drained.lock());
            self.guard_dropped.notify_all();
        }
    }

    /// Refuses new locks, ends waits, waits for guards until `until`, and ends the leases that are left then.
    /// Answers their names.
    pub(crate) fn shut_down(&self, until: Time) -> Result<Vec<Arc<str>>> {
        if self.is_forked() {
            return Err(Error::Closed);
        }
        self.close();
        fence(Ordering::SeqCst);
        let mut drained = self.drained.lock();
        while self.counters.held.get() > 0 && self.now() < until {
            self.clock.wait(&self.guard_dropped, &mut drained, until);
        }
        drop(drained);
        let (tell, told) = bounded(1);
        self.send_to_background(Command::EndAll(tell));
        let deadlines = self.config.command_timeout * 2;
        self.clock
            .receive(&told, self.now() + deadlines)
            .ok_or_else(|| {
                StoreFault::unavailable(
                    Step::Reply,
                    "the renewal thread did not end the leases in time",
                )
                .into_error(None, deadlines)
            })
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for waiter in self.waiters.all() {
            let action = waiter.state.lock().fail(Error::Closed);
            waiter.changed.notify_one();
            self.apply(&waiter, action);
        }
    }

    /// Ends all threads and waits for them, for at most one command timeout: that which the release of the last lock
    /// or place has used up already is a part of it.
    fn stop(&self) {
        self.close();
        self.stopping.store(true, Ordering::Release);
        self.send_to_background(Command::Stop);
        self.subscription.wake();
        self.callbacks.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        let until = match self.unanswered_since.load(Ordering::Acquire) {
            0 => self.now(),
            // A server that lets a release hang will not let the threads end in time either.
            since => Time::from_nanos(since),
        } + self.config.command_timeout;
        if threads
            .iter()
            .any(|t| t.handle.thread().name() == Some(subscription::THREAD))
        {
            self.store.poke(&self.caller_id.channel());
        }
        let here = thread::current().id();
        for thread in threads {
            // Joining oneself would never end: the last handle may go in a callback.
            if thread.handle.thread().id() == here {
                continue;
            }
            let _ = self.clock.receive(&thread.over, until);
            if thread.handle.is_finished() {
                let _ = thread.handle.join();
            }
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let (alive, over) = bounded::<()>(0);
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _alive = alive;
                if catch_unwind(AssertUnwindSafe(body)).is_err() {
                    log::error!("a thread of fairlock panicked; this is a bug");
                }
            })
            .map_err(|e| {
                StoreFault::unavailable(crate::error::Step::Connect, e)
                    .into_error(None, Duration::ZERO)
            })?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.handle.is_finished());
        threads.push(Thread { handle, over });
        Ok(())
    }
}
