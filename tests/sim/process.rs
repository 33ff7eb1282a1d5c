//! A virtual process: an engine without its threads, its callers, and its side of the network.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::lane::{SimConnection, SimLane};
use super::plan::{LeaseKind, NetworkFault, Rng};
use super::shown_clock::shown_clock;
use crate::config::Config;
use crate::engine::{Doubt, HeldLease, QueuedWaiter, Request, Tasks};
use crate::error::Step;
use crate::key::Key;
use crate::local::{LinePlace, SteppedManager};
use crate::script::{Call, CallerId, Token};
use crate::stats::Traffic;
use crate::store::clock::{Clock, Time};
use crate::store::{
    Anchor, Answer, CallResult, Deadlines, Leave, Link, OnResult, Store, StoreFault, Troubles,
};

/// Times are in ns of the run, unless they are of the type [`Time`]: those are by its own clock.
pub(super) struct SimProcess {
    pub(super) number: u64,
    pub(super) engine: SteppedManager,
    pub(super) caller_id: Arc<CallerId>,
    /// The time that its clock shows the engine.
    clock_ns: Arc<AtomicU64>,
    /// The time that its clock showed at the start of the run.
    boot: u64,
    /// The clock runs too fast by this.
    ppm: i64,
    /// The newest anchor of all connections. It dates messages.
    pub(super) newest: Arc<Mutex<Option<Anchor>>>,
    pub(super) unread: Arc<UnreadReplies>,
    /// What the engine sends by itself, on the lane of its callers.
    pub(super) outbox: Arc<Outbox>,
    pub(super) troubles: Arc<Troubles>,
    /// When it last had trouble with its server.
    pub(super) trouble_seen_at: u64,
    /// How many steps the server's clock had made at the newest anchor.
    pub(super) newest_after: u32,
    /// The connection of all callers.
    pub(super) lane: SimLane,
    pub(super) link: Option<SimConnection>,
    pub(super) flights: BTreeMap<u64, SimFlight>,
    pub(super) callers: BTreeMap<u64, SimCaller>,
    pub(super) last_check: LastCheck,
    /// The renewal thread waits for the replies to a pipeline.
    pub(super) link_busy: bool,
    /// When its threads run next, even if nothing arrives.
    pub(super) wake_at: u64,
    pub(super) paused_until: u64,
    pub(super) cut_until: u64,
    pub(super) inbound_lost_until: u64,
    /// No message arrives from then on, and until then.
    pub(super) deaf_since: u64,
    pub(super) deaf_until: u64,
    pub(super) outage: Outage,
    /// By then everything has arrived that a network fault delays.
    pub(super) troubled_until: u64,
    /// By then the process knows the outcome of a network fault: the request that it hit has timed
    /// out.
    pub(super) fault_known_by: u64,
    pub(super) subscribed: bool,
    /// The number of its subscription. A message on its way to an earlier one is lost.
    pub(super) subscription: u64,
    /// When its thread began to wait for the next message.
    pub(super) listens_since: Time,
    /// When the subscription is to be proven alive next.
    pub(super) ping_at: Option<u64>,
    pub(super) network_faults: VecDeque<NetworkFault>,
    /// How late the next messages come. `None`: the message is lost.
    pub(super) late_messages: VecDeque<Option<u64>>,
    /// Tokens whose grant was dated by an anchor from before a step of the clock.
    pub(super) misdated: Vec<Token>,
    pub(super) rng: Rng,
}

/// The check whose reply came last.
#[derive(Clone, Copy)]
pub(super) struct LastCheck {
    /// When the process sent it.
    pub(super) sent: Time,
    /// When the server ran it.
    pub(super) ran_at: u64,
}

/// The newest time in which the process could not reach the server.
#[derive(Clone, Copy, Default)]
pub(super) struct Outage {
    began: u64,
    ended: u64,
    /// A release that a long outage prevented is replaced by the lapse of the lease, a ttl after
    /// the outage (P7).
    pub(super) excepted_until: u64,
}

