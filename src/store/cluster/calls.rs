//! Short calls: each goes to the node that serves its slot, and follows redirects.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::members::ClusterNode;
use super::redirect::Route;
use super::state::ClusterState;
use crate::script::{Call, Form};
use crate::store::again::{Attempts, Next};
use crate::store::clock::Time;
use crate::store::node::{Begun, confirm_grants};
use crate::store::{CallResult, Deadlines, Leave, OnResult, StoreFault};

/// How often a call goes in a round without a pause.
const ROUNDS: usize = 2;

/// How often the pauses of a call that goes round are doubled.
const DOUBLINGS: u32 = 3;

/// How often a caller looks whether a refresh has brought another owner.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A call on its way, and its result once it has one.
struct Way<'a> {
    call: &'a Call,
    route: Route,
    result: Option<CallResult>,
}

/// The connections that calls go over.
#[derive(Clone, Copy)]
enum Over {
    Lanes,
    /// For renewals that replicas must acknowledge.
    AckedConnection,
}

/// The node that was asked, and what came of it.
type Asked = (Arc<ClusterNode>, CallResult);

/// A call whose caller has left. If it is redirected, it is sent on from here.
struct LeftCall {
    state: Weak<ClusterState>,
    call: Call,
    form: Form,
    asked: Arc<ClusterNode>,
    attempts: Attempts,
    on_result: OnResult,
}

