//! The actions on processes, on the server and on its data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{MS, Run, SimEvent};
use crate::engine::{Doubt, Handovers, Request};
use crate::script::{Mode, Page, Token, Verb, Wait};
use crate::sim::checker::RanAt;
use crate::sim::defect::Defect;
use crate::sim::model::{DataLoss, ModelKind};
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
            | Action::DropAndCrash { process } => self.use_guard(process, action),
            Action::NetworkFault { .. }
            | Action::LoseMessage { .. }
            | Action::DelayMessage { .. }
            | Action::Unsubscribe { .. }
            | Action::Pause { .. }
            | Action::Crash { .. }
            | Action::Cut { .. }
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
                    if self.drop_one_guard(&mut process) {
                        self.start_try(&mut process, 1, permits);
                    }
                }
                Action::DropAndCrash { .. } => {
                    let mut has_dropped = false;
                    while self.drop_one_guard(&mut process) {
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
                if let Some(process) = process.map(|process| process.number) {
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
            Action::LoseInbound { process, pause } => {
                let timeout = self.setting.config.command_timeout.as_nanos() as u64;
                self.with_process(process, |process| {
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
                let max = match lease_kind {
                    LeaseKind::Renewed | LeaseKind::MaxHold => self.setting.local_handovers,
                    LeaseKind::Fixed | LeaseKind::HoldAtLeast => 0,
                };
                let request = self.request_with(lease_kind, permits, max);
                let (waiter, place) = process.engine.register(&request);
                let is_member = request.spare_fences > 0;
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

    fn start_try(&mut self, process: &mut SimProcess, hold: u64, permits: u32) {
        let id = self.number();
        let request = self.request(LeaseKind::Renewed, permits);
        let token = Token::new();
        let call = process.engine.begin_try(&request, token, Wait::No);
        let doubt = Doubt::default();
        let state = CallerState::Trying { token, doubt };
        let mut caller = SimCaller::new(request, state, self.now);
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
        self.request_with(lease_kind, permits, 0)
    }

    fn request_with(&self, lease_kind: LeaseKind, permits: u32, max: u32) -> Arc<Request> {
        let lease_kind = match lease_kind {
            LeaseKind::MaxHold if self.defect == Some(Defect::MaxHold) => LeaseKind::Renewed,
            lease_kind => lease_kind,
        };
        let max = match self.defect {
            Some(Defect::OneTurnMore) if max > 0 => max + 1,
            _ => max,
        };
        let mut request = Request::with_handovers(
            self.setting.spec(permits),
            self.setting.key.clone(),
            &self.setting.options(lease_kind).local_handovers(max),
            1,
            Handovers::up_to(max),
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
