//! The processes' handling of replies and messages: their callers, and their renewal threads.

use std::sync::Arc;

use super::{MS, Run, SimEvent};
use crate::engine::{Attempted, Doubt, HeldLease, Next, Request};
use crate::local::{GuardEnd, GuardRelease, KeptLease, LinePlace};
use crate::script::{Call, Token, Verb, Wait, wanted_behind};
use crate::sim::breach::Breach;
use crate::sim::defect::Defect;
use crate::sim::model::Promise;
use crate::sim::plan::LeaseKind;
use crate::sim::process::{CallerState, SentRelease, SimCaller, SimProcess, no_reply};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

impl Run<'_> {
    /// Hands an event to its process, once that runs and is not cut off. A process that crashed
    /// gets nothing.
    pub(super) fn deliver(&mut self, number: u64, event: SimEvent) {
        let slot = self
            .processes
            .iter()
            .position(|p| p.as_ref().is_some_and(|p| p.number == number));
        let Some(slot) = slot else { return };
        let Some(mut process) = self.processes[slot].take() else {
            return;
        };
        let is_inbound = matches!(event, SimEvent::Reply(_) | SimEvent::Message { .. });
        let cut_until = if is_inbound { process.cut_until } else { 0 };
        let not_before = process.paused_until.max(cut_until);
        if not_before > self.now {
            match event {
                SimEvent::Reply(reply) => self.put_reply_at(not_before, *reply),
                event => self.at(not_before, event),
            }
        } else {
            process.set_clock(self.now);
            self.handle(&mut process, event);
            self.run_threads(&mut process);
        }
        self.processes[slot] = Some(process);
    }

    fn handle(&mut self, process: &mut SimProcess, event: SimEvent) {
        match event {
            SimEvent::Reply(reply) => {
                if reply.epoch == self.epoch {
                    self.on_reply(process, *reply);
                }
            }
            SimEvent::TimeOut { flight, .. } => {
                self.complete(process, flight, &no_reply);
                self.on_lane_timeout(process, flight);
            }
            SimEvent::Reset { flight, .. } => self.complete(process, flight, &no_reply),
            SimEvent::LaneClosed { lane, .. } => self.on_lane_closed(process, lane),
            SimEvent::Message {
                subscription, text, ..
            } => {
                if process.subscribed && process.subscription == subscription {
                    self.on_message(process, &text);
                }
            }
            // The wake-up was put off since then.
            SimEvent::Wake { .. } if self.now < process.wake_at => {}
            SimEvent::Wake { .. } => process.wake_at = u64::MAX,
            SimEvent::Subscribe { .. } => self.subscribe(process),
            SimEvent::SubscriptionEnded { subscription, .. } => {
                if process.subscription == subscription {
                    process.trouble_seen_at = self.now;
                    process.engine.note_subscription_end();
                }
            }
            SimEvent::Ping { .. } => self.ping(process),
            SimEvent::Proven {
                subscription, sent, ..
            } => {
                if process.subscribed && process.subscription == subscription {
                    process.engine.note_proof(sent);
                    process.listens_since = process.local(self.now);
                }
            }
            SimEvent::Retry { caller, .. } => {
                self.send_acquire(process, caller);
                self.try_again(process, caller);
            }
            SimEvent::Deadline { caller, .. } => self.cancel_at_deadline(process, caller),
            SimEvent::WorkDone { caller, .. } => self.release_after_work(process, caller),
            SimEvent::Action(_) | SimEvent::Arrive(_) => {}
        }
    }

    fn release_after_work(&mut self, process: &mut SimProcess, id: u64) {
        let Some(SimCaller {
            state: CallerState::Holding(lease),
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        let lease = Arc::clone(lease);
        if self.is_borrowed(process, &lease) {
            let again = SimEvent::WorkDone {
                process: process.number,
                caller: id,
            };
            return self.at(self.now + 10 * MS, again);
        }
        match process.rng.below(4) {
            0 => self.release_guard(process, id, &lease, GuardEnd::Unlock),
            _ => self.drop_guard(process, id, &lease, GuardEnd::Drop),
        }
    }

    fn is_borrowed(&self, process: &SimProcess, lease: &Arc<HeldLease>) -> bool {
        // A caller that renews or downgrades the guard borrows it.
        let borrows = |caller: &SimCaller| match &caller.state {
            CallerState::Renewing(other) | CallerState::Downgrading(other, _) => {
                Arc::ptr_eq(other, lease)
            }
            _ => false,
        };
        process.callers.values().any(borrows)
    }

    /// The caller drops its guard, and leaves if it may.
    fn drop_guard(
        &mut self,
        process: &mut SimProcess,
        id: u64,
        lease: &Arc<HeldLease>,
        end: GuardEnd,
    ) {
        self.release_guard(process, id, lease, end);
        self.leave(process, id);
    }

    /// Sends the place of a line. The member of which it is, if any, waits meanwhile.
    pub(super) fn send_place(&mut self, process: &mut SimProcess, place: LinePlace) {
        if self.defect == Some(Defect::LinePlace) {
            return;
        }
        let now = process.local(self.now);
        let Some(call) = process.engine.begin_place(&place, now) else {
            return;
        };
        let id = self.number();
        let request = self.request(LeaseKind::Renewed, 1);
        let caller = SimCaller::new(request, CallerState::Placing(place), self.now);
        process.callers.insert(id, caller);
        self.send_for_caller(process, id, call);
    }

    /// The caller releases its guard, and waits for the reply. Without an open connection the
    /// renewal thread sends the release.
    fn release_guard(
        &mut self,
        process: &mut SimProcess,
        id: u64,
        lease: &Arc<HeldLease>,
        end: GuardEnd,
    ) {
        let started = process.local(self.now);
        let Some(release) = process.engine.begin_release(lease, end) else {
            return self.end_caller(process, id);
        };
        let GuardRelease {
            lease,
            place,
            mut call,
        } = release;
        if self.defect == Some(Defect::LastFenceUnnamed)
            && let Verb::Release { last, .. } = &mut call.verb
        {
            *last = None;
        }
        self.set_state(process, id, CallerState::Releasing(lease, started));
        if let Some(place) = place {
            self.send_place(process, place);
        }
        self.read_lane(process);
        if process.lane.is_open() {
            self.send_for_caller(process, id, call);
        } else {
            let unsent = CallResult::not_sent(StoreFault::NotReady);
            self.on_call_result(process, id, Arc::new(vec![call]), unsent);
        }
    }

    /// A caller drops its guard, or abandons it. `true`: one has a guard.
    pub(super) fn drop_one_guard(&mut self, process: &mut SimProcess, end: GuardEnd) -> bool {
        let held = process
            .callers
            .iter()
            .find_map(|(id, caller)| match &caller.state {
                CallerState::Holding(lease) if !self.is_borrowed(process, lease) => {
                    Some((*id, Arc::clone(lease)))
                }
                _ => None,
            });
        if let Some((id, lease)) = &held {
            self.drop_guard(process, *id, lease, end);
        }
        held.is_some()
    }

    fn on_message(&mut self, process: &mut SimProcess, text: &str) {
        process.engine.note_proof(process.listens_since);
        process.listens_since = process.local(self.now);
        if self.defect == Some(Defect::WantedIgnored) && text.starts_with("wanted ") {
            return;
        }
        let older_than = wanted_behind(&self.setting.config.prefix, text).map(|(_, fence)| fence);
        let kept = process.engine.kept(&self.setting.key);
        // The first word is the token. For permits it is the second, and the third if others wait.
        let token = text.split(' ').take(3).find_map(Token::parse);
        if process.newest_after < self.checker.clock_steps() {
            process.misdated.extend(token);
        }
        if self.defect == Some(Defect::R8) {
            process.engine.on_message_at_once(text)
        } else {
            process.engine.on_message(text)
        }
        let still_kept = process.engine.kept(&self.setting.key);
        let is_newer = |kept: &&KeptLease| Some(kept.fence) > older_than && older_than.is_some();
        if let Some(ended) = kept
            .iter()
            .find(|kept| is_newer(kept) && !still_kept.contains(kept))
        {
            let said = format!("a message about an older grant than {ended:?} ended that");
            self.watch.kept_wrongly = Some(Breach::new(Promise::Service, said));
        }
    }

    fn subscribe(&mut self, process: &mut SimProcess) {
        if process.subscribed {
            return;
        }
        if !self.is_reachable(process) || process.deaf_until > self.now {
            let again = self.now + self.setting.config.back_off.as_nanos() as u64;
            return self.at(
                again,
                SimEvent::Subscribe {
                    process: process.number,
                },
            );
        }
        process.engine.note_subscription_end();
        process.subscribed = true;
        process.subscription = self.number();
        process.listens_since = process.local(self.now);
        process.engine.note_proof(process.listens_since);
        process.engine.on_subscribed();
    }

    /// The subscription is to be proven alive. Without a reply within a check period it ends.
    fn ping(&mut self, process: &mut SimProcess) {
        process.ping_at = None;
        if !process.subscribed || !process.engine.needs_proof() {
            return;
        }
        let (number, subscription) = (process.number, process.subscription);
        let check_period = self.setting.config.check_period.as_nanos() as u64;
        let held_back_until = self.hangs_until.max(process.cut_until).max(self.now);
        let arrives = held_back_until + process.latency() + process.latency();
        let is_lost = process.deaf_until > self.now;
        if is_lost || arrives > self.now + check_period {
            let ended = SimEvent::SubscriptionEnded {
                process: number,
                subscription,
            };
            process.subscribed = false;
            self.at(self.now + check_period, ended);
            let again = SimEvent::Subscribe { process: number };
            return self.at(self.now + check_period + 1, again);
        }
        let proven = SimEvent::Proven {
            process: number,
            subscription,
            sent: process.local(self.now),
        };
        self.at(arrives, proven);
    }

    /// Has the subscription proven alive in a check period, if somebody needs that.
    fn ping_when_due(&mut self, process: &mut SimProcess) {
        let is_due = process.subscribed && process.ping_at.is_none();
        if is_due && process.engine.needs_proof() {
            let at = self.now + self.setting.config.check_period.as_nanos() as u64;
            process.ping_at = Some(at);
            let process = process.number;
            self.at(at, SimEvent::Ping { process });
        }
    }

    /// The call of a caller has ended, with a reply or without.
    pub(super) fn on_call_result(
        &mut self,
        process: &mut SimProcess,
        id: u64,
        calls: Arc<Vec<Call>>,
        result: CallResult,
    ) {
        let Some(caller) = process.callers.get_mut(&id) else {
            return;
        };
        let call = &calls[0];
        let engine = &process.engine;
        match (&mut caller.state, &caller.waiter) {
            (CallerState::Acquiring, Some(waiter)) => {
                let next = engine.on_acquire_reply(&waiter.waiter, call, result);
                self.after_acquire(process, id, next);
            }
            (CallerState::Cancelling, Some(waiter)) => {
                let lease = engine.on_cancel_reply(waiter, Some((call, result)));
                self.hold_or_end(process, id, lease);
            }
            (CallerState::Trying { token, doubt }, _) => {
                let timeout = self.setting.config.command_timeout.as_nanos() as u64;
                match engine.on_try_reply(&caller.request, *token, call, doubt, result) {
                    Some(Attempted::Silent) => self.await_called(process, id),
                    Some(Attempted::Told) => self.await_told(process, id),
                    Some(attempted) => self.hold_or_end(process, id, attempted.lease()),
                    None if self.now < caller.since + timeout => {
                        self.send_again_for_caller(process, id, calls);
                    }
                    None => {
                        engine.stop_trying(&caller.request, *token, call, *doubt);
                        self.end_caller(process, id);
                    }
                }
            }
            (CallerState::Placing(place), _) => {
                engine.on_place_reply(place, call, result);
                self.end_caller(process, id);
            }
            (CallerState::Forcing, _) => self.end_caller(process, id),
            (CallerState::Renewing(lease), _) => {
                engine.on_renew_reply(lease, result);
                self.end_caller(process, id);
            }
            (CallerState::Downgrading(lease, started), _) => {
                engine.on_downgrade_reply(lease, call, *started, result);
                self.end_caller(process, id);
            }
            (CallerState::Releasing(lease, started), _) => {
                engine.on_release_reply(lease, call, *started, result);
                self.end_caller(process, id);
            }
            _ => {}
        }
    }

    fn after_acquire(&mut self, process: &mut SimProcess, id: u64, next: Next) {
        let Some(caller) = process.callers.get(&id) else {
            return;
        };
        let deadline = caller.deadline;
        let may_retry = self.now < deadline.min(caller.retry_until);
        match next {
            Next::Wait => {
                self.set_state(process, id, CallerState::Waiting);
                if self.now >= deadline {
                    self.cancel_at_deadline(process, id);
                }
            }
            Next::AskAgain => self.send_acquire(process, id),
            Next::AskLater if may_retry => {
                let pause = self.setting.config.back_off.as_nanos() as u64 / 4;
                let retry = SimEvent::Retry {
                    process: process.number,
                    caller: id,
                };
                self.at(self.now + pause, retry);
            }
            Next::AskLater | Next::Fail(_) => self.end_caller(process, id),
        }
    }

    /// R22 (tries among the dead): the try asks again one and a half command timeouts after it began,
    /// if the processes that were called have one of them to answer.
    fn await_called(&mut self, process: &mut SimProcess, id: u64) {
        let timeout = self.setting.config.command_timeout.as_nanos() as u64;
        let Some(caller) = process.callers.get(&id) else {
            return;
        };
        let ask_at = match self.defect {
            Some(Defect::NobodyAwaited) => self.now + 1,
            _ => caller.since + timeout * 3 / 2,
        };
        if self.now + timeout > ask_at && self.defect != Some(Defect::NobodyAwaited) {
            return self.end_caller(process, id);
        }
        let again = SimEvent::Retry {
            process: process.number,
            caller: id,
        };
        self.at(ask_at, again);
    }

    /// The owner was told, and may let go. The try waits in the queue for a moment.
    fn await_told(&mut self, process: &mut SimProcess, id: u64) {
        let Some(caller) = process.callers.get_mut(&id) else {
            return;
        };
        caller.waiter = Some(process.engine.register_alone(&caller.request));
        caller.state = CallerState::Acquiring;
        caller.since = self.now;
        caller.deadline = self.now + 50 * MS;
        let deadline = SimEvent::Deadline {
            process: process.number,
            caller: id,
        };
        self.at(self.now + 50 * MS, deadline);
        self.send_acquire(process, id);
    }

    fn try_again(&mut self, process: &mut SimProcess, id: u64) {
        let Some(caller) = process.callers.get_mut(&id) else {
            return;
        };
        let CallerState::Trying { token, doubt } = &mut caller.state else {
            return;
        };
        (*token, *doubt) = (Token::new(), Doubt::default());
        let call = process
            .engine
            .begin_try(&caller.request, *token, Wait::NoneCame);
        self.send_for_caller(process, id, call);
    }

    pub(super) fn send_acquire(&mut self, process: &mut SimProcess, id: u64) {
        let Some(SimCaller {
            waiter: Some(waiter),
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        let now = process.local(self.now);
        if self.defect == Some(Defect::R6) {
            process.engine.keep_token(waiter);
        }
        match process.engine.begin_acquire(&waiter.waiter, now) {
            Some(call) => self.send_for_caller(process, id, call),
            None => self.set_state(process, id, CallerState::Waiting),
        }
    }

    fn cancel_at_deadline(&mut self, process: &mut SimProcess, id: u64) {
        let Some(SimCaller {
            waiter: Some(waiter),
            state: CallerState::Waiting,
            ..
        }) = process.callers.get(&id)
        else {
            return;
        };
        match process.engine.begin_cancel(waiter) {
            Some(call) => {
                self.set_state(process, id, CallerState::Cancelling);
                self.send_for_caller(process, id, call);
            }
            None => {
                let lease = process.engine.on_cancel_reply(waiter, None);
                self.hold_or_end(process, id, lease);
            }
        }
    }

    pub(super) fn hold_or_end(
        &mut self,
        process: &mut SimProcess,
        id: u64,
        lease: Option<Arc<HeldLease>>,
    ) {
        let Some(lease) = end_try(process, id, lease) else {
            return self.end_caller(process, id);
        };
        let left = lease.remaining(process.local(self.now));
        if !process.callers.contains_key(&id) {
            return;
        }
        let knows_waiters_since = self.knows_waiters_since(process, &lease.renewed_lease().request);
        let Some(caller) = process.callers.get_mut(&id) else {
            return;
        };
        // R12 (doubtful grants): with less left, the waiter must have the grant confirmed.
        // A turn is in no doubt.
        let is_turn = lease.lender().is_some();
        if caller.waiter.take().is_some() && !is_turn && left < lease.request.ttl / 2 {
            self.watch.taken_late = Some(lease.token);
        }
        let first = lease.renewed_lease().fence();
        let line = lease.request.shared_as;
        let taken = self.checker.on_guard_taken(
            lease.token,
            first,
            lease.fence(),
            line,
            knows_waiters_since,
        );
        self.watch.wrong_turn = taken.err().or(self.watch.wrong_turn.take());
        caller.since = self.now;
        caller.state = CallerState::Holding(lease);
        if caller.lease_kind == LeaseKind::MaxHold {
            caller.must_end_by = self.now + self.setting.bound.as_nanos() as u64;
        }
        let done = self.now + caller.hold;
        self.at(
            done,
            SimEvent::WorkDone {
                process: process.number,
                caller: id,
            },
        );
    }

    fn set_state(&self, process: &mut SimProcess, id: u64, state: CallerState) {
        if let Some(caller) = process.callers.get_mut(&id) {
            caller.since = self.now;
            caller.state = state;
        }
    }

    /// The waiters that came before this, in ns of the run, are known to a process that has a lease by
    /// this request: it was told, or lets go since it hears nothing.
    fn knows_waiters_since(&self, process: &SimProcess, request: &Request) -> u64 {
        if !request.hears {
            return self.now;
        }
        let bound = self.told_within();
        let disturbed_until = process.disturbed_until().max(self.server_disturbed_until());
        if self.now < disturbed_until + bound {
            0
        } else {
            self.now - bound
        }
    }

    /// Drops a caller, with its waiter or guard.
    fn end_caller(&self, process: &mut SimProcess, id: u64) {
        end_try(process, id, None);
        process.callers.remove(&id);
    }

    /// Drops the caller that has waited longest.
    pub(super) fn drop_waiter(&self, process: &mut SimProcess) {
        let first = process
            .callers
            .iter()
            .find(|(_, caller)| matches!(caller.state, CallerState::Waiting));
        if let Some(id) = first.map(|(id, _)| *id) {
            self.end_caller(process, id);
        }
    }

    /// A thread of its own renews a guard.
    pub(super) fn renew_guard(&mut self, process: &mut SimProcess) {
        let Some(lease) = process.guards().next() else {
            return;
        };
        let Some(call) = process.engine.begin_renew(&lease) else {
            return;
        };
        let request = Arc::clone(&lease.request);
        let caller = SimCaller::new(request, CallerState::Renewing(lease), self.now);
        self.start_guard_call(process, caller, call);
    }

    /// A thread of its own downgrades a guard.
    pub(super) fn downgrade_guard(&mut self, process: &mut SimProcess) {
        let has_all =
            |lease: &Arc<HeldLease>| lease.request.spec.weight == self.setting.kind.permits();
        let Some(lease) = process.guards().find(has_all) else {
            return;
        };
        let Some(call) = process.engine.begin_downgrade(&lease) else {
            return;
        };
        let request = Arc::clone(&lease.request);
        let state = CallerState::Downgrading(lease, process.local(self.now));
        let caller = SimCaller::new(request, state, self.now);
        self.start_guard_call(process, caller, call);
    }

    /// Sends a call about another caller's guard.
    fn start_guard_call(&mut self, process: &mut SimProcess, caller: SimCaller, call: Call) {
        let id = self.number();
        process.callers.insert(id, caller);
        self.send_for_caller(process, id, call);
    }

    pub(super) fn send_for_caller(&mut self, process: &mut SimProcess, id: u64, call: Call) {
        self.send_again_for_caller(process, id, Arc::new(vec![call]));
    }

    /// A caller has one command timeout for a release of its guard, and two for any other call.
    fn send_again_for_caller(&mut self, process: &mut SimProcess, id: u64, calls: Arc<Vec<Call>>) {
        let Some(caller) = process.callers.get(&id) else {
            return;
        };
        let timeout = self.setting.config.command_timeout;
        let now = process.local(self.now);
        let reply_by = match (&caller.state, caller.deadline) {
            (CallerState::Releasing(..), _) => now + timeout,
            (_, u64::MAX) => now + timeout * 2,
            (_, deadline) => (now + timeout * 2).min(process.local(deadline) + timeout),
        };
        self.send_on_lane(process, id, calls, reply_by.max(now + timeout));
    }

    /// Lets the threads of a process run: waiters look for their grants, and the renewal thread
    /// sends what is due.
    pub(super) fn run_threads(&mut self, process: &mut SimProcess) {
        if self.defect == Some(Defect::AlwaysHeard) {
            process.engine.note_proof(process.local(self.now));
        }
        let waiting: Vec<u64> = process
            .callers
            .iter()
            .filter(|(_, caller)| matches!(caller.state, CallerState::Waiting))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            let waiter = process
                .callers
                .get(&id)
                .and_then(|caller| caller.waiter.as_ref());
            if let Some(lease) = waiter.and_then(|waiter| process.engine.take_grant(waiter)) {
                self.hold_or_end(process, id, Some(lease));
            }
        }
        while !process.link_busy {
            self.note_unread_due(process);
            let (tasks, calls) = process.engine.collect();
            let must_read = process.unread.take_request();
            if must_read {
                self.read_unread(process);
            }
            if !calls.is_empty() {
                self.send_pipeline(process, tasks, Arc::new(calls));
            } else if !must_read {
                self.ping_when_due(process);
                return self.wake_when_due(process);
            }
        }
    }

    /// Puts on the lane what the engine has sent by itself.
    pub(super) fn send_outbox(&mut self, process: &mut SimProcess) {
        for SentRelease { call, on_result } in process.outbox.take() {
            let Verb::Release { token, .. } = call.verb else {
                continue;
            };
            let on_result =
                on_result.unwrap_or_else(|| process.engine.on_late_release_reply(call.clone()));
            self.send_left(process, token, on_result, call);
        }
    }

    fn wake_when_due(&mut self, process: &mut SimProcess) {
        self.note_unread_due(process);
        let due = process.engine.next_due();
        if due == Time::NEVER {
            return;
        }
        let at = process.moment(self.now, due);
        if at < process.wake_at {
            process.wake_at = at;
            let process = process.number;
            self.at(at, SimEvent::Wake { process });
        }
    }
}

/// The line of a try learns what came of it. Returns the lease of its guard, if there is one.
fn end_try(
    process: &mut SimProcess,
    id: u64,
    granted: Option<Arc<HeldLease>>,
) -> Option<Arc<HeldLease>> {
    let caller = process.callers.get_mut(&id);
    match caller.and_then(|caller| caller.in_line.take()) {
        Some(request) => process.engine.end_try(&request, granted),
        None => granted,
    }
}
