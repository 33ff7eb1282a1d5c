//! The ways to all nodes, and how a call is put to them. It is sent to all that can be reached, and
//! again where that helps, until a majority has decided.

use std::sync::Arc;
use std::time::Duration;

use super::ballot::Ballot;
use super::caller::{Caller, Wake};
use super::decision::Decision;
use super::desk::Desk;
use super::member::{Member, Way};
use super::shared::{Missing, Shared};
use crate::script::{Call, Mode, Outcome, Verb};
use crate::store::clock::Time;
use crate::store::{CallResult, OnResult, StoreFault};

/// How often an acquire proposes a fence. Each proposal is above all that the nodes reported, so the
/// second one fails only if others proposed meanwhile.
const PROPOSALS: u32 = 8;
/// How soon a lane is looked at again that was closed just now.
const CLOSED_JUST_NOW: Duration = Duration::from_millis(1);
/// How many open releases are sent together.
const RELEASES: usize = 256;

/// Some lanes to each node, and where their callers wait.
pub(super) struct Panel {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) desk: Arc<Desk>,
}

/// Whether a call waits for nodes that cannot be reached now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unreachable {
    AreAwaited,
    AreLeftOut,
}

/// How far some ballots are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Done,
    /// A lock is granted, and nothing was sent to some node, since the lane is being opened or the
    /// rights are not known yet. Without that node, the lock would not outlast the loss of another,
    /// until its next renewal. So the caller waits a little: once, as a lane is new.
    Incomplete,
    Open,
}

/// One request to one node.
struct Request {
    ballot: usize,
    node: usize,
    proposal: u32,
    call: Call,
}

