//! The reference model: one name in one of the worlds that the promises allow. Pure, and told everything.

use std::collections::BTreeSet;
use std::fmt;

use super::grant::{Fence, Held};
use super::op::{Attempt, Lease, Op, Outcome, Sight};

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

/// One name in one possible world.
///
/// What no client can see at once is not told but guessed: [`Lock::by_itself`] lists what may happen in the
/// background, and [`Worlds`](super::Worlds) keeps the worlds that agree with what is seen.
///
/// | an attempt is | when |
/// |---|---|
/// | in `queue` | it waits |
/// | in `holder` | it was granted, and that has not ended |
/// | in `adrift` | it was granted, lost that before it was claimed, and may not know yet: it may make a guard of the lost grant, or else find out and wait again |
/// | in `gone` | it knows, or was passed over as dead, and will wait again at the end of the queue |
/// | nowhere | it has ended, or is a guard that lost its lock |
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    holder: Option<Held>,
    queue: Vec<Attempt>,
    gone: BTreeSet<Attempt>,
    /// In the order of their fences, all smaller than the holder's.
    adrift: Vec<Held>,
    /// Clients that count as dead until they are heard of: each one's places are passed over (R10).
    void: BTreeSet<u8>,
    /// Those whose release or leave goes on in the background.
    ending: BTreeSet<Attempt>,
    /// The largest fence that was seen.
    floor: u64,
}

impl Lock {
    /// Whether this attempt may make a guard now.
    pub fn has_grant_for(&self, attempt: Attempt) -> bool {
        self.holder.iter().chain(&self.adrift).any(|held| held.by == attempt && !held.claimed)
    }

    /// How many attempts the background has yet to do with.
    pub fn unsettled(&self) -> usize {
        self.adrift.len() + self.gone.len() + self.ending.len()
    }

