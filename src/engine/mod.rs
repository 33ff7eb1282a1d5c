//! How a lock is won and kept. The engine knows no kind of lock, no line and no topology.
//!
//! Each state has one owner: a struct with private fields, whose methods stand in its own file or
//! folder. A [`WaiterEntry`] alone shows its state and its condvar to other rooms: a caller sleeps on
//! them. An owner holds the owners below it, and knows none above. So calls run down this table,
//! as imports do, and `tests/it/tidy` checks it. [`Engine`] wires them.
//!
//! | owner | what |
//! |---|---|
//! | `lifecycle`: [`EngineHandle`] | starts the engine, and stops it when the last handle is dropped |
//! | `background` | THE MAIN LOOP of the renewal thread, and its tasks |
//! | `acquiring` | THE MAIN LOOP of a caller: try, enqueue, wait, cancel; `queued` is the wait, `owned` serves a layer above whose callers share a grant |
//! | `trying` | acquires that may not wait: at one lock, and at several at once; a detached lock is attached |
//! | `subscription` | the thread that receives grants |
//! | `releasing` | a release, until its token is gone; `unread` for a dropped guard, `ahead` behind an acquire; `detach` passes the lock on |
//! | `names` | acquires, which may vacate a name of another kind; deletes and inspections |
//! | `base` | a list of the owners below, as they are made |
//! | `waiting` | a waiter takes its place in a queue: its token, and the replies to its acquires |
//! | `grants` | a grant becomes known, and finds its waiter; what a waiter's state decides is done |
//! | `holding` | leases are kept and renewed, and their losses reported |
//! | `upkeep` | what other threads ask of the renewal thread, and how they wake it |
//! | `callbacks` | the thread that runs `on_lost` |
//! | `hearing` | whether the subscription is proven alive, troubles with the servers, and who is told that a lease is wanted |
//! | `client` | the settings, the store with its clock, the counters |
//! | `waiter` | the state machine of a waiter, the registry of all |
//! | `lease` | a held lock, its atomic state, and the signal of its loss |
//! | `life` | whether the manager is open, its threads, a forked child |
//! | `request` | what a caller asks for |
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
//! | R4 | lost places | a waiter that Redis does not know is enqueued again under a new token, in the old order | `background/waiter_upkeep.rs`, `background/schedule.rs`, `waiter/state.rs`, `src/store/node/pipeline.rs` |
//! | R5 | dated requests | acquire and sync do nothing after the time at which their caller gives up | the scripts, `src/store/clock.rs` |
//! | R6 | token lifetime | an acquire carries a token for at most one ttl after its first send | `waiting.rs` |
//! | R7 | late copies | a release goes on until no copy of the token's acquire can still take it | `upkeep/token_release.rs`, `background/release_upkeep.rs`, `releasing` |
//! | R8 | grant during a request | a notice of a grant counts only once the token's request is over | `waiter/state.rs` |
//! | R9 | own lapse | the recorded owner is the owner, lapsed or not; only others see a lapse | the scripts |
//! | R10 | places of the dead | a lapsed lease voids the places of its process, after a grace | the scripts |
//! | R11 | missing keys | a queue that is shorter than its count voids all places in it | the scripts |
//! | R12 | doubtful grants | a grant without a certain deadline is confirmed by a renewal | `waiter/grant_notice.rs`, `waiter/state.rs` |
//! | R13 | unwanted grants | a grant that nobody wants is released, whichever way it became known | `grants.rs`, `upkeep` |
//! | R14 | release first, then send | a lease ends here before its release is sent, and is not lost after that | `lease/lease.rs`, `releasing` |
//! | R15 | clock went back | a lease that ends too far in the future is shortened, and not believed; fences do not fall | the scripts, `lease/lease.rs` |
//! | R16 | hold_at_least | a lock stays taken for that time; a fixed lease that may wait is longer than a grant takes to arrive | the scripts, `src/config.rs` |
//! | R17 | subscription | it starts before the first waiter is queued; without it, syncs carry the wait | `subscription.rs`, `hearing.rs`, `acquiring` |
//! | R18 | replica acks | if wanted, a grant or an extension counts only when replicas have acknowledged a renewal of it | `src/store/node/acks`, `grants.rs`, `background/waiter_upkeep.rs` |
//! | R19 | dead entries | a waiter that leaves takes its entries along | the scripts |
//! | R20 | write order | a script reads before it writes, so a refusal leaves nothing half done | the scripts, `src/store/node` |
//! | R21 | asking again | where the store has no queue, a waiter asks again after a random pause | `acquiring/queued.rs`, `waiter/askers.rs` |
//! | R22 | tries among the dead | a try calls the processes that wait, and passes over them if none comes | `trying`, `subscription.rs` |
//!
//! | promise | says | kept by |
//! |---|---|---|
//! | P1 | one holder | `lease`, the scripts |
//! | P2 | rising fences | the scripts |
//! | P3 | first come, first served | the scripts, `background/waiter_upkeep.rs`, `background/schedule.rs` |
//! | P4 | no lost wake-up | `grants.rs`, `acquiring/queued.rs`, `releasing/unread.rs`, `background/waiter_upkeep.rs` |
//! | P5 | a crash costs one ttl and one check period | the scripts |
//! | P6 | a loss is reported once, and stays | `lease/state.rs`, `lease/lost_signal.rs` |
//! | P7 | one grant for a request | `waiter/registry.rs`, `grants.rs` |
//! | P8 | every call ends | [`Client::deadlines`], `acquiring/queued.rs` |
//! | P9 | nothing starves | [`Client::at_once`], `background/thread.rs` |
//! | P10 | bad input is refused | `src/config.rs`, `src/key.rs` |

