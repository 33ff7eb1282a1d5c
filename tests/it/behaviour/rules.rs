//! The protocol's rules, each by its number, seen from outside: through the API, and by reading and
//! rewriting the record.

use std::collections::HashSet;
use std::time::Duration;

use fairlock::{Error, LockOptions, LossReason, Misuse, PreviousHolder};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{
    P, Record, SOON, T, TTL, Waiters, build, manager, manager_of, micros, server_time, warm_up,
    with_ttl,
};
use crate::support::{SLACK, until, until_some};

on_both_stores! {
    r3_a_request_counts_as_a_sign_of_life,
    r3_a_try_does_not_count_its_own_waiters_as_dead,
    r4_lost_waiters_requeue_with_new_tokens_in_order,
    r9_a_lapsed_lease_stays_its_owners_until_cleared,
    r9_only_a_proper_release_clears_the_lapsed_mark,
    r15_a_clock_step_back_does_not_make_a_lock_cool,
    p2_every_grant_raises_a_fence_ahead_of_the_clock,
    r10_a_lapse_in_an_outage_costs_no_waiter_its_place,
    r10_a_process_does_not_take_itself_for_dead,
    r13_an_unwanted_grant_is_released_at_once,
    r13_an_unwanted_grant_is_found_by_the_next_check,
    r13_late_or_repeated_messages_harm_no_holder,
    r14_a_lost_lease_is_released,
    r15_no_other_lease_is_ever_shortened,
    r15_the_fence_and_its_record_outlast_a_clock_step_back,
    r16_a_lock_with_hold_at_least_cools,
    r16_hold_at_least_also_applies_after_a_hand_over,
    r16_a_waiting_fixed_lease_must_outlast_a_check,
}

fn r3_a_request_counts_as_a_sign_of_life(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    // Nobody renews this fixed lease, so only the waiter's process touches the record.
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
    // Set in one step: the stamp is long past, and the lock is free.
    record.set(&[
        (&stamp, &format!("1 {since}")),
        ("v", "1000000000"),
        ("e", "1"),
    ]);
    let guard = waiter
        .wait_for(P + T + SLACK)
        .unwrap()
        .expect("it was not taken for dead");
    assert_eq!(record.owner(), Some(token), "in its old place");
    assert_eq!(ours.stats().requeues, 0);
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn r3_a_try_does_not_count_its_own_waiters_as_dead(backend: &Backend) {
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
        "it overtook a waiter of its own process"
    );
    assert_eq!(record.owner(), Some(token));
    waiter.wait().unwrap().unlock().unwrap();
    record.comes_to_rest();
}

fn r4_lost_waiters_requeue_with_new_tokens_in_order(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let mut holder = other.lock("a").unwrap();
    let record = Record::of(backend, "a");
    let mut queue = Waiters::of("a");
    (0..6).for_each(|_| queue.add(&ours));
    let before: HashSet<String> = record.tokens().into_iter().collect();
    // Another manager takes the lock before any waiter is back.
    let taken = loop {
        let _: i64 = backend.query(&["DEL", &record.key, &record.queue]);
        if let Some(taken) = other.try_lock("a").unwrap() {
            break taken;
        }
        // A waiter was faster and holds it.
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
        ours.stats().requeues > 0 && ours.stats().requeues % 6 == 0
    });
    holder.unlock().unwrap();
    for waiter in 0..6 {
        queue.expect_grant(waiter, P + T + SLACK).unlock().unwrap();
    }
    record.comes_to_rest();
}

