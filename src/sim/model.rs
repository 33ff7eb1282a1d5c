//! The reference model: what one name at the server does with each request. Pure, and told everything.

use std::collections::BTreeSet;
use std::fmt;

use super::grant::{Fence, Held, learn};
use super::op::{Attempt, Lease, Loss, Moment, Op, Outcome, Sight};

/// What the model holds a store to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// P1
    Exclusion,
    /// P2
    Fencing,
    /// P3
    Order,
    /// P4
    WakeUp,
    /// P7
    OneGrant,
    /// P10
    BadInput,
    /// P4, P5: a live waiter is served in time, whoever crashed
    Service,
    /// Nothing is left behind
    Leftovers,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Exclusion => "P1 (at most one holds it)",
            Promise::Fencing => "P2 (fences rise)",
            Promise::Order => "P3 (first come, first served)",
            Promise::WakeUp => "P4 (a free lock is granted)",
            Promise::OneGrant => "P7 (one grant per request, with one fence)",
            Promise::BadInput => "P10 (bad input changes nothing)",
            Promise::Service => "P5 (whoever waits is served in time)",
            Promise::Leftovers => "nothing is left behind",
        })
    }
}

/// One name at the server. What it does is decided by what it is asked, and by the time that it is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    pub(super) holder: Option<Held>,
    pub(super) queue: Vec<Attempt>,
    /// Clients that count as dead until they are heard of: each one's places are passed over (R10).
    pub(super) void: BTreeSet<u8>,
    /// All fences from now on are larger.
    pub(super) floor: u64,
    /// Nobody's, and not free: the last holder's least time is not over (R16).
    cooling: Option<Fence>,
    /// The queue lost these, and nobody has noticed (R11). They are told that they wait, and are never granted it.
    torn: Option<BTreeSet<Attempt>>,
    moment: Moment,
}

impl Lock {
    /// A name with this holder and his fence, and with those who wait.
    pub(super) fn found(holder: Option<(Attempt, u64)>, spared: bool, queue: Vec<Attempt>, floor: u64) -> Lock {
        let holder = holder.map(|(by, fence)| Held { by, fence: Fence::known(fence), lapsed: false, spared });
        Lock { holder, queue, floor, ..Lock::default() }
    }

    /// What a request leaves, if it was answered so at this moment and `sight` is what it left.
    pub(super) fn request(&self, moment: Moment, op: Op, outcome: &Outcome, sight: Sight) -> Result<Lock, Promise> {
        let shown = sight.holder.map(|(number, _)| number);
        let told = [(Op::At(moment), &Outcome::Done), (op, outcome), (Op::Inspect, &Outcome::Seen(Some(sight)))];
        let mut possible = vec![self.clone()];
        for (op, outcome) in told {
            let (mut next, mut broken) = (Vec::new(), None);
            for world in &possible {
                match world.after(&op, outcome) {
                    Ok(worlds) => next.extend(worlds),
                    Err(promise) => broken = Some(promise),
                }
            }
            possible = next;
            if let (true, Some(promise)) = (possible.is_empty(), broken) {
                // Somebody was served who was to be passed over.
                let waited = self.queue.iter().any(|attempt| Some(attempt.number) == shown);
                let is_order = waited && matches!(promise, Promise::OneGrant | Promise::WakeUp);
                return Err(if is_order { Promise::Order } else { promise });
            }
        }
        Ok(possible.swap_remove(0))
    }

