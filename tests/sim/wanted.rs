//! An owner that hears is told that somebody waits, script by script: by whom, how often, and in which
//! words. `b` in a record remembers whom the scripts told.

use std::sync::Arc;
use std::time::Duration;

use super::mutation::{ScriptMutation, server_with};
use crate::key::Key;
use crate::script::packed::PackedState;
use crate::script::{
    Call, CallerId, Family, Form, Grant, LockSpec, Mode, Outcome, Page, ScriptReply, Token, Verb,
    Wait, wanted_behind,
};
use crate::store::memory::keyspace::Bytes;
use crate::store::memory::server::{ScriptServer, words_of};

const START: u64 = 1_000_000_000_000;
/// P + T. An owner is told again after half of it.
const STEP: Duration = Duration::from_secs(1);
pub(super) const TTL_MS: u64 = 10_000;
/// The spare and the word `hears` of an owner that keeps the lock, of one that only hears, and of one that
/// does neither.
pub(super) const KEEPS: &str = "65535 2";
pub(super) const HEARS: &str = "0 1";
pub(super) const DEAF: &str = "0 0";
/// The managers.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;

/// A name at a server, and its clock.
pub(super) struct Name {
    server: ScriptServer,
    key: Key,
    pub(super) now: u64,
    form: Form,
}

fn caller_id(manager: usize) -> CallerId {
    let mut caller_id = CallerId::new("f", STEP, 5 * STEP);
    caller_id.manager = format!("m{manager}");
    caller_id
}

/// A message, and to which manager it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) manager: usize,
    pub(super) fence: u64,
}

impl Name {
    pub(super) fn new() -> Name {
        Name::with(&[])
    }

    pub(super) fn with(mutations: &[ScriptMutation]) -> Name {
        Name {
            server: server_with(mutations),
            key: Key::new("f", "a name").expect("a valid name"),
            now: START,
            form: Form::default(),
        }
    }

    /// A microsecond later, that manager sends this.
    pub(super) fn reply(&mut self, manager: usize, verb: Verb) -> ScriptReply {
        let call = self.call(verb);
        let words = words_of(&call.command(&caller_id(manager), self.form, u64::MAX));
        self.run(&call, &words)
    }

    fn run(&mut self, call: &Call, words: &[Bytes]) -> ScriptReply {
        self.now += 1;
        let value = self.server.run(self.now, words).expect("no error");
        ScriptReply::parse(call, &value).expect("a well formed reply")
    }

    fn call(&self, verb: Verb) -> Call {
        Call {
            spec: LockSpec::MUTEX,
            key: self.key.clone(),
            verb,
        }
    }

    pub(super) fn acquire(
        &mut self,
        manager: usize,
        token: u16,
        handovers: &str,
        wait: Wait,
    ) -> ScriptReply {
        let verb = Verb::Acquire {
            token: Token::numbered(token),
            wait,
            params: Arc::from(format!("{TTL_MS} 0 0 {handovers} host\t1\tmain#1\t")),
        };
        self.reply(manager, verb)
    }

