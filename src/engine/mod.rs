//! How a lock is won and kept. The engine knows no kind of lock and no topology.
//!
//! Its three nouns have a folder each. A *waiter* waits in the queue of a lock. A *lease* is a lock
//! that this process holds. The *background* is the renewal thread, which keeps both.
//!
//! | file | what |
//! |---|---|
//! | `acquire` | THE MAIN LOOP of a caller: try, enqueue, wait, cancel |
//! | `attempt` | one acquire that may not wait |
//! | `asking` | the same loop where the store has no queue: ask, pause, ask again |
//! | `multi` | several locks at once, over the same steps |
//! | `vacate` | a name becomes another kind of lock |
//! | `release`, `renew` | how a lease ends, and how it is kept |
//! | `unread_release` | the release of a dropped guard, whose reply others read |
//! | `grants` | a grant becomes known, and finds its waiter |
//! | `request` | what a caller asks for |
//! | `turns` | local hand-overs: the waiters of a line have the lock in turns |
//! | `place` | the place of a line in Redis's queue |
//! | `line` | a line's state machine, and all lines |
//! | `waiter` | the state machine of a waiter, the registry of all, the caller's end |
//! | `lease` | a held lock, its atomic state, and the signal of its loss |
//! | `background` | THE MAIN LOOP of the renewal thread, and its tasks |
//! | `subscription`, `callbacks`, `lifecycle` | the other threads; start and stop |
//!
//! # Legend
//!
//! Comments cite the rules of the protocol, R1 to R22, and the promises to users, P1 to P10.
//! docs/PROTOCOL.md defines the rules, docs/SAFETY.md the promises. The last column names the files
//! that keep them, in `src/engine` unless it says otherwise. The scripts are in `src/script`.
//!
//! | rule | short name | says | kept by |
//! |---|---|---|---|
//! | R1 | registered before sent | every attempt has a new token, in the registry before it is sent | `waiter/registry.rs` |
//! | R2 | served time | liveness is measured in time in which the server served, so an outage ages nobody | the scripts |
//! | R3 | signs of life | a caller's own stamp is fresh before the queue is served | the scripts |
//! | R4 | lost places | a waiter that Redis does not know is enqueued again under a new token, in the old order | `background/waiter_upkeep.rs`, `waiter/state.rs` |
//! | R5 | dated requests | acquire and sync do nothing after the time at which their caller gives up | the scripts, `src/store/anchor.rs` |
//! | R6 | token lifetime | an acquire carries a token for at most one ttl after its first send | `acquire.rs` |
//! | R7 | late copies | a release goes on until no copy of the token's acquire can still take it | `background/token_release.rs`, `background/release_upkeep.rs`, `release.rs` |
//! | R8 | grant during a request | a notice of a grant counts only once the token's request is over | `waiter/state.rs` |
//! | R9 | own lapse | the recorded owner is the owner, lapsed or not; only others see a lapse | the scripts |
//! | R10 | places of the dead | a lapsed lease voids the places of its process, after a grace | the scripts |
//! | R11 | missing keys | a queue that is shorter than its count voids all places in it | the scripts |
//! | R12 | doubtful grants | a grant without a certain deadline is confirmed by a renewal | `waiter/grant_notice.rs`, `waiter/state.rs` |
//! | R13 | unwanted grants | a grant that nobody wants is released, whichever way it became known | `grants.rs`, `release.rs` |
//! | R14 | release first, then send | a lease ends here before its release is sent, and is not lost after that | `lease/lease.rs`, `release.rs` |
//! | R15 | clock went back | a lease that ends too far in the future is shortened, and not believed; fences do not fall | the scripts, `lease/lease.rs` |
//! | R16 | hold_at_least | a lock stays taken for that time; a fixed lease that may wait is longer than a grant takes to arrive | the scripts, `src/config.rs` |
//! | R17 | subscription | it starts before the first waiter is queued; without it, syncs carry the wait | `subscription.rs`, `acquire.rs` |
//! | R18 | replica acks | if wanted, a grant or an extension counts only when replicas have acknowledged a renewal of it | `src/store/node/acks`, `grants.rs`, `background/waiter_upkeep.rs` |
//! | R19 | dead entries | a waiter that leaves takes its entries along | the scripts |
//! | R20 | write order | a script reads before it writes, so a refusal leaves nothing half done | the scripts, `src/store/node` |
//! | R21 | asking again | where the store has no queue, a waiter asks again after a random pause | `asking.rs`, `waiter/askers.rs` |
//! | R22 | tries among the dead | a try calls the processes that wait, and passes over them if none comes | `attempt.rs`, `multi.rs`, `subscription.rs` |
//!
//! | promise | says | kept by |
//! |---|---|---|
//! | P1 | one holder | `lease`, the scripts |
//! | P2 | rising fences | the scripts |
//! | P3 | first come, first served | the scripts, `background/waiter_upkeep.rs` |
//! | P4 | no lost wake-up | `grants.rs`, `waiter/queued.rs`, `unread_release.rs`, `background/waiter_upkeep.rs` |
//! | P5 | a crash costs one ttl and one check period | the scripts |
//! | P6 | a loss is reported once, and stays | `lease/state.rs`, `lease/lost_signal.rs` |
//! | P7 | one grant for a request | `waiter/registry.rs`, `grants.rs` |
//! | P8 | every call ends | [`Engine::deadlines`], `waiter/queued.rs` |
//! | P9 | nothing starves | [`Engine::at_once`], `background/thread.rs` |
//! | P10 | bad input is refused | `src/config.rs`, `src/key.rs` |

