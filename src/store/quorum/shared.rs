//! The state that all calls of one manager share: its numbers, and requests without an end on single
//! nodes. It owns no connection, so that an unread reply may keep it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::gaps::Gaps;
use super::outstanding::{Doubts, OpenReleases, ReleaseVote, UndecidedReleases};
use super::proposal::Proposal;
use super::voters::Voters;
use crate::config::Config;
use crate::script::{Call, Family, LockSpec, Mode, Params, Token, Verb};
use crate::store::clock::{Clock, Time};
use crate::store::node::Node;
use crate::store::{CallResult, StoreFault};

/// A lease that a node lacks, and when it is renewed again; whether answers are still to come.
pub(super) type Missing = (Option<(Token, Duration)>, bool);

/// The state that the calls of one manager share.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) addresses: Vec<Arc<str>>,
    pub(super) config: Config,
    pub(super) voters: Voters,
    pub(super) doubts: Doubts,
    pub(super) open_releases: OpenReleases,
    pub(super) undecided: UndecidedReleases,
    /// Leases that some node lacks.
    pub(super) gaps: Gaps,
    /// For each node: whether renewals go on without it, and from when on it may be back.
    away: Vec<Mutex<Option<Time>>>,
    /// The longest lease that was asked for, in ns.
    longest: AtomicU64,
    /// Wakes the renewal thread.
    pub(super) waker: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

impl Shared {
    pub(super) fn new(
        clock: Clock,
        nodes: Vec<Arc<Node>>,
        voters: Voters,
        config: &Config,
    ) -> Shared {
        let address = |node: &Arc<Node>| node.address().to_string().into();
        Shared {
            clock,
            addresses: nodes.iter().map(address).collect(),
            away: nodes.iter().map(|_| Mutex::new(None)).collect(),
            nodes,
            config: config.clone(),
            voters,
            doubts: Doubts::default(),
            open_releases: OpenReleases::default(),
            undecided: UndecidedReleases::default(),
            gaps: Gaps::default(),
            longest: AtomicU64::new(0),
            waker: OnceLock::new(),
        }
    }

    /// The call as the nodes get it.
    pub(super) fn for_nodes(&self, call: &Call) -> Result<Call, StoreFault> {
        if call.spec.family != Family::Mutex {
            return Err(StoreFault::Unfit {
                what: "quorum",
                message: "has only mutexes and re-entrant mutexes; use another topology for \
                          semaphores and reader/writer locks"
                    .to_owned(),
            });
        }
        let verb = match &call.verb {
            // There is no queue, so nobody waits in one.
            Verb::Acquire { token, params, .. } => {
                self.note_lease(params);
                Verb::Propose {
                    token: *token,
                    fence: self.voters.propose(0),
                    params: Arc::clone(params),
                }
            }
            other => other.clone(),
        };
        Ok(Call {
            spec: LockSpec::QUORUM,
            key: call.key.clone(),
            verb,
        })
    }

