//! Each number of `Stats` moves for its cause, and only for that.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, LossReason, Misuse};

use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{Record, SOON, STEADY_TTL, TTL, build, manager, steady, warm_up};
use crate::sums::Sums;
use crate::support::{until, until_some};

on_both_stores! {
    every_request_for_a_lock_counts_once_by_its_end,
    groups_count_names_when_granted_and_calls_when_not,
    group_counts_a_name_found_taken_as_after_wait,
    waits_and_holds_are_measured,
    losses_count_by_their_reasons,
    loss_that_only_the_release_shows_counts_once,
    loss_that_a_late_release_shows_counts_once,
    renewals_are_late_by_the_time_that_redis_was_away,
    dead_waiters_that_are_passed_over_are_counted,
    dead_waiters_that_a_requeue_passes_over_count_once,
}
on_both_stores! {
    redis_with_faults:
    call_that_is_sent_again_counts_as_a_retry,
    loss_of_a_release_that_is_sent_twice_counts_once,
}

/// Shorter than any wait here.
const MOMENT: Duration = Duration::from_millis(60);

fn every_request_for_a_lock_counts_once_by_its_end(on: &Backend) {
    let [ours, other] = [manager(on), manager(on)];
    let held = other.lock("k").unwrap();
    assert!(ours.try_lock("k").unwrap().is_none());
    assert!(ours.try_lock_for("k", MOMENT).unwrap().is_none());
    drop(ours.enqueue("k").unwrap());
    let mut waiter = ours.enqueue("k").unwrap();
    assert!(waiter.wait_for(MOMENT).unwrap().is_none());
    held.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    ours.lock("k").unwrap().unlock().unwrap();
    let permits = ours.semaphore("s", 1);
    permits.acquire(1).unwrap().unlock().unwrap();
    // Refused before anything is asked for.
    assert!(matches!(ours.lock(""), Err(Error::Misused { .. })));
    assert!(
        ours.semaphore("k", 2)
            .try_acquire(1)
            .is_ok_and(|free| free.is_some())
    );
    let kept = ours.lock("mutex").unwrap();
    assert!(matches!(
        ours.semaphore("mutex", 2).try_acquire(1),
        Err(Error::Misused {
            misuse: Misuse::Kind { .. },
            ..
        })
    ));
    drop(kept);

    let stats = ours.stats();
    assert_eq!(
        (stats.acquisitions_at_once, stats.acquisitions_after_wait),
        (4, 1),
        "{stats}"
    );
    assert_eq!(
        (
            stats.acquisitions_timed_out,
            stats.acquisitions_cancelled,
            stats.acquisitions_failed
        ),
        (2, 1, 1),
        "{stats}"
    );
    assert_eq!(
        (stats.granted(), stats.acquisitions_timed_out),
        (5, 2),
        "{stats}"
    );

    let waiter = other.enqueue("last").unwrap();
    drop(other.enqueue("last").unwrap());
    let held = ours.lock("held").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("held").map(drop));
        until(SOON, "it waits", || {
            ours.inspect("held").unwrap().unwrap().waiters == 1
        });
        other.shutdown(Duration::ZERO).unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
    assert!(matches!(other.try_lock("k"), Err(Error::Closed)));
    drop((waiter, held));
    let stats = other.stats();
    // Both waiters, the call that waited, and the call after the shutdown.
    assert_eq!(
        (stats.acquisitions_cancelled, stats.acquisitions_failed),
        (4, 0),
        "{stats}"
    );
}

fn groups_count_names_when_granted_and_calls_when_not(on: &Backend) {
    let [ours, other] = [manager(on), manager(on)];
    drop(ours.lock_all(["a", "b", "c"]).unwrap());
    let held = other.lock("b").unwrap();
    assert!(ours.try_lock_all(["a", "b"]).unwrap().is_none());
    assert!(ours.try_lock_all_for(["a", "b"], MOMENT).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).map(drop));
        until(SOON, "it waits", || {
            ours.inspect("b").unwrap().unwrap().waiters == 1
        });
        on.pass(MOMENT);
        held.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    let stats = ours.stats();
    assert_eq!(
        (stats.acquisitions_at_once, stats.acquisitions_after_wait),
        (4, 1),
        "{stats}"
    );
    assert_eq!(
        (stats.acquisitions_timed_out, stats.acquisitions_failed),
        (2, 0),
        "{stats}"
    );
    // The wait of the whole call counts, its first try included.
    assert!(stats.longest_wait >= MOMENT, "{stats}");
}

