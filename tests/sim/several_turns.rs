//! The fences that one grant reserves for several guards, script by script: which of them the record
//! counts as used, and who may name them.

use super::mutation::{ScriptMutation, server_with};
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::script::packed::PackedState;
use crate::script::{
    Call, CallerId, LockSpec, Mode, Outcome, Page, PassedFrom, Secret, Token, Verb, Wait,
};
use crate::store::memory::server::ScriptServer;

use std::sync::Arc;
use std::time::Duration;

const START: u64 = 1_000_000_000_000;
/// A while, in µs. Shorter than a lease.
const WHILE: u64 = 1_000_000;
const TTL_MS: u64 = 10_000;
/// So many fences behind its first each grant reserves.
const SPARE: u64 = 5;
/// No grant reserves more, and none that is further ahead of the clock.
const MOST_SPARE: u64 = 65_535;

/// A name at a server, and its clock.
struct Name {
    server: ScriptServer,
    key: Key,
    now: u64,
    /// The time between two requests, in µs.
    pause: u64,
    spare: u64,
}

impl Name {
    fn new(mutations: &[ScriptMutation]) -> Name {
        Name {
            pause: WHILE,
            spare: SPARE,
            server: server_with(mutations),
            key: Key::new("f", "n").expect("a valid name"),
            now: START,
        }
    }

    fn run(&mut self, verb: Verb) -> Outcome {
        self.now += self.pause;
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
            params: Arc::from(format!("{TTL_MS} 0 0 {} 0 host\t1\tmain#1\t", self.spare)),
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
        self.release_up_to(token, fence, None, mode)
    }