mod acquiring;
mod background;
mod base;
mod callbacks;
mod client;
mod grants;
mod hearing;
mod holding;
mod lease;
mod life;
mod lifecycle;
#[cfg(all(test, fairlock_loom))]
mod loom_models;
mod names;
mod releasing;
mod request;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/stepped_engine.rs"]
mod stepped;
mod subscription;
mod trying;
mod upkeep;
mod waiter;
mod waiting;

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crossbeam_channel::bounded;

use crate::config::Config;
use crate::error::{Error, Result, Step};
use crate::key::Key;
use crate::script::{Call, CallerId, Mode};
use crate::store::clock::Time;
use crate::store::{Answer, Store, StoreFault};
use background::RenewalThread;
use base::Base;
use client::Client;
use life::Life;
use names::Names;
use subscription::Subscription;
use trying::Trying;
use upkeep::{Command, EndAll};

pub(crate) use acquiring::{
    Acquiring, AtDeadline, Caller, Entered, QueuedWaiter, is_passing, is_transient,
};
pub(crate) use hearing::{Hearing, WantedListener};
pub(crate) use lease::{HeldLease, first_lost};
pub(crate) use lifecycle::EngineHandle;
#[cfg(all(test, fairlock_loom))]
pub(crate) use loom_models::RenewalModel;
pub(crate) use releasing::{Releasing, WantResult};
pub(crate) use request::{Handovers, LeaseOwner, LostBy, Request};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use stepped::{Next, SteppedEngine, Tasks};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use trying::Doubt;
pub(crate) use trying::{Attempted, GroupOutcome};
pub(crate) use upkeep::Timer;
pub(crate) use upkeep::warn_of_drop;
pub(crate) use waiter::{TakeGrant, WaiterEntry, WaiterOwner};

/// A panic of a caller leaves nothing half changed here: no foreign code runs under a mutex. So
/// `catch_unwind` takes handles, guards and waiters, as it takes those of `std::sync::Mutex`.
impl RefUnwindSafe for Engine {}
impl RefUnwindSafe for EngineHandle {}
impl RefUnwindSafe for Acquiring {}
impl RefUnwindSafe for HeldLease {}
impl RefUnwindSafe for WaiterEntry {}

/// All that the handles, guards, waiters and threads of one manager share: its owners, and the calls
/// of users to them.
pub(crate) struct Engine {
    base: Base,
    names: Arc<Names>,
    releasing: Arc<Releasing>,
    trying: Arc<Trying>,
    subscription: Arc<Subscription>,
    acquiring: Arc<Acquiring>,
}

impl Engine {
    /// An engine, and what its renewal thread runs.
    fn new(
        config: Config,
        store: Box<dyn Store>,
        caller_id: Arc<CallerId>,
    ) -> (Arc<Engine>, RenewalThread) {
        let (base, intake) = Base::new(config, store);
        let names = Arc::new(Names::new(&base));
        let releasing = Arc::new(Releasing::new(&base, &names));
        let trying = Arc::new(Trying::new(&base, &names, &releasing));
        let subscription = Arc::new(Subscription::new(&base, caller_id));
        let acquiring = Acquiring::new(&base, &names, &releasing, &trying, &subscription);
        let renewal = RenewalThread::new(&base, &releasing, intake);
        let engine = Arc::new(Engine {
            base,
            names,
            releasing,
            trying,
            subscription,
            acquiring: Arc::new(acquiring),
        });
        (engine, renewal)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.base.client
    }

    pub(crate) fn life(&self) -> &Life {
        &self.base.life
    }

    pub(crate) fn hearing(&self) -> &Arc<Hearing> {
        &self.base.hearing
    }

    pub(crate) fn acquiring(&self) -> &Arc<Acquiring> {
        &self.acquiring
    }

    pub(crate) fn releasing(&self) -> &Arc<Releasing> {
        &self.releasing
    }

