//! What the server does with a name: the steps of which its answers to requests are made.

use super::super::grant::{FenceRange, ModelGrant};
use super::super::op::{Attempt, DataLoss, LeaseTerm, ModelKind, ServerView};
use super::ModelLock;

impl ModelLock {
    pub(crate) fn arrive_at(&mut self, moment: &ServerView) {
        for held in &mut self.cooling {
            let number = held.by.number;
            let holds = self.holders.iter().any(|held| held.by.number == number);
            held.lapsed =
                moment.cooled.contains(&number) || !holds && moment.expired.contains(&number);
        }
        if moment.recounts {
            self.missing = 0;
        }
        for held in &mut self.holders {
            held.lapsed = moment.expired.contains(&held.by.number);
        }
        self.moment = moment.clone();
        self.is_unfinished = false;
    }

    pub(crate) fn lose(&mut self, loss: DataLoss) {
        match loss {
            DataLoss::All => *self = ModelLock::new(self.kind),
            DataLoss::Holders if self.is_recordless => *self = ModelLock::new(self.kind),
            DataLoss::Record => {
                let (holders, cooling) = (
                    std::mem::take(&mut self.holders),
                    std::mem::take(&mut self.cooling),
                );
                let last = holders.iter().chain(&cooling).max_by_key(|held| held.turn);
                let (turn, last) =
                    last.map_or((0, FenceRange::default()), |held| (held.turn, held.fence));
                let is_recordless = true;
                *self = ModelLock {
                    holders,
                    cooling,
                    turn,
                    last,
                    is_recordless,
                    ..ModelLock::new(self.kind)
                };
            }
            DataLoss::Queue => self
                .torn
                .get_or_insert_default()
                .extend(std::mem::take(&mut self.queue)),
            DataLoss::Holders => {
                self.missing += self
                    .holders
                    .iter()
                    .chain(&self.cooling)
                    .map(|held| held.permits)
                    .sum::<u32>();
                self.holders.clear();
                self.cooling.clear();
            }
        }
    }

    /// An acquire reaches the server: it sees a lapse, serves who stands ahead, and then has the lock or waits.
    pub(crate) fn enqueue(&mut self, attempt: Attempt) {
        self.ask(attempt);
        let stands = self.queue.contains(&attempt)
            || self
                .torn
                .as_ref()
                .is_some_and(|torn| torn.contains(&attempt));
        if !stands && !self.is_held_by(attempt) && !self.is_unfinished {
            self.queue.push(attempt);
        }
    }

    /// As `enqueue`, but it does not stay, and leaves no sign of life.
    pub(crate) fn try_lock(&mut self, attempt: Attempt) {
        let void = self.void.contains(&attempt.client);
        self.ask(attempt);
        if void {
            self.void.insert(attempt.client);
        }
    }

    fn ask(&mut self, attempt: Attempt) {
        // R3: who asks is alive.
        self.hear_of(attempt.client);
        self.pass_on(attempt.client);
        let is_next = self.queue.is_empty() && !self.is_unfinished;
        if is_next && attempt.permits <= self.left() && !self.is_held_by(attempt) {
            self.grant(attempt);
        }
    }

    pub(crate) fn hear_of(&mut self, client: u8) {
        self.void.remove(&client);
        self.moment.silent &= !bit(client);
    }

    /// Those whose time is over are not holders any more, but for who asks himself (R9).
    pub(crate) fn notice_lapses(&mut self, noticer: u8, own: Option<Attempt>) {
        if self.kind != ModelKind::Mutex {
            self.cooling.retain(|held| !held.lapsed);
        }
        let lapsed = self
            .holders
            .iter()
            .filter(|held| held.lapsed && Some(held.by) != own);
        let lapsed: Vec<Attempt> = lapsed.map(|held| held.by).collect();
        let before = self.void.clone();
        for by in lapsed {
            // If it was the server that was away, those who wait here beside the holder must not lose their places
            // (P3); it may as well be given to a holder beside whom nobody waits.
            let waits = self
                .queue
                .iter()
                .any(|waiter| waiter.client == by.client && !before.contains(&by.client));
            let may_be_spared =
                self.moment.outage && (waits || self.moment.grace.contains(&by.number));
            self.lapse(by, noticer, may_be_spared);
        }
    }