    /// Takes the free lock. Returns the fence.
    pub(super) fn take(&mut self, manager: usize, token: u16, handovers: &str) -> u64 {
        match self.acquire(manager, token, handovers, Wait::Yes).outcome {
            Outcome::Granted(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn enqueue(&mut self, manager: usize, token: u16, handovers: &str) {
        let reply = self.acquire(manager, token, handovers, Wait::Yes);
        assert!(
            matches!(reply.outcome, Outcome::Waiting { .. }),
            "{reply:?}"
        );
    }

    fn try_it(&mut self, manager: usize, token: u16) -> Outcome {
        self.acquire(manager, token, DEAF, Wait::No).outcome
    }

    pub(super) fn release(
        &mut self,
        manager: usize,
        token: u16,
        fence: u64,
        mode: Mode,
    ) -> ScriptReply {
        let verb = Verb::Release {
            token: Token::numbered(token),
            fence,
            last: None,
            mode,
        };
        self.reply(manager, verb)
    }

    pub(super) fn sync(&mut self, manager: usize, newest: u16) -> ScriptReply {
        let newest = Token::numbered(newest);
        self.reply(manager, Verb::Sync { newest })
    }

    pub(super) fn renew(&mut self, manager: usize, token: u16) -> Outcome {
        let verb = Verb::Renew {
            token: Token::numbered(token),
            fence: 0,
            params: "".into(),
        };
        self.reply(manager, verb).outcome
    }

    /// The texts published since the last call of this, with their managers.
    pub(super) fn messages(&mut self) -> Vec<(usize, String)> {
        let published = self.server.published().into_iter();
        published
            .map(|message| {
                let channel = String::from_utf8(message.channel).expect("a text");
                let manager = channel.strip_prefix("f:grants:m").expect("a channel");
                let text = String::from_utf8(message.text).expect("a text");
                (manager.parse().expect("a manager"), text)
            })
            .collect()
    }

    /// The messages that say that the lock is wanted. There are no others.
    pub(super) fn told(&mut self) -> Vec<Told> {
        let messages = self.messages().into_iter();
        messages
            .map(|(manager, text)| {
                let (key, fence) = wanted_behind("f", &text).expect("a message of this form");
                assert_eq!(key.record(), self.key.record(), "{text:?}");
                Told { manager, fence }
            })
            .collect()
    }

    pub(super) fn field(&mut self, name: &str) -> Option<Vec<u8>> {
        let record = self.key.record().to_owned();
        let state = self.server.state();
        let (fields, _) = state.keyspace.hash_of(&record)?;
        fields.get(name.as_bytes()).cloned()
    }

    pub(super) fn fence(&mut self) -> u64 {
        let state = self.field("s").expect("a state");
        PackedState::unpack(&state).expect("a whole state").fence
    }
}

pub(super) fn told(manager: usize, fence: u64) -> Vec<Told> {
    vec![Told { manager, fence }]
}

#[test]
fn owner_hears_of_each_way_to_ask_for_its_lock() {
    for handovers in [KEEPS, HEARS] {
        let mut name = Name::new();
        let fence = name.take(A, 1, handovers);
        name.enqueue(B, 2, DEAF);
        assert_eq!(name.told(), told(A, fence), "by a waiter");

        let mut name = Name::new();
        let fence = name.take(A, 1, handovers);
        name.try_it(B, 2);
        assert_eq!(name.told(), told(A, fence), "by a try");

        let mut name = Name::new();
        let fence = name.take(A, 1, handovers);
        assert!(matches!(
            name.reply(B, Verb::Vacate).outcome,
            Outcome::Kind(_)
        ));
        assert_eq!(name.told(), told(A, fence), "by another kind of lock");

        let mut name = Name::new();
        let fence = name.take(A, 1, handovers);
        name.enqueue(B, 2, DEAF);
        name.told();
        name.now += STEP.as_micros() as u64;
        name.sync(B, 2);
        assert_eq!(name.told(), told(A, fence), "by a check");

        let mut name = Name::new();
        let fence = name.take(A, 1, handovers);
        name.try_it(A, 2);
        assert_eq!(name.told(), told(A, fence), "by its own manager");
    }
}

/// R11 (missing keys): with one key of two, a waiter cannot be queued. The owner hears of it.
#[test]
fn owner_hears_of_a_waiter_while_its_slot_moves() {
    for waiters in [0, 1] {
        let mut name = Name::new();
        let fence = name.take(A, 1, KEEPS);
        (0..waiters).for_each(|_| name.enqueue(C, 3, DEAF));
        name.messages();
        name.now += STEP.as_micros() as u64;
        name.form.single_key = true;
        for wait in [Wait::Yes, Wait::No] {
            let reply = name.acquire(B, 2, DEAF, wait);
            assert!(
                reply.outcome == Outcome::Queued || wait == Wait::No && waiters == 0,
                "{reply:?}"
            );
            name.now += STEP.as_micros() as u64;
        }
        let heard = [told(A, fence), told(A, fence)].concat();
        assert_eq!(name.told(), heard, "{waiters} waiters");
    }
}

#[test]
fn owner_is_told_once_in_half_a_step() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    for token in 2..6 {
        name.enqueue(B, token, DEAF);
    }
    name.try_it(C, 6);
    name.sync(B, 5);
    name.reply(C, Verb::Vacate);
    assert_eq!(name.told(), told(A, fence));
    name.now += STEP.as_micros() as u64 / 2 - 20;
    name.sync(B, 5);
    assert_eq!(name.told(), []);
    name.now += 20;
    name.sync(B, 5);
    name.try_it(C, 6);
    assert_eq!(name.told(), told(A, fence));
    // R15 (clock went back): the time at which it was told is in the future.
    name.now -= STEP.as_micros() as u64;
    name.sync(B, 5);
    name.try_it(C, 6);
    assert_eq!(name.told(), told(A, fence));
}

#[test]
fn next_owner_is_told_although_the_last_one_was() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.try_it(B, 2);
    assert_eq!(name.told(), told(A, fence));
    name.release(A, 1, fence, Mode::Used);
    let next = name.take(C, 3, KEEPS);
    name.try_it(B, 4);
    assert_eq!(name.told(), told(C, next));
}

#[test]
fn owner_that_need_not_hear_is_not_told() {
    for (handovers, what) in [
        (DEAF, "no spare"),
        ("65535 0", "a spare of an owner that does not hear"),
    ] {
        let mut name = Name::new();
        name.take(A, 1, handovers);
        name.enqueue(B, 2, KEEPS);
        name.sync(B, 2);
        assert!(matches!(
            name.try_it(C, 3),
            Outcome::Busy { told: false, .. }
        ));
        name.reply(C, Verb::Vacate);
        assert_eq!(name.told(), [], "{what}");
        assert_eq!(name.field("b"), None, "{what}");
    }
    // A copy of its own acquire.
    let mut name = Name::new();
    name.take(A, 1, KEEPS);
    name.take(A, 1, KEEPS);
    assert_eq!(name.told(), []);
    // A check whose waiter has become the owner meanwhile.
    name.sync(A, 1);
    assert_eq!(name.told(), []);
}

#[test]
fn owner_whose_lease_is_over_is_not_told() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.now += 1000 * TTL_MS;
    name.take(B, 2, KEEPS);
    assert_eq!(name.told(), []);
    // It was released, and cools for nobody.
    let mut name = Name::new();
    let first = name.take(A, 1, KEEPS);
    assert!(first >= fence - 1);
    name.release(A, 1, first, Mode::Used);
    name.try_it(B, 2);
    assert_eq!(name.told(), []);
}