    /// P2 (rising fences) holds for leases up to the ttl: a server that has run for so long votes. No
    /// other lease comes here: see [`Config::check_for_quorum`].
    fn note_lease(&self, params: &str) {
        let lease = Params::read(params, Family::Quorum).map_or(Duration::ZERO, |p| p.longest());
        self.longest
            .fetch_max(lease.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A proposal that goes on from the attempts before, if the call is a release.
    pub(super) fn new_proposal(&self, call: Call) -> Proposal {
        let token = released_token(&call);
        let mut proposal = Proposal::new(call, &self.addresses);
        if let Some(votes) = token.and_then(|token| self.undecided.votes(token)) {
            proposal.resume(votes);
        }
        proposal
    }

    /// A release has ended with this result, and with these votes if no majority has decided it.
    pub(super) fn end_release(
        &self,
        call: &Call,
        result: &CallResult,
        votes: impl FnOnce() -> Vec<ReleaseVote>,
    ) {
        let Some(token) = released_token(call) else {
            return;
        };
        match &result.answer {
            Ok(_) => self.undecided.forget(token),
            Err(_) => self.undecided.add(token, votes(), self.lapsed_by()),
        }
    }

    /// A copy of a release is about to be sent.
    pub(super) fn note_release_sent(&self, node: usize, call: &Call) {
        if let Some(token) = released_token(call) {
            self.undecided.note_sent((token, node));
            self.doubts.note_release_sent((token, node));
        }
    }

    /// That copy could not be sent.
    pub(super) fn note_release_not_sent(&self, node: usize, call: &Call) {
        if let Some(token) = released_token(call) {
            self.undecided.note_not_sent((token, node));
        }
    }

    /// A request that may take a lock is about to be sent to a node.
    pub(super) fn add_doubt(&self, token: Token, node: usize, verb: &Verb, not_after: u64) {
        let over_at = self.clock.now() + self.config.command_timeout * 8;
        self.doubts.add((token, node), not_after, over_at);
        if is_renewal(verb) {
            self.doubts.note_renewal((token, node));
        }
    }

    /// A request that may take a lock was answered by a node, or never will be.
    pub(super) fn resolve_doubt(
        &self,
        token: Token,
        node: usize,
        verb: &Verb,
        result: &CallResult,
    ) {
        let at = (token, node);
        self.doubts.resolve(at, is_renewal(verb), result);
    }

    /// A node has answered a release, or will not.
    pub(super) fn on_release_result(&self, node: usize, call: &Call, result: &CallResult) {
        let Some(token) = released_token(call) else {
            return;
        };
        let at = (token, node);
        self.undecided.on_result(at, result);
        let is_done = result
            .answer
            .as_ref()
            .is_ok_and(|answer| self.doubts.are_excluded(at, answer));
        if is_done {
            self.open_releases.close(at, &self.doubts);
        } else {
            self.release_later(node, call);
        }
    }

    /// The renewal thread sends a release to this node until it is done.
    pub(super) fn release_later(&self, node: usize, call: &Call) {
        let Some(token) = released_token(call) else {
            return;
        };
        let now = self.clock.now();
        let at = (token, node);
        let least = self.config.back_off.min(self.config.command_timeout / 2);
        let next = now + self.open_releases.pause(at, now, least);
        self.open_releases
            .add(at, call, self.lapsed_by(), next, now);
        self.wake_renewal_thread();
    }

    /// The lease of this token is renewed after this time: a node that lacks it may be free by then.
    pub(super) fn note_gap(&self, token: Token, again_in: Duration) {
        if self.gaps.add(token, self.clock.now() + again_in) {
            self.wake_renewal_thread();
        }
    }

    /// A call has ended, with a gap or with answers that are still to come.
    pub(super) fn note_missing(&self, (gap, awaits_votes): Missing) {
        if let Some((token, again_in)) = gap {
            self.note_gap(token, again_in);
        }
        if awaits_votes {
            self.note_late_votes();
        }
    }

    /// Answers of some nodes come after their majority. They are read within one command timeout.
    fn note_late_votes(&self) {
        let now = self.clock.now();
        let overdue = now + self.config.command_timeout + Duration::from_millis(1);
        if self.gaps.look_at(overdue, now) {
            self.wake_renewal_thread();
        }
    }

    /// Renewals go on without this node. The renewal thread looks for it.
    pub(super) fn note_away(&self, node: usize) {
        self.go_on_without(node, Time::from_nanos(0));
    }

    /// A renewal had no good answer from this node.
    ///
    /// A refusal that does not pass by itself, or a malformed reply, is the matter of its name: its
    /// record may have been damaged. The node is not away, or all leases would be renewed at once,
    /// again and again. It is not back at once, either, after a refusal that passes.
    pub(super) fn note_renewal_fault(&self, node: usize, fault: &StoreFault) {
        let is_refusal = fault.code().is_some();
        if is_refusal && fault.is_transient() {
            self.go_on_without(node, self.clock.now() + self.config.back_off);
        } else if !is_refusal && !fault.is_closed() {
            self.note_away(node);
        }
    }

    fn go_on_without(&self, node: usize, back_from: Time) {
        let was_away = self.away[node].lock().replace(back_from).is_some();
        if !was_away {
            self.wake_renewal_thread();
        }
    }

    pub(super) fn is_away(&self, node: usize) -> bool {
        self.away[node].lock().is_some()
    }

    /// Whether a node that is away may be back by now, if it can be reached.
    pub(super) fn may_be_back(&self, node: usize) -> bool {
        let back_from = *self.away[node].lock();
        back_from.is_some_and(|from| self.clock.now() >= from)
    }

    pub(super) fn note_back(&self, node: usize) {
        *self.away[node].lock() = None;
    }

    /// When a lease that is released now has lapsed by itself. A copy of an acquire may take the
    /// lock for up to T after the release began.
    fn lapsed_by(&self) -> Time {
        let longest =
            Duration::from_nanos(self.longest.load(Ordering::Relaxed)).max(self.config.ttl);
        self.clock.now() + longest + self.config.command_timeout * 2
    }

    fn wake_renewal_thread(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
    }
}

fn is_renewal(verb: &Verb) -> bool {
    matches!(verb, Verb::Renew { .. })
}

/// The token whose release must be done on every node. A forced release has none: it ends what a
/// majority has, and nobody waits for a node that it misses.
fn released_token(call: &Call) -> Option<Token> {
    match call.verb {
        Verb::Release {
            mode: Mode::Forced(_),
            ..
        } => None,
        Verb::Release { token, .. } => Some(token),
        _ => None,
    }
}
