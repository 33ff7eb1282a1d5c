//! Renewals of several mutexes that go together, in one call of a script.

use fairlock::{Error, LockGuard, LockManager, LossReason};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON, STEADY_TTL as TTL, Waiters, build, server_time, steady};
use crate::support::{SLACK, until};

on_both_stores! {
    renewals_of_many_names_share_their_requests,
    a_lost_record_is_reported_and_harms_no_other_renewal,
    a_lock_with_another_owner_is_reported_and_harms_no_other_renewal,
    a_damaged_record_harms_no_other_renewal,
    a_damaged_fence_harms_no_other_renewal,
    one_key_of_another_type_harms_no_other_renewal,
    damaged_records_harm_none_of_a_thousand_other_locks,
    malformed_replies_about_one_name_end_no_connection,
    a_lock_with_waiters_is_renewed_beside_others,
    r15_renewals_together_shorten_a_lease_after_a_clock_step,
}

/// So many that one call does not renew them all.
const LOCKS: usize = 70;

fn name(number: usize) -> String {
    format!("a{number}")
}

fn locks(manager: &LockManager) -> Vec<LockGuard> {
    let lock = |number| manager.lock(name(number)).expect("nobody else wants it");
    (0..LOCKS).map(lock).collect()
}

/// Waits until each lock that is named here has been renewed once more.
#[track_caller]
fn are_renewed(backend: &Backend, numbers: impl Iterator<Item = usize>) {
    let lease_end = |number| -> u64 {
        let fields = Record::of(backend, &name(number)).fields();
        fields["e"].parse().expect("a time")
    };
    let before: Vec<_> = numbers.map(|number| (number, lease_end(number))).collect();
    until(TTL / 3 + SLACK + SOON, "the others are renewed", || {
        before.iter().all(|(number, end)| lease_end(*number) > *end)
    });
}

/// After `damage` to the fourth of these locks, the others are renewed twice. Returns how that one
/// was lost.
#[track_caller]
fn loss_among_others(backend: &Backend, damage: impl FnOnce(&Record<'_>)) -> LossReason {
    let manager = build(steady(backend));
    let mut guards = locks(&manager);
    are_renewed(backend, 0..LOCKS);
    let fourth = guards.remove(3);
    damage(&Record::of(backend, &name(3)));
    let others = || (0..LOCKS).filter(|number| *number != 3);
    are_renewed(backend, others());
    are_renewed(backend, others());
    let loss = fourth.lost().recv_timeout(TTL + SLACK);
    assert!(guards.iter().all(|guard| guard.is_held()));
    loss.expect("its loss is reported").reason
}

fn renewals_of_many_names_share_their_requests(backend: &Backend) {
    let manager = build(steady(backend));
    let guards = locks(&manager);
    are_renewed(backend, 0..LOCKS);
    let before = manager.stats();
    are_renewed(backend, 0..LOCKS);
    // A renewal counts once its reply is there.
    until(SOON, "all of them count", || {
        manager.stats().renewals_confirmed >= before.renewals_confirmed + LOCKS as u64
    });
    let after = manager.stats();
    let renewed = after.renewals_confirmed - before.renewals_confirmed;
    let requests = after.requests - before.requests;
    assert!(
        requests * 4 <= renewed,
        "{requests} requests for {renewed} renewals"
    );
    assert!(guards.iter().all(|guard| guard.is_held()));
}

fn a_lost_record_is_reported_and_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["DEL", &record.key]);
    });
    assert_eq!(reason, LossReason::NotOwner);
}

fn a_lock_with_another_owner_is_reported_and_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["HSET", &record.key, "o", &"0".repeat(32)]);
    });
    assert_eq!(reason, LossReason::NotOwner);
}

fn a_damaged_record_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["HSET", &record.key, "s", "damaged"]);
    });
    assert_eq!(reason, LossReason::Expired);
}

/// The reply to its renewal is malformed, whether it came alone or with others.
fn a_damaged_fence_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| record.set(&[("f", "-5")]));
    assert_eq!(reason, LossReason::Expired);
}

fn one_key_of_another_type_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["DEL", &record.key]);
        let _: u64 = backend.query(&["RPUSH", &record.key, "of another type"]);
    });
    assert_eq!(reason, LossReason::Expired);
}

/// Each line damages a record or the holders of permits in a way of its own. KEYS: both of them.
const DAMAGES: [&str; 24] = [
    "redis.call('HDEL', KEYS[1], 's')",
    "redis.call('HSET', KEYS[1], 's', '')",
    "redis.call('HSET', KEYS[1], 's', 'too short')",
    "redis.call('HSET', KEYS[1], 's', redis.call('HGET', KEYS[1], 's') .. 'too long')",
    "fence(-5)",
    "fence(0)",
    "fence(0.5)",
    "fence(1e300)",
    "fence(1 / 0)",
    "fence(0 / 0)",
    "redis.call('HSET', KEYS[1], 'q', '')",
    "redis.call('HSET', KEYS[1], 'q', 'too short')",
    "redis.call('HSET', KEYS[1], 'q', string.rep('too long', 9))",
    "redis.call('HDEL', KEYS[1], 'o')",
    "redis.call('HDEL', KEYS[1], 'k', 's')",
    "redis.call('HSET', KEYS[1], 'k', 'mutex/9') redis.call('HDEL', KEYS[1], 's')",
    "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'of another type')",
    "redis.call('HDEL', KEYS[2], 'p')",
    "redis.call('HSET', KEYS[2], 'p', 'too short')",
    "holder('')",
    "holder('too short')",
    "holder(string.rep(' ', 22))",
    "holder(string.rep('x', 60))",
    "redis.call('DEL', KEYS[2]) redis.call('RPUSH', KEYS[2], 'of another type')",
];
const DAMAGES_OF_PERMITS: usize = 7;
const DAMAGE: &str = "
    local function fence(number)
        local state = redis.call('HGET', KEYS[1], 's')
        redis.call('HSET', KEYS[1], 's',
                   string.sub(state, 1, 16) .. struct.pack('<d', number) .. string.sub(state, 25))
    end
    local function holder(text)
        for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
            if field ~= 'p' then redis.call('HSET', KEYS[2], field, text) end
        end
    end
    ";

