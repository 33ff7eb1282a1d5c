//! The server's work on a name: the steps that its answers to requests are made of.

use super::super::grant::{FenceRange, ModelGrant};
use super::super::op::{Attempt, DataLoss, LeaseTerm, ModelKind, ServerView};
use super::ModelLock;

impl ModelLock {
    /// A request arrives, and this is what the server's clock decides now.
    pub(crate) fn arrive(&mut self, view: &ServerView) {
        for grant in &mut self.cooling {
            let number = grant.attempt.number;
            let holds = self
                .holders
                .iter()
                .any(|holder| holder.attempt.number == number);
            grant.lapsed =
                view.cooled.contains(&number) || !holds && view.expired.contains(&number);
        }
        for grant in &mut self.holders {
            grant.lapsed = view.expired.contains(&grant.attempt.number);
        }
        self.view = view.clone();
        self.is_unfinished = false;
    }

    pub(crate) fn lose_data(&mut self, loss: DataLoss) {
        match loss {
            DataLoss::All => *self = ModelLock::new(self.kind),
            DataLoss::Holders if self.is_recordless => *self = ModelLock::new(self.kind),
            DataLoss::Record => self.lose_record(),
            DataLoss::Queue => self
                .lost_queue
                .get_or_insert_default()
                .extend(std::mem::take(&mut self.queue)),
            // The last fence is lost with them. The server's clock is the floor of the next.
            DataLoss::Holders => {
                self.holders.clear();
                self.cooling.clear();
                self.fence_floor = 0;
                (self.last_turn, self.last_fence) = (0, FenceRange::default());
                self.is_fenceless = true;
            }
        }
    }

    /// The holders and the last fence have a key of their own and survive.
    fn lose_record(&mut self) {
        *self = ModelLock {
            holders: std::mem::take(&mut self.holders),
            cooling: std::mem::take(&mut self.cooling),
            last_turn: self.last_turn,
            last_fence: self.last_fence,
            is_recordless: true,
            ..ModelLock::new(self.kind)
        };
    }

    /// An acquire that may wait reaches the server. The server notices lapses and serves the
    /// waiters ahead. Then the attempt holds the lock or waits.
    pub(crate) fn enqueue(&mut self, attempt: Attempt) {
        self.acquire(attempt);
        let is_queued = self.queue.contains(&attempt)
            || self
                .lost_queue
                .as_ref()
                .is_some_and(|lost| lost.contains(&attempt));
        if !is_queued && !self.is_held_by(attempt) && !self.is_unfinished {
            self.queue.push(attempt);
        }
    }

    /// Like `enqueue`, but the attempt does not wait, and it is no sign of life.
    pub(crate) fn try_lock(&mut self, attempt: Attempt) {
        let was_presumed_dead = self.presumed_dead.contains(&attempt.client);
        self.acquire(attempt);
        if was_presumed_dead {
            self.presumed_dead.insert(attempt.client);
        }
    }

    fn acquire(&mut self, attempt: Attempt) {
        // R3 (signs of life): a process that sends a request is alive.
        self.note_sign_of_life(attempt.client);
        self.notice_and_hand_over(attempt.client);
        let is_next = self.queue.is_empty() && !self.is_unfinished;
        if is_next && attempt.permits <= self.free() && !self.is_held_by(attempt) {
            self.grant(attempt);
        }
    }

    pub(crate) fn note_sign_of_life(&mut self, client: u8) {
        self.presumed_dead.remove(&client);
        self.view.silent &= !bit(client);
    }

    /// Removes the holders whose lease has expired, all but `own`: a request does not notice the
    /// lapse of its own lease (R9: own lapse).
    pub(crate) fn notice_lapses(&mut self, noticer: u8, own: Option<Attempt>) {
        if self.kind != ModelKind::Mutex {
            self.cooling.retain(|grant| !grant.lapsed);
        }
        let lapsed = self
            .holders
            .iter()
            .filter(|grant| grant.lapsed && Some(grant.attempt) != own);
        let lapsed: Vec<Attempt> = lapsed.map(|grant| grant.attempt).collect();
        let presumed_dead = self.presumed_dead.clone();
        for attempt in lapsed {
            // If the server was away, the waiters in the holder's process must not lose their
            // places (P3). So such a holder must get its grace. A holder whose process has no
            // waiters may get it or not.
            let waits = self.queue.iter().any(|waiter| {
                waiter.client == attempt.client && !presumed_dead.contains(&attempt.client)
            });
            let may_be_spared =
                self.view.outage && (waits || self.view.grace.contains(&attempt.number));
            if !(may_be_spared && self.spare(attempt, noticer)) {
                self.lapse(attempt, noticer);
            }
        }
    }

    /// Gives a renewed lease its one step of grace. Returns whether it had one left.
    fn spare(&mut self, attempt: Attempt, noticer: u8) -> bool {
        if !is_sign_of_death(attempt, noticer) {
            return false;
        }
        let grant = self
            .holders
            .iter_mut()
            .find(|grant| grant.attempt == attempt && !grant.spared);
        if let Some(grant) = grant {
            grant.lapsed = false;
            grant.spared = true;
            return true;
        }
        false
    }

    /// R10 (places of the dead): unless the holder's own process notices the lapse, that process
    /// counts as dead.
    fn lapse(&mut self, attempt: Attempt, noticer: u8) {
        if !self.is_held_by(attempt) {
            return;
        }
        if is_sign_of_death(attempt, noticer) {
            self.presumed_dead.insert(attempt.client);
        }
        let lapsed = |grant: &ModelGrant| grant.attempt == attempt;
        self.end_grants(lapsed);
    }

