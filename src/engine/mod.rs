//! How locks are won and kept. Knows no kind of lock and no topology.

mod acquire;
mod background;
mod callbacks;
mod lease;
mod lifecycle;
#[cfg(all(test, fairlock_loom))]
mod loom_models;
mod multi;
mod release;
mod request;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[path = "../../tests/sim/stepped_engine.rs"]
mod stepped;
mod subscription;
mod waiter;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::Kind;
use crate::loss::Loss;
use crate::script::{Call, CallerId, Mode, Outcome, Token, Verb};
use crate::stats::{Counters, Stats};
use crate::store::clock::{Clock, Time};
use crate::store::{Answer, CallResult, Checkout, Deadlines, Store, StoreFault};
use crate::sync::{Condvar, Mutex};
use background::{Command, Fresh, Job};
use callbacks::Callbacks;
use lease::Due;
use lifecycle::{Thread, Waker};
use subscription::SubscriptionStatus;
use waiter::{GrantNotice, TokenOwner, WaiterAction, WaiterEntry, WaiterRegistry};

#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use acquire::Doubt;
pub(crate) use acquire::{Entered, is_transient};
pub(crate) use lease::Lease;
pub(crate) use lifecycle::EngineHandle;
pub(crate) use multi::first_lost;
pub(crate) use release::WantResult;
pub(crate) use request::{LockGroup, Request};
#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use stepped::{Next, SteppedEngine, Tasks};
pub(crate) use waiter::{QueuedWaiter, Then};

/// When so many new leases lie there, the renewal thread is woken to take them in.
const MANY_NEW: usize = 4096;
/// From so many on, whoever adds one drops some that are over.
const SIFT_FROM: usize = 64;

/// What all handles, guards, waiters and threads of one manager share.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) store: Box<dyn Store>,
    pub(crate) counters: Counters,
    caller_id: Arc<CallerId>,
    clock: Clock,
    waiters: WaiterRegistry,
    intake: Sender<Command>,
    /// New leases, which the renewal thread takes in when it wakes.
    fresh: (Sender<Fresh>, Receiver<Fresh>),
    /// Held by whoever has taken some of them out for a moment.
    sifting: Mutex<()>,
    waker: Arc<Waker>,
    subscription: SubscriptionStatus,
    callbacks: Callbacks,
    /// No new locks: shut down, stopped, or the renewal thread is gone.
    closed: AtomicBool,
    stopping: AtomicBool,
    /// When the last release was sent, in ns, if nothing has come of it; else zero.
    unanswered_since: AtomicU64,
    /// A channel that tells nothing, for forked children.
    nothing: Receiver<Loss>,
    drained: Mutex<()>,
    guard_dropped: Condvar,
    threads: Mutex<Vec<Thread>>,
    process: u32,
}

