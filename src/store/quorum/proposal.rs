//! One call, put to all nodes, and what they have answered so far.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::decision::{Decision, NodeAnswer, decide, majority_of};
use super::gaps::{ask_again_in, soon};
use super::outstanding::ReleaseVote;
use crate::error::Step;
use crate::script::{Call, Mode, Outcome, ScriptReply, Token, Verb, Vote};
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, StoreFault};

/// A call that is put to all nodes.
pub(super) struct Proposal {
    /// As the nodes get it.
    pub(super) call: Call,
    /// Counts the proposals of an acquire: each is put to all nodes anew.
    pub(super) round: u32,
    /// A moment before the first request was sent.
    pub(super) sent: Option<Time>,
    nodes: Vec<Voter>,
}

/// One node, as this call sees it.
struct Voter {
    address: Arc<str>,
    state: VoterState,
    attempts: Attempts,
    /// The connection was closed under the call, so it is to be sent again.
    is_to_retry: bool,
    /// How often the node may have carried the call out, in this attempt and those before.
    copies: u32,
}

enum VoterState {
    Unsent,
    /// The first connection of its lane is being opened.
    Opening,
    /// The last connection failed, so the caller waits for another only if a majority needs it.
    Suspect(StoreFault),
    AsksForRights,
    Sent,
    Answered(Outcome),
    Failed(StoreFault),
}

impl Proposal {
    pub(super) fn new(call: Call, addresses: &[Arc<str>]) -> Proposal {
        let voter = |address: &Arc<str>| Voter {
            address: Arc::clone(address),
            state: VoterState::Unsent,
            attempts: Attempts::default(),
            is_to_retry: false,
            copies: 0,
        };
        Proposal {
            call,
            round: 0,
            sent: None,
            nodes: addresses.iter().map(voter).collect(),
        }
    }

    /// Goes on from what the nodes have answered to the attempts before.
    pub(super) fn resume(&mut self, votes: Vec<ReleaseVote>) {
        for (voter, vote) in self.nodes.iter_mut().zip(votes) {
            voter.copies = vote.copies;
            if let Some(outcome) = vote.outcome {
                voter.state = VoterState::Answered(outcome);
            }
        }
    }

    /// The votes from which the next attempt of a release goes on.
    pub(super) fn release_votes(&self) -> Vec<ReleaseVote> {
        let vote = |voter: &Voter| ReleaseVote {
            copies: voter.copies,
            outcome: match &voter.state {
                VoterState::Answered(outcome) => Some(outcome.clone()),
                _ => None,
            },
        };
        self.nodes.iter().map(vote).collect()
    }

    pub(super) fn decision(&self) -> Decision {
        let without = self.decide(|_| NodeAnswer::None);
        if without != Decision::NoMajority {
            return without;
        }
        // Nobody else can decide, so a node that failed before may still do.
        self.decide(|_| NodeAnswer::Due)
    }

    fn decide(&self, suspect: impl Fn(&StoreFault) -> NodeAnswer<'static>) -> Decision {
        let answer = |voter: &'_ Voter| -> Option<NodeAnswer<'_>> {
            Some(match &voter.state {
                VoterState::Unsent
                | VoterState::Opening
                | VoterState::AsksForRights
                | VoterState::Sent => NodeAnswer::Due,
                VoterState::Suspect(fault) => suspect(fault),
                VoterState::Answered(_) => return None,
                VoterState::Failed(_) => NodeAnswer::None,
            })
        };
        let answers: Vec<NodeAnswer<'_>> = self
            .nodes
            .iter()
            .map(|voter| match (&voter.state, answer(voter)) {
                (VoterState::Answered(outcome), _) => voter.read(&self.call.verb, outcome),
                (_, other) => other.unwrap_or(NodeAnswer::None),
            })
            .collect();
        decide(&self.call.verb, &answers)
    }

