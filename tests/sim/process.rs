//! A virtual process: an engine by hand, its callers, and its side of the network.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::plan::{self, Chance, Mishap};
use super::shown_clock::shown_clock;
use crate::config::Config;
use crate::engine::{Doubt, Lease, QueuedWaiter, Request, SteppedEngine, Tasks};
use crate::error::Step;
use crate::key::Key;
use crate::script::{Call, CallerId, Token};
use crate::store::clock::{Clock, Time};
use crate::store::{Anchor, Answer, CallResult, ChannelEvent, Deadlines, Link, Store, StoreFault};

pub(super) struct Process {
    pub(super) number: u64,
    pub(super) engine: SteppedEngine,
    pub(super) caller_id: Arc<CallerId>,
    shown: Arc<AtomicU64>,
    /// Its clock showed this at the start of the run, and runs by so many ppm too fast.
    boot: u64,
    ppm: i64,
    /// The newest anchor of all connections, for the dates of messages.
    pub(super) newest: Arc<Mutex<Option<Anchor>>>,
    /// How many steps the server's clock had made then.
    pub(super) newest_after: u32,
    pub(super) pool: Option<Connection>,
    pub(super) link: Option<Connection>,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) callers: BTreeMap<u64, Caller>,
    /// When the check was sent whose answer came last, by its clock, and when the server ran it.
    pub(super) checked: (Time, u64),
    /// The renewal thread waits for the answers to a pipeline.
    pub(super) link_busy: bool,
    /// When it is to be looked at next, whatever comes.
    pub(super) wake_at: u64,
    pub(super) paused_until: u64,
    pub(super) cut_until: u64,
    pub(super) deaf_until: u64,
    pub(super) away: Away,
    /// What a mishap holds up has come through by then.
    pub(super) troubled_until: u64,
    /// What came of it is known by then: the request that it struck is given up.
    pub(super) mishap_until: u64,
    pub(super) subscribed: bool,
    /// Each subscription has its number: what was under way to an earlier one is lost.
    pub(super) subscription: u64,
    pub(super) mishaps: VecDeque<Mishap>,
    /// `None`: the message is lost.
    pub(super) late_messages: VecDeque<Option<u64>>,
    /// Tokens whose grant was dated by an anchor from before a step of the clock.
    pub(super) misdated: Vec<Token>,
    pub(super) chance: Chance,
}

/// The newest time in which the server could not be reached.
#[derive(Clone, Copy, Default)]
pub(super) struct Away {
    began: u64,
    ended: u64,
    /// What could not be given back in a long one ends with its ttl (P7).
    pub(super) excused_until: u64,
}

impl Away {
    pub(super) fn lasts(&mut self, now: u64, until: u64, ttl: u64, turn: u64) {
        if now > self.ended + ttl / 6 {
            self.began = now;
        }
        self.ended = self.ended.max(until);
        if self.ended - self.began > ttl / 2 {
            self.excused_until = self.ended + ttl + turn;
        }
    }
}

/// A connection to the server of this epoch.
pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) anchor: Anchor,
    pub(super) clock_steps: u32,
}

/// A pipeline under way.
pub(super) struct Flight {
    pub(super) whose: Whose,
    pub(super) calls: Arc<Vec<Call>>,
    pub(super) answers: Vec<Option<Answer>>,
    pub(super) sent: Time,
    pub(super) resent: Resent,
    /// The largest bound that was sent with its calls (R7).
    pub(super) not_after: u64,
}

/// What was sent before on connections that ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Resent {
    pub(super) times: u32,
    pub(super) not_after: u64,
}

pub(super) enum Whose {
    Renewal(Tasks),
    Caller(u64),
}

/// A thread that wants the lock once.
pub(super) struct Caller {
    pub(super) request: Arc<Request>,
    pub(super) terms: plan::Terms,
    pub(super) place: Option<QueuedWaiter>,
    pub(super) doing: Doing,
    /// Since when it does that.
    pub(super) since: u64,
    /// When it stops to wait, and when it stops to ask in vain.
    pub(super) until: u64,
    pub(super) patient_until: u64,
    pub(super) hold: u64,
    /// When its place in the queue went with data that the server lost, if it has no other yet.
    pub(super) lost: Option<u64>,
    /// When it must let go, whatever its renewals say.
    pub(super) ends_at: u64,
}