#[test]
fn try_learns_that_a_keeper_was_told() {
    let mut name = Name::new();
    name.take(A, 1, KEEPS);
    for _ in 0..3 {
        assert!(matches!(
            name.try_it(B, 2),
            Outcome::Busy { told: true, .. }
        ));
    }
    // An owner that only hears does not let go for a try, whatever its spare.
    for hears in [HEARS, "65535 1"] {
        let mut name = Name::new();
        name.take(A, 1, hears);
        assert!(matches!(
            name.try_it(B, 2),
            Outcome::Busy { told: false, .. }
        ));
    }
}

/// The lock is free by now, and goes to a waiter in front of the try.
#[test]
fn try_behind_a_new_keeper_says_both() {
    let mut name = Name::new();
    let fence = name.take(A, 1, DEAF);
    name.enqueue(B, 2, KEEPS);
    name.form.single_key = true;
    name.release(A, 1, fence, Mode::Used);
    name.form.single_key = false;
    let reply = name.acquire(B, 3, DEAF, Wait::No);
    assert!(
        matches!(reply.outcome, Outcome::Busy { told: true, .. }),
        "{reply:?}"
    );
    let [grant] = reply.grants[..] else {
        panic!("{reply:?}")
    };
    assert_eq!(
        (grant.token, grant.waiting),
        (Token::numbered(2), Some(false))
    );
    let fence = name.fence();
    assert_eq!(name.told(), told(B, fence));
}

