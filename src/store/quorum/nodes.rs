//! All nodes, and how a call is put to them. It is sent to all that can be reached, and
//! again where that helps, until a majority has decided.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::decision::Decision;
use super::member::{Member, Reach};
use super::proposal::Proposal;
use super::request::{PendingRequest, Wake};
use super::shared::{Missing, Shared};
use super::wait_list::WaitList;
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::node::Lanes;
use crate::store::{CallResult, OnResult, StoreFault};

/// How often an acquire proposes a fence. In each round it is above all that the nodes reported, so
/// the second round fails only if others proposed meanwhile.
const ROUNDS: u32 = 8;
/// How soon a lane is looked at again that was closed just now.
const CLOSED_JUST_NOW: Duration = Duration::from_millis(1);
/// How many open releases are sent together.
const RELEASES: usize = 256;

/// Some lanes to each node, and where their callers wait.
pub(super) struct Nodes {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) wait_list: Arc<WaitList>,
    /// The lanes of the callers for the renewal thread, and its own for them.
    others: OnceLock<Weak<Nodes>>,
}

/// A lane that a call goes over.
struct LaneChoice {
    node: usize,
    lane: usize,
    /// The lane is one of these, since its own cannot be opened.
    stand_in: Option<Arc<Member>>,
}

/// Whether a call waits for nodes that cannot be reached now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unreachable {
    AreAwaited,
    AreLeftOut,
}

/// How far some proposals are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Completion {
    Done,
    /// A lock is granted, and nothing was sent to some node, since the lane is being opened or the
    /// rights are not known yet. Without that node, the lock would not outlast the loss of another,
    /// until its next renewal. So the caller waits a little: once, as a lane is new.
    Incomplete,
    Open,
}

/// One copy of a call, for one node.
struct CallCopy {
    proposal: usize,
    node: usize,
    round: u32,
    call: Call,
}

impl Nodes {
    pub(super) fn new(members: Vec<Arc<Member>>, wait_list: Arc<WaitList>) -> Arc<Nodes> {
        Arc::new(Nodes {
            members,
            wait_list,
            others: OnceLock::new(),
        })
    }

    /// Each of these takes calls of the other while that cannot open a lane.
    pub(super) fn stand_in_for_each_other(self: &Arc<Self>, other: &Arc<Nodes>) {
        let _ = self.others.set(Arc::downgrade(other));
        let _ = other.others.set(Arc::downgrade(self));
    }

    fn others(&self) -> Option<Arc<Nodes>> {
        self.others.get().and_then(Weak::upgrade)
    }

    /// Whether a call can go out to a node, and over which lane. If no connection can be opened for
    /// its own lane, any other lane to the node will do.
    fn reach(
        &self,
        node: usize,
        call: &Call,
        request: Option<&Arc<PendingRequest>>,
    ) -> (Reach, LaneChoice) {
        let own = &self.members[node];
        let reached = own.reach(call, request);
        if matches!(reached, Reach::Suspect(..)) && own.cannot_open(call) {
            let others = self.others();
            let members = [
                Some(own),
                others.as_ref().map(|others| &others.members[node]),
            ];
            for member in members.into_iter().flatten() {
                if let Some((reached, lane)) = member.any_open(call) {
                    let stand_in = Some(Arc::clone(member));
                    return (
                        reached,
                        LaneChoice {
                            node,
                            lane,
                            stand_in,
                        },
                    );
                }
            }
        }
        let way = LaneChoice {
            node,
            lane: own.lanes.number_of(&call.key),
            stand_in: None,
        };
        (reached, way)
    }

    fn lanes<'a>(&'a self, way: &'a LaneChoice) -> &'a Lanes {
        let own = &self.members[way.node];
        &way.stand_in.as_ref().unwrap_or(own).lanes
    }

    /// Whether a call can go out to a node.
    pub(super) fn reach_for_link(&self, node: usize, call: &Call) -> Reach {
        self.reach(node, call, None).0
    }