    /// What this may be after `op`, given what was seen of it; or the promise that this breaks.
    pub fn after(&self, op: &Op, outcome: &Outcome) -> Result<Vec<Lock>, Promise> {
        let mut next = self.clone();
        match (op, outcome) {
            (Op::At(moment), Outcome::Done) => next.arrive_at(*moment),
            // R5
            (_, Outcome::Late) => {}
            (Op::TryLock(by) | Op::Enqueue(by) | Op::Return(by) | Op::Leave(by), Outcome::Granted { fence })
                if self.is_held_by(*by) =>
            {
                next.learn(*by, *fence)?;
            }
            (Op::TryLock(attempt), Outcome::Granted { fence }) => {
                next.try_lock(*attempt);
                next.is_granted(*attempt, *fence)?;
            }
            (Op::TryLock(attempt), Outcome::Busy) => {
                next.try_lock(*attempt);
                if next.is_held_by(*attempt) {
                    return Err(Promise::WakeUp);
                }
            }
            (Op::Enqueue(attempt), outcome) => {
                next.enqueue(*attempt);
                next.has_answered(*attempt, outcome)?;
            }
            (Op::Return(attempt), outcome) => {
                next.enqueue(*attempt);
                next.has_answered(*attempt, &unplaced(outcome))?;
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
            (Op::Unlock(by) | Op::Drop(by) | Op::Leave(by), Outcome::Released) if self.is_held_by(*by) => {
                next.end(*by);
            }
            (Op::Unlock(by) | Op::Drop(by) | Op::Leave(by), Outcome::Lost) if !self.is_held_by(*by) => {
                next.leave(*by);
                next.notice_lapse(by.client);
                next.promote();
            }
            (Op::Renew(by), Outcome::Renewed) if self.is_held_by(*by) => {
                next.holder = self.holder.map(|held| Held { lapsed: false, ..held });
            }
            (Op::Renew(by), Outcome::Lost) if !self.is_held_by(*by) => {}
            // A guard that is told the wrong thing of its lock is one of two who believe that they hold it.
            (Op::Unlock(_) | Op::Drop(_) | Op::Leave(_) | Op::Renew(_), _) => return Err(Promise::Exclusion),
            (Op::Sync { client }, Outcome::Done) => {
                next.notice_loss();
                next.hear_of(*client);
                next.notice_lapse(*client);
                next.promote();
            }
            (Op::Sync { .. }, Outcome::Absent) if self.holder.is_none() && self.queue.is_empty() => {}
            (Op::ForceRelease { fence }, Outcome::Released) if self.is_taken_with(*fence) => {
                next.cooling = None;
                next.lose();
            }
            (Op::ForceRelease { fence }, Outcome::Refused) if !self.is_taken_with(*fence) => next.promote(),
            (Op::ForceRelease { .. }, _) => return Err(Promise::Fencing),
            (Op::Inspect, Outcome::Seen(sight)) => next.see(sight.as_ref())?,
            (Op::Repeat, Outcome::Refused) if self.holder.is_none() => {}
            (Op::Repeat, Outcome::Granted { fence }) => {
                let by = self.holder.ok_or(Promise::OneGrant)?.by;
                next.learn(by, *fence)?;
            }
            (Op::Misuse, Outcome::Forbidden) => {}
            (Op::Misuse, _) => return Err(Promise::BadInput),
            (Op::RunOut, Outcome::Done) => {
                next.holder = self.holder.map(|held| Held { lapsed: true, ..held });
            }
            (Op::Lose(Loss::Record), Outcome::Done) => next = Lock::default(),
            (Op::Lose(Loss::Queue), Outcome::Done) => {
                next.torn.get_or_insert_default().extend(std::mem::take(&mut next.queue));
            }
            // There is no such outcome.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![next])
    }

    fn arrive_at(&mut self, moment: Moment) {
        self.moment = moment;
        self.cooling = self.cooling.filter(|_| !moment.over);
        if let Some(held) = &mut self.holder {
            held.lapsed = moment.over;
        }
    }

    /// An acquire reaches the server: it sees a lapse, serves who stands ahead, and then has the lock or waits.
    pub(super) fn enqueue(&mut self, attempt: Attempt) {
        self.ask(attempt);
        let stands = self.queue.contains(&attempt) || self.torn.as_ref().is_some_and(|torn| torn.contains(&attempt));
        if !stands && !self.is_held_by(attempt) {
            self.queue.push(attempt);
        }
    }

    /// As `enqueue`, but it does not stay, and leaves no sign of life.
    pub(super) fn try_lock(&mut self, attempt: Attempt) {
        let void = self.void.contains(&attempt.client);
        self.ask(attempt);
        if void {
            self.void.insert(attempt.client);
        }
    }

    fn ask(&mut self, attempt: Attempt) {
        // R3: who asks is alive.
        self.hear_of(attempt.client);
        self.notice_lapse(attempt.client);
        self.promote();
        if self.is_free() {
            self.grant(attempt);
        }
    }

    fn hear_of(&mut self, client: u8) {
        self.void.remove(&client);
        self.moment.silent &= !bit(client);
    }

    /// If the holder's time is over, it is not the holder's any more.
    fn notice_lapse(&mut self, noticer: u8) {
        if self.holder.is_some_and(|held| held.lapsed) {
            self.lapse(noticer);
        }
    }

    /// R10: unless the holder's own process notices, it counts as dead.
    pub(super) fn lapse(&mut self, noticer: u8) {
        let Some(held) = &mut self.holder else { return };
        let client = held.by.client;
        if held.by.lease == Lease::Renewed && client != noticer {
            // If it was the server that was away, those who wait here beside the holder must not lose their places
            // (P3); it may as well be given to a holder beside whom nobody waits.
            let waits = self.queue.iter().any(|waiter| waiter.client == client);
            if self.moment.outage && !held.spared && (waits || self.moment.grace) {
                (held.lapsed, held.spared) = (false, true);
                return;
            }
            self.void.insert(client);
        }
        self.lose();
    }

    /// The grant ended without its holder's doing.
    pub(super) fn lose(&mut self) {
        self.holder = None;
        self.promote();
    }

    /// R11: nobody's place is known any more.
    fn notice_loss(&mut self) {
        if self.torn.take().is_some() {
            self.queue.clear();
        }
    }

    /// A free lock goes to the first who is alive.
    fn promote(&mut self) {
        while self.is_free() && !self.queue.is_empty() {
            let head = self.queue.remove(0);
            if !self.void.contains(&head.client) && self.moment.silent & bit(head.client) == 0 {
                self.grant(head);
            }
        }
        if self.is_free() {
            self.notice_loss();
        }
    }

    fn grant(&mut self, by: Attempt) {
        let fence = Fence::above(self.floor.max(self.moment.clock.saturating_sub(1)));
        self.holder = Some(Held { by, fence, lapsed: false, spared: false });
    }

    /// A release of the holder's, or of one who waits.
    pub(super) fn end(&mut self, attempt: Attempt) {
        self.leave(attempt);
        if let Some(held) = self.holder.take_if(|held| held.by == attempt) {
            self.cooling = self.moment.cools.then_some(held.fence);
            self.promote();
        }
    }

    fn leave(&mut self, attempt: Attempt) {
        self.queue.retain(|other| *other != attempt);
        if let Some(torn) = &mut self.torn {
            torn.remove(&attempt);
        }
    }

    fn is_granted(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        if !self.is_held_by(attempt) {
            return Err(self.refuses());
        }
        self.learn(attempt, fence)
    }

    fn has_answered(&mut self, attempt: Attempt, outcome: &Outcome) -> Result<(), Promise> {
        match outcome {
            Outcome::Granted { fence } => self.is_granted(attempt, *fence),
            Outcome::Waiting { .. } if self.is_held_by(attempt) => Err(Promise::WakeUp),
            Outcome::Waiting { position } => {
                let ahead = self.queue.iter().position(|other| *other == attempt).unwrap_or(0) as u64;
                if position.is_none_or(|position| ahead < position) { Ok(()) } else { Err(Promise::Order) }
            }
            _ => Err(Promise::OneGrant),
        }
    }

    fn learn(&mut self, by: Attempt, fence: u64) -> Result<(), Promise> {
        learn(self.holder.iter_mut().collect(), by, fence)?;
        self.floor = self.floor.max(fence);
        Ok(())
    }

    fn see(&mut self, sight: Option<&Sight>) -> Result<(), Promise> {
        let not_shown = match (self.holder, sight.and_then(|sight| sight.holder)) {
            (Some(held), None) if !held.fence.is_known() => Promise::WakeUp,
            _ => self.refuses(),
        };
        match self.compare(sight, not_shown)? {
            Some((by, fence)) => self.learn(by, fence),
            None => Ok(()),
        }
    }

    /// Whose fence is seen; or what is broken, if it is another holder, or another queue.
    pub(super) fn compare(
        &self,
        sight: Option<&Sight>,
        other_holder: Promise,
    ) -> Result<Option<(Attempt, u64)>, Promise> {
        let nobody = Sight { holder: None, queue: Vec::new() };
        let sight = sight.unwrap_or(&nobody);
        if sight.queue.iter().collect::<BTreeSet<_>>().len() < sight.queue.len() {
            return Err(Promise::OneGrant);
        }
        let holder = self.holder.map(|held| held.by);
        if sight.holder.map(|(number, _)| number) != holder.map(|by| by.number) {
            return Err(other_holder);
        }
        if !sight.queue.iter().eq(self.queue.iter().map(|attempt| &attempt.number)) {
            return Err(Promise::Order);
        }
        Ok(holder.zip(sight.holder).map(|(by, (_, fence))| (by, fence)))
    }

    /// What a grant breaks that there is no place for. A holder whose fence is known was seen before.
    fn refuses(&self) -> Promise {
        match self.holder {
            Some(held) if held.fence.is_known() => Promise::Exclusion,
            Some(_) => Promise::Order,
            None if self.cooling.is_some() => Promise::Exclusion,
            None => Promise::OneGrant,
        }
    }

    fn is_free(&self) -> bool {
        self.holder.is_none() && self.cooling.is_none()
    }

    fn is_taken_with(&self, fence: u64) -> bool {
        self.holder.map(|held| held.fence).or(self.cooling).is_some_and(|taken| taken.is(fence))
    }

    /// Who has it.
    pub(super) fn is_held_by(&self, attempt: Attempt) -> bool {
        self.holder.is_some_and(|held| held.by == attempt)
    }
}

fn bit(client: u8) -> u128 {
    1 << (client % 128)
}

/// The answer of the one who comes back, whose place is not known.
fn unplaced(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Waiting { .. } => Outcome::Waiting { position: None },
        other => other.clone(),
    }
}
