//! One run: the actions of a plan and what follows from them, in the order of their times.

mod actions;
mod callers;
mod lane;
mod network;
mod server;
mod time_watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::breach::Breach;
use super::checker::Checker;
use super::defect::Defect;
use super::lane::ReplyInFlight;
use super::model::Promise;
use super::plan::{Action, LeaseKind, NameKey, PlannedAction, Rng, SLOTS};
use super::process::{Outage, SimCaller, SimProcess};
use super::sim_setting::SimSetting;
use crate::script::{Call, Token, seed_ids};
use crate::store::clock::Time;
use crate::store::memory::keyspace::{Bytes, Keyspace};
use crate::store::memory::server::ScriptServer;
use time_watch::TimeWatch;

const MS: u64 = 1_000_000;
/// The time of the server's clock at the start, in µs.
const CLOCK_AT_START: i64 = 1_700_000_000_000_000;
/// No action lasts longer, in ns.
const LONGEST_ACTION: u64 = 9_100 * MS;
/// A run that has not come to rest after this many events never will.
const MAX_STEPS: u64 = 100_000;

/// Times are in ns since the start of the run, by no host's clock.
pub(super) struct Run<'a> {
    setting: &'a SimSetting,
    defect: Option<Defect>,
    server: &'a mut ScriptServer,
    checker: Checker,
    rng: Rng,
    now: u64,
    events: BTreeMap<(u64, u64), SimEvent>,
    /// The last number that was given to an event, flight, caller, process or subscription.
    numbers: u64,
    processes: Vec<Option<SimProcess>>,
    /// How far the server's clock is ahead of the run's time, in µs.
    clock_ahead: i64,
    /// It counts the servers: a restart or a failover starts the next epoch.
    epoch: u64,
    down_until: u64,
    hangs_until: u64,
    outage: Outage,
    replica: Keyspace,
    /// Until when crashed processes are cut off.
    cuts_of_the_dead: BTreeMap<u64, u64>,
    /// When the lanes of crashed processes are reset, by process and connection.
    resets_of_the_dead: BTreeMap<(u64, u64), u64>,
    /// The digests of the scripts that the server knows. `None`: all.
    known_scripts: Option<BTreeSet<Bytes>>,
    /// When each waiter's token was sent first.
    first_sent: HashMap<Token, u64>,
    watch: TimeWatch,
    pub(super) steps: u64,
    /// How many requests the server has run.
    pub(super) requests: u64,
    /// How many guards got a kept lock.
    pub(super) kept_turns: u64,
    /// How many messages said that somebody waits.
    pub(super) recalls: u64,
    /// The number of requests after which the server loses this key.
    key_loss: Option<(u64, NameKey)>,
    /// The server's requests and answers, a line for each request, if somebody wants it.
    pub(super) transcript: Option<Vec<String>>,
}

/// Something that happens at its time. An event for a process waits while that is paused or cut
/// off.
enum SimEvent {
    Action(Action),
    Arrive(Box<RequestInFlight>),
    Reply(Box<ReplyInFlight>),
    TimeOut {
        process: u64,
        flight: u64,
    },
    Reset {
        process: u64,
        flight: u64,
    },
    LaneClosed {
        process: u64,
        lane: u64,
    },
    Message {
        process: u64,
        subscription: u64,
        text: String,
    },
    Wake {
        process: u64,
    },
    Subscribe {
        process: u64,
    },
    /// The process has found that its subscription has ended.
    SubscriptionEnded {
        process: u64,
        subscription: u64,
    },
    /// It sends a PING on its subscription.
    Ping {
        process: u64,
    },
    /// The reply to the PING that was sent then.
    Proven {
        process: u64,
        subscription: u64,
        sent: Time,
    },
    Retry {
        process: u64,
        caller: u64,
    },
    Deadline {
        process: u64,
        caller: u64,
    },
    WorkDone {
        process: u64,
        caller: u64,
    },
}

impl SimEvent {
    /// The process that it is for. `None`: it is for the server, or for the process in a slot.
    fn process(&self) -> Option<u64> {
        match self {
            SimEvent::Action(_) | SimEvent::Arrive(_) => None,
            SimEvent::Reply(reply) => Some(reply.process),
            SimEvent::TimeOut { process, .. }
            | SimEvent::Reset { process, .. }
            | SimEvent::LaneClosed { process, .. }
            | SimEvent::Message { process, .. }
            | SimEvent::Wake { process }
            | SimEvent::Subscribe { process }
            | SimEvent::SubscriptionEnded { process, .. }
            | SimEvent::Ping { process }
            | SimEvent::Proven { process, .. }
            | SimEvent::Retry { process, .. }
            | SimEvent::Deadline { process, .. }
            | SimEvent::WorkDone { process, .. } => Some(*process),
        }
    }
}

