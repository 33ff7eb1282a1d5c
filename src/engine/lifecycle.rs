//! The life of an engine: its start, its threads, its end, and who wakes whom.
//!
//! Each sleeping thread is woken by others:
//! - A caller that waits for a grant sleeps on `WaiterEntry::changed`. [`Engine::apply`] wakes it,
//!   and a reply does, if it asked for that.
//! - A caller that shuts the manager down sleeps on `Engine::guard_dropped`. The drop of each guard
//!   wakes it. Then it sleeps on a channel, and the report of `fairlock-renewal` wakes it.
//! - `fairlock-renewal` sleeps on the channel of its [`Waker`]. Commands wake it, and so do leases
//!   that are due before it would wake, and its connection.
//! - `fairlock-listener` sleeps in a read from its socket, or between two attempts to subscribe.
//!   Messages wake it, and so does the engine's stop.
//! - `fairlock-events` sleeps on its channel. Losses of locks with a callback wake it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, unbounded};

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::background::{Command, EndAll, RenewalThread, ShutdownReport, Waker};
use crate::engine::callbacks::Callbacks;
use crate::engine::lease::Lease;
use crate::engine::line::Lines;
use crate::engine::subscription::SubscriptionStatus;
use crate::engine::waiter::{Askers, WaiterRegistry};
use crate::error::{Error, Result, Step};
use crate::script::CallerId;
use crate::stats::Meter;
use crate::store::clock::{Sleepers, Time};
use crate::store::{Store, StoreFault};
use crate::sync::{Condvar, Mutex};

pub(super) struct Thread {
    handle: JoinHandle<()>,
    /// Disconnected when the thread is over.
    over: Receiver<()>,
}

/// Keeps an engine running. The drop of the last handle stops it, so the engine's threads never
/// hold one.
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
        engine.spawn("fairlock-renewal", move || renewal.run_and_survive_panics())?;
        Ok(EngineHandle(engine))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.0.is_forked() {
            // The child has none of the threads, and must not touch the parent's connections and
            // mutexes. So it leaks the engine.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.0.stop();
    }
}

impl Sleepers for Engine {
    fn wake_all(&self) {
        // A thread holds the mutex from its look at the clock to its sleep. Taking the mutex for a
        // moment makes sure that it sleeps, and is woken.
        for waiter in self.waiters.all() {
            drop(waiter.state.lock());
            waiter.changed.notify_all();
        }
        self.subscription.wake();
        drop(self.drained.lock());
        self.guard_dropped.notify_all();
    }

    fn until_idle(&self) -> Receiver<Infallible> {
        let (hold, idle) = bounded(0);
        self.send_to_background(Command::DropWhenIdle(hold));
        idle
    }
}

impl Engine {
    /// An engine, and what its renewal thread runs.
    pub(super) fn new(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> (Arc<Engine>, RenewalThread) {
        let (intake, commands) = unbounded();
        let (waker, woken) = Waker::new();
        let engine = Arc::new(Engine {
            clock: store.clock(),
            service: store.service(),
            config,
            store,
            meter: Meter::new(),
            caller_id,
            waiters: WaiterRegistry::new(),
            lines: Lines::new(),
            askers: Askers::new(),
            intake,
            new_leases: unbounded(),
            dropping_ended: Mutex::new(()),
            waker: Arc::new(waker),
            subscription: SubscriptionStatus::new(),
            callbacks: Callbacks::new(),
            closed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            unanswered_since: AtomicU64::new(0),
            replies_left: AtomicBool::new(false),
            never: bounded(0).1,
            drained: Mutex::new(()),
            guard_dropped: Condvar::new(),
            threads: Mutex::new(Vec::new()),
            process: std::process::id(),
        });
        let renewal = RenewalThread::new(Arc::clone(&engine), commands, woken);
        (engine, renewal)
    }

    pub(crate) fn on_guard_created(&self, lease: &Lease) {
        self.meter
            .on_granted(lease.waited(), lease.request.was_taken());
    }

    pub(crate) fn on_guard_dropped(&self) {
        self.meter.on_guard_dropped();
        // Pairs with the fence in `shut_down`. Either `shut_down` does not count this guard, or
        // this thread sees `closed` and wakes it.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Acquire) {
            drop(self.drained.lock());
            self.guard_dropped.notify_all();
        }
    }

    /// Refuses new locks, ends waits, waits for guards until `until`, and ends the leases that are
    /// left then. Returns when Redis has answered all releases, or three command timeouts later.
    pub(crate) fn shut_down(&self, until: Time) -> Result<ShutdownReport> {
        if self.is_forked() {
            return Err(Error::Closed);
        }
        self.close();
        // Pairs with the fence in `on_guard_dropped`.
        fence(Ordering::SeqCst);
        let mut drained = self.drained.lock();
        while self.meter.held() > 0 && self.now() < until {
            self.clock.wait(&self.guard_dropped, &mut drained, until);
        }
        drop(drained);
        let (report_to, report) = bounded(1);
        let timeout = self.config.command_timeout;
        // One timeout for the exchange in which the renewal thread may be, and one for a
        // connection. When it gives up, it may be in another exchange, and reports after that.
        let now = self.now();
        self.send_to_background(Command::EndAll(EndAll {
            report_by: now + timeout * 2,
            report_to,
        }));
        let limit = timeout * 3;
        self.clock.receive(&report, now + limit).ok_or_else(|| {
            StoreFault::unavailable(
                Step::Reply,
                "the renewal thread did not end the leases in time",
            )
            .into_error(None, limit)
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

    /// Ends all threads and waits for them, for at most one command timeout. If the release of the
    /// last lock or waiter has waited for a reply, its wait counts towards this timeout.
    fn stop(&self) {
        self.close();
        self.stopping.store(true, Ordering::Release);
        self.send_to_background(Command::Stop);
        self.subscription.wake();
        self.callbacks.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        let timeout = self.config.command_timeout;
        let now = self.now();
        let since = match Time::from_nanos(self.unanswered_since.load(Ordering::Acquire)) {
            // A server that does not answer a release will not let the threads end in time either.
            since if now < since + timeout * 2 => since,
            // Every release was answered, or Redis may be back since. The renewal thread needs time
            // for the releases that are open.
            _ => now,
        };
        let until = since + timeout;
        if self.subscription.is_up() {
            // The subscription's thread reads from its socket. A message wakes it.
            self.store.poke(&self.caller_id.channel(), until);
        }
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
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let (alive, over) = bounded::<()>(0);
        let body = self.clock.attended(move || {
            let _alive = alive;
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                log::error!("a thread of fairlock panicked");
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
}