/// The first try finds both taken. When the name's turn comes, it is free.
fn group_counts_a_name_found_taken_as_after_wait(on: &Backend) {
    let [ours, other] = [manager(on), manager(on)];
    let [a, b] = ["a", "b"].map(|name| other.lock(name).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).map(drop));
        until(SOON, "it waits", || {
            ours.inspect("a").unwrap().unwrap().waiters == 1
        });
        b.unlock().unwrap();
        a.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    let stats = ours.stats();
    assert_eq!(
        (stats.acquisitions_at_once, stats.acquisitions_after_wait),
        (0, 2),
        "{stats}"
    );
}

fn waits_and_holds_are_measured(on: &Backend) {
    let [ours, other] = [build(steady(on)), build(steady(on))];
    warm_up(&ours);
    warm_up(&other);
    let held = ours.lock("k").unwrap();
    let waiter = other.enqueue("k").unwrap();
    on.pass(2 * MOMENT);
    assert!(other.try_lock_for("k", Duration::ZERO).unwrap().is_none());
    held.unlock().unwrap();
    let mut waiter = waiter;
    let guard = until_some(SOON, "it is granted", || waiter.wait_for(MOMENT).unwrap());
    on.pass(MOMENT);
    drop(guard);
    assert!(ours.stats().longest_hold >= 2 * MOMENT, "{}", ours.stats());
    let after = other.stats();
    assert!(after.longest_wait >= 2 * MOMENT, "{after}");
    assert!(after.longest_hold >= MOMENT, "{after}");
    assert_eq!(after.held, 0);
}

fn losses_count_by_their_reasons(on: &Backend) {
    let ours = manager(on);
    let all_reasons = || {
        let stats = ours.stats();
        [
            stats.losses_expired,
            stats.losses_not_owner,
            stats.losses_max_hold,
            stats.losses_forced,
            stats.losses_shutdown,
        ]
    };
    let forced = ours.lock("forced").unwrap();
    assert!(ours.force_release("forced", forced.fence()).unwrap());
    assert!(forced.renew().is_err());
    until(SOON, "it counts", || all_reasons() == [0, 0, 0, 1, 0]);

    let taken = ours.lock("taken").unwrap();
    on.delete("taken");
    assert!(taken.renew().is_err());
    until(SOON, "it counts", || all_reasons() == [0, 1, 0, 1, 0]);

    let options = LockOptions::new().max_hold(MOMENT);
    let limited = ours.with(options).lock("limited").unwrap();
    on.pass(2 * MOMENT);
    until(SOON, "it counts", || all_reasons() == [0, 1, 1, 1, 0]);

    let expired = ours.lock("expired").unwrap();
    on.go_away();
    on.pass(TTL);
    until(SOON, "it counts", || all_reasons() == [1, 1, 1, 1, 0]);
    on.come_back();

    let ended = until_some(SOON, "redis is back", || ours.lock("ended").ok());
    ours.shutdown(Duration::ZERO).unwrap();
    until(SOON, "it counts", || all_reasons() == [1, 1, 1, 1, 1]);
    let stats = ours.stats();
    assert_eq!(stats.losses(), 5, "{stats}");
    // The one that expired was held for nearly a ttl.
    assert!(stats.longest_hold >= TTL / 2, "{stats}");
    let reasons = [&forced, &taken, &limited, &expired, &ended].map(|guard| match guard.check() {
        Err(Error::Lost { loss, .. }) => loss.reason,
        other => panic!("{other:?}"),
    });
    use LossReason::{Expired, Forced, MaxHold, NotOwner, Shutdown};
    assert_eq!(reasons, [Forced, NotOwner, MaxHold, Expired, Shutdown]);
    drop((forced, taken, limited, expired, ended));
}

/// How many locks were lost, as the sum and by reason: `not_owner`, `forced`, and all others.
fn losses(of: &LockManager) -> (u64, u64, u64, u64) {
    let stats = of.stats();
    let others = stats.losses_expired + stats.losses_max_hold + stats.losses_shutdown;
    (
        stats.losses(),
        stats.losses_not_owner,
        stats.losses_forced,
        others,
    )
}

