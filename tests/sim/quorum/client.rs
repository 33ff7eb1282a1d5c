//! The actions of a process. It follows the rules of `nodes` and `shared`, by which a caller puts a
//! call to all nodes. By the rules of the engine it believes in a lease.

use std::time::Duration;

use super::checker::{Breach, breach};
use super::defect::Defect;
use super::process::{
    Asked, CallerState, ConnectionState, Guard, PendingCall, Purpose, ReleaseAgain, WantedLock,
};
use super::world::{CALM_FROM, Endpoints, Request, World};
use super::{MS, NODES, TIMEOUT, TTL};
use crate::config::margin;
use crate::error::Step;
use crate::options::LockOptions;
use crate::script::{Call, LockSpec, Mode, Outcome, ScriptReply, Token, Verb, Vote};
use crate::sim::Promise;
use crate::store::clock::Time;
use crate::store::quorum::decision::{Decision, majority_of};
use crate::store::quorum::proposal::Proposal;
use crate::store::quorum::voters::{agreeing, clock_at_most};
use crate::store::{Anchor, Answer, CallResult, StoreFault};

const ROUNDS: u32 = 8;
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

impl World<'_> {
    pub(super) fn on_wake(&mut self, process: usize) -> Result<(), Breach> {
        let now = self.processes[process].time(self.now);
        let over = |(id, asked): (&u64, &Asked)| (asked.until <= now).then_some(*id);
        let over: Vec<u64> = self.processes[process]
            .asked
            .iter()
            .filter_map(over)
            .collect();
        for id in over {
            self.conclude(process, id)?;
        }
        let due = self.processes[process].open_releases.take_due(now, 256);
        for ((_, node), call) in due {
            self.release_now(process, node, &call);
        }
        let again = &mut self.processes[process].again;
        let again: Vec<_> = again.extract_if(.., |again| again.at <= now).collect();
        for again in again {
            self.releases_held_since = again.held_since;
            self.ask_until(process, again.call, Purpose::Release, again.last_at)?;
        }
        self.step_caller(process, now)
    }

    fn step_caller(&mut self, process: usize, now: Time) -> Result<(), Breach> {
        let idle = CallerState::Idle { until: Time::NEVER };
        let state = std::mem::replace(&mut self.processes[process].caller, idle);
        let unchanged = match state {
            CallerState::Idle { until } if now >= until => {
                if !self.do_callers_ask() {
                    return Ok(());
                }
                return self.begin_asking(process);
            }
            CallerState::Pausing { wanted, until } if now >= until => {
                if !self.do_callers_ask() {
                    return Ok(());
                }
                return self.acquire(process, wanted);
            }
            CallerState::Holding(guard) if now >= guard.deadline => {
                return self.lose(process, *guard);
            }
            CallerState::Holding(guard) if now >= guard.release_at || !self.do_callers_ask() => {
                return self.end_guard(process, *guard, Mode::Used);
            }
            CallerState::Holding(mut guard) if now >= guard.renew_at => {
                guard.renew_at = Time::NEVER;
                let verb = Verb::Renew {
                    token: guard.token,
                    fence: guard.fence,
                    params: guard.wanted.params.clone(),
                };
                let call = call(&guard.wanted, verb);
                self.processes[process].caller = CallerState::Holding(guard);
                return self.ask(process, call, Purpose::Renew);
            }
            other => other,
        };
        self.processes[process].caller = unchanged;
        Ok(())
    }

    /// A manager has connected to a majority before it asks for anything.
    fn begin_asking(&mut self, process: usize) -> Result<(), Breach> {
        let connections = &self.processes[process].connections;
        let unknown = connections.iter().filter(|c| c.anchor.is_none()).count();
        if unknown < majority_of(NODES) {
            let wanted = self.choose_lock();
            return self.acquire(process, wanted);
        }
        for node in 0..NODES {
            if self.processes[process].connections[node].state == ConnectionState::Closed {
                self.begin_connecting(process, node);
            }
        }
        let until = self.processes[process].time(self.now) + TIMEOUT / 10;
        self.processes[process].caller = CallerState::Idle { until };
        Ok(())
    }

    fn choose_lock(&mut self) -> WantedLock {
        let key = self.keys[usize::from(self.rng.below(4) == 0)].clone();
        let is_fixed = self.rng.below(12) == 0;
        let options = match is_fixed {
            true => LockOptions::new().fixed_lease(TTL),
            false => LockOptions::new().ttl(TTL),
        };
        let longest = match self.rng.below(16) {
            0..7 => MS / 2,
            7..13 => 5 * MS,
            13..15 => 400 * MS,
            _ => 4000 * MS,
        };
        // A fixed lease is held to its end.
        let hold = if is_fixed {
            TTL * 2
        } else {
            Duration::from_micros(self.rng.below(longest))
        };
        let lease = options.lease_length().as_millis();
        let params = format!("{lease} {} 0 host\t1\tcaller#1\t", u8::from(is_fixed));
        WantedLock {
            key,
            params: params.into(),
            is_fixed,
            hold,
            pause: Duration::from_millis(4),
        }
    }

    fn acquire(&mut self, process: usize, wanted: WantedLock) -> Result<(), Breach> {
        let verb = Verb::Propose {
            token: Token::new(),
            fence: self.propose(process, 0),
            params: wanted.params.clone(),
        };
        let call = call(&wanted, verb);
        self.processes[process].caller = CallerState::Asking(wanted);
        self.ask(process, call, Purpose::Acquire)
    }

    /// P2 (rising fences): a fence above the largest clock of the nodes whose clocks agree.
    fn propose(&self, process: usize, reported: u64) -> u64 {
        let clocks = self.clocks(process);
        let agree = agreeing(&clocks, TTL.as_micros() as u64);
        let voters = clocks.iter().zip(agree).filter(|(_, agrees)| *agrees);
        let largest = voters.filter_map(|(clock, _)| *clock).max().unwrap_or(0);
        let largest = if self.defect == Some(Defect::FenceBelowClock) {
            0
        } else {
            largest
        };
        self.processes[process].fences.propose(largest, reported)
    }

    fn clocks(&self, process: usize) -> Vec<Option<u64>> {
        let slot = &self.processes[process];
        let now = slot.time(self.now);
        let clock = |anchor: &Anchor| clock_at_most(anchor, now);
        let connections = slot.connections.iter();
        connections.map(|c| c.anchor.as_ref().map(clock)).collect()
    }

    fn may_vote(&self, process: usize) -> Vec<bool> {
        let slot = &self.processes[process];
        let now = slot.clock.at(self.now);
        let agree = agreeing(&self.clocks(process), TTL.as_micros() as u64);
        let up = slot.connections.iter().map(|connection| {
            self.defect == Some(Defect::NoUptimeCheck) || now >= connection.votes_from
        });
        up.zip(agree).map(|(up, agrees)| up && agrees).collect()
    }

    /// Puts a call to all nodes.
    fn ask(&mut self, process: usize, call: Call, purpose: Purpose) -> Result<(), Breach> {
        let last_at = self.processes[process].time(self.now) + TTL;
        self.ask_until(process, call, purpose, last_at)
    }

    fn ask_until(
        &mut self,
        process: usize,
        call: Call,
        purpose: Purpose,
        last_at: Time,
    ) -> Result<(), Breach> {
        let addresses: Vec<_> = (0..NODES).map(|at| at.to_string().into()).collect();
        let id = self.rng.next();
        let until = self.processes[process].time(self.now) + TIMEOUT;
        self.trace(|| format!("process {process} asks {id} {:?}", call.verb));
        let votes = match call.verb {
            Verb::Release { token, .. } => self.processes[process].undecided.votes(token),
            _ => None,
        };
        let mut proposal = Proposal::new(call, &addresses);
        if let Some(votes) = votes.filter(|_| self.defect != Some(Defect::EachAttemptAlone)) {
            proposal.resume(votes);
        }
        let asked = Asked {
            proposal,
            until,
            since: self.now,
            purpose,
            granted: Vec::new(),
            held_since: self.releases_held_since.take(),
            last_at,
        };
        self.processes[process].asked.insert(id, asked);
        self.drive(process, id)
    }

    /// Sends what can be sent, and again where that helps. Ends what is decided.
    fn drive(&mut self, process: usize, id: u64) -> Result<(), Breach> {
        let Some(asked) = self.processes[process].asked.get(&id) else {
            return Ok(());
        };
        if let Decision::Outbid { fence } = asked.proposal.decision()
            && asked.proposal.round < ROUNDS
        {
            let higher = self.propose(process, fence);
            let asked = self.processes[process]
                .asked
                .get_mut(&id)
                .expect("it is asked");
            asked.proposal.propose(higher);
        }
        let may_vote = self.may_vote(process);
        let asked = self.processes[process]
            .asked
            .get_mut(&id)
            .expect("it is asked");
        if asked.proposal.decision() != Decision::Open {
            return self.conclude(process, id);
        }
        let is_proposal = asked.purpose == Purpose::Acquire;
        let unsent: Vec<usize> = asked.proposal.unsent().collect();
        for node in unsent {
            let slot = &mut self.processes[process];
            let now = slot.time(self.now);
            let proposal = &mut slot.asked.get_mut(&id).expect("it is asked").proposal;
            if is_proposal && !may_vote[node] {
                proposal.note_failed(node, StoreFault::NotReady);
                continue;
            }
            match slot.connections[node].state {
                ConnectionState::Open => {
                    let call = proposal.call.clone();
                    let round = proposal.round;
                    proposal.note_sent(node, now);
                    self.post(process, node, &call, Some((id, round)));
                    continue;
                }
                ConnectionState::Opening => {}
                ConnectionState::Closed => self.begin_connecting(process, node),
            }
            let slot = &mut self.processes[process];
            let proposal = &mut slot.asked.get_mut(&id).expect("it is asked").proposal;
            match is_proposal {
                true => proposal.note_opening(node),
                false => proposal.note_failed(node, StoreFault::NotReady),
            }
        }
        let decision = self.processes[process].asked[&id].proposal.decision();
        if decision == Decision::Open {
            Ok(())
        } else {
            self.conclude(process, id)
        }
    }

    /// Sends a request on the open connection to a node.
    fn post(&mut self, process: usize, node: usize, call: &Call, proposal: Option<(u64, u32)>) {
        let slot = &mut self.processes[process];
        let now = slot.time(self.now);
        let connection = &mut slot.connections[node];
        let anchor = connection.anchor.expect("an open connection has one");
        let date = anchor.server_time_at_least(now + TIMEOUT);
        if let Some(token) = taking(call) {
            slot.doubts.add((token, node), date, now + TIMEOUT * 8);
        }
        if let Verb::Release { token, .. } = call.verb {
            slot.undecided.note_sent((token, node));
        }
        connection.pending.push_back(PendingCall {
            proposal,
            call: call.clone(),
        });
        let request = Request {
            at: Endpoints {
                process,
                life: slot.life,
                node,
                number: connection.number,
            },
            sent: self.now,
            call: call.clone(),
            caller_id: slot.caller_id.clone(),
            not_after: if self.defect == Some(Defect::NoDates) {
                1 << 52
            } else {
                date
            },
            is_late: false,
        };
        self.send(request);
    }

    pub(super) fn on_connected(
        &mut self,
        at: Endpoints,
        sent: u64,
        clock: u64,
        uptime: u64,
    ) -> Result<(), Breach> {
        let slot = &mut self.processes[at.process];
        let (sent, received) = (slot.time(sent), slot.time(self.now));
        let now = slot.clock.at(self.now);
        let connection = &mut slot.connections[at.node];
        connection.state = ConnectionState::Open;
        connection.anchor = Some(Anchor {
            server: clock,
            sent,
            received,
        });
        let left = (TTL.as_micros() as u64).saturating_sub(uptime);
        if left > 0 {
            connection.votes_from = connection.votes_from.max(now + left);
        }
        self.drive_all(at.process)
    }

    fn drive_all(&mut self, process: usize) -> Result<(), Breach> {
        let ids: Vec<u64> = self.processes[process].asked.keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.drive(process, id))
    }

    /// A connection has ended, or could not be opened.
    pub(super) fn on_closed(&mut self, at: Endpoints) -> Result<(), Breach> {
        self.trace(|| format!("closed {at:?}"));
        let was_opening = self.close(at.process, at.node, &closed());
        if was_opening {
            for asked in self.processes[at.process].asked.values_mut() {
                if asked.proposal.unsent().any(|node| node == at.node) {
                    asked.proposal.note_failed(at.node, StoreFault::NotReady);
                }
            }
        }
        self.drive_all(at.process)
    }

    /// Ends a connection. Its requests have no reply and never will. Whether it was being opened.
    fn close(&mut self, process: usize, node: usize, fault: &StoreFault) -> bool {
        let connection = &mut self.processes[process].connections[node];
        connection.number += 1;
        let was = std::mem::replace(&mut connection.state, ConnectionState::Closed);
        let pending = std::mem::take(&mut connection.pending);
        for pending in pending {
            let result = CallResult {
                answer: Err(fault.clone()),
                not_after: 0,
            };
            self.on_result(process, node, &pending, result);
        }
        was == ConnectionState::Opening
    }

    pub(super) fn on_reply(
        &mut self,
        at: Endpoints,
        sent: u64,
        reply: ScriptReply,
    ) -> Result<(), Breach> {
        let slot = &mut self.processes[at.process];
        let (sent, received) = (slot.time(sent), slot.time(self.now));
        let connection = &mut slot.connections[at.node];
        if let Some(server) = reply.now {
            connection.anchor = Some(Anchor {
                server,
                sent,
                received,
            });
        }
        let Some(pending) = connection.pending.pop_front() else {
            return breach(Promise::BadInput, "a reply to no request");
        };
        let answer = Answer {
            reply,
            sent,
            resent: false,
        };
        let result = CallResult {
            answer: Ok(answer),
            not_after: 0,
        };
        self.on_result(at.process, at.node, &pending, result);
        match pending.proposal {
            Some((id, _)) => self.drive(at.process, id),
            None => Ok(()),
        }
    }

    /// A node has answered a request, or never will.
    fn on_result(
        &mut self,
        process: usize,
        node: usize,
        pending: &PendingCall,
        mut result: CallResult,
    ) {
        if let Some(token) = taking(&pending.call) {
            // One connection has all requests here, so none overtakes another.
            let is_renewal = false;
            self.processes[process]
                .doubts
                .resolve((token, node), is_renewal, &result);
        }
        if let Verb::Release { token, .. } = pending.call.verb {
            self.on_release_result(process, node, token, &pending.call, &result);
        }
        let Some((id, round)) = pending.proposal else {
            return;
        };
        let is_mixed = self.defect == Some(Defect::MixedFences);
        let Some(asked) = self.processes[process].asked.get_mut(&id) else {
            return;
        };
        let mut round = round;
        if let Ok(answer) = &mut result.answer
            && let Outcome::Vote(Vote::Granted { grant, .. }) = &mut answer.reply.outcome
        {
            asked.granted.push(grant.fence);
            if is_mixed && let Verb::Propose { fence, .. } = asked.proposal.call.verb {
                (grant.fence, round) = (fence, asked.proposal.round);
            }
        }
        asked.proposal.on_result(node, round, result);
    }

    /// R7 (late copies): a release is done on a node once it excludes them.
    fn on_release_result(
        &mut self,
        process: usize,
        node: usize,
        token: Token,
        call: &Call,
        result: &CallResult,
    ) {
        let slot = &mut self.processes[process];
        let at = (token, node);
        slot.undecided.on_result(at, result);
        let is_done = result.answer.as_ref().is_ok_and(|answer| {
            self.defect == Some(Defect::ReleasedOnce) || slot.doubts.are_excluded(at, answer)
        });
        if is_done {
            slot.open_releases.close(at, &slot.doubts);
            self.checker.on_release_done(token, node);
        } else {
            self.release_later(process, node, call);
        }
    }

    fn release_later(&mut self, process: usize, node: usize, call: &Call) {
        let slot = &mut self.processes[process];
        let Verb::Release { token, .. } = call.verb else {
            return;
        };
        let (at, now) = ((token, node), slot.time(self.now));
        let next = now
            + slot
                .open_releases
                .pause(at, now, LONGEST_PAUSE.min(TIMEOUT / 2));
        slot.open_releases
            .add(at, call, now + TTL + TIMEOUT * 2, next, now);
    }

    fn release_now(&mut self, process: usize, node: usize, call: &Call) {
        match self.processes[process].connections[node].state {
            ConnectionState::Open => return self.post(process, node, call, None),
            ConnectionState::Closed => self.begin_connecting(process, node),
            ConnectionState::Opening => {}
        }
        self.release_later(process, node, call);
    }

    /// Ends a call, undoes what failed, and hands the outcome on.
    fn conclude(&mut self, process: usize, id: u64) -> Result<(), Breach> {
        let Some(mut asked) = self.processes[process].asked.remove(&id) else {
            return Ok(());
        };
        let now = self.processes[process].time(self.now);
        if asked.proposal.decision() == Decision::Open {
            asked.proposal.end();
        }
        let result = asked.proposal.result();
        self.trace(|| format!("process {process} concludes {id}: {:?}", result.answer));
        // A node that owes a reply for a command timeout hangs.
        if asked.until <= now {
            for node in 0..NODES {
                let owes = |pending: &PendingCall| pending.proposal.is_some_and(|(of, _)| of == id);
                if self.processes[process].connections[node]
                    .pending
                    .iter()
                    .any(owes)
                {
                    self.close(process, node, &StoreFault::timed_out(Step::Reply));
                }
            }
        }
        let call = asked.proposal.call.clone();
        let outcome = result
            .answer
            .ok()
            .map(|answer| (answer.reply.outcome, answer.sent));
        let is_granted = matches!(outcome, Some((Outcome::Granted(_), _)));
        match call.verb {
            Verb::Propose { token, .. } if !is_granted => {
                let doubts = &self.processes[process].doubts;
                let mut taken = asked
                    .proposal
                    .may_be_taken_on(|node| doubts.has((token, node)));
                if self.defect == Some(Defect::MinorityKept) {
                    taken.clear();
                }
                let release = Call {
                    verb: abandon(token),
                    ..call
                };
                for node in taken {
                    self.release_now(process, node, &release);
                }
            }
            Verb::Release { token, mode, .. } => {
                let slot = &mut self.processes[process];
                if outcome.is_some() {
                    slot.undecided.forget(token);
                } else if mode == Mode::Used {
                    let votes = asked.proposal.release_votes();
                    slot.undecided.add(token, votes, asked.last_at);
                    let at = now + TIMEOUT / 8;
                    if at < asked.last_at {
                        slot.again.push(ReleaseAgain {
                            call: call.clone(),
                            at,
                            last_at: asked.last_at,
                            held_since: asked.held_since,
                        });
                    }
                }
                for node in asked.proposal.not_sent_to() {
                    self.release_later(process, node, &call);
                }
            }
            _ => {}
        }
        match asked.purpose {
            Purpose::Acquire => self.on_acquired(process, outcome, &asked),
            Purpose::Renew => self.on_renewed(process, outcome),
            Purpose::Release => {
                let outcome = outcome.map(|(outcome, _)| outcome);
                self.check_release(asked.held_since, outcome)
            }
        }
    }

    /// P7 (one grant for one request): `unlock` says that the lock was lost only if it was. A node
    /// that has restarted knows nothing of it.
    fn check_release(
        &self,
        held_since: Option<u64>,
        outcome: Option<Outcome>,
    ) -> Result<(), Breach> {
        let Some(since) = held_since.filter(|since| self.last_restart < *since) else {
            return Ok(());
        };
        match outcome {
            None | Some(Outcome::Released) => Ok(()),
            Some(other) => {
                let what = format!("a lock that was held since {since} was released as {other:?}");
                breach(Promise::OneGrant, what)
            }
        }
    }

    fn on_acquired(
        &mut self,
        process: usize,
        outcome: Option<(Outcome, Time)>,
        asked: &Asked,
    ) -> Result<(), Breach> {
        let now = self.processes[process].time(self.now);
        let idle = CallerState::Idle { until: Time::NEVER };
        let state = std::mem::replace(&mut self.processes[process].caller, idle);
        let CallerState::Asking(mut wanted) = state else {
            return breach(Promise::BadInput, "an answer that nobody asked for");
        };
        if let Some((Outcome::Granted(grant), sent)) = outcome {
            let deadline = self.deadline(sent, grant.left, now);
            let fence = match self.defect {
                Some(Defect::MixedFences) => {
                    asked.granted.iter().copied().min().unwrap_or(grant.fence)
                }
                _ => grant.fence,
            };
            if self.now >= CALM_FROM {
                // Many must be served in what is left of the run.
                wanted.hold = wanted.hold.min(TTL);
                wanted.hold = if wanted.is_fixed {
                    wanted.hold
                } else {
                    wanted.hold / 8
                };
            }
            let renew_at = if wanted.is_fixed {
                Time::NEVER
            } else {
                now + TTL / 3
            };
            let guard = Guard {
                token: grant.token,
                fence,
                deadline,
                release_at: now + wanted.hold,
                renew_at,
                since: asked.since,
                wanted,
            };
            if now >= deadline {
                return self.end_guard(process, guard, Mode::Unused);
            }
            self.checker.on_guard(&guard)?;
            self.processes[process].caller = CallerState::Holding(Box::new(guard));
            return Ok(());
        }
        // Busy, or no majority: the caller pauses. Some callers ask at the moment at which the
        // lease ends, the others after a random part of a growing pause.
        let left = match outcome {
            Some((Outcome::Busy { left, .. }, _)) if self.rng.below(4) == 0 => Some(left),
            _ => None,
        };
        wanted.pause = (wanted.pause * 2).min(LONGEST_PAUSE);
        let pause = wanted.pause.as_micros() as u64;
        let pause = match left {
            Some(left) => left.as_micros() as u64 + self.rng.below(300),
            None => pause / 4 + self.rng.below(pause * 3 / 4),
        };
        let until = now + Duration::from_micros(pause);
        self.processes[process].caller = CallerState::Pausing { wanted, until };
        Ok(())
    }

    /// Until when the caller believes in a lease.
    fn deadline(&self, sent: Time, left: Duration, now: Time) -> Time {
        match self.defect {
            Some(Defect::NoMargin) => sent + left,
            Some(Defect::DatedByDecision) => {
                now + left.saturating_sub(margin(left, Duration::ZERO))
            }
            _ => sent + left.saturating_sub(margin(left, Duration::ZERO)),
        }
    }

    fn on_renewed(
        &mut self,
        process: usize,
        outcome: Option<(Outcome, Time)>,
    ) -> Result<(), Breach> {
        let now = self.processes[process].time(self.now);
        let idle = CallerState::Idle { until: Time::NEVER };
        let state = std::mem::replace(&mut self.processes[process].caller, idle);
        let CallerState::Holding(mut guard) = state else {
            self.processes[process].caller = state;
            return Ok(());
        };
        match outcome {
            Some((Outcome::Renewed { fence, .. }, _)) if fence != guard.fence => {}
            Some((Outcome::Renewed { left, .. }, sent)) if now < guard.deadline => {
                guard.deadline = guard.deadline.max(self.deadline(sent, left, now));
                guard.renew_at = now + TTL / 3;
            }
            Some((Outcome::Gone { .. }, _)) => return self.lose(process, *guard),
            _ => guard.renew_at = now + LONGEST_PAUSE,
        }
        self.processes[process].caller = CallerState::Holding(guard);
        Ok(())
    }

    /// The lease is over before its caller released it.
    fn lose(&mut self, process: usize, guard: Guard) -> Result<(), Breach> {
        if self.is_calm && !guard.wanted.is_fixed {
            let what = format!("a renewed lease was lost: fence {}", guard.fence);
            return breach(Promise::Service, what);
        }
        self.end_guard(process, guard, Mode::Lost)
    }

    fn end_guard(&mut self, process: usize, guard: Guard, mode: Mode) -> Result<(), Breach> {
        let now = self.processes[process].time(self.now);
        let until = now + Duration::from_micros(self.rng.below(20 * MS));
        self.processes[process].caller = CallerState::Idle { until };
        let verb = Verb::Release {
            last: None,
            token: guard.token,
            fence: guard.fence,
            mode,
        };
        let was_held = mode == Mode::Used && now < guard.deadline;
        self.releases_held_since = was_held.then_some(guard.since);
        // A renewal under way is not waited for.
        let slot = &mut self.processes[process];
        slot.asked
            .retain(|_, asked| asked.purpose != Purpose::Renew);
        self.ask(process, call(&guard.wanted, verb), Purpose::Release)
    }
}

fn call(wanted: &WantedLock, verb: Verb) -> Call {
    Call {
        spec: LockSpec::QUORUM,
        key: wanted.key.clone(),
        verb,
    }
}

fn abandon(token: Token) -> Verb {
    Verb::Release {
        last: None,
        token,
        fence: 0,
        mode: Mode::Unused,
    }
}

/// The token, if the call may take a name on a node.
fn taking(call: &Call) -> Option<Token> {
    match call.verb {
        Verb::Propose { token, .. } | Verb::Renew { token, .. } => Some(token),
        _ => None,
    }
}

fn closed() -> StoreFault {
    let end = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    StoreFault::unavailable(Step::Reply, end)
}