fn r9_a_lapsed_lease_stays_its_owners_until_cleared(backend: &Backend) {
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
    // A release clears it properly.
    lapse();
    guard.unlock().unwrap();
    let guard = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    guard.unlock().unwrap();
    // The same for a release that has to start a cooling.
    let hold = Duration::from_millis(1);
    let guard = ours
        .with(LockOptions::new().hold_at_least(hold))
        .lock("a")
        .unwrap();
    until(SLACK, "the cooling is over", || {
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
        .expect("the loss is reported");
    assert_eq!(loss.reason, LossReason::Expired);
    // Reporting the loss leaves the successor alone.
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r9_only_a_proper_release_clears_the_lapsed_mark(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    // Short, but longer than a reply takes on a busy machine.
    let fixed = ours.with(LockOptions::new().fixed_lease(T / 2));
    drop(ours.lock("a").unwrap());
    std::mem::forget(fixed.try_lock("a").unwrap().expect("it is free"));
    // Each of these leases lapses as well.
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

fn r15_a_clock_step_back_does_not_make_a_lock_cool(backend: &Backend) {
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
    // A lock with `hold_at_least` cools from now on, and not from the old time.
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

fn p2_every_grant_raises_a_fence_ahead_of_the_clock(backend: &Backend) {
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

fn r10_a_lapse_in_an_outage_costs_no_waiter_its_place(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    warm_up(&ours);
    warm_up(&other);
    let record = Record::of(backend, "a");
    for _ in 0..2 {
        let holder = ours.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&ours);
        queue.add(&other);
        // The state after an outage that was longer than the lease.
        let past = (server_time(backend) - 2 * micros(P + T)).to_string();
        record.set(&[("e", &past), ("s", &past)]);
        // Another process is the first to come back.
        assert!(other.try_lock("a").unwrap().is_none());
        // It may have been handed on already, to a waiter of the holder's own process.
        let _ = holder.unlock();
        queue.expect_grant(0, 2 * (P + T) + SLACK).unlock().unwrap();
        queue.expect_grant(1, 2 * (P + T) + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeues + other.stats().requeues, 0);
    record.comes_to_rest();
}

fn r10_a_process_does_not_take_itself_for_dead(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    let _lapses = manager.lock("a").unwrap();
    let waiter = manager.enqueue("a").unwrap();
    let leaves = manager.enqueue("a").unwrap();
    let first = record.tokens().remove(0);
    record.set(&[("e", &(server_time(backend) - 1).to_string())]);
    // The request that leaves the queue sees the lapse.
    drop(leaves);
    assert_eq!(record.owner(), Some(first), "in its old place");
    waiter.wait().unwrap().unlock().unwrap();
    assert_eq!(manager.stats().requeues, 0);
}

/// Writes a record in which the lock is owned by an unknown token.
fn plant(backend: &Backend, name: &str, token: &str, of: &str) -> String {
    let record = Record::of(backend, name);
    let now = server_time(backend);
    let end = (now + 60_000_000).to_string();
    let now = now.to_string();
    record.set(&[
        ("k", "mutex/1"),
        ("o", token),
        ("a", &format!("0 {now} {of} 60000 0 0")),
        ("l", "host\t1\t-#1\t"),
        ("e", &end),
        ("g", &now),
        ("f", &now),
        ("x", "0"),
        ("ttl", "60000"),
    ]);
    let expires_at_ms = (server_time(backend) / 1000 + 120_000).to_string();
    let _: i64 = backend.query(&["PEXPIREAT", &record.key, &expires_at_ms]);
    format!("0 {token} {now} {now} 60000000 0 {}", record.key)
}

/// The grant channel of a warmed-up manager, once it has subscribed.
fn listening(backend: &Backend) -> String {
    let request = Record::of(backend, "warm")
        .field("a")
        .expect("it was granted");
    let channel = format!("fairlock:grants:{}", manager_of(&request));
    until(SOON, "it has subscribed", || {
        backend.query::<u64>(&["PUBLISH", &channel, ""]) == 1
    });
    channel
}

fn r13_an_unwanted_grant_is_released_at_once(backend: &Backend) {
    let manager = manager(backend);
    warm_up(&manager);
    let channel = listening(backend);
    let of = channel.rsplit(':').next().unwrap();
    let message = plant(backend, "a", "0123456789abcdef0123456789abcdef", of);
    assert!(manager.try_lock("a").unwrap().is_none());
    let _: i64 = backend.query(&["PUBLISH", &channel, &message]);
    Record::of(backend, "a").comes_to_rest();
    // It is released as unused, so it does not change what the previous holder left.
    let guard = manager.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
}

/// The message of that grant was lost. Without the check, the lock would stay taken for a ttl.
fn r13_an_unwanted_grant_is_found_by_the_next_check(backend: &Backend) {
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
    // Not touched: a grant of another process, and one of this process that was granted without
    // waiting (ticket 0), which may belong to any guard.
    for (ticket, of) in [(1, "0123456789abcdef"), (0, &of)] {
        served(ticket, of);
        assert!(waiter.wait_for(P + T).unwrap().is_none() && record.owner().is_some());
    }
    served(1, &of);
    let guard = waiter
        .wait_for(P + T + SLACK)
        .unwrap()
        .expect("the unwanted grant was released");
    guard.unlock().unwrap();
    record.comes_to_rest();
}

fn r13_late_or_repeated_messages_harm_no_holder(backend: &Backend) {
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
    let again = format!("0 {owner} {f} {g} {} 0 {}", TTL.as_micros(), record.key);
    let after = plant(backend, "after", "0123456789abcdef0123456789abcdef", "x");
    for _ in 0..3 {
        let _: i64 = backend.query(&["PUBLISH", &channel, &again]);
    }
    for nonsense in [
        "",
        " ",
        "a b c d e f",
        &"x".repeat(100_000),
        "0 0123 1 1 1 1 fairlock:{a}",
    ] {
        let _: i64 = backend.query(&["PUBLISH", &channel, nonsense]);
    }
    let _: i64 = backend.query(&["PUBLISH", &channel, &after]);
    // Messages are handled in order. Once this one was handled, so were all before it.
    Record::of(backend, "after").comes_to_rest();
    assert_eq!(record.owner(), Some(owner));
    guard.renew().unwrap();
    guard.unlock().unwrap();
    // The same after the release, while another manager holds it.
    let next = other.lock("a").unwrap();
    let after = plant(backend, "after", "0123456789abcdef0123456789abcdef", "x");
    let _: i64 = backend.query(&["PUBLISH", &channel, &again]);
    let _: i64 = backend.query(&["PUBLISH", &channel, &after]);
    Record::of(backend, "after").comes_to_rest();
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r14_a_lost_lease_is_released(backend: &Backend) {
    let manager = manager(backend);
    let guard = manager
        .with(LockOptions::new().max_hold(T))
        .lock("a")
        .unwrap();
    let loss = guard
        .lost()
        .recv_timeout(T + T + SLACK)
        .expect("max_hold has passed");
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
    let renewed = ours.stats().renewals_confirmed;
    until(TTL, "the renewal thread renews it", || {
        ours.stats().renewals_confirmed > renewed
    });
    assert!(other.try_lock_for("a", 2 * P).unwrap().is_none());
    assert_eq!(record.number("e"), end);
}

fn r15_the_fence_and_its_record_outlast_a_clock_step_back(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    manager.lock("a").unwrap().unlock().unwrap();
    // First an hour ahead of the server's clock, as after a step back; then close to the largest
    // exact integer of a double.
    for ahead in [server_time(backend) + 3_600_000_000, (1 << 53) - 1000] {
        record.set(&[("f", &ahead.to_string()), ("x", &ahead.to_string())]);
        for n in 1..4 {
            let guard = manager.lock("a").unwrap();
            assert_eq!(guard.fence(), ahead + n, "R20: to the last digit");
            guard.unlock().unwrap();
            if let Some(server) = backend.server() {
                let keeps = server.expires_at(&record.key).cast_unsigned();
                assert!(keeps >= ahead / 1000 + 3_600_000, "an hour past the fence");
            }
        }
    }
}

fn r16_a_lock_with_hold_at_least_cools(backend: &Backend) {
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

fn r16_hold_at_least_also_applies_after_a_hand_over(backend: &Backend) {
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

fn r16_a_waiting_fixed_lease_must_outlast_a_check(backend: &Backend) {
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
        assert!(
            matches!(
                end,
                Some(Error::Misused {
                    misuse: Misuse::Setting { .. },
                    ..
                })
            ),
            "{end:?}"
        );
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