/// A request on its way to the server.
struct RequestInFlight {
    process: u64,
    manager: String,
    /// The flight, or the slot of the lane.
    flight: u64,
    /// The lane's connection. `None`: the link.
    lane: Option<u64>,
    /// It orders two requests that arrive at the same time.
    order: u64,
    calls: Arc<Vec<Call>>,
    index: usize,
    words: Vec<Bytes>,
    /// The server compiles the script if it does not know it.
    by_source: bool,
    epoch: u64,
    sent_at: u64,
    /// How long its reply takes. `None`: the reply is lost.
    reply_after: Option<u64>,
    /// R5 (dated requests).
    not_after: u64,
    /// In µs.
    times_out_at: u64,
    dated_after: u32,
    /// How long ago its token was sent first.
    token_age: u64,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        setting: &'a SimSetting,
        server: &'a mut ScriptServer,
        seed: u64,
        defect: Option<Defect>,
    ) -> Run<'a> {
        seed_ids(seed);
        server.state().keyspace = Keyspace::default();
        let mut checker = Checker::new(setting);
        checker.checks_left = defect.is_none_or(Defect::checks_left);
        Run {
            setting,
            defect,
            server,
            checker,
            rng: Rng::new(seed),
            now: 0,
            events: BTreeMap::new(),
            numbers: 0,
            processes: (0..=SLOTS).map(|_| None).collect(),
            clock_ahead: CLOCK_AT_START,
            epoch: 0,
            down_until: 0,
            hangs_until: 0,
            outage: Outage::default(),
            replica: Keyspace::default(),
            cuts_of_the_dead: BTreeMap::new(),
            resets_of_the_dead: BTreeMap::new(),
            known_scripts: None,
            first_sent: HashMap::new(),
            watch: TimeWatch::default(),
            steps: 0,
            requests: 0,
            kept_turns: 0,
            recalls: 0,
            key_loss: None,
            transcript: None,
        }
    }

    /// Plays a plan. After it no more faults happen: the server must serve all callers, then one
    /// more that comes last, and nothing may be left.
    pub(super) fn play(&mut self, planned: &[PlannedAction]) -> Result<(), Breach> {
        for PlannedAction { at, action } in planned {
            self.at(at * MS, SimEvent::Action(*action));
        }
        let end = planned.last().map_or(0, |last| last.at * MS) + 1;
        while self.next_at() <= end {
            self.step()?;
        }
        self.now = end;
        // From here every message and request gets through.
        for process in self.processes.iter_mut().flatten() {
            process.network_faults.clear();
            process.late_messages.clear();
        }
        let rest_by = self.now + LONGEST_ACTION + self.recovery() + self.time_for_all_callers();
        self.rest(rest_by, "waiters of the plan")?;
        let last_caller = Action::Lock {
            process: SLOTS,
            timeout: None,
            hold: 1,
            lease_kind: LeaseKind::Renewed,
            permits: self.setting.kind.permits(),
        };
        self.at(self.now, SimEvent::Action(last_caller));
        self.step()?;
        let rest_by = self.now + self.recovery() + self.setting.per_waiter();
        self.rest(rest_by, "the caller that came last")?;
        self.check_leftovers()
    }

    /// How long all callers may take one after the other. Callers whose processes are paused have
    /// yet to start, and count too.
    fn time_for_all_callers(&self) -> u64 {
        let to_come = self.events.values().filter_map(|event| match event {
            SimEvent::Action(Action::Lock { hold, .. } | Action::TryLock { hold, .. }) => {
                Some(hold * MS)
            }
            _ => None,
        });
        let holds = self.callers().map(|caller| caller.hold).chain(to_come);
        let hold_at_least = self.setting.bound.as_nanos() as u64;
        holds
            .map(|hold| hold + hold_at_least + self.setting.per_waiter())
            .sum()
    }

    /// A ttl and P for a crashed process, another ttl if waiters that died with it come first, and
    /// a step of grace.
    fn recovery(&self) -> u64 {
        let config = &self.setting.config;
        let step = config.check_period + config.command_timeout;
        (self.setting.ttl * 2 + config.horizon + step * 3).as_nanos() as u64
    }

    /// Goes on until no caller is left and nothing is under way.
    fn rest(&mut self, until: u64, who: &str) -> Result<(), Breach> {
        while self.next_at() < u64::MAX {
            if self.callers().next().is_some() && self.next_at() > until {
                let states: Vec<&str> = self.callers().map(|caller| caller.state.name()).collect();
                let said = format!(
                    "{who} are not served after {} ms: {}",
                    until / MS,
                    states.join(", ")
                );
                return Err(Breach::new(Promise::Service, said));
            }
            if self.steps > MAX_STEPS {
                return Err(Breach::new(
                    Promise::Service,
                    "the run does not come to rest",
                ));
            }
            self.step()?;
        }
        Ok(())
    }

    fn check_leftovers(&mut self) -> Result<(), Breach> {
        let left: usize = self
            .processes
            .iter()
            .flatten()
            .map(|process| process.engine.waiters())
            .sum();
        self.check_losses_counted()?;
        let clock = self.server_clock();
        self.checker
            .check_leftovers(clock, &self.server.state().keyspace)?;
        if left > 0 {
            Err(Breach::new(
                Promise::Leftovers,
                format!("{left} tokens are left in registries"),
            ))
        } else {
            Ok(())
        }
    }

    fn callers(&self) -> impl Iterator<Item = &SimCaller> {
        self.processes
            .iter()
            .flatten()
            .flat_map(|process| process.callers.values())
    }

    fn next_at(&self) -> u64 {
        self.events
            .first_key_value()
            .map_or(u64::MAX, |((at, _), _)| *at)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn at(&mut self, at: u64, event: SimEvent) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    fn server_clock(&self) -> u64 {
        (self.now as i64 / 1000 + self.clock_ahead) as u64
    }

    /// One turn of THE MAIN LOOP: the next event, and then the checks of time.
    fn step(&mut self) -> Result<(), Breach> {
        let Some(((at, _), event)) = self.events.pop_first() else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.steps += 1;
        match event {
            SimEvent::Action(action) => self.perform(action),
            SimEvent::Arrive(request) => self.arrive(request)?,
            event => {
                if let Some(process) = event.process() {
                    self.deliver(process, event);
                }
            }
        }
        self.check_times()
    }
}