    pub(crate) fn config(&self) -> &Config {
        self.base.client.config()
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.base.life.is_forked()
    }

    pub(crate) fn now(&self) -> Time {
        self.base.client.now()
    }

    /// See [`Acquiring::acquire_all`].
    pub(crate) fn acquire_all(
        &self,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        self.acquiring.acquire_all(requests, until)
    }

    /// See [`Trying::try_acquire`]. If the lock's owner was told and may let go at once, waits for a
    /// moment more, see [`Acquiring::acquire_soon`].
    pub(crate) fn try_acquire(&self, request: &Arc<Request>) -> Result<Option<Arc<HeldLease>>> {
        match self.trying.try_acquire(request)? {
            Attempted::Told => self.acquiring.acquire_soon(request, self.acquiring.soon()),
            tried => Ok(tried.lease()),
        }
    }

    /// See [`Trying::try_acquire_all`].
    pub(crate) fn try_acquire_all(&self, requests: &[Arc<Request>]) -> Result<GroupOutcome> {
        self.trying.try_acquire_all(requests)
    }

    /// See [`Acquiring::acquire_all_soon`].
    pub(crate) fn acquire_all_soon(
        &self,
        requests: &[Arc<Request>],
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        self.acquiring.acquire_all_soon(requests)
    }

    /// See [`Trying::attempt_all`].
    pub(crate) fn attempt_all(
        &self,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        self.trying.attempt_all(requests, until)
    }

    pub(crate) fn on_guard_created(&self, lease: &HeldLease) {
        let waited = lease.waited();
        let meter = self.base.client.meter();
        meter.on_granted(waited, lease.request.was_taken());
    }

    pub(crate) fn on_guard_dropped(&self) {
        self.base.client.meter().on_guard_dropped();
        self.base.life.on_guard_dropped();
    }

    /// See [`Holding::renew`](holding::Holding::renew).
    pub(crate) fn renew(&self, leases: &[Arc<HeldLease>]) -> Result<()> {
        self.base.holding.renew(leases)
    }

    /// See [`Releasing::release`].
    pub(crate) fn release(
        &self,
        lease: &Arc<HeldLease>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        self.releasing.release(lease, mode, want)
    }

    /// See [`Releasing::release_all`].
    pub(crate) fn release_all(
        &self,
        leases: &[Arc<HeldLease>],
        mode: Mode,
        want: WantResult,
    ) -> Vec<Error> {
        self.releasing.release_all(leases, mode, want)
    }

    /// See [`Releasing::reduce`].
    pub(crate) fn reduce(&self, lease: &Arc<HeldLease>, to: u32) -> Result<()> {
        self.releasing.reduce(lease, to)
    }

    /// See [`Names::ask`].
    pub(crate) fn ask(&self, calls: &[Call]) -> Result<Vec<Result<Answer>>> {
        self.names.ask(calls)
    }

    /// See [`Names::delete`].
    pub(crate) fn delete(&self, key: &Key) -> Result<bool> {
        self.names.delete(key)
    }

    /// Refuses new locks, ends waits, waits for guards until `until`, and ends the leases that are
    /// left then. Returns their names when Redis has answered all releases. That fails three command
    /// timeouts later.
    pub(crate) fn shut_down(&self, until: Time) -> Result<Vec<Arc<str>>> {
        let Base {
            life,
            client,
            upkeep,
            grants,
            ..
        } = &self.base;
        life.check_fork()?;
        grants.close();
        life.await_guards(|| client.meter().held() > 0, until);
        let (report_to, report) = bounded(1);
        let timeout = client.config().command_timeout;
        // One timeout for the exchange in which the renewal thread may be, and one for a
        // connection. When it gives up, it may be in another exchange, and reports after that.
        let now = client.now();
        upkeep.send(Command::EndAll(EndAll {
            report_by: now + timeout * 2,
            report_to,
        }));
        let limit = timeout * 3;
        let ended = match client.clock().receive(&report, now + limit) {
            Some(report) => report.into_result(),
            None => Err("the renewal thread did not end the leases in time".to_owned()),
        };
        ended.map_err(|why| {
            StoreFault::unavailable(Step::Reply, why).into_error(None, client.now() - now)
        })
    }

    /// Ends all threads and waits for them, for at most one command timeout. If the release of the
    /// last lock or waiter has waited for a reply, its wait counts towards this timeout.
    fn stop(&self) {
        let Base { life, upkeep, .. } = &self.base;
        self.base.grants.close();
        life.begin_stop();
        upkeep.send(Command::Stop);
        self.subscription.wake();
        self.base.holding.end_callbacks();
        let until = self.releasing.stop_by(self.now());
        self.subscription.poke(until);
        life.join_threads(until);
    }
}
