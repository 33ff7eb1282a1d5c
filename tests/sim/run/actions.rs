//! The actions on processes, on the server and on its data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{MS, Run, SimEvent};
use crate::engine::{Doubt, Handovers, HeldLease, Request};
use crate::local::{GuardEnd, TryStart};
use crate::options::LockOptions;
use crate::script::{Mode, Page, Token, Verb, Wait};
use crate::sim::breach::Breach;
use crate::sim::checker::RanAt;
use crate::sim::defect::Defect;
use crate::sim::model::{DataLoss, ModelKind, Promise};
use crate::sim::plan::{Action, LeaseKind, NameKey, Rng};
use crate::sim::process::{CallerState, SimCaller, SimProcess};
use crate::store::memory::keyspace::Keyspace;

impl Run<'_> {
    pub(super) fn perform(&mut self, action: Action) {
        let is_fault =
            !action.is_use() && !matches!(action, Action::Replicate | Action::LoseKeyAfter { .. });
        if is_fault {
            self.watch.note_fault();
        }
        self.note_outage(action);
        match action {
            Action::Lock { process, .. }
            | Action::TryLock { process, .. }
            | Action::Force { process, .. } => self.use_lock(process, action),
            Action::DropWaiter { process }
            | Action::RenewGuard { process }
            | Action::DowngradeGuard { process }
            | Action::DropAndTry { process, .. }
            | Action::AbandonAndTry { process }
            | Action::DropAndCrash { process } => self.use_guard(process, action),
            Action::NetworkFault { .. }
            | Action::LoseMessage { .. }
            | Action::DelayMessage { .. }
            | Action::Unsubscribe { .. }
            | Action::Pause { .. }
            | Action::Crash { .. }
            | Action::Cut { .. }
            | Action::Deafen { .. }
            | Action::LoseInbound { .. } => self.disturb_process(action),
            Action::Hang { .. }
            | Action::Restart { .. }
            | Action::Replicate
            | Action::FailOver { .. }
            | Action::StepClock { .. }
            | Action::FlushAll
            | Action::DropRecord
            | Action::DropQueue
            | Action::DropHolders
            | Action::ForgetScripts => self.disturb_server(action),
            Action::LoseKeyAfter { requests, key } => {
                self.key_loss = Some((self.requests + requests, key));
            }
        }
    }

    /// Notes for whom the server is out of reach, and until when.
    fn note_outage(&mut self, action: Action) {
        let now = self.now;
        let ttl = self.setting.ttl.as_nanos() as u64;
        let per_waiter = self.setting.per_waiter();
        match action {
            Action::Cut { process, pause } => self.with_process(process, |process| {
                process
                    .outage
                    .extend(now, now + pause * MS, ttl, per_waiter)
            }),
            Action::Hang { pause }
            | Action::Restart { pause, .. }
            | Action::FailOver { pause, .. } => {
                let processes = self.processes.iter_mut().flatten();
                let outages = processes.map(|process| &mut process.outage);
                outages
                    .chain([&mut self.outage])
                    .for_each(|outage| outage.extend(now, now + pause * MS, ttl, per_waiter));
            }
            _ => {}
        }
    }

    /// A caller comes to a process, or to a new one if the slot has none.
    fn use_lock(&mut self, slot: u8, action: Action) {
        let paused_until = self.processes[slot as usize]
            .as_ref()
            .map_or(0, |process| process.paused_until);
        if paused_until > self.now {
            return self.at(paused_until, SimEvent::Action(action));
        }
        let mut process = self.processes[slot as usize]
            .take()
            .unwrap_or_else(|| self.start_process());
        process.set_clock(self.now);
        self.start_caller(&mut process, action);
        self.run_threads(&mut process);
        self.processes[slot as usize] = Some(process);
    }

    /// A process does something with a waiter or a guard that it has.
    fn use_guard(&mut self, slot: u8, action: Action) {
        let Some(mut process) = self.processes[slot as usize].take() else {
            return;
        };
        if process.paused_until > self.now {
            self.at(process.paused_until, SimEvent::Action(action));
        } else {
            process.set_clock(self.now);
            match action {
                Action::DropAndTry { permits, .. } => {
                    if self.drop_one_guard(&mut process, GuardEnd::Drop) {
                        self.start_try(&mut process, 1, permits);
                    }
                }
                Action::AbandonAndTry { .. } => {
                    if self.drop_one_guard(&mut process, GuardEnd::Abandon) {
                        self.start_try(&mut process, 50, 1);
                    }
                }
                Action::DropAndCrash { .. } => {
                    let mut has_dropped = false;
                    while self.drop_one_guard(&mut process, GuardEnd::Drop) {
                        has_dropped = true;
                    }
                    if has_dropped {
                        return self.on_crash(&process);
                    }
                }
                Action::DropWaiter { .. } => self.drop_waiter(&mut process),
                Action::DowngradeGuard { .. } => self.downgrade_guard(&mut process),
                _ => self.renew_guard(&mut process),
            }
            self.run_threads(&mut process);
        }
        self.processes[slot as usize] = Some(process);
    }

    fn disturb_process(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::NetworkFault { process, fault } => self.with_process(process, |process| {
                process.network_faults.push_back(fault);
            }),
            Action::LoseMessage { process } => self.with_process(process, |process| {
                process.late_messages.push_back(None);
            }),
            Action::DelayMessage { process, by } => self.with_process(process, |process| {
                process.late_messages.push_back(Some(by * MS));
            }),
            Action::Unsubscribe { process, pause } => {
                self.with_process(process, |process| process.subscribed = false);
                let process = self.processes[process as usize].as_ref();
                let numbers = process.map(|process| (process.number, process.subscription));
                if let Some((process, subscription)) = numbers {
                    self.end_subscription(process, subscription);
                    self.at(now + pause * MS, SimEvent::Subscribe { process });
                }
            }
            Action::Pause { process, pause } => self.with_process(process, |process| {
                process.paused_until = process.paused_until.max(now + pause * MS);
            }),
            Action::Crash { process } => self.crash(process),
            Action::Cut { process, pause } => self.with_process(process, |process| {
                process.cut_until = process.cut_until.max(now + pause * MS);
            }),
            Action::Deafen { process, pause } => self.with_process(process, |process| {
                process.deafen(now, now + pause * MS);
            }),
            Action::LoseInbound { process, pause } => {
                let timeout = self.setting.config.command_timeout.as_nanos() as u64;
                self.with_process(process, |process| {
                    process.deafen(now, now + pause * MS);
                    let until = process.inbound_lost_until.max(now + pause * MS);
                    process.inbound_lost_until = until;
                    process.troubled_until = process.troubled_until.max(until);
                    process.fault_known_by = process.fault_known_by.max(until + timeout);
                });
            }
            _ => {}
        }
    }

    fn crash(&mut self, slot: u8) {
        if let Some(process) = self.processes[slot as usize].take() {
            self.on_crash(&process);
        }
    }

    fn disturb_server(&mut self, action: Action) {
        match action {
            Action::Hang { pause } => {
                self.hangs_until = self.hangs_until.max(self.now + pause * MS);
            }
            Action::Restart { keep, pause } => {
                if !keep {
                    self.lose_all();
                }
                self.end_connections(pause);
            }
            Action::Replicate => {
                self.replica = self.server.state().keyspace.clone();
                self.checker.on_replicated();
            }
            Action::FailOver { clock, pause } => {
                self.server.state().keyspace = self.replica.clone();
                self.step_clock(clock);
                let at = self.ran_at();
                self.checker
                    .on_failed_over(at, &self.server.state().keyspace);
                self.note_lost_places();
                self.end_connections(pause);
            }
            Action::StepClock { by } => self.step_clock(by),
            Action::FlushAll => self.lose_all(),
            Action::DropRecord => {
                let loss = if self.setting.kind == ModelKind::Mutex {
                    DataLoss::All
                } else {
                    DataLoss::Record
                };
                self.delete(self.setting.key.record(), loss);
            }
            Action::DropQueue => self.delete(self.setting.key.queue(), DataLoss::Queue),
            Action::DropHolders => self.delete(&self.setting.key.holders(), DataLoss::Holders),
            Action::ForgetScripts => self.known_scripts = Some(BTreeSet::new()),
            _ => {}
        }
    }

    /// The server has run one more request, and loses a key if that is due.
    pub(super) fn lose_key_if_due(&mut self) {
        self.requests += 1;
        let requests = self.requests;
        let Some((_, key)) = self.key_loss.take_if(|(at, _)| *at == requests) else {
            return;
        };
        self.perform(match key {
            NameKey::Record => Action::DropRecord,
            NameKey::Queue => Action::DropQueue,
            NameKey::Holders => Action::DropHolders,
        });
    }

    fn with_process(&mut self, slot: u8, change: impl FnOnce(&mut SimProcess)) {
        if let Some(process) = &mut self.processes[slot as usize] {
            change(process);
        }
    }

    pub(super) fn ran_at(&self) -> RanAt {
        RanAt {
            now: self.now / 1000,
            clock: self.server_clock(),
        }
    }

    fn step_clock(&mut self, by_ms: i64) {
        self.clock_ahead += by_ms * 1000;
        self.checker.on_clock_stepped(self.ran_at());
    }

    fn lose_all(&mut self) {
        self.server.state().keyspace = Keyspace::default();
        self.lose(DataLoss::All);
    }

    fn lose(&mut self, loss: DataLoss) {
        self.checker
            .on_data_lost(self.now / 1000, loss, &self.server.state().keyspace);
        self.note_lost_places();
    }

    /// Notes which waiters have lost their places. A waiter that was granted the lock, and had yet
    /// to learn of it, had no place any more.
    fn note_lost_places(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            for caller in process.callers.values_mut() {
                let is_lost = caller.waiter.as_ref().is_some_and(|waiter| {
                    let token = waiter.token();
                    let was_queued =
                        process.engine.is_queued(waiter) && !self.checker.was_granted(token);
                    (was_queued || caller.lost_at.is_some()) && !self.checker.knows(token)
                });
                caller.lost_at = is_lost.then(|| caller.lost_at.unwrap_or(self.now));
            }
        }
    }

    fn delete(&mut self, key: &str, loss: DataLoss) {
        let clock = self.server_clock();
        let words = [b"DEL".to_vec(), key.as_bytes().to_vec()];
        self.server
            .run(clock, &words)
            .expect("a key can be deleted");
        self.lose(loss);
    }

    /// All connections end, and everything on its way on them is lost.
    fn end_connections(&mut self, pause_ms: u64) {
        self.epoch += 1;
        self.watch.forget_last_drops();
        self.down_until = self.down_until.max(self.now + pause_ms * MS);
        self.hangs_until = 0;
        let back = self.down_until + self.setting.config.back_off.as_nanos() as u64;
        let mut events = Vec::new();
        for process in self.processes.iter_mut().flatten() {
            process.subscribed = false;
            let number = process.number;
            let ended = SimEvent::SubscriptionEnded {
                process: number,
                subscription: process.subscription,
            };
            if self.setting.keep.is_some() {
                events.push((self.now + 50_000, ended));
            }
            events.push((
                back + process.latency(),
                SimEvent::Subscribe { process: number },
            ));
            for flight in process.flights.keys() {
                let reset = SimEvent::Reset {
                    process: number,
                    flight: *flight,
                };
                events.push((self.now + 50_000, reset));
            }
            if let Some(lane) = process.lane.connection_number() {
                let closed = SimEvent::LaneClosed {
                    process: number,
                    lane,
                };
                events.push((self.now + 50_000, closed));
            }
        }
        for (at, event) in events {
            self.at(at, event);
        }
    }

    /// The process learns that its subscription has ended. Only those that keep need to know.
    fn end_subscription(&mut self, process: u64, subscription: u64) {
        let ended = SimEvent::SubscriptionEnded {
            process,
            subscription,
        };
        if self.setting.keep.is_some() {
            self.at(self.now + 50_000, ended);
        }
    }

    fn start_process(&mut self) -> SimProcess {
        let number = self.number();
        let rng = Rng::new(self.rng.next());
        let process = SimProcess::new(number, &self.setting.config, rng, self.now, self.outage);
        self.at(self.now, SimEvent::Subscribe { process: number });
        process
    }

    fn start_caller(&mut self, process: &mut SimProcess, action: Action) {
        match action {
            Action::Force { stale, .. } => {
                let id = self.number();
                self.start_force(process, id, stale.into());
            }
            Action::TryLock { hold, permits, .. } => self.start_try(process, hold, permits),
            Action::Lock {
                timeout,
                hold,
                lease_kind,
                permits,
                ..
            } => {
                let id = self.number();
                self.watch.may_lose |= lease_kind != LeaseKind::Renewed;
                let options = self.caller_options(lease_kind, hold);
                process.outbox.set_open(process.lane.is_open());
                let kept = process.engine.lend_kept(&self.setting.key, &options);
                if let Some(lease) = kept {
                    return self.start_holding(process, (id, lease), lease_kind, hold);
                }
                let handovers = process.engine.handovers(&self.setting.key, &options);
                let request = self.request_with(&options, permits, handovers);
                if !request.may_be_lent() {
                    self.make_way(process);
                }
                let (waiter, place) = process.engine.register(&request);
                self.send_outbox(process);
                let is_member = request.may_be_lent();
                let mut caller = SimCaller::new(request, CallerState::Acquiring, self.now);
                caller.lease_kind = lease_kind;
                caller.waiter = Some(waiter);
                caller.retry_until = self.retry_until();
                caller.hold = hold * MS;
                if let Some(timeout) = timeout {
                    caller.deadline = self.now + timeout * MS;
                    let deadline = SimEvent::Deadline {
                        process: process.number,
                        caller: id,
                    };
                    self.at(caller.deadline, deadline);
                }
                if is_member {
                    caller.state = CallerState::Waiting;
                }
                process.callers.insert(id, caller);
                match place {
                    Some(place) => self.send_place(process, place),
                    None if is_member => {}
                    None => self.send_acquire(process, id),
                }
            }
            _ => {}
        }
    }

    /// A caller is about to ask for the lock for itself. What its process keeps must not be in its way.
    fn make_way(&mut self, process: &SimProcess) {
        if self.defect != Some(Defect::NoWayMade) {
            process.engine.make_way(&self.setting.key);
        }
        if let Some(kept) = process.engine.kept(&self.setting.key).first() {
            let said = format!("{kept:?} is in the way of a caller of its own process");
            self.watch.kept_wrongly = Some(Breach::new(Promise::Service, said));
        }
    }

    /// A caller has the lock without asking for it.
    fn start_holding(
        &mut self,
        process: &mut SimProcess,
        (id, lease): (u64, Arc<HeldLease>),
        lease_kind: LeaseKind,
        hold: u64,
    ) {
        self.kept_turns += 1;
        self.check_hears(process);
        let request = Arc::clone(&lease.request);
        let mut caller = SimCaller::new(request, CallerState::Waiting, self.now);
        caller.lease_kind = lease_kind;
        caller.hold = hold * MS;
        process.callers.insert(id, caller);
        self.hold_or_end(process, id, Some(lease));
    }

    fn start_try(&mut self, process: &mut SimProcess, hold: u64, permits: u32) {
        let id = self.number();
        let options = self.caller_options(LeaseKind::Renewed, hold);
        process.outbox.set_open(process.lane.is_open());
        if let Some(lease) = process.engine.lend_kept(&self.setting.key, &options) {
            return self.start_holding(process, (id, lease), LeaseKind::Renewed, hold);
        }
        let mut request = self.request(LeaseKind::Renewed, permits);
        let mut in_line = None;
        let handovers = process.engine.handovers(&self.setting.key, &options);
        if options.keep_time().is_some() {
            let own = self.request_with(&options, permits, handovers);
            match process.engine.begin_try_in_line(&own) {
                TryStart::Holds(lease) => {
                    return self.start_holding(process, (id, lease), LeaseKind::Renewed, hold);
                }
                TryStart::Taken => return,
                TryStart::Asks(of_line) => (request, in_line) = (of_line, Some(own)),
                TryStart::AsksAlone => {}
            }
        } else {
            self.make_way(process);
        }
        self.send_outbox(process);
        let token = Token::new();
        let call = process.engine.begin_try(&request, token, Wait::No);
        let state = CallerState::Trying {
            token,
            doubt: Doubt::default(),
        };
        let mut caller = SimCaller::new(request, state, self.now);
        caller.in_line = in_line;
        caller.retry_until = self.retry_until();
        caller.hold = hold * MS;
        process.callers.insert(id, caller);
        self.send_for_caller(process, id, call);
    }

    /// Takes the lock by force from the holder of a fence. The fence may be `behind` the holder's.
    fn start_force(&mut self, process: &mut SimProcess, id: u64, behind: u64) {
        let request = self.request(LeaseKind::Renewed, 1);
        // Any fence of the grant, or none of its fences.
        let turn = id % u64::from(self.setting.local_handovers + 1);
        let fence = self.checker.fence_of_a_holder(id) + turn;
        let call = request.call(Verb::Release {
            last: None,
            token: Token::new(),
            fence: fence.saturating_sub(behind),
            mode: Mode::Forced(Page::default()),
        });
        let caller = SimCaller::new(request, CallerState::Forcing, self.now);
        process.callers.insert(id, caller);
        self.send_for_caller(process, id, call);
    }

    /// The request of a caller that takes the lock for itself alone.
    pub(super) fn request(&self, lease_kind: LeaseKind, permits: u32) -> Arc<Request> {
        let options = self.setting.options(self.kind_for(lease_kind));
        self.request_with(&options, permits, Handovers::NONE)
    }

    fn kind_for(&self, lease_kind: LeaseKind) -> LeaseKind {
        match lease_kind {
            LeaseKind::MaxHold if self.defect == Some(Defect::MaxHold) => LeaseKind::Renewed,
            lease_kind => lease_kind,
        }
    }

    /// The options of a caller. Where locks are kept, one caller in four keeps none: which one must not
    /// depend on the callers before it.
    fn caller_options(&self, lease_kind: LeaseKind, hold: u64) -> LockOptions {
        let options = self.setting.options(self.kind_for(lease_kind));
        if matches!(lease_kind, LeaseKind::Fixed | LeaseKind::HoldAtLeast) {
            return options;
        }
        let max = match self.setting.local_handovers {
            max if max > 0 && self.defect == Some(Defect::OneTurnMore) => max + 1,
            max => max,
        };
        let options = options.local_handovers(max);
        match self.setting.keep {
            Some(keep) if !hold.is_multiple_of(4) => options.keep_idle(keep),
            _ => options,
        }
    }

    fn request_with(
        &self,
        options: &LockOptions,
        permits: u32,
        handovers: Handovers,
    ) -> Arc<Request> {
        let mut request = Request::with_handovers(
            self.setting.spec(permits),
            self.setting.key.clone(),
            options,
            1,
            handovers,
        );
        if self.defect == Some(Defect::LeftBelieved) {
            // The server does not learn of this. No step of the clock is longer.
            request.hold_at_least = Duration::from_secs(15);
        }
        Arc::new(request)
    }

    fn retry_until(&self) -> u64 {
        self.now + self.setting.config.outage_limit.as_nanos() as u64
    }
}
