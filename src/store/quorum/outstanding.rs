//! Requests that may still take a lock on single nodes, and releases without an answer there. R7
//! (late copies) is kept per node here, so the engine need not know of it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::script::{Call, Outcome, Token};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult};

/// A token on one of the nodes.
pub(super) type TokenAt = (Token, usize);

/// R7 (late copies): requests of a token that may still take a lock on a node.
#[derive(Default)]
pub(super) struct Doubts(Mutex<HashMap<TokenAt, NodeDoubt>>);

struct NodeDoubt {
    /// How many requests may still be answered.
    due: u32,
    /// How many of them are renewals. They go over another connection than releases, so either may
    /// run first.
    renewals: u32,
    /// A release was sent while a renewal was under way.
    is_crossed: bool,
    /// One of them never will be.
    is_lost: bool,
    /// The node refuses all of them after this server time.
    not_after: u64,
    /// By then that time is over on any server.
    over_at: Time,
}

impl NodeDoubt {
    /// Whether all requests were answered.
    fn is_resolved(&self) -> bool {
        self.due == 0 && !self.is_lost
    }
}

impl Doubts {
    /// A request is about to be sent.
    pub(super) fn add(&self, at: TokenAt, not_after: u64, over_at: Time) {
        let mut doubts = self.0.lock();
        let doubt = doubts.entry(at).or_insert(NodeDoubt {
            due: 0,
            renewals: 0,
            is_crossed: false,
            is_lost: false,
            not_after: 0,
            over_at,
        });
        doubt.due += 1;
        doubt.not_after = doubt.not_after.max(not_after);
        doubt.over_at = doubt.over_at.max(over_at);
    }

    /// The request that was added last is a renewal.
    pub(super) fn note_renewal(&self, at: TokenAt) {
        if let Some(doubt) = self.0.lock().get_mut(&at) {
            doubt.renewals += 1;
        }
    }

    /// A release is about to be sent.
    pub(super) fn note_release_sent(&self, at: TokenAt) {
        let mut doubts = self.0.lock();
        let Some(doubt) = doubts.get_mut(&at) else {
            return;
        };
        if doubt.is_resolved() {
            // All ran before this release.
            doubts.remove(&at);
        } else {
            doubt.is_crossed |= doubt.renewals > 0;
        }
    }

    /// A request was answered, or never will be.
    pub(super) fn resolve(&self, at: TokenAt, is_renewal: bool, result: &CallResult) {
        let mut doubts = self.0.lock();
        let Some(doubt) = doubts.get_mut(&at) else {
            return;
        };
        doubt.due = doubt.due.saturating_sub(1);
        doubt.renewals = doubt.renewals.saturating_sub(u32::from(is_renewal));
        doubt.is_lost |= match &result.answer {
            Ok(answer) => answer.resent,
            Err(fault) => fault.is_ambiguous(),
        };
        // The answer to a release may be read later than that of a renewal that ran after it.
        if doubt.is_resolved() && !doubt.is_crossed {
            doubts.remove(&at);
        }
    }

    /// Whether no copy can take the lock any more, by this answer to a release.
    pub(super) fn are_excluded(&self, at: TokenAt, answer: &Answer) -> bool {
        let doubts = self.0.lock();
        doubts
            .get(&at)
            .is_none_or(|doubt| answer.excludes_late_copies(doubt.not_after))
    }

    pub(super) fn has(&self, at: TokenAt) -> bool {
        self.0.lock().contains_key(&at)
    }

    fn forget(&self, at: TokenAt) {
        self.0.lock().remove(&at);
    }

    pub(super) fn forget_over(&self, now: Time) {
        self.0.lock().retain(|_, doubt| doubt.over_at > now);
    }
}

/// The state of a release at one node.
#[derive(Debug, Clone)]
pub(super) struct ReleaseVote {
    /// How often it may have carried the release out.
    pub(super) copies: u32,
    /// Its first answer, which may be to any of these copies.
    pub(super) outcome: Option<Outcome>,
}

/// Releases that no majority has decided yet. P7 (one grant for one request): the next attempt goes
/// on from these votes. By then, the next holder may have come and gone on the nodes that the one
/// before has reached, and they would know nothing of this lease.
#[derive(Default)]
pub(super) struct UndecidedReleases(Mutex<HashMap<Token, UndecidedRelease>>);

struct UndecidedRelease {
    votes: Vec<ReleaseVote>,
    /// Nobody sends it again after that.
    until: Time,
}

impl UndecidedReleases {
    /// An attempt ended with these votes. If it was not the first, they are known.
    pub(super) fn add(&self, token: Token, votes: Vec<ReleaseVote>, until: Time) {
        let mut undecided = self.0.lock();
        let release = UndecidedRelease { votes, until };
        undecided.entry(token).or_insert(release);
    }

    pub(super) fn votes(&self, token: Token) -> Option<Vec<ReleaseVote>> {
        let undecided = self.0.lock();
        undecided.get(&token).map(|release| release.votes.clone())
    }

    /// A copy is about to be sent.
    pub(super) fn note_sent(&self, at: TokenAt) {
        self.with_open_vote(at, |vote| vote.copies += 1);
    }

    /// That copy could not be sent.
    pub(super) fn note_not_sent(&self, at: TokenAt) {
        self.with_open_vote(at, |vote| vote.copies = vote.copies.saturating_sub(1));
    }

    /// A copy was answered, or never will be.
    pub(super) fn on_result(&self, at: TokenAt, result: &CallResult) {
        if let Ok(answer) = &result.answer {
            self.with_open_vote(at, |vote| {
                vote.outcome = Some(answer.reply.outcome.clone());
            });
        }
    }

