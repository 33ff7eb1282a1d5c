//! The engine with a server that answers anything. No caller gets a lock without a grant to its own
//! token, and no lease is trusted for longer than its grants and renewals allow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::input::FuzzInput;
use super::replies::message_text;
use super::shapes::{grants, is_documented};
use super::values::{SPECS, ServerFacts, answer};
use crate::config::{Config, Settings};
use crate::engine::{Doubt, HeldLease, Next, QueuedWaiter, Request, SteppedEngine, Tasks};
use crate::key::Key;
use crate::options::LockOptions;
use crate::script::{
    Call, CallerId, Form, Grant, LockSpec, Mode, Outcome, ScriptReply, Token, Verb, Wait,
};
use crate::sim::process::{StubStore, UnreadReplies, no_connection, no_reply};
use crate::sim::shown_clock::shown_clock;
use crate::store::clock::Time;
use crate::store::{Anchor, Answer, CallResult, OnResult, StoreFault, Troubles};

/// The bytes choose what callers, the renewal thread and the subscription do, one after the other,
/// and what the server answers.
pub fn engine(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut world = FuzzWorld::new();
    for _ in 0..MOST_STEPS {
        if input.is_over() {
            break;
        }
        world.step(&mut input);
        world.check();
    }
    world.end();
}

const MOST_STEPS: usize = 500;
/// The most callers, and the most tries, at the same time.
const MOST_OF_EACH: usize = 6;
/// The clocks' times at the start: the server's in µs, the local one in ns.
const SERVER: u64 = 1_700_000_000_000_000;
const LOCAL: u64 = 1_000_000_000_000;

struct FuzzWorld {
    engine: SteppedEngine,
    caller_id: Arc<CallerId>,
    local_clock: Arc<AtomicU64>,
    /// The newest anchor that an answer brought.
    newest_anchor: Arc<Mutex<Option<Anchor>>>,
    callers: Vec<FuzzCaller>,
    tries: Vec<FuzzTry>,
    guards: Vec<FuzzGuard>,
    releases: Vec<FuzzRelease>,
    pipeline: Option<(Tasks, Vec<Call>, Time)>,
    /// The grants of each token that the server has reported.
    granted: HashMap<Token, SeenGrants>,
    /// In the order in which they were sent.
    tokens: Vec<Token>,
    /// The tokens that became guards.
    guarded: HashSet<Token>,
    /// The largest `not_after` that was sent with an acquire of each token (R7: late copies).
    not_after: HashMap<Token, u64>,
}

struct FuzzCaller {
    request: Arc<Request>,
    queued: QueuedWaiter,
    in_flight: Option<(Call, Time)>,
    /// No answer has queued or failed its acquire yet. After that, only the renewal thread sends
    /// one.
    may_send_acquire: bool,
}

struct FuzzRelease {
    lease: Arc<HeldLease>,
    call: Call,
    sent: Time,
    /// The caller has left.
    left: Option<OnResult>,
}

struct FuzzTry {
    request: Arc<Request>,
    call: Call,
    sent: Time,
    doubt: Doubt,
}

struct FuzzGuard {
    lease: Arc<HeldLease>,
    was_lost: bool,
    /// The request that turns a writer into a reader, while it is in flight.
    downgrade: Option<(Call, Time)>,
}

/// The server's reports about the grants of one token.
#[derive(Default)]
struct SeenGrants {
    fences: Vec<u64>,
    /// Until when the last of its grants and renewals may be trusted, in local ns.
    until: i128,
}

impl FuzzWorld {
    fn new() -> FuzzWorld {
        let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
        let caller_id = Arc::new(CallerId::new(
            &config.prefix,
            config.check_period + config.command_timeout,
            config.horizon,
        ));
        let local_clock = Arc::new(AtomicU64::new(LOCAL));
        let newest_anchor = Arc::default();
        let wire = StubStore {
            clock: shown_clock(Arc::clone(&local_clock)),
            newest: Arc::clone(&newest_anchor),
            unread: Arc::new(UnreadReplies::new()),
            outbox: Arc::default(),
            troubles: Arc::new(Troubles::new(shown_clock(Arc::clone(&local_clock)))),
        };
        FuzzWorld {
            engine: SteppedEngine::new(config, Box::new(wire), Arc::clone(&caller_id)),
            caller_id,
            local_clock,
            newest_anchor,
            callers: Vec::new(),
            tries: Vec::new(),
            guards: Vec::new(),
            releases: Vec::new(),
            pipeline: None,
            granted: HashMap::new(),
            tokens: Vec::new(),
            guarded: HashSet::new(),
            not_after: HashMap::new(),
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.local_clock.load(Ordering::Relaxed))
    }

