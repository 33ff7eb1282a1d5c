//! One run: the deeds of a plan and what follows from them, in the order of their time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::defect::Defect;
use super::judge::{Broken, Judge, Ran};
use super::model::Promise;
use super::plan::{Chance, Deed, Mishap, Planned, SLOTS};
use super::process::{Caller, Connection, Doing, Flight, Process, Whose, no_connection, no_reply};
use super::simulation::Setting;
use crate::engine::{Lease, Next, Request};
use crate::script::{Call, Family, Form, Mode, Outcome, Reply, Token, Verb};
use crate::store::clock::Time;
use crate::store::memory::keyspace::{self, Bytes, Keyspace};
use crate::store::memory::server::Server;
use crate::store::memory::words_of;
use crate::store::{Anchor, Answer, Fault};

const MS: u64 = 1_000_000;
/// What the server's clock shows at the start, in µs.
const BEGAN: i64 = 1_700_000_000_000_000;
/// No deed lasts longer, in ns.
const LONGEST: u64 = 9_100 * MS;
/// A run that has not come to rest after so many events will not.
const MOST_STEPS: u64 = 100_000;

pub(super) struct Run<'a> {
    setting: &'a Setting,
    defect: Option<Defect>,
    server: &'a mut Server,
    judge: Judge,
    chance: Chance,
    /// In ns since the start, by no host's clock.
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    /// For events, flights, callers, processes and subscriptions.
    numbers: u64,
    processes: Vec<Option<Process>>,
    /// How far the server's clock is ahead, in µs.
    ahead: i64,
    /// Another one for each server that takes the place of another, or is started anew.
    epoch: u64,
    down_until: u64,
    hangs_until: u64,
    /// The newest time in which somebody could not reach the server.
    away: (u64, u64),
    /// What could not be given back in such a time ends with its ttl (P7).
    excused_until: u64,
    replica: Keyspace,
    /// The owner, if nobody has it as a guard or waits for it, and since when that can be held against its process.
    unwanted: Option<(Token, u64)>,
    pub(super) steps: u64,
    /// What the server ran and answered, if that is wanted.
    pub(super) told: Option<Vec<String>>,
}

/// What happens at its time. What is for a process waits while it is paused or cut off.
enum Event {
    Deed(Deed),
    Arrive(Box<Sent>),
    Reply { process: u64, flight: u64, index: usize, epoch: u64, value: keyspace::Answer },
    GiveUp { process: u64, flight: u64 },
    Reset { process: u64, flight: u64 },
    Message { process: u64, subscription: u64, text: String },
    Wake { process: u64 },
    Subscribe { process: u64 },
    AskAgain { process: u64, caller: u64 },
    Deadline { process: u64, caller: u64 },
    WorkDone { process: u64, caller: u64 },
}

/// A request on its way.
struct Sent {
    process: u64,
    manager: String,
    flight: u64,
    calls: Arc<Vec<Call>>,
    index: usize,
    words: Vec<Bytes>,
    epoch: u64,
    /// How long its reply takes, if that is not lost.
    reply_after: Option<u64>,
    /// In µs.
    given_up_at: u64,
    dated_after: u32,
}