    /// Puts calls to all nodes, and waits until a majority has decided each of them, at most until
    /// `until`.
    pub(super) fn run(
        &self,
        shared: &Arc<Shared>,
        calls: &[Call],
        until: Time,
        unreachable: Unreachable,
    ) -> Vec<CallResult> {
        let checked: Vec<Result<Call, StoreFault>> =
            calls.iter().map(|call| shared.for_nodes(call)).collect();
        let proposals = checked.iter().flatten();
        let proposals = proposals.map(|call| shared.new_proposal(call.clone()));
        let request = Arc::new(PendingRequest::new(proposals.collect()));
        self.drive(shared, &request, until, unreachable);
        let mut results = self.conclude(shared, &request).into_iter();
        let result = |checked: Result<Call, StoreFault>| match checked {
            Ok(_) => results.next(),
            Err(fault) => Some(CallResult::not_sent(fault)),
        };
        checked.into_iter().filter_map(result).collect()
    }

    /// Sends, waits, and sends again where that helps, until all is decided.
    pub(super) fn drive(
        &self,
        shared: &Arc<Shared>,
        request: &Arc<PendingRequest>,
        until: Time,
        unreachable: Unreachable,
    ) {
        let mut until = until;
        // Connections can die in silence. So after half of the time the caller tries others.
        let started = shared.clock.now();
        let mut silent_at = started + (until - started) / 2;
        loop {
            let (next, has_detours) = self.send(shared, request, until, unreachable);
            if has_detours && let Some(others) = self.others() {
                self.wait_list.watch_also(&others.members);
            }
            let now = shared.clock.now();
            match request.with(|proposals| completion(proposals)) {
                Completion::Open => {}
                Completion::Incomplete => {
                    until = until.min(now + shared.config.command_timeout / 8)
                }
                Completion::Done => return,
            }
            if now >= until {
                return;
            }
            if now >= silent_at {
                silent_at = Time::NEVER;
                self.end_silent(request);
                // Each node whose lane was ended is to be asked again.
                continue;
            }
            let next = next.min(silent_at).min(until);
            self.wait_list.wait(request, &self.members, next);
        }
    }

    /// Ends the lanes of a caller's calls on which nothing comes.
    fn end_silent(&self, request: &Arc<PendingRequest>) {
        let keys = request.with(|proposals| {
            let keys = proposals.iter().map(|proposal| proposal.call.key.clone());
            keys.collect::<Vec<_>>()
        });
        for member in &self.members {
            for key in &keys {
                member.lanes.end_silent(member.lanes.number_of(key));
            }
        }
    }

    /// Sends what can be sent now. Returns when there may be more to send, and whether something went
    /// over another lane than its own.
    pub(super) fn send(
        &self,
        shared: &Arc<Shared>,
        request: &Arc<PendingRequest>,
        until: Time,
        unreachable: Unreachable,
    ) -> (Time, bool) {
        let copies = request.with(|proposals| open_copies(shared, proposals));
        let mut next = Time::NEVER;
        if copies.is_empty() {
            return (next, false);
        }
        let refusals = shared.voters.refusals();
        let mut to_flush: Vec<LaneChoice> = Vec::with_capacity(copies.len());
        for copy in copies {
            let (proposal, node) = (copy.proposal, copy.node);
            let is_proposal = matches!(copy.call.verb, Verb::Propose { .. });
            if let Some(fault) = refusals[node].as_ref().filter(|_| is_proposal) {
                request.with(|proposals| proposals[proposal].note_failed(node, fault.clone()));
                continue;
            }
            // A call whose connection ended may have been carried out, so its caller needs to know.
            let is_awaited = unreachable == Unreachable::AreAwaited
                || request.with(|proposals| proposals[proposal].is_to_retry(node));
            let (reached, way) = self.reach(node, &copy.call, is_awaited.then_some(request));
            match reached {
                Reach::Open => {
                    if !self.post(shared, request, copy, &way, until) {
                        next = next.min(shared.clock.now() + CLOSED_JUST_NOW);
                    }
                }
                Reach::NeedsRights => self.ask_for_rights(request, copy, &way),
                closed => {
                    let again = request.with(|proposals| {
                        note_closed(&mut proposals[proposal], node, closed, is_awaited)
                    });
                    next = next.min(again);
                }
            }
            to_flush.push(way);
        }
        let place = |way: &LaneChoice| (way.node, way.stand_in.as_ref().map(Arc::as_ptr), way.lane);
        to_flush.sort_unstable_by_key(place);
        to_flush.dedup_by_key(|way| place(way));
        for way in &to_flush {
            self.lanes(way).flush(way.lane);
        }
        (next, to_flush.iter().any(|way| way.stand_in.is_some()))
    }