    fn server_now(&self) -> u64 {
        SERVER + (self.local_clock.load(Ordering::Relaxed) - LOCAL) / 1000
    }

    fn step(&mut self, input: &mut FuzzInput<'_>) {
        let which = input.below(32);
        let at = input.below(MOST_OF_EACH);
        match which % 16 {
            0 | 1 if self.callers.len() < MOST_OF_EACH => {
                let request = request(input);
                let queued = self.engine.register(&request);
                self.callers.push(FuzzCaller {
                    request,
                    queued,
                    in_flight: None,
                    may_send_acquire: true,
                });
                self.send_acquire(self.callers.len() - 1);
            }
            2 => self.send_acquire(at),
            3..=5 => self.answer_caller(at, input),
            6 => self.take_grant(at),
            7 => self.cancel(at),
            8 if self.tries.len() < MOST_OF_EACH => {
                let request = request(input);
                let wait = if which < 16 { Wait::No } else { Wait::NoneCame };
                let call = self.engine.begin_try(&request, Token::new(), wait);
                self.send(&call);
                self.tries.push(FuzzTry {
                    request,
                    call,
                    sent: self.now(),
                    doubt: Doubt::default(),
                });
            }
            8 | 9 => self.answer_try(at, input),
            10 if self
                .guards
                .get(at)
                .is_some_and(|guard| guard.downgrade.is_some()) =>
            {
                self.answer_downgrade(at, input)
            }
            10 if at < self.guards.len() && which >= 16 => self.downgrade(at),
            10 if at < self.guards.len() => {
                let lease = self.guards.remove(at).lease;
                if let Some(call) = self.engine.begin_release(&lease, Mode::Used) {
                    let sent = self.now();
                    let left = self.engine.leave(&lease, &call, sent);
                    self.releases.push(FuzzRelease {
                        left: left.filter(|_| which >= 8),
                        lease,
                        call,
                        sent,
                    });
                }
            }
            10 if at < self.releases.len() => {
                let FuzzRelease {
                    lease,
                    call,
                    sent,
                    left,
                } = self.releases.remove(at);
                let answered = self.call_result(&call, sent, input);
                match left {
                    Some(on_result) => on_result(answered),
                    None => self.engine.on_release_reply(&lease, &call, sent, answered),
                }
            }
            11 => self.deliver_message(input),
            12 => {
                let by = input.choose(&[1, 10, 300, 500, 1000, 3400, 5000, 10_000])
                    * u64::from(input.byte())
                    / 16;
                self.local_clock
                    .fetch_add(by * 1_000_000, Ordering::Relaxed);
            }
            13 => self.engine.on_subscribed(),
            14 if self.pipeline.is_none() => self.collect_tasks(),
            14 | 15 => self.answer_tasks(input),
            _ => {}
        }
    }

