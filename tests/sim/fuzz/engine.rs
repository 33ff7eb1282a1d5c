//! The engine, and a server that answers anything: nobody has a lock without a grant to his own token that is one, and no
//! lease is believed in for longer than its grants and renewals allow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::replies::message_text;
use super::shapes::{grants, is_documented};
use super::tape::Tape;
use super::values::{About, SPECS, answer};
use crate::config::{Config, LockOptions, Wanted};
use crate::engine::{Doubt, Lease, Next, QueuedWaiter, Request, SteppedEngine, Tasks};
use crate::key::Key;
use crate::script::{Call, CallerId, Form, Grant, LockSpec, Outcome, Reply, Token, Verb};
use crate::sim::process::{StubStore, no_connection, no_reply};
use crate::store::clock::{Clock, Time};
use crate::store::{Anchor, Answer, CallResult, StoreFault};

/// What callers, the renewal thread and the listener do one after the other, and what they hear.
pub fn engine(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let mut scene = Scene::new();
    for _ in 0..MOST_STEPS {
        if tape.is_over() {
            break;
        }
        scene.step(&mut tape);
        scene.check();
    }
    scene.end();
}

const MOST_STEPS: usize = 500;
/// At the same time, of each sort.
const MOST: usize = 6;
/// What the clocks show at the start: the server's in µs, the local one in ns.
const SERVER: u64 = 1_700_000_000_000_000;
const LOCAL: u64 = 1_000_000_000_000;

struct Scene {
    engine: SteppedEngine,
    caller_id: Arc<CallerId>,
    shown: Arc<AtomicU64>,
    newest: Arc<Mutex<Option<Anchor>>>,
    callers: Vec<Caller>,
    tries: Vec<Try>,
    guards: Vec<Guard>,
    releases: Vec<(Arc<Lease>, Call, Time)>,
    pipeline: Option<(Tasks, Vec<Call>, Time)>,
    /// Of each token what the server has said.
    said: HashMap<Token, Said>,
    /// In the order in which they were seen.
    tokens: Vec<Token>,
    claimed: HashSet<Token>,
    /// The largest bound that was sent with an acquire of each token (R7).
    dated: HashMap<Token, u64>,
}

struct Caller {
    request: Arc<Request>,
    place: QueuedWaiter,
    flight: Option<(Call, Time)>,
    /// Its acquire has had no answer that settles it; after that only the renewal thread asks.
    is_asking: bool,
}

struct Try {
    request: Arc<Request>,
    call: Call,
    sent: Time,
    doubt: Doubt,
}

struct Guard {
    lease: Arc<Lease>,
    was_lost: bool,
    /// It was a writer's, and is to be a reader's.
    downgrade: Option<(Call, Time)>,
}

/// Its grants' fences, and until when the latest of its grants and renewals may be believed in, in local ns.
#[derive(Default)]
struct Said {
    fences: Vec<u64>,
    until: i128,
}

impl Scene {
    fn new() -> Scene {
        let (config, _) = Config::new(Wanted::default()).expect("the defaults fit");
        let caller_id = Arc::new(CallerId::new(
            &config.prefix,
            config.check_period + config.command_timeout,
            config.horizon,
        ));
        let (shown, newest) = (Arc::new(AtomicU64::new(LOCAL)), Arc::default());
        let wire = StubStore {
            clock: Clock::told(Arc::clone(&shown)),
            newest: Arc::clone(&newest),
        };
        Scene {
            engine: SteppedEngine::new(config, Box::new(wire), Arc::clone(&caller_id)),
            caller_id,
            shown,
            newest,
            callers: Vec::new(),
            tries: Vec::new(),
            guards: Vec::new(),
            releases: Vec::new(),
            pipeline: None,
            said: HashMap::new(),
            tokens: Vec::new(),
            claimed: HashSet::new(),
            dated: HashMap::new(),
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.shown.load(Ordering::Relaxed))
    }