impl Outage {
    pub(super) fn extend(&mut self, now: u64, until: u64, ttl: u64, per_waiter: u64) {
        if now > self.ended + ttl / 6 {
            self.began = now;
        }
        self.ended = self.ended.max(until);
        if self.ended - self.began > ttl / 2 {
            self.excepted_until = self.ended + ttl + per_waiter;
        }
    }
}

/// A pipeline of the renewal thread that was sent and has not ended.
pub(super) struct SimFlight {
    pub(super) tasks: Tasks,
    pub(super) calls: Arc<Vec<Call>>,
    pub(super) answers: Vec<Option<Answer>>,
    pub(super) sent: Time,
    /// R7 (late copies): the largest bound that was sent with its calls.
    pub(super) not_after: u64,
}

/// A thread that wants the lock once.
pub(super) struct SimCaller {
    pub(super) request: Arc<Request>,
    pub(super) lease_kind: LeaseKind,
    pub(super) waiter: Option<QueuedWaiter>,
    /// The own request of a try, if its line asks for it.
    pub(super) in_line: Option<Arc<Request>>,
    pub(super) state: CallerState,
    /// When it entered that state.
    pub(super) since: u64,
    /// When it stops waiting.
    pub(super) deadline: u64,
    /// When it stops sending again what nobody answers.
    pub(super) retry_until: u64,
    pub(super) hold: u64,
    /// When its place in the queue was lost with the server's data, if it has no other yet.
    pub(super) lost_at: Option<u64>,
    /// When its hold must end, whatever its renewals say.
    pub(super) must_end_by: u64,
}

/// | state       | what comes next                                        |
/// |-------------|--------------------------------------------------------|
/// | Acquiring   | the reply to its acquire, or a pause and another acquire |
/// | Waiting     | its grant, or its deadline                             |
/// | Cancelling  | the reply to its release, and then the lock or nothing |
/// | Placing     | the reply to the acquire of its process's line         |
/// | Trying      | the reply to an acquire that does not wait, or a pause and another (R22) |
/// | Holding     | the end of its work                                    |
/// | Releasing   | the reply to its release                               |
/// | Forcing     | the reply to its release of another caller's lock      |
/// | Renewing    | the reply to its renewal of another caller's guard     |
/// | Downgrading | the reply to its downgrade of another caller's guard   |
pub(super) enum CallerState {
    Acquiring,
    Waiting,
    Cancelling,
    Placing(LinePlace),
    Trying { token: Token, doubt: Doubt },
    Holding(Arc<HeldLease>),
    Releasing(Arc<HeldLease>, Time),
    Forcing,
    Renewing(Arc<HeldLease>),
    Downgrading(Arc<HeldLease>, Time),
}

impl CallerState {
    pub(super) fn name(&self) -> &'static str {
        match self {
            CallerState::Acquiring => "acquiring",
            CallerState::Waiting => "waiting",
            CallerState::Cancelling => "cancelling",
            CallerState::Placing(_) => "placing",
            CallerState::Trying { .. } => "trying",
            CallerState::Holding(_) => "holding",
            CallerState::Releasing(..) => "releasing",
            CallerState::Forcing => "forcing",
            CallerState::Renewing(_) => "renewing",
            CallerState::Downgrading(..) => "downgrading",
        }
    }
}

impl SimCaller {
    /// A caller that only sends one call about a lease of somebody else.
    pub(super) fn new(request: Arc<Request>, state: CallerState, now: u64) -> SimCaller {
        SimCaller {
            request,
            lease_kind: LeaseKind::Renewed,
            waiter: None,
            in_line: None,
            state,
            since: now,
            deadline: u64::MAX,
            retry_until: u64::MAX,
            hold: 0,
            lost_at: None,
            must_end_by: u64::MAX,
        }
    }

    /// Whether it is in the queue, or on its way there.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, CallerState::Waiting | CallerState::Acquiring)
    }
}

