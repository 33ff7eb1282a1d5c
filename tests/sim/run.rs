//! One run: the deeds of a plan and what follows from them, in the order of their time.

mod callers;
mod deeds;
mod network;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::defect::Defect;
use super::judge::{Broken, Judge};
use super::model::Promise;
use super::plan::{Chance, Deed, Planned, SLOTS, Terms};
use super::process::{Away, Caller, Doing, Process};
use super::simulation::Setting;
use crate::script::{Call, Token};
use crate::store::memory::keyspace::{self, Bytes, Keyspace};
use crate::store::memory::server::Server;
use watch::Watch;

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
    away: Away,
    replica: Keyspace,
    /// When each token of a waiter was sent first.
    first_sent: HashMap<Token, u64>,
    watch: Watch,
    pub(super) steps: u64,
    /// What the server ran and answered, if that is wanted.
    pub(super) told: Option<Vec<String>>,
}

/// What happens at its time. What is for a process waits while it is paused or cut off.
enum Event {
    Deed(Deed),
    Arrive(Box<Sent>),
    Reply(Box<Replied>),
    GiveUp {
        process: u64,
        flight: u64,
    },
    Reset {
        process: u64,
        flight: u64,
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
    AskAgain {
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

/// A reply on its way.
struct Replied {
    process: u64,
    flight: u64,
    index: usize,
    epoch: u64,
    /// When the server answered, and how many steps its clock had made then.
    ran_at: u64,
    clock_steps: u32,
    value: keyspace::CommandResult,
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
    sent_at: u64,
    /// How long its reply takes, if that is not lost.
    reply_after: Option<u64>,
    /// In µs.
    given_up_at: u64,
    dated_after: u32,
    /// Since its token was sent first.
    token_age: u64,
    /// It is the renewal thread's.
    by_renewal: bool,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        setting: &'a Setting,
        server: &'a mut Server,
        seed: u64,
        defect: Option<Defect>,
    ) -> Run<'a> {
        server.state().keyspace = Keyspace::default();
        let judge = Judge::new(setting.key.clone(), setting.kind, &setting.config);
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
            away: Away::default(),
            replica: Keyspace::default(),
            first_sent: HashMap::new(),
            watch: Watch::default(),
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
        // So do those who have yet to come, since their processes are stopped.
        let to_come = self.events.values().filter_map(|event| match event {
            Event::Deed(Deed::Lock { hold, .. } | Deed::TryLock { hold, .. }) => Some(hold * MS),
            _ => None,
        });
        let holds = self.callers().map(|caller| caller.hold).chain(to_come);
        let waits: u64 = holds
            .map(|hold| hold + self.setting.moment.as_nanos() as u64 + self.per_turn())
            .sum();
        self.rest(
            self.now + LONGEST + self.recovery() + waits,
            "of those who wait",
        )?;
        let (terms, permits) = (Terms::Renewed, self.setting.kind.permits());
        self.at(
            self.now,
            Event::Deed(Deed::Lock {
                process: SLOTS,
                patience: None,
                hold: 1,
                terms,
                permits,
            }),
        );
        self.step()?;
        self.rest(
            self.now + self.recovery() + self.per_turn(),
            "who came last",
        )?;
        self.leftovers()
    }

    /// One TTL and P for whoever crashed, another if those come first who died with him, and a step of grace.
    fn recovery(&self) -> u64 {
        let config = &self.setting.config;
        let step = config.check_period + config.command_timeout;
        (self.setting.ttl * 2 + config.horizon + step * 3).as_nanos() as u64
    }

    fn per_turn(&self) -> u64 {
        (self.setting.config.check_period + self.setting.config.command_timeout * 3).as_nanos()
            as u64
    }

    /// Goes on until nobody wants anything any more, and nothing is under way.
    fn rest(&mut self, until: u64, whom: &str) -> Result<(), Broken> {
        while self.next_at() < u64::MAX {
            if self.callers().next().is_some() && self.next_at() > until {
                let at = self
                    .callers()
                    .map(|caller| caller.doing.name())
                    .collect::<Vec<_>>()
                    .join(", ");
                return Err((
                    Promise::Service,
                    format!("{whom}, after {} ms: {at}", until / MS),
                ));
            }
            if self.steps > MOST_STEPS {
                return Err((Promise::Service, "it does not come to rest".to_owned()));
            }
            self.step()?;
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Result<(), Broken> {
        let left: usize = self
            .processes
            .iter()
            .flatten()
            .map(|process| process.engine.waiters())
            .sum();
        let clock = self.server_clock();
        self.judge.leftovers(clock, &self.server.state().keyspace)?;
        if left > 0 {
            Err((Promise::Leftovers, format!("{left} tokens in registries")))
        } else {
            Ok(())
        }
    }

    fn callers(&self) -> impl Iterator<Item = &Caller> {
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

    fn at(&mut self, at: u64, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    fn server_clock(&self) -> u64 {
        (self.now as i64 / 1000 + self.ahead) as u64
    }

    /// The main loop's body: the next event, and then a look at who believes to hold what.
    fn step(&mut self) -> Result<(), Broken> {
        let Some(((at, _), event)) = self.events.pop_first() else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.steps += 1;
        match event {
            Event::Deed(deed) => self.deed(deed),
            Event::Arrive(sent) => self.arrive(sent)?,
            Event::Reply(ref reply) => self.happen(reply.process, event),
            Event::GiveUp { process, .. }
            | Event::Reset { process, .. }
            | Event::Message { process, .. }
            | Event::Wake { process }
            | Event::Subscribe { process }
            | Event::AskAgain { process, .. }
            | Event::Deadline { process, .. }
            | Event::WorkDone { process, .. } => self.happen(process, event),
        }
        self.watch()
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
            Doing::Forcing => "forcing",
            Doing::Renewing(_) => "renewing",
            Doing::Downgrading(..) => "downgrading",
        }
    }
}