/// The grants in messages, with their managers.
fn granted(name: &mut Name) -> Vec<(usize, Option<bool>)> {
    let messages = name.messages().into_iter();
    let grants = messages.map(|(manager, text)| {
        let (grant, key, family) = Grant::from_message("f", &text).expect("a grant");
        assert_eq!((key.record(), family), (name.key.record(), Family::Mutex));
        (manager, grant.waiting)
    });
    grants.collect()
}

#[test]
fn grant_says_whether_others_still_wait() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.enqueue(B, 2, KEEPS);
    name.enqueue(C, 3, KEEPS);
    name.enqueue(A, 4, DEAF);
    name.enqueue(B, 5, KEEPS);
    name.messages();
    // By a message.
    name.release(A, 1, fence, Mode::Used);
    assert_eq!(granted(&mut name), [(B, Some(true))]);
    // It need not be told again.
    name.sync(A, 4);
    name.try_it(A, 9);
    assert_eq!(name.told(), []);
    // The wait of another keeper, and one that does not hear.
    let fence = name.fence();
    name.release(B, 2, fence, Mode::Used);
    assert_eq!(granted(&mut name), [(C, Some(true))]);
    let fence = name.fence();
    name.release(C, 3, fence, Mode::Used);
    assert_eq!(granted(&mut name), [(A, Some(true))]);
    // The last one, in the reply to a release of its own manager.
    let fence = name.fence();
    name.enqueue(A, 6, KEEPS);
    name.release(B, 5, 0, Mode::Unused);
    let reply = name.release(A, 4, fence, Mode::Used);
    let [grant] = reply.grants[..] else {
        panic!("{reply:?}")
    };
    assert_eq!(grant.waiting, Some(false));
    assert_eq!(name.messages(), []);
}

#[test]
fn owner_that_does_not_hear_is_told_by_its_grant_alone() {
    let mut name = Name::new();
    let fence = name.take(A, 1, DEAF);
    name.enqueue(B, 2, DEAF);
    name.enqueue(C, 3, DEAF);
    name.release(A, 1, fence, Mode::Used);
    assert_eq!(granted(&mut name), [(B, Some(true))]);
    assert_eq!(name.field("b"), None);
}

/// Its own acquire was sent twice, it was the owner at its deadline, or a waiter in front of it was dead.
#[test]
fn own_grant_says_whether_others_wait() {
    for (handovers, others) in [(KEEPS, 0), (KEEPS, 1), (DEAF, 0), (DEAF, 1)] {
        let mut name = Name::new();
        name.take(A, 1, handovers);
        (0..others).for_each(|_| name.enqueue(B, 2, DEAF));
        let again = name.acquire(A, 1, handovers, Wait::Yes).outcome;
        let kept = name.release(A, 1, 0, Mode::KeepIfOwner).outcome;
        for granted in [again, kept] {
            assert!(
                matches!(granted, Outcome::Granted(grant) if grant.waiting == Some(others == 1)),
                "{granted:?}"
            );
        }
        // Its time is over, and the waiter asks again before anybody has looked.
        if others == 1 {
            name.enqueue(C, 3, handovers);
            name.release(B, 2, 0, Mode::Unused);
            name.now += 1000 * TTL_MS;
            let own = name.acquire(C, 3, handovers, Wait::Yes).outcome;
            assert!(
                matches!(own, Outcome::Granted(grant) if grant.waiting == Some(false)),
                "{own:?}"
            );
        }
    }
}