    /// Appends a copy to its lane. False if the lane was closed just now.
    fn post(
        &self,
        shared: &Arc<Shared>,
        request: &Arc<PendingRequest>,
        copy: CallCopy,
        way: &LaneChoice,
        until: Time,
    ) -> bool {
        let CallCopy {
            proposal,
            node,
            round,
            call,
        } = copy;
        let lanes = self.lanes(way);
        let now = shared.clock.now();
        let not_after = lanes.date(until.min(now + shared.config.command_timeout));
        // Before it is sent: its answer may come before this thread goes on.
        let (is_retry, token) = request.with(|proposals| {
            let is_retry = proposals[proposal].note_sent(node, now);
            (is_retry, proposals[proposal].token())
        });
        shared.nodes[node].note_retries(usize::from(is_retry));
        if let Some(token) = token {
            shared.add_doubt(token, node, &call.verb, not_after);
        }
        shared.note_release_sent(node, &call);
        let (of, wait_list) = (Arc::clone(shared), Arc::clone(&self.wait_list));
        let (to, sent) = (Arc::clone(request), call.clone());
        let on_result: OnResult = Box::new(move |mut result| {
            if let Some(token) = token {
                of.resolve_doubt(token, node, &sent.verb, &result);
            }
            of.voters.refuse_fresh(node, &sent, &mut result);
            of.on_release_result(node, &sent, &result);
            if let (Verb::Renew { .. }, Err(fault)) = (&sent.verb, &result.answer) {
                of.note_renewal_fault(node, fault);
            }
            // A release is done there all the same, and has no vote.
            of.voters.refuse_twin(node, &mut result);
            let mut gap = None;
            let take = |proposal: &mut Proposal| {
                proposal.on_result(node, round, result);
                gap = proposal.gap(of.config.back_off);
            };
            if to.update(proposal, take) == Wake::Reader {
                wait_list.interrupt();
            }
            if let Some((token, again_in)) = gap {
                of.note_gap(token, again_in);
            }
        });
        match lanes.post(way.lane, &call, not_after, on_result) {
            Ok(()) => true,
            Err(_never_sent) => {
                if let Some(token) = token {
                    let none = CallResult::not_sent(StoreFault::NotReady);
                    shared.resolve_doubt(token, node, &call.verb, &none);
                }
                shared.note_release_not_sent(node, &call);
                request.with(|proposals| proposals[proposal].note_not_sent(node));
                false
            }
        }
    }

    fn ask_for_rights(&self, request: &Arc<PendingRequest>, copy: CallCopy, way: &LaneChoice) {
        let CallCopy {
            proposal,
            node,
            call,
            ..
        } = copy;
        request.with(|proposals| proposals[proposal].note_asks_for_rights(node));
        let (wait_list, to) = (Arc::clone(&self.wait_list), Arc::clone(request));
        let on_rights = Box::new(move |result| {
            if to.update(proposal, |proposal| proposal.on_rights(node, result)) == Wake::Reader {
                wait_list.interrupt();
            }
        });
        let posted = self.lanes(way).post_rights(way.lane, &call, on_rights);
        if posted.is_err() {
            request.with(|proposals| proposals[proposal].note_not_sent(node));
        }
    }