    /// These grants end without a release. Nobody says how many of their fences were used, so all
    /// count as used.
    fn end_grants(&mut self, have_ended: impl Fn(&ModelGrant) -> bool) {
        let ended: Vec<ModelGrant> = self
            .holders
            .extract_if(.., |grant| have_ended(grant))
            .collect();
        for grant in ended {
            self.count_used(&grant, grant.reserved());
        }
    }

    /// P2: this many fences behind the first of a grant count as used, and later ones are larger.
    fn count_used(&mut self, grant: &ModelGrant, behind: u64) {
        if behind > 0 {
            self.fence_floor = self.fence_floor.max(grant.fence.least() + behind);
        }
    }

    /// A request notices the lapsed leases, and the server hands over what is free.
    pub(crate) fn notice_and_hand_over(&mut self, noticer: u8) {
        self.notice_lapses(noticer, None);
        self.hand_over();
    }

    /// The holders with this fence lose the lock.
    pub(crate) fn force_release(&mut self, fence: u64) {
        self.cooling.retain(|grant| !grant.fence.is(fence));
        self.end_grants(|grant| grant.fence.is(fence));
    }

    /// The lease has its full time again.
    pub(crate) fn renew(&mut self, attempt: Attempt) {
        self.holders
            .iter_mut()
            .filter(|grant| grant.attempt == attempt)
            .for_each(|grant| grant.lapsed = false);
    }

    /// R11 (missing keys): the server notices that the queue was lost. All places are gone.
    pub(crate) fn notice_lost_queue(&mut self) {
        if self.lost_queue.take().is_some() {
            self.queue.clear();
        }
    }

    /// The free permits go to the first live waiter, if they are enough for that waiter. A smaller
    /// request further back does not overtake.
    pub(crate) fn hand_over(&mut self) {
        let mut reach = self.view.reach.unwrap_or(usize::MAX);
        while let Some(head) = self
            .queue
            .first()
            .copied()
            .filter(|_| self.free() > 0 && reach > 0)
        {
            reach -= 1;
            let is_alive = !self.presumed_dead.contains(&head.client)
                && self.view.silent & bit(head.client) == 0;
            if is_alive && head.permits > self.free() {
                return;
            }
            self.queue.remove(0);
            if is_alive {
                self.grant(head);
            }
        }
        self.is_unfinished = reach == 0 && self.free() > 0;
        if self.free() > 0 && !self.is_unfinished {
            self.notice_lost_queue();
        }
    }

    fn grant(&mut self, attempt: Attempt) {
        let fence = if self.kind.raises_fence(attempt.permits) {
            self.last_turn += 1;
            self.is_fenceless = false;
            FenceRange::above(self.fence_floor.max(self.view.clock.saturating_sub(1)))
        } else if self.is_fenceless {
            self.last_fence
        } else {
            // Before the first writer, readers get a fence from the server's clock.
            self.last_fence.or_above(self.view.clock.saturating_sub(2))
        };
        if matches!(self.kind, ModelKind::ReadWrite(_)) {
            self.last_fence = fence;
        }
        if self.kind == ModelKind::Mutex {
            // Until this grant, the lock cools again if the clock goes back.
            self.cooling.clear();
        }
        self.holders.push(ModelGrant {
            attempt,
            permits: attempt.permits,
            fence,
            turn: self.last_turn,
            lapsed: false,
            spared: false,
            granted_at: self.view.clock,
        });
    }

    /// P2: how many fences the grant of this attempt has reserved behind its first.
    pub(crate) fn reserved(&self, attempt: Attempt) -> u64 {
        let mut holders = self.holders.iter();
        let grant = holders.find(|grant| grant.attempt == attempt);
        grant.map_or(0, ModelGrant::reserved)
    }

    /// A holder or a waiter releases its token. The last fence that a guard had is this far behind
    /// the first of the grant.
    pub(crate) fn release(&mut self, attempt: Attempt, behind: u64) {
        self.remove_from_queue(attempt);
        self.notice_lapses(attempt.client, Some(attempt));
        if let Some(at) = self
            .holders
            .iter()
            .position(|grant| grant.attempt == attempt)
        {
            let grant = self.holders.remove(at);
            self.count_used(&grant, behind);
            if self.view.must_cool {
                // The attempt may be cooling already: a copy of its acquire came in that time, was
                // granted, and is now released too.
                self.cooling.retain(|earlier| earlier.attempt != attempt);
                self.cooling.push(ModelGrant {
                    lapsed: false,
                    ..grant
                });
            }
        }
        self.hand_over();
    }

    /// A holder keeps one permit.
    pub(crate) fn downgrade(&mut self, attempt: Attempt) {
        self.notice_lapses(attempt.client, Some(attempt));
        self.holders
            .iter_mut()
            .filter(|grant| grant.attempt == attempt)
            .for_each(|grant| grant.permits = 1);
        self.hand_over();
    }

    /// Returns whether it waited.
    pub(crate) fn remove_from_queue(&mut self, attempt: Attempt) -> bool {
        let entries = self.queue.len();
        self.queue.retain(|other| *other != attempt);
        let lost = self.lost_queue.as_mut();
        lost.is_some_and(|lost| lost.remove(&attempt)) || self.queue.len() < entries
    }
}

/// Whether the lapse of this lease shows that its process is dead. A process that notices the lapse
/// itself is alive, and a fixed lease says nothing.
fn is_sign_of_death(attempt: Attempt, noticer: u8) -> bool {
    attempt.lease == LeaseTerm::Renewed && attempt.client != noticer
}

fn bit(client: u8) -> u128 {
    1 << (client % 128)
}
