//! One name at the server: what it does with each request. This file matches requests with their
//! answers. `server` has the steps that they are made of.

mod server;

use std::collections::BTreeSet;

use super::grant::{FenceRange, ModelGrant, learn_fence};
use super::op::{Attempt, ModelKind, ModelOutcome, Observation, Op, ServerView};
use super::promise::Promise;

/// One name at the server. Only the requests and the [`ServerView`]s decide what it does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelLock {
    kind: ModelKind,
    pub(crate) holders: Vec<ModelGrant>,
    pub(crate) queue: Vec<Attempt>,
    /// The clients that count as dead until they send something. The server passes over their
    /// places (R10: places of the dead).
    pub(crate) presumed_dead: BTreeSet<u8>,
    /// Every new fence is larger than this.
    pub(crate) fence_floor: u64,
    /// The last turn that was given out, as [`ModelGrant::turn`] counts them.
    last_turn: u32,
    /// The fence of that turn, which readers share.
    last_fence: FenceRange,
    /// These released too early. Nobody has their permits, and they are not free until their least
    /// hold time is over (R16: hold_at_least).
    cooling: Vec<ModelGrant>,
    /// These lost their places with the queue, and nobody has noticed (R11: missing keys). The
    /// server answers them that they wait, and never grants them the lock.
    lost_queue: Option<BTreeSet<Attempt>>,
    /// The record was lost, and the holders in their own key were not.
    is_recordless: bool,
    /// The holders were lost. Until the next writer, readers get a fence from the server's clock at
    /// the first request that wrote since.
    is_fenceless: bool,
    view: ServerView,
    /// The last request left free permits free, because it had passed over as many waiters as one
    /// request may.
    is_unfinished: bool,
}

impl ModelLock {
    /// A name that nobody has used.
    pub(crate) fn new(kind: ModelKind) -> ModelLock {
        ModelLock {
            kind,
            ..ModelLock::default()
        }
    }

    /// A name with these holders and waiters. `last_fence` is the fence that was given out last.
    pub(crate) fn from_record(
        kind: ModelKind,
        holders: Vec<FoundHolder>,
        queue: Vec<Attempt>,
        last_fence: u64,
    ) -> ModelLock {
        let fences: BTreeSet<u64> = holders
            .iter()
            .map(|holder| holder.fence)
            .chain([last_fence])
            .collect();
        let turn = |fence| fences.range(..fence).count() as u32;
        let grant = |holder: FoundHolder| ModelGrant {
            attempt: holder.attempt,
            permits: holder.permits,
            fence: FenceRange::known(holder.fence),
            turn: turn(holder.fence),
            lapsed: false,
            spared: holder.spared,
            granted_at: holder.fence,
        };
        ModelLock {
            holders: holders.into_iter().map(grant).collect(),
            queue,
            fence_floor: last_fence,
            last_turn: turn(last_fence),
            last_fence: if last_fence > 0 {
                FenceRange::known(last_fence)
            } else {
                FenceRange::default()
            },
            ..ModelLock::new(kind)
        }
    }

    /// The same state, but the list has lost the entries of these waiters.
    pub(crate) fn with_lost_queue(self, lost: BTreeSet<Attempt>) -> ModelLock {
        ModelLock {
            lost_queue: Some(lost),
            ..self
        }
    }

    /// The state after one request, given its answer and the record that it left.
    ///
    /// # Errors
    /// The promise that the answer or the record breaks.
    pub(crate) fn request(
        &self,
        view: ServerView,
        op: Op,
        outcome: &ModelOutcome,
        seen: &Observation,
    ) -> Result<ModelLock, Promise> {
        let arrived = self
            .after(&Op::Arrive(view), &ModelOutcome::Done)?
            .swap_remove(0);
        // If a waiter of the old queue holds the lock now, a promise of grants was broken by
        // serving the wrong one: that is the order (P3).
        let waited = self
            .queue
            .iter()
            .any(|attempt| seen.holders.contains_key(&attempt.number));
        let answered = arrived
            .after(&op, outcome)
            .map_err(|promise| match promise {
                Promise::OneGrant | Promise::WakeUp if waited => Promise::Order,
                promise => promise,
            })?;
        let mut broken = Promise::OneGrant;
        for mut lock in answered {
            match lock.check_observation(self, seen) {
                Ok(()) => return Ok(lock),
                Err(promise) => broken = promise,
            }
        }
        Err(broken)
    }