impl SimProcess {
    pub(super) fn new(
        number: u64,
        config: &Config,
        mut rng: Rng,
        now: u64,
        outage: Outage,
    ) -> SimProcess {
        let clock_ns = Arc::new(AtomicU64::new(0));
        let newest = Arc::default();
        let unread = Arc::new(UnreadReplies::new());
        let outbox = Arc::new(Outbox::default());
        let troubles = Arc::new(Troubles::new(shown_clock(Arc::clone(&clock_ns))));
        let step = config.check_period + config.command_timeout;
        let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
        let store = StubStore {
            clock: shown_clock(Arc::clone(&clock_ns)),
            newest: Arc::clone(&newest),
            unread: Arc::clone(&unread),
            outbox: Arc::clone(&outbox),
            troubles: Arc::clone(&troubles),
        };
        let boot = 1_000_000_000 * (1 + rng.below(1_000_000));
        // Two clocks run apart by at most 500 ppm.
        let ppm = rng.below(501) as i64 - 250;
        let mut process = SimProcess {
            number,
            engine: SteppedManager::new(config.clone(), Box::new(store), Arc::clone(&caller_id)),
            caller_id,
            clock_ns,
            boot,
            ppm,
            newest,
            unread,
            outbox,
            troubles,
            trouble_seen_at: 0,
            newest_after: 0,
            lane: SimLane::new(),
            link: None,
            flights: BTreeMap::new(),
            callers: BTreeMap::new(),
            last_check: LastCheck {
                sent: Time::from_nanos(0),
                ran_at: 0,
            },
            link_busy: false,
            wake_at: u64::MAX,
            paused_until: 0,
            cut_until: 0,
            inbound_lost_until: 0,
            deaf_since: 0,
            deaf_until: 0,
            outage,
            troubled_until: 0,
            fault_known_by: 0,
            subscribed: false,
            subscription: 0,
            listens_since: Time::from_nanos(0),
            ping_at: None,
            network_faults: VecDeque::new(),
            late_messages: VecDeque::new(),
            misdated: Vec::new(),
            rng,
        };
        process.set_clock(now);
        process
    }

    /// The time that its clock shows at a moment of the run.
    pub(super) fn local(&self, now: u64) -> Time {
        let drift = now as i128 * i128::from(self.ppm) / 1_000_000;
        Time::from_nanos((i128::from(self.boot + now) + drift) as u64)
    }

    /// A moment of the run at which its clock shows at least this.
    pub(super) fn moment(&self, now: u64, local: Time) -> u64 {
        let left = (local - self.local(now)).as_nanos() as u64;
        now.saturating_add(left).saturating_add(left / 1000 + 1)
    }

    /// When the last fault that holds it up is over, and known to it.
    pub(super) fn disturbed_until(&self) -> u64 {
        self.troubled_until
            .max(self.fault_known_by)
            .max(self.paused_until)
            .max(self.cut_until)
    }

    /// No message arrives for a while.
    pub(super) fn deafen(&mut self, now: u64, until: u64) {
        if self.deaf_until <= now {
            self.deaf_since = now;
        }
        self.deaf_until = self.deaf_until.max(until);
    }

    /// A connection to the server has ended.
    pub(super) fn note_trouble(&mut self, now: u64) {
        self.troubles.note();
        self.trouble_seen_at = now;
    }

    pub(super) fn set_clock(&mut self, now: u64) {
        self.clock_ns
            .store(self.local(now).as_nanos(), Ordering::Relaxed);
    }

    /// How long one way through the network takes, in ns.
    pub(super) fn latency(&mut self) -> u64 {
        50_000 + self.rng.below(400_000)
    }

    /// Whether a caller waits by this token, or its line does.
    pub(super) fn waits_by(&self, caller: &SimCaller, token: Token) -> bool {
        let waiter = caller.waiter.as_ref();
        waiter.is_some_and(|waiter| self.engine.waits_by(waiter, token))
    }

