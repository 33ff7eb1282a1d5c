//! The life of an engine: its start, its threads, its end, and who wakes whom.
//!
//! Each sleeping thread is woken by others:
//! - A caller that waits for a grant sleeps on `WaiterEntry::changed`. Each change of its waiter wakes
//!   it: `Grants` and `Waiting` with a grant, a refusal or the end of the manager, `Acquiring::wake_for`,
//!   and without a queue `Askers`. So does a reply, if it asked for that, and a jump of the clock.
//! - A caller that shuts the manager down sleeps on a condvar of `Life`. The drop of each guard
//!   wakes it. Then it sleeps on a channel, and the report of `fairlock-renewal` wakes it.
//! - `fairlock-renewal` sleeps on the channel of its `Waker`. Commands wake it, and so do leases
//!   that are due before it would wake, and its connection.
//! - `fairlock-listener` sleeps in a read from its socket, or between two attempts to subscribe.
//!   Messages wake it, and so does the engine's stop.
//! - `fairlock-events` sleeps on its channel. Losses of locks with a callback wake it.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, bounded};

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::upkeep::Command;
use crate::error::Result;
use crate::script::CallerId;
use crate::store::Store;
use crate::store::clock::Sleepers;

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
        engine.base.client.clock().on_jump(sleepers);
        let life = &engine.base.life;
        life.spawn("fairlock-renewal", move || renewal.run_and_survive_panics())?;
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
        for waiter in self.base.registry.all() {
            drop(waiter.state.lock());
            waiter.changed.notify_all();
        }
        self.subscription.wake();
        self.base.life.wake_sleepers();
    }

    fn until_idle(&self) -> Receiver<Infallible> {
        let (hold, idle) = bounded(0);
        self.base.upkeep.send(Command::DropWhenIdle(hold));
        idle
    }
}
