//! What the server ran and left, in the words of the model.

use std::collections::HashSet;

use super::{Judge, Model, Ran};
use crate::script::{self, Mode, Token, Verb};
use crate::sim::model::{Attempt, LeaseTerm, ModelOutcome, Observation, Op, ServerView};
use crate::sim::record::{Holder, Record};

/// How many heads of a queue one request looks at.
const MOST_HEADS: usize = 64;

impl Judge {
    /// The request and its answer in the words of the model. `None` for one that only looks.
    pub(super) fn told(&mut self, before: &Record, ran: &Ran<'_>) -> Option<(Op, ModelOutcome)> {
        let client = self.client(ran.manager);
        let op = match &ran.call.verb {
            Verb::Acquire {
                token,
                may_wait,
                params,
                ..
            } => {
                // `ttl fixed hold label`
                let fixed = params.split(' ').nth(1) == Some("1");
                let (lease, permits) = (
                    if fixed {
                        LeaseTerm::Fixed
                    } else {
                        LeaseTerm::Renewed
                    },
                    ran.call.spec.weight,
                );
                // What came before it may have been a release.
                let attempt = Attempt {
                    lease,
                    permits,
                    ..self.attempt(*token, client)
                };
                self.attempts.insert(*token, attempt);
                match before
                    .queue
                    .iter()
                    .any(|entry| entry.token == *token && !entry.waits)
                {
                    _ if !may_wait => Op::TryLock(attempt),
                    // A token that waits stands only once where it counts.
                    true if !before.stands(*token) => Op::Rejoin(attempt),
                    _ => Op::Enqueue(attempt),
                }
            }
            // Sent twice, it strikes nobody with a fence that others share.
            Verb::Release {
                token,
                mode: Mode::Forced,
                ..
            } if *ran.outcome == script::Outcome::Already && self.struck.contains(token) => {
                Op::ForceRelease { client, fence: 0 }
            }
            Verb::Release {
                fence,
                mode: Mode::Forced,
                ..
            } => Op::ForceRelease {
                client,
                fence: *fence,
            },
            Verb::Release { token, mode, .. } => {
                let attempt = self.attempt(*token, client);
                match mode {
                    Mode::Used => Op::Unlock(attempt),
                    Mode::Lost => Op::Drop(attempt),
                    Mode::Downgrade => Op::Downgrade(attempt),
                    Mode::Unused | Mode::KeepIfOwner | Mode::Forced => Op::Cancel(attempt),
                }
            }
            Verb::Renew { token } => Op::Renew(self.attempt(*token, client)),
            Verb::Sync { .. } => Op::Sync { client },
            Verb::Inspect { .. } | Verb::Lookup { .. } => return None,
        };
        self.model.returned |= matches!(op, Op::Rejoin(_));
        use script::Outcome as Said;
        let outcome = match ran.outcome {
            Said::Granted(grant) => ModelOutcome::Granted { fence: grant.fence },
            Said::Waiting { position, .. } => ModelOutcome::Waiting {
                position: Some(*position).filter(|_| !self.model.returned),
            },
            Said::Busy { .. } => ModelOutcome::Busy,
            Said::Late => ModelOutcome::Late,
            Said::More => ModelOutcome::SendAgain,
            Said::Released if matches!(op, Op::Downgrade(_)) => ModelOutcome::Downgraded,
            Said::Released => ModelOutcome::Released,
            Said::Renewed { .. } => ModelOutcome::Renewed,
            Said::Synced { .. } => ModelOutcome::Done,
            Said::Absent => ModelOutcome::Absent,
            Said::Refused | Said::Already if matches!(op, Op::ForceRelease { .. }) => {
                ModelOutcome::Refused
            }
            Said::Already
            | Said::Lapsed
            | Said::Forced
            | Said::Lost
            | Said::Unknown
            | Said::Gone { .. } => ModelOutcome::Lost,
            // Nobody asks for these here.
            _ => ModelOutcome::Forbidden,
        };
        Some((op, outcome))
    }

    pub(super) fn moment(
        &self,
        clock: u64,
        before: &Record,
        after: &Record,
        ran: &Ran<'_>,
    ) -> ServerView {
        let Model { served, lock, .. } = &self.model;
        let number = |holder: &Holder| {
            self.attempts
                .get(&holder.token)
                .map(|attempt| attempt.number)
        };
        let was_spared = |holder: &&Holder| {
            !holder.spared && after.same(holder).is_some_and(|holder| holder.spared)
        };
        let (token, mode) = match ran.call.verb {
            Verb::Acquire { token, .. } | Verb::Renew { token } => (Some(token), None),
            Verb::Release { token, mode, .. } => (Some(token), Some(mode)),
            Verb::Sync { .. } | Verb::Inspect { .. } | Verb::Lookup { .. } => (None, None),
        };
        let own = token.and_then(|token| before.holder(token));
        let asks_for_its_own = own.is_some() && matches!(mode, None | Some(Mode::KeepIfOwner));
        use script::Outcome as Said;
        let does_nothing = matches!(
            ran.outcome,
            Said::Late | Said::Absent | Said::Renewed { .. } | Said::Gone { .. }
        );
        let takes = mode == Some(Mode::Forced) && *ran.outcome != script::Outcome::Already;
        let token_of = |number: u16| self.tokens[usize::from(number)];
        // What one request passes over or grants; whoever leaves stands there no more.
        let entries = before.counted_entries(matches!(ran.call.verb, Verb::Sync { .. }));
        let reach = (entries > MOST_HEADS && before.queue.len() >= MOST_HEADS).then(|| {
            let leaves = token.filter(
                |_| matches!(ran.call.verb, Verb::Release { mode, .. } if mode != Mode::Forced),
            );
            let heads = before.queue[..MOST_HEADS]
                .iter()
                .filter(|entry| entry.waits && Some(entry.token) != leaves);
            heads.map(|entry| entry.token).collect::<HashSet<_>>().len()
        });
        let cools = |own: &Holder| own.hold > 0 && own.granted_at.min(clock) + own.hold > clock;
        ServerView {
            clock,
            expired: lock
                .taken_by()
                .filter(|number| before.is_over(token_of(*number), clock))
                .collect(),
            cooled: lock
                .taken_by()
                .filter(|number| before.has_rested(token_of(*number), clock))
                .collect(),
            silent: served.silent(clock),
            outage: served.is_outage(clock),
            grace: before
                .holders
                .iter()
                .filter(was_spared)
                .filter_map(number)
                .collect(),
            recounts: (before.looks(clock) || takes) && !asks_for_its_own && !does_nothing,
            must_cool: matches!(mode, Some(Mode::Used | Mode::Lost)) && own.is_some_and(cools),
            reach,
        }
    }

    pub(super) fn sight(&mut self, record: &Record, manager: &str) -> Observation {
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
        Observation { holders, queue }
    }

    pub(super) fn client(&mut self, manager: &str) -> u8 {
        let next = self.clients.len() as u8;
        *self.clients.entry(manager.to_owned()).or_insert(next)
    }

    /// By its token; until its acquire says more, as if it were renewed and of one permit.
    fn attempt(&mut self, token: Token, client: u8) -> Attempt {
        let number = self.tokens.len() as u16;
        *self.attempts.entry(token).or_insert_with(|| {
            self.tokens.push(token);
            Attempt {
                number,
                client,
                lease: LeaseTerm::Renewed,
                permits: 1,
            }
        })
    }
}
