//! The fences that one grant reserves for several guards, script by script: which of them the record
//! counts as used, and who may name them.

use super::mutation::{ScriptMutation, server_with};
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::script::packed::PackedState;
use crate::script::{Call, CallerId, LockSpec, Mode, Outcome, Page, Token, Verb, Wait};
use crate::store::memory::server::ScriptServer;

use std::sync::Arc;
use std::time::Duration;

const START: u64 = 1_000_000_000_000;
/// A while, in µs. Shorter than a lease.
const WHILE: u64 = 1_000_000;
const TTL_MS: u64 = 10_000;
/// So many fences behind its first each grant reserves.
const SPARE: u64 = 5;

/// A name at a server, and its clock.
struct Name {
    server: ScriptServer,
    key: Key,
    now: u64,
}

impl Name {
    fn new(mutations: &[ScriptMutation]) -> Name {
        Name {
            server: server_with(mutations),
            key: Key::new("f", "n").expect("a valid name"),
            now: START,
        }
    }

    fn run(&mut self, verb: Verb) -> Outcome {
        self.now += WHILE;
        let call = Call {
            spec: LockSpec::MUTEX,
            key: self.key.clone(),
            verb,
        };
        let second = Duration::from_secs(1);
        let mut caller_id = CallerId::new("f", second, 5 * second);
        caller_id.manager = "manager".to_owned();
        let reply = self.server.run_call(self.now, &call, &caller_id, u64::MAX);
        reply.expect("a well formed reply").outcome
    }

    fn acquire(&mut self, token: u16) -> Outcome {
        self.run(Verb::Acquire {
            token: Token::numbered(token),
            wait: Wait::Yes,
            params: Arc::from(format!("{TTL_MS} 0 0 {SPARE} host\t1\tmain#1\t")),
        })
    }

