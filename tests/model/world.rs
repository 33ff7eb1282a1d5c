//! One name as clients see it, in one of the worlds that the promises allow.

use std::collections::BTreeSet;

use super::grant::{ModelGrant, learn};
use super::lock::ModelLock;
use super::op::{Attempt, LeaseTerm, ModelKind, ModelOutcome, Observation, Op};
use super::promise::Promise;

/// A name at the server, and what is in the hands of the clients' background.
///
/// What no client can see at once is not told but guessed: [`PossibleState::by_itself`] lists what may happen in the
/// background, and [`PossibleStates`](super::PossibleStates) keeps the worlds that agree with what is seen.
///
/// | an attempt is | when |
/// |---|---|
/// | in the lock's queue | it waits |
/// | a holder of the lock | it was granted, and that has not ended |
/// | in `adrift` | it was granted, lost that before it was claimed, and may not know yet: it may make a guard of the lost grant, or else find out and wait again |
/// | in `gone` | it knows, or was passed over as dead, and will wait again at the end of the queue |
/// | nowhere | it has ended, or is a guard that lost its lock |
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PossibleState {
    lock: ModelLock,
    /// Holders whose grant is a guard's, and no longer a place's.
    claimed: BTreeSet<Attempt>,
    gone: BTreeSet<Attempt>,
    adrift: Vec<ModelGrant>,
    /// Those whose release or leave goes on in the background.
    ending: BTreeSet<Attempt>,
}

impl PossibleState {
    /// A name that nobody has used.
    pub(crate) fn new(kind: ModelKind) -> PossibleState {
        PossibleState {
            lock: ModelLock::new(kind),
            ..PossibleState::default()
        }
    }

    /// Whether this attempt may make a guard now.
    pub(crate) fn has_grant_for(&self, attempt: Attempt) -> bool {
        self.unclaimed()
            .chain(&self.adrift)
            .any(|held| held.by == attempt)
    }

    fn unclaimed(&self) -> impl Iterator<Item = &ModelGrant> {
        self.lock
            .holders
            .iter()
            .filter(|held| !self.claimed.contains(&held.by))
    }

    /// How many hold it.
    pub(crate) fn holders(&self) -> usize {
        self.lock.holders.len()
    }

    /// How many attempts the background has yet to do with.
    pub(crate) fn unsettled(&self) -> usize {
        self.adrift.len() + self.gone.len() + self.ending.len()
    }

    /// The worlds that this one may turn into without anybody's doing.
    pub(crate) fn by_itself(&self) -> Vec<PossibleState> {
        let mut next = Vec::new();
        let mut may = |happen: &dyn Fn(&mut PossibleState)| {
            let mut world = self.clone();
            happen(&mut world);
            next.push(world.normalized());
        };
        for held in self.lock.holders.iter().filter(|held| held.lapsed) {
            // A renewal comes in time, or that by which a place confirms its grant (R9, R12).
            if held.by.lease == LeaseTerm::Renewed || !self.claimed.contains(&held.by) {
                may(&|world| world.lock.prolong(held.by));
            }
        }
        // Whoever sees that the time of one is over sees all.
        let lapsed = self
            .lock
            .holders
            .iter()
            .filter(|held| held.lapsed)
            .map(|held| held.by.client);
        for noticer in lapsed
            .clone()
            .chain(lapsed.clone().next().map(|_| NOBODY))
            .collect::<BTreeSet<_>>()
        {
            may(&|world| world.at_server(|lock| lock.pass_on(noticer)));
        }
        for client in &self.lock.void {
            may(&|world| {
                world.lock.void.remove(client);
            });
        }
        for lost in &self.adrift {
            may(&|world| {
                world.adrift.retain(|other| other != lost);
                world.gone.insert(lost.by);
            });
        }
        for client in self
            .gone
            .iter()
            .map(|attempt| attempt.client)
            .collect::<BTreeSet<_>>()
        {
            // R4: all of a process in their order.
            if let Some(first) = self
                .gone
                .iter()
                .copied()
                .find(|attempt| attempt.client == client)
            {
                may(&|world| {
                    world.gone.remove(&first);
                    world.at_server(|lock| lock.enqueue(first));
                });
            }
        }
        for attempt in &self.ending {
            may(&|world| world.end(*attempt));
        }
        next
    }