impl<'a> Run<'a> {
    pub(super) fn new(setting: &'a Setting, server: &'a mut Server, seed: u64, defect: Option<Defect>) -> Run<'a> {
        server.state().keyspace = Keyspace::default();
        let step = setting.config.check_period + setting.config.command_timeout;
        let judge = Judge::new(setting.key.clone(), step.as_micros() as u64, setting.config.horizon.as_micros() as u64);
        Run {
            setting,
            defect,
            server,
            judge,
            chance: Chance::new(seed),
            now: 0,
            events: BTreeMap::new(),
            numbers: 0,
            processes: (0..=SLOTS).map(|_| None).collect(),
            ahead: BEGAN,
            epoch: 0,
            down_until: 0,
            hangs_until: 0,
            away: (0, 0),
            excused_until: 0,
            replica: Keyspace::default(),
            unwanted: None,
            steps: 0,
            told: None,
        }
    }

    /// Plays a plan; then nothing is done to anybody any more, all must be served, and one more who comes then, and
    /// nothing may be left.
    pub(super) fn play(&mut self, planned: &[Planned]) -> Result<(), Broken> {
        for Planned { at, deed } in planned {
            self.at(at * MS, Event::Deed(*deed));
        }
        let end = planned.last().map_or(0, |last| last.at * MS) + 1;
        while self.next_at() <= end {
            self.step()?;
        }
        self.now = end;
        // What is under way or asleep comes at last.
        for process in self.processes.iter_mut().flatten() {
            process.mishaps.clear();
            process.late_messages.clear();
        }
        let waits: u64 = self.callers().map(|caller| caller.hold + self.per_turn()).sum();
        self.rest(self.now + LONGEST + self.recovery() + waits, "of those who wait")?;
        self.at(self.now, Event::Deed(Deed::Lock { process: SLOTS, patience: None, hold: 1, fixed: false }));
        self.step()?;
        self.rest(self.now + self.recovery() + self.per_turn(), "who came last")?;
        self.leftovers()
    }

    /// One TTL and P for whoever crashed, another if those come first who died with him, and a step of grace.
    fn recovery(&self) -> u64 {
        let config = &self.setting.config;
        let step = config.check_period + config.command_timeout;
        (self.setting.ttl * 2 + config.horizon + step * 3).as_nanos() as u64
    }

    fn per_turn(&self) -> u64 {
        (self.setting.config.check_period + self.setting.config.command_timeout * 3).as_nanos() as u64
    }

    /// Goes on until nobody wants anything any more, and nothing is under way.
    fn rest(&mut self, until: u64, whom: &str) -> Result<(), Broken> {
        while self.next_at() < u64::MAX {
            if self.callers().next().is_some() && self.next_at() > until {
                let at = self.callers().map(|caller| caller.doing.name()).collect::<Vec<_>>().join(", ");
                return Err((Promise::Service, format!("{whom}, after {} ms: {at}", until / MS)));
            }
            if self.steps > MOST_STEPS {
                return Err((Promise::Service, "it does not come to rest".to_owned()));
            }
            self.step()?;
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Result<(), Broken> {
        let left: usize = self.processes.iter().flatten().map(|process| process.hand.places()).sum();
        let clock = self.server_clock();
        self.judge.leftovers(clock, &self.server.state().keyspace)?;
        if left > 0 { Err((Promise::Leftovers, format!("{left} tokens in registries"))) } else { Ok(()) }
    }

    fn callers(&self) -> impl Iterator<Item = &Caller> {
        self.processes.iter().flatten().flat_map(|process| process.callers.values())
    }

    fn next_at(&self) -> u64 {
        self.events.first_key_value().map_or(u64::MAX, |((at, _), _)| *at)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn at(&mut self, at: u64, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    fn server_clock(&self) -> u64 {
        (self.now as i64 / 1000 + self.ahead) as u64
    }

    /// The main loop's body: the next event, and then a look at who believes to hold what.
    fn step(&mut self) -> Result<(), Broken> {
        let Some(((at, _), event)) = self.events.pop_first() else { return Ok(()) };
        self.now = self.now.max(at);
        self.steps += 1;
        match event {
            Event::Deed(deed) => self.deed(deed),
            Event::Arrive(sent) => self.arrive(sent)?,
            Event::Reply { process, .. }
            | Event::GiveUp { process, .. }
            | Event::Reset { process, .. }
            | Event::Message { process, .. }
            | Event::Wake { process }
            | Event::Subscribe { process }
            | Event::AskAgain { process, .. }
            | Event::Deadline { process, .. }
            | Event::WorkDone { process, .. } => self.happen(process, event),
        }
        self.look_at_guards()?;
        self.look_at_owner()
    }

    /// P4, P7: what nobody wants is given back, in the time that a check period and two requests take.
    fn look_at_owner(&mut self) -> Result<(), Broken> {
        let unwanted = self.judge.owner(self.server_clock()).and_then(|(owner, manager)| {
            let process = self.processes.iter().flatten().find(|process| process.terms.manager == manager)?;
            let wants = |caller: &Caller| match &caller.doing {
                Doing::Holding(lease) | Doing::Releasing(lease, _) => lease.token == owner,
                Doing::Trying { .. } => true,
                _ => caller.place.as_ref().is_some_and(|place| place.token() == owner),
            };
            let since = process.troubled_until.max(process.paused_until).max(process.cut_until);
            let excepted = self.judge.is_excepted(owner) || self.judge.may_have_come_back(owner);
            let wanted = excepted || process.callers.values().any(wants);
            (!wanted).then_some((owner, since))
        });
        self.unwanted = unwanted.map(|(owner, troubled_until)| {
            let since = self.unwanted.filter(|(before, _)| *before == owner).map_or(self.now, |(_, since)| since);
            (owner, since.max(troubled_until).max(self.down_until).max(self.hangs_until).max(self.excused_until))
        });
        match self.unwanted {
            Some((owner, since)) if self.now > since + self.per_turn() => {
                Err((Promise::OneGrant, format!("{owner:?} owns the lock, which nobody wants by it any more")))
            }
            _ => Ok(()),
        }
    }

    fn look_at_guards(&self) -> Result<(), Broken> {
        for process in self.processes.iter().flatten() {
            let local = process.local(self.now);
            for caller in process.callers.values() {
                if let Doing::Holding(lease) = &caller.doing
                    && !lease.remaining(local).is_zero()
                    && !self.judge.is_excepted(lease.token)
                    && !process.misdated.contains(&lease.token)
                {
                    self.judge.held(lease.token, lease.fence)?;
                }
            }
        }
        Ok(())
    }

    // What is done to them.

    fn deed(&mut self, deed: Deed) {
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

    fn on(&mut self, slot: u8, deed: impl FnOnce(&mut Process)) {
        if let Some(process) = &mut self.processes[slot as usize] {
            deed(process);
        }
    }

    fn step_clock(&mut self, by_ms: i64) {
        self.ahead += by_ms * 1000;
        self.judge.clock_stepped(self.now / 1000, by_ms);
    }

    fn lose_data(&mut self) {
        self.judge.data_lost(self.now / 1000, &self.server.state().keyspace);
    }

    fn delete(&mut self, key: &str) {
        let clock = self.server_clock();
        let words = [b"DEL".to_vec(), key.as_bytes().to_vec()];
        self.server.run(clock, &words).expect("a key can be deleted");
        self.lose_data();
    }

    /// All connections end, and what was under way on them is lost.
    fn end_server(&mut self, pause_ms: u64) {
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

    fn begin(&mut self) -> Process {
        let number = self.number();
        let chance = Chance::new(self.chance.next());
        let process = Process::new(number, &self.setting.config, chance, self.now);
        self.at(self.now, Event::Subscribe { process: number });
        process
    }

    fn want(&mut self, process: &mut Process, deed: Deed) {
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

    fn is_reachable(&self, process: &Process) -> bool {
        self.now >= self.down_until.max(self.hangs_until).max(process.cut_until)
    }

    /// Puts a pipeline on its way, or ends it at once if there is no connection.
    fn send(&mut self, process: &mut Process, whose: Whose, calls: Arc<Vec<Call>>, resent: u32) {
        let sent = process.local(self.now);
        let flight = self.number();
        let renewal = matches!(whose, Whose::Renewal(_));
        process.link_busy |= renewal;
        let answers = calls.iter().map(|call| self.unsent(call, sent)).collect();
        process.flights.insert(flight, Flight { whose, calls: Arc::clone(&calls), answers, sent, resent });
        let is_reachable = self.is_reachable(process);
        let (epoch, server) = (self.epoch, self.server_clock());
        let clock_steps = self.judge.clock_steps();
        let connection = if renewal { &mut process.link } else { &mut process.pool };
        if connection.as_ref().is_none_or(|connection| connection.epoch != epoch) {
            // The handshake takes no time here, and tells the server's.
            let anchor = Anchor { server, sent, received: sent };
            *connection = is_reachable.then_some(Connection { epoch, anchor, clock_steps });
        }
        let Some(connection) = connection else {
            let fault = || if resent > 0 { Fault::InDoubt(Box::new(no_connection())) } else { no_connection() };
            return self.complete(process, flight, &fault);
        };
        let timeout = self.setting.config.command_timeout;
        let slack = if self.defect == Some(Defect::R5) { timeout.as_micros() as u64 * 2 } else { 0 };
        let not_after = connection.anchor.server_time_at_least(sent + timeout) + slack;
        let dated_after = connection.clock_steps;
        let give_up = process.moment(self.now, sent + timeout);
        let mishap = process.mishaps.pop_front();
        if let Some(Mishap::Delay { by } | Mishap::DelayReply { by } | Mishap::Reset { late: Some(by) }) = mishap {
            process.troubled_until = process.troubled_until.max(self.now + by * MS);
        }
        let struck = process.chance.below(calls.len() as u64) as usize;
        let mut arrives = self.now;
        let mut reply_after = Some(process.way());
        for (index, call) in calls.iter().enumerate() {
            arrives += process.way();
            let mut lost = false;
            match mishap.filter(|_| index == struck) {
                None => {}
                Some(Mishap::Lose | Mishap::Reset { late: None }) => lost = true,
                Some(Mishap::LoseReply) => reply_after = None,
                Some(Mishap::Delay { by }) => arrives += by * MS,
                Some(Mishap::DelayReply { by }) => reply_after = reply_after.map(|after| after + by * MS),
                Some(Mishap::Reset { late: Some(by) }) => (arrives, reply_after) = (arrives + by * MS, None),
            }
            if lost {
                break;
            }
            if process.flights[&flight].answers[index].is_some() {
                continue;
            }
            let words = words_of(&call.command(&process.terms, Form::default(), not_after));
            let sent = Sent {
                process: process.number,
                manager: process.terms.manager.clone(),
                flight,
                calls: Arc::clone(&calls),
                index,
                words,
                epoch,
                reply_after,
                given_up_at: (give_up + MS) / 1000,
                dated_after,
            };
            self.at(arrives, Event::Arrive(Box::new(sent)));
        }
        match mishap {
            Some(Mishap::Reset { .. }) => {
                self.at(self.now + 200_000, Event::Reset { process: process.number, flight });
            }
            _ => self.at(give_up, Event::GiveUp { process: process.number, flight }),
        }
        self.complete_if_answered(process, flight);
    }

    /// R13 and R7 left out: what is not wanted is not given back.
    fn unsent(&self, call: &Call, sent: Time) -> Option<Answer> {
        let given_back = matches!(call.verb, Verb::Release { mode: Mode::Unused, .. });
        let reply = || Reply { now: Some(u64::MAX), more: false, outcome: Outcome::Released, grants: Vec::new() };
        (given_back && self.defect == Some(Defect::R13)).then(|| Answer { reply: reply(), sent, resent: false })
    }

    fn arrive(&mut self, sent: Box<Sent>) -> Result<(), Broken> {
        let cut = self.process(sent.process).map_or(0, |process| process.cut_until);
        let held_back = self.hangs_until.max(cut);
        if sent.epoch != self.epoch || self.now < self.down_until {
            return Ok(());
        }
        if held_back > self.now {
            self.at(held_back, Event::Arrive(sent));
            return Ok(());
        }
        let clock = self.server_clock();
        let value = self.server.run(clock, &sent.words);
        let call = &sent.calls[sent.index];
        let reply = match &value {
            Ok(value) => Reply::parse(call, value).map_err(|malformed| malformed.to_string()),
            Err(error) => Err(error.clone()),
        };
        let reply = reply.map_err(|error| (Promise::BadInput, format!("{call:?}: {error}")))?;
        if let Some(told) = &mut self.told {
            let ms = self.now as f64 / MS as f64;
            let mut line = format!("{ms:>10.3} ms  {} of {}: {:?}", sent.index, sent.manager, call.verb);
            if let Some(at) = line.find(", asked: ") {
                line.replace_range(at.., " }");
            }
            told.push(format!("{line} -> {:?}", reply.outcome));
        }
        let ran = Ran {
            call,
            manager: &sent.manager,
            outcome: &reply.outcome,
            more: reply.more,
            given_up_at: sent.given_up_at,
            dated_after: sent.dated_after,
        };
        self.judge.ran(self.now / 1000, clock, &self.server.state().keyspace, &ran)?;
        for message in self.server.published() {
            let to = self.processes.iter_mut().flatten().find(|p| p.terms.channel().as_bytes() == message.channel);
            let Some(process) = to.filter(|process| process.subscribed) else { continue };
            let Some(late) = process.late_messages.pop_front().unwrap_or(Some(0)) else { continue };
            let text = String::from_utf8_lossy(&message.text).into_owned();
            let (at, subscription) = (self.now + late + process.way(), process.subscription);
            let process = process.number;
            self.at(at, Event::Message { process, subscription, text });
        }
        if let Some(after) = sent.reply_after {
            let Sent { process, flight, index, epoch, .. } = *sent;
            self.at(self.now + after, Event::Reply { process, flight, index, epoch, value });
        }
        Ok(())
    }

    fn process(&self, number: u64) -> Option<&Process> {
        self.processes.iter().flatten().find(|process| process.number == number)
    }

    // What the processes do.

    /// Something for a process, which is carried out when it gets to run.
    fn happen(&mut self, number: u64, event: Event) {
        let slot = self.processes.iter().position(|p| p.as_ref().is_some_and(|p| p.number == number));
        // Who is dead hears nothing.
        let Some(slot) = slot else { return };
        let Some(mut process) = self.processes[slot].take() else { return };
        let from_network = matches!(event, Event::Reply { .. } | Event::Message { .. });
        let not_before = process.paused_until.max(if from_network { process.cut_until } else { 0 });
        if not_before > self.now {
            self.at(not_before, event);
        } else {
            process.show(self.now);
            self.act(&mut process, event);
            self.tend(&mut process);
        }
        self.processes[slot] = Some(process);
    }

    fn act(&mut self, process: &mut Process, event: Event) {
        match event {
            Event::Reply { flight, index, epoch, value, .. } => {
                if epoch == self.epoch {
                    self.replied(process, flight, index, value);
                }
            }
            Event::GiveUp { flight, .. } => self.complete(process, flight, &no_reply),
            Event::Reset { flight, .. } => self.reset(process, flight),
            Event::Message { subscription, text, .. } => {
                if process.subscribed && process.subscription == subscription {
                    self.hear(process, &text);
                }
            }
            // One for a moment that was put off since then is none.
            Event::Wake { .. } if self.now < process.wake_at => {}
            Event::Wake { .. } => process.wake_at = u64::MAX,
            Event::Subscribe { .. } => self.subscribe(process),
            Event::AskAgain { caller, .. } => self.ask(process, caller),
            Event::Deadline { caller, .. } => self.leave_at_deadline(process, caller),
            Event::WorkDone { caller, .. } => {
                let Some(Caller { doing: Doing::Holding(lease), .. }) = process.callers.get(&caller) else { return };
                let lease = Arc::clone(lease);
                match process.hand.end(&lease) {
                    Some(call) => {
                        self.become_(process, caller, Doing::Releasing(lease, process.local(self.now)));
                        self.send(process, Whose::Caller(caller), Arc::new(vec![call]), 0);
                    }
                    None => self.go(process, caller),
                }
            }
            Event::Deed(_) | Event::Arrive(_) => {}
        }
    }

    fn hear(&mut self, process: &mut Process, text: &str) {
        // The first word is the token.
        let token = text.split(' ').next().and_then(Token::parse);
        if process.newest_after < self.judge.clock_steps() {
            process.misdated.extend(token);
        }
        if self.defect == Some(Defect::R8) { process.hand.hear_at_once(text) } else { process.hand.hear(text) }
    }

    fn subscribe(&mut self, process: &mut Process) {
        if process.subscribed {
            return;
        }
        if !self.is_reachable(process) {
            let again = self.now + self.setting.config.back_off.as_nanos() as u64;
            return self.at(again, Event::Subscribe { process: process.number });
        }
        process.subscribed = true;
        process.subscription = self.number();
        process.hand.subscribed();
    }

    fn replied(&mut self, process: &mut Process, flight: u64, index: usize, value: keyspace::Answer) {
        let (local, clock_steps) = (process.local(self.now), self.judge.clock_steps());
        let Some(under_way) = process.flights.get_mut(&flight) else { return };
        let call = &under_way.calls[index];
        let parsed = value.ok().and_then(|value| Reply::parse(call, &value).ok());
        let mut reply = parsed.expect("it was read when it was sent");
        let renewal = matches!(under_way.whose, Whose::Renewal(_));
        if let Some(server) = reply.now {
            let anchor = Anchor { server, sent: under_way.sent, received: local };
            let connection = if renewal { &mut process.link } else { &mut process.pool };
            if let Some(connection) = connection {
                (connection.anchor, connection.clock_steps) = (anchor, clock_steps);
            }
            *process.newest.lock() = Some(anchor);
            process.newest_after = clock_steps;
        }
        if renewal && self.defect == Some(Defect::R7) && matches!(call.verb, Verb::Release { .. }) {
            reply.now = Some(u64::MAX);
        }
        under_way.answers[index] = Some(Answer { reply, sent: under_way.sent, resent: under_way.resent > 0 });
        self.complete_if_answered(process, flight);
    }

    /// The connection has ended. A caller's call is sent again on another, twice at most.
    fn reset(&mut self, process: &mut Process, flight: u64) {
        let Some(under_way) = process.flights.get(&flight) else { return };
        // Not after it was asleep: a call and what is sent again for it has two command timeouts.
        if let Whose::Caller(caller) = under_way.whose
            && under_way.resent < 2
            && process.local(self.now) < under_way.sent + self.setting.config.command_timeout * 2
        {
            let (calls, resent) = (Arc::clone(&under_way.calls), under_way.resent + 1);
            process.flights.remove(&flight);
            process.pool = None;
            return self.send(process, Whose::Caller(caller), calls, resent);
        }
        self.complete(process, flight, &no_reply);
    }

    fn complete_if_answered(&mut self, process: &mut Process, flight: u64) {
        if process.flights.get(&flight).is_some_and(|flight| flight.answers.iter().all(Option::is_some)) {
            self.complete(process, flight, &no_reply);
        }
    }

    /// Whoever sent it goes on; calls without an answer have this fault.
    fn complete(&mut self, process: &mut Process, flight: u64, fault: &dyn Fn() -> Fault) {
        let Some(Flight { whose, calls, answers, .. }) = process.flights.remove(&flight) else { return };
        let unanswered = answers.iter().any(Option::is_none);
        let mut answers: Vec<_> = answers.into_iter().map(|answer| answer.ok_or_else(fault)).collect();
        match whose {
            Whose::Renewal(tasks) => {
                if unanswered {
                    process.link = None;
                }
                process.link_busy = false;
                process.hand.settle(tasks, &calls, answers);
            }
            Whose::Caller(caller) => {
                if unanswered {
                    process.pool = None;
                }
                if let Some(answer) = answers.pop() {
                    self.answered(process, caller, calls, answer);
                }
            }
        }
    }

    /// A caller has the answer to its call.
    fn answered(&mut self, process: &mut Process, id: u64, calls: Arc<Vec<Call>>, answer: Result<Answer, Fault>) {
        let Some(Caller { request, place, doing, until, patient_until, .. }) = process.callers.get_mut(&id) else {
            return;
        };
        let (call, hand) = (&calls[0], &process.hand);
        match (doing, place) {
            (Doing::Asking, Some(place)) => match hand.asked(place, call, answer) {
                Next::Wait if self.now >= *until => {
                    self.become_(process, id, Doing::Waiting);
                    self.leave_at_deadline(process, id);
                }
                Next::Wait => self.become_(process, id, Doing::Waiting),
                Next::AskAgain => self.ask(process, id),
                Next::AskLater if self.now < (*until).min(*patient_until) => {
                    let pause = self.setting.config.back_off.as_nanos() as u64 / 4;
                    self.at(self.now + pause, Event::AskAgain { process: process.number, caller: id });
                }
                Next::AskLater | Next::Fail => self.go(process, id),
            },
            (Doing::Leaving, Some(place)) => {
                let lease = hand.left(place, Some((call, answer)));
                self.hold_or_go(process, id, lease);
            }
            (Doing::Trying { in_doubt }, _) => match hand.tried(request, call, in_doubt, answer) {
                Some(lease) => self.hold_or_go(process, id, lease),
                None => self.send(process, Whose::Caller(id), calls, 0),
            },
            (Doing::Releasing(lease, started), _) => {
                hand.ended(lease, call, *started, answer);
                self.go(process, id);
            }
            _ => {}
        }
    }

    fn ask(&mut self, process: &mut Process, id: u64) {
        let Some(Caller { place: Some(place), .. }) = process.callers.get(&id) else { return };
        let now = process.local(self.now);
        match process.hand.ask(place, now) {
            Some(call) => self.send(process, Whose::Caller(id), Arc::new(vec![call]), 0),
            None => self.become_(process, id, Doing::Waiting),
        }
    }

    fn leave_at_deadline(&mut self, process: &mut Process, id: u64) {
        let Some(Caller { place: Some(place), doing: Doing::Waiting, .. }) = process.callers.get(&id) else { return };
        match process.hand.leave(place) {
            Some(call) => {
                self.become_(process, id, Doing::Leaving);
                self.send(process, Whose::Caller(id), Arc::new(vec![call]), 0);
            }
            None => {
                let lease = process.hand.left(place, None);
                self.hold_or_go(process, id, lease);
            }
        }
    }

    fn hold_or_go(&mut self, process: &mut Process, id: u64, lease: Option<Arc<Lease>>) {
        let Some(lease) = lease else { return self.go(process, id) };
        let Some(caller) = process.callers.get_mut(&id) else { return };
        caller.place = None;
        caller.doing = Doing::Holding(lease);
        let done = self.now + caller.hold;
        self.at(done, Event::WorkDone { process: process.number, caller: id });
    }

    fn become_(&self, process: &mut Process, id: u64, doing: Doing) {
        if let Some(caller) = process.callers.get_mut(&id) {
            caller.doing = doing;
        }
    }

    /// It is dropped, with what it has.
    fn go(&self, process: &mut Process, id: u64) {
        process.callers.remove(&id);
    }

    /// Whoever was woken looks, and the renewal thread sends what is due.
    fn tend(&mut self, process: &mut Process) {
        let waiting = |caller: &Caller| matches!(caller.doing, Doing::Waiting);
        let ids: Vec<u64> = process.callers.iter().filter(|(_, c)| waiting(c)).map(|(id, _)| *id).collect();
        for id in ids {
            let place = process.callers.get(&id).and_then(|caller| caller.place.as_ref());
            if let Some(lease) = place.and_then(|place| process.hand.claim(place)) {
                self.hold_or_go(process, id, Some(lease));
            }
        }
        while !process.link_busy {
            let (tasks, calls) = process.hand.collect();
            if calls.is_empty() {
                let due = process.hand.next_due();
                if due < Time::NEVER {
                    let at = process.moment(self.now, due);
                    if at < process.wake_at {
                        process.wake_at = at;
                        self.at(at, Event::Wake { process: process.number });
                    }
                }
                return;
            }
            self.send(process, Whose::Renewal(tasks), Arc::new(calls), 0);
        }
    }
}

impl Doing {
    fn name(&self) -> &'static str {
        match self {
            Doing::Asking => "asking",
            Doing::Waiting => "waiting",
            Doing::Leaving => "leaving",
            Doing::Trying { .. } => "trying",
            Doing::Holding(_) => "holding",
            Doing::Releasing(..) => "releasing",
        }
    }
}
