//! One state that a name and its clients can be in, given what the clients saw.

use std::collections::BTreeSet;

use super::grant::{ModelGrant, learn_fence};
use super::lock::ModelLock;
use super::op::{Attempt, LeaseTerm, ModelKind, ModelOutcome, Observation, Op};
use super::promise::Promise;

/// A name at the server, and the work that the clients' background threads still have to do.
///
/// No client can see when that work happens. So the model guesses:
/// [`PossibleState::background_steps`] lists everything that may happen next, and
/// [`PossibleStates`](super::PossibleStates) keeps the states that agree with what is seen.
///
/// | an attempt is | when |
/// |---|---|
/// | in the lock's queue | it waits |
/// | a holder of the lock | it was granted, and that has not ended |
/// | in `lost_grants` | it was granted the lock, lost it before a guard took the grant, and may not know yet. It can make a guard of the lost grant, or find out and wait again |
/// | in `to_requeue` | it knows that, or the server passed it over as dead. It will wait again, at the end of the queue |
/// | nowhere | it has ended, or is a guard that lost its lock |
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PossibleState {
    lock: ModelLock,
    /// The holders that are guards already, and no longer waiters.
    guards: BTreeSet<Attempt>,
    /// The attempts that lost their place or grant, and will wait again.
    to_requeue: BTreeSet<Attempt>,
    /// Grants that ended before a guard took them. Their processes may not know yet.
    lost_grants: Vec<ModelGrant>,
    /// The attempts that the background still has to release.
    releasing: BTreeSet<Attempt>,
}

impl PossibleState {
    /// A name that nobody has used.
    pub(crate) fn new(kind: ModelKind) -> PossibleState {
        PossibleState {
            lock: ModelLock::new(kind),
            ..PossibleState::default()
        }
    }

    /// Whether this attempt can become a guard now.
    pub(crate) fn has_grant_for(&self, attempt: Attempt) -> bool {
        self.untaken_grants()
            .chain(&self.lost_grants)
            .any(|grant| grant.attempt == attempt)
    }

    fn untaken_grants(&self) -> impl Iterator<Item = &ModelGrant> {
        self.lock
            .holders
            .iter()
            .filter(|grant| !self.guards.contains(&grant.attempt))
    }

    /// How many holders there are.
    pub(crate) fn holders(&self) -> usize {
        self.lock.holders.len()
    }

    /// How many attempts still have background work.
    pub(crate) fn at_work(&self) -> usize {
        self.lost_grants.len() + self.to_requeue.len() + self.releasing.len()
    }

    /// Whether the attempt's release is under way.
    pub(crate) fn is_releasing(&self, attempt: Attempt) -> bool {
        self.releasing.contains(&attempt)
    }

    /// The states that this one can become by background work alone.
    pub(crate) fn background_steps(&self) -> Vec<PossibleState> {
        let mut next = Vec::new();
        let mut may = |happen: &dyn Fn(&mut PossibleState)| {
            let mut state = self.clone();
            happen(&mut state);
            next.push(state.normalized());
        };
        for grant in self.lock.holders.iter().filter(|grant| grant.lapsed) {
            // A renewal comes in time (R9: own lapse). A waiter renews too, to confirm a doubtful
            // grant (R12).
            if grant.attempt.lease == LeaseTerm::Renewed || !self.guards.contains(&grant.attempt) {
                may(&|state| state.lock.renew(grant.attempt));
            }
        }
        // A request that notices one lapse notices all.
        let lapsed = self
            .lock
            .holders
            .iter()
            .filter(|grant| grant.lapsed)
            .map(|grant| grant.attempt.client);
        for noticer in lapsed
            .clone()
            .chain(lapsed.clone().next().map(|_| NOBODY))
            .collect::<BTreeSet<_>>()
        {
            may(&|state| state.at_server(|lock| lock.notice_and_hand_over(noticer)));
        }
        for client in &self.lock.presumed_dead {
            may(&|state| {
                state.lock.presumed_dead.remove(client);
            });
        }
        for lost in &self.lost_grants {
            may(&|state| {
                state.lost_grants.retain(|other| other != lost);
                state.to_requeue.insert(lost.attempt);
            });
        }
        for client in self
            .to_requeue
            .iter()
            .map(|attempt| attempt.client)
            .collect::<BTreeSet<_>>()
        {
            // R4 (lost places): a process takes its places again in their order.
            if let Some(first) = self
                .to_requeue
                .iter()
                .copied()
                .find(|attempt| attempt.client == client)
            {
                may(&|state| {
                    state.to_requeue.remove(&first);
                    state.at_server(|lock| lock.enqueue(first));
                });
            }
        }
        for attempt in &self.releasing {
            may(&|state| state.release(*attempt));
        }
        next
    }

