//! One sequence: wishes become operations on real managers, and what comes of each is held against the model.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::model::{
    Attempt, LeaseTerm, Likelihood, ModelKind, ModelOutcome, Observation, Op, PossibleStates,
};
use fairlock::{
    Error, LockGuard, LockInfo, LockManager, LockOptions, ReadGuard, Waiter, WriteGuard,
};
use proptest::test_runner::TestCaseError;

use super::arm::{Arm, P, TTL};
use crate::scene::Verb;

pub(super) const CLIENTS: u8 = 3;
pub(super) const NAMES: u8 = 2;

/// With more attempts in the hands of the background the model has too many worlds to look into.
const UNSETTLED_AT_MOST: usize = 3;

/// What somebody would like to do. Of `pick` comes the waiter or the guard that it is done with.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) client: u8,
    pub(super) name: u8,
    pub(super) pick: u8,
    /// How many permits it is for, as far as there are as many; a writer takes all.
    pub(super) permits: u8,
    pub(super) what: What,
    /// Its request is put twice: the first reply is lost.
    pub(super) twice: bool,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    TryLock(LeaseTerm),
    Enqueue(LeaseTerm),
    Claim,
    Leave,
    Unlock,
    Drop,
    Downgrade,
    Renew,
    ForceRelease { stale: bool },
    Inspect,
    Repeat,
    Misuse,
    RunOut,
    Lapse,
    LoseNews,
}

type Seen<T = ()> = Result<T, TestCaseError>;

/// Names of a sequence's own, so that a store serves many.
const ODD: [&str; 5] = ["plain", "with space", "{br}ace%7B", "'\"\n\t", "ünï→"];

pub(super) struct Run<'a> {
    arm: &'a dyn Arm,
    /// What must happen happens within this.
    patience: Duration,
    names: Vec<Name>,
    waiters: Vec<(Attempt, usize, Place)>,
    guards: Vec<(Attempt, usize, Guard)>,
    attempts: u16,
    trail: String,
}

/// Of whichever kind.
enum Place {
    Plain(Waiter),
    Reader(Waiter<ReadGuard>),
    Writer(Waiter<WriteGuard>),
}

impl Place {
    fn position(&self) -> Option<u64> {
        match self {
            Place::Plain(waiter) => waiter.position(),
            Place::Reader(waiter) => waiter.position(),
            Place::Writer(waiter) => waiter.position(),
        }
    }

    fn wait_for(&mut self, at_most: Duration) -> fairlock::Result<Option<Guard>> {
        Ok(match self {
            Place::Plain(waiter) => waiter.wait_for(at_most)?.map(Guard::Plain),
            Place::Reader(waiter) => waiter.wait_for(at_most)?.map(Guard::Reader),
            Place::Writer(waiter) => waiter.wait_for(at_most)?.map(Guard::Writer),
        })
    }
}

enum Guard {
    Plain(LockGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
}

impl Guard {
    fn unlock(self) -> fairlock::Result<()> {
        match self {
            Guard::Plain(guard) => guard.unlock(),
            Guard::Reader(guard) => guard.unlock(),
            Guard::Writer(guard) => guard.unlock(),
        }
    }
}

impl Deref for Guard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Guard::Plain(guard) => guard,
            Guard::Reader(guard) => guard,
            Guard::Writer(guard) => guard,
        }
    }
}

