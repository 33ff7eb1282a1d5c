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
    /// One of them never will be.
    is_lost: bool,
    /// The node refuses all of them after this server time.
    not_after: u64,
    /// By then that time is over on any server.
    over_at: Time,
}

impl Doubts {
    /// A request is about to be sent.
    pub(super) fn add(&self, at: TokenAt, not_after: u64, over_at: Time) {
        let mut doubts = self.0.lock();
        let doubt = doubts.entry(at).or_insert(NodeDoubt {
            due: 0,
            is_lost: false,
            not_after: 0,
            over_at,
        });
        doubt.due += 1;
        doubt.not_after = doubt.not_after.max(not_after);
        doubt.over_at = doubt.over_at.max(over_at);
    }

    /// A request was answered, or never will be.
    pub(super) fn resolve(&self, at: TokenAt, result: &CallResult) {
        let mut doubts = self.0.lock();
        let Some(doubt) = doubts.get_mut(&at) else {
            return;
        };
        doubt.due = doubt.due.saturating_sub(1);
        doubt.is_lost |= match &result.answer {
            Ok(answer) => answer.resent,
            Err(fault) => fault.is_ambiguous(),
        };
        if doubt.due == 0 && !doubt.is_lost {
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