    fn release_up_to(&mut self, token: u16, fence: u64, last: Option<u64>, mode: Mode) -> Outcome {
        self.run(Verb::Release {
            token: Token::numbered(token),
            fence,
            last,
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
    name.release_up_to(1, first, Some(first + 3), Mode::Used) == Outcome::Released
        && name.fence() == first + 3
}

/// The same while somebody waits, and the clock goes back, so that the next fence is the next
/// number.
fn waiter_gets_the_fence_after_the_last_used(name: &mut Name) -> bool {
    let first = name.take(1);
    name.acquire(2);
    name.now = START;
    name.release_up_to(1, first, Some(first + 3), Mode::Used) == Outcome::Released
        && name.fence() == first + 4
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
    let line = "spare = math.max(0, math.min(";
    assert_is_found(line, "spare = 0 * math.max(0, math.min(", lapses);
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
    assert_eq!(
        name.release_up_to(1, first, Some(first + 3), Mode::Used),
        Outcome::Lapsed
    );
}

#[test]
fn release_with_several_fences_may_come_again() {
    let mut name = Name::new(&[]);
    let first = name.take(1);
    assert_eq!(
        name.release_up_to(1, first, Some(first + 3), Mode::Used),
        Outcome::Released
    );
    assert_eq!(
        name.release_up_to(1, first, Some(first + 3), Mode::Used),
        Outcome::Already
    );
    let second = name.take(2);
    assert_eq!(
        name.release_up_to(1, first, Some(first + 3), Mode::Used),
        Outcome::Already
    );
    assert_eq!(name.fence(), second);
}

/// A grant ends with this token and this first fence.
type End = fn(&mut Name, u16, u64);

fn is_abandoned(name: &mut Name, token: u16, first: u64) {
    let released = name.release_up_to(token, first, Some(first + 1), Mode::Lost);
    assert_eq!(released, Outcome::Released);
}

fn is_released(name: &mut Name, token: u16, first: u64) {
    let released = name.release_up_to(token, first, Some(first + 3), Mode::Used);
    assert_eq!(released, Outcome::Released);
}

fn is_unused(name: &mut Name, token: u16, first: u64) {
    assert_eq!(name.release(token, first, Mode::Unused), Outcome::Released);
}

fn lapses(name: &mut Name, _token: u16, _first: u64) {
    name.now += 2000 * TTL_MS;
    let newest = Token::numbered(2);
    name.run(Verb::Sync { newest });
}

fn is_forced(name: &mut Name, _token: u16, first: u64) {
    assert_eq!(name.force(u16::MAX, first), Outcome::Released);
}

/// Its owner does not know its fence: nobody knows whether it attached the lock.
fn is_given_up(name: &mut Name, token: u16, _first: u64) {
    assert_eq!(name.release(token, 0, Mode::Lost), Outcome::Released);
}

/// It is detached, and attached by a guard that may not lend it.
fn is_passed(name: &mut Name, token: u16, first: u64) {
    let secret = Secret::new();
    let params = |ttl: u64, fixed: u8| Arc::from(format!("{ttl} {fixed} 0 host\t1\tmain#1\t"));
    let detached = name.run(Verb::Pass {
        to: secret.owner(),
        from: PassedFrom::Guard(Token::numbered(token)),
        fence: first,
        last: Some(first + 1),
        params: params(2000, 1),
    });
    let Outcome::Granted(detached) = detached else {
        panic!("{detached:?}")
    };
    let bearer = Token::numbered(u16::MAX);
    let attached = name.run(Verb::Pass {
        to: bearer,
        from: PassedFrom::Bearer(secret),
        fence: detached.fence,
        last: None,
        params: params(TTL_MS, 0),
    });
    let Outcome::Granted(attached) = attached else {
        panic!("{attached:?}")
    };
    let fence = attached.fence;
    assert_eq!(name.release(u16::MAX, fence, Mode::Used), Outcome::Released);
}

/// How far the fence of the next grant is ahead of the clock, in µs, when so many grants have ended
/// in a row. Each fence is larger than all that the grants before it had.
fn ahead_after(mutations: &[ScriptMutation], ends: u16, pause: u64, end: End) -> u64 {
    let mut name = Name::new(mutations);
    (name.pause, name.spare) = (pause, MOST_SPARE);
    for token in 0..ends {
        let first = name.take(token);
        end(&mut name, token, first);
    }
    name.take(ends) - name.now
}

/// P2: when the data is lost, the next fence is the time.
#[test]
fn ends_in_a_row_leave_the_next_fence_at_the_clock() {
    for end in [
        is_abandoned as End,
        is_released,
        is_unused,
        lapses,
        is_passed,
    ] {
        assert_eq!(ahead_after(&[], 400, 300, end), 0);
    }
    let burnt = ScriptMutation {
        line: "if ARGV[8] then spare = ARGV[8] - fence end",
        instead: "",
    };
    let ahead = ahead_after(&[burnt], 400, 300, is_abandoned);
    assert!(ahead > 0, "nothing noticed it");
}

/// Nobody says how many fences these had, so all that they have reserved count.
#[test]
fn ends_that_nobody_reports_carry_the_fence_ahead_once() {
    for end in [is_forced as End, is_given_up] {
        for pause in [3, 300, 30_000] {
            let ahead = ahead_after(&[], 400, pause, end);
            assert!(ahead <= MOST_SPARE + 1, "{ahead} with {pause}");
        }
        let line = "granted_at + 65535 - fence";
        let unbounded = ScriptMutation {
            line,
            instead: "65535",
        };
        let ahead = ahead_after(&[unbounded], 400, 300, end);
        assert!(ahead > 20_000_000, "nothing noticed it: {ahead}");
    }
}

/// R15 (clock went back): the record remembers what a guard had.
#[test]
fn clock_that_goes_back_frees_no_fence_that_a_guard_had() {
    let last_of = |end: End| match end {
        end if std::ptr::fn_addr_eq(end, is_abandoned as End) => 1,
        end if std::ptr::fn_addr_eq(end, is_released as End) => 3,
        _ => SPARE,
    };
    for end in [
        is_abandoned as End,
        is_released,
        lapses,
        is_forced,
        is_given_up,
    ] {
        for back in [1_000, 5_000_000] {
            let mut name = Name::new(&[]);
            let first = name.take(1);
            name.now -= back;
            end(&mut name, 1, first);
            name.now -= back;
            let next = name.take(2);
            assert!(next > first + last_of(end), "{next} after {first}");
            // A grant that is far ahead of the clock has no other fence than its first.
            if back > MOST_SPARE && next > name.now + MOST_SPARE {
                assert_eq!(name.force(9, next + 1), Outcome::Refused);
                let grant = name.acquire(2);
                let Outcome::Granted(grant) = grant else {
                    panic!("{grant:?}")
                };
                assert_eq!(grant.most_spare_fences(), 0, "and its process knows that");
            }
        }
    }
}
