//! The lines above an engine without threads, for the simulator. As `stepped_engine.rs`, this decides
//! nothing.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::lines::{Line, Lines};
use super::tries::Found;
use super::turns::{Ended, Leaving};
use crate::config::Config;
use crate::engine::{
    Handovers, HeldLease, Next, QueuedWaiter, Request, SteppedEngine, WaiterEntry,
};
use crate::key::Key;
#[cfg(test)]
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::{Call, CallerId, Mode, Token};
use crate::store::clock::Time;
use crate::store::{CallResult, Store};

/// An engine with its lines.
pub(crate) struct SteppedManager {
    engine: SteppedEngine,
    pub(super) lines: Arc<Lines>,
}

/// The place of a line in Redis's queue. No thread waits for it.
pub(crate) struct LinePlace(pub(super) Arc<WaiterEntry>);

/// How a caller ends its guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardEnd {
    Drop,
    Unlock,
    /// It leaves its work half done.
    Abandon,
}

impl GuardEnd {
    fn mode(self) -> Mode {
        match self {
            GuardEnd::Drop | GuardEnd::Unlock => Mode::Used,
            GuardEnd::Abandon => Mode::Unfinished,
        }
    }
}

/// What a try finds in its process.
pub(crate) enum TryStart {
    /// A kept lease, which it has now.
    Holds(Arc<HeldLease>),
    /// Callers of its process have the lock, or wait for it.
    Taken,
    /// It asks Redis, by this request.
    Asks(Arc<Request>),
    /// It asks Redis by its own request, outside of the line.
    AsksAlone,
}

/// A lease of a line, as far as no guard has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeptLease {
    pub(crate) token: Token,
    pub(crate) fence: u64,
    /// How many guards have had it.
    pub(crate) turns: u64,
    pub(crate) keep: Duration,
}

/// The requests that the drop of a guard sends.
pub(crate) struct GuardRelease {
    pub(crate) lease: Arc<HeldLease>,
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
    /// line, and the line's place comes with it if that is to be sent. Else [`SteppedManager::make_way`]
    /// comes first.
    pub(crate) fn register(&self, request: &Arc<Request>) -> (QueuedWaiter, Option<LinePlace>) {
        if !request.may_be_lent() {
            return (self.engine.register(request), None);
        }
        let (member, place) = self.lines.join(request);
        (member, place.map(LinePlace))
    }

    /// The waiter of a try, which may be its line's.
    pub(crate) fn register_alone(&self, request: &Arc<Request>) -> QueuedWaiter {
        self.engine.register(request)
    }

    /// What this manager may do with a grant, as [`Running::handovers`](super::Running::handovers)
    /// says. No thread is started for the subscription, and no name stays cold.
    pub(crate) fn handovers(&self, key: &Key, options: &LockOptions) -> Handovers {
        let (keeper, now) = (&self.lines.keeper, self.engine.engine().now());
        keeper.forget_cold();
        let keep = options.keep_time().filter(|keep| {
            let is_again = keeper.note_asked(&key.name, *keep, now).is_some();
            if is_again {
                self.lines.acquiring.ask_for_proof(key, now);
            }
            is_again && self.lines.hearing.is_heard(now)
        });
        self.lines.handovers(options, keep)
    }

    /// A kept lease, which the caller has now.
    pub(crate) fn lend_kept(&self, key: &Key, options: &LockOptions) -> Option<Arc<HeldLease>> {
        options.keep_time()?;
        let slot = self.lines.known_slot(&key.name)?;
        self.lines.lend_kept(&slot, options)
    }

    /// Ends a kept lease of this name, which would be in the way of a caller.
    pub(crate) fn make_way(&self, key: &Key) {
        self.lines.make_way(&key.name);
    }

    /// A try looks into its line, if its grant is to be kept. [`SteppedManager::end_try`] follows if it
    /// asks Redis.
    pub(crate) fn begin_try_in_line(&self, request: &Arc<Request>) -> TryStart {
        match self.lines.begin_try(request) {
            Found::Turn(turn) => TryStart::Holds(turn),
            Found::Others => TryStart::Taken,
            Found::NoAnswer => TryStart::AsksAlone,
            Found::Nothing => TryStart::Asks(Arc::new(self.lines.request_of_line(request))),
        }
    }

    /// The try has asked Redis. The lease of its guard, if it has one now.
    pub(crate) fn end_try(
        &self,
        request: &Arc<Request>,
        granted: Option<Arc<HeldLease>>,
    ) -> Option<Arc<HeldLease>> {
        self.lines.end_try(request, Ok(granted)).ok().flatten()
    }

    /// The leases that no guard has, and that the next one gets.
    pub(crate) fn kept(&self, key: &Key) -> Vec<KeptLease> {
        let kept = |line: &mut Line| {
            let (tenure, _) = line.kept()?;
            Some(KeptLease {
                token: tenure.lease.token,
                fence: tenure.lease.fence(),
                turns: tenure.turns(),
                keep: tenure.lease.request.keep?,
            })
        };
        let kept = self.lines.with_known_slot(&key.name, |slot| {
            slot.lines().filter_map(|(_, line)| kept(line)).collect()
        });
        kept.unwrap_or_default()
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
    pub(crate) fn begin_release(
        &self,
        lease: &Arc<HeldLease>,
        end: GuardEnd,
    ) -> Option<GuardRelease> {
        if lease.lender().is_none() {
            return Some(GuardRelease {
                lease: Arc::clone(lease),
                place: None,
                call: self.engine.begin_release(lease, end.mode())?,
            });
        }
        let now = self.engine.engine().now();
        let may_keep = end == GuardEnd::Drop && lease.request.keep.is_some();
        match self
            .lines
            .end_turn(lease, None, end.mode(), may_keep, now)
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