fn damaged_records_harm_none_of_a_thousand_other_locks(backend: &Backend) {
    let manager = build(steady(backend));
    let mutexes: Vec<_> = (0..800)
        .map(|number| manager.lock(name(number)).expect("nobody else wants it"))
        .collect();
    let permits: Vec<_> = (0..300)
        .map(|number| {
            let semaphore = manager.semaphore(format!("s{number}"), 2);
            semaphore.acquire(1).expect("nobody else wants it")
        })
        .collect();
    let all = (mutexes.len() + permits.len()) as u64;
    until(TTL / 3 + SOON, "all have been renewed", || {
        manager.stats().renewals_confirmed >= all
    });
    // All over the pipelines and the calls for many.
    let mutexes_first = DAMAGES.len() - DAMAGES_OF_PERMITS;
    let place = |at: usize| 37 * at % 300;
    for (at, damage) in DAMAGES.iter().enumerate() {
        let name = if at < mutexes_first {
            name(place(at))
        } else {
            format!("s{}", place(at))
        };
        let record = Record::of(backend, &name);
        let holders = format!("{}:h", record.key);
        let script = format!("{DAMAGE}{damage}\n return 1");
        let _: i64 = backend.query(&["EVAL", &script, "2", &record.key, &holders]);
    }
    let is_damaged = |number: usize, kinds: std::ops::Range<usize>| {
        kinds.into_iter().any(|at| place(at) == number)
    };
    let before = manager.stats();
    // Four renewals take longer than a lease.
    let renewals = 4 * (all - DAMAGES.len() as u64);
    until(2 * TTL + SOON, "the others are renewed", || {
        manager.stats().renewals_confirmed >= before.renewals_confirmed + renewals
    });
    for (number, guard) in mutexes.iter().enumerate() {
        assert!(
            guard.is_held() || is_damaged(number, 0..mutexes_first),
            "{number}"
        );
    }
    for (number, guard) in permits.iter().enumerate() {
        assert!(
            guard.is_held() || is_damaged(number, mutexes_first..DAMAGES.len()),
            "permits {number}"
        );
    }
    assert_eq!(manager.stats().connects, before.connects);
}

/// The calls are renewals, checks of a waiter, and a call of a caller.
fn malformed_replies_about_one_name_end_no_connection(backend: &Backend) {
    let (ours, other) = (build(steady(backend).lanes(1)), build(steady(backend)));
    let holders = ["a", "b"].map(|name| other.lock(name).unwrap());
    let mut queues = ["a", "b"].map(Waiters::of);
    queues.iter_mut().for_each(|queue| queue.add(&ours));
    let guard = ours.lock("c").unwrap();
    until(TTL / 3 + SOON, "the renewal thread is connected", || {
        ours.stats().renewals_confirmed > 0
    });
    for name in ["a", "c"] {
        Record::of(backend, name).set(&[("f", "-5")]);
    }
    let before = ours.stats();
    match guard.renew() {
        Err(Error::Refused { code, .. }) => assert_eq!(code, "PROTOCOL"),
        other => panic!("{other:?}"),
    }
    until(TTL / 3 + SOON, "renewals have failed", || {
        ours.stats().renewals_failed >= before.renewals_failed + 3
    });
    let [a, b] = holders;
    b.unlock().unwrap();
    drop(queues[1].expect_grant(0, SOON));
    assert_eq!(ours.stats().connects, before.connects);
    drop(a);
}

fn a_lock_with_waiters_is_renewed_beside_others(backend: &Backend) {
    let (ours, other) = (build(steady(backend)), build(steady(backend)));
    let mut guards = locks(&ours);
    let mut waiters = Waiters::of(&name(3));
    waiters.add(&other);
    are_renewed(backend, 0..LOCKS);
    are_renewed(backend, 0..LOCKS);
    guards.remove(3).unlock().expect("it is held");
    drop(waiters.expect_grant(0, SOON));
}

fn r15_renewals_together_shorten_a_lease_after_a_clock_step(backend: &Backend) {
    let manager = build(steady(backend));
    let guards = locks(&manager);
    let record = Record::of(backend, &name(3));
    let far = server_time(backend) + 100 * TTL.as_micros() as u64;
    record.set(&[("e", &far.to_string())]);
    until(TTL / 3 + SLACK + SOON, "its lease is cut", || {
        let end: u64 = record.fields()["e"].parse().expect("a time");
        end <= server_time(backend) + TTL.as_micros() as u64
    });
    assert!(guards.iter().all(|guard| guard.is_held()));
}