fn loss_that_only_the_release_shows_counts_once(on: &Backend) {
    let [ours, other] = [build(steady(on)), build(steady(on))];
    warm_up(&ours);
    let locked_and_forced = |name: &str| {
        let guard = ours.lock(name).unwrap();
        assert!(other.force_release(name, guard.fence()).unwrap());
        guard
    };
    let guard = locked_and_forced("unlocked");
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert_eq!(losses(&ours), (1, 0, 1, 0));

    let guard = ours.lock("deleted").unwrap();
    on.delete("deleted");
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert_eq!(losses(&ours), (2, 1, 1, 0));

    let guard = locked_and_forced("abandoned");
    assert!(matches!(guard.abandon(), Err(Error::Lost { .. })));
    assert_eq!(losses(&ours), (3, 1, 2, 0));

    drop(locked_and_forced("dropped"));
    until(SOON, "a reply that nobody waits for is read", || {
        losses(&ours) == (4, 1, 3, 0)
    });

    let group = ours.lock_all(["a", "b", "c"]).unwrap();
    let fence = ours.inspect("b").unwrap().unwrap().holders[0].fence;
    assert!(other.force_release("b", fence.unwrap()).unwrap());
    assert!(matches!(group.unlock(), Err(Error::Lost { .. })));
    assert_eq!(losses(&ours), (5, 1, 4, 0), "one of the group is lost");

    let permit = ours.semaphore("s", 2).acquire(1).unwrap();
    assert!(other.force_release("s", permit.fence()).unwrap());
    assert!(matches!(permit.unlock(), Err(Error::Lost { .. })));
    assert_eq!(losses(&ours), (6, 1, 5, 0));

    let kept = ours.lock("kept").unwrap();
    assert!(other.force_release("kept", kept.fence()).unwrap());
    assert!(kept.renew().is_err());
    assert!(matches!(kept.unlock(), Err(Error::Lost { .. })));
    until(SOON, "it is reported", || losses(&ours).0 > 6);
    ours.lock("kept").unwrap().unlock().unwrap();
    // Its release by the renewal thread has been answered by now.
    ours.shutdown(SOON).unwrap();
    assert_eq!(losses(&ours), (7, 1, 6, 0), "the renewal showed it first");
}

fn loss_that_a_late_release_shows_counts_once(on: &Backend) {
    let [ours, other] = [build(steady(on)), build(steady(on))];
    let [unlocked, dropped] = ["unlocked", "dropped"].map(|name| {
        let guard = ours.lock(name).unwrap();
        assert!(other.force_release(name, guard.fence()).unwrap());
        guard
    });
    on.go_away();
    assert!(matches!(unlocked.unlock(), Err(Error::Unavailable { .. })));
    drop(dropped);
    assert_eq!(losses(&ours), (0, 0, 0, 0), "nobody knows yet");
    on.come_back();
    until(SOON, "redis has answered", || losses(&ours).0 >= 2);
    ours.shutdown(SOON).unwrap();
    assert_eq!(losses(&ours), (2, 0, 2, 0));
}

fn loss_of_a_release_that_is_sent_twice_counts_once(on: &Backend) {
    let [ours, other] = [build(steady(on)), build(steady(on))];
    warm_up(&ours);
    for (forced, fault) in [InjectedFault::Disconnect, InjectedFault::ReplyLost]
        .into_iter()
        .enumerate()
    {
        let guard = ours.lock("k").unwrap();
        assert!(other.force_release("k", guard.fence()).unwrap());
        on.inject(fault);
        // Without a reply in time, it is not known yet.
        assert!(guard.unlock().is_err());
        let forced = forced as u64 + 1;
        until(SOON, "redis has answered", || losses(&ours).0 >= forced);
        assert_eq!(losses(&ours), (forced, 0, forced, 0));
        ours.lock("k").unwrap().unlock().unwrap();
    }
    ours.shutdown(SOON).unwrap();
    assert_eq!(losses(&ours), (2, 0, 2, 0));
}

fn renewals_are_late_by_the_time_that_redis_was_away(on: &Backend) {
    const LATE: Duration = Duration::from_millis(500);
    let ours = build(steady(on));
    let guard = ours.lock("k").unwrap();
    on.pass(STEADY_TTL / 3 + MOMENT);
    until(SOON, "it is renewed", || {
        ours.stats().renewals_confirmed == 1
    });
    on.go_away();
    on.pass(STEADY_TTL / 3 + LATE);
    until(SOON, "a renewal fails", || ours.stats().renewals_failed > 0);
    on.come_back();
    // In memory, the next attempt comes when time passes.
    until(SOON, "it is renewed again", || {
        on.pass(Duration::from_millis(20));
        ours.stats().renewals_confirmed == 2
    });
    let stats = ours.stats();
    let latest = stats.latest_renewal;
    assert!(latest >= LATE, "{stats}");
    guard.renew().unwrap();
    let stats = ours.stats();
    assert_eq!(stats.renewals_confirmed, 3);
    assert_eq!(
        stats.latest_renewal, latest,
        "a renewal that the user makes is never due"
    );
    guard.unlock().unwrap();
}

/// Puts as many waiters of a process without a stamp into a queue: each like one of ours.
const QUEUE_UP: &str = "
    local field, many = ARGV[1], tonumber(ARGV[3])
    local entries, records, looked, served_time, last, served, expires =
      struct.unpack('<I4I4ddddI4', redis.call('HGET', KEYS[1], field))
    for i = 1, many do
      local token = string.format('%032x', i)
      redis.call('HSET', KEYS[1], 'w:' .. token, string.format('%.0f', last + i) .. ARGV[2])
      redis.call('RPUSH', KEYS[2], token)
    end
    redis.call('HSET', KEYS[1], field, struct.pack('<I4I4ddddI4', entries + many, records + many,
      looked, served_time, last + many, served, expires))
    return many";

