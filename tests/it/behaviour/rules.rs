//! The protocol's rules, each by its number, seen from outside: through the API, and by reading and rewriting
//! the record.

use std::collections::HashSet;
use std::time::Duration;

use fairlock::{Error, LockOptions, LossReason, PreviousHolder};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{
    P, Record, SOON, T, TTL, Waiters, build, manager, manager_of, micros, server_time, warm_up,
    with_ttl,
};
use crate::support::{SLACK, until, until_some};

on_both_stores! {
    r3_a_process_that_asks_counts_as_alive_when_it_does,
    r3_a_process_that_tries_a_lock_does_not_take_its_own_waiters_for_dead,
    r4_what_redis_forgot_is_enqueued_again_under_new_tokens_in_the_same_order,
    r9_a_lease_that_lapsed_is_the_owners_until_somebody_else_clears_it,
    r9_only_a_good_release_ends_the_trace_of_a_lapse,
    r15_a_clock_that_went_back_does_not_make_a_released_lock_cool,
    p2_every_way_of_a_grant_raises_a_fence_that_is_ahead_of_the_clock,
    r10_a_lease_that_lapsed_in_an_outage_costs_nobody_his_place,
    r10_a_process_whose_own_lease_lapsed_does_not_take_itself_for_dead,
    r13_a_grant_that_nobody_wants_is_released_at_once,
    r13_a_grant_to_a_place_that_nobody_has_is_found_by_the_next_check,
    r13_news_that_come_late_or_twice_harm_no_holder,
    r14_a_lost_lease_is_given_up_as_well,
    r15_no_other_lease_is_ever_shortened,
    r15_the_fence_and_its_memory_outlast_a_clock_that_went_back,
    r16_a_lock_that_is_to_be_held_at_least_cools,
    r16_a_lock_that_is_handed_over_is_held_at_least_as_long_as_one_that_was_free,
    r16_a_fixed_lease_that_may_wait_must_outlast_a_check,
}

