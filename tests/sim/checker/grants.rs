//! P7: a token is granted once.

use std::collections::{HashMap, HashSet};

use super::{Checker, EndedLease, RanAt};
use crate::loss::PreviousHolder;
use crate::script::{Mode, Outcome, Token, Verb};
use crate::sim::breach::Breach;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::{ModelKind, Promise};
use crate::sim::record::{HolderView, RecordView};

/// The history of each token.
#[derive(Default)]
pub(super) struct Grants {
    /// The last grant of each token.
    pub(super) last: HashMap<Token, LastGrant>,
    /// Every grant, by its token and fence.
    pub(super) times: HashMap<(Token, u64), GrantTimes>,
    /// Tokens whose grant became a guard.
    pub(super) guarded: HashSet<Token>,
    /// How many failovers there had been when each token first waited in the queue.
    first_queued: HashMap<Token, u32>,
}

#[derive(Clone, Copy)]
pub(super) struct LastGrant {
    fence: u64,
    disturbances: u32,
    /// The token was released. R7 (late copies): a copy of its acquire may then take the lock
    /// again, and the client releases that too.
    released: bool,
    /// Its request was dated before the clock stepped.
    misdated: bool,
}

/// In µs of the run.
#[derive(Clone, Copy)]
pub(super) struct GrantTimes {
    pub(super) granted_at: u64,
    /// When a forced release ended it.
    pub(super) forced_at: Option<u64>,
}

impl Grants {
    pub(super) fn is_misdated(&self, token: Token) -> bool {
        self.last.get(&token).is_some_and(|grant| grant.misdated)
    }

    /// Whether the token waited in the queue before the last of this many failovers.
    pub(super) fn was_queued_before(&self, token: Token, failovers: u32) -> bool {
        self.first_queued
            .get(&token)
            .is_some_and(|first| *first < failovers)
    }

    fn note_released(&mut self, token: Token) {
        if let Some(grant) = self.last.get_mut(&token) {
            grant.released = true;
        }
    }

    fn note_forced(&mut self, holder: &HolderView, now: u64) {
        if let Some(times) = self.times.get_mut(&(holder.token, holder.fence)) {
            times.forced_at = Some(now);
        }
    }
}

impl Checker {
    /// Notes what the request means for tokens that were granted before it.
    pub(super) fn record_request(
        &mut self,
        at: RanAt,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) {
        match executed.call.verb {
            Verb::Acquire { token, .. } => {
                if matches!(executed.outcome, Outcome::Waiting { .. }) {
                    let first = self.grants.first_queued.entry(token);
                    first.or_insert(self.failovers);
                }
                if self.may_be_granted_again(at.now, token) {
                    self.grants.note_released(token);
                }
            }
            Verb::Release { token, .. } if self.stray_holder(before, executed).is_some() => {
                self.grants.note_released(token);
            }
            Verb::Release {
                token, fence, mode, ..
            } if *executed.outcome == Outcome::Released && !matches!(mode, Mode::Reduce { .. }) => {
                if self.kind == ModelKind::Mutex {
                    self.model.on_mutex_released(token, fence, mode);
                }
                if matches!(mode, Mode::Forced(_)) {
                    self.forced.insert(token);
                    self.last_forced = Some((token, mode, self.disturbances));
                    for holder in before.holders.iter().filter(|h| h.has_fence(fence)) {
                        self.grants.note_released(holder.token);
                        self.grants.note_forced(holder, at.now);
                    }
                } else if before.holder(token).is_some() {
                    self.grants.note_released(token);
                }
            }
            _ => {}
        }
    }

    /// R6 (token lifetime): a process sends a token for one ttl. A request has two command
    /// timeouts. So a request may arrive after a grant of its token has lapsed, of which the
    /// process never learned.
    fn may_be_granted_again(&self, now: u64, token: Token) -> bool {
        let Some(EndedLease {
            fence,
            how: PreviousHolder::Lapsed,
            ttl,
            ..
        }) = self.model.ended.get(&token)
        else {
            return false;
        };
        let Some(times) = self.grants.times.get(&(token, *fence)) else {
            return false;
        };
        now <= times.granted_at + ttl + 2 * self.timeout && !self.grants.guarded.contains(&token)
    }

    /// P7: a token is granted once. It may be granted again if it was released, or if the grant
    /// was lost with the data or by a step of the clock.
    pub(super) fn record_grants(
        &mut self,
        at: RanAt,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let is_over = |holder: &&HolderView| self.record.same(holder).is_none();
        for holder in before.holders.iter().filter(is_over) {
            let (how, named_fence) = match executed.call.verb {
                Verb::Release {
                    mode: Mode::Forced(_),
                    fence,
                    ..
                } if holder.has_fence(fence) => (PreviousHolder::Forced, fence),
                Verb::Release { token, .. } if token == holder.token => continue,
                _ => (PreviousHolder::Lapsed, holder.fence),
            };
            self.model
                .lease_ended(self.kind, holder, named_fence, how, at.clock);
        }
        for HolderView { token, fence, .. } in self.record.granted_since(before) {
            let grant = LastGrant {
                fence: *fence,
                disturbances: self.disturbances,
                released: false,
                misdated: executed.dated_after < self.clock_steps,
            };
            let times = GrantTimes {
                granted_at: at.now,
                forced_at: None,
            };
            self.grants.times.insert((*token, *fence), times);
            self.model.ended.remove(token);
            match self.grants.last.insert(*token, grant) {
                Some(earlier) if earlier.disturbances == self.disturbances && !earlier.released => {
                    let said = format!(
                        "{token:?} was granted twice, with fences {} and {fence}",
                        earlier.fence
                    );
                    return Err(Breach::new(Promise::OneGrant, said));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