mod acquire;
mod asking;
mod attempt;
mod background;
mod callbacks;
mod grants;
mod lease;
mod lifecycle;
mod line;
mod log_text;
#[cfg(all(test, fairlock_loom))]
mod loom_models;
mod multi;
mod place;
mod release;
mod renew;
mod request;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/stepped_engine.rs"]
mod stepped;
mod subscription;
mod turns;
mod unread_release;
mod vacate;
mod waiter;

use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::Kind;
use crate::loss::Loss;
use crate::script::{Call, CallerId, Outcome};
use crate::stats::{AcquireEnd, Meter, Stats, Traffic};
use crate::store::clock::{Clock, Time};
use crate::store::{Answer, CallResult, ConnectionWait, Deadlines, Service, Store, StoreFault};
use crate::sync::{Condvar, Mutex};
use background::{Command, ScheduledLease, Waker};
use callbacks::Callbacks;
use lifecycle::Thread;
use line::Lines;
use subscription::SubscriptionStatus;
use waiter::{Askers, WaiterRegistry};

pub(crate) use acquire::is_transient;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use attempt::{Attempted, Doubt};
pub(crate) use background::warn_of_drop;
use lease::EngineId;
pub(crate) use lease::{Lease, first_lost};
pub(crate) use lifecycle::EngineHandle;
pub(crate) use release::WantResult;
pub(crate) use request::{LockGroup, Request};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use stepped::{GuardRelease, LinePlace, Next, SteppedEngine, Tasks};
pub(crate) use waiter::{AtDeadline, QueuedWaiter};

/// A panic of a caller leaves nothing half changed here: no foreign code runs under a mutex. So
/// `catch_unwind` takes handles, guards and waiters, as it takes those of `std::sync::Mutex`.
impl RefUnwindSafe for Engine {}
impl RefUnwindSafe for EngineHandle {}
impl RefUnwindSafe for Lease {}
impl RefUnwindSafe for LockGroup {}
impl RefUnwindSafe for waiter::WaiterEntry {}

/// All that the handles, guards, waiters and threads of one manager share.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) store: Box<dyn Store>,
    pub(crate) meter: Meter,
    caller_id: Arc<CallerId>,
    clock: Clock,
    /// The services that the store offers.
    service: Service,
    waiters: WaiterRegistry,
    /// The waiters that hand locks over to each other here.
    lines: Lines,
    /// The waiters that ask again, where the store has no queue.
    askers: Askers,
    /// Commands to the renewal thread.
    intake: Sender<Command>,
    /// New leases, see [`Engine::keep_renewed`]. The renewal thread takes them in when it wakes.
    new_leases: (Sender<ScheduledLease>, Receiver<ScheduledLease>),
    /// A thread holds this while it has taken some of the new leases out.
    dropping_ended: Mutex<()>,
    waker: Arc<Waker>,
    subscription: SubscriptionStatus,
    callbacks: Callbacks,
    /// No new locks: the manager was shut down or stopped, or its renewal thread has ended.
    closed: AtomicBool,
    stopping: AtomicBool,
    /// When the last release was sent, in ns, if it got no reply. Else 0.
    unanswered_since: AtomicU64,
    /// Callers have left replies to others since the renewal thread looked.
    replies_left: AtomicBool,
    /// A disconnected channel, for forked children.
    never: Receiver<Loss>,
    /// With `guard_dropped`: a shutdown waits for the last guard.
    drained: Mutex<()>,
    guard_dropped: Condvar,
    threads: Mutex<Vec<Thread>>,
    /// The process that made the engine. A forked child has another id.
    process: u32,
}

