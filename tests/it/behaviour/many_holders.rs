//! A name with so many holders that one call sees only some of them.

use std::time::Duration;

use fairlock::{Error, LossReason, PreviousHolder, RwLock};

use super::changes::plant_dead_waiters;
use crate::backend::{Backend, Keyspace, on_both_stores};
use crate::fixtures::{P, SOON, T, TTL, manager};
use crate::managers::patient;
use crate::permits::{PermitWaiters, Permits, Want};
use crate::support::{SLACK, until};

on_both_stores! {
    all_of_many_lapsed_holders_are_found_by_a_try,
    p5_a_waiter_gets_the_permits_of_many_lapsed_holders,
    force_release_ends_readers_on_all_pages_once,
    inspect_shows_the_holders_of_several_pages,
    p7_a_release_does_not_succeed_for_another_lease_of_its_token,
    a_page_of_a_look_shortens_no_keys_ttl,
    dead_waiters_with_less_capacity_do_not_refuse_a_try,
}

const MANY: u32 = 500;

/// Copies a holder, `many` times, under other tokens. The leases end `ahead` µs from now. The
/// next call looks at the holders.
pub(crate) fn plant_holders(backend: &dyn Keyspace, record: &Permits<'_>, many: u32, ahead: i64) {
    let script = "
        local all, clock, holder = redis.call('HGETALL', KEYS[1]), redis.call('TIME'), nil
        for i = 1, #all, 2 do if #all[i] == 32 then holder = all[i + 1] end end
        local now = clock[1] * 1000000 + clock[2]
        local lease_end, weight = struct.pack('<d', now + ARGV[2]), struct.unpack('<I4', string.sub(holder, 17))
        local added = 0
        for i = 1, ARGV[1] + 0 do
          added = added
            + redis.call('HSET', KEYS[1], string.format('%032x', i), lease_end .. string.sub(holder, 9))
        end
        local p = redis.call('HGET', KEYS[1], 'p')
        redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 8) .. struct.pack('<d', now) .. string.sub(p, 17, 40)
          .. struct.pack('<I4', struct.unpack('<I4', string.sub(p, 41)) + weight * added) .. string.sub(p, 45))
        return 1";
    let (many, ahead) = (many.to_string(), ahead.to_string());
    let command = ["EVAL", script, "1", &record.holders, &many, &ahead];
    let _: i64 = backend.query(&command);
}

fn all_of_many_lapsed_holders_are_found_by_a_try(backend: &Backend) {
    // The looks of a try end with its time.
    let mgr = patient(backend);
    let record = Permits::of(backend, "n");
    let n = mgr.semaphore("n", 10_000);
    let kept = n.acquire(1).unwrap();
    plant_holders(backend, &record, MANY, -1);
    // One call of the script does not see all of them, so it asks to be called again.
    let rest = n.try_acquire(9_999).unwrap().expect("they lapsed");
    assert_eq!(rest.previous_holder(), PreviousHolder::Lapsed);
    assert_eq!(record.used(), 10_000);
    kept.renew().unwrap();
    rest.unlock().unwrap();
    kept.unlock().unwrap();
    record.comes_to_rest();
}

fn p5_a_waiter_gets_the_permits_of_many_lapsed_holders(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "n");
    let kept = Want::Permits(1, 10_000).take(&ours, "n").unwrap();
    // The planted leases end while the waiter waits, on a busy machine, too.
    plant_holders(
        backend,
        &record,
        MANY,
        i64::try_from(TTL.as_micros()).unwrap(),
    );
    let mut queue = PermitWaiters::of(backend, "n");
    queue.add(&other, Want::Permits(9_999, 10_000));
    // A look is put off by 50 µs for each holder.
    let put_off = Duration::from_micros(50) * (MANY + 1);
    let rest = queue.expect_grant(0, TTL + put_off + P + T + SLACK);
    assert_eq!(record.used(), 10_000);
    kept.unlock().unwrap();
    rest.unlock().unwrap();
    record.comes_to_rest();
}

fn force_release_ends_readers_on_all_pages_once(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "r");
    let reader = Want::Read.take(&ours, "r").unwrap();
    plant_holders(backend, &record, MANY, 60_000_000);
    let mut queue = PermitWaiters::of(backend, "r");
    queue.add(&other, Want::Write);
    assert!(!other.force_release("r", reader.fence() - 1).unwrap());
    assert_eq!(record.used(), u64::from(MANY) + 1);
    assert!(other.force_release("r", reader.fence()).unwrap());
    let writer = queue.expect_grant(0, P + T + SLACK);
    let loss = reader.lost().recv_timeout(SOON).expect("it is reported");
    assert_eq!(loss.reason, LossReason::Forced);
    assert!(!other.force_release("r", reader.fence()).unwrap());
    writer.unlock().unwrap();
    drop(reader);
    record.comes_to_rest();
}

