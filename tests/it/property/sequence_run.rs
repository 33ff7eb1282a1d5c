//! One sequence: planned steps become operations on real managers, and the model checks each
//! result.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::model::{
    Attempt, LeaseTerm, Likelihood, ModelKind, ModelOutcome, Observation, Op, PossibleStates,
};
use fairlock::{
    Error, Lease, LockGuard, LockManager, LockOptions, Misuse, ReadGuard, RwLock, SemaphoreGuard,
    Waiter,
    inspect::{LockInfo, Party},
};
use proptest::test_runner::TestCaseError;

use super::store_under_test::{P, StoreUnderTest, TTL};
use crate::fixtures::Verb;

pub(super) const CLIENTS: u8 = 3;
pub(super) const NAMES: u8 = 2;

/// With more attempts left to the background, the model has too many possible states to compute.
const MOST_AT_WORK: usize = 3;

/// How many fences a grant with local hand-overs reserves behind its first. So many µs are long enough
/// that a next grant often comes sooner.
const SPARE: u32 = 60_000;

/// A step that a client is to make, if it is possible. `pick` chooses the waiter or the guard.
#[derive(Debug, Clone)]
pub(super) struct PlannedStep {
    pub(super) client: u8,
    pub(super) name: u8,
    pub(super) pick: u8,
    /// Chooses the number of permits, among those that the kind of lock allows. A writer takes all.
    pub(super) permits: u8,
    pub(super) kind: StepKind,
    /// The first reply is lost, so the request is sent twice.
    pub(super) loses_reply: bool,
}

#[derive(Debug, Clone)]
pub(super) enum StepKind {
    TryLock(LeaseTerm),
    Enqueue(LeaseTerm),
    TakeGrant,
    Cancel,
    Unlock,
    Drop,
    Downgrade,
    Renew,
    ForceRelease {
        stale: bool,
    },
    Inspect,
    /// Use the name as another kind of lock, if nobody uses it.
    OtherKind,
    Repeat,
    Misuse,
    Expire,
    Lapse,
    LoseMessage,
}

type StepResult<T = ()> = Result<T, TestCaseError>;

/// Each sequence has names of its own, so that many sequences can use one store. Some are unusual.
const UNUSUAL_NAMES: [&str; 5] = ["plain", "with space", "{br}ace%7B", "'\"\n\t", "ünï→"];

pub(super) struct SequenceRun<'a> {
    store: &'a dyn StoreUnderTest,
    /// Everything that must happen does so within this time.
    time_limit: Duration,
    names: Vec<NamedLock>,
    waiters: Vec<(Attempt, usize, AnyWaiter)>,
    guards: Vec<(Attempt, usize, AnyGuard)>,
    attempts: u16,
    /// Guards that were dropped. Later requests of their managers for the name come behind.
    dropped: Vec<(Attempt, usize)>,
    /// The clients that lost a reply. A drop without a connection, or in an outage, is ordered
    /// before nothing.
    disturbed: RefCell<BTreeSet<u8>>,
    trail: String,
}

/// A waiter for a lock of any kind.
enum AnyWaiter {
    Plain(Waiter),
    Permits(Waiter<SemaphoreGuard>),
    Reader(Waiter<ReadGuard>),
    Writer(Waiter<LockGuard>),
}

impl AnyWaiter {
    fn position(&self) -> Option<u64> {
        match self {
            AnyWaiter::Plain(waiter) => waiter.position(),
            AnyWaiter::Permits(waiter) => waiter.position(),
            AnyWaiter::Reader(waiter) => waiter.position(),
            AnyWaiter::Writer(waiter) => waiter.position(),
        }
    }

    fn wait_for(&mut self, at_most: Duration) -> fairlock::Result<Option<AnyGuard>> {
        Ok(match self {
            AnyWaiter::Plain(waiter) => waiter.wait_for(at_most)?.map(AnyGuard::Plain),
            AnyWaiter::Permits(waiter) => waiter.wait_for(at_most)?.map(AnyGuard::Permits),
            AnyWaiter::Reader(waiter) => waiter.wait_for(at_most)?.map(AnyGuard::Reader),
            AnyWaiter::Writer(waiter) => waiter.wait_for(at_most)?.map(AnyGuard::Writer),
        })
    }
}