impl Engine {
    /// Whether locks may be taken: [`Error::Closed`] after a shutdown and in a forked child.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_forked() || self.closed.load(Ordering::Acquire) {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn at(&self, instant: Instant) -> Time {
        self.clock.at(instant)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            connects: self.store.connects(),
            requests: self.store.requests(),
            ..self.counters.read()
        }
    }

    /// Calls that take nothing, on a pooled connection. Blocks for at most two command timeouts.
    pub(crate) fn ask(&self, calls: &[Call]) -> Result<Vec<Result<Answer>>> {
        self.check_fork()?;
        let started = self.now();
        let results = self.store.run(calls, self.deadlines(started, Time::NEVER));
        let read = calls
            .iter()
            .zip(results)
            .map(|(call, result)| match result.answer {
                Ok(answer) => {
                    self.deliver_all(call, &answer);
                    match &answer.reply.outcome {
                        outcome @ Outcome::Kind(_) => Err(self.out_of_place(call, outcome)),
                        _ => Ok(answer),
                    }
                }
                Err(fault) => Err(fault.into_error(Some(&call.key), self.now() - started)),
            });
        Ok(read.collect())
    }

    /// One page of the records that match: the next cursor (0: that was the last page) and the keys.
    pub(crate) fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>)> {
        self.check_fork()?;
        let started = self.now();
        self.store
            .scan(cursor, pattern)
            .map_err(|fault| fault.into_error(None, self.now() - started))
    }

    /// A reply of its own script's, but for another verb.
    fn out_of_place(&self, call: &Call, outcome: &Outcome) -> Error {
        if let Outcome::Kind(kind) = outcome {
            return wrong_kind(call, kind);
        }
        Error::Server {
            lock: Some(call.key.name.clone()),
            code: "PROTOCOL".to_owned(),
            message: format!("a reply out of place: {outcome:?}"),
        }
    }

    fn run_one(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        self.store
            .run(std::slice::from_ref(call), deadlines)
            .pop()
            .unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
    }

    /// P8: one command timeout for a connection and one for the reply, and not much past `until`.
    fn deadlines(&self, now: Time, until: Time) -> Deadlines {
        let timeout = self.config.command_timeout;
        Deadlines {
            checkout: Checkout::Until((now + timeout).min(until + timeout / 2)),
            reply_by: (now + timeout * 2).min(until + timeout),
        }
    }

    /// Only what is free at once, so that nothing waits for the pool (P9).
    fn at_once(&self, now: Time) -> Deadlines {
        Deadlines {
            checkout: Checkout::IfFree,
            reply_by: now + self.config.command_timeout,
        }
    }

    /// Keeps a lease renewed from now on. Wakes nobody, unless it would be too late.
    fn adopt(&self, lease: &Arc<Lease>) {
        let renew_at = lease
            .request
            .renewal_period()
            .map_or(Time::NEVER, |period| self.now() + period);
        let due = lease.next_due(renew_at);
        self.add(Fresh {
            lease: Arc::clone(lease),
            renew_at,
        });
        let (_, waiter) = &self.fresh;
        if waiter.len() > SIFT_FROM {
            self.sift();
        }
        if waiter.len() >= MANY_NEW {
            self.waker.wake();
        } else {
            self.waker.wake_if_late_for(due);
        }
    }

    /// Two out for each that comes in keeps their number small, so that the renewal thread need not wake for
    /// them, nor free in one go what others have allocated: threads that meet in the allocator put each
    /// other to sleep.
    fn sift(&self) {
        let Some(_sifting) = self.sifting.try_lock() else {
            return;
        };
        let now = self.now();
        for fresh in self.fresh.1.try_iter().take(2) {
            if fresh.lease.due(now, Time::NEVER) != Due::Drop {
                let due = fresh.lease.next_due(fresh.renew_at);
                self.add(fresh);
                self.waker.wake_if_late_for(due);
            }
        }
    }

    /// The engine itself has a receiver, so this never fails.
    fn add(&self, fresh: Fresh) {
        let _ = self.fresh.0.send(fresh);
    }

    /// The receiver lives as long as the renewal thread; what is sent after its end is of no use.
    fn send(&self, work: Command) {
        let _ = self.intake.send(work);
    }

    fn send_to_background(&self, work: Command) {
        self.send(work);
        self.waker.wake();
    }

    /// A sync at once, if anybody here waits for the name.
    fn sync_now(&self, key: &Key) {
        let now = self.now();
        self.waiters.reschedule(&key.name, now);
        self.waker.wake_if_late_for(now);
    }

    /// GrantNotice of grants that came with the reply to another request.
    fn deliver_all(&self, call: &Call, answer: &Answer) {
        for grant in &answer.reply.grants {
            self.deliver(call, GrantNotice::from_reply(*grant, answer.sent));
        }
    }

    /// Tells a waiter of its grant; what nobody waits for is released (R13). `about` names the lock.
    fn deliver(&self, about: &Call, notice: GrantNotice) {
        match self.waiters.find(notice.grant.token) {
            TokenOwner::Waiting(waiter) => self.on_grant(&waiter, notice),
            // The waiter learnt of it in another way before.
            TokenOwner::Claimed => {}
            TokenOwner::Unknown => {
                self.abandon_in_background(about, notice.grant.token, 0, notice.grant.left)
            }
        }
    }

    fn on_grant(&self, waiter: &Arc<WaiterEntry>, notice: GrantNotice) {
        let action = waiter
            .state
            .lock()
            .heard(notice, self.now(), &waiter.request);
        if matches!(action, WaiterAction::Keep(_) | WaiterAction::Confirm) {
            self.counters.handed_over.add(1);
        }
        self.apply(waiter, action);
    }

    /// Carries out what a place decided.
    fn apply(&self, waiter: &Arc<WaiterEntry>, action: WaiterAction) {
        match action {
            WaiterAction::Nothing => {}
            WaiterAction::Keep(lease) => {
                self.adopt(&lease);
                waiter.changed.notify_one();
            }
            WaiterAction::Confirm => self.send_to_background(Command::Confirm(Arc::clone(waiter))),
            WaiterAction::Requeue => self.send_to_background(Command::Requeue(Arc::clone(waiter))),
            WaiterAction::Abandon { token, not_after } => {
                self.cancel_in_background(&waiter.request, token, not_after);
            }
        }
    }

    /// R7: until a reply shows that no copy of its acquire can take the token any more, which is past
    /// `not_after` by the server's clock, or until a lease of `ttl` has lapsed by itself.
    fn abandon_in_background(&self, about: &Call, token: Token, not_after: u64, ttl: Duration) {
        self.in_background(
            Job::new(about, token, 0, Mode::Unused, self.now() + ttl).until(not_after),
        );
    }

    /// The same for a token that may stand in the queue, which it leaves only when Redis is told.
    fn cancel_in_background(&self, request: &Request, token: Token, not_after: u64) {
        let about = request.call(Verb::Renew { token });
        let job = Job::new(
            &about,
            token,
            0,
            Mode::Unused,
            self.now() + request.longest(),
        );
        self.in_background(job.until(not_after).queued());
    }

    fn in_background(&self, job: Job) {
        self.counters.background_releases.add(1);
        self.send_to_background(Command::Background(job));
    }

    /// A lease of a live guard is lost: says so wherever it is listened to, once. Answers
    /// whether this was that once.
    fn tell(&self, lease: &Lease, loss: &Loss) -> bool {
        if !lease.tell(loss) {
            return false;
        }
        self.counters.lost.add(1);
        if let Some(whole) = &lease.request.whole {
            whole.tell(loss);
        }
        if let Some(callback) = &lease.request.on_lost {
            self.callbacks.call(Arc::clone(callback), loss.clone());
        }
        log::warn!(
            "lost {:?} (fence {}): {}",
            loss.name,
            loss.fence,
            loss.reason
        );
        true
    }

    /// The channel of a guard in a forked child: disconnected, and reached without a mutex.
    pub(crate) fn nothing(&self) -> &Receiver<Loss> {
        &self.nothing
    }
}

fn wrong_kind(call: &Call, kind: &str) -> Error {
    let lock = call.key.name.clone();
    let (is, asked) = (
        Kind::from_record(kind),
        Kind::from_record(&call.spec.kind()),
    );
    if is == asked {
        let message = format!("the record is {kind}, which is not this version's protocol");
        return Error::Server {
            lock: Some(lock),
            code: "WRONGVERSION".to_owned(),
            message,
        };
    }
    Error::WrongKind { lock, is, asked }
}