    /// The nodes to which the call is still to be sent.
    pub(super) fn unsent(&self) -> impl Iterator<Item = usize> + '_ {
        let is_unsent = |voter: &Voter| {
            matches!(
                voter.state,
                VoterState::Unsent | VoterState::Opening | VoterState::Suspect(_)
            )
        };
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, v)| is_unsent(v)).map(|(at, _)| at)
    }

    /// Whether something will be sent to a node as soon as that is possible. A node that failed
    /// before does not count.
    pub(super) fn is_starting(&self) -> bool {
        let is_starting = |voter: &Voter| {
            matches!(
                voter.state,
                VoterState::Unsent | VoterState::Opening | VoterState::AsksForRights
            )
        };
        self.nodes.iter().any(is_starting)
    }

    /// Whether the caller can send to some node at once.
    pub(super) fn has_unsent(&self) -> bool {
        let is_unsent = |voter: &Voter| matches!(voter.state, VoterState::Unsent);
        self.nodes.iter().any(is_unsent)
    }

    /// Whether the call is to be sent to a node again, since its connection ended.
    pub(super) fn is_to_retry(&self, node: usize) -> bool {
        self.nodes[node].is_to_retry
    }

    /// The caller waits after all: what was sent can be sent again.
    pub(super) fn go_on_sending(&mut self) {
        for voter in &mut self.nodes {
            voter.attempts = Attempts::default();
        }
    }

    /// The caller leaves: what is not sent never will be.
    pub(super) fn stop_sending(&mut self) {
        for voter in &mut self.nodes {
            // Nobody would send it again.
            voter.attempts = Attempts::on_one_connection();
            let fault = match &voter.state {
                VoterState::Unsent | VoterState::Opening | VoterState::AsksForRights => {
                    StoreFault::NotReady
                }
                VoterState::Suspect(fault) => fault.clone(),
                _ => continue,
            };
            voter.state = VoterState::Failed(fault);
        }
    }

    /// The time is over: what has not come will not.
    pub(super) fn end(&mut self) {
        for voter in &mut self.nodes {
            let step = match voter.state {
                VoterState::Unsent | VoterState::Opening => Step::Connect,
                VoterState::AsksForRights | VoterState::Sent => Step::Reply,
                _ => continue,
            };
            voter.state = VoterState::Failed(StoreFault::timed_out(step));
        }
        self.stop_sending();
    }

    pub(super) fn note_opening(&mut self, node: usize) {
        self.nodes[node].state = VoterState::Opening;
    }

    pub(super) fn note_suspect(&mut self, node: usize, fault: StoreFault) {
        self.nodes[node].state = VoterState::Suspect(fault);
    }

    pub(super) fn note_failed(&mut self, node: usize, fault: StoreFault) {
        self.nodes[node].state = VoterState::Failed(fault);
    }

    pub(super) fn note_asks_for_rights(&mut self, node: usize) {
        self.nodes[node].state = VoterState::AsksForRights;
    }

    pub(super) fn on_rights(&mut self, node: usize, result: Result<(), StoreFault>) {
        let voter = &mut self.nodes[node];
        if matches!(voter.state, VoterState::AsksForRights) {
            voter.on_result(result.map(|()| VoterState::Unsent));
        }
    }

    /// Returns whether it is sent again, since a connection was closed.
    pub(super) fn note_sent(&mut self, node: usize, now: Time) -> bool {
        self.sent.get_or_insert(now);
        let voter = &mut self.nodes[node];
        voter.state = VoterState::Sent;
        voter.copies += 1;
        std::mem::take(&mut voter.is_to_retry)
    }

    /// The lane was closed before the call was appended.
    pub(super) fn note_not_sent(&mut self, node: usize) {
        let voter = &mut self.nodes[node];
        if matches!(voter.state, VoterState::Sent) {
            voter.copies -= 1;
        }
        voter.state = VoterState::Unsent;
    }

    /// A node has answered this round, or will not.
    pub(super) fn on_result(&mut self, node: usize, round: u32, result: CallResult) {
        let is_forced = matches!(
            self.call.verb,
            Verb::Release {
                mode: Mode::Forced(_),
                ..
            }
        );
        let voter = &mut self.nodes[node];
        // A caller whose time is over has its result: nothing can change that any more.
        if round != self.round || !matches!(voter.state, VoterState::Sent) {
            return;
        }
        // R5 (dated requests): the copy did nothing, and its answer brought the node's time. A grant
        // and a renewal that are late are asked for again by others.
        let is_late = |answer: &Answer| is_forced && answer.reply.outcome == Outcome::Late;
        if result.answer.as_ref().is_ok_and(is_late)
            && voter.attempts.after(Ending::Refused) == Next::Again
        {
            voter.copies -= 1;
            voter.is_to_retry = true;
            voter.state = VoterState::Unsent;
            return;
        }
        voter.on_result(result.answer.map(|answer| match answer.reply.outcome {
            Outcome::Kind(kind) => {
                let message = format!("the record is {kind}, and not of a quorum");
                VoterState::Failed(StoreFault::server("WRONGKIND", message).at(&voter.address))
            }
            outcome => VoterState::Answered(outcome),
        }));
    }

    /// Puts a higher fence to all nodes.
    pub(super) fn propose(&mut self, higher: u64) {
        self.round += 1;
        if let Verb::Propose { fence, .. } = &mut self.call.verb {
            *fence = higher;
        }
        for voter in &mut self.nodes {
            voter.state = VoterState::Unsent;
        }
    }

    /// The token, if the call may take a lock.
    pub(super) fn token(&self) -> Option<Token> {
        match self.call.verb {
            Verb::Propose { token, .. } | Verb::Renew { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether a majority has granted or renewed a lease.
    fn is_held(&self) -> bool {
        matches!(
            self.decision(),
            Decision::Decided(Outcome::Granted(_) | Outcome::Renewed { .. })
        )
    }

    /// Whether a lease is held, and answers of other nodes are under way.
    pub(super) fn awaits_votes(&self) -> bool {
        let is_sent = |voter: &Voter| matches!(voter.state, VoterState::Sent);
        self.nodes.iter().any(is_sent) && self.is_held()
    }

    /// If a majority has granted or renewed a lease: how soon a node that lacks it is asked again.
    /// `None` if all have it, or their answers are under way.
    pub(super) fn gap(&self, back_off: Duration) -> Option<(Token, Duration)> {
        let token = self.token()?;
        let again = |voter: &Voter| match &voter.state {
            VoterState::Answered(outcome) => ask_again_in(&self.call.verb, Ok(outcome), back_off),
            VoterState::Failed(fault) | VoterState::Suspect(fault) => {
                ask_again_in(&self.call.verb, Err(fault), back_off)
            }
            _ => None,
        };
        let soonest = self.nodes.iter().filter_map(again).min();
        soonest
            .filter(|_| self.is_held())
            .map(|soonest| (token, soonest))
    }

    /// The same at the end of the call. A node that was still to be asked, for instance since its
    /// rights were not known yet, lacks the lease, too.
    pub(super) fn last_gap(&self, back_off: Duration) -> Option<(Token, Duration)> {
        let never_asked = || {
            let token = self.token()?;
            (self.is_starting() && self.is_held()).then(|| (token, soon(back_off)))
        };
        self.gap(back_off).or_else(never_asked)
    }

    /// The nodes on which a failed acquire may have taken the lock. These are all that were
    /// asked, except those that refused and to which no other copy is under way.
    pub(super) fn may_be_taken_on(&self, is_in_doubt: impl Fn(usize) -> bool) -> Vec<usize> {
        let may_have = |(at, voter): &(usize, &Voter)| {
            let is_refused = matches!(
                voter.state,
                VoterState::Answered(
                    Outcome::Vote(Vote::Busy { .. } | Vote::Outbid { .. }) | Outcome::Late
                )
            );
            voter.copies > 0 && (!is_refused || is_in_doubt(*at))
        };
        let nodes = self.nodes.iter().enumerate().filter(may_have);
        nodes.map(|(at, _)| at).collect()
    }

    /// The nodes to which a release was not sent.
    pub(super) fn not_sent_to(&self) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        let unsent = nodes.filter(|(_, voter)| voter.copies == 0);
        unsent.map(|(at, _)| at).collect()
    }

    /// The decision of the nodes.
    pub(super) fn result(&self) -> CallResult {
        let resent = self.nodes.iter().any(|voter| voter.copies > 1);
        let decided = match self.decision() {
            Decision::Decided(outcome) => Some(outcome),
            // Others propose at the same time, so none of them has won yet.
            Decision::Outbid { .. } => Some(Outcome::Busy {
                left: Duration::ZERO,
                told: false,
            }),
            Decision::Open | Decision::NoMajority => None,
        };
        let answer = match decided {
            Some(outcome) => Ok(Answer {
                // R7 (late copies) is kept here, per node.
                reply: ScriptReply::of(outcome, None),
                sent: self.sent.unwrap_or(Time::from_nanos(0)),
                resent: resent && matches!(self.call.verb, Verb::Release { .. }),
            }),
            None => Err(self.fault()),
        };
        CallResult {
            answer,
            not_after: 0,
        }
    }

    /// Why there is no decision.
    fn fault(&self) -> StoreFault {
        let was_sent = self.nodes.iter().any(|voter| voter.copies > 0);
        let faults = self.nodes.iter().filter_map(|voter| match &voter.state {
            VoterState::Failed(fault) | VoterState::Suspect(fault) => Some((&voter.address, fault)),
            _ => None,
        });
        let faults: Vec<(&Arc<str>, &StoreFault)> = faults.collect();
        let is_not_ready = |(_, fault): &(_, &StoreFault)| matches!(fault, StoreFault::NotReady);
        if !was_sent && faults.iter().all(is_not_ready) {
            return StoreFault::NotReady;
        }
        // Nodes that refuse for good say more than the lack of a majority.
        let mut refused = faults.iter().filter(|(_, fault)| !fault.is_transient());
        let most_refused =
            refused.clone().count() > self.nodes.len() - majority_of(self.nodes.len());
        if let Some((_, fault)) = refused.next().filter(|_| most_refused) {
            return (*fault).clone();
        }
        let mut text = format!(
            "{} of {} nodes did not decide",
            faults.len(),
            self.nodes.len()
        );
        for (at, (address, fault)) in faults.iter().enumerate() {
            let colon = if at == 0 { ':' } else { ';' };
            let _ = write!(text, "{colon} {address}: {}", fault.reason());
        }
        let cannot_tell = self.nodes.iter().filter(|voter| {
            matches!(&voter.state, VoterState::Answered(outcome)
                if matches!(voter.read(&self.call.verb, outcome), NodeAnswer::None))
        });
        for voter in cannot_tell {
            let _ = write!(text, "; {}: it may have answered before", voter.address);
        }
        let fault = StoreFault::unavailable(Step::Majority, text);
        let failed: Vec<&str> = faults.iter().map(|(address, _)| &***address).collect();
        let fault = match failed[..] {
            [] => fault,
            _ => fault.at(&failed.join(", ").into()),
        };
        // An acquire that may have taken something is undone here.
        if was_sent && matches!(self.call.verb, Verb::Release { .. }) {
            StoreFault::InDoubt(Box::new(fault))
        } else {
            fault
        }
    }
}

impl Voter {
    /// Reads a node's answer. If the node may have carried out an earlier copy of a guard's
    /// release, its answer to the last one may be about the work of that copy.
    ///
    /// P7 (one grant for one request): so the answers of each node are read by its own copies.
    fn read<'a>(&self, verb: &Verb, outcome: &'a Outcome) -> NodeAnswer<'a> {
        let Verb::Release { mode, .. } = verb else {
            return NodeAnswer::Some(outcome);
        };
        if !matches!(mode, Mode::Used | Mode::Unfinished) {
            return NodeAnswer::Some(outcome);
        }
        let is_first = self.copies < 2;
        match (mode, outcome) {
            // Another token had the same fence there.
            (_, Outcome::Already) if is_first => NodeAnswer::Some(&Outcome::Unknown),
            (_, Outcome::Already) => NodeAnswer::Some(&Outcome::Released),
            (Mode::Unfinished, Outcome::Lapsed) if !is_first => {
                NodeAnswer::Some(&Outcome::Released)
            }
            // A later guard has ended there, so the node cannot know what the first copy found.
            (_, Outcome::Unknown) if !is_first => NodeAnswer::None,
            _ => NodeAnswer::Some(outcome),
        }
    }

    fn on_result(&mut self, result: Result<VoterState, StoreFault>) {
        self.state = match result {
            Ok(state) => state,
            // The connection was idle, and the server had closed it: another may do better.
            Err(fault)
                if fault.is_closed() && self.attempts.after(Ending::Closed) == Next::Again =>
            {
                self.is_to_retry = true;
                VoterState::Unsent
            }
            Err(fault) => VoterState::Failed(fault),
        };
    }
}