/// A guard of a lock of any kind.
enum AnyGuard {
    Plain(LockGuard),
    Permits(SemaphoreGuard),
    Reader(ReadGuard),
    Writer(LockGuard),
}

impl AnyGuard {
    fn unlock(self) -> fairlock::Result<()> {
        match self {
            AnyGuard::Plain(guard) => guard.unlock(),
            AnyGuard::Permits(guard) => guard.unlock(),
            AnyGuard::Reader(guard) => guard.unlock(),
            AnyGuard::Writer(guard) => guard.unlock(),
        }
    }
}

impl Deref for AnyGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            AnyGuard::Plain(guard) => guard,
            AnyGuard::Permits(guard) => guard,
            AnyGuard::Reader(guard) => guard,
            AnyGuard::Writer(guard) => guard,
        }
    }
}

struct NamedLock {
    text: String,
    kind: ModelKind,
    states: PossibleStates,
    /// All fences that were seen.
    fences: Vec<u64>,
    /// The number of the last attempt that used the name as another kind.
    used_as_other_kind: u16,
}

impl<'a> SequenceRun<'a> {
    pub(super) fn new(
        store: &'a dyn StoreUnderTest,
        kinds: [ModelKind; NAMES as usize],
        time_limit: Duration,
    ) -> SequenceRun<'a> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let run = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |(i, kind): (u32, ModelKind)| {
            let text = format!(
                "{} {run}.{i}",
                UNUSUAL_NAMES[(run + i) as usize % UNUSUAL_NAMES.len()]
            );
            NamedLock {
                text,
                kind,
                states: PossibleStates::new(kind),
                fences: Vec::new(),
                used_as_other_kind: 0,
            }
        };
        let names = (0..).zip(kinds).map(name).collect();
        SequenceRun {
            store,
            time_limit,
            names,
            waiters: Vec::new(),
            guards: Vec::new(),
            attempts: 0,
            dropped: Vec::new(),
            disturbed: RefCell::default(),
            trail: String::new(),
        }
    }

    /// Makes the step, if it is possible.
    pub(super) fn perform(&mut self, step: &PlannedStep) -> StepResult {
        let name = usize::from(step.name);
        let adds_work = match step.kind {
            StepKind::Cancel | StepKind::Drop => 1,
            StepKind::Expire | StepKind::Lapse | StepKind::ForceRelease { .. } => {
                self.names[name].states.most_holders().max(1)
            }
            _ => 0,
        };
        let has_room = |name: &NamedLock| name.states.most_at_work() + adds_work <= MOST_AT_WORK;
        if adds_work > 0 && !self.names.iter().all(has_room) {
            return Ok(());
        }
        match step.kind {
            StepKind::TryLock(lease) => self.try_lock(step, lease),
            StepKind::OtherKind => self.use_as_other_kind(step),
            StepKind::Enqueue(lease) => self.enqueue(step, lease),
            StepKind::TakeGrant => match pick(step, self.waiters.len()) {
                Some(at) => self.take_grant(at).map(|_| ()),
                None => Ok(()),
            },
            StepKind::Cancel => match pick(step, self.waiters.len()) {
                Some(at) => {
                    let (attempt, name, waiter) = self.waiters.remove(at);
                    self.with_planned_reply_loss(step, attempt.client, name, Verb::Release, || {
                        drop(waiter)
                    });
                    self.observe(name, Op::Cancel(attempt), ModelOutcome::Done)
                }
                None => Ok(()),
            },
            StepKind::Unlock => {
                pick(step, self.guards.len()).map_or(Ok(()), |at| self.unlock(at, Some(step)))
            }
            StepKind::Drop => match pick(step, self.guards.len()) {
                Some(at) => {
                    let (attempt, name, guard) = self.guards.remove(at);
                    self.with_planned_reply_loss(step, attempt.client, name, Verb::Release, || {
                        drop(guard)
                    });
                    self.dropped.push((attempt, name));
                    self.observe(name, Op::Drop(attempt), ModelOutcome::Done)
                }
                None => Ok(()),
            },
            StepKind::Downgrade => {
                let can_downgrade = |(_, _, guard): &(_, _, AnyGuard)| match guard {
                    AnyGuard::Writer(_) => true,
                    AnyGuard::Permits(guard) => guard.permits() > 1,
                    AnyGuard::Plain(_) | AnyGuard::Reader(_) => false,
                };
                self.guards
                    .iter()
                    .position(can_downgrade)
                    .map_or(Ok(()), |at| self.downgrade(at))
            }
            StepKind::Renew => match pick(step, self.guards.len()) {
                Some(at) => {
                    let (attempt, name, guard) = &self.guards[at];
                    let attempt = *attempt;
                    let name = *name;
                    let result = self.with_planned_reply_loss(
                        step,
                        attempt.client,
                        name,
                        Verb::Renew,
                        || guard.renew(),
                    );
                    let outcome = self.guard_outcome(result, ModelOutcome::Renewed)?;
                    self.observe(name, Op::Renew(attempt), outcome)
                }
                None => Ok(()),
            },
            StepKind::ForceRelease { stale } => {
                let fences = &self.names[name].fences;
                let Some(fence) = (if stale {
                    fences.first()
                } else {
                    fences.iter().max()
                })
                .copied() else {
                    return Ok(());
                };
                // Any fence that the grant has reserved will do. The model knows the first.
                let has_fence =
                    |(_, of, guard): &&(_, usize, AnyGuard)| *of == name && guard.fence() == fence;
                let spare = self
                    .guards
                    .iter()
                    .find(has_fence)
                    .map(|(attempt, ..)| attempt.spare);
                let behind = u64::from(step.pick) % (1 + u64::from(spare.unwrap_or(0)));
                let result = self
                    .manager(step)
                    .force_release(&self.names[name].text, fence + behind);
                let taken = self.expect_ok(result)?;
                let outcome = if taken {
                    ModelOutcome::Released
                } else {
                    ModelOutcome::Refused
                };
                self.observe(
                    name,
                    Op::ForceRelease {
                        client: step.client,
                        fence,
                    },
                    outcome,
                )
            }
            StepKind::Inspect => {
                let info = self.manager(step).inspect(&self.names[name].text);
                let info = self.expect_ok(info)?;
                let observation = info.as_ref().map(observation);
                if let Some(observation) = &observation {
                    self.names[name].fences.extend(observation.holders.values());
                }
                self.observe(name, Op::Inspect, ModelOutcome::Seen(observation))
            }
            StepKind::Repeat => {
                let repeated = self
                    .store
                    .repeat_acquire(&self.names[name].text, self.names[name].kind);
                let outcome = repeated.map_or(ModelOutcome::Refused, |(_, fence)| {
                    ModelOutcome::Granted { fence }
                });
                self.observe(
                    name,
                    Op::Repeat(repeated.map(|(number, _)| number)),
                    outcome,
                )
            }
            StepKind::Misuse => {
                let result = misuse(self.manager(step), &self.names[name].text, step.pick);
                let outcome = if matches!(
                    result,
                    Err(Error::Misused {
                        misuse: Misuse::Name | Misuse::Setting { .. },
                        ..
                    })
                ) {
                    ModelOutcome::Forbidden
                } else {
                    ModelOutcome::Done
                };
                self.observe(name, Op::Misuse, outcome)
            }
            // The model has no messages. A waiter that misses one learns of its grant by a sync
            // (P4).
            StepKind::LoseMessage => {
                self.store.lose_grant_message();
                Ok(())
            }
            StepKind::Expire => {
                self.store
                    .expire(&self.names[name].text, self.names[name].kind);
                self.observe(name, Op::Expire, ModelOutcome::Done)
            }
            StepKind::Lapse => {
                let held = self
                    .store
                    .lapse(&self.names[name].text, self.names[name].kind);
                self.observe(
                    name,
                    Op::Lapse,
                    if held {
                        ModelOutcome::Released
                    } else {
                        ModelOutcome::Refused
                    },
                )
            }
        }
    }

    /// Releases all guards, and adds one more waiter to each name. Then every waiter must be
    /// served, and nothing may be left behind.
    pub(super) fn finish(mut self) -> StepResult {
        while !self.guards.is_empty() {
            self.unlock(0, None)?;
        }
        for name in 0..NAMES {
            let last = PlannedStep {
                kind: StepKind::Enqueue(LeaseTerm::Fixed),
                ..inspection(name)
            };
            self.perform(&last)?;
        }
        let mut served = Instant::now();
        while !self.waiters.is_empty() {
            let (likelihood, at) = self.next_to_serve();
            if likelihood == Likelihood::Possible {
                // An inspection leaves fewer possible states. So the test rarely waits for a waiter
                // that is not granted the lock.
                let name = self.waiters[at].1 as u8;
                self.perform(&inspection(name))?;
            }
            if self.take_grant(at)? {
                self.unlock(0, None)?;
                served = Instant::now();
            } else if served.elapsed() > self.time_limit {
                return Err(self.fail("P4: no waiter is served"));
            } else if likelihood == Likelihood::Possible {
                // In another possible state, it is another waiter's turn.
                let next = (at + 1).min(self.waiters.len());
                self.waiters.rotate_left(next);
            }
        }
        for name in &self.names {
            while let Some(left) = self.store.leftovers(&name.text) {
                if served.elapsed() > self.time_limit {
                    return Err(self.fail(&format!("P7: something is left behind: {left}")));
                }
            }
        }
        Ok(())
    }

    fn next_to_serve(&self) -> (Likelihood, usize) {
        let likelihood = |(attempt, name, _): &(Attempt, usize, AnyWaiter)| {
            self.names[*name].states.likelihood(*attempt)
        };
        let first = |wanted| {
            self.waiters
                .iter()
                .position(|waiter| likelihood(waiter) == wanted)
        };
        for wanted in [Likelihood::Certain, Likelihood::Possible] {
            if let Some(at) = first(wanted) {
                return (wanted, at);
            }
        }
        (Likelihood::Impossible, 0)
    }

    fn try_lock(&mut self, step: &PlannedStep, lease: LeaseTerm) -> StepResult {
        let attempt = self.attempt(step, lease);
        let name = usize::from(step.name);
        let manager = self.store.managers()[usize::from(attempt.client)].with(options(attempt));
        let NamedLock { text, kind, .. } = &self.names[name];
        let result = self.with_planned_reply_loss(
            step,
            attempt.client,
            name,
            Verb::Acquire,
            || match *kind {
                ModelKind::Mutex => Ok(manager.try_lock(text)?.map(AnyGuard::Plain)),
                ModelKind::Semaphore(permits) => Ok(manager
                    .semaphore(text, permits)
                    .try_acquire(attempt.permits)?
                    .map(AnyGuard::Permits)),
                ModelKind::ReadWrite(all) if attempt.permits == all => {
                    Ok(manager.rw_lock(text).try_write()?.map(AnyGuard::Writer))
                }
                ModelKind::ReadWrite(_) => {
                    Ok(manager.rw_lock(text).try_read()?.map(AnyGuard::Reader))
                }
            },
        );
        match self.expect_ok(result)? {
            Some(guard) => self.add_guard(attempt, name, guard, Op::TryLock(attempt)),
            None => self.observe(name, Op::TryLock(attempt), ModelOutcome::Busy),
        }
    }

    /// Takes the name as a kind of lock of the other family, and releases it. For the model that is
    /// a try for all permits: it succeeds if nobody holds or waits, and the fences go on.
    fn use_as_other_kind(&mut self, step: &PlannedStep) -> StepResult {
        let name = usize::from(step.name);
        let NamedLock { kind, .. } = &self.names[name];
        let kind = *kind;
        let attempt = Attempt {
            permits: kind.permits(),
            ..self.attempt(step, LeaseTerm::Renewed)
        };
        let manager = self.store.managers()[usize::from(attempt.client)].with(options(attempt));
        let NamedLock { text, .. } = &self.names[name];
        let taken = match kind {
            ModelKind::Mutex => manager
                .semaphore(text, 1)
                .try_acquire(1)
                .map(|guard| guard.map(AnyGuard::Permits)),
            ModelKind::Semaphore(_) | ModelKind::ReadWrite(_) => manager
                .try_lock(text)
                .map(|guard| guard.map(AnyGuard::Plain)),
        };
        let taken = match taken {
            Err(Error::Misused {
                misuse: Misuse::Kind { .. },
                ..
            }) => None,
            result => self.expect_ok(result)?,
        };
        match taken {
            Some(guard) => {
                self.names[name].used_as_other_kind = attempt.number;
                self.add_guard(attempt, name, guard, Op::TryLock(attempt))?;
                self.unlock(self.guards.len() - 1, None)
            }
            None => self.observe(name, Op::TryLock(attempt), ModelOutcome::Busy),
        }
    }

    fn enqueue(&mut self, step: &PlannedStep, lease: LeaseTerm) -> StepResult {
        let attempt = Attempt {
            spare: self.spare(step, lease),
            ..self.attempt(step, lease)
        };
        let name = usize::from(step.name);
        let manager = self.store.managers()[usize::from(attempt.client)].with(options(attempt));
        let NamedLock { text, kind, .. } = &self.names[name];
        let result = self.with_planned_reply_loss(
            step,
            attempt.client,
            name,
            Verb::Acquire,
            || match *kind {
                ModelKind::Mutex => Ok(AnyWaiter::Plain(manager.enqueue(text)?)),
                ModelKind::Semaphore(permits) => Ok(AnyWaiter::Permits(
                    manager.semaphore(text, permits).enqueue(attempt.permits)?,
                )),
                ModelKind::ReadWrite(all) if attempt.permits == all => {
                    Ok(AnyWaiter::Writer(manager.rw_lock(text).enqueue_write()?))
                }
                ModelKind::ReadWrite(_) => {
                    Ok(AnyWaiter::Reader(manager.rw_lock(text).enqueue_read()?))
                }
            },
        );
        let waiter = self.expect_ok(result)?;
        let position = waiter.position();
        self.waiters.push((attempt, name, waiter));
        self.observe(
            name,
            Op::Enqueue(attempt),
            ModelOutcome::Waiting { position },
        )
    }

    /// Waits for a grant as long as the model gives reason to. Returns whether it came.
    fn take_grant(&mut self, at: usize) -> StepResult<bool> {
        let (attempt, name, mut waiter) = self.waiters.remove(at);
        let likelihood = self.names[name].states.likelihood(attempt);
        let time_limit = match likelihood {
            Likelihood::Impossible => Duration::ZERO,
            Likelihood::Possible => P,
            Likelihood::Certain => self.time_limit,
        };
        let result = waiter.wait_for(time_limit);
        // The waiter had lost its place, and asked again while another kind of lock had the name. Then
        // its wait ends. That it was granted the lock is excluded.
        if matches!(
            result,
            Err(Error::Misused {
                misuse: Misuse::Kind { .. },
                ..
            })
        ) && attempt.number < self.names[name].used_as_other_kind
            && likelihood != Likelihood::Certain
        {
            drop(waiter);
            self.observe(name, Op::Cancel(attempt), ModelOutcome::Done)?;
            return Ok(false);
        }
        match self.expect_ok(result)? {
            Some(guard) => {
                self.add_guard(attempt, name, guard, Op::TakeGrant(attempt))?;
                Ok(true)
            }
            None => {
                self.waiters.insert(at, (attempt, name, waiter));
                self.observe(name, Op::TakeGrant(attempt), ModelOutcome::NotYet)?;
                if likelihood == Likelihood::Certain {
                    return Err(self.fail(&format!(
                        "P4: {attempt:?} was granted the lock and does not learn of it"
                    )));
                }
                Ok(false)
            }
        }
    }

    fn unlock(&mut self, at: usize, step: Option<&PlannedStep>) -> StepResult {
        let (attempt, name, guard) = self.guards.remove(at);
        let result = match step {
            Some(step) => {
                self.with_planned_reply_loss(step, attempt.client, name, Verb::Release, || {
                    guard.unlock()
                })
            }
            None => guard.unlock(),
        };
        let outcome = self.guard_outcome(result, ModelOutcome::Released)?;
        self.observe(name, Op::Unlock(attempt), outcome)
    }

    /// Keeps one permit. Its reply is never lost. An unanswered downgrade goes on in the background
    /// and reports success until it is known to have failed, which this test could not tell apart.
    fn downgrade(&mut self, at: usize) -> StepResult {
        let (attempt, name, guard) = self.guards.remove(at);
        // An earlier lost reply may have closed the connection. This inspection opens it again.
        self.perform(&PlannedStep {
            client: attempt.client,
            ..inspection(name as u8)
        })?;
        let downgraded = match guard {
            AnyGuard::Writer(writer) => RwLock::downgrade(writer).map(AnyGuard::Reader),
            AnyGuard::Permits(mut guard) => guard
                .release_permits(guard.permits() - 1)
                .map(|()| AnyGuard::Permits(guard)),
            AnyGuard::Plain(_) | AnyGuard::Reader(_) => return Ok(()),
        };
        let outcome = match downgraded {
            Ok(guard) => {
                self.guards.push((attempt, name, guard));
                ModelOutcome::Downgraded
            }
            Err(error) => self.guard_outcome(Err(error), ModelOutcome::Downgraded)?,
        };
        self.observe(name, Op::Downgrade(attempt), outcome)
    }

    fn add_guard(&mut self, attempt: Attempt, name: usize, guard: AnyGuard, op: Op) -> StepResult {
        let fence = guard.fence();
        self.guards.push((attempt, name, guard));
        self.names[name].fences.push(fence);
        self.observe(name, op, ModelOutcome::Granted { fence })
    }

    fn attempt(&mut self, step: &PlannedStep, lease: LeaseTerm) -> Attempt {
        self.attempts += 1;
        let permits = match self.names[usize::from(step.name)].kind {
            ModelKind::Mutex => 1,
            ModelKind::Semaphore(permits) => 1 + u32::from(step.permits) % permits,
            ModelKind::ReadWrite(all) => {
                if step.permits.is_multiple_of(3) {
                    all
                } else {
                    1
                }
            }
        };
        Attempt {
            number: self.attempts,
            client: step.client,
            lease,
            permits,
            spare: 0,
        }
    }

    /// Some attempts allow local hand-overs. The model knows no lines, so a client has one such
    /// attempt at a time.
    fn spare(&self, step: &PlannedStep, lease: LeaseTerm) -> u32 {
        let name = usize::from(step.name);
        let waiting = self
            .waiters
            .iter()
            .map(|(attempt, name, _)| (attempt, name));
        let mut all = waiting.chain(self.guards.iter().map(|(attempt, name, _)| (attempt, name)));
        let has_line = all
            .any(|(attempt, of)| (attempt.client, *of) == (step.client, name) && attempt.spare > 0);
        let is_mutex = self.names[name].kind == ModelKind::Mutex;
        if is_mutex && lease == LeaseTerm::Renewed && !has_line && step.permits.is_multiple_of(2) {
            SPARE
        } else {
            0
        }
    }

    fn manager(&self, step: &PlannedStep) -> &LockManager {
        &self.store.managers()[usize::from(step.client)]
    }

    /// Runs `act`. If the step plans it, the first reply is lost and the request is sent twice.
    fn with_planned_reply_loss<T>(
        &self,
        step: &PlannedStep,
        client: u8,
        name: usize,
        verb: Verb,
        act: impl FnOnce() -> T,
    ) -> T {
        if !step.loses_reply {
            return act();
        }
        self.disturbed.borrow_mut().insert(client);
        self.store.lose_reply(client, &self.names[name].text, verb);
        let result = act();
        self.store.stop_losing_replies(client);
        result
    }

    /// The client has asked for the name, and has the answer. Its drops came before that.
    fn on_asked(&mut self, client: u8, name: usize) {
        if self.disturbed.borrow().contains(&client) {
            return;
        }
        let is_earlier = |(attempt, of): &(Attempt, usize)| attempt.client == client && *of == name;
        for (attempt, name) in self.dropped.extract_if(.., |drop| is_earlier(drop)) {
            self.names[name].states.on_released(attempt);
        }
    }

    fn observe(&mut self, name: usize, op: Op, outcome: ModelOutcome) -> StepResult {
        if let Op::TryLock(attempt) | Op::Enqueue(attempt) = op {
            self.on_asked(attempt.client, name);
        }
        let line = format!("  {:?}: {op:?} -> {outcome:?}\n", self.names[name].text);
        if !self.trail.ends_with(&line) {
            self.trail += &line;
        }
        match self.names[name].states.observe(&op, &outcome) {
            Ok(()) => Ok(()),
            Err(violation) => Err(self.fail(&violation.to_string())),
        }
    }

    /// Redis was there all the time, so the call must succeed.
    fn expect_ok<T>(&self, result: fairlock::Result<T>) -> StepResult<T> {
        result.map_err(|error| self.fail(&format!("{error}")))
    }

    fn guard_outcome(
        &self,
        result: fairlock::Result<()>,
        success: ModelOutcome,
    ) -> StepResult<ModelOutcome> {
        match result {
            Ok(()) => Ok(success),
            Err(Error::Lost { .. }) => Ok(ModelOutcome::Lost),
            Err(error) => Err(self.fail(&format!("{error}"))),
        }
    }

    fn fail(&self, why: &str) -> TestCaseError {
        TestCaseError::fail(format!("{why}\nafter\n{}", self.trail))
    }
}

