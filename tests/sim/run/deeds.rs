//! What is done to processes, to the server and to its data.

use std::sync::Arc;

use super::{Event, MS, Run};
use crate::engine::{Doubt, Request};
use crate::script::{Mode, Token, Verb};
use crate::sim::defect::Defect;
use crate::sim::model::{DataLoss, ModelKind};
use crate::sim::plan::{Chance, Deed, Terms};
use crate::sim::process::{Caller, Doing, Process, Resent, Whose};
use crate::store::memory::keyspace::Keyspace;

impl Run<'_> {
    pub(super) fn deed(&mut self, deed: Deed) {
        let now = self.now;
        let is_use = matches!(
            deed,
            Deed::Lock { .. }
                | Deed::TryLock { .. }
                | Deed::Drop { .. }
                | Deed::Renew { .. }
                | Deed::Downgrade { .. }
        );
        if !is_use && deed != Deed::Replicate {
            self.watch.storm();
        }
        let (ttl, turn) = (self.setting.ttl.as_nanos() as u64, self.per_turn());
        match deed {
            Deed::Cut { process, pause } => {
                self.on(process, |process| {
                    process.away.lasts(now, now + pause * MS, ttl, turn)
                });
            }
            Deed::Hang { pause } | Deed::Restart { pause, .. } | Deed::FailOver { pause, .. } => {
                let everybody = self
                    .processes
                    .iter_mut()
                    .flatten()
                    .map(|process| &mut process.away);
                everybody
                    .chain([&mut self.away])
                    .for_each(|away| away.lasts(now, now + pause * MS, ttl, turn));
            }
            _ => {}
        }
        match deed {
            Deed::Lock { process: slot, .. }
            | Deed::TryLock { process: slot, .. }
            | Deed::Force { process: slot, .. } => {
                let paused = self.processes[slot as usize]
                    .as_ref()
                    .map_or(0, |process| process.paused_until);
                if paused > now {
                    return self.at(paused, Event::Deed(deed));
                }
                let mut process = self.processes[slot as usize]
                    .take()
                    .unwrap_or_else(|| self.begin());
                process.show(now);
                self.want(&mut process, deed);
                self.tend(&mut process);
                self.processes[slot as usize] = Some(process);
            }
            Deed::Drop { process: slot }
            | Deed::Renew { process: slot }
            | Deed::Downgrade { process: slot } => {
                let Some(mut process) = self.processes[slot as usize].take() else {
                    return;
                };
                if process.paused_until > now {
                    self.at(process.paused_until, Event::Deed(deed));
                } else {
                    process.show(now);
                    match deed {
                        Deed::Drop { .. } => self.drop_place(&mut process),
                        Deed::Downgrade { .. } => self.downgrade(&mut process),
                        _ => self.renew(&mut process),
                    }
                    self.tend(&mut process);
                }
                self.processes[slot as usize] = Some(process);
            }
            Deed::Mishap { process, what } => {
                self.on(process, |process| process.mishaps.push_back(what))
            }
            Deed::LoseMessage { process } => {
                self.on(process, |process| process.late_messages.push_back(None))
            }
            Deed::DelayMessage { process, by } => {
                self.on(process, |process| {
                    process.late_messages.push_back(Some(by * MS))
                });
            }
            Deed::Unsubscribe {
                process: slot,
                pause,
            } => {
                self.on(slot, |process| process.subscribed = false);
                if let Some(process) = self.processes[slot as usize]
                    .as_ref()
                    .map(|process| process.number)
                {
                    self.at(now + pause * MS, Event::Subscribe { process });
                }
            }
            Deed::Pause { process, pause } => self.on(process, |process| {
                process.paused_until = process.paused_until.max(now + pause * MS)
            }),
            Deed::Crash { process } => self.processes[process as usize] = None,
            Deed::Cut { process, pause } => self.on(process, |process| {
                process.cut_until = process.cut_until.max(now + pause * MS)
            }),
            Deed::Deaf { process, pause } => {
                let timeout = self.setting.config.command_timeout.as_nanos() as u64;
                self.on(process, |process| {
                    process.deaf_until = process.deaf_until.max(now + pause * MS);
                    process.troubled_until = process.troubled_until.max(process.deaf_until);
                    process.mishap_until = process.mishap_until.max(process.deaf_until + timeout);
                });
            }
            Deed::Hang { pause } => self.hangs_until = self.hangs_until.max(now + pause * MS),
            Deed::Restart { keep, pause } => {
                if !keep {
                    self.lose_all();
                }
                self.end_server(pause);
            }
            Deed::Replicate => {
                self.replica = self.server.state().keyspace.clone();
                self.judge.replicated();
            }
            Deed::FailOver { clock, pause } => {
                self.server.state().keyspace = self.replica.clone();
                self.step_clock(clock);
                self.judge.failed_over(
                    now / 1000,
                    self.server_clock(),
                    &self.server.state().keyspace,
                );
                self.lose_places();
                self.end_server(pause);
            }
            Deed::StepClock { by } => self.step_clock(by),
            Deed::FlushAll => self.lose_all(),
            Deed::DropRecord => {
                let loss = if self.setting.kind == ModelKind::Mutex {
                    DataLoss::All
                } else {
                    DataLoss::Record
                };
                self.delete(self.setting.key.record(), loss);
            }
            Deed::DropQueue => self.delete(self.setting.key.queue(), DataLoss::Queue),
            Deed::DropHolders => self.delete(&self.setting.key.holders(), DataLoss::Holders),
        }
    }

    pub(super) fn on(&mut self, slot: u8, deed: impl FnOnce(&mut Process)) {
        if let Some(process) = &mut self.processes[slot as usize] {
            deed(process);
        }
    }

    pub(super) fn step_clock(&mut self, by_ms: i64) {
        self.ahead += by_ms * 1000;
        self.judge
            .clock_stepped(self.now / 1000, self.server_clock());
    }

    fn lose_all(&mut self) {
        self.server.state().keyspace = Keyspace::default();
        self.lose(DataLoss::All);
    }

    fn lose(&mut self, loss: DataLoss) {
        self.judge
            .lost_data(self.now / 1000, loss, &self.server.state().keyspace);
        self.lose_places();
    }

    /// Who was granted the lock, and had yet to hear of it, had no place any more.
    fn lose_places(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            for caller in process.callers.values_mut() {
                let is_lost = caller.place.as_ref().is_some_and(|place| {
                    let stood =
                        process.engine.is_queued(place) && !self.judge.was_granted(place.token());
                    (stood || caller.lost.is_some()) && !self.judge.knows(place.token())
                });
                caller.lost = is_lost.then(|| caller.lost.unwrap_or(self.now));
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

    /// All connections end, and what was under way on them is lost.
    pub(super) fn end_server(&mut self, pause_ms: u64) {
        self.epoch += 1;
        self.down_until = self.down_until.max(self.now + pause_ms * MS);
        self.hangs_until = 0;
        let back = self.down_until + self.setting.config.back_off.as_nanos() as u64;
        let mut events = Vec::new();
        for process in self.processes.iter_mut().flatten() {
            process.subscribed = false;
            events.push((
                back + process.way(),
                Event::Subscribe {
                    process: process.number,
                },
            ));
            for flight in process.flights.keys() {
                events.push((
                    self.now + 50_000,
                    Event::Reset {
                        process: process.number,
                        flight: *flight,
                    },
                ));
            }
        }
        for (at, event) in events {
            self.at(at, event);
        }
    }

    pub(super) fn begin(&mut self) -> Process {
        let number = self.number();
        let chance = Chance::new(self.chance.next());
        let process = Process::new(number, &self.setting.config, chance, self.now, self.away);
        self.at(self.now, Event::Subscribe { process: number });
        process
    }

    pub(super) fn want(&mut self, process: &mut Process, deed: Deed) {
        let id = self.number();
        let (patience, hold, terms, permits) = match deed {
            Deed::Lock {
                patience,
                hold,
                terms,
                permits,
                ..
            } => (patience, hold, terms, permits),
            Deed::TryLock { hold, permits, .. } => (None, hold, Terms::Renewed, permits),
            _ => (None, 0, Terms::Renewed, 1),
        };
        let options = match terms {
            Terms::MaxHold if self.defect == Some(Defect::MaxHold) => {
                self.setting.options(Terms::Renewed)
            }
            terms => self.setting.options(terms),
        };
        let request = Arc::new(Request::new(
            self.setting.spec(permits),
            self.setting.key.clone(),
            &options,
        ));
        let until = patience.map_or(u64::MAX, |ms| self.now + ms * MS);
        let patient_until = self.now + self.setting.config.outage_limit.as_nanos() as u64;
        let caller = Caller {
            request,
            terms,
            place: None,
            doing: Doing::Asking,
            until,
            patient_until,
            hold: hold * MS,
            since: self.now,
            lost: None,
            ends_at: u64::MAX,
        };
        if let Deed::Force { stale, .. } = deed {
            let fence = self.judge.fence_of_one(id).saturating_sub(u64::from(stale));
            let call = caller.request.call(Verb::Release {
                token: Token::new(),
                fence,
                mode: Mode::Forced,
            });
            process.callers.insert(
                id,
                Caller {
                    doing: Doing::Forcing,
                    ..caller
                },
            );
            return self.send(
                process,
                Whose::Caller(id),
                Arc::new(vec![call]),
                Resent::default(),
            );
        }
        if matches!(deed, Deed::TryLock { .. }) {
            let token = Token::new();
            let call = process.engine.begin_try(&caller.request, token);
            let doing = Doing::Trying {
                token,
                doubt: Doubt::default(),
            };
            process.callers.insert(id, Caller { doing, ..caller });
            return self.send(
                process,
                Whose::Caller(id),
                Arc::new(vec![call]),
                Resent::default(),
            );
        }
        let place = Some(process.engine.register(Arc::clone(&caller.request)));
        process.callers.insert(id, Caller { place, ..caller });
        if until < u64::MAX {
            self.at(
                until,
                Event::Deadline {
                    process: process.number,
                    caller: id,
                },
            );
        }
        self.ask(process, id);
    }

    // The network.
}