    /// The states that this one can become by `op`, given what was seen of it.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub(crate) fn after(&self, op: &Op, outcome: &ModelOutcome) -> Result<Vec<ModelLock>, Promise> {
        let mut next = self.clone();
        // If the record alone was lost, the next request writes a new one, with these exceptions.
        let writes_no_record = matches!(
            op,
            Op::Arrive(_) | Op::Sync { .. } | Op::Renew(_) | Op::LoseData(_)
        );
        // An attempt that gets its own grant in a second reply writes no record either.
        let changes_nothing = match (op, outcome) {
            (
                Op::TryLock(attempt)
                | Op::Enqueue(attempt)
                | Op::Rejoin(attempt)
                | Op::Cancel(attempt),
                ModelOutcome::Granted { .. },
            ) => self.is_held_by(*attempt),
            _ => *outcome == ModelOutcome::Late,
        };
        next.is_recordless &= writes_no_record || changes_nothing;
        match (op, outcome) {
            (Op::Arrive(view), ModelOutcome::Done) => next.arrive(view),
            // R5 (dated requests): a late request changes nothing.
            (_, ModelOutcome::Late) => {}
            (
                Op::TryLock(attempt)
                | Op::Enqueue(attempt)
                | Op::Rejoin(attempt)
                | Op::Cancel(attempt),
                ModelOutcome::Granted { fence },
            ) if self.is_held_by(*attempt) => {
                next.learn(*attempt, *fence)?;
            }
            (Op::TryLock(attempt), ModelOutcome::Granted { fence }) => {
                next.try_lock(*attempt);
                next.expect_grant(self, *attempt, *fence)?;
            }
            (Op::TryLock(attempt), ModelOutcome::Busy) => {
                next.try_lock(*attempt);
                if next.is_held_by(*attempt) {
                    return Err(Promise::WakeUp);
                }
            }
            (
                Op::TryLock(attempt) | Op::Enqueue(attempt) | Op::Rejoin(attempt),
                ModelOutcome::SendAgain,
            ) => {
                next.try_lock(*attempt);
                if !next.is_unfinished {
                    return Err(Promise::WakeUp);
                }
            }
            (Op::Enqueue(attempt), outcome) => {
                next.enqueue(*attempt);
                next.expect_answer(self, *attempt, outcome)?;
            }
            (Op::Rejoin(attempt), outcome) => {
                next.enqueue(*attempt);
                next.expect_answer(self, *attempt, &without_position(outcome))?;
                let is_queued = next.queue.pop_if(|last| last == attempt).is_some();
                let places = if is_queued { next.queue.len() } else { 0 };
                return Ok((0..=places)
                    .map(|at| {
                        let mut next = next.clone();
                        next.queue.splice(at..at, is_queued.then_some(*attempt));
                        next
                    })
                    .collect());
            }
            (Op::Unlock(attempt) | Op::Cancel(attempt), ModelOutcome::Released)
                if self.is_held_by(*attempt) =>
            {
                next.release(*attempt, 0);
            }
            (Op::UnlockAfterTurns(attempt, behind), ModelOutcome::Released)
                if self.is_held_by(*attempt) && *behind <= self.reserved(*attempt) =>
            {
                next.release(*attempt, *behind);
            }
            // Nobody says which turn was the last, so all fences that it has reserved count as used.
            (Op::Drop(attempt), ModelOutcome::Released) if self.is_held_by(*attempt) => {
                next.release(*attempt, self.reserved(*attempt));
            }
            (Op::Downgrade(attempt), ModelOutcome::Downgraded) if self.is_held_by(*attempt) => {
                next.downgrade(*attempt)
            }
            (
                Op::Unlock(attempt)
                | Op::UnlockAfterTurns(attempt, _)
                | Op::Drop(attempt)
                | Op::Cancel(attempt)
                | Op::Downgrade(attempt),
                ModelOutcome::Lost,
            ) if !self.is_held_by(*attempt) => {
                let has_left = next.remove_from_queue(*attempt);
                next.notice_and_hand_over(attempt.client);
                // R11 (missing keys): a request that takes a waiter out of the list looks at it.
                if has_left {
                    next.notice_lost_queue();
                }
            }
            (Op::Renew(attempt), ModelOutcome::Renewed) if self.is_held_by(*attempt) => {
                next.renew(*attempt)
            }
            (Op::Renew(attempt), ModelOutcome::Lost) if !self.is_held_by(*attempt) => {}
            // The server's answer to a guard was wrong about its lock. So two processes can believe
            // that they hold it.
            (Op::Unlock(_) | Op::UnlockAfterTurns(..) | Op::Drop(_), _)
            | (Op::Cancel(_) | Op::Renew(_) | Op::Downgrade(_), _) => {
                return Err(Promise::Exclusion);
            }
            (Op::Sync { client }, ModelOutcome::Done) => {
                next.notice_lost_queue();
                next.note_sign_of_life(*client);
                next.notice_and_hand_over(*client);
            }
            (Op::Sync { .. }, ModelOutcome::Absent)
                if self.is_recordless || self.holders.is_empty() && self.queue.is_empty() => {}
            (Op::ForceRelease { client, fence }, ModelOutcome::Released)
                if self.is_taken_with_fence(*fence) =>
            {
                next.force_release(*fence);
                next.notice_and_hand_over(*client);
            }
            (Op::ForceRelease { client, fence }, ModelOutcome::Refused)
                if !self.is_taken_with_fence(*fence) =>
            {
                if self.kind != ModelKind::Mutex {
                    next.notice_lapses(*client, None);
                }
                next.hand_over();
            }
            (Op::ForceRelease { .. }, _) => return Err(Promise::Fencing),
            (Op::Repeat(None), ModelOutcome::Refused) if self.holders.is_empty() => {}
            (Op::Repeat(Some(number)), ModelOutcome::Granted { fence }) => {
                let attempt = self.holder(*number).ok_or(Promise::OneGrant)?;
                next.learn(attempt, *fence)?;
            }
            (Op::Misuse, ModelOutcome::Forbidden) => {}
            (Op::Misuse, _) => return Err(Promise::BadInput),
            (Op::Expire, ModelOutcome::Done) => next
                .holders
                .iter_mut()
                .for_each(|grant| grant.lapsed = true),
            (Op::LoseData(loss), ModelOutcome::Done) => next.lose_data(*loss),
            // No such pair exists.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![next])
    }