fn inspect_shows_the_holders_of_several_pages(backend: &Backend) {
    let mgr = manager(backend);
    let record = Permits::of(backend, "n");
    let kept = Want::Permits(1, 10_000).take(&mgr, "n").unwrap();
    // Each of them is another lease, with a time of the grant of its own.
    let script = "
        local all, holder = redis.call('HGETALL', KEYS[1]), nil
        for i = 1, #all, 2 do if #all[i] == 32 then holder = all[i + 1] end end
        local before, at, after = string.match(string.sub(holder, 23), '^(%S+ %d+ %d+ %d+ )(%d+)(.*)$')
        for i = 1, ARGV[1] + 0 do
          redis.call('HSET', KEYS[1], string.format('%032x', i),
            string.sub(holder, 1, 22) .. before .. string.format('%.0f', at - i) .. after)
        end
        return 1";
    for (many, shown) in [(200, 201), (1500, 1000)] {
        let _: i64 = backend.query(&["EVAL", script, "1", &record.holders, &i32::to_string(&many)]);
        let info = mgr.inspect("n").unwrap().expect("it is held");
        assert_eq!(info.holders.len(), shown);
        assert_eq!(mgr.list("*").count(), 1);
    }
    kept.unlock().unwrap();
}

/// A late copy of the acquire, or older data, gave the token another lease. Others may have held
/// the permits before that.
fn p7_a_release_does_not_succeed_for_another_lease_of_its_token(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let other_fence = "
        local all = redis.call('HGETALL', KEYS[1])
        for i = 1, #all, 2 do
          if #all[i] == 32 then
            local before, fence, after = string.match(string.sub(all[i + 1], 23), '^(%S+ %d+ )(%d+)(.*)$')
            redis.call('HSET', KEYS[1], all[i], string.sub(all[i + 1], 1, 22) .. before
              .. string.format('%.0f', fence + 1) .. after)
          end
        end
        return 1";
    for (name, want) in [
        ("n", Want::Permits(2, 3)),
        ("w", Want::Write),
        ("r", Want::Read),
    ] {
        let record = Permits::of(backend, name);
        let guard = want.take(&ours, name).unwrap();
        let _: i64 = backend.query(&["EVAL", other_fence, "1", &record.holders]);
        let end = guard.unlock();
        assert!(matches!(&end, Err(Error::Lost { .. })), "{want:?}: {end:?}");
        // Nobody wants that lease, so it is over as well.
        until(P + T + SLACK, "the permits are free", || record.used() == 0);
        let next = want.try_take(&other, name).unwrap().expect("it is free");
        assert_ne!(next.previous_holder(), PreviousHolder::Released);
        next.unlock().unwrap();
        record.comes_to_rest();
    }
    // A downgrade reports it, too.
    let record = Permits::of(backend, "d");
    let writer = ours.rw_lock("d").write().unwrap();
    let _: i64 = backend.query(&["EVAL", other_fence, "1", &record.holders]);
    let end = RwLock::downgrade(writer);
    assert!(matches!(&end, Err(Error::Lost { .. })), "{end:?}");
    record.comes_to_rest();
}

/// A lease of a day, among many short ones. A page without it must not decide how long the keys
/// last.
fn a_page_of_a_look_shortens_no_keys_ttl(backend: &Backend) {
    const DAY: &str = "86400000";
    let mgr = manager(backend);
    // The last calls that set an expiry were renewals of the long lease.
    let renewed = "
        local clock = redis.call('TIME')
        local ends = clock[1] * 1000000 + clock[2] + 1000 * ARGV[1]
        local token, p = string.format('%032x', 7), redis.call('HGET', KEYS[1], 'p')
        local holder = redis.call('HGET', KEYS[1], token)
        redis.call('HSET', KEYS[1], token,
          struct.pack('<dI4', ends, ARGV[1]) .. string.sub(holder, 13),
          'p', string.sub(p, 1, 20) .. struct.pack('<I4I4I4I4', ARGV[1], 0, clock[1], clock[1])
            .. string.sub(p, 37))
        local expires_at = string.format('%.0f', 1000 * clock[1] + ARGV[1] + 3600000)
        for i = 1, 2 do redis.call('PEXPIREAT', KEYS[i], expires_at) end
        return 1";
    // In some of these the first page may have the long lease.
    for name in ["a", "b", "c", "d"] {
        let record = Permits::of(backend, name);
        let n = mgr.semaphore(name, 10_000);
        let kept = n.acquire(1).unwrap();
        plant_holders(backend, &record, MANY, -1);
        let command = ["EVAL", renewed, "2", &record.holders, &record.key, DAY];
        let _: i64 = backend.query(&command);
        drop(n.acquire(1).unwrap());
        for key in [&record.holders, &record.key] {
            let left: i64 = backend.query(&["PTTL", key]);
            assert!(left > 86_400_000, "{key}: {left} ms");
        }
        kept.unlock().unwrap();
    }
}

fn dead_waiters_with_less_capacity_do_not_refuse_a_try(backend: &Backend) {
    let mgr = manager(backend);
    let held = mgr.semaphore("n", 2).acquire(2).unwrap();
    plant_dead_waiters(backend, "n");
    let third = mgr.semaphore("n", 3).try_acquire(1).unwrap();
    assert!(third.is_some(), "nobody alive came first");
    held.unlock().unwrap();
}