impl Engine {
    /// [`Error::Closed`] after a shutdown.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// [`Error::Closed`] in a forked child, which has none of the threads.
    fn check_fork(&self) -> Result<()> {
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

    /// This is a system call. So a public call looks once, when it begins: in a child only the
    /// thread that forked runs on, and no call of this crate forks.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// The engine lives in one place, so its address tells it from others.
    pub(crate) fn id(&self) -> EngineId {
        EngineId(std::ptr::from_ref(self).addr())
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn at(&self, instant: Instant) -> Time {
        self.clock.at(instant)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.publish_traffic();
        self.meter.read(self.traffic().unwrap_or_default())
    }

    /// The store's counts. `None` in a forked child: another thread of the parent may have held a
    /// mutex of the store or of the recorder at the fork.
    fn traffic(&self) -> Option<Traffic> {
        (!self.is_forked()).then(|| self.store.traffic())
    }

    /// Emits what the store has counted. No thread may call this with a mutex held.
    pub(crate) fn publish_traffic(&self) {
        self.meter.publish(|| self.traffic());
    }

    /// A caller's request for a lock ends without it.
    pub(crate) fn on_not_granted(&self, end: AcquireEnd) {
        // As in `traffic`.
        if self.is_forked() {
            return;
        }
        self.meter.on_not_granted(end);
        // No lease wakes the renewal thread, which publishes otherwise.
        self.publish_traffic();
    }

    /// A caller's request for a lock ends with this error.
    pub(crate) fn on_acquire_error(&self, error: &Error) {
        match error {
            // Nothing was asked for.
            Error::Config { .. } => {}
            Error::Closed => self.on_not_granted(AcquireEnd::Cancelled),
            _ => self.on_not_granted(AcquireEnd::Failed),
        }
    }

    /// Runs calls that take no lock, each on its name's lane. Blocks for at most two command
    /// timeouts.
    pub(crate) fn ask(&self, calls: &[Call]) -> Result<Vec<Result<Answer>>> {
        self.check_fork()?;
        let started = self.now();
        let results = self.store.run(calls, self.deadlines(started, Time::NEVER));
        self.publish_traffic();
        let read = calls
            .iter()
            .zip(results)
            .map(|(call, result)| match result.answer {
                Ok(answer) => {
                    self.deliver_all(call, &answer);
                    match &answer.reply.outcome {
                        outcome @ Outcome::Kind(_) => Err(self.unexpected_reply(call, outcome)),
                        _ => Ok(answer),
                    }
                }
                Err(fault) => Err(self.error(fault, Some(&call.key), self.now() - started)),
            });
        Ok(read.collect())
    }

    /// The public error for a call about `key` that took `waited`. It names the server.
    pub(crate) fn error(&self, fault: StoreFault, key: Option<&Key>, waited: Duration) -> Error {
        let error = fault.into_error(key, waited);
        // A fault that a node did not see, such as a lack of time, is about the key's server.
        error.at(|| self.store.server_of(key?))
    }

    /// One page of the records that match: the next cursor (0: this was the last page) and the
    /// keys.
    pub(crate) fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>)> {
        self.check_fork()?;
        let started = self.now();
        self.store
            .scan(cursor, pattern)
            .map_err(|fault| fault.into_error(None, self.now() - started))
    }

    /// The cursor of the pages behind those that failed with the page at this cursor; 0: none.
    pub(crate) fn scan_on(&self, failed: u64) -> u64 {
        // Another thread of the parent may have had a mutex of the store at the fork.
        if self.is_forked() {
            return 0;
        }
        self.store.scan_on(failed)
    }

    /// An error for a reply of another verb, or of a record of another kind.
    fn unexpected_reply(&self, call: &Call, outcome: &Outcome) -> Error {
        if let Outcome::Kind(kind) = outcome {
            return wrong_kind(call, kind).at(|| self.store.server_of(&call.key));
        }
        Error::Server {
            lock: Some(call.key.name.clone()),
            server: self.store.server_of(&call.key),
            code: "PROTOCOL".to_owned(),
            message: format!("unexpected reply: {}", outcome.word()),
        }
    }

    /// P8 (every call ends): one command timeout for a connection and one for the reply. Past
    /// `until` half a timeout for the connection, and one in all.
    fn deadlines(&self, now: Time, until: Time) -> Deadlines {
        let timeout = self.config.command_timeout;
        Deadlines {
            connection: ConnectionWait::Until((now + timeout).min(until + timeout / 2)),
            reply_by: (now + timeout * 2).min(until + timeout),
        }
    }

    /// P9 (nothing starves): only a connection that is open now, so the caller does not wait until
    /// one is opened.
    fn at_once(&self, now: Time) -> Deadlines {
        Deadlines {
            connection: ConnectionWait::Never,
            reply_by: now + self.config.command_timeout,
        }
    }

    fn send_to_background(&self, command: Command) {
        // The receiver lives as long as the renewal thread. After its end nothing is left to
        // command.
        let _ = self.intake.send(command);
        self.waker.wake();
    }

    /// The channel for losses in a forked child: disconnected, and reached without a mutex.
    pub(crate) fn never(&self) -> &Receiver<Loss> {
        &self.never
    }
}

/// The result of the one call that was run.
fn single_result(mut results: Vec<CallResult>) -> CallResult {
    results
        .pop()
        .unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
}

fn wrong_kind(call: &Call, kind: &str) -> Error {
    let lock = call.key.name.clone();
    let is = Kind::from_record(kind);
    let asked = Kind::from_record(&call.spec.kind());
    if is == asked {
        let message = format!("the record is {kind}, which is not this version's protocol");
        return Error::Server {
            lock: Some(lock),
            server: None,
            code: "WRONGVERSION".to_owned(),
            message,
        };
    }
    Error::WrongKind { lock, is, asked }
}