    /// The guards that its callers hold.
    pub(super) fn guards(&self) -> impl Iterator<Item = Arc<HeldLease>> {
        self.callers
            .values()
            .filter_map(|caller| match &caller.state {
                CallerState::Holding(lease) => Some(Arc::clone(lease)),
                _ => None,
            })
    }
}

/// The engine's store. It has no open connection, so the engine hands everything that does not go
/// through the simulator to its renewal thread.
pub(super) struct StubStore {
    pub(super) clock: Clock,
    pub(super) newest: Arc<Mutex<Option<Anchor>>>,
    pub(super) unread: Arc<UnreadReplies>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) troubles: Arc<Troubles>,
}

/// Releases that the engine sends in the middle of a step. The simulator puts them on the lane when the
/// step is over, in their order.
#[derive(Default)]
pub(super) struct Outbox {
    is_open: AtomicBool,
    sent: Mutex<Vec<SentRelease>>,
}

pub(super) struct SentRelease {
    pub(super) call: Call,
    /// `None`: its caller waits for the reply, which comes too late.
    pub(super) on_result: Option<OnResult>,
}

impl Outbox {
    /// Whether the lane has an open connection.
    pub(super) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> Vec<SentRelease> {
        std::mem::take(&mut self.sent.lock())
    }
}

/// The messages between the store and the renewal thread about replies that nobody waits for.
pub(super) struct UnreadReplies {
    due: AtomicU64,
    is_asked: AtomicBool,
}

impl UnreadReplies {
    pub(super) fn new() -> UnreadReplies {
        UnreadReplies {
            due: AtomicU64::new(Time::NEVER.as_nanos()),
            is_asked: AtomicBool::new(false),
        }
    }

    pub(super) fn set_due(&self, due: Time) {
        self.due.store(due.as_nanos(), Ordering::Relaxed);
    }

    /// Whether the renewal thread has asked to read them since the last call of this.
    pub(super) fn take_request(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }
}

impl Store for StubStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn run(&self, calls: &[Call], _deadlines: Deadlines) -> Vec<CallResult> {
        calls
            .iter()
            .map(|_| CallResult::not_sent(StoreFault::NotReady))
            .collect()
    }

    fn troubles(&self) -> Arc<Troubles> {
        Arc::clone(&self.troubles)
    }

    /// A caller that must wait for the reply waits for too long. So the renewal thread goes on with its
    /// release, and the reply comes later. That makes more orders of requests than real callers have.
    fn send(&self, calls: &[Call], _reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        let is_open = self.outbox.is_open.load(Ordering::Relaxed);
        let in_doubt = || {
            Some(CallResult {
                answer: Err(no_reply()),
                not_after: 0,
            })
        };
        let send = |(at, call): (usize, &Call)| {
            if !is_open {
                return in_doubt();
            }
            let on_result = leave(at);
            let is_left = on_result.is_some();
            self.outbox.sent.lock().push(SentRelease {
                call: call.clone(),
                on_result,
            });
            if is_left { None } else { in_doubt() }
        };
        calls.iter().enumerate().map(send).collect()
    }

    fn unread_due(&self) -> Time {
        Time::from_nanos(self.unread.due.load(Ordering::Relaxed))
    }

    fn read_unread(&self) {
        self.unread.is_asked.store(true, Ordering::Relaxed);
    }

    fn link(&self, _on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(StubLink)
    }

    fn scan(&self, _cursor: u64, _pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        Err(StoreFault::NotReady)
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        *self.newest.lock()
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// The simulator runs the pipelines of the renewal thread itself.
struct StubLink;

impl Link for StubLink {
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

/// The connection was closed before a reply came.
pub(super) fn closed() -> StoreFault {
    let source = io::Error::from(io::ErrorKind::ConnectionReset);
    StoreFault::unavailable(Step::Reply, source)
}

pub(super) fn no_reply() -> StoreFault {
    StoreFault::unavailable(Step::Reply, "no reply in time")
}