/// A step that only looks.
fn inspection(name: u8) -> PlannedStep {
    PlannedStep {
        client: 0,
        name,
        pick: 0,
        permits: 1,
        kind: StepKind::Inspect,
        loses_reply: false,
    }
}

fn pick(step: &PlannedStep, of: usize) -> Option<usize> {
    (of > 0).then(|| usize::from(step.pick) % of)
}

/// The label is the attempt's number, which an inspection shows.
fn options(attempt: Attempt) -> LockOptions {
    let options = LockOptions::new().label(attempt.number.to_string());
    match attempt.lease {
        LeaseTerm::Renewed if attempt.spare > 0 => options.ttl(TTL).local_handovers(attempt.spare),
        LeaseTerm::Renewed => options.ttl(TTL),
        LeaseTerm::Fixed => options.fixed_lease(TTL),
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn observation(info: &LockInfo) -> Observation {
    let number = |label: &str| {
        label
            .parse()
            .unwrap_or_else(|e| panic!("the label {label:?} is no number: {e}"))
    };
    // A lapse that was noticed counts from then, and that holder has no permits any more. `Expire`
    // ends leases in 1970, and nobody has noticed those.
    let holds = |holder: &&Party| holder.lapsed_for.is_none_or(|ago| ago > DAY);
    Observation {
        // Every holder has a fence.
        holders: info
            .holders
            .iter()
            .chain(&info.lapsed)
            .filter(holds)
            .map(|holder| (number(&holder.label), holder.fence.unwrap_or(0)))
            .collect(),
        queue: info
            .queue
            .iter()
            .map(|waiter| number(&waiter.label))
            .collect(),
        last_fence: None,
    }
}

/// Calls something with arguments that are not allowed.
fn misuse(manager: &LockManager, name: &str, which: u8) -> fairlock::Result<()> {
    let with = |options| manager.with(options);
    let options = LockOptions::new;
    match which % 13 {
        0 => manager.try_lock("").map(drop),
        1 => manager.enqueue(name.repeat(513)).map(drop),
        2 => manager.force_release("", 1).map(drop),
        3 => with(options().ttl(Duration::ZERO)).enqueue(name).map(drop),
        4 => with(options().ttl(Duration::MAX)).try_lock(name).map(drop),
        5 => with(options().fixed_lease(Duration::ZERO))
            .try_lock(name)
            .map(drop),
        6 => with(options().fixed_lease(Duration::from_secs(1)))
            .enqueue(name)
            .map(drop),
        7 => with(options().hold_at_least(Duration::MAX))
            .try_lock(name)
            .map(drop),
        8 => with(options().max_hold(Duration::ZERO))
            .try_lock(name)
            .map(drop),
        9 => manager.semaphore(name, 0).try_acquire(1).map(drop),
        10 => manager.semaphore(name, 2).enqueue(3).map(drop),
        11 => with(options().ttl(Duration::ZERO))
            .rw_lock(name)
            .enqueue_read()
            .map(drop),
        _ => with(options().label("\n")).enqueue(name).map(drop),
    }
}
