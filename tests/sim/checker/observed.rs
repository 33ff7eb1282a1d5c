//! The server's request and its effect, in the words of the model.

use std::collections::{BTreeSet, HashSet};

use super::{Checker, ServerModel};
use crate::script::{self, Mode, Params, Token, Verb, Wait};
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::{Attempt, LeaseTerm, ModelKind, ModelOutcome, Observation, Op, ServerView};
use crate::sim::record::{Cooling, HolderView, RecordView};

/// How many heads of a queue one request looks at.
const MAX_HEADS: usize = 64;

impl Checker {
    /// The request and its answer in the words of the model. `None` for a request that only looks.
    pub(super) fn observed(
        &mut self,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Option<(Op, ModelOutcome)> {
        // It changed nothing.
        if *executed.outcome == script::Outcome::Silent {
            return None;
        }
        let op = self.operation(before, executed)?;
        self.model.returned |= matches!(op, Op::Rejoin(_));
        use script::Outcome as Reported;
        let is_stray = self.stray_holder(before, executed).is_some();
        let outcome = match executed.outcome {
            // The answer is about the caller's own lease, which the stray one is not.
            Reported::Already
            | Reported::Lapsed
            | Reported::Forced
            | Reported::Lost
            | Reported::Unknown
                if is_stray =>
            {
                ModelOutcome::Released
            }
            _ if is_stray => ModelOutcome::Forbidden,
            Reported::Granted(grant) => ModelOutcome::Granted { fence: grant.fence },
            Reported::Waiting { position, .. } => ModelOutcome::Waiting {
                position: Some(*position).filter(|_| !self.model.returned),
            },
            Reported::Busy { .. } => ModelOutcome::Busy,
            Reported::Late => ModelOutcome::Late,
            // Nothing is free among the holders that the look has seen.
            Reported::More if self.is_looking() => ModelOutcome::Busy,
            Reported::More => ModelOutcome::SendAgain,
            Reported::Released if matches!(op, Op::Downgrade(_)) => ModelOutcome::Downgraded,
            Reported::Released => ModelOutcome::Released,
            Reported::Renewed { .. } => ModelOutcome::Renewed,
            Reported::Synced { .. } => ModelOutcome::Done,
            Reported::Absent => ModelOutcome::Absent,
            Reported::Refused | Reported::Already if matches!(op, Op::ForceRelease { .. }) => {
                ModelOutcome::Refused
            }
            Reported::Already
            | Reported::Lapsed
            | Reported::Forced
            | Reported::Lost
            | Reported::Unknown
            | Reported::Gone { .. } => ModelOutcome::Lost,
            // No request of a run has any of these answers.
            _ => ModelOutcome::Forbidden,
        };
        Some((op, outcome))
    }

    fn operation(&mut self, before: &RecordView, executed: &ExecutedCall<'_>) -> Option<Op> {
        let client = self.client(executed.manager);
        Some(match &executed.call.verb {
            Verb::Acquire {
                token,
                wait,
                params,
                ..
            } => {
                let params = Params::read(params, executed.call.spec.family);
                let params = params.expect("the engine wrote the parameters");
                // An earlier request of the token may have been a release, which says neither.
                let attempt = Attempt {
                    lease: if params.fixed {
                        LeaseTerm::Fixed
                    } else {
                        LeaseTerm::Renewed
                    },
                    permits: executed.call.spec.weight,
                    spare: params.local_handovers,
                    ..self.attempt(*token, client)
                };
                self.attempts.insert(*token, attempt);
                if *wait == Wait::Yes {
                    enqueue(before, *token, attempt)
                } else {
                    Op::TryLock(attempt)
                }
            }
            // Readers share a fence. A forced release that is sent twice ends one lease, so the
            // model must not apply it to another holder.
            Verb::Release {
                token,
                mode: Mode::Forced(_),
                ..
            } if *executed.outcome == script::Outcome::Already && self.forced.contains(token) => {
                Op::ForceRelease { client, fence: 0 }
            }
            Verb::Release {
                fence,
                mode: Mode::Forced(_),
                ..
            } => {
                // The model knows a grant by its first fence.
                let holder = before
                    .holders
                    .iter()
                    .find(|holder| holder.has_fence(*fence));
                let fence = holder.map_or(*fence, |holder| holder.fence);
                Op::ForceRelease { client, fence }
            }
            // It ends without a trace, as a token does that nobody wants.
            Verb::Release { token, .. } if self.stray_holder(before, executed).is_some() => {
                Op::Cancel(self.attempt(*token, client))
            }
            Verb::Release {
                token,
                fence,
                last,
                mode,
            } => {
                let behind = last.map(|last| last - fence);
                release(*mode, behind, self.attempt(*token, client))
            }
            Verb::Renew { token, .. } => Op::Renew(self.attempt(*token, client)),
            Verb::Sync { .. } => Op::Sync { client },
            // Only for a node of a quorum.
            Verb::Propose { .. } => return None,
            // No process of a run detaches its lock.
            Verb::Pass { .. } => return None,
            Verb::Inspect { .. } | Verb::Vacate | Verb::Delete | Verb::Lookup { .. } => {
                return None;
            }
        })
    }

    /// The lease that a release ends although it is not the one that the caller knows: a late copy
    /// of the token's acquire took the lock, or older data came back.
    pub(super) fn stray_holder<'a>(
        &self,
        before: &'a RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Option<&'a HolderView> {
        let Verb::Release {
            token, fence, mode, ..
        } = executed.call.verb
        else {
            return None;
        };
        if fence == 0 || matches!(mode, Mode::Forced(_) | Mode::KeepIfOwner) {
            return None;
        }
        before.holder(token).filter(|holder| holder.fence != fence)
    }

    /// The facts that only the server's clock knew when it ran the request.
    pub(super) fn server_view(
        &self,
        clock: u64,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> ServerView {
        let ServerModel {
            served_time, lock, ..
        } = &self.model;
        let (token, mode) = match executed.call.verb {
            Verb::Acquire { token, .. }
            | Verb::Propose { token, .. }
            | Verb::Renew { token, .. }
            | Verb::Pass { to: token, .. } => (Some(token), None),
            Verb::Release { token, mode, .. } => (Some(token), Some(mode)),
            Verb::Sync { .. }
            | Verb::Inspect { .. }
            | Verb::Vacate
            | Verb::Delete
            | Verb::Lookup { .. } => (None, None),
        };
        let own = token.and_then(|token| before.holder(token));
        let token_of = |number: u16| self.tokens[usize::from(number)];
        let must_cool =
            |own: &HolderView| own.hold > 0 && own.granted_at.min(clock) + own.hold > clock;
        ServerView {
            clock,
            expired: lock
                .taken_by()
                .filter(|number| before.is_over(token_of(*number), clock))
                .filter(|number| !self.is_unseen(before, token_of(*number)))
                .collect(),
            cooled: lock
                .taken_by()
                .filter(|number| before.has_rested(token_of(*number), clock))
                .filter(|number| !self.is_unseen(before, token_of(*number)))
                .collect(),
            silent: served_time.silent(clock, self.all_counts(before)),
            outage: !self.all_counts(before)
                && (served_time.is_outage(clock) || look_began_in_outage(before)),
            grace: self.spared_since(before),
            must_cool: matches!(mode, Some(Mode::Used | Mode::Lost | Mode::Unfinished))
                && self.stray_holder(before, executed).is_none()
                && own.is_some_and(must_cool),
            reach: reach(before, executed),
        }
    }

    /// R22 (tries among the dead): whether the last request counted all of the time since the one
    /// before it. [`Checker::check_silence`] checks that it may.
    pub(super) fn all_counts(&self, before: &RecordView) -> bool {
        self.record.served > before.served + self.step
    }

    /// Whether scripts have begun to look at the holders, and have not seen all of them.
    pub(super) fn is_looking(&self) -> bool {
        let accounting = &self.record.accounting;
        accounting.as_ref().is_some_and(|counts| counts.is_looking)
    }

    /// Whether a look of several calls has not come to this token yet, or had seen it before its
    /// time was over. So nobody has noticed that.
    fn is_unseen(&self, before: &RecordView, token: Token) -> bool {
        let cools = |cooling: &Cooling| cooling.token == Some(token);
        let was_looking = before.accounting.as_ref().is_some_and(|a| a.is_looking);
        (was_looking || self.is_looking())
            && (self.record.holder(token).is_some() || self.record.cooling.iter().any(cools))
    }

    /// The holders that the last request gave a step of grace.
    fn spared_since(&self, before: &RecordView) -> BTreeSet<u16> {
        let was_spared = |holder: &&HolderView| {
            let after = self.record.same(holder);
            !holder.spared && after.is_some_and(|after| after.spared)
        };
        let spared = before.holders.iter().filter(was_spared);
        spared
            .filter_map(|holder| self.attempts.get(&holder.token))
            .map(|attempt| attempt.number)
            .collect()
    }

    /// The holders and the queue, by the numbers of attempts.
    pub(super) fn observation(&mut self, record: &RecordView, manager: &str) -> Observation {
        let client = self.client(manager);
        let mut number = |token: Token| self.attempt(token, client).number;
        let holders = record
            .holders
            .iter()
            .map(|holder| (number(holder.token), holder.fence))
            .collect();
        let mut queue: Vec<u16> = Vec::new();
        for entry in record.queue.iter().filter(|entry| entry.waits) {
            let number = number(entry.token);
            if !queue.contains(&number) {
                queue.push(number);
            }
        }
        Observation {
            holders,
            queue,
            last_fence: (self.kind == ModelKind::Mutex).then_some(record.fence),
        }
    }

    pub(super) fn client(&mut self, manager: &str) -> u8 {
        let next = self.clients.len() as u8;
        *self.clients.entry(manager.to_owned()).or_insert(next)
    }

    /// The attempt of a token. Until its acquire says more, it counts as renewed and as asking for
    /// one permit.
    fn attempt(&mut self, token: Token, client: u8) -> Attempt {
        let number = self.tokens.len() as u16;
        *self.attempts.entry(token).or_insert_with(|| {
            self.tokens.push(token);
            Attempt {
                number,
                client,
                lease: LeaseTerm::Renewed,
                permits: 1,
                spare: 0,
            }
        })
    }
}

/// An acquire that may wait. Its token comes back to a place that it had left if only a dead entry
/// of it is in the queue.
/// Whether a look is under way that began after the server may have been away.
fn look_began_in_outage(before: &RecordView) -> bool {
    let accounting = &before.accounting;
    accounting
        .as_ref()
        .is_some_and(|counts| counts.is_looking && counts.look_outage)
}

fn enqueue(before: &RecordView, token: Token, attempt: Attempt) -> Op {
    let has_dead_entry = before
        .queue
        .iter()
        .any(|entry| entry.token == token && !entry.waits);
    // A token that waits has one place, where its entry counts.
    if has_dead_entry && !before.is_queued(token) {
        Op::Rejoin(attempt)
    } else {
        Op::Enqueue(attempt)
    }
}

fn release(mode: Mode, behind: Option<u64>, attempt: Attempt) -> Op {
    match (mode, behind) {
        (Mode::Used | Mode::Lost | Mode::Unfinished, Some(behind)) => {
            Op::UnlockAfterTurns(attempt, behind)
        }
        (Mode::Used, None) => Op::Unlock(attempt),
        (Mode::Lost | Mode::Unfinished, None) => Op::Drop(attempt),
        (Mode::Reduce { .. }, _) => Op::Downgrade(attempt),
        (Mode::Unused | Mode::KeepIfOwner | Mode::Forced(_), _) => Op::Cancel(attempt),
    }
}

/// How many waiters the request can pass over or grant, if there are more entries than one request
/// looks at. A waiter that the request removes is not among them.
fn reach(before: &RecordView, executed: &ExecutedCall<'_>) -> Option<usize> {
    let entries = match executed.call.verb {
        Verb::Sync { .. } => before.entries_after_sync(),
        _ => before.entries,
    };
    if entries <= MAX_HEADS || before.queue.len() < MAX_HEADS {
        return None;
    }
    let removed = match executed.call.verb {
        Verb::Release { token, mode, .. } if !matches!(mode, Mode::Forced(_)) => Some(token),
        _ => None,
    };
    let heads = before.queue[..MAX_HEADS]
        .iter()
        .filter(|entry| entry.waits && Some(entry.token) != removed);
    Some(heads.map(|entry| entry.token).collect::<HashSet<_>>().len())
}