    /// The worlds that this one may turn into without anybody's doing.
    pub fn by_itself(&self) -> Vec<Lock> {
        let mut next = Vec::new();
        let mut may = |happen: &dyn Fn(&mut Lock)| {
            let mut world = self.clone();
            happen(&mut world);
            next.push(world);
        };
        if let Some(held) = self.holder.filter(|held| held.lapsed) {
            // A renewal comes in time, or that by which a place confirms its grant (R9, R12).
            if held.by.lease == Lease::Renewed || !held.claimed {
                may(&|world| world.holder = Some(Held { lapsed: false, ..held }));
            }
            may(&|world| world.notice_lapse(held.by.client));
            may(&|world| world.notice_lapse(NOBODY));
        }
        for client in &self.void {
            may(&|world| {
                world.void.remove(client);
            });
        }
        for lost in &self.adrift {
            may(&|world| {
                world.adrift.retain(|other| other != lost);
                world.gone.insert(lost.by);
            });
        }
        for client in self.gone.iter().map(|attempt| attempt.client).collect::<BTreeSet<_>>() {
            // R4: all of a process in their order.
            if let Some(first) = self.gone.iter().copied().find(|attempt| attempt.client == client) {
                may(&|world| {
                    world.gone.remove(&first);
                    world.enqueue(first);
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
    pub fn after(&self, op: &Op, outcome: &Outcome) -> Result<Vec<Lock>, Promise> {
        let mut world = self.clone();
        match (op, outcome) {
            (Op::TryLock(attempt), Outcome::Granted { fence }) => {
                world.try_lock(*attempt);
                world.claim(*attempt, *fence)?;
            }
            (Op::TryLock(attempt), Outcome::Busy) => {
                world.try_lock(*attempt);
                if world.has_grant_for(*attempt) {
                    return Err(Promise::WakeUp);
                }
            }
            (Op::Claim(attempt), Outcome::Granted { fence }) => world.claim(*attempt, *fence)?,
            (Op::Enqueue(attempt), Outcome::Waiting { position: Some(position) }) => {
                world.enqueue(*attempt);
                match world.queue.iter().position(|other| other == attempt) {
                    Some(ahead) if (ahead as u64) < *position => {}
                    Some(_) => return Err(Promise::Order),
                    None => return Err(Promise::WakeUp),
                }
            }
            (Op::Enqueue(attempt), Outcome::Waiting { position: None }) => {
                world.enqueue(*attempt);
                // The grant can have come between the answer and the look at the place.
                let mut worlds = closure([world]);
                worlds.retain(|world| !world.queue.contains(attempt));
                return if worlds.is_empty() { Err(world_refuses(self)) } else { Ok(worlds.into_iter().collect()) };
            }
            (Op::Claim(_), Outcome::NotYet) => {}
            (Op::Leave(attempt) | Op::Drop(attempt), Outcome::Done) => {
                let mut later = self.clone();
                later.ending.insert(*attempt);
                world.end(*attempt);
                return Ok(if self.knows(*attempt) { vec![world, later] } else { vec![world] });
            }
            (Op::Unlock(attempt), Outcome::Released) if self.is_held_by(*attempt) => world.end(*attempt),
            (Op::Renew(attempt), Outcome::Renewed) if self.is_held_by(*attempt) => {
                world.holder = self.holder.map(|held| Held { lapsed: false, ..held });
            }
            (Op::Unlock(attempt) | Op::Renew(attempt), Outcome::Lost) if !self.is_held_by(*attempt) => {}
            // A guard that is told the wrong thing of its lock is one of two who believe that they hold it.
            (Op::Unlock(_), Outcome::Released | Outcome::Lost) => return Err(Promise::Exclusion),
            (Op::Renew(_), Outcome::Renewed | Outcome::Lost) => return Err(Promise::Exclusion),
            (Op::ForceRelease { fence }, Outcome::Released) => match self.holder {
                Some(held) if held.fence.is(*fence) => world.lose(),
                _ => return Err(Promise::Fencing),
            },
            (Op::ForceRelease { fence }, Outcome::Refused) => {
                if self.holder.is_some_and(|held| held.fence.is(*fence)) {
                    return Err(Promise::Fencing);
                }
            }
            (Op::Inspect, Outcome::Seen(sight)) => world.see(sight.as_ref())?,
            (Op::Repeat, Outcome::Refused) if self.holder.is_none() => {}
            (Op::Repeat, Outcome::Granted { fence }) => {
                let by = self.holder.ok_or(Promise::OneGrant)?.by;
                world.learn(by, *fence)?;
            }
            (Op::Misuse, Outcome::Forbidden) => {}
            (Op::Misuse, _) => return Err(Promise::BadInput),
            (Op::RunOut, Outcome::Done) => {
                world.holder = self.holder.map(|held| Held { lapsed: true, ..held });
            }
            (Op::Lapse, Outcome::Released) => {
                let held = self.holder.ok_or(Promise::Exclusion)?;
                let mut spared = self.clone();
                spared.notice_lapse(held.by.client);
                world.notice_lapse(NOBODY);
                return Ok(vec![world, spared]);
            }
            (Op::Lapse, Outcome::Refused) if self.holder.is_none() => {}
            (Op::Lapse, _) => return Err(Promise::Exclusion),
            // There is no such outcome.
            _ => return Err(Promise::OneGrant),
        }
        Ok(vec![world])
    }

    /// An acquire reaches the store: it sees a lapse, serves who stands ahead, and then has the lock or waits.
    fn enqueue(&mut self, attempt: Attempt) {
        // R3: who asks is alive.
        self.void.remove(&attempt.client);
        if self.holder.is_some_and(|held| held.lapsed) {
            self.notice_lapse(attempt.client);
        }
        self.queue.push(attempt);
        self.promote();
    }

    /// As `enqueue`, but it does not stay, and leaves no sign of life.
    fn try_lock(&mut self, attempt: Attempt) {
        let void = self.void.contains(&attempt.client);
        self.enqueue(attempt);
        self.queue.retain(|other| *other != attempt);
        if void {
            self.void.insert(attempt.client);
        }
    }

    /// R10: unless the holder's own process notices, it counts as dead.
    fn notice_lapse(&mut self, noticer: u8) {
        let Some(held) = self.holder else { return };
        if held.by.lease == Lease::Renewed && held.by.client != noticer {
            self.void.insert(held.by.client);
        }
        self.lose();
    }

    /// The grant ended without its holder's doing.
    fn lose(&mut self) {
        if let Some(held) = self.holder.take()
            && !held.claimed
        {
            self.adrift.push(held);
        }
        self.promote();
    }

    fn promote(&mut self) {
        while self.holder.is_none() && !self.queue.is_empty() {
            let head = self.queue.remove(0);
            if self.void.contains(&head.client) {
                self.gone.insert(head);
            } else {
                let fence = Fence::above(self.floor);
                self.holder = Some(Held { by: head, fence, claimed: false, lapsed: false });
            }
        }
    }

    /// The attempt becomes a guard.
    fn claim(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        if !self.has_grant_for(attempt) {
            return Err(world_refuses(self));
        }
        self.learn(attempt, fence)?;
        self.adrift.retain(|lost| lost.by != attempt);
        if let Some(held) = self.holder.as_mut().filter(|held| held.by == attempt) {
            held.claimed = true;
        }
        Ok(())
    }

    /// The fence of a grant is seen.
    fn learn(&mut self, attempt: Attempt, fence: u64) -> Result<(), Promise> {
        let mut grants: Vec<&mut Held> = self.adrift.iter_mut().chain(&mut self.holder).collect();
        let at = grants.iter().position(|held| held.by == attempt).ok_or(Promise::OneGrant)?;
        let known = grants[at].fence;
        if !known.admits(fence) {
            return Err(if known.is_known() { Promise::OneGrant } else { Promise::Fencing });
        }
        grants[at].fence = Fence::known(fence);
        grants[..at].iter_mut().for_each(|earlier| earlier.fence.keep_below(fence));
        grants[at + 1..].iter_mut().for_each(|later| later.fence.keep_above(fence));
        self.floor = self.floor.max(fence);
        Ok(())
    }

    fn see(&mut self, sight: Option<&Sight>) -> Result<(), Promise> {
        let nobody = Sight { holder: None, queue: Vec::new() };
        let sight = sight.unwrap_or(&nobody);
        if sight.queue.iter().collect::<BTreeSet<_>>().len() < sight.queue.len() {
            return Err(Promise::OneGrant);
        }
        let holder = self.holder.map(|held| held.by);
        if sight.holder.map(|(number, _)| number) != holder.map(|by| by.number) {
            return Err(world_refuses(self));
        }
        if !sight.queue.iter().eq(self.queue.iter().map(|attempt| &attempt.number)) {
            return Err(Promise::Order);
        }
        match (holder, sight.holder) {
            (Some(by), Some((_, fence))) => self.learn(by, fence),
            _ => Ok(()),
        }
    }

    /// A release or a leave reaches the store.
    fn end(&mut self, attempt: Attempt) {
        self.ending.remove(&attempt);
        self.queue.retain(|other| *other != attempt);
        self.gone.remove(&attempt);
        self.adrift.retain(|lost| lost.by != attempt);
        if self.is_held_by(attempt) {
            self.holder = None;
            self.promote();
        }
    }

    fn is_held_by(&self, attempt: Attempt) -> bool {
        self.holder.is_some_and(|held| held.by == attempt)
    }

    fn knows(&self, attempt: Attempt) -> bool {
        self.is_held_by(attempt)
            || self.queue.contains(&attempt)
            || self.gone.contains(&attempt)
            || self.adrift.iter().any(|lost| lost.by == attempt)
    }
}

/// Somebody who neither holds nor waits.
const NOBODY: u8 = u8::MAX;

/// What a grant breaks that this world has no place for.
fn world_refuses(world: &Lock) -> Promise {
    match world.holder {
        Some(held) if held.claimed => Promise::Exclusion,
        Some(_) => Promise::Order,
        None => Promise::OneGrant,
    }
}

/// All worlds that these may turn into, themselves included.
pub(super) fn closure(worlds: impl IntoIterator<Item = Lock>) -> BTreeSet<Lock> {
    let mut all = BTreeSet::new();
    let mut fresh: Vec<Lock> = worlds.into_iter().collect();
    while let Some(world) = fresh.pop() {
        if !all.contains(&world) {
            fresh.extend(world.by_itself());
            all.insert(world);
        }
    }
    all
}