/// | doing     | what comes next                                    |
/// |-----------|----------------------------------------------------|
/// | Asking    | the answer to its acquire, or a pause and another   |
/// | Waiting   | its grant, or its deadline                          |
/// | Leaving   | the answer to its release, and then the lock or not |
/// | Trying    | the answer to an acquire that does not wait         |
/// | Holding   | the end of its work                                 |
/// | Releasing | the answer to its release                           |
/// | Forcing   | the answer to its release of another's lock         |
/// | Renewing  | the answer to its renewal of another's guard        |
/// | Downgrading | the same, to its downgrade                        |
pub(super) enum Doing {
    Asking,
    Waiting,
    Leaving,
    Trying { token: Token, doubt: Doubt },
    Holding(Arc<Lease>),
    Releasing(Arc<Lease>, Time),
    Forcing,
    Renewing(Arc<Lease>),
    Downgrading(Arc<Lease>, Time),
}

impl Process {
    pub(super) fn new(
        number: u64,
        config: &Config,
        mut chance: Chance,
        now: u64,
        away: Away,
    ) -> Process {
        let shown = Arc::new(AtomicU64::new(0));
        let newest = Arc::default();
        let (step, horizon) = (config.check_period + config.command_timeout, config.horizon);
        let caller_id = Arc::new(CallerId::new(&config.prefix, step, horizon));
        let wire = Wire {
            clock: shown_clock(Arc::clone(&shown)),
            newest: Arc::clone(&newest),
        };
        let boot = 1_000_000_000 * (1 + chance.below(1_000_000));
        // Two clocks run apart by at most 500 ppm.
        let ppm = chance.below(501) as i64 - 250;
        let mut process = Process {
            number,
            engine: SteppedEngine::new(config.clone(), Box::new(wire), Arc::clone(&caller_id)),
            caller_id,
            shown,
            boot,
            ppm,
            newest,
            newest_after: 0,
            pool: None,
            link: None,
            flights: BTreeMap::new(),
            callers: BTreeMap::new(),
            checked: (Time::from_nanos(0), 0),
            link_busy: false,
            wake_at: u64::MAX,
            paused_until: 0,
            cut_until: 0,
            deaf_until: 0,
            away,
            troubled_until: 0,
            mishap_until: 0,
            subscribed: false,
            subscription: 0,
            mishaps: VecDeque::new(),
            late_messages: VecDeque::new(),
            misdated: Vec::new(),
            chance,
        };
        process.show(now);
        process
    }

    /// Its clock's time at a moment of the run, in ns.
    pub(super) fn local(&self, now: u64) -> Time {
        let drift = now as i128 * i128::from(self.ppm) / 1_000_000;
        Time::from_nanos((i128::from(self.boot + now) + drift) as u64)
    }

    /// A moment of the run at which its clock shows at least this.
    pub(super) fn moment(&self, now: u64, local: Time) -> u64 {
        let left = (local - self.local(now)).as_nanos() as u64;
        now.saturating_add(left).saturating_add(left / 1000 + 1)
    }

    /// Until when something holds it up.
    pub(super) fn trouble(&self) -> u64 {
        self.troubled_until
            .max(self.mishap_until)
            .max(self.paused_until)
            .max(self.cut_until)
    }

    pub(super) fn show(&mut self, now: u64) {
        self.shown
            .store(self.local(now).as_nanos(), Ordering::Relaxed);
    }

    /// For a way through the network, in ns.
    pub(super) fn way(&mut self) -> u64 {
        50_000 + self.chance.below(400_000)
    }
}

/// What the engine has in the place of connections: none that is free, so that what it does not do by way of the
/// simulator goes to its renewal thread.
pub(super) struct Wire {
    pub(super) clock: Clock,
    pub(super) newest: Arc<Mutex<Option<Anchor>>>,
}

impl Store for Wire {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn run(&self, calls: &[Call], _deadlines: Deadlines) -> Vec<CallResult> {
        calls
            .iter()
            .map(|_| CallResult::not_sent(StoreFault::NotReady))
            .collect()
    }

    fn link(&self, _on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(Unused)
    }

    fn listen(
        &self,
        _channel: &str,
        _ping_every: Duration,
        _on_event: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        Err(StoreFault::NotReady)
    }

    fn poke(&self, _channel: &str) {}

    fn scan(&self, _cursor: u64, _pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        Err(StoreFault::NotReady)
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        *self.newest.lock()
    }

    fn connects(&self) -> u64 {
        0
    }

    fn requests(&self) -> u64 {
        0
    }
}

/// The simulator runs the renewal thread's pipelines itself.
struct Unused;

impl Link for Unused {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        calls
            .iter()
            .map(|_| CallResult::not_sent(StoreFault::NotReady))
            .collect()
    }
}

pub(super) fn no_connection() -> StoreFault {
    StoreFault::unavailable(Step::Connect, "the server cannot be reached")
}

pub(super) fn no_reply() -> StoreFault {
    StoreFault::unavailable(Step::Reply, "no reply in time")
}