    /// The worlds that this one may be after `op`, given what was seen of it; or the promise that what was seen
    /// would break here.
    pub(crate) fn after(
        &self,
        op: &Op,
        outcome: &ModelOutcome,
    ) -> Result<Vec<PossibleState>, Promise> {
        let mut world = self.clone();
        match (op, outcome) {
            (Op::TryLock(attempt), ModelOutcome::Granted { fence }) => {
                world.at_server(|lock| lock.try_lock(*attempt));
                world.claim(*attempt, *fence)?;
            }
            (Op::TryLock(attempt), ModelOutcome::Busy) => {
                world.at_server(|lock| lock.try_lock(*attempt));
                if world.has_grant_for(*attempt) {
                    return Err(Promise::WakeUp);
                }
            }
            (Op::TakeGrant(attempt), ModelOutcome::Granted { fence }) => {
                world.claim(*attempt, *fence)?
            }
            (
                Op::Enqueue(attempt),
                ModelOutcome::Waiting {
                    position: Some(position),
                },
            ) => {
                world.at_server(|lock| lock.enqueue(*attempt));
                match world.lock.queue.iter().position(|other| other == attempt) {
                    Some(ahead) if (ahead as u64) < *position => {}
                    Some(_) => return Err(Promise::Order),
                    None => return Err(Promise::WakeUp),
                }
            }
            (Op::Enqueue(attempt), ModelOutcome::Waiting { position: None }) => {
                world.at_server(|lock| lock.enqueue(*attempt));
                // The grant can have come between the answer and the look at the place.
                let mut worlds = closure([world.normalized()]);
                worlds.retain(|world| !world.lock.queue.contains(attempt));
                return if worlds.is_empty() {
                    Err(self.refuses(attempt.permits))
                } else {
                    Ok(worlds.into_iter().collect())
                };
            }
            (Op::TakeGrant(_), ModelOutcome::NotYet) => {}
            (Op::Cancel(attempt) | Op::Drop(attempt), ModelOutcome::Done) => {
                let mut later = self.clone();
                later.ending.insert(*attempt);
                world.end(*attempt);
                let world = world.normalized();
                // What was lost is given up at the loss, or now, or by nobody.
                return Ok(vec![
                    world,
                    if self.knows(*attempt) {
                        later
                    } else {
                        self.clone()
                    },
                ]);
            }
            (Op::Unlock(attempt), ModelOutcome::Released) if self.lock.is_held_by(*attempt) => {
                world.end(*attempt)
            }
            (Op::Unlock(attempt), ModelOutcome::Lost) if !self.lock.is_held_by(*attempt) => {}
            // A guard that is told the wrong thing of its lock is one of two who believe that they hold it.
            (Op::Unlock(_), ModelOutcome::Released | ModelOutcome::Lost) => {
                return Err(Promise::Exclusion);
            }
            (Op::Inspect, ModelOutcome::Seen(sight)) => {
                for (by, fence) in self
                    .lock
                    .compare(sight.as_ref(), self.other_holders_break(sight.as_ref()))?
                {
                    world.learn(by, fence)?;
                }
            }
            (Op::Repeat(Some(number)), ModelOutcome::Granted { fence }) => {
                let held = self
                    .lock
                    .holders
                    .iter()
                    .find(|held| held.by.number == *number);
                world.learn(held.ok_or(Promise::OneGrant)?.by, *fence)?;
            }
            (Op::Lapse, ModelOutcome::Released) if !self.lock.holders.is_empty() => {
                world
                    .lock
                    .holders
                    .iter_mut()
                    .for_each(|held| held.lapsed = true);
                // A process whose own request came first has not died.
                let first = self
                    .lock
                    .holders
                    .iter()
                    .map(|held| held.by.client)
                    .chain([NOBODY]);
                let noticed = first.map(|noticer| {
                    let mut world = world.clone();
                    world.at_server(|lock| lock.pass_on(noticer));
                    world.normalized()
                });
                return Ok(noticed.collect());
            }
            (Op::Lapse, ModelOutcome::Refused) if self.lock.holders.is_empty() => {}
            (Op::Lapse, _) => return Err(Promise::Exclusion),
            // These are answered by the server itself.
            (
                Op::Renew(_)
                | Op::Downgrade(_)
                | Op::ForceRelease { .. }
                | Op::Repeat(_)
                | Op::Misuse
                | Op::Expire,
                outcome,
            ) => {
                let mut next = self.lock.after(op, outcome)?;
                let next = next.swap_remove(0);
                world.at_server(|lock| *lock = next);
            }
            // There is no such outcome.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![world.normalized()])
    }

    /// What the server does with a request, and who loses by it.
    fn at_server(&mut self, does: impl FnOnce(&mut ModelLock)) {
        let before = self.lock.clone();
        does(&mut self.lock);
        for held in before
            .holders
            .into_iter()
            .filter(|held| !self.lock.is_held_by(held.by))
        {
            if !self.claimed.remove(&held.by) {
                self.adrift.push(held);
            }
        }
        let passed = before
            .queue
            .into_iter()
            .filter(|waiter| !self.lock.is_held_by(*waiter));
        self.gone
            .extend(passed.filter(|waiter| !self.lock.queue.contains(waiter)));
    }

    /// The same world, in which turns are numbered by their order alone.
    fn normalized(mut self) -> PossibleState {
        let turns = |world: &mut PossibleState| -> BTreeSet<u32> {
            let adrift = world.adrift.iter_mut().map(|held| &mut held.turn);
            world.lock.turns().chain(adrift).map(|turn| *turn).collect()
        };
        let all = turns(&mut self);
        let adrift = self.adrift.iter_mut().map(|held| &mut held.turn);
        self.lock
            .turns()
            .chain(adrift)
            .for_each(|turn| *turn = all.range(..*turn).count() as u32);
        self.adrift.sort();
        self
    }

    /// A release or a leave reaches the server.
    fn end(&mut self, attempt: Attempt) {
        self.at_server(|lock| lock.end(attempt));
        self.ending.remove(&attempt);
        self.gone.remove(&attempt);
        self.adrift.retain(|lost| lost.by != attempt);
    }

    /// The attempt becomes a guard.
    fn claim(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        if !self.has_grant_for(attempt) {
            return Err(self.refuses(attempt.permits));
        }
        self.learn(attempt, fence)?;
        self.adrift.retain(|lost| lost.by != attempt);
        if self.lock.is_held_by(attempt) {
            self.claimed.insert(attempt);
        }
        Ok(())
    }

    /// The fence of a grant is seen.
    fn learn(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        let turn = learn(
            self.adrift.iter_mut().chain(&mut self.lock.holders),
            attempt,
            fence,
        )?;
        self.lock.learned(turn, fence);
        Ok(())
    }

    /// What a grant of so many permits breaks that is not due in this world.
    fn refuses(&self, permits: u32) -> Promise {
        if self.unclaimed().next().is_some() {
            Promise::Order
        } else if permits > self.lock.left() {
            Promise::Exclusion
        } else if !self.lock.queue.is_empty() {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    /// What is broken if others hold it than in this world.
    fn other_holders_break(&self, sight: Option<&Observation>) -> Promise {
        let shown = |number: u16| sight.is_some_and(|sight| sight.holders.contains_key(&number));
        let mut waiting = self
            .lock
            .queue
            .iter()
            .chain(&self.gone)
            .filter(|attempt| shown(attempt.number));
        let taken = self
            .lock
            .holders
            .iter()
            .filter(|held| shown(held.by.number))
            .map(|held| held.permits);
        let taken = taken
            .chain(waiting.clone().map(|attempt| attempt.permits))
            .map(u64::from)
            .sum::<u64>();
        let is_hidden =
            |held: &ModelGrant| self.claimed.contains(&held.by) && !shown(held.by.number);
        if taken > self.lock.permits().into() || self.lock.holders.iter().any(is_hidden) {
            Promise::Exclusion
        } else if self.unclaimed().next().is_some() || waiting.next().is_some() {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    fn knows(&self, attempt: Attempt) -> bool {
        self.lock.is_held_by(attempt)
            || self.lock.queue.contains(&attempt)
            || self.gone.contains(&attempt)
            || self.adrift.iter().any(|lost| lost.by == attempt)
    }
}

/// Somebody who neither holds nor waits.
const NOBODY: u8 = u8::MAX;

/// All worlds that these may turn into, themselves included.
pub(crate) fn closure(worlds: impl IntoIterator<Item = PossibleState>) -> BTreeSet<PossibleState> {
    let mut all = BTreeSet::new();
    let mut fresh: Vec<PossibleState> = worlds.into_iter().collect();
    while let Some(world) = fresh.pop() {
        if !all.contains(&world) {
            fresh.extend(world.by_itself());
            all.insert(world);
        }
    }
    all
}
