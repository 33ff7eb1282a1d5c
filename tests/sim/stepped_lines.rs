//! The lines above an engine without threads, for the simulator. As `stepped_engine.rs`, this decides
//! nothing.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::lines::Lines;
use super::turns::{Ended, Leaving};
use crate::config::Config;
use crate::engine::{Lease, Next, QueuedWaiter, Request, SteppedEngine, WaiterEntry};
#[cfg(test)]
use crate::memory::Memory;
use crate::script::{Call, CallerId, Mode};
use crate::store::clock::Time;
use crate::store::{CallResult, Store};

/// An engine with its lines.
pub(crate) struct SteppedManager {
    engine: SteppedEngine,
    pub(super) lines: Arc<Lines>,
}

/// The place of a line in Redis's queue. No thread waits for it.
pub(crate) struct LinePlace(pub(super) Arc<WaiterEntry>);

/// The requests that the drop of a guard sends.
pub(crate) struct GuardRelease {
    pub(crate) lease: Arc<Lease>,
    /// The place of the waiters of this process, which is sent first.
    pub(crate) place: Option<LinePlace>,
    pub(crate) call: Call,
}

impl Deref for SteppedManager {
    type Target = SteppedEngine;

    fn deref(&self) -> &SteppedEngine {
        &self.engine
    }
}

impl DerefMut for SteppedManager {
    fn deref_mut(&mut self) -> &mut SteppedEngine {
        &mut self.engine
    }
}

impl SteppedManager {
    pub(crate) fn new(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> SteppedManager {
        SteppedManager::with_lines(SteppedEngine::new(config, store, caller_id))
    }

    #[cfg(test)]
    pub(crate) fn on_memory(memory: &Memory) -> SteppedManager {
        SteppedManager::with_lines(SteppedEngine::on_memory(memory))
    }

    fn with_lines(engine: SteppedEngine) -> SteppedManager {
        let lines = Lines::new(engine.engine());
        SteppedManager { engine, lines }
    }

    /// A waiter whose acquire was not sent yet. If its request allows local hand-overs, it is in the
    /// line, and the line's place comes with it if that is to be sent.
    pub(crate) fn register(&self, request: &Arc<Request>) -> (QueuedWaiter, Option<LinePlace>) {
        if !request.may_be_lent() {
            return (self.engine.register(request), None);
        }
        let (member, place) = self.lines.join(request);
        (member, place.map(LinePlace))
    }

    /// The acquire of a line's place. `None` if nobody wants it any more.
    pub(crate) fn begin_place(&self, place: &LinePlace, now: Time) -> Option<Call> {
        self.engine.begin_acquire(&place.0, now)
    }

    /// Applies the reply to that acquire. Without one, the renewal thread sends it again.
    pub(crate) fn on_place_reply(&self, place: &LinePlace, call: &Call, answer: CallResult) {
        match self.engine.on_acquire_reply(&place.0, call, answer) {
            Next::Wait => {}
            Next::Fail(error) => self.engine.fail(&place.0, error),
            Next::AskAgain | Next::AskLater => self.lines.acquiring.send_in_background(&place.0),
        }
    }

    /// A guard is dropped: what to send, unless the lease is lost, or another thread of the process
    /// has the lock now.
    pub(crate) fn begin_release(&self, lease: &Arc<Lease>) -> Option<GuardRelease> {
        if lease.lender().is_none() {
            return Some(GuardRelease {
                lease: Arc::clone(lease),
                place: None,
                call: self.engine.begin_release(lease)?,
            });
        }
        let now = self.engine.engine().now();
        match self
            .lines
            .end_turn(lease, None, Mode::Used, true, now)
            .ok()?
        {
            Ended::PassedTo(member, turn) => {
                self.lines.on_passed(&member, &turn);
                None
            }
            Ended::Left(Leaving {
                tenure,
                mode,
                place,
                ..
            }) => Some(GuardRelease {
                call: self.engine.release_call(&tenure, mode),
                lease: tenure,
                place: place.map(LinePlace),
            }),
            // The simulator runs one step at a time, so nothing comes between the parts of this one.
            Ended::Kept | Ended::Lost(_) => None,
        }
    }
}
