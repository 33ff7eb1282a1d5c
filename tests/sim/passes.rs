//! How a lock goes from one token to another, script by script: every short sequence of requests,
//! copies of them and pauses, against a few lines that say who may have the lock.

use super::mutation::{ScriptMutation, server_with};
use crate::key::Key;
use crate::script::packed::PackedState;
use crate::script::{
    Call, CallerId, LockSpec, Mode, Outcome, PassedFrom, Secret, Token, Verb, Wait,
};
use crate::store::memory::keyspace::Keyspace;
use crate::store::memory::server::ScriptServer;

use std::sync::Arc;
use std::time::Duration;

/// Ahead of the clock are the fences, so that the next one is the next number.
const START: u64 = 1_000_000_000_000;
const TTL_MS: u64 = 10_000;
/// How long the detached lock is valid. A pause is longer, and shorter than a lease.
const VALID_MS: u64 = 3_000;
const PAUSE: u64 = 4_000_000;
/// So many fences the first grant reserves: more than bits of a token add to a fence.
const SPARE: u64 = 2000;
/// As long as a sequence is.
const STEPS: usize = 5;

/// Tokens: the guard that detaches the lock, another process that waits for it, two that attach it.
const GIVER: u16 = 1;
const WAITER: u16 = 2;
const BEARERS: [u16; 2] = [3, 4];

/// A request, which may come several times and in any order, or a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Detach,
    Attach(u16),
    /// The guard of this token ends.
    Unlock(u16),
    /// The attach of this token was given up.
    GiveUp(u16),
    Renew(u16),
    Queue,
    Pause,
}

const EVENTS: [Event; 9] = [
    Event::Detach,
    Event::Attach(BEARERS[0]),
    Event::Attach(BEARERS[1]),
    Event::Unlock(GIVER),
    Event::Unlock(BEARERS[0]),
    Event::GiveUp(BEARERS[1]),
    Event::Renew(GIVER),
    Event::Queue,
    Event::Pause,
];

/// The server after some events, and what must be true of it.
#[derive(Clone)]
struct State {
    keys: Keyspace,
    now: u64,
    /// The owner, `None` for the detached lock's, and when its lease ends.
    owner: Owner,
    ends: u64,
    waits: bool,
    /// The fence of the last grant, of which all fences so far are not larger.
    fence: u64,
    first_fence: u64,
    /// Of the detached lock, and until when it is valid.
    detached_fence: u64,
    valid_until: u64,
    /// How many times a bearer became the owner, and did not give that up.
    attached: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Token(u16),
    Detached,
}

struct Play {
    server: ScriptServer,
    key: Key,
    secret: Secret,
}

impl Play {
    fn new(mutations: &[ScriptMutation]) -> Play {
        Play {
            server: server_with(mutations),
            key: Key::new("f", "n").expect("a valid name"),
            secret: Secret::new(),
        }
    }

    fn run(&mut self, now: u64, manager: u16, verb: Verb) -> Outcome {
        let call = Call {
            spec: LockSpec::MUTEX,
            key: self.key.clone(),
            verb,
        };
        let second = Duration::from_secs(1);
        let mut caller_id = CallerId::new("f", second, 5 * second);
        caller_id.manager = format!("manager{manager}");
        let reply = self.server.run_call(now, &call, &caller_id, u64::MAX);
        reply.expect("a well formed reply").outcome
    }

    /// The giver has the lock, under a fence ahead of the clock.
    fn begin(&mut self) -> State {
        let now = START;
        let granted = self.run(now, GIVER, acquire(GIVER, Wait::No, SPARE));
        let Outcome::Granted(grant) = granted else {
            panic!("{granted:?}")
        };
        State {
            keys: self.server.state().keyspace.clone(),
            // The clock was set back.
            now: now - 1_000_000,
            owner: Owner::Token(GIVER),
            ends: now + 1000 * TTL_MS,
            waits: false,
            fence: grant.fence,
            first_fence: grant.fence,
            detached_fence: 0,
            valid_until: 0,
            attached: 0,
        }
    }

    fn verb(&self, state: &State, event: Event) -> Option<(u16, Verb)> {
        let release = |of: u16, fence, mode| {
            let token = Token::numbered(of);
            let verb = Verb::Release {
                token,
                fence,
                last: None,
                mode,
            };
            (of, verb)
        };
        Some(match event {
            Event::Pause => return None,
            Event::Detach => (
                GIVER,
                Verb::Pass {
                    to: self.secret.owner(),
                    from: PassedFrom::Guard(Token::numbered(GIVER)),
                    fence: state.first_fence,
                    last: Some(state.first_fence + SPARE),
                    params: params(VALID_MS, 1, 0),
                },
            ),
            Event::Attach(bearer) => (
                bearer,
                Verb::Pass {
                    to: Token::numbered(bearer),
                    from: PassedFrom::Bearer(self.secret),
                    fence: state.detached_fence,
                    last: None,
                    params: params(TTL_MS, 0, 0),
                },
            ),
            Event::Unlock(GIVER) => release(GIVER, state.first_fence, Mode::Used),
            Event::Unlock(of) => release(of, state.fence, Mode::Used),
            Event::GiveUp(of) => release(of, 0, Mode::Unused),
            Event::Renew(of) => (
                of,
                Verb::Renew {
                    token: Token::numbered(of),
                    fence: 0,
                    params: "".into(),
                },
            ),
            Event::Queue => (WAITER, acquire(WAITER, Wait::Yes, 0)),
        })
    }