impl ClusterState {
    /// See [`Store::run`](crate::store::Store::run).
    pub(super) fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let Some(acks) = self.config.replica_acks else {
            return self.run_over(Over::Lanes, calls, deadlines);
        };
        // R18 (replica acks): a grant's renewal goes where the name lives by then, and is acknowledged
        // by the replicas of that master.
        let renew = |renewals: &[Call]| {
            let deadlines = Deadlines {
                reply_by: self.clock.now() + acks.timeout + self.config.command_timeout,
                ..deadlines
            };
            self.run_over(Over::AckedConnection, renewals, deadlines)
        };
        if calls.iter().all(Call::is_renewal) {
            return renew(calls);
        }
        let mut results = self.run_over(Over::Lanes, calls, deadlines);
        confirm_grants(calls, &mut results, renew);
        results
    }

    fn run_over(&self, over: Over, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let mut ways: Vec<Way<'_>> = calls.iter().map(Way::new).collect();
        self.run_ways(&mut ways, over, deadlines);
        ways.into_iter().map(Way::end).collect()
    }

    /// Sends the calls that have no result yet, until all have one or the time is over.
    fn run_ways(&self, ways: &mut [Way<'_>], over: Over, mut deadlines: Deadlines) {
        let mut doublings = 0;
        loop {
            let mut open: Vec<&mut Way<'_>> =
                ways.iter_mut().filter(|way| way.result.is_none()).collect();
            if open.is_empty() {
                return;
            }
            let answers = match over {
                Over::Lanes => self.run_once(&open, deadlines),
                Over::AckedConnection => self.renew_once(&open, deadlines.reply_by),
            };
            let mut must_pause = false;
            for (way, answer) in open.iter_mut().zip(answers) {
                must_pause |= way.take(self, answer, deadlines.reply_by);
            }
            // P8 (every call ends): redirects that lead nowhere must not become a storm.
            must_pause |= open.iter().any(|way| way.must_pause());
            let goes_round = open.iter().any(|way| way.route.rounds() >= ROUNDS);
            let pause = self.config.back_off / 10 * (1 << doublings);
            if goes_round {
                must_pause = true;
                doublings = DOUBLINGS.min(doublings + 1);
            }
            deadlines = deadlines.of_retry();
            let is_done = open.iter().all(|way| way.result.is_some());
            let pause = must_pause.then_some(pause);
            if is_done || !self.has_time_left(pause, deadlines.reply_by) {
                return;
            }
        }
    }

    /// Pauses before another attempt if it must. False if no time is left for one.
    fn has_time_left(&self, pause: Option<Duration>, reply_by: Time) -> bool {
        let Some(pause) = pause else {
            return self.clock.now() < reply_by;
        };
        let next = self.clock.now() + pause;
        self.clock.sleep_until(next.min(reply_by));
        // A request whose reply would come too late would leave the call in doubt.
        self.clock.now() + self.config.back_off / 10 < reply_by
    }

    /// Sends each call to its target, all of them before it waits for a reply. Returns for each the
    /// node that was asked, and its result.
    fn run_once(&self, open: &[&mut Way<'_>], deadlines: Deadlines) -> Vec<Option<Asked>> {
        let targets: Vec<_> = open.iter().map(|way| way.route.target(self)).collect();
        let groups = group(&targets);
        let pending = |at: &usize| open[*at].route.pending(open[*at].call);
        if groups.len() > 1 {
            // To open a lane can take long. No reply lies unread for so long.
            for (member, calls) in &groups {
                for call in calls {
                    // If this fails, so does the call below.
                    let _ = member.lanes.make_ready(&pending(call), deadlines);
                }
            }
        }
        let begun: Vec<Vec<Begun<'_>>> = groups
            .iter()
            .map(|(member, calls)| member.lanes.begin_all(calls.iter().map(pending), deadlines))
            .collect();
        let mut asked: Vec<Option<Asked>> = open.iter().map(|_| None).collect();
        for ((member, calls), begun) in groups.iter().zip(begun) {
            for (at, begun) in calls.iter().zip(begun) {
                let result = member.lanes.finish(begun, deadlines);
                asked[*at] = Some((Arc::clone(member), result));
            }
        }
        asked
    }

    /// Runs each renewal at its target, one target after the other.
    fn renew_once(&self, open: &[&mut Way<'_>], reply_by: Time) -> Vec<Option<Asked>> {
        let targets: Vec<_> = open.iter().map(|way| way.route.target(self)).collect();
        let mut asked: Vec<Option<Asked>> = open.iter().map(|_| None).collect();
        for (member, renewals) in group(&targets) {
            let pending = renewals
                .iter()
                .map(|at| open[*at].route.pending(open[*at].call));
            let results = member.lanes.renew(pending, reply_by);
            for (at, result) in renewals.into_iter().zip(results) {
                asked[at] = Some((Arc::clone(member), result));
            }
        }
        asked
    }

    /// See [`Store::send`](crate::store::Store::send).
    pub(super) fn send(
        self: &Arc<Self>,
        calls: &[Call],
        reply_by: Time,
        leave: &Leave<'_>,
    ) -> Vec<Option<CallResult>> {
        let ways: Vec<Way<'_>> = calls.iter().map(Way::new).collect();
        let targets: Vec<_> = ways.iter().map(|way| way.route.target(self)).collect();
        let groups = group(&targets);
        let begun: Vec<Vec<Begun<'_>>> = groups
            .iter()
            .map(|(member, at)| {
                let pending = at.iter().map(|at| ways[*at].route.pending(&calls[*at]));
                member.lanes.begin_send(pending, reply_by)
            })
            .collect();
        let mut sent: Vec<Option<CallResult>> = calls.iter().map(|_| None).collect();
        let mut has_left = vec![false; calls.len()];
        for ((member, at), begun) in groups.iter().zip(begun) {
            let leave = |index: usize| {
                let on_result = leave(at[index])?;
                let route = Route::new(&calls[at[index]]);
                Some(self.on_left(&calls[at[index]], &route, member, on_result))
            };
            let calls = at.iter().map(|at| &calls[*at]);
            let results = member.lanes.finish_send(begun, calls, reply_by, &leave);
            for (at, result) in at.iter().zip(results) {
                has_left[*at] = result.is_none();
                sent[*at] = result;
            }
        }
        self.follow(ways, sent, has_left, (&targets, reply_by))
    }

    /// Follows the redirects of the calls whose callers have not left.
    fn follow(
        &self,
        mut ways: Vec<Way<'_>>,
        sent: Vec<Option<CallResult>>,
        has_left: Vec<bool>,
        (targets, reply_by): (&[Option<Arc<ClusterNode>>], Time),
    ) -> Vec<Option<CallResult>> {
        for (((way, sent), target), has_left) in
            ways.iter_mut().zip(sent).zip(targets).zip(&has_left)
        {
            if *has_left {
                // The handler gets the result.
                way.result = Some(CallResult::not_sent(StoreFault::NotReady));
            } else {
                let asked = target.as_ref().zip(sent);
                let asked = asked.map(|(member, sent)| (Arc::clone(member), sent));
                way.take(self, asked, reply_by);
            }
        }
        self.run_ways(&mut ways, Over::Lanes, Deadlines::at_once(reply_by));
        let ends = ways.into_iter().map(Way::end).zip(has_left);
        ends.map(|(end, has_left)| (!has_left).then_some(end))
            .collect()
    }

    /// The handler of a call that its caller leaves at a member.
    fn on_left(
        self: &Arc<Self>,
        call: &Call,
        route: &Route,
        asked: &Arc<ClusterNode>,
        on_result: OnResult,
    ) -> OnResult {
        let left = LeftCall {
            state: Arc::downgrade(self),
            call: call.clone(),
            form: route.form_and_hop().0,
            asked: Arc::clone(asked),
            attempts: route.attempts(),
            on_result,
        };
        Box::new(move |result| left.on_result(result))
    }
}

impl<'a> Way<'a> {
    fn new(call: &'a Call) -> Way<'a> {
        Way {
            call,
            route: Route::new(call),
            result: None,
        }
    }

    /// Takes the result of an attempt, `None` if there is nobody to ask. Returns whether a pause is
    /// due before the next attempt.
    fn take(&mut self, state: &ClusterState, asked: Option<Asked>, reply_by: Time) -> bool {
        let Some((member, result)) = asked else {
            state.want_refresh();
            return true;
        };
        match self.route.take(state, self.call, &member.address, result) {
            Next::Done => {
                self.result = Some(self.route.take_result());
                false
            }
            Next::Again | Next::Elsewhere => false,
            Next::Later if self.call.is_acquire() && self.route.is_refused() => {
                // Its caller makes the pause: only that knows how long the call may wait.
                self.result = Some(self.route.take_refusal());
                false
            }
            // The node is unreachable. It is not worth another attempt, but the next owner is.
            Next::Later if !self.route.is_refused() => {
                if self.await_other_owner(state, &member, reply_by) {
                    member.node.note_retries(1);
                } else {
                    self.result = Some(self.route.take_refusal());
                }
                false
            }
            Next::Later => {
                member.node.note_retries(1);
                true
            }
        }
    }

    /// Waits for a map in which the slot has another owner than this. False if none comes soon.
    fn await_other_owner(&self, state: &ClusterState, owner: &ClusterNode, reply_by: Time) -> bool {
        let soon = state.clock.now() + state.config.command_timeout / 4;
        let until = soon.min(reply_by);
        loop {
            let target = self.route.target(state);
            if target.is_some_and(|target| target.number != owner.number) {
                return true;
            }
            let now = state.clock.now();
            if now >= until {
                return false;
            }
            state.clock.sleep_until((now + LOOK_AGAIN).min(until));
        }
    }

    /// Whether it is to be sent again, and was sent on too often.
    fn must_pause(&self) -> bool {
        self.result.is_none() && self.route.was_sent_on_too_often()
    }

    fn end(self) -> CallResult {
        self.result.unwrap_or_else(|| self.route.into_refusal())
    }
}

impl LeftCall {
    /// Runs on whichever thread read the reply, so it never waits for another.
    fn on_result(self, result: CallResult) {
        let is_refused = result.answer.as_ref().is_err_and(|fault| {
            let is_elsewhere = fault.is_redirect() || fault.code() == Some("TRYAGAIN");
            is_elsewhere && !fault.is_ambiguous()
        });
        let state = self.state.upgrade().filter(|_| is_refused);
        let Some(state) = state else {
            return (self.on_result)(result);
        };
        let mut route = Route::resumed(&self.call, self.form, self.attempts);
        let next = route.take(&state, &self.call, &self.asked.address, result);
        let target = route.target(&state);
        let is_at_once = next == Next::Elsewhere && !route.was_sent_on_too_often();
        let Some(target) = target.filter(|_| is_at_once) else {
            // The renewal thread sends it, and follows redirects.
            return (self.on_result)(CallResult::not_sent(StoreFault::NotReady));
        };
        let on_result = state.on_left(&self.call, &route, &target, self.on_result);
        // The calls for its name that were sent behind it are redirected as well, and come behind
        // it on the other node's lane.
        if !target
            .lanes
            .take_over(&self.call, route.form_and_hop(), on_result)
        {
            state.wake_renewal_thread();
        }
    }
}

/// The calls of each target, by their place among the targets. Those without a target are in none.
fn group(targets: &[Option<Arc<ClusterNode>>]) -> Vec<(&Arc<ClusterNode>, Vec<usize>)> {
    let mut groups: Vec<(&Arc<ClusterNode>, Vec<usize>)> = Vec::with_capacity(1);
    for (at, target) in targets.iter().enumerate() {
        let Some(member) = target else { continue };
        match groups.iter_mut().find(|(m, _)| m.number == member.number) {
            Some((_, calls)) => calls.push(at),
            None => groups.push((member, vec![at])),
        }
    }
    groups
}
