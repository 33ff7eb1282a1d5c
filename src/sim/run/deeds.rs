//! What is done to processes, to the server and to its data.

use std::sync::Arc;

use super::{Event, MS, Run};
use crate::engine::Request;
use crate::script::Family;
use crate::sim::plan::{Chance, Deed};
use crate::sim::process::{Caller, Doing, Process, Whose};
use crate::store::memory::keyspace::Keyspace;

impl Run<'_> {
    pub(super) fn deed(&mut self, deed: Deed) {
        let now = self.now;
        if let Deed::Hang { pause }
        | Deed::Cut { pause, .. }
        | Deed::Restart { pause, .. }
        | Deed::FailOver { pause, .. } = deed
        {
            let (began, ended) = self.away;
            let ttl = self.setting.ttl.as_nanos() as u64;
            self.away = (if now > ended + ttl / 6 { now } else { began }, ended.max(now + pause * MS));
            if self.away.1 - self.away.0 > ttl / 2 {
                self.excused_until = self.away.1 + ttl + self.per_turn();
            }
        }
        match deed {
            Deed::Lock { process: slot, .. } | Deed::TryLock { process: slot, .. } => {
                let paused = self.processes[slot as usize].as_ref().map_or(0, |process| process.paused_until);
                if paused > now {
                    return self.at(paused, Event::Deed(deed));
                }
                let mut process = self.processes[slot as usize].take().unwrap_or_else(|| self.begin());
                process.show(now);
                self.want(&mut process, deed);
                self.tend(&mut process);
                self.processes[slot as usize] = Some(process);
            }
            Deed::Mishap { process, what } => self.on(process, |process| process.mishaps.push_back(what)),
            Deed::LoseMessage { process } => self.on(process, |process| process.late_messages.push_back(None)),
            Deed::DelayMessage { process, by } => {
                self.on(process, |process| process.late_messages.push_back(Some(by * MS)));
            }
            Deed::Unsubscribe { process: slot, pause } => {
                self.on(slot, |process| process.subscribed = false);
                if let Some(process) = self.processes[slot as usize].as_ref().map(|process| process.number) {
                    self.at(now + pause * MS, Event::Subscribe { process });
                }
            }
            Deed::Pause { process, pause } => self.on(process, |process| process.paused_until = now + pause * MS),
            Deed::Crash { process } => {
                if let Some(process) = self.processes[process as usize].take() {
                    self.judge.died(&process.terms.manager);
                }
            }
            Deed::Cut { process, pause } => self.on(process, |process| process.cut_until = now + pause * MS),
            Deed::Hang { pause } => self.hangs_until = now + pause * MS,
            Deed::Restart { keep, pause } => {
                if !keep {
                    self.server.state().keyspace = Keyspace::default();
                    self.lose_data();
                }
                self.end_server(pause);
            }
            Deed::Replicate => self.replica = self.server.state().keyspace.clone(),
            Deed::FailOver { clock, pause } => {
                self.server.state().keyspace = self.replica.clone();
                self.step_clock(clock);
                self.lose_data();
                self.end_server(pause);
            }
            Deed::StepClock { by } => self.step_clock(by),
            Deed::FlushAll => {
                self.server.state().keyspace = Keyspace::default();
                self.lose_data();
            }
            Deed::DropRecord => self.delete(self.setting.key.record()),
            Deed::DropQueue => self.delete(self.setting.key.queue()),
        }
    }

    pub(super) fn on(&mut self, slot: u8, deed: impl FnOnce(&mut Process)) {
        if let Some(process) = &mut self.processes[slot as usize] {
            deed(process);
        }
    }

    pub(super) fn step_clock(&mut self, by_ms: i64) {
        self.ahead += by_ms * 1000;
        self.judge.clock_stepped(self.now / 1000, by_ms);
    }

    pub(super) fn lose_data(&mut self) {
        self.judge.data_lost(self.now / 1000, &self.server.state().keyspace);
    }

    pub(super) fn delete(&mut self, key: &str) {
        let clock = self.server_clock();
        let words = [b"DEL".to_vec(), key.as_bytes().to_vec()];
        self.server.run(clock, &words).expect("a key can be deleted");
        self.lose_data();
    }

    /// All connections end, and what was under way on them is lost.
    pub(super) fn end_server(&mut self, pause_ms: u64) {
        self.epoch += 1;
        self.down_until = self.now + pause_ms * MS;
        self.hangs_until = 0;
        let back = self.down_until + self.setting.config.back_off.as_nanos() as u64;
        let mut events = Vec::new();
        for process in self.processes.iter_mut().flatten() {
            process.subscribed = false;
            events.push((back + process.way(), Event::Subscribe { process: process.number }));
            for flight in process.flights.keys() {
                events.push((self.now + 50_000, Event::Reset { process: process.number, flight: *flight }));
            }
        }
        for (at, event) in events {
            self.at(at, event);
        }
    }

    pub(super) fn begin(&mut self) -> Process {
        let number = self.number();
        let chance = Chance::new(self.chance.next());
        let process = Process::new(number, &self.setting.config, chance, self.now);
        self.at(self.now, Event::Subscribe { process: number });
        process
    }

    pub(super) fn want(&mut self, process: &mut Process, deed: Deed) {
        let id = self.number();
        let (patience, hold, fixed) = match deed {
            Deed::Lock { patience, hold, fixed, .. } => (patience, hold, fixed),
            Deed::TryLock { hold, .. } => (None, hold, false),
            _ => return,
        };
        let options = if fixed { &self.setting.fixed } else { &self.setting.renewed };
        let request = Arc::new(Request::new(Family::Mutex, self.setting.key.clone(), options));
        let until = patience.map_or(u64::MAX, |ms| self.now + ms * MS);
        let patient_until = self.now + self.setting.config.outage_limit.as_nanos() as u64;
        let caller = Caller { request, place: None, doing: Doing::Asking, until, patient_until, hold: hold * MS };
        if matches!(deed, Deed::TryLock { .. }) {
            let call = process.hand.try_lock(&caller.request);
            let doing = Doing::Trying { in_doubt: false };
            process.callers.insert(id, Caller { doing, ..caller });
            return self.send(process, Whose::Caller(id), Arc::new(vec![call]), 0);
        }
        let place = Some(process.hand.stand(Arc::clone(&caller.request)));
        process.callers.insert(id, Caller { place, ..caller });
        if until < u64::MAX {
            self.at(until, Event::Deadline { process: process.number, caller: id });
        }
        self.ask(process, id);
    }

    // The network.
}