fn r3_a_process_that_asks_counts_as_alive_when_it_does(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    // Nobody renews this lease, so that nobody but the waiter's process looks at the record.
    let _lapses = other
        .with(LockOptions::new().fixed_lease(10 * TTL))
        .lock("a")
        .unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    let record = Record::of(backend, "a");
    let token = record.tokens().remove(0);
    let stamp = record.starting("m:").remove(0);
    let since = record
        .field(&stamp)
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    // At once: the stamp is long past, and the lock is free.
    record.set(&[
        (&stamp, &format!("1 {since}")),
        ("v", "1000000000"),
        ("e", "1"),
    ]);
    let guard = waiter
        .wait_for(P + T + SLACK)
        .unwrap()
        .expect("it was not taken for dead");
    assert_eq!(record.owner(), Some(token), "in the place that it had");
    assert_eq!(ours.stats().requeued, 0);
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn r3_a_process_that_tries_a_lock_does_not_take_its_own_waiters_for_dead(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let _lapses = other
        .with(LockOptions::new().fixed_lease(10 * TTL))
        .lock("a")
        .unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let record = Record::of(backend, "a");
    let token = record.tokens().remove(0);
    let stamp = record.starting("m:").remove(0);
    let since = record
        .field(&stamp)
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    record.set(&[
        (&stamp, &format!("1 {since}")),
        ("v", "1000000000"),
        ("e", "1"),
    ]);
    assert!(
        ours.try_lock("a").unwrap().is_none(),
        "it got past a waiter of its own process"
    );
    assert_eq!(record.owner(), Some(token));
    waiter.wait().unwrap().unlock().unwrap();
    record.comes_to_rest();
}

fn r4_what_redis_forgot_is_enqueued_again_under_new_tokens_in_the_same_order(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let mut holder = other.lock("a").unwrap();
    let record = Record::of(backend, "a");
    let mut queue = Waiters::of("a");
    (0..6).for_each(|_| queue.add(&ours));
    let before: HashSet<String> = record.tokens().into_iter().collect();
    // The lock itself is taken again before any waiter is back.
    let taken = loop {
        let _: i64 = backend.query(&["DEL", &record.key, &record.queue]);
        if let Some(taken) = other.try_lock("a").unwrap() {
            break taken;
        }
        // A waiter was faster, and has it.
        let (_, guard) = queue.next_end(SOON);
        drop(guard);
        queue = Waiters::of("a");
        until(SOON, "all have gone", || ours.stats().waiting == 0);
        (0..6).for_each(|_| queue.add(&ours));
    };
    std::mem::replace(&mut holder, taken).lost();
    until(SOON, "all are back", || record.tokens().len() == 6);
    let after: HashSet<String> = record.tokens().into_iter().collect();
    assert!(
        before.is_disjoint(&after),
        "every attempt has a token of its own"
    );
    until(SLACK, "each is counted", || {
        ours.stats().requeued > 0 && ours.stats().requeued % 6 == 0
    });
    holder.unlock().unwrap();
    for who in 0..6 {
        queue.expect_grant(who, P + T + SLACK).unlock().unwrap();
    }
    record.comes_to_rest();
}

fn r9_a_lease_that_lapsed_is_the_owners_until_somebody_else_clears_it(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let lapse = || {
        let past = server_time(backend) - micros(TTL);
        record.set(&[("e", &past.to_string())]);
    };
    // A renewal extends it.
    let guard = ours.lock("a").unwrap();
    lapse();
    guard.renew().unwrap();
    assert!(record.number("e") > server_time(backend));
    // A release clears it, as a good one.
    lapse();
    guard.unlock().unwrap();
    let guard = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    guard.unlock().unwrap();
    // One that has more to see to than the usual, too.
    let hold = Duration::from_millis(1);
    let guard = ours
        .with(LockOptions::new().hold_at_least(hold))
        .lock("a")
        .unwrap();
    until(SLACK, "its least time is over", || {
        server_time(backend) > record.number("g") + micros(hold)
    });
    lapse();
    guard.unlock().unwrap();
    let guard = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    // Another token sees it as free, and from then on it is lost.
    lapse();
    let next = ours.try_lock("a").unwrap().expect("it has lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let loss = guard
        .lost()
        .recv_timeout(TTL / 3 + SLACK)
        .expect("the loss is told");
    assert_eq!(loss.reason, LossReason::Expired);
    // What tells of the loss leaves the successor alone.
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r9_only_a_good_release_ends_the_trace_of_a_lapse(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    // Short, but longer than the way of a reply on a busy machine.
    let fixed = ours.with(LockOptions::new().fixed_lease(T / 2));
    drop(ours.lock("a").unwrap());
    std::mem::forget(fixed.try_lock("a").unwrap().expect("it is free"));
    // Each one lapses as well.
    let second = until_some(SOON, "the first lapses", || match fixed.try_lock("a") {
        Err(Error::Lost { .. }) => None,
        other => other.unwrap(),
    });
    assert_eq!(second.previous_holder(), PreviousHolder::Lapsed);
    std::mem::forget(second);
    let third = other.try_lock_for("a", SOON).unwrap().expect("it lapses");
    assert_eq!(third.previous_holder(), PreviousHolder::Lapsed);
    assert!(record.number("x") < third.fence());
    third.unlock().unwrap();
    let fourth = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(fourth.previous_holder(), PreviousHolder::Released);
}

fn r15_a_clock_that_went_back_does_not_make_a_released_lock_cool(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let holder = ours.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    record.set(&[(
        "g",
        &(server_time(backend) + micros(Duration::from_secs(1800))).to_string(),
    )]);
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    // One that is to be held for a while cools from now on, and not from then.
    let short = LockOptions::new().ttl(4 * TTL).hold_at_least(T / 2);
    let holder = ours.with(short).lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    record.set(&[(
        "g",
        &(server_time(backend) + micros(Duration::from_secs(1800))).to_string(),
    )]);
    holder.unlock().unwrap();
    queue
        .expect_grant(0, T / 2 + P + T + SLACK)
        .unlock()
        .unwrap();
    record.comes_to_rest();
}

fn p2_every_way_of_a_grant_raises_a_fence_that_is_ahead_of_the_clock(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let ahead = server_time(backend) + micros(Duration::from_secs(1800));
    drop(ours.lock("a").unwrap());
    record.set(&[("f", &ahead.to_string())]);
    let uncontended = ours.lock("a").unwrap();
    assert_eq!(uncontended.fence(), ahead + 1);
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&other);
    uncontended.unlock().unwrap();
    let within = queue.expect_grant(0, SOON);
    assert_eq!(within.fence(), ahead + 2, "handed over within a process");
    within.unlock().unwrap();
    let across = queue.expect_grant(1, SOON);
    assert_eq!(across.fence(), ahead + 3, "handed over to another");
    across.unlock().unwrap();
    record.comes_to_rest();
}

fn r10_a_lease_that_lapsed_in_an_outage_costs_nobody_his_place(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    warm_up(&ours);
    warm_up(&other);
    let record = Record::of(backend, "a");
    for _ in 0..2 {
        let holder = ours.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&ours);
        queue.add(&other);
        // As an outage leaves it that was longer than the lease.
        let past = (server_time(backend) - 2 * micros(P + T)).to_string();
        record.set(&[("e", &past), ("s", &past)]);
        // The first to come back is somebody else.
        assert!(other.try_lock("a").unwrap().is_none());
        // It may have been handed on already, to the waiter of the holder's own process.
        let _ = holder.unlock();
        queue.expect_grant(0, 2 * (P + T) + SLACK).unlock().unwrap();
        queue.expect_grant(1, 2 * (P + T) + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeued + other.stats().requeued, 0);
    record.comes_to_rest();
}

fn r10_a_process_whose_own_lease_lapsed_does_not_take_itself_for_dead(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    let _lapses = manager.lock("a").unwrap();
    let waiter = manager.enqueue("a").unwrap();
    let leaves = manager.enqueue("a").unwrap();
    let first = record.tokens().remove(0);
    record.set(&[("e", &(server_time(backend) - 1).to_string())]);
    // Whoever leaves the queue sees the lapse.
    drop(leaves);
    assert_eq!(record.owner(), Some(first), "in the place that it had");
    waiter.wait().unwrap().unlock().unwrap();
    assert_eq!(manager.stats().requeued, 0);
}

/// A record in which a token owns the lock that nobody has.
fn plant(backend: &Backend, name: &str, token: &str, of: &str) -> String {
    let record = Record::of(backend, name);
    let now = server_time(backend);
    let (now, end) = (now.to_string(), (now + 60_000_000).to_string());
    record.set(&[
        ("k", "mutex/1"),
        ("o", token),
        ("a", &format!("0 {now} {of} 60000 0 0")),
        ("l", "host\t1\t-\t"),
        ("e", &end),
        ("g", &now),
        ("f", &now),
        ("x", "0"),
        ("ttl", "60000"),
    ]);
    let expires_at_ms = (server_time(backend) / 1000 + 120_000).to_string();
    let _: i64 = backend.query(&["PEXPIREAT", &record.key, &expires_at_ms]);
    format!("{token} {now} {now} 60000000 0 {}", record.key)
}

/// The channel of a manager that was warmed up, which listens to it.
fn listening(backend: &Backend) -> String {
    let request = Record::of(backend, "warm")
        .field("a")
        .expect("it was granted");
    let channel = format!("fairlock:grants:{}", manager_of(&request));
    until(SOON, "it listens", || {
        backend.query::<u64>(&["PUBLISH", &channel, ""]) == 1
    });
    channel
}

fn r13_a_grant_that_nobody_wants_is_released_at_once(backend: &Backend) {
    let manager = manager(backend);
    warm_up(&manager);
    let channel = listening(backend);
    let of = channel.rsplit(':').next().unwrap();
    let message = plant(backend, "a", "0123456789abcdef0123456789abcdef", of);
    assert!(manager.try_lock("a").unwrap().is_none());
    let _: i64 = backend.query(&["PUBLISH", &channel, &message]);
    Record::of(backend, "a").comes_to_rest();
    // As unused: what the holder before left behind is not forgotten.
    let guard = manager.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
}

/// Its message was lost, and so would be a ttl.
fn r13_a_grant_to_a_place_that_nobody_has_is_found_by_the_next_check(backend: &Backend) {
    let manager = manager(backend);
    warm_up(&manager);
    let of = manager_of(&Record::of(backend, "warm").field("a").unwrap());
    let record = Record::of(backend, "a");
    plant(backend, "a", "0123456789abcdef0123456789abcdef", &of);
    let mut waiter = manager.enqueue("a").unwrap();
    let served = |ticket: u64, of: &str| {
        record.set(&[(
            "a",
            &format!("{ticket} {} {of} 60000 0 0", server_time(backend)),
        )]);
    };
    // Another process's, and one that was free and taken at once, which is any guard's of this process.
    for (ticket, of) in [(1, "0123456789abcdef"), (0, &of)] {
        served(ticket, of);
        assert!(waiter.wait_for(P + T).unwrap().is_none() && record.owner().is_some());
    }
    served(1, &of);
    let guard = waiter
        .wait_for(P + T + SLACK)
        .unwrap()
        .expect("the owner before was given back");
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn r13_news_that_come_late_or_twice_harm_no_holder(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    warm_up(&ours);
    let channel = listening(backend);
    let record = Record::of(backend, "a");
    let holder = other.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    holder.unlock().unwrap();
    let guard = queue.expect_grant(0, P + T + SLACK);
    let owner = record.owner().unwrap();
    let [f, g] = ["f", "g"].map(|field| record.number(field));
    let again = format!("{owner} {f} {g} {} 0 {}", TTL.as_micros(), record.key);
    let after = plant(backend, "after", "0123456789abcdef0123456789abcdef", "x");
    for _ in 0..3 {
        let _: i64 = backend.query(&["PUBLISH", &channel, &again]);
    }
    for nonsense in [
        "",
        " ",
        "a b c d e f",
        &"x".repeat(100_000),
        "0123 1 1 1 1 fairlock:{a}",
    ] {
        let _: i64 = backend.query(&["PUBLISH", &channel, nonsense]);
    }
    let _: i64 = backend.query(&["PUBLISH", &channel, &after]);
    // Messages are taken in order: once this one was acted upon, so were those before.
    Record::of(backend, "after").comes_to_rest();
    assert_eq!(record.owner(), Some(owner));
    guard.renew().unwrap();
    guard.unlock().unwrap();
    // And after the release, while somebody else has it.
    let next = other.lock("a").unwrap();
    let after = plant(backend, "after", "0123456789abcdef0123456789abcdef", "x");
    let _: i64 = backend.query(&["PUBLISH", &channel, &again]);
    let _: i64 = backend.query(&["PUBLISH", &channel, &after]);
    Record::of(backend, "after").comes_to_rest();
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r14_a_lost_lease_is_given_up_as_well(backend: &Backend) {
    let manager = manager(backend);
    let guard = manager
        .with(LockOptions::new().max_hold(T))
        .lock("a")
        .unwrap();
    let loss = guard
        .lost()
        .recv_timeout(T + T + SLACK)
        .expect("it may be held no longer");
    assert_eq!(loss.reason, LossReason::MaxHold);
    Record::of(backend, "a").comes_to_rest();
    drop(guard);
}

fn r15_no_other_lease_is_ever_shortened(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let guard = ours
        .with(LockOptions::new().ttl(TTL).hold_at_least(10 * TTL))
        .lock("a")
        .unwrap();
    let end = record.number("e");
    assert_eq!(
        end,
        record.number("g") + micros(10 * TTL),
        "R16: the longer of the two"
    );
    guard.renew().unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    let renewed = ours.stats().renewed;
    until(TTL, "the renewal thread comes by", || {
        ours.stats().renewed > renewed
    });
    assert!(other.try_lock_for("a", 2 * P).unwrap().is_none());
    assert_eq!(record.number("e"), end);
}

fn r15_the_fence_and_its_memory_outlast_a_clock_that_went_back(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    manager.lock("a").unwrap().unlock().unwrap();
    // An hour ahead of the server's clock, as after a step back; and close to what a double can count.
    for ahead in [server_time(backend) + 3_600_000_000, (1 << 53) - 1000] {
        record.set(&[("f", &ahead.to_string()), ("x", &ahead.to_string())]);
        for n in 1..4 {
            let guard = manager.lock("a").unwrap();
            assert_eq!(guard.fence(), ahead + n, "R20: to the last digit");
            guard.unlock().unwrap();
            if let Some(server) = backend.server() {
                let keeps: u64 = server.query(&["PEXPIRETIME", &record.key]);
                assert!(keeps >= ahead / 1000 + 3_600_000, "an hour past the fence");
            }
        }
    }
}

fn r16_a_lock_that_is_to_be_held_at_least_cools(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let least = 3 * T;
    let guard = ours
        .with(LockOptions::new().ttl(TTL).hold_at_least(least))
        .lock("a")
        .unwrap();
    let granted = record.number("g");
    guard.unlock().unwrap();
    assert_eq!(
        (record.owner(), record.number("e")),
        (None, granted + micros(least))
    );
    assert!(ours.try_lock("a").unwrap().is_none() && other.try_lock("a").unwrap().is_none());
    let mut queue = Waiters::of("a");
    queue.add(&other);
    let next = queue.expect_grant(0, least + P + T + SLACK);
    assert!(
        record.number("g") >= granted + micros(least),
        "not before its time"
    );
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r16_a_lock_that_is_handed_over_is_held_at_least_as_long_as_one_that_was_free(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let holder = other.lock("a").unwrap();
    let waiter = ours
        .with(LockOptions::new().ttl(TTL).hold_at_least(10 * TTL))
        .enqueue("a")
        .unwrap();
    holder.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    assert_eq!(record.number("e"), record.number("g") + micros(10 * TTL));
    assert!(guard.remaining() > 9 * TTL, "{:?}", guard.remaining());
    guard.unlock().unwrap();
    assert!(other.try_lock("a").unwrap().is_none(), "it cools");
}

fn r16_a_fixed_lease_that_may_wait_must_outlast_a_check(backend: &Backend) {
    // P + 2 T is 1.4 s here.
    let manager = build(
        with_ttl(backend, 2 * TTL)
            .check_period(Duration::from_millis(400))
            .command_timeout(Duration::from_millis(500)),
    );
    let short = manager.with(LockOptions::new().fixed_lease(Duration::from_millis(1400)));
    for end in [
        short.lock("a").err(),
        short.enqueue("a").err(),
        short.try_lock_for("a", T).err(),
    ] {
        assert!(matches!(end, Some(Error::Config { .. })), "{end:?}");
    }
    assert!(Record::of(backend, "a").fields().is_empty());
    drop(
        short
            .try_lock("a")
            .unwrap()
            .expect("for a try it is long enough"),
    );
    let long = manager.with(LockOptions::new().fixed_lease(Duration::from_millis(1500)));
    let holder = manager.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&long);
    holder.unlock().unwrap();
    let guard = queue.expect_grant(0, SOON);
    let granted = Record::of(backend, "a").number("g");
    guard
        .lost()
        .recv_timeout(Duration::from_millis(1500) + SLACK)
        .expect("nobody renews it");
    assert_eq!(Record::of(backend, "a").number("g"), granted);
}