#[test]
fn check_says_that_others_wait_behind_the_owner() {
    let mut name = Name::new();
    let fence = name.take(A, 1, DEAF);
    name.enqueue(B, 2, KEEPS);
    name.enqueue(B, 3, KEEPS);
    name.release(A, 1, fence, Mode::Used);
    let waiting = |reply: ScriptReply| match reply.outcome {
        Outcome::Synced { owner, .. } => owner.expect("an owner").waiting,
        other => panic!("{other:?}"),
    };
    assert_eq!(waiting(name.sync(B, 3)), Some(true));
    name.release(B, 3, 0, Mode::Unused);
    assert_eq!(waiting(name.sync(B, 2)), Some(false));
}

#[test]
fn renewal_says_that_somebody_waits() {
    for handovers in [KEEPS, DEAF] {
        let mut name = Name::new();
        name.take(A, 1, handovers);
        let waits = |name: &mut Name| match name.renew(A, 1) {
            Outcome::Renewed { waiting, .. } => waiting,
            other => panic!("{other:?}"),
        };
        assert!(!waits(&mut name));
        name.enqueue(B, 2, DEAF);
        assert!(waits(&mut name));
        // In one call with others.
        let token = Token::numbered(1);
        let call = name.call(Verb::Vacate).renewal(token);
        let together = |name: &mut Name| {
            let reply = name
                .server
                .run_call(name.now, &call, &caller_id(A), u64::MAX);
            match reply.expect("a well formed reply").outcome {
                Outcome::Renewed { waiting, .. } => waiting,
                other => panic!("{other:?}"),
            }
        };
        assert!(together(&mut name));
        name.release(B, 2, 0, Mode::Unused);
        assert!(!together(&mut name) && !waits(&mut name));
    }
}

#[test]
fn owner_that_hears_has_reserved_its_spare_alone() {
    type End = fn(&mut Name, u64);
    let ends: [(End, u64); 4] = [
        (
            |name, _| {
                name.now += 1000 * TTL_MS;
                name.enqueue_after_lapse();
            },
            5,
        ),
        (
            |name, fence| {
                name.release(A, 1, fence, Mode::Lost);
            },
            5,
        ),
        (
            |name, fence| {
                let forced = Mode::Forced(Page::default());
                let beyond = name.release(C, 8, fence + 6, forced).outcome;
                assert_eq!(beyond, Outcome::Refused);
                name.release(C, 9, fence + 5, forced);
            },
            5,
        ),
        (
            |name, fence| {
                name.release(A, 1, fence, Mode::Used);
            },
            0,
        ),
    ];
    for (handovers, unit) in [("5 1", 1), ("0 1", 0)] {
        for (at, (end, used)) in ends.iter().enumerate() {
            if unit == 0 && at == 2 {
                continue;
            }
            let mut name = Name::new();
            let first = name.take(A, 1, handovers);
            end(&mut name, first);
            assert_eq!(name.fence(), first + used * unit, "end {at}, {handovers}");
        }
    }
}

impl Name {
    /// A check finds that the lease has lapsed.
    fn enqueue_after_lapse(&mut self) {
        self.sync(B, 2);
    }
}

#[test]
fn word_of_an_owner_that_hears_stays_in_the_record() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.enqueue(B, 2, HEARS);
    let waiter = format!("w:{}", Token::numbered(2).simple());
    let text = |field: Option<Vec<u8>>| String::from_utf8(field.expect("a field")).expect("a text");
    assert!(text(name.field("a")).ends_with(" m0 10000 0 0 65535 2"));
    assert!(text(name.field(&waiter)).contains(" m1 10000 0 0 0 1 host\t"));
    name.release(A, 1, fence, Mode::Used);
    assert!(text(name.field("a")).ends_with(" m1 10000 0 0 0 1"));
    assert!(text(name.field("l")).starts_with("host\t"));
}