impl Panel {
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
        let ballots = checked.iter().flatten();
        let ballots = ballots.map(|call| shared.new_ballot(call.clone()));
        let caller = Arc::new(Caller::new(ballots.collect()));
        self.drive(shared, &caller, until, unreachable);
        let mut results = self.conclude(shared, &caller).into_iter();
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
        caller: &Arc<Caller>,
        until: Time,
        unreachable: Unreachable,
    ) {
        let mut until = until;
        // Connections can die in silence. So after half of the time the caller tries others.
        let started = shared.clock.now();
        let mut silent_at = started + (until - started) / 2;
        loop {
            let next = self.send(shared, caller, until, unreachable);
            let now = shared.clock.now();
            match caller.with(|ballots| progress(ballots)) {
                Progress::Open => {}
                Progress::Incomplete => until = until.min(now + shared.command_timeout / 8),
                Progress::Done => return,
            }
            if now >= until {
                return;
            }
            if now >= silent_at {
                silent_at = Time::NEVER;
                self.end_silent(caller);
                // Each node whose lane was ended is to be asked again.
                continue;
            }
            let next = next.min(silent_at).min(until);
            self.desk.wait(caller, &self.members, next);
        }
    }

    /// Ends the lanes of a caller's calls on which nothing comes.
    fn end_silent(&self, caller: &Arc<Caller>) {
        let keys = caller.with(|ballots| {
            let keys = ballots.iter().map(|ballot| ballot.call.key.clone());
            keys.collect::<Vec<_>>()
        });
        for member in &self.members {
            for key in &keys {
                member.lanes.end_silent(member.lanes.number_of(key));
            }
        }
    }

    /// Sends what can be sent now. Returns when there may be more to send.
    pub(super) fn send(
        &self,
        shared: &Arc<Shared>,
        caller: &Arc<Caller>,
        until: Time,
        unreachable: Unreachable,
    ) -> Time {
        let requests = caller.with(|ballots| open_requests(shared, ballots));
        let mut next = Time::NEVER;
        if requests.is_empty() {
            return next;
        }
        let refusals = shared.refusals();
        let mut to_flush: Vec<(usize, usize)> = Vec::with_capacity(requests.len());
        for request in requests {
            let (ballot, node) = (request.ballot, request.node);
            let is_proposal = matches!(request.call.verb, Verb::Propose { .. });
            if let Some(fault) = refusals[node].as_ref().filter(|_| is_proposal) {
                caller.with(|ballots| ballots[ballot].note_failed(node, fault.clone()));
                continue;
            }
            // A call whose connection ended may have been carried out, so its caller needs to know.
            let is_awaited = unreachable == Unreachable::AreAwaited
                || caller.with(|ballots| ballots[ballot].is_to_retry(node));
            let member = &self.members[node];
            to_flush.push((node, member.lanes.number_of(&request.call.key)));
            match member.way(&request.call, is_awaited.then_some(caller)) {
                Way::Open => {
                    if !self.post(shared, caller, request, until) {
                        next = next.min(shared.clock.now() + CLOSED_JUST_NOW);
                    }
                }
                Way::NeedsRights => self.ask_for_rights(caller, request),
                closed => {
                    let again = caller.with(|ballots| {
                        note_closed(&mut ballots[ballot], node, closed, is_awaited)
                    });
                    next = next.min(again);
                }
            }
        }
        to_flush.sort_unstable();
        to_flush.dedup();
        for (node, lane) in to_flush {
            self.members[node].lanes.flush(lane);
        }
        next
    }

    /// Appends a request to its lane. False if the lane was closed just now.
    fn post(
        &self,
        shared: &Arc<Shared>,
        caller: &Arc<Caller>,
        request: Request,
        until: Time,
    ) -> bool {
        let Request {
            ballot,
            node,
            proposal,
            call,
        } = request;
        let lanes = &self.members[node].lanes;
        let now = shared.clock.now();
        let not_after = lanes.date(until.min(now + shared.command_timeout));
        // Before it is sent: its answer may come before this thread goes on.
        let (is_retry, token) = caller.with(|ballots| {
            let is_retry = ballots[ballot].note_sent(node, now);
            (is_retry, ballots[ballot].token())
        });
        shared.nodes[node].note_retries(usize::from(is_retry));
        if let Some(token) = token {
            shared.add_doubt(token, node, not_after);
        }
        shared.note_release_sent(node, &call);
        let (of, desk) = (Arc::clone(shared), Arc::clone(&self.desk));
        let (to, sent) = (Arc::clone(caller), call.clone());
        let on_result: OnResult = Box::new(move |mut result| {
            if let Some(token) = token {
                of.doubts.resolve((token, node), &result);
            }
            of.refuse_fresh(node, &sent, &mut result);
            of.on_release_result(node, &sent, &result);
            let is_renewal = matches!(sent.verb, Verb::Renew { .. });
            let is_fault = |fault: &StoreFault| !fault.is_closed();
            if is_renewal && result.answer.as_ref().is_err_and(is_fault) {
                of.note_away(node);
            }
            // A release is done there all the same, and has no vote.
            of.refuse_twin(node, &mut result);
            let mut gap = None;
            let take = |ballot: &mut Ballot| {
                ballot.on_result(node, proposal, result);
                gap = ballot.gap(of.back_off);
            };
            if to.update(ballot, take) == Wake::Reader {
                desk.interrupt();
            }
            if let Some((token, again_in)) = gap {
                of.note_gap(token, again_in);
            }
        });
        match lanes.post(&call, not_after, on_result) {
            Ok(()) => true,
            Err(_never_sent) => {
                if let Some(token) = token {
                    let none = CallResult::not_sent(StoreFault::NotReady);
                    shared.doubts.resolve((token, node), &none);
                }
                shared.note_release_not_sent(node, &call);
                caller.with(|ballots| ballots[ballot].note_not_sent(node));
                false
            }
        }
    }

    fn ask_for_rights(&self, caller: &Arc<Caller>, request: Request) {
        let Request {
            ballot, node, call, ..
        } = request;
        caller.with(|ballots| ballots[ballot].note_asks_for_rights(node));
        let (desk, to) = (Arc::clone(&self.desk), Arc::clone(caller));
        let on_rights = Box::new(move |result| {
            if to.update(ballot, |ballot| ballot.on_rights(node, result)) == Wake::Reader {
                desk.interrupt();
            }
        });
        if self.members[node]
            .lanes
            .post_rights(&call, on_rights)
            .is_err()
        {
            caller.with(|ballots| ballots[ballot].note_not_sent(node));
        }
    }

    /// Ends the caller's ballots, and undoes what failed.
    pub(super) fn conclude(&self, shared: &Arc<Shared>, caller: &Arc<Caller>) -> Vec<CallResult> {
        let concluded = caller.with(|ballots| {
            let conclude = |ballot: &mut Ballot| {
                if ballot.decision() == Decision::Open {
                    ballot.end();
                }
                let result = ballot.result(StoreFault::NotReady);
                let call = ballot.call.clone();
                let is_granted = matches!(&result.answer, Ok(answer)
                    if matches!(answer.reply.outcome, Outcome::Granted(_)));
                let open = match call.verb {
                    Verb::Propose { token, .. } if !is_granted => {
                        ballot.may_be_taken_on(|node| shared.doubts.has((token, node)))
                    }
                    Verb::Release { .. } => ballot.not_sent_to(),
                    _ => Vec::new(),
                };
                shared.end_release(&call, &result, || ballot.release_votes());
                let missing = (ballot.gap(shared.back_off), ballot.awaits_votes());
                (result, call, open, missing)
            };
            ballots.iter_mut().map(conclude).collect::<Vec<_>>()
        });
        let conclude = |(result, call, open, missing): (CallResult, Call, Vec<usize>, Missing)| {
            shared.note_missing(missing);
            match call.verb {
                Verb::Propose { token, .. } => {
                    let verb = Verb::Release {
                        token,
                        fence: 0,
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
        let member = &self.members[node];
        if matches!(member.way(call, None), Way::Open) {
            let (to, sent) = (Arc::clone(shared), call.clone());
            let on_result: OnResult =
                Box::new(move |result| to.on_release_result(node, &sent, &result));
            shared.note_release_sent(node, call);
            if member.lanes.post(call, 0, on_result).is_ok() {
                member.lanes.flush(member.lanes.number_of(&call.key));
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

fn progress(ballots: &[Ballot]) -> Progress {
    let of = |ballot: &Ballot| match ballot.decision() {
        Decision::Open => Progress::Open,
        Decision::Outbid { .. } if ballot.proposal < PROPOSALS => Progress::Open,
        Decision::Decided(Outcome::Granted(_)) if ballot.is_starting() => Progress::Incomplete,
        _ => Progress::Done,
    };
    ballots.iter().map(of).max().unwrap_or(Progress::Done)
}

/// The requests that are still to be sent. A ballot that was outbid proposes again.
fn open_requests(shared: &Shared, ballots: &mut [Ballot]) -> Vec<Request> {
    let mut requests = Vec::new();
    for (at, ballot) in ballots.iter_mut().enumerate() {
        match ballot.decision() {
            Decision::Open | Decision::Decided(Outcome::Granted(_)) => {}
            Decision::Outbid { fence } if ballot.proposal < PROPOSALS => {
                ballot.propose(shared.fences.propose(shared.largest_clock(), fence));
            }
            _ => continue,
        }
        requests.extend(ballot.unsent().map(|node| Request {
            ballot: at,
            node,
            proposal: ballot.proposal,
            call: ballot.call.clone(),
        }));
    }
    requests
}

/// The lane to a node is closed. Returns when to look again; another thread may wake the caller
/// sooner.
fn note_closed(ballot: &mut Ballot, node: usize, way: Way, is_awaited: bool) -> Time {
    match way {
        Way::Opening if is_awaited => ballot.note_opening(node),
        Way::Suspect(fault, at) if is_awaited => {
            ballot.note_suspect(node, fault);
            return at;
        }
        Way::Suspect(fault, _) => ballot.note_failed(node, fault),
        Way::Opening | Way::Open | Way::NeedsRights => {
            ballot.note_failed(node, StoreFault::NotReady);
        }
    }
    Time::NEVER
}