    /// Takes the free lock. Returns the fence.
    fn take(&mut self, token: u16) -> u64 {
        match self.acquire(token) {
            Outcome::Granted(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, token: u16, fence: u64, mode: Mode) -> Outcome {
        self.run(Verb::Release {
            token: Token::numbered(token),
            fence,
            mode,
        })
    }

    fn force(&mut self, request: u16, fence: u64) -> Outcome {
        self.release(request, fence, Mode::Forced(Page::default()))
    }

    fn renew(&mut self, token: u16) -> Outcome {
        self.run(Verb::Renew {
            token: Token::numbered(token),
            fence: 0,
            params: "".into(),
        })
    }

    /// The fence of the record, above which the next one is.
    fn fence(&mut self) -> u64 {
        let record = self.key.record().to_owned();
        let state = self.server.state();
        let (fields, _) = state.keyspace.hash_of(&record).expect("a record");
        PackedState::unpack(&fields[&b"s"[..]])
            .expect("a whole state")
            .fence
    }
}

#[track_caller]
fn assert_is_found(line: &'static str, instead: &'static str, history: fn(&mut Name) -> bool) {
    assert!(history(&mut Name::new(&[])), "the shipped scripts");
    let mutation = ScriptMutation { line, instead };
    assert!(!history(&mut Name::new(&[mutation])), "nothing noticed it");
}

/// Three guards have it, and nobody waits.
fn release_gives_back_two_of_five(name: &mut Name) -> bool {
    let first = name.take(1);
    let mode = Mode::Used.up_to(first, first + 3);
    name.release(1, first, mode) == Outcome::Released && name.fence() == first + 3
}

/// The same while somebody waits, and the clock goes back, so that the next fence is the next
/// number.
fn waiter_gets_the_fence_after_the_last_used(name: &mut Name) -> bool {
    let first = name.take(1);
    name.acquire(2);
    name.now = START;
    let mode = Mode::Used.up_to(first, first + 3);
    name.release(1, first, mode) == Outcome::Released && name.fence() == first + 4
}

#[test]
fn release_gives_back_the_fences_that_no_guard_had() {
    let short = ("mode == 'used' and not ARGV[8]", "mode == 'used'");
    assert_is_found(short.0, short.1, release_gives_back_two_of_five);
    let long = (
        "previous, fence = 0, (ARGV[8] or fence) + 0",
        "previous = 0",
    );
    assert_is_found(long.0, long.1, waiter_gets_the_fence_after_the_last_used);
}

#[test]
fn release_of_one_guard_leaves_the_fence_as_it_is() {
    for mode in [Mode::Used, Mode::Unused] {
        let mut name = Name::new(&[]);
        let first = name.take(1);
        assert_eq!(name.release(1, first, mode), Outcome::Released);
        assert_eq!(name.fence(), first, "{mode:?}");
    }
}

#[test]
fn grant_that_ends_without_a_release_has_used_all_its_fences() {
    let lapses = |name: &mut Name| {
        let first = name.take(1);
        name.now += 1000 * TTL_MS;
        let newest = Token::numbered(2);
        name.run(Verb::Sync { newest });
        name.fence() == first + SPARE
    };
    let is_lost = |name: &mut Name| {
        let first = name.take(1);
        name.release(1, first, Mode::Lost) == Outcome::Released && name.fence() == first + SPARE
    };
    let is_forced = |name: &mut Name| {
        let first = name.take(1);
        name.force(9, first) == Outcome::Released && name.fence() == first + SPARE
    };
    for history in [lapses as fn(&mut Name) -> bool, is_lost, is_forced] {
        assert_is_found("fence = fence + spare", "", history);
    }
    assert_is_found(
        "spare = (tonumber(spare) or 0) % 65536",
        "spare = 0",
        lapses,
    );
}

#[test]
fn spare_of_a_waiter_is_that_of_its_grant() {
    let mut name = Name::new(&[]);
    let first = name.take(1);
    name.acquire(2);
    assert_eq!(name.release(1, first, Mode::Used), Outcome::Released);
    let first = name.fence();
    assert_eq!(name.release(2, first, Mode::Lost), Outcome::Released);
    assert_eq!(name.fence(), first + SPARE);
}

#[test]
fn force_release_takes_the_fence_of_any_guard_of_the_grant() {
    for (behind, expected) in [
        (0, Outcome::Released),
        (SPARE, Outcome::Released),
        (SPARE + 1, Outcome::Refused),
    ] {
        let mut name = Name::new(&[]);
        let first = name.take(1);
        assert_eq!(name.force(8, first - 1), Outcome::Refused);
        assert_eq!(name.force(9, first + behind), expected, "{behind}");
    }
    let takes_a_later_one = |name: &mut Name| {
        let first = name.take(1);
        name.force(9, first + 2) == Outcome::Released
    };
    let range = "callers_fence <= fence + spare";
    assert_is_found(range, "callers_fence <= fence", takes_a_later_one);
    let takes_no_other = |name: &mut Name| {
        let first = name.take(1);
        name.force(9, first + SPARE + 1) == Outcome::Refused
    };
    assert_is_found(range, "true", takes_no_other);
}

#[test]
fn fence_given_back_is_nobodys() {
    let mut name = Name::new(&[]);
    let first = name.take(1);
    assert_eq!(name.release(1, first, Mode::Used), Outcome::Released);
    for behind in 0..=SPARE {
        assert_eq!(name.force(9, first + behind), Outcome::Refused);
    }
}

/// A release by force that comes again, after more leases ended, some by force.
fn forced_release_is_answered_again(name: &mut Name) -> bool {
    let first = name.take(1);
    let mut answers = vec![name.force(8, first + 2), name.force(8, first + 2)];
    let second = name.take(2);
    answers.push(name.force(9, second + 1));
    answers.push(name.force(8, first + 2));
    answers
        == [
            Outcome::Released,
            Outcome::Already,
            Outcome::Released,
            Outcome::Already,
        ]
}

/// P7 (one grant for one request)
#[test]
fn forced_release_by_a_later_fence_may_come_again() {
    assert_is_found(
        "if owner then how, last_ended = 2, callers_fence end",
        "if owner then how = 2 end",
        forced_release_is_answered_again,
    );
}

/// P6 (a loss stays): the holder knows the first fence.
#[test]
fn holder_learns_that_a_later_fence_of_its_grant_was_forced() {
    let learns = |name: &mut Name| {
        let first = name.take(1);
        name.force(9, first + 2);
        name.release(1, first, Mode::Used) == Outcome::Forced
    };
    let noted = "if last_ended > fence then";
    assert_is_found(noted, "if false then", learns);
    let renewal_names_it = |name: &mut Name| {
        let first = name.take(1);
        name.force(9, first + 2);
        let gone = Outcome::Gone {
            stored: first + SPARE,
            ended: first + 2,
            how: PreviousHolder::Forced,
        };
        name.renew(1) == gone
    };
    assert!(renewal_names_it(&mut Name::new(&[])));
}

#[test]
fn holder_learns_that_a_grant_with_several_fences_lapsed() {
    let mut name = Name::new(&[]);
    let first = name.take(1);
    name.now += 1000 * TTL_MS;
    name.take(2);
    let mode = Mode::Used.up_to(first, first + 3);
    assert_eq!(name.release(1, first, mode), Outcome::Lapsed);
}

#[test]
fn release_with_several_fences_may_come_again() {
    let mut name = Name::new(&[]);
    let first = name.take(1);
    let mode = Mode::Used.up_to(first, first + 3);
    assert_eq!(name.release(1, first, mode), Outcome::Released);
    assert_eq!(name.release(1, first, mode), Outcome::Already);
    let second = name.take(2);
    assert_eq!(name.release(1, first, mode), Outcome::Already);
    assert_eq!(name.fence(), second);
}