    fn server_now(&self) -> u64 {
        SERVER + (self.shown.load(Ordering::Relaxed) - LOCAL) / 1000
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let what = tape.below(32);
        let at = tape.below(MOST);
        match what % 16 {
            0 | 1 if self.callers.len() < MOST => {
                let request = request(tape);
                let place = self.engine.register(Arc::clone(&request));
                self.callers.push(Caller {
                    request,
                    place,
                    flight: None,
                    is_asking: true,
                });
                self.ask(self.callers.len() - 1);
            }
            2 => self.ask(at),
            3..=5 => self.answer_caller(at, tape),
            6 => self.claim(at),
            7 => self.leave(at),
            8 if self.tries.len() < MOST => {
                let request = request(tape);
                let call = self.engine.begin_try(&request, Token::new());
                self.send(&call);
                self.tries.push(Try {
                    request,
                    call,
                    sent: self.now(),
                    doubt: Doubt::default(),
                });
            }
            8 | 9 => self.answer_try(at, tape),
            10 if self
                .guards
                .get(at)
                .is_some_and(|guard| guard.downgrade.is_some()) =>
            {
                self.answer_downgrade(at, tape)
            }
            10 if at < self.guards.len() && what >= 16 => self.downgrade(at),
            10 if at < self.guards.len() => {
                let lease = self.guards.remove(at).lease;
                if let Some(call) = self.engine.begin_release(&lease) {
                    self.releases.push((lease, call, self.now()));
                }
            }
            10 if at < self.releases.len() => {
                let (lease, call, sent) = self.releases.remove(at);
                let answered = self.answered(&call, sent, tape);
                self.engine.on_release_reply(&lease, &call, sent, answered);
            }
            11 => self.hear(tape),
            12 => {
                let by = tape.choose(&[1, 10, 300, 500, 1000, 3400, 5000, 10_000])
                    * u64::from(tape.byte())
                    / 16;
                self.shown.fetch_add(by * 1_000_000, Ordering::Relaxed);
            }
            13 => self.engine.on_subscribed(),
            14 if self.pipeline.is_none() => self.collect(),
            14 | 15 => self.settle(tape),
            _ => {}
        }
    }