    fn expect_grant(
        &mut self,
        before: &ModelLock,
        attempt: Attempt,
        fence: u64,
    ) -> Result<(), Promise> {
        if !self.is_held_by(attempt) {
            return Err(self.promise_broken_by_grant(before, attempt));
        }
        self.learn(attempt, fence)
    }

    fn expect_answer(
        &mut self,
        before: &ModelLock,
        attempt: Attempt,
        outcome: &ModelOutcome,
    ) -> Result<(), Promise> {
        match outcome {
            ModelOutcome::Granted { fence } => self.expect_grant(before, attempt, *fence),
            ModelOutcome::Waiting { .. } if self.is_held_by(attempt) => Err(Promise::WakeUp),
            ModelOutcome::Waiting { position } => {
                let ahead = self
                    .queue
                    .iter()
                    .position(|other| *other == attempt)
                    .unwrap_or(0) as u64;
                if position.is_none_or(|position| ahead < position) {
                    Ok(())
                } else {
                    Err(Promise::Order)
                }
            }
            _ => Err(Promise::OneGrant),
        }
    }

    fn learn(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        let turn = learn_fence(self.holders.iter_mut(), attempt, fence)?;
        self.learn_turn(turn, fence);
        Ok(())
    }

    /// The fence of this turn becomes known.
    pub(crate) fn learn_turn(&mut self, turn: u32, fence: u64) {
        if matches!(self.kind, ModelKind::ReadWrite(_)) {
            self.last_fence.learn(self.last_turn, turn, fence);
        }
        self.fence_floor = self.fence_floor.max(fence);
    }

    /// Compares with the record that a request left. `before` is the state when it arrived.
    fn check_observation(&mut self, before: &ModelLock, seen: &Observation) -> Result<(), Promise> {
        for (attempt, fence) in
            self.compare(Some(seen), self.promise_broken_by_holders(before, seen))?
        {
            self.learn(attempt, fence)?;
        }
        match seen.last_fence {
            Some(fence) if fence != self.fence_floor => Err(Promise::Fencing),
            _ => Ok(()),
        }
    }