    /// Plays an event on this state. An error: what it breaks.
    fn step(&mut self, state: &State, event: Event) -> Result<State, String> {
        let mut next = state.clone();
        next.now += 1000;
        let Some((manager, verb)) = self.verb(state, event) else {
            next.now += PAUSE;
            return Ok(next);
        };
        // Before the detach there is no lock to attach.
        if matches!(event, Event::Attach(_)) && state.detached_fence == 0 {
            return Ok(next);
        }
        self.server.state().keyspace = state.keys.clone();
        let outcome = self.run(next.now, manager, verb);
        next.keys = self.server.state().keyspace.clone();
        next.expect(state, event);
        self.compare(&next, state, event, &outcome)
            .map_err(|wrong| format!("{wrong} by {event:?}, answered {outcome:?}"))?;
        if let Outcome::Granted(grant) = outcome {
            if next.owner != state.owner {
                next.fence = grant.fence;
            }
            if next.owner == Owner::Detached {
                next.detached_fence = grant.fence;
            }
        }
        next.fence = match event {
            Event::GiveUp(_) if next.owner == Owner::Detached => self.fence(),
            _ => next.fence.max(self.fence()),
        };
        Ok(next)
    }

    fn packed(&mut self) -> PackedState {
        let record = self.key.record().to_owned();
        let state = self.server.state();
        let (fields, _) = state.keyspace.hash_of(&record).expect("a record");
        PackedState::unpack(&fields[&b"s"[..]]).expect("a whole state")
    }

    fn fence(&mut self) -> u64 {
        self.packed().fence
    }

    /// Whether the record says what must be true.
    fn compare(
        &mut self,
        next: &State,
        before: &State,
        event: Event,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let record = self.key.record().to_owned();
        let owner = {
            let state = self.server.state();
            let (fields, _) = state.keyspace.hash_of(&record).expect("a record");
            let text = |field: &[u8]| fields.get(field).cloned();
            if next.owner == Owner::Detached
                && text(b"a").is_none_or(|request| !request.ends_with(b" - 3000 1 0"))
            {
                return Err("somebody may renew it, or release it".to_owned());
            }
            text(b"o")
        };
        let owner = owner.map(|owner| String::from_utf8(owner).expect("a token"));
        let is = |token: Token| owner.as_deref() == Some(&*token.simple());
        let has_owner = match next.owner {
            Owner::Nobody => owner.is_none(),
            Owner::Token(number) => is(Token::numbered(number)),
            Owner::Detached => is(self.secret.owner()),
        };
        if !has_owner {
            return Err(format!("the owner is {owner:?}, not {:?}", next.owner));
        }
        let packed = self.packed();
        let is_new = next.owner != before.owner && next.owner != Owner::Nobody;
        let least = match event {
            // Nobody had the fence of the bearer that gave up. The text has that of the detached lock.
            Event::GiveUp(_) if next.owner == Owner::Detached => before.detached_fence,
            _ => before.fence + u64::from(is_new),
        };
        if packed.fence < least {
            return Err(format!("the fence {} is below {least}", packed.fence));
        }
        let is_grant = matches!(event, Event::Detach | Event::Attach(_));
        let has_it = match event {
            Event::Detach => next.owner == Owner::Detached,
            Event::Attach(bearer) => next.owner == Owner::Token(bearer),
            _ => false,
        };
        if is_grant && has_it != matches!(outcome, Outcome::Granted(_)) {
            return Err("the answer is wrong".to_owned());
        }
        // P2 (rising fences): of all that the giver's process may have used.
        if let (Owner::Detached, Owner::Token(GIVER)) = (next.owner, before.owner)
            && packed.fence <= before.first_fence + SPARE
        {
            return Err("the fence is one of the giver's".to_owned());
        }
        if next.owner != Owner::Nobody && packed.lease_end > next.ends {
            return Err("the lease is too long".to_owned());
        }
        Ok(())
    }
}