/// Puts waiters of a dead process into the queue of a lock that is held. `like` is a waiter.
fn queue_up_dead(on: &Backend, name: &str, field: &str, many: u64) {
    let record = Record::of(on, name);
    let fields: Vec<String> = on.query(&["HKEYS", &record.key]);
    let waiter = fields.iter().find(|field| field.starts_with("w:"));
    let request: String = on.query(&["HGET", &record.key, waiter.unwrap()]);
    let words: Vec<&str> = request.split(' ').collect();
    let request = request.replace(words[2], "gone");
    let request = request.strip_prefix(words[0]).unwrap();
    let many_words = many.to_string();
    let [key, queue] = [&*record.key, &*record.queue];
    let added: i64 = on.query(&[
        "EVAL",
        QUEUE_UP,
        "2",
        key,
        queue,
        field,
        request,
        &many_words,
    ]);
    assert_eq!(added as u64, many);
}

fn dead_waiters_that_are_passed_over_are_counted(on: &Backend) {
    const MANY: u64 = 100;
    let ours = manager(on);
    let held = ours.lock("k").unwrap();
    let waiter = ours.enqueue("k").unwrap();
    queue_up_dead(on, "k", "q", MANY);
    let behind = ours.enqueue("k").unwrap();
    held.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    behind.wait().unwrap().unlock().unwrap();
    assert_eq!(ours.stats().dead_waiters, MANY, "{}", ours.stats());

    let permits = ours.semaphore("s", 1);
    let held = permits.acquire(1).unwrap();
    let waiter = permits.enqueue(1).unwrap();
    queue_up_dead(on, "s", "n", MANY);
    let behind = permits.enqueue(1).unwrap();
    held.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    behind.wait().unwrap().unlock().unwrap();
    assert_eq!(ours.stats().dead_waiters, 2 * MANY, "{}", ours.stats());

    // Waiters that left by themselves are none of them.
    let held = ours.lock("k").unwrap();
    let gone = [(); 3].map(|()| ours.enqueue("k").unwrap());
    let waiter = ours.enqueue("k").unwrap();
    drop(gone);
    held.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert_eq!(ours.stats().dead_waiters, 2 * MANY, "{}", ours.stats());
}

/// Ends the lease of a mutex, and takes the first waiter out of its queue, as if Redis had lost it.
const LAPSE_AND_LOSE_FIRST: &str = "
    local queue, state = unpack(redis.call('HMGET', KEYS[1], 'q', 's'))
    local entries, records = struct.unpack('<I4I4', queue)
    redis.call('HDEL', KEYS[1], 'w:' .. redis.call('LPOP', KEYS[2]))
    redis.call('HSET', KEYS[1],
      'q', struct.pack('<I4I4', entries - 1, records - 1) .. string.sub(queue, 9),
      's', struct.pack('<d', 1) .. string.sub(state, 9))
    return entries - 1";

/// So many that the syncs, which pass over some of them too, leave some for the requeue.
fn dead_waiters_that_a_requeue_passes_over_count_once(on: &Backend) {
    const MANY: u64 = 2000;
    let [ours, other] = [build(steady(on)), build(steady(on))];
    // Nothing renews it.
    let fixed = LockOptions::new().fixed_lease(4 * SOON);
    let _held = other.with(fixed).lock("k").unwrap();
    let waiter = ours.enqueue("k").unwrap();
    queue_up_dead(on, "k", "q", MANY);
    let Record { key, queue, .. } = Record::of(on, "k");
    let left: i64 = on.query(&["EVAL", LAPSE_AND_LOSE_FIRST, "2", &key, &queue]);
    assert_eq!(left as u64, MANY);
    let _guard = waiter.wait().unwrap();
    until(SOON, "it was queued again", || ours.stats().requeues == 1);
    assert_eq!(ours.stats().dead_waiters, MANY, "{}", ours.stats());
}

fn call_that_is_sent_again_counts_as_a_retry(on: &Backend) {
    let ours = build(steady(on));
    warm_up(&ours);
    assert_eq!(ours.stats().retries, 0);
    on.inject(InjectedFault::Disconnect);
    let guard = ours.lock("k").unwrap();
    assert_eq!(ours.stats().retries, 1, "{}", ours.stats());
    guard.unlock().unwrap();
    assert_eq!(ours.stats().retries, 1, "{}", ours.stats());
}