    /// The states that this one can become by `op`, given what was seen of it.
    ///
    /// # Errors
    /// The promise that the observation breaks here.
    pub(crate) fn after(
        &self,
        op: &Op,
        outcome: &ModelOutcome,
    ) -> Result<Vec<PossibleState>, Promise> {
        let mut state = self.clone();
        match (op, outcome) {
            (Op::TryLock(attempt), ModelOutcome::Granted { fence }) => {
                state.at_server(|lock| lock.try_lock(*attempt));
                state.take_grant(*attempt, *fence)?;
            }
            (Op::TryLock(attempt), ModelOutcome::Busy) => {
                state.at_server(|lock| lock.try_lock(*attempt));
                if state.has_grant_for(*attempt) {
                    return Err(Promise::WakeUp);
                }
            }
            (Op::TakeGrant(attempt), ModelOutcome::Granted { fence }) => {
                state.take_grant(*attempt, *fence)?
            }
            (
                Op::Enqueue(attempt),
                ModelOutcome::Waiting {
                    position: Some(position),
                },
            ) => {
                state.at_server(|lock| lock.enqueue(*attempt));
                match state.lock.queue.iter().position(|other| other == attempt) {
                    Some(ahead) if (ahead as u64) < *position => {}
                    Some(_) => return Err(Promise::Order),
                    None => return Err(Promise::WakeUp),
                }
            }
            (Op::Enqueue(attempt), ModelOutcome::Waiting { position: None }) => {
                state.at_server(|lock| lock.enqueue(*attempt));
                // The grant can have come between the answer and the look at the position.
                let mut states = closure([state.normalized()]);
                states.retain(|state| !state.lock.queue.contains(attempt));
                return if states.is_empty() {
                    Err(self.promise_broken_by_grant(attempt.permits))
                } else {
                    Ok(states.into_iter().collect())
                };
            }
            (Op::TakeGrant(_), ModelOutcome::NotYet) => {}
            (Op::Cancel(attempt) | Op::Drop(attempt), ModelOutcome::Done) => {
                let mut later = self.clone();
                later.releasing.insert(*attempt);
                state.release(*attempt);
                let state = state.normalized();
                // A lost token is released at the loss, or now, or never.
                return Ok(vec![
                    state,
                    if self.knows(*attempt) {
                        later
                    } else {
                        self.clone()
                    },
                ]);
            }
            (Op::Unlock(attempt), ModelOutcome::Released) if self.lock.is_held_by(*attempt) => {
                state.release(*attempt)
            }
            (Op::Unlock(attempt), ModelOutcome::Lost) if !self.lock.is_held_by(*attempt) => {}
            // The server's answer to a guard was wrong about its lock. So two processes can believe
            // that they hold it.
            (Op::Unlock(_), ModelOutcome::Released | ModelOutcome::Lost) => {
                return Err(Promise::Exclusion);
            }
            (Op::Inspect, ModelOutcome::Seen(seen)) => {
                for (attempt, fence) in self
                    .lock
                    .compare(seen.as_ref(), self.promise_broken_by_holders(seen.as_ref()))?
                {
                    state.learn(attempt, fence)?;
                }
            }
            (Op::Repeat(Some(number)), ModelOutcome::Granted { fence }) => {
                let grant = self
                    .lock
                    .holders
                    .iter()
                    .find(|grant| grant.attempt.number == *number);
                state.learn(grant.ok_or(Promise::OneGrant)?.attempt, *fence)?;
            }
            (Op::Lapse, ModelOutcome::Released) if !self.lock.holders.is_empty() => {
                state
                    .lock
                    .holders
                    .iter_mut()
                    .for_each(|grant| grant.lapsed = true);
                // A process whose own request noticed first is not dead.
                let first = self
                    .lock
                    .holders
                    .iter()
                    .map(|grant| grant.attempt.client)
                    .chain([NOBODY]);
                let noticed = first.map(|noticer| {
                    let mut state = state.clone();
                    state.at_server(|lock| lock.notice_and_hand_over(noticer));
                    state.normalized()
                });
                return Ok(noticed.collect());
            }
            (Op::Lapse, ModelOutcome::Refused) if self.lock.holders.is_empty() => {}
            (Op::Lapse, _) => return Err(Promise::Exclusion),
            // A client that knows of the loss asks nobody, so the server notices nothing.
            (Op::Downgrade(attempt), ModelOutcome::Lost) if !self.lock.is_held_by(*attempt) => {
                let mut asked = self.clone();
                let next = self.lock.after(op, outcome)?.swap_remove(0);
                asked.at_server(|lock| *lock = next);
                return Ok(vec![state.normalized(), asked.normalized()]);
            }
            // The server itself answers these.
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
                state.at_server(|lock| *lock = next);
            }
            // No such pair exists.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![state.normalized()])
    }

