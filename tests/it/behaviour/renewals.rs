//! Renewals of several mutexes that go together, in one call of a script.

use fairlock::{LockGuard, LockManager, LossReason};

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
    assert!(guards.iter().all(LockGuard::is_held));
    loss.expect("its loss is reported").reason
}

fn renewals_of_many_names_share_their_requests(backend: &Backend) {
    let manager = build(steady(backend));
    let guards = locks(&manager);
    are_renewed(backend, 0..LOCKS);
    let before = manager.stats();
    are_renewed(backend, 0..LOCKS);
    let after = manager.stats();
    let renewed = after.renewed - before.renewed;
    let requests = after.requests - before.requests;
    assert!(renewed >= LOCKS as u64);
    assert!(
        requests * 4 <= renewed,
        "{requests} requests for {renewed} renewals"
    );
    assert!(guards.iter().all(LockGuard::is_held));
}

fn a_lost_record_is_reported_and_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["DEL", &record.key]);
    });
    assert_eq!(reason, LossReason::Taken);
}

fn a_lock_with_another_owner_is_reported_and_harms_no_other_renewal(backend: &Backend) {
    let reason = loss_among_others(backend, |record| {
        let _: u64 = backend.query(&["HSET", &record.key, "o", &"0".repeat(32)]);
    });
    assert_eq!(reason, LossReason::Taken);
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
    assert!(guards.iter().all(LockGuard::is_held));
}