struct Name {
    text: String,
    kind: ModelKind,
    worlds: PossibleStates,
    /// All fences that were seen.
    fences: Vec<u64>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        arm: &'a dyn Arm,
        kinds: [ModelKind; NAMES as usize],
        patience: Duration,
    ) -> Run<'a> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let run = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |(i, kind): (u32, ModelKind)| {
            let text = format!("{} {run}.{i}", ODD[(run + i) as usize % ODD.len()]);
            Name {
                text,
                kind,
                worlds: PossibleStates::new(kind),
                fences: Vec::new(),
            }
        };
        let names = (0..).zip(kinds).map(name).collect();
        Run {
            arm,
            patience,
            names,
            waiters: Vec::new(),
            guards: Vec::new(),
            attempts: 0,
            trail: String::new(),
        }
    }

    /// Does what is wished for, if it can be done.
    pub(super) fn fulfil(&mut self, wish: &Wish) -> Seen {
        let name = usize::from(wish.name);
        let unsettles = match wish.what {
            What::Leave | What::Drop => 1,
            What::RunOut | What::Lapse | What::ForceRelease { .. } => {
                self.names[name].worlds.most_holders().max(1)
            }
            _ => 0,
        };
        let settled = |name: &Name| name.worlds.most_unsettled() + unsettles <= UNSETTLED_AT_MOST;
        if unsettles > 0 && !self.names.iter().all(settled) {
            return Ok(());
        }
        match wish.what {
            What::TryLock(lease) => self.try_lock(wish, lease),
            What::Enqueue(lease) => self.enqueue(wish, lease),
            What::Claim => match pick(wish, self.waiters.len()) {
                Some(at) => self.claim(at).map(|_| ()),
                None => Ok(()),
            },
            What::Leave => match pick(wish, self.waiters.len()) {
                Some(at) => {
                    let (attempt, name, waiter) = self.waiters.remove(at);
                    self.twice(wish, attempt.client, name, Verb::Release, || drop(waiter));
                    self.see(name, Op::Cancel(attempt), ModelOutcome::Done)
                }
                None => Ok(()),
            },
            What::Unlock => {
                pick(wish, self.guards.len()).map_or(Ok(()), |at| self.unlock(at, Some(wish)))
            }
            What::Drop => match pick(wish, self.guards.len()) {
                Some(at) => {
                    let (attempt, name, guard) = self.guards.remove(at);
                    self.twice(wish, attempt.client, name, Verb::Release, || drop(guard));
                    self.see(name, Op::Drop(attempt), ModelOutcome::Done)
                }
                None => Ok(()),
            },
            What::Downgrade => {
                let is_writer = |(_, _, guard): &(_, _, Guard)| matches!(guard, Guard::Writer(_));
                self.guards
                    .iter()
                    .position(is_writer)
                    .map_or(Ok(()), |at| self.downgrade(at))
            }
            What::Renew => match pick(wish, self.guards.len()) {
                Some(at) => {
                    let (attempt, name, guard) = &self.guards[at];
                    let (attempt, name) = (*attempt, *name);
                    let end = self.twice(wish, attempt.client, name, Verb::Renew, || guard.renew());
                    let outcome = self.kept(end, ModelOutcome::Renewed)?;
                    self.see(name, Op::Renew(attempt), outcome)
                }
                None => Ok(()),
            },
            What::ForceRelease { stale } => {
                let fences = &self.names[name].fences;
                let Some(fence) = (if stale {
                    fences.first()
                } else {
                    fences.iter().max()
                })
                .copied() else {
                    return Ok(());
                };
                let end = self
                    .manager(wish)
                    .force_release(&self.names[name].text, fence);
                let taken = self.known(end)?;
                let outcome = if taken {
                    ModelOutcome::Released
                } else {
                    ModelOutcome::Refused
                };
                self.see(
                    name,
                    Op::ForceRelease {
                        client: wish.client,
                        fence,
                    },
                    outcome,
                )
            }
            What::Inspect => {
                let info = self.manager(wish).inspect(&self.names[name].text);
                let info = self.known(info)?;
                let sight = info.as_ref().map(sight);
                if let Some(sight) = &sight {
                    self.names[name].fences.extend(sight.holders.values());
                }
                self.see(name, Op::Inspect, ModelOutcome::Seen(sight))
            }
            What::Repeat => {
                let repeated = self
                    .arm
                    .repeat(&self.names[name].text, self.names[name].kind);
                let outcome = repeated.map_or(ModelOutcome::Refused, |(_, fence)| {
                    ModelOutcome::Granted { fence }
                });
                self.see(
                    name,
                    Op::Repeat(repeated.map(|(number, _)| number)),
                    outcome,
                )
            }
            What::Misuse => {
                let end = misuse(self.manager(wish), &self.names[name].text, wish.pick);
                let outcome = if matches!(end, Err(Error::Config { .. })) {
                    ModelOutcome::Forbidden
                } else {
                    ModelOutcome::Done
                };
                self.see(name, Op::Misuse, outcome)
            }
            // A message is only the sooner way to hear of a grant (P4).
            What::LoseNews => {
                self.arm.lose_news();
                Ok(())
            }
            What::RunOut => {
                self.arm
                    .run_out(&self.names[name].text, self.names[name].kind);
                self.see(name, Op::Expire, ModelOutcome::Done)
            }
            What::Lapse => {
                let held = self
                    .arm
                    .lapse(&self.names[name].text, self.names[name].kind);
                self.see(
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

    /// All let go and one more comes to each name; then everybody who waits is served, and nothing is left.
    pub(super) fn calm_down(mut self) -> Seen {
        while !self.guards.is_empty() {
            self.unlock(0, None)?;
        }
        for name in 0..NAMES {
            let last = Wish {
                what: What::Enqueue(LeaseTerm::Fixed),
                ..still(name)
            };
            self.fulfil(&last)?;
        }
        let mut served = Instant::now();
        while !self.waiters.is_empty() {
            let (chance, at) = self.next_to_serve();
            if chance == Likelihood::Possible {
                // A look leaves fewer worlds, and nobody has to be waited for in vain.
                let name = self.waiters[at].1 as u8;
                self.fulfil(&still(name))?;
            }
            if self.claim(at)? {
                self.unlock(0, None)?;
                served = Instant::now();
            } else if served.elapsed() > self.patience {
                return Err(self.fail("P4: nobody is served"));
            } else if chance == Likelihood::Possible {
                // In another world it is another's turn.
                self.waiters.rotate_left(at + 1);
            }
        }
        for name in &self.names {
            while let Some(left) = self.arm.left(&name.text) {
                if served.elapsed() > self.patience {
                    return Err(self.fail(&format!("P7: something is left: {left}")));
                }
            }
        }
        Ok(())
    }

    fn next_to_serve(&self) -> (Likelihood, usize) {
        let chance = |(attempt, name, _): &(Attempt, usize, Place)| {
            self.names[*name].worlds.likelihood(*attempt)
        };
        let first = |wanted| {
            self.waiters
                .iter()
                .position(|waiter| chance(waiter) == wanted)
        };
        for wanted in [Likelihood::Certain, Likelihood::Possible] {
            if let Some(at) = first(wanted) {
                return (wanted, at);
            }
        }
        (Likelihood::Impossible, 0)
    }

    fn try_lock(&mut self, wish: &Wish, lease: LeaseTerm) -> Seen {
        let (attempt, name) = (self.attempt(wish, lease), usize::from(wish.name));
        let manager = self.arm.managers()[usize::from(attempt.client)].with(options(attempt));
        let Name { text, kind, .. } = &self.names[name];
        let end = self.twice(wish, attempt.client, name, Verb::Acquire, || match *kind {
            ModelKind::Mutex => Ok(manager.try_lock(text)?.map(Guard::Plain)),
            ModelKind::Semaphore(permits) => Ok(manager
                .semaphore(text, permits)
                .try_acquire_many(attempt.permits)?
                .map(Guard::Plain)),
            ModelKind::ReadWrite(all) if attempt.permits == all => {
                Ok(manager.rw_lock(text).try_write()?.map(Guard::Writer))
            }
            ModelKind::ReadWrite(_) => Ok(manager.rw_lock(text).try_read()?.map(Guard::Reader)),
        });
        match self.known(end)? {
            Some(guard) => self.keep(attempt, name, guard, Op::TryLock(attempt)),
            None => self.see(name, Op::TryLock(attempt), ModelOutcome::Busy),
        }
    }

    fn enqueue(&mut self, wish: &Wish, lease: LeaseTerm) -> Seen {
        let (attempt, name) = (self.attempt(wish, lease), usize::from(wish.name));
        let manager = self.arm.managers()[usize::from(attempt.client)].with(options(attempt));
        let Name { text, kind, .. } = &self.names[name];
        let end = self.twice(wish, attempt.client, name, Verb::Acquire, || match *kind {
            ModelKind::Mutex => Ok(Place::Plain(manager.enqueue(text)?)),
            ModelKind::Semaphore(permits) => Ok(Place::Plain(
                manager
                    .semaphore(text, permits)
                    .enqueue_many(attempt.permits)?,
            )),
            ModelKind::ReadWrite(all) if attempt.permits == all => {
                Ok(Place::Writer(manager.rw_lock(text).enqueue_write()?))
            }
            ModelKind::ReadWrite(_) => Ok(Place::Reader(manager.rw_lock(text).enqueue_read()?)),
        });
        let waiter = self.known(end)?;
        let position = waiter.position();
        self.waiters.push((attempt, name, waiter));
        self.see(
            name,
            Op::Enqueue(attempt),
            ModelOutcome::Waiting { position },
        )
    }

    /// Waits as long as the model gives reason to. Whether it is a guard now.
    fn claim(&mut self, at: usize) -> Seen<bool> {
        let (attempt, name, mut waiter) = self.waiters.remove(at);
        let chance = self.names[name].worlds.likelihood(attempt);
        let patience = match chance {
            Likelihood::Impossible => Duration::ZERO,
            Likelihood::Possible => P,
            Likelihood::Certain => self.patience,
        };
        let end = waiter.wait_for(patience);
        match self.known(end)? {
            Some(guard) => {
                self.keep(attempt, name, guard, Op::TakeGrant(attempt))?;
                Ok(true)
            }
            None => {
                self.waiters.insert(at, (attempt, name, waiter));
                self.see(name, Op::TakeGrant(attempt), ModelOutcome::NotYet)?;
                if chance == Likelihood::Certain {
                    return Err(
                        self.fail(&format!("P4: {attempt:?} is not told that it was granted"))
                    );
                }
                Ok(false)
            }
        }
    }

    fn unlock(&mut self, at: usize, wish: Option<&Wish>) -> Seen {
        let (attempt, name, guard) = self.guards.remove(at);
        let end = match wish {
            Some(wish) => self.twice(wish, attempt.client, name, Verb::Release, || guard.unlock()),
            None => guard.unlock(),
        };
        let outcome = self.kept(end, ModelOutcome::Released)?;
        self.see(name, Op::Unlock(attempt), outcome)
    }

    /// Never put twice: what is not answered at once goes on in the background, and is well until it is known not to be.
    fn downgrade(&mut self, at: usize) -> Seen {
        let (attempt, name, guard) = self.guards.remove(at);
        let Guard::Writer(writer) = guard else {
            return Ok(());
        };
        // Nor may it find that there is no connection, after another's reply was lost.
        self.fulfil(&Wish {
            client: attempt.client,
            ..still(name as u8)
        })?;
        let outcome = match writer.downgrade() {
            Ok(reader) => {
                self.guards.push((attempt, name, Guard::Reader(reader)));
                ModelOutcome::Downgraded
            }
            Err(error) => self.kept(Err(error), ModelOutcome::Downgraded)?,
        };
        self.see(name, Op::Downgrade(attempt), outcome)
    }

    fn keep(&mut self, attempt: Attempt, name: usize, guard: Guard, op: Op) -> Seen {
        let fence = guard.fence();
        self.guards.push((attempt, name, guard));
        self.names[name].fences.push(fence);
        self.see(name, op, ModelOutcome::Granted { fence })
    }

    fn attempt(&mut self, wish: &Wish, lease: LeaseTerm) -> Attempt {
        self.attempts += 1;
        let permits = match self.names[usize::from(wish.name)].kind {
            ModelKind::Mutex => 1,
            ModelKind::Semaphore(permits) => 1 + u32::from(wish.permits) % permits,
            ModelKind::ReadWrite(all) => {
                if wish.permits.is_multiple_of(3) {
                    all
                } else {
                    1
                }
            }
        };
        Attempt {
            number: self.attempts,
            client: wish.client,
            lease,
            permits,
        }
    }

    fn manager(&self, wish: &Wish) -> &LockManager {
        &self.arm.managers()[usize::from(wish.client)]
    }

    /// Does it, with its request put twice if that is wished for.
    fn twice<T>(
        &self,
        wish: &Wish,
        client: u8,
        name: usize,
        verb: Verb,
        act: impl FnOnce() -> T,
    ) -> T {
        if !wish.twice {
            return act();
        }
        self.arm.lose_reply(client, &self.names[name].text, verb);
        let end = act();
        self.arm.lose_no_more(client);
        end
    }

    fn see(&mut self, name: usize, op: Op, outcome: ModelOutcome) -> Seen {
        let line = format!("  {:?}: {op:?} -> {outcome:?}\n", self.names[name].text);
        if !self.trail.ends_with(&line) {
            self.trail += &line;
        }
        match self.names[name].worlds.observe(&op, &outcome) {
            Ok(()) => Ok(()),
            Err(violation) => Err(self.fail(&violation.to_string())),
        }
    }

    /// Redis was there all the time, so nothing else may fail.
    fn known<T>(&self, end: fairlock::Result<T>) -> Seen<T> {
        end.map_err(|error| self.fail(&format!("{error}")))
    }

    fn kept(&self, end: fairlock::Result<()>, well: ModelOutcome) -> Seen<ModelOutcome> {
        match end {
            Ok(()) => Ok(well),
            Err(Error::Lost { .. }) => Ok(ModelOutcome::Lost),
            Err(error) => Err(self.fail(&format!("{error}"))),
        }
    }

    fn fail(&self, why: &str) -> TestCaseError {
        TestCaseError::fail(format!("{why}\nafter\n{}", self.trail))
    }
}

/// One that only looks.
fn still(name: u8) -> Wish {
    Wish {
        client: 0,
        name,
        pick: 0,
        permits: 1,
        what: What::Inspect,
        twice: false,
    }
}

fn pick(wish: &Wish, of: usize) -> Option<usize> {
    (of > 0).then(|| usize::from(wish.pick) % of)
}

/// The label is the attempt's number, by which an inspection knows it.
fn options(attempt: Attempt) -> LockOptions {
    let terms = LockOptions::new().label(attempt.number.to_string());
    match attempt.lease {
        LeaseTerm::Renewed => terms.ttl(TTL),
        LeaseTerm::Fixed => terms.fixed_lease(TTL),
    }
}

fn sight(info: &LockInfo) -> Observation {
    let number = |label: &str| {
        label
            .parse()
            .unwrap_or_else(|e| panic!("the label {label:?} is no number: {e}"))
    };
    Observation {
        // Whoever holds it has a fence.
        holders: info
            .holders
            .iter()
            .map(|holder| (number(&holder.label), holder.fence.unwrap_or(0)))
            .collect(),
        queue: info
            .queue
            .iter()
            .map(|waiter| number(&waiter.label))
            .collect(),
    }
}

/// Asks for something that is not allowed.
fn misuse(manager: &LockManager, name: &str, which: u8) -> fairlock::Result<()> {
    let with = |options| manager.with(options);
    let options = LockOptions::new;
    match which % 13 {
        0 => manager.try_lock("").map(drop),
        1 => manager.enqueue(&name.repeat(513)).map(drop),
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
        9 => manager.semaphore(name, 0).try_acquire().map(drop),
        10 => manager.semaphore(name, 2).enqueue_many(3).map(drop),
        11 => with(options().ttl(Duration::ZERO))
            .rw_lock(name)
            .enqueue_read()
            .map(drop),
        _ => with(options().label("\n")).enqueue(name).map(drop),
    }
}