    /// The server does something. Afterwards the attempts that lost their grant or place by it are
    /// noted.
    fn at_server(&mut self, does: impl FnOnce(&mut ModelLock)) {
        let before = self.lock.clone();
        does(&mut self.lock);
        for grant in before
            .holders
            .into_iter()
            .filter(|grant| !self.lock.is_held_by(grant.attempt))
        {
            if !self.guards.remove(&grant.attempt) {
                self.lost_grants.push(grant);
            }
        }
        let passed = before
            .queue
            .into_iter()
            .filter(|waiter| !self.lock.is_held_by(*waiter));
        self.to_requeue
            .extend(passed.filter(|waiter| !self.lock.queue.contains(waiter)));
    }

    /// The same state with turns numbered by their order alone, so that equal states compare equal.
    fn normalized(mut self) -> PossibleState {
        let turns = |state: &mut PossibleState| -> BTreeSet<u32> {
            let lost_grants = state.lost_grants.iter_mut().map(|grant| &mut grant.turn);
            state
                .lock
                .turns()
                .chain(lost_grants)
                .map(|turn| *turn)
                .collect()
        };
        let all = turns(&mut self);
        let lost_grants = self.lost_grants.iter_mut().map(|grant| &mut grant.turn);
        self.lock
            .turns()
            .chain(lost_grants)
            .for_each(|turn| *turn = all.range(..*turn).count() as u32);
        self.lost_grants.sort();
        self
    }

    /// The release of a guard or of a waiter reaches the server.
    fn release(&mut self, attempt: Attempt) {
        self.at_server(|lock| lock.release(attempt, 0));
        self.releasing.remove(&attempt);
        self.to_requeue.remove(&attempt);
        self.lost_grants.retain(|lost| lost.attempt != attempt);
    }

    /// The attempt becomes a guard.
    fn take_grant(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        if !self.has_grant_for(attempt) {
            return Err(self.promise_broken_by_grant(attempt.permits));
        }
        self.learn(attempt, fence)?;
        self.lost_grants.retain(|lost| lost.attempt != attempt);
        if self.lock.is_held_by(attempt) {
            self.guards.insert(attempt);
        }
        Ok(())
    }

    /// The fence of a grant becomes known.
    fn learn(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        let turn = learn_fence(
            self.lost_grants.iter_mut().chain(&mut self.lock.holders),
            attempt,
            fence,
        )?;
        self.lock.learn_turn(turn, fence);
        Ok(())
    }

    /// The promise that a grant of this number of permits breaks, since it is not due here.
    fn promise_broken_by_grant(&self, permits: u32) -> Promise {
        if self.untaken_grants().next().is_some() {
            Promise::Order
        } else if permits > self.lock.free() {
            Promise::Exclusion
        } else if !self.lock.queue.is_empty() {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    /// The promise that is broken if there are other holders than in this state.
    fn promise_broken_by_holders(&self, seen: Option<&Observation>) -> Promise {
        let shown = |number: u16| seen.is_some_and(|seen| seen.holders.contains_key(&number));
        let mut waiting = self
            .lock
            .queue
            .iter()
            .chain(&self.to_requeue)
            .filter(|attempt| shown(attempt.number));
        let taken = self
            .lock
            .holders
            .iter()
            .filter(|grant| shown(grant.attempt.number))
            .map(|grant| grant.permits);
        let taken = taken
            .chain(waiting.clone().map(|attempt| attempt.permits))
            .map(u64::from)
            .sum::<u64>();
        let is_hidden = |grant: &ModelGrant| {
            self.guards.contains(&grant.attempt) && !shown(grant.attempt.number)
        };
        if taken > self.lock.permits().into() || self.lock.holders.iter().any(is_hidden) {
            Promise::Exclusion
        } else if self.untaken_grants().next().is_some() || waiting.next().is_some() {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    fn knows(&self, attempt: Attempt) -> bool {
        self.lock.is_held_by(attempt)
            || self.lock.queue.contains(&attempt)
            || self.to_requeue.contains(&attempt)
            || self.lost_grants.iter().any(|lost| lost.attempt == attempt)
    }
}

/// A client that neither holds nor waits.
const NOBODY: u8 = u8::MAX;

/// These states and all that they can become by background work.
pub(crate) fn closure(states: impl IntoIterator<Item = PossibleState>) -> BTreeSet<PossibleState> {
    let mut all = BTreeSet::new();
    let mut fresh: Vec<PossibleState> = states.into_iter().collect();
    while let Some(state) = fresh.pop() {
        if !all.contains(&state) {
            fresh.extend(state.background_steps());
            all.insert(state);
        }
    }
    all
}