    /// The promise that is broken if the record has other holders than these.
    fn promise_broken_by_holders(&self, before: &ModelLock, seen: &Observation) -> Promise {
        let permits = |number: &u16| {
            let held = self
                .holders
                .iter()
                .find(|grant| grant.attempt.number == *number)
                .map(|grant| grant.permits);
            let waited = before
                .queue
                .iter()
                .find(|attempt| attempt.number == *number);
            u64::from(held.or(waited.map(|attempt| attempt.permits)).unwrap_or(0))
        };
        let rest = u64::from(self.taken())
            - self
                .holders
                .iter()
                .map(|grant| u64::from(grant.permits))
                .sum::<u64>();
        let taken = seen.holders.keys().map(permits).sum::<u64>() + rest;
        let hidden = || {
            self.holders
                .iter()
                .filter(|grant| !seen.holders.contains_key(&grant.attempt.number))
        };
        let others: Vec<u16> = seen
            .holders
            .keys()
            .copied()
            .filter(|number| self.holder(*number).is_none())
            .collect();
        let waited = |number: &u16| before.queue.iter().any(|attempt| attempt.number == *number);
        if taken > self.kind.permits().into()
            || hidden().any(|grant| before.is_held_by(grant.attempt))
        {
            Promise::Exclusion
        } else if others.is_empty() {
            Promise::WakeUp
        } else if hidden().next().is_some() || others.iter().any(waited) {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    /// The holders and their fences, if the observation agrees with this state.
    ///
    /// # Errors
    /// `other_holders` if there are other holders; another promise if the queue differs.
    pub(crate) fn compare(
        &self,
        seen: Option<&Observation>,
        other_holders: Promise,
    ) -> Result<Vec<(Attempt, u64)>, Promise> {
        let nobody = Observation::default();
        let seen = seen.unwrap_or(&nobody);
        if seen.queue.iter().collect::<BTreeSet<_>>().len() < seen.queue.len() {
            return Err(Promise::OneGrant);
        }
        let holders = seen
            .holders
            .iter()
            .map(|(number, fence)| Some((self.holder(*number)?, *fence)));
        let holders = holders
            .collect::<Option<Vec<_>>>()
            .filter(|holders| holders.len() == self.holders.len());
        let holders = holders.ok_or(other_holders)?;
        if !seen
            .queue
            .iter()
            .eq(self.queue.iter().map(|attempt| &attempt.number))
        {
            return Err(Promise::Order);
        }
        Ok(holders)
    }

    /// The promise that a grant to this attempt breaks, since it is not its turn. `before` is the
    /// state when its request arrived.
    fn promise_broken_by_grant(&self, before: &ModelLock, attempt: Attempt) -> Promise {
        if self
            .holders
            .iter()
            .any(|grant| !before.is_held_by(grant.attempt))
        {
            Promise::Order
        } else if attempt.permits > self.free() {
            Promise::Exclusion
        } else if !self.queue.is_empty() {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    fn taken(&self) -> u32 {
        self.holders
            .iter()
            .chain(self.still_cooling())
            .map(|grant| grant.permits)
            .sum()
    }

    fn still_cooling(&self) -> impl Iterator<Item = &ModelGrant> {
        self.cooling.iter().filter(|grant| !grant.lapsed)
    }

    /// How many permits there are.
    pub(crate) fn permits(&self) -> u32 {
        self.kind.permits()
    }

    /// How many permits are free.
    pub(crate) fn free(&self) -> u32 {
        self.kind.permits().saturating_sub(self.taken())
    }

    /// Whether the caller must send the last request again, to pass over more waiters.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    fn is_taken_with_fence(&self, fence: u64) -> bool {
        self.holders
            .iter()
            .chain(self.still_cooling())
            .any(|grant| grant.fence.is(fence))
    }

    fn holder(&self, number: u16) -> Option<Attempt> {
        self.holders
            .iter()
            .map(|grant| grant.attempt)
            .find(|attempt| attempt.number == number)
    }

    /// Whether this attempt holds the lock.
    pub(crate) fn is_held_by(&self, attempt: Attempt) -> bool {
        self.holders.iter().any(|grant| grant.attempt == attempt)
    }

    /// The numbers of the holders, and of the attempts for which the lock cools.
    pub(crate) fn taken_by(&self) -> impl Iterator<Item = u16> {
        self.holders
            .iter()
            .chain(&self.cooling)
            .map(|grant| grant.attempt.number)
    }

    /// All turns that are in use, so that the caller can number them again.
    pub(crate) fn turns(&mut self) -> impl Iterator<Item = &mut u32> {
        let holders = self.holders.iter_mut().chain(&mut self.cooling);
        holders
            .map(|grant| &mut grant.turn)
            .chain([&mut self.last_turn])
    }
}

/// A holder whose fence is known.
pub(crate) struct FoundHolder {
    pub(crate) attempt: Attempt,
    pub(crate) permits: u32,
    pub(crate) fence: u64,
    pub(crate) spared: bool,
}

/// The same answer without the position: a late copy of an acquire can land anywhere in the queue.
fn without_position(outcome: &ModelOutcome) -> ModelOutcome {
    match outcome {
        ModelOutcome::Waiting { .. } => ModelOutcome::Waiting { position: None },
        other => other.clone(),
    }
}
