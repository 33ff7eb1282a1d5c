//! The reference model: what one name at the server does with each request. Pure, and told everything. Here is what is
//! asked and answered; what the server does about it is in `server`.

mod server;

use std::collections::BTreeSet;

use super::grant::{FenceRange, ModelGrant, learn};
use super::op::{Attempt, ModelKind, ModelOutcome, Observation, Op, ServerView};
use super::promise::Promise;

/// One name at the server. What it does is decided by what it is asked, and by the time that it is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelLock {
    kind: ModelKind,
    pub(crate) holders: Vec<ModelGrant>,
    pub(crate) queue: Vec<Attempt>,
    /// Clients that count as dead until they are heard of: each one's places are passed over (R10).
    pub(crate) void: BTreeSet<u8>,
    /// All fences from now on are larger.
    pub(crate) floor: u64,
    /// The last turn of [`ModelGrant::turn`], and its fence if readers share it.
    turn: u32,
    last: FenceRange,
    /// Nobody's, and not free until the least time of these holders of before is over (R16).
    cooling: Vec<ModelGrant>,
    /// Permits that count as taken, of holders that the server lost.
    missing: u32,
    /// The queue lost these, and nobody has noticed (R11). They are told that they wait, and are never granted it.
    torn: Option<BTreeSet<Attempt>>,
    /// The record was lost, and the holders were not.
    is_recordless: bool,
    moment: ServerView,
    /// What is free was left so, since the request that came last had passed over as many as it may.
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

    /// A name with these holders and those who wait, and the fence that was given last.
    pub(crate) fn found(
        kind: ModelKind,
        holders: Vec<FoundHolder>,
        queue: Vec<Attempt>,
        floor: u64,
    ) -> ModelLock {
        let last = if floor > 0 {
            FenceRange::known(floor)
        } else {
            FenceRange::default()
        };
        let mut lock = ModelLock {
            queue,
            floor,
            last,
            ..ModelLock::new(kind)
        };
        let fences: BTreeSet<u64> = holders
            .iter()
            .map(|held| held.fence)
            .chain([floor])
            .collect();
        let turn = |fence| fences.range(..fence).count() as u32;
        lock.turn = turn(floor);
        let held = |FoundHolder {
                        by,
                        permits,
                        fence,
                        spared,
                    }| ModelGrant {
            by,
            permits,
            fence: FenceRange::known(fence),
            turn: turn(fence),
            lapsed: false,
            spared,
        };
        lock.holders = holders.into_iter().map(held).collect();
        lock
    }

    /// What a request leaves, if it was answered so at this moment and `sight` is what it left.
    pub(crate) fn request(
        &self,
        moment: ServerView,
        op: Op,
        outcome: &ModelOutcome,
        sight: &Observation,
    ) -> Result<ModelLock, Promise> {
        let arrived = self
            .after(&Op::Arrive(moment), &ModelOutcome::Done)?
            .swap_remove(0);
        // Somebody was served who was to be passed over.
        let waited = self
            .queue
            .iter()
            .any(|attempt| sight.holders.contains_key(&attempt.number));
        let answered = arrived
            .after(&op, outcome)
            .map_err(|promise| match promise {
                Promise::OneGrant | Promise::WakeUp if waited => Promise::Order,
                promise => promise,
            })?;
        let mut broken = Promise::OneGrant;
        for mut lock in answered {
            match lock.see(self, sight) {
                Ok(()) => return Ok(lock),
                Err(promise) => broken = promise,
            }
        }
        Err(broken)
    }

    /// What this may be after `op`, given what was seen of it; or the promise that this breaks.
    pub(crate) fn after(&self, op: &Op, outcome: &ModelOutcome) -> Result<Vec<ModelLock>, Promise> {
        let mut next = self.clone();
        // What a record is made of again, if it was lost alone.
        let makes_none = matches!(
            op,
            Op::Arrive(_) | Op::Sync { .. } | Op::Renew(_) | Op::LoseData(_)
        );
        // Nor does who hears of his own grant once more.
        let hears = match (op, outcome) {
            (
                Op::TryLock(by) | Op::Enqueue(by) | Op::Rejoin(by) | Op::Cancel(by),
                ModelOutcome::Granted { .. },
            ) => self.is_held_by(*by),
            _ => *outcome == ModelOutcome::Late,
        };
        next.is_recordless &= makes_none || hears;
        match (op, outcome) {
            (Op::Arrive(moment), ModelOutcome::Done) => next.arrive_at(moment),
            // R5
            (_, ModelOutcome::Late) => {}
            (
                Op::TryLock(by) | Op::Enqueue(by) | Op::Rejoin(by) | Op::Cancel(by),
                ModelOutcome::Granted { fence },
            ) if self.is_held_by(*by) => {
                next.learn(*by, *fence)?;
            }
            (Op::TryLock(attempt), ModelOutcome::Granted { fence }) => {
                next.try_lock(*attempt);
                next.is_granted(self, *attempt, *fence)?;
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
                next.has_answered(self, *attempt, outcome)?;
            }
            (Op::Rejoin(attempt), outcome) => {
                next.enqueue(*attempt);
                next.has_answered(self, *attempt, &unplaced(outcome))?;
                let stands = next.queue.pop_if(|last| last == attempt).is_some();
                let places = if stands { next.queue.len() } else { 0 };
                return Ok((0..=places)
                    .map(|at| {
                        let mut next = next.clone();
                        next.queue.splice(at..at, stands.then_some(*attempt));
                        next
                    })
                    .collect());
            }
            (Op::Unlock(by) | Op::Drop(by) | Op::Cancel(by), ModelOutcome::Released)
                if self.is_held_by(*by) =>
            {
                next.end(*by);
            }
            (Op::Downgrade(by), ModelOutcome::Downgraded) if self.is_held_by(*by) => {
                next.downgrade(*by)
            }
            (
                Op::Unlock(by) | Op::Drop(by) | Op::Cancel(by) | Op::Downgrade(by),
                ModelOutcome::Lost,
            ) if !self.is_held_by(*by) => {
                next.leave(*by);
                next.pass_on(by.client);
            }
            (Op::Renew(by), ModelOutcome::Renewed) if self.is_held_by(*by) => next.prolong(*by),
            (Op::Renew(by), ModelOutcome::Lost) if !self.is_held_by(*by) => {}
            // A guard that is told the wrong thing of its lock is one of two who believe that they hold it.
            (Op::Unlock(_) | Op::Drop(_) | Op::Cancel(_) | Op::Renew(_) | Op::Downgrade(_), _) => {
                return Err(Promise::Exclusion);
            }
            (Op::Sync { client }, ModelOutcome::Done) => {
                next.notice_loss();
                next.hear_of(*client);
                next.pass_on(*client);
            }
            (Op::Sync { .. }, ModelOutcome::Absent)
                if self.is_recordless || self.holders.is_empty() && self.queue.is_empty() => {}
            (Op::ForceRelease { client, fence }, ModelOutcome::Released)
                if self.is_taken_with(*fence) =>
            {
                next.force(*fence);
                next.pass_on(*client);
            }
            (Op::ForceRelease { client, fence }, ModelOutcome::Refused)
                if !self.is_taken_with(*fence) =>
            {
                if self.kind != ModelKind::Mutex {
                    next.notice_lapses(*client, None);
                }
                next.promote();
            }
            (Op::ForceRelease { .. }, _) => return Err(Promise::Fencing),
            (Op::Repeat(None), ModelOutcome::Refused) if self.holders.is_empty() => {}
            (Op::Repeat(Some(number)), ModelOutcome::Granted { fence }) => {
                let by = self.holder(*number).ok_or(Promise::OneGrant)?;
                next.learn(by, *fence)?;
            }
            (Op::Misuse, ModelOutcome::Forbidden) => {}
            (Op::Misuse, _) => return Err(Promise::BadInput),
            (Op::Expire, ModelOutcome::Done) => {
                next.holders.iter_mut().for_each(|held| held.lapsed = true)
            }
            (Op::LoseData(loss), ModelOutcome::Done) => next.lose(*loss),
            // There is no such outcome.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![next])
    }

    fn is_granted(
        &mut self,
        before: &ModelLock,
        attempt: Attempt,
        fence: u64,
    ) -> Result<(), Promise> {
        if !self.is_held_by(attempt) {
            return Err(self.refuses(before, attempt));
        }
        self.learn(attempt, fence)
    }

    fn has_answered(
        &mut self,
        before: &ModelLock,
        attempt: Attempt,
        outcome: &ModelOutcome,
    ) -> Result<(), Promise> {
        match outcome {
            ModelOutcome::Granted { fence } => self.is_granted(before, attempt, *fence),
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

    fn learn(&mut self, by: Attempt, fence: u64) -> Result<(), Promise> {
        let turn = learn(self.holders.iter_mut(), by, fence)?;
        self.learned(turn, fence);
        Ok(())
    }

    /// The fence of a turn is seen.
    pub(crate) fn learned(&mut self, turn: u32, fence: u64) {
        if matches!(self.kind, ModelKind::ReadWrite(_)) {
            self.last.learn(self.turn, turn, fence);
        }
        self.floor = self.floor.max(fence);
    }

    /// What a request left is seen. `before` is what was there when it arrived.
    fn see(&mut self, before: &ModelLock, sight: &Observation) -> Result<(), Promise> {
        for (by, fence) in self.compare(Some(sight), self.other_holders_break(before, sight))? {
            self.learn(by, fence)?;
        }
        Ok(())
    }

    /// What is broken if others hold it than these.
    fn other_holders_break(&self, before: &ModelLock, sight: &Observation) -> Promise {
        let permits = |number: &u16| {
            let held = self
                .holders
                .iter()
                .find(|held| held.by.number == *number)
                .map(|held| held.permits);
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
                .map(|held| u64::from(held.permits))
                .sum::<u64>();
        let taken = sight.holders.keys().map(permits).sum::<u64>() + rest;
        let hidden = || {
            self.holders
                .iter()
                .filter(|held| !sight.holders.contains_key(&held.by.number))
        };
        let others: Vec<u16> = sight
            .holders
            .keys()
            .copied()
            .filter(|number| self.holder(*number).is_none())
            .collect();
        let waited = |number: &u16| before.queue.iter().any(|attempt| attempt.number == *number);
        if taken > self.kind.permits().into() || hidden().any(|held| before.is_held_by(held.by)) {
            Promise::Exclusion
        } else if others.is_empty() {
            Promise::WakeUp
        } else if hidden().next().is_some() || others.iter().any(waited) {
            Promise::Order
        } else {
            Promise::OneGrant
        }
    }

    /// Whose fences are seen; or what is broken, if there are other holders, or another queue.
    pub(crate) fn compare(
        &self,
        sight: Option<&Observation>,
        other_holder: Promise,
    ) -> Result<Vec<(Attempt, u64)>, Promise> {
        let nobody = Observation::default();
        let sight = sight.unwrap_or(&nobody);
        if sight.queue.iter().collect::<BTreeSet<_>>().len() < sight.queue.len() {
            return Err(Promise::OneGrant);
        }
        let holders = sight
            .holders
            .iter()
            .map(|(number, fence)| Some((self.holder(*number)?, *fence)));
        let holders = holders
            .collect::<Option<Vec<_>>>()
            .filter(|holders| holders.len() == self.holders.len());
        let holders = holders.ok_or(other_holder)?;
        if !sight
            .queue
            .iter()
            .eq(self.queue.iter().map(|attempt| &attempt.number))
        {
            return Err(Promise::Order);
        }
        Ok(holders)
    }

    /// What a grant breaks that is not due. `before` is what was there when it was asked for.
    fn refuses(&self, before: &ModelLock, attempt: Attempt) -> Promise {
        if self.holders.iter().any(|held| !before.is_held_by(held.by)) {
            Promise::Order
        } else if attempt.permits > self.left() {
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
            .chain(self.cools())
            .map(|held| held.permits)
            .sum::<u32>()
            + self.missing
    }

    fn cools(&self) -> impl Iterator<Item = &ModelGrant> {
        self.cooling.iter().filter(|held| !held.lapsed)
    }

    /// How many permits there are.
    pub(crate) fn permits(&self) -> u32 {
        self.kind.permits()
    }

    /// How many permits are free.
    pub(crate) fn left(&self) -> u32 {
        self.kind.permits().saturating_sub(self.taken())
    }

    /// Permits that count as taken, of holders that the server lost.
    pub(crate) fn missing(&self) -> u32 {
        self.missing
    }

    /// Whether the request that came last is to be sent again, to pass over more.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    fn is_taken_with(&self, fence: u64) -> bool {
        self.holders
            .iter()
            .chain(self.cools())
            .any(|held| held.fence.is(fence))
    }

    fn holder(&self, number: u16) -> Option<Attempt> {
        self.holders
            .iter()
            .map(|held| held.by)
            .find(|by| by.number == number)
    }

    /// Who has it.
    pub(crate) fn is_held_by(&self, attempt: Attempt) -> bool {
        self.holders.iter().any(|held| held.by == attempt)
    }

    /// The numbers of those who hold it, or for whom it cools.
    pub(crate) fn taken_by(&self) -> impl Iterator<Item = u16> {
        self.holders
            .iter()
            .chain(&self.cooling)
            .map(|held| held.by.number)
    }

    /// The turns in which there is something, and how they are numbered.
    pub(crate) fn turns(&mut self) -> impl Iterator<Item = &mut u32> {
        let holders = self.holders.iter_mut().chain(&mut self.cooling);
        holders.map(|held| &mut held.turn).chain([&mut self.turn])
    }
}

/// A holder whose fence is known.
pub(crate) struct FoundHolder {
    pub(crate) by: Attempt,
    pub(crate) permits: u32,
    pub(crate) fence: u64,
    pub(crate) spared: bool,
}

/// The answer of the one who comes back, whose place is not known.
fn unplaced(outcome: &ModelOutcome) -> ModelOutcome {
    match outcome {
        ModelOutcome::Waiting { .. } => ModelOutcome::Waiting { position: None },
        other => other.clone(),
    }
}