    /// Later copies find the work of the one that was answered, so only the first answer counts.
    fn with_open_vote(&self, (token, node): TokenAt, change: impl FnOnce(&mut ReleaseVote)) {
        let mut undecided = self.0.lock();
        let vote = undecided
            .get_mut(&token)
            .and_then(|release| release.votes.get_mut(node));
        if let Some(vote) = vote.filter(|vote| vote.outcome.is_none()) {
            change(vote);
        }
    }

    /// A majority has decided.
    pub(super) fn forget(&self, token: Token) {
        let mut undecided = self.0.lock();
        // The common case is that there was none.
        if !undecided.is_empty() {
            undecided.remove(&token);
        }
    }

    pub(super) fn forget_over(&self, now: Time) {
        self.0.lock().retain(|_, release| release.until > now);
    }
}

/// The releases that are not done on some node.
#[derive(Default)]
pub(super) struct OpenReleases(Mutex<HashMap<TokenAt, NodeRelease>>);

struct NodeRelease {
    call: Call,
    since: Time,
    /// A lease of the token has lapsed by itself then.
    expires: Time,
    /// When to send it again. [`Time::NEVER`] while it is under way.
    next: Time,
}

impl OpenReleases {
    /// A release is to be sent at `next`.
    pub(super) fn add(&self, at: TokenAt, call: &Call, expires: Time, next: Time, now: Time) {
        let mut open = self.0.lock();
        let release = open.entry(at).or_insert_with(|| NodeRelease {
            call: call.clone(),
            since: now,
            expires,
            next,
        });
        release.next = next;
    }

    pub(super) fn close(&self, at: TokenAt, doubts: &Doubts) {
        doubts.forget(at);
        let mut open = self.0.lock();
        // The common case is that there was none.
        if !open.is_empty() {
            open.remove(&at);
        }
    }

    /// When the next one is to be sent.
    pub(super) fn next_due(&self) -> Time {
        let open = self.0.lock();
        let next = open
            .values()
            .map(|release| release.next.min(release.expires));
        next.min().unwrap_or(Time::NEVER)
    }

    /// Takes those that are to be sent now, at most this many. Forgets those that have expired.
    pub(super) fn take_due(&self, now: Time, most: usize) -> Vec<(TokenAt, Call)> {
        let mut open = self.0.lock();
        open.retain(|_, release| release.expires > now);
        let due = open.iter_mut().filter(|(_, release)| release.next <= now);
        let take = |(at, release): (&TokenAt, &mut NodeRelease)| {
            release.next = Time::NEVER;
            (*at, release.call.clone())
        };
        due.take(most).map(take).collect()
    }

    /// How long to wait before the next attempt: longer, the longer the node does not answer.
    pub(super) fn pause(&self, at: TokenAt, now: Time, least: Duration) -> Duration {
        let open = self.0.lock();
        let waited = open.get(&at).map_or(Duration::ZERO, |r| now - r.since);
        (waited / 4).clamp(least, least.max(Duration::from_secs(5)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ScriptReply;
    use crate::store::StoreFault;

    const LATEST: u64 = 2_000;

    fn answered_at(server: u64, outcome: Outcome) -> Answer {
        Answer {
            reply: ScriptReply {
                now: Some(server),
                more: false,
                dead_waiters: 0,
                next_page: 0,
                outcome,
                grants: Vec::new(),
            },
            sent: Time::from_nanos(1),
            resent: false,
        }
    }

    fn renewed() -> CallResult {
        let renewed = Outcome::Renewed {
            left: Duration::from_secs(60),
            fence: 9,
            waiting: false,
        };
        CallResult {
            answer: Ok(answered_at(1_200, renewed)),
            not_after: LATEST,
        }
    }

    fn doubts_with_a_renewal(at: TokenAt) -> Doubts {
        let doubts = Doubts::default();
        doubts.add(at, LATEST, Time::NEVER);
        doubts.note_renewal(at);
        doubts
    }

    #[test]
    fn release_that_may_have_run_before_a_renewal_is_not_the_last() {
        let at = (Token::new(), 2);
        let doubts = doubts_with_a_renewal(at);
        doubts.note_release_sent(at);
        // The renewal ran after the release, and its answer is read first.
        doubts.resolve(at, true, &renewed());
        assert!(!doubts.are_excluded(at, &answered_at(1_100, Outcome::Released)));
        doubts.note_release_sent(at);
        assert!(doubts.are_excluded(at, &answered_at(1_300, Outcome::Released)));
    }

    #[test]
    fn release_after_the_answers_to_all_renewals_is_the_last() {
        let at = (Token::new(), 2);
        let doubts = doubts_with_a_renewal(at);
        doubts.resolve(at, true, &renewed());
        doubts.note_release_sent(at);
        assert!(doubts.are_excluded(at, &answered_at(1_300, Outcome::Released)));
    }

    #[test]
    fn renewal_that_may_still_come_is_excluded_by_its_date() {
        let at = (Token::new(), 2);
        let doubts = doubts_with_a_renewal(at);
        let lost = StoreFault::connection_ended("it was closed");
        let lost = CallResult {
            answer: Err(lost),
            not_after: LATEST,
        };
        doubts.resolve(at, true, &lost);
        doubts.note_release_sent(at);
        assert!(!doubts.are_excluded(at, &answered_at(LATEST, Outcome::Released)));
        assert!(doubts.are_excluded(at, &answered_at(LATEST + 1, Outcome::Released)));
    }
}