#[test]
fn vacated_name_forgets_who_was_told() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.try_it(B, 2);
    assert!(name.field("b").is_some());
    name.release(A, 1, fence, Mode::Used);
    assert_eq!(name.reply(B, Verb::Vacate).outcome, Outcome::Vacated);
    assert_eq!(name.field("b"), None);
}

/// A damaged field counts as none.
#[test]
fn damaged_field_of_the_told_fence_fails_no_script() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    let record = name.key.record().to_owned();
    let command = ["HSET", &record, "b", "short"].map(|word| word.as_bytes().to_vec());
    name.server.run(name.now, &command).expect("no error");
    name.enqueue(B, 2, DEAF);
    assert_eq!(name.told(), told(A, fence));
}

/// Each line is needed: without it, one of the claims above is false.
#[test]
fn scripts_without_a_condition_are_found() {
    let told_by_each = |name: &mut Name| {
        let fence = name.take(A, 1, KEEPS);
        name.enqueue(B, 2, DEAF);
        name.enqueue(B, 3, DEAF);
        name.told() == told(A, fence)
    };
    let next_is_told = |name: &mut Name| {
        let fence = name.take(A, 1, KEEPS);
        name.try_it(B, 2);
        name.release(A, 1, fence, Mode::Used);
        name.take(A, 3, KEEPS);
        name.try_it(B, 2);
        name.told().len() == 2
    };
    let told_again = |name: &mut Name| {
        name.take(A, 1, KEEPS);
        name.enqueue(B, 2, DEAF);
        name.now += STEP.as_micros() as u64;
        name.sync(B, 2);
        name.told().len() == 2
    };
    let says_who_waits = |name: &mut Name| {
        let fence = name.take(A, 1, KEEPS);
        name.enqueue(B, 2, KEEPS);
        name.enqueue(C, 3, KEEPS);
        name.messages();
        name.release(A, 1, fence, Mode::Used);
        granted(name) == [(B, Some(true))]
    };
    let told_in_a_moving_slot = |name: &mut Name| {
        name.take(A, 1, KEEPS);
        name.enqueue(B, 2, DEAF);
        name.messages();
        name.now += STEP.as_micros() as u64;
        name.form.single_key = true;
        name.acquire(C, 3, DEAF, Wait::Yes);
        name.told().len() == 1
    };
    let own_check_tells_nobody = |name: &mut Name| {
        name.take(A, 1, KEEPS);
        name.sync(A, 1);
        name.told().is_empty()
    };
    type History = fn(&mut Name) -> bool;
    let histories: [(&str, &str, History); 7] = [
        ("told_fence == fence and math.abs", "math.abs", next_is_told),
        (
            "local is_told = told_fence == fence and math.abs(now - told_at) < ARGV[2] / 2",
            "local is_told = false",
            told_by_each,
        ),
        (" and math.abs(now - told_at) < ARGV[2] / 2", "", told_again),
        (
            "redis.pcall('HSET', record_key, 'b', struct.pack('<dd', fence, now))",
            "",
            told_by_each,
        ),
        (
            "waiters_left = math.max(0, waiter_records)\n  if waiters_left > 0 and",
            "waiters_left = 0\n  if waiter_records > 0 and",
            says_who_waits,
        ),
        (
            "if not queue_key and entries > 0 then\n",
            "if not queue_key and entries > 0 then\n  return { 'queued', now, 0 }\nend\nif false then\n",
            told_in_a_moving_slot,
        ),
        (
            "if waiter_records <= 0 then wanted = nil end",
            "",
            own_check_tells_nobody,
        ),
    ];
    for (line, instead, history) in histories {
        assert!(history(&mut Name::new()), "the shipped scripts: {line}");
        let mutation = ScriptMutation { line, instead };
        assert!(!history(&mut Name::with(&[mutation])), "unnoticed: {line}");
    }
}