    fn send_acquire(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.in_flight.is_none() && caller.may_send_acquire)
        else {
            return;
        };
        if let Some(call) = self.engine.begin_acquire(&caller.queued.waiter, self.now()) {
            self.send(&call);
            self.callers[at].in_flight = Some((call, self.now()));
        }
    }

    fn answer_caller(&mut self, at: usize, input: &mut FuzzInput<'_>) {
        let Some((call, sent)) = self
            .callers
            .get_mut(at)
            .and_then(|caller| caller.in_flight.take())
        else {
            return;
        };
        let answered = self.call_result(&call, sent, input);
        let queued = &self.callers[at].queued;
        if call.is_acquire() {
            match self
                .engine
                .on_acquire_reply(&queued.waiter, &call, answered)
            {
                Next::Wait => self.callers[at].may_send_acquire = false,
                Next::AskAgain | Next::AskLater => {}
                Next::Fail(_) => drop(self.callers.remove(at)),
            }
        } else {
            let token = queued.token();
            let lease = self.engine.on_cancel_reply(queued, Some((&call, answered)));
            self.callers.remove(at);
            self.add_guard(lease, token);
        }
    }

    fn take_grant(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.in_flight.is_none())
        else {
            return;
        };
        let token = caller.queued.token();
        if let Some(lease) = self.engine.take_grant(&caller.queued) {
            assert!(
                Arc::ptr_eq(&lease.request, &caller.request),
                "a caller took the lease of another request"
            );
            self.callers.remove(at);
            self.add_guard(Some(lease), token);
        }
    }

    fn cancel(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.in_flight.is_none())
        else {
            return;
        };
        if let Some(call) = self.engine.begin_cancel(&caller.queued) {
            self.send(&call);
            self.callers[at].in_flight = Some((call, self.now()));
            return;
        }
        let token = caller.queued.token();
        let lease = self.engine.on_cancel_reply(&caller.queued, None);
        self.callers.remove(at);
        self.add_guard(lease, token);
    }

    fn answer_try(&mut self, at: usize, input: &mut FuzzInput<'_>) {
        if at >= self.tries.len() {
            return;
        }
        let mut attempt = self.tries.remove(at);
        let Verb::Acquire { token, .. } = attempt.call.verb else {
            unreachable!("a try sends an acquire")
        };
        let answered = self.call_result(&attempt.call, attempt.sent, input);
        match self.engine.on_try_reply(
            &attempt.request,
            token,
            &attempt.call,
            &mut attempt.doubt,
            answered,
        ) {
            Some(attempted) => self.add_guard(attempted.lease(), token),
            None => self.tries.push(FuzzTry {
                sent: self.now(),
                ..attempt
            }),
        }
    }

    fn downgrade(&mut self, at: usize) {
        let lease = Arc::clone(&self.guards[at].lease);
        if lease.request.spec == LockSpec::write()
            && let Some(call) = self.engine.begin_downgrade(&lease)
        {
            self.send(&call);
            self.guards[at].downgrade = Some((call, self.now()));
        }
    }

    fn answer_downgrade(&mut self, at: usize, input: &mut FuzzInput<'_>) {
        let Some((call, sent)) = self.guards[at].downgrade.take() else {
            return;
        };
        let answered = self.call_result(&call, sent, input);
        let lease = Arc::clone(&self.guards[at].lease);
        if !self
            .engine
            .on_downgrade_reply(&lease, &call, sent, answered)
        {
            assert!(
                !lease.is_held(self.now()),
                "the engine reports a lost guard and still holds it"
            );
            self.guards.remove(at);
        }
    }

    fn deliver_message(&mut self, input: &mut FuzzInput<'_>) {
        let (name, spec) = input.choose(&NAMES);
        let text = message_text(spec.family, &key(name), &self.facts(), input);
        let anchor = *self.newest_anchor.lock();
        match (Grant::from_message("fairlock", &text), anchor) {
            (Some((grant, _, _)), Some(anchor)) => {
                // The earliest local time at which the server's clock can have shown the time of
                // the grant.
                let ahead = i128::from(grant.granted_at) - i128::from(anchor.server);
                let granted = i128::from(anchor.sent.as_nanos()) + ahead * 1000;
                let granted = granted.clamp(0, self.now().as_nanos().into());
                self.note_grant(grant.token, grant.fence, granted, grant.left);
            }
            // Without an anchor, its times mean nothing.
            (Some((grant, _, _)), None) => self
                .granted
                .entry(grant.token)
                .or_default()
                .fences
                .push(grant.fence),
            (None, _) => {}
        }
        self.engine.on_message(&text);
    }

    fn collect_tasks(&mut self) {
        let (tasks, calls) = self.engine.collect();
        calls.iter().for_each(|call| self.send(call));
        self.pipeline = Some((tasks, calls, self.now())).filter(|(_, calls, _)| !calls.is_empty());
    }

    fn answer_tasks(&mut self, input: &mut FuzzInput<'_>) {
        let Some((tasks, calls, sent)) = self.pipeline.take() else {
            return;
        };
        let answers = calls
            .iter()
            .map(|call| self.call_result(call, sent, input))
            .collect();
        self.engine.on_replies(tasks, &calls, answers);
    }

    fn send(&mut self, call: &Call) {
        if let Verb::Acquire { token, .. } | Verb::Release { token, .. } | Verb::Renew { token, .. } =
            call.verb
            && !self.tokens.contains(&token)
        {
            self.tokens.push(token);
        }
        let not_after = self
            .newest_anchor
            .lock()
            .map_or(0, |anchor| anchor.server_time_at_least(self.now()));
        let _ = call.command(&self.caller_id, Form::default(), not_after);
        if let Verb::Acquire { token, .. } = call.verb {
            let dated = self.not_after.entry(token).or_default();
            *dated = not_after.max(*dated);
        }
    }

    fn facts(&self) -> ServerFacts<'_> {
        ServerFacts {
            tokens: &self.tokens,
            now: self.server_now(),
        }
    }

    /// The result of a call as a node makes it of the server's answer. Notes the grants in it.
    fn call_result(&mut self, call: &Call, sent: Time, input: &mut FuzzInput<'_>) -> CallResult {
        let not_after = match call.verb {
            Verb::Acquire { token, .. } => self.not_after.get(&token).copied().unwrap_or(0),
            _ => 0,
        };
        let answer = self.answer(call, sent, input);
        CallResult { answer, not_after }
    }

    fn answer(
        &mut self,
        call: &Call,
        sent: Time,
        input: &mut FuzzInput<'_>,
    ) -> Result<Answer, StoreFault> {
        match input.below(12) {
            0 => return Err(StoreFault::NotReady),
            1 => return Err(no_reply()),
            2 => return Err(no_connection()),
            3 => return Err(StoreFault::InDoubt(Box::new(no_connection()))),
            4 => {
                let code = input
                    .choose(&["OOM", "NOPERM", "LOADING", "PROTOCOL", ""])
                    .to_owned();
                return Err(StoreFault::server(code, input.text()));
            }
            _ => {}
        }
        let value = answer(call, &self.facts(), input);
        if is_documented(call, &value) {
            for grant in grants(call, &value) {
                self.note_grant(grant.token, grant.fence, sent.as_nanos().into(), grant.left);
            }
        }
        let reply = ScriptReply::parse(call, &value)?;
        if let (Verb::Renew { token, .. }, Outcome::Renewed { left, fence, .. }) =
            (&call.verb, &reply.outcome)
        {
            self.note_grant(*token, *fence, sent.as_nanos().into(), *left);
        }
        if let Some(server) = reply.now {
            *self.newest_anchor.lock() = Some(Anchor {
                server,
                sent,
                received: self.now(),
            });
        }
        match reply.outcome {
            Outcome::Queued => Err(StoreFault::server("TRYAGAIN", "")),
            _ => Ok(Answer {
                reply,
                sent,
                resent: input.one_in(8),
            }),
        }
    }

    /// The engine never trusts a hundredth of the time that is left, and 2 ms more.
    fn note_grant(&mut self, token: Token, fence: u64, from: i128, left: Duration) {
        let margin = (left / 100 + Duration::from_millis(2)).min(left);
        let grants = self.granted.entry(token).or_default();
        grants.fences.push(fence);
        grants.until = grants.until.max(from + (left - margin).as_nanos() as i128);
    }

    fn add_guard(&mut self, lease: Option<Arc<HeldLease>>, token: Token) {
        let Some(lease) = lease else { return };
        assert_eq!(lease.token, token, "a guard has the grant of another token");
        let grants = self.granted.get(&token);
        assert!(
            grants.is_some_and(|grants| grants.fences.contains(&lease.fence())),
            "a guard without a grant"
        );
        assert!(self.guarded.insert(token), "two guards of one token");
        self.guards.push(FuzzGuard {
            lease,
            was_lost: false,
            downgrade: None,
        });
    }

    fn check(&mut self) {
        let now = self.now();
        for guard in &mut self.guards {
            let lease = &guard.lease;
            if !lease.is_held(now) {
                guard.was_lost = true;
                continue;
            }
            assert!(!guard.was_lost, "a guard that was lost is held again");
            let deadline = i128::from((now + lease.remaining(now)).as_nanos());
            let until = self.granted[&lease.token].until;
            assert!(
                deadline <= until,
                "the lease is trusted for {} ns too long",
                deadline - until
            );
            assert!(
                lease.remaining(now) <= lease.request.longest(),
                "a guard believes in more than its full lease"
            );
        }
    }

    /// Ends the run: the server answers nothing any more, and the engine must forget all waiters.
    fn end(mut self) {
        self.callers.clear();
        for guard in std::mem::take(&mut self.guards) {
            let _ = self.engine.begin_release(&guard.lease, Mode::Used);
        }
        for _ in 0..4 {
            let nothing = &mut FuzzInput::new(&[]);
            self.answer_tasks(nothing);
            self.local_clock
                .fetch_add(11_000_000_000, Ordering::Relaxed);
            self.collect_tasks();
        }
        assert_eq!(self.engine.waiters(), 0, "the registry still has waiters");
    }
}

/// Each name has one kind, because all its callers agree on it.
const NAMES: [(&str, LockSpec); 6] = [
    ("a", LockSpec::MUTEX),
    ("b", LockSpec::MUTEX),
    ("c", LockSpec::read()),
    ("d", LockSpec::read()),
    ("e", LockSpec::semaphore(3, 2)),
    ("f", LockSpec::semaphore(3, 2)),
];

fn key(name: &str) -> Key {
    Key::new("fairlock", name).expect("a valid name")
}

fn request(input: &mut FuzzInput<'_>) -> Arc<Request> {
    let which = input.below(16);
    let options = match which % 4 {
        0 => LockOptions::new().fixed_lease(Duration::from_secs(3)),
        1 => LockOptions::new().max_hold(Duration::from_secs(1)),
        _ => LockOptions::new(),
    };
    let spec = SPECS[which / 4];
    let of_kind: Vec<_> = NAMES
        .iter()
        .filter(|(_, other)| other.kind() == spec.kind())
        .collect();
    Arc::new(Request::new(
        spec,
        key(input.choose(&of_kind).0),
        &options,
        1,
    ))
}