    /// Ends the proposals of a request, and undoes what failed.
    pub(super) fn conclude(
        &self,
        shared: &Arc<Shared>,
        request: &Arc<PendingRequest>,
    ) -> Vec<CallResult> {
        let concluded = request.with(|proposals| {
            let conclude = |proposal: &mut Proposal| {
                if proposal.decision() == Decision::Open {
                    proposal.end();
                }
                let result = proposal.result();
                let call = proposal.call.clone();
                let is_granted = matches!(&result.answer, Ok(answer)
                    if matches!(answer.reply.outcome, Outcome::Granted(_)));
                let open = match call.verb {
                    Verb::Propose { token, .. } if !is_granted => {
                        proposal.may_be_taken_on(|node| shared.doubts.has((token, node)))
                    }
                    Verb::Release { .. } => proposal.not_sent_to(),
                    _ => Vec::new(),
                };
                shared.end_release(&call, &result, || proposal.release_votes());
                let missing = (
                    proposal.last_gap(shared.config.back_off),
                    proposal.awaits_votes(),
                );
                proposal.stop_sending();
                (result, call, open, missing)
            };
            proposals.iter_mut().map(conclude).collect::<Vec<_>>()
        });
        let conclude = |(result, call, open, missing): (CallResult, Call, Vec<usize>, Missing)| {
            shared.note_missing(missing);
            match call.verb {
                Verb::Propose { token, .. } => {
                    let verb = Verb::Release {
                        token,
                        fence: 0,
                        last: None,
                        mode: Mode::Unused,
                    };
                    let release = Call { verb, ..call };
                    for node in open {
                        self.release(shared, node, &release);
                    }
                }
                _ => {
                    for node in open {
                        shared.release_later(node, &call);
                    }
                }
            }
            result
        };
        concluded.into_iter().map(conclude).collect()
    }

    /// Sends a release for which nobody waits to one node. If that cannot be done now, the renewal
    /// thread does it.
    fn release(&self, shared: &Arc<Shared>, node: usize, call: &Call) {
        if let (Reach::Open, way) = self.reach(node, call, None) {
            let (to, sent) = (Arc::clone(shared), call.clone());
            let on_result: OnResult =
                Box::new(move |result| to.on_release_result(node, &sent, &result));
            shared.note_release_sent(node, call);
            let lanes = self.lanes(&way);
            if lanes.post(way.lane, call, 0, on_result).is_ok() {
                lanes.flush(way.lane);
                return;
            }
            shared.note_release_not_sent(node, call);
        }
        shared.release_later(node, call);
    }

    /// Sends the releases that are due again.
    pub(super) fn send_open_releases(&self, shared: &Arc<Shared>) {
        let now = shared.clock.now();
        for ((_, node), call) in shared.open_releases.take_due(now, RELEASES) {
            self.release(shared, node, &call);
        }
    }

    pub(super) fn read_unread(&self) {
        for member in &self.members {
            member.read_unread();
        }
    }

    pub(super) fn unread_due(&self) -> Time {
        let due = self.members.iter().map(|member| member.lanes.unread_due());
        due.min().unwrap_or(Time::NEVER)
    }
}

fn completion(proposals: &[Proposal]) -> Completion {
    let of = |proposal: &Proposal| match proposal.decision() {
        Decision::Open => Completion::Open,
        Decision::Outbid { .. } if proposal.round < ROUNDS => Completion::Open,
        Decision::Decided(Outcome::Granted(_)) if proposal.is_starting() => Completion::Incomplete,
        _ => Completion::Done,
    };
    proposals.iter().map(of).max().unwrap_or(Completion::Done)
}

/// The copies that are still to be sent. A proposal that was outbid proposes again.
fn open_copies(shared: &Shared, proposals: &mut [Proposal]) -> Vec<CallCopy> {
    let mut copies = Vec::new();
    for (at, proposal) in proposals.iter_mut().enumerate() {
        match proposal.decision() {
            Decision::Open | Decision::Decided(Outcome::Granted(_)) => {}
            Decision::Outbid { fence } if proposal.round < ROUNDS => {
                proposal.propose(shared.voters.propose(fence));
            }
            _ => continue,
        }
        copies.extend(proposal.unsent().map(|node| CallCopy {
            proposal: at,
            node,
            round: proposal.round,
            call: proposal.call.clone(),
        }));
    }
    copies
}

/// The lane to a node is closed. Returns when to look again; another thread may wake the caller
/// sooner.
fn note_closed(proposal: &mut Proposal, node: usize, reach: Reach, is_awaited: bool) -> Time {
    match reach {
        Reach::Opening if is_awaited => proposal.note_opening(node),
        Reach::Suspect(fault, at) if is_awaited => {
            proposal.note_suspect(node, fault);
            return at;
        }
        Reach::Suspect(fault, _) => proposal.note_failed(node, fault),
        Reach::Opening | Reach::Open | Reach::NeedsRights => {
            proposal.note_failed(node, StoreFault::NotReady);
        }
    }
    Time::NEVER
}