impl State {
    /// What the event must do.
    fn expect(&mut self, before: &State, event: Event) {
        let is_over = self.now >= before.ends;
        let lease = |ms: u64| self.now + 1000 * ms;
        let (ends, short) = (lease(TTL_MS), lease(VALID_MS));
        match (event, before.owner) {
            (Event::Detach, Owner::Token(GIVER)) => {
                (self.owner, self.ends) = (Owner::Detached, short);
                self.valid_until = short;
            }
            // Another bearer may try.
            (Event::GiveUp(of), Owner::Token(owner))
                if of == owner && self.now < self.valid_until =>
            {
                (self.owner, self.ends) = (Owner::Detached, self.valid_until);
                self.attached -= 1;
            }
            (Event::Attach(bearer), Owner::Detached) if !is_over => {
                (self.owner, self.ends) = (Owner::Token(bearer), ends);
                self.attached += 1;
            }
            (Event::Renew(of), Owner::Token(owner)) if of == owner => self.ends = ends,
            (Event::Unlock(of) | Event::GiveUp(of), Owner::Token(owner)) if of == owner => {
                self.pass_on(ends);
            }
            // Others see that a lease is over.
            (Event::Unlock(_) | Event::GiveUp(_), owner) if owner != Owner::Nobody && is_over => {
                self.pass_on(ends);
            }
            (Event::Queue, owner)
                if owner == Owner::Nobody || is_over && owner != Owner::Token(WAITER) =>
            {
                self.waits = true;
                self.pass_on(ends);
            }
            (Event::Queue, owner) if owner != Owner::Token(WAITER) => self.waits = true,
            _ => {}
        }
    }

    /// The lock is free.
    fn pass_on(&mut self, ends: u64) {
        self.owner = Owner::Nobody;
        if std::mem::take(&mut self.waits) {
            (self.owner, self.ends) = (Owner::Token(WAITER), ends);
        }
    }
}

fn params(ttl: u64, fixed: u8, spare: u64) -> Arc<str> {
    let handovers = if spare == 0 {
        String::new()
    } else {
        format!("{spare} 0 ")
    };
    format!("{ttl} {fixed} 0 {handovers}host\t1\tmain#1\t").into()
}

fn acquire(token: u16, wait: Wait, spare: u64) -> Verb {
    Verb::Acquire {
        token: Token::numbered(token),
        wait,
        params: params(TTL_MS, 0, spare),
    }
}

/// Plays all sequences of events. An error: the shortest history that breaks something first found.
fn explore(mutations: &[ScriptMutation], steps: usize) -> Result<u64, String> {
    let mut play = Play::new(mutations);
    let begin = play.begin();
    let mut count = 0;
    let mut open = vec![(begin, Vec::new())];
    while let Some((state, history)) = open.pop() {
        for event in EVENTS {
            let mut history = history.clone();
            history.push(event);
            let next = play
                .step(&state, event)
                .map_err(|wrong| format!("{wrong}, after {history:?}"))?;
            count += 1;
            // P7 (one grant for one request): the secret is spent once.
            if next.attached > 1 {
                return Err(format!("two have attached it, after {history:?}"));
            }
            if history.len() < steps {
                open.push((next, history));
            }
        }
    }
    Ok(count)
}

#[test]
fn lock_goes_to_one_bearer_whatever_comes_late_or_twice() {
    let count = explore(&[], STEPS).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{count} requests");
}

#[track_caller]
fn assert_pass_defect_found(line: &'static str, instead: &'static str) {
    let mutation = ScriptMutation { line, instead };
    let wrong = explore(&[mutation], STEPS).expect_err("no sequence shows the defect");
    println!("{wrong}");
}

#[test]
fn owner_that_is_the_secret_itself_is_found() {
    let line = "if is_attach then from = string.sub(redis.sha1hex(from), 1, 32) end";
    assert_pass_defect_found(line, "");
}

#[test]
fn lock_that_goes_to_whoever_asks_is_found() {
    assert_pass_defect_found(
        "if owner ~= from or fence ~= callers_fence then",
        "if false then",
    );
    assert_pass_defect_found("if owner ~= from or fence", "if fence");
}

#[test]
fn fence_that_the_giver_may_have_had_is_found() {
    assert_pass_defect_found("fence = (ARGV[11] or fence) + 0", "");
}

#[test]
fn attach_of_a_lock_that_lapsed_is_found() {
    let line = "elseif is_attach and math.min(lease_end, granted_at + 1000 * ttl) <= now then";
    assert_pass_defect_found(line, "elseif false then");
}

#[test]
fn repeated_pass_that_is_refused_is_found() {
    let line = "if now > ARGV[6] + 0 then return { 'late', now, 0 } end\nif owner == token then";
    let instead = "if now > ARGV[6] + 0 then return { 'late', now, 0 } end\nif false then";
    assert_pass_defect_found(line, instead);
}

#[test]
fn attach_that_is_given_up_and_spends_the_secret_is_found() {
    assert_pass_defect_found("if by == token and detached_at", "if false and detached_at");
}

#[test]
fn given_up_attach_that_outlives_the_text_is_found() {
    assert_pass_defect_found("detached_at + 1000 * valid_ms > now then", "true then");
}

#[test]
fn detached_lock_that_has_a_manager_is_found() {
    assert_pass_defect_found("is_attach and manager or '-'", "manager");
}