    /// R10: unless the holder's own process notices, it counts as dead.
    fn lapse(&mut self, by: Attempt, noticer: u8, may_be_spared: bool) {
        let Some(held) = self.holders.iter_mut().find(|held| held.by == by) else {
            return;
        };
        if by.lease == LeaseTerm::Renewed && by.client != noticer {
            if may_be_spared && !held.spared {
                (held.lapsed, held.spared) = (false, true);
                return;
            }
            self.void.insert(by.client);
        }
        self.holders.retain(|held| held.by != by);
    }

    /// Whoever asks sees whose time is over, and what is free is given on.
    pub(crate) fn pass_on(&mut self, noticer: u8) {
        self.notice_lapses(noticer, None);
        self.promote();
    }

    /// Whoever has it with this fence has it no more.
    pub(crate) fn force(&mut self, fence: u64) {
        self.cooling.retain(|held| !held.fence.is(fence));
        self.holders.retain(|held| !held.fence.is(fence));
    }

    /// It has its full time again.
    pub(crate) fn prolong(&mut self, by: Attempt) {
        self.holders
            .iter_mut()
            .filter(|held| held.by == by)
            .for_each(|held| held.lapsed = false);
    }

    /// R11: nobody's place is known any more.
    pub(crate) fn notice_loss(&mut self) {
        if self.torn.take().is_some() {
            self.queue.clear();
        }
    }

    /// What is free goes to the first who is alive, if it is as much as he wants.
    pub(crate) fn promote(&mut self) {
        let mut reach = self.moment.reach.unwrap_or(usize::MAX);
        while let Some(head) = self
            .queue
            .first()
            .copied()
            .filter(|_| self.left() > 0 && reach > 0)
        {
            reach -= 1;
            let is_alive =
                !self.void.contains(&head.client) && self.moment.silent & bit(head.client) == 0;
            if is_alive && head.permits > self.left() {
                return;
            }
            self.queue.remove(0);
            if is_alive {
                self.grant(head);
            }
        }
        self.is_unfinished = reach == 0 && self.left() > 0;
        if self.left() > 0 && !self.is_unfinished {
            self.notice_loss();
        }
    }

    fn grant(&mut self, by: Attempt) {
        let is_shared = matches!(self.kind, ModelKind::ReadWrite(_));
        let fence = if self.kind.raises_fence(by.permits) {
            self.turn += 1;
            FenceRange::above(self.floor.max(self.moment.clock.saturating_sub(1)))
        } else {
            // Before the first writer it is one of the server's clock.
            self.last.or_above(self.moment.clock.saturating_sub(2))
        };
        if is_shared {
            self.last = fence;
        }
        if self.kind == ModelKind::Mutex {
            // Until then it cools again if the clock goes back.
            self.cooling.clear();
        }
        let (permits, turn) = (by.permits, self.turn);
        self.holders.push(ModelGrant {
            by,
            permits,
            fence,
            turn,
            lapsed: false,
            spared: false,
        });
    }

    /// A release of a holder's, or of one who waits.
    pub(crate) fn end(&mut self, attempt: Attempt) {
        self.leave(attempt);
        self.notice_lapses(attempt.client, Some(attempt));
        if let Some(at) = self.holders.iter().position(|held| held.by == attempt) {
            let held = self.holders.remove(at);
            if self.moment.must_cool {
                // A copy of its request may have come while it cooled, and was given back too.
                self.cooling.retain(|earlier| earlier.by != attempt);
                self.cooling.push(ModelGrant {
                    lapsed: false,
                    ..held
                });
            }
        }
        self.promote();
    }

    /// A holder keeps one permit.
    pub(crate) fn downgrade(&mut self, by: Attempt) {
        self.notice_lapses(by.client, Some(by));
        self.holders
            .iter_mut()
            .filter(|held| held.by == by)
            .for_each(|held| held.permits = 1);
        self.promote();
    }

    pub(crate) fn leave(&mut self, attempt: Attempt) {
        self.queue.retain(|other| *other != attempt);
        if let Some(torn) = &mut self.torn {
            torn.remove(&attempt);
        }
    }
}

fn bit(client: u8) -> u128 {
    1 << (client % 128)
}