    fn ask(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.flight.is_none() && caller.is_asking)
        else {
            return;
        };
        if let Some(call) = self.engine.begin_acquire(&caller.place, self.now()) {
            self.send(&call);
            self.callers[at].flight = Some((call, self.now()));
        }
    }

    fn answer_caller(&mut self, at: usize, tape: &mut Tape<'_>) {
        let Some((call, sent)) = self
            .callers
            .get_mut(at)
            .and_then(|caller| caller.flight.take())
        else {
            return;
        };
        let answered = self.answered(&call, sent, tape);
        let place = &self.callers[at].place;
        if call.is_acquire() {
            match self.engine.on_acquire_reply(place, &call, answered) {
                Next::Wait => self.callers[at].is_asking = false,
                Next::AskAgain | Next::AskLater => {}
                Next::Fail => drop(self.callers.remove(at)),
            }
        } else {
            let token = place.token();
            let lease = self.engine.on_cancel_reply(place, Some((&call, answered)));
            self.callers.remove(at);
            self.guard(lease, token);
        }
    }

    fn claim(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.flight.is_none())
        else {
            return;
        };
        let token = caller.place.token();
        if let Some(lease) = self.engine.take_grant(&caller.place) {
            assert!(
                Arc::ptr_eq(&lease.request, &caller.request),
                "somebody else's lease was claimed"
            );
            self.callers.remove(at);
            self.guard(Some(lease), token);
        }
    }

    fn leave(&mut self, at: usize) {
        let Some(caller) = self
            .callers
            .get(at)
            .filter(|caller| caller.flight.is_none())
        else {
            return;
        };
        if let Some(call) = self.engine.begin_cancel(&caller.place) {
            self.send(&call);
            self.callers[at].flight = Some((call, self.now()));
            return;
        }
        let token = caller.place.token();
        let lease = self.engine.on_cancel_reply(&caller.place, None);
        self.callers.remove(at);
        self.guard(lease, token);
    }

    fn answer_try(&mut self, at: usize, tape: &mut Tape<'_>) {
        if at >= self.tries.len() {
            return;
        }
        let mut attempt = self.tries.remove(at);
        let Verb::Acquire { token, .. } = attempt.call.verb else {
            unreachable!("a try is an acquire")
        };
        let answered = self.answered(&attempt.call, attempt.sent, tape);
        match self.engine.on_try_reply(
            &attempt.request,
            token,
            &attempt.call,
            &mut attempt.doubt,
            answered,
        ) {
            Some(lease) => self.guard(lease, token),
            None => self.tries.push(Try {
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

    fn answer_downgrade(&mut self, at: usize, tape: &mut Tape<'_>) {
        let Some((call, sent)) = self.guards[at].downgrade.take() else {
            return;
        };
        let answered = self.answered(&call, sent, tape);
        let lease = Arc::clone(&self.guards[at].lease);
        if !self
            .engine
            .on_downgrade_reply(&lease, &call, sent, answered)
        {
            assert!(
                !lease.is_held(self.now()),
                "a guard that was lost to its owner is held"
            );
            self.guards.remove(at);
        }
    }

    fn hear(&mut self, tape: &mut Tape<'_>) {
        let (name, spec) = tape.choose(&NAMES);
        let text = message_text(spec.family, &key(name), &self.about(), tape);
        let anchor = *self.newest.lock();
        match (Grant::from_message("fairlock", &text), anchor) {
            (Some((grant, _, _)), Some(anchor)) => {
                // The earliest moment at which the server's clock can have shown the time of the grant.
                let ahead = i128::from(grant.granted_at) - i128::from(anchor.server);
                let granted = i128::from(anchor.sent.as_nanos()) + ahead * 1000;
                let granted = granted.clamp(0, self.now().as_nanos().into());
                self.say(grant.token, grant.fence, granted, grant.left);
            }
            // Nothing is believed of its time.
            (Some((grant, _, _)), None) => self
                .said
                .entry(grant.token)
                .or_default()
                .fences
                .push(grant.fence),
            (None, _) => {}
        }
        self.engine.on_message(&text);
    }

    fn collect(&mut self) {
        let (tasks, calls) = self.engine.collect();
        calls.iter().for_each(|call| self.send(call));
        self.pipeline = Some((tasks, calls, self.now())).filter(|(_, calls, _)| !calls.is_empty());
    }

    fn settle(&mut self, tape: &mut Tape<'_>) {
        let Some((tasks, calls, sent)) = self.pipeline.take() else {
            return;
        };
        let answers = calls
            .iter()
            .map(|call| self.answered(call, sent, tape))
            .collect();
        self.engine.on_replies(tasks, &calls, answers);
    }

    fn send(&mut self, call: &Call) {
        if let Verb::Acquire { token, .. } | Verb::Release { token, .. } | Verb::Renew { token } =
            call.verb
            && !self.tokens.contains(&token)
        {
            self.tokens.push(token);
        }
        let not_after = self
            .newest
            .lock()
            .map_or(0, |anchor| anchor.server_time_at_least(self.now()));
        let _ = call.command(&self.caller_id, Form::default(), not_after);
        if let Verb::Acquire { token, .. } = call.verb {
            let dated = self.dated.entry(token).or_default();
            *dated = not_after.max(*dated);
        }
    }

    fn about(&self) -> About<'_> {
        About {
            tokens: &self.tokens,
            now: self.server_now(),
        }
    }

    /// As a node makes an answer of what came, and what the server has said by it.
    fn answered(&mut self, call: &Call, sent: Time, tape: &mut Tape<'_>) -> CallResult {
        let not_after = match call.verb {
            Verb::Acquire { token, .. } => self.dated.get(&token).copied().unwrap_or(0),
            _ => 0,
        };
        let answer = self.answer(call, sent, tape);
        CallResult { answer, not_after }
    }

    fn answer(
        &mut self,
        call: &Call,
        sent: Time,
        tape: &mut Tape<'_>,
    ) -> Result<Answer, StoreFault> {
        match tape.below(12) {
            0 => return Err(StoreFault::NotReady),
            1 => return Err(no_reply()),
            2 => return Err(no_connection()),
            3 => return Err(StoreFault::InDoubt(Box::new(no_connection()))),
            4 => {
                let code = tape
                    .choose(&["OOM", "NOPERM", "LOADING", "PROTOCOL", ""])
                    .to_owned();
                return Err(StoreFault::Server {
                    code,
                    message: tape.text(),
                });
            }
            _ => {}
        }
        let value = answer(call, &self.about(), tape);
        if is_documented(call, &value) {
            for grant in grants(call, &value) {
                self.say(grant.token, grant.fence, sent.as_nanos().into(), grant.left);
            }
        }
        let reply = Reply::parse(call, &value)?;
        if let (Verb::Renew { token }, Outcome::Renewed { left, fence }) =
            (&call.verb, &reply.outcome)
        {
            self.say(*token, *fence, sent.as_nanos().into(), *left);
        }
        if let Some(server) = reply.now {
            *self.newest.lock() = Some(Anchor {
                server,
                sent,
                received: self.now(),
            });
        }
        match reply.outcome {
            Outcome::Queued => Err(StoreFault::Server {
                code: "TRYAGAIN".to_owned(),
                message: String::new(),
            }),
            _ => Ok(Answer {
                reply,
                sent,
                resent: tape.one_in(8),
            }),
        }
    }

    /// A hundredth of the time and 2 ms are never believed in.
    fn say(&mut self, token: Token, fence: u64, from: i128, left: Duration) {
        let margin = (left / 100 + Duration::from_millis(2)).min(left);
        let said = self.said.entry(token).or_default();
        said.fences.push(fence);
        said.until = said.until.max(from + (left - margin).as_nanos() as i128);
    }

    fn guard(&mut self, lease: Option<Arc<Lease>>, token: Token) {
        let Some(lease) = lease else { return };
        assert_eq!(lease.token, token, "the grant of another token");
        let said = self.said.get(&token);
        assert!(
            said.is_some_and(|said| said.fences.contains(&lease.fence)),
            "a guard that nobody granted"
        );
        assert!(self.claimed.insert(token), "two guards of one token");
        self.guards.push(Guard {
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
            let until = self.said[&lease.token].until;
            assert!(
                deadline <= until,
                "believed in for {} ns too long",
                deadline - until
            );
        }
    }

    /// No answer comes any more.
    fn end(mut self) {
        self.callers.clear();
        for guard in std::mem::take(&mut self.guards) {
            let _ = self.engine.begin_release(&guard.lease);
        }
        for _ in 0..4 {
            let nothing = &mut Tape::new(&[]);
            self.settle(nothing);
            self.shown.fetch_add(11_000_000_000, Ordering::Relaxed);
            self.collect();
        }
        assert_eq!(self.engine.waiters(), 0, "places of nobody");
    }
}

/// Each name is of one kind, as for those who agree on it.
const NAMES: [(&str, LockSpec); 6] = [
    ("a", LockSpec::MUTEX),
    ("b", LockSpec::MUTEX),
    ("c", LockSpec::read()),
    ("d", LockSpec::read()),
    ("e", LockSpec::semaphore(3, 2)),
    ("f", LockSpec::semaphore(3, 2)),
];

fn key(name: &str) -> Key {
    Key::new("fairlock", name).expect("good names")
}

fn request(tape: &mut Tape<'_>) -> Arc<Request> {
    let which = tape.below(16);
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
    Arc::new(Request::new(spec, key(tape.choose(&of_kind).0), &options))
}
