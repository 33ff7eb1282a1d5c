//! Every option of a lock and of a manager does what its documentation says.

use std::{
    mem, process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::unbounded;
use fairlock::{LockManager, LockOptions, Loss, LossReason, PreviousHolder, inspect::LockState};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::with_ttl;
use crate::managers;
use crate::support::{SLACK, throughout, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);

on_both_stores! {
    a_lock_is_renewed_while_its_guard_lives,
    a_lock_without_renewal_lives_for_its_ttl,
    a_handle_inherits_the_builders_ttl_and_affects_no_other,
    a_handle_keeps_every_option_that_with_does_not_set,
    a_fixed_lease_is_not_renewed_and_ends_by_itself,
    renew_starts_a_fixed_lease_again,
    a_fixed_lease_is_handed_over_with_its_full_length,
    max_hold_ends_as_a_loss_and_hands_over,
    max_hold_that_is_not_reached_ends_nothing,
    remaining_time_of_a_guard_ends_with_max_hold,
    a_leaked_guard_holds_its_lock_until_max_hold,
    hold_at_least_keeps_the_name_after_an_early_release,
    hold_at_least_that_has_passed_delays_nobody,
    hold_at_least_may_be_longer_than_the_ttl,
    an_unused_grant_leaves_no_cooling_behind,
    a_label_is_shown_beside_host_process_and_thread,
    p6_on_lost_is_called_exactly_once_per_lost_guard,
    p9_a_slow_or_panicking_callback_harms_nothing_else,
    a_callback_may_lock_and_drop_the_last_handle,
    a_prefix_separates_managers,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn a_lock_is_renewed_while_its_guard_lives(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.lock("n").unwrap();
    throughout(TTL * 3 / 2, "it is held", || guard.is_held());
    assert!(mgr.stats().renewals_confirmed >= 2);
    assert!(manager(backend).try_lock("n").unwrap().is_none());
    guard.unlock().unwrap();
}

fn a_lock_without_renewal_lives_for_its_ttl(backend: &Backend) {
    let mgr = manager(backend);
    let long = mgr.with(LockOptions::new().ttl(Duration::from_secs(60)));
    for (name, mgr, ttl) in [
        ("short", &mgr, TTL),
        ("long", &long, Duration::from_secs(60)),
    ] {
        let guard = mgr.lock(name).unwrap();
        let info = mgr.inspect(name).unwrap().unwrap();
        assert!(
            info.time_left <= ttl && info.time_left > ttl - SLACK,
            "{:?}",
            info.time_left
        );
        // The margin is 1 % and 2 ms.
        assert!(
            guard.remaining() <= ttl - ttl / 100 - ms(2),
            "{:?}",
            guard.remaining()
        );
        assert!(
            guard.remaining() > ttl - SLACK - ttl / 100,
            "{:?}",
            guard.remaining()
        );
        assert_eq!(info.holder.unwrap().ttl, ttl);
    }
}

fn a_handle_inherits_the_builders_ttl_and_affects_no_other(backend: &Backend) {
    let mgr = manager(backend);
    let handle = mgr.with(LockOptions::new().label("mine"));
    let again = mgr
        .with(LockOptions::new().fixed_lease(Duration::from_secs(60)))
        .with(LockOptions::new().label("last"));
    let _guards = [
        handle.lock("a").unwrap(),
        mgr.lock("b").unwrap(),
        again.lock("c").unwrap(),
    ];
    let held = |name| mgr.inspect(name).unwrap().unwrap().holder.unwrap();
    assert_eq!((held("a").ttl, held("a").label), (TTL, "mine".to_owned()));
    assert_eq!((held("b").ttl, held("b").label), (TTL, String::new()));
    let last = (Duration::from_secs(60), "last".to_owned());
    assert_eq!((held("c").ttl, held("c").label), last);
    assert_eq!(held("a").manager, held("b").manager);
    let is_fixed = ["a", "b", "c"].map(|name| held(name).fixed_lease);
    assert_eq!(is_fixed, [false, false, true]);
}

/// Sets the options one after the other, each in a `with` of its own, on a manager whose builder
/// set others.
fn a_handle_keeps_every_option_that_with_does_not_set(backend: &Backend) {
    let (sender, losses) = unbounded();
    let lease = Duration::from_secs(60);
    let built = with_ttl(backend, TTL).options(
        LockOptions::new()
            .ttl(TTL)
            .label("why")
            .on_lost(move |loss: &Loss| sender.send(loss.reason).unwrap()),
    );
    let mgr = built.build().unwrap();
    let limited = mgr
        .with(LockOptions::new().hold_at_least(lease))
        .with(LockOptions::new().max_hold(ms(300)))
        .with(LockOptions::new());
    let _guard = limited.lock("n").unwrap();
    let holder = mgr.inspect("n").unwrap().unwrap().holder.unwrap();
    assert_eq!((holder.ttl, &*holder.label), (TTL, "why"));
    let within = ms(300) + COMMAND_TIMEOUT + SLACK;
    assert_eq!(losses.recv_timeout(within), Ok(LossReason::MaxHold));
    until(SLACK, "it cools", || {
        mgr.inspect("n").unwrap().unwrap().state == LockState::Cooling
    });

    // Options that have no value for "none" are unset by name.
    let plain = limited.with(LockOptions::new().no_max_hold().no_on_lost());
    let guard = plain.lock("m").unwrap();
    backend.pass(ms(300));
    let fence = guard.fence();
    assert!(mgr.force_release("m", fence).unwrap());
    guard.unlock().unwrap_err();
    assert!(losses.recv_timeout(ms(50)).is_err(), "unset, and called");
    assert_eq!(plain.inspect("m").unwrap(), None);
}

fn a_fixed_lease_is_not_renewed_and_ends_by_itself(backend: &Backend) {
    let mgr = manager(backend);
    let lease = ms(700);
    let start = Instant::now();
    let guard = mgr
        .with(LockOptions::new().fixed_lease(lease))
        .try_lock("n")
        .unwrap()
        .unwrap();
    let loss = guard
        .lost()
        .recv_timeout(lease + COMMAND_TIMEOUT + SLACK)
        .unwrap();
    // The guard reports it as held up to the safety margin, and no longer.
    assert!(start.elapsed() >= lease - lease / 100 - ms(2));
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        ("n", guard.fence(), LossReason::Expired)
    );
    assert!(!guard.is_held());
    assert_eq!(mgr.stats().renewals_confirmed, 0);
    let next = manager(backend)
        .try_lock_for("n", lease + SLACK)
        .unwrap()
        .unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

fn renew_starts_a_fixed_lease_again(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr
        .with(LockOptions::new().fixed_lease(ms(3000)))
        .lock("n")
        .unwrap();
    backend.pass(ms(1600));
    assert!(guard.remaining() < ms(1500), "{:?}", guard.remaining());
    guard.renew().unwrap();
    assert!(guard.remaining() > ms(1500), "{:?}", guard.remaining());
    assert!(mgr.inspect("n").unwrap().unwrap().time_left > ms(1500));
    guard.unlock().unwrap();
}

fn a_fixed_lease_is_handed_over_with_its_full_length(backend: &Backend) {
    let mgr = manager(backend);
    let fixed = mgr.with(LockOptions::new().fixed_lease(ms(5000)));
    let guard = mgr.lock("n").unwrap();
    let waiter = fixed.enqueue("n").unwrap();
    guard.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    assert!(guard.remaining() > ms(5000) - SLACK - ms(60));
    assert_eq!(
        mgr.inspect("n").unwrap().unwrap().holder.unwrap().ttl,
        ms(5000)
    );
}

fn max_hold_ends_as_a_loss_and_hands_over(backend: &Backend) {
    let mgr = manager(backend);
    let limit = ms(500);
    let start = Instant::now();
    let guard = mgr
        .with(LockOptions::new().max_hold(limit))
        .lock("n")
        .unwrap();
    let waiter = manager(backend).enqueue("n").unwrap();
    guard.renew().unwrap();
    let loss = guard
        .lost()
        .recv_timeout(limit + COMMAND_TIMEOUT + SLACK)
        .unwrap();
    assert!(start.elapsed() >= limit);
    assert_eq!(
        (&*loss.lock, loss.fence, loss.reason),
        ("n", guard.fence(), LossReason::MaxHold)
    );
    assert!(!guard.is_held());
    // It is released at that moment, so the next waiter does not wait for the rest of the ttl.
    let mut waiter = waiter;
    let next = waiter.wait_for(COMMAND_TIMEOUT + SLACK).unwrap().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
    let error = guard.unlock().unwrap_err();
    assert!(
        matches!(&error, fairlock::Error::Lost { loss, .. } if loss.reason == LossReason::MaxHold),
        "{error:?}"
    );
    next.check().unwrap();
}

fn max_hold_that_is_not_reached_ends_nothing(backend: &Backend) {
    let mgr = manager(backend).with(LockOptions::new().max_hold(Duration::from_secs(60)));
    let guard = mgr.lock("n").unwrap();
    until(TTL + SLACK, "it is renewed", || {
        mgr.stats().renewals_confirmed > 0
    });
    guard.unlock().unwrap();
    assert_eq!(
        mgr.lock("n").unwrap().previous_holder(),
        PreviousHolder::Released
    );
}

fn remaining_time_of_a_guard_ends_with_max_hold(backend: &Backend) {
    let limit = ms(3000);
    let mgr = managers::patient(backend).with(LockOptions::new().max_hold(limit));
    let guard = mgr.lock("n").unwrap();
    assert!(guard.remaining() <= limit, "{:?}", guard.remaining());
    guard.renew().unwrap();
    assert!(guard.remaining() <= limit, "{:?}", guard.remaining());
    let both = mgr.lock_all(["a", "b"]).unwrap();
    assert!(both.remaining() <= limit, "{:?}", both.remaining());
    let turn = mgr.with(LockOptions::new().local_handovers(1)).lock("t");
    assert!(turn.unwrap().remaining() <= limit);
}

fn a_leaked_guard_holds_its_lock_until_max_hold(backend: &Backend) {
    let mgr = manager(backend);
    let limit = ms(400);
    mem::forget(
        mgr.with(LockOptions::new().max_hold(limit))
            .lock("n")
            .unwrap(),
    );
    assert!(mgr.try_lock_for("n", limit + SLACK).unwrap().is_some());
}

fn hold_at_least_keeps_the_name_after_an_early_release(backend: &Backend) {
    let mgr = manager(backend);
    let least = ms(1500);
    let once = mgr.with(LockOptions::new().hold_at_least(least).label("once"));
    let guard = once.lock("n").unwrap();
    let fence = guard.fence();
    let first = mgr.inspect("n").unwrap().unwrap().holder.unwrap();
    guard.unlock().unwrap();

    let info = mgr.inspect("n").unwrap().unwrap();
    assert_eq!((info.state, info.fence), (LockState::Cooling, fence));
    assert!(info.time_left > Duration::ZERO && info.time_left <= least);
    assert_eq!(info.holder.as_ref(), Some(&first));
    assert!(mgr.try_lock("n").unwrap().is_none());
    assert!(once.try_lock("n").unwrap().is_none());
    assert_eq!(mgr.list("*").count(), 1);

    let _next = mgr.try_lock_for("n", least + SLACK).unwrap().unwrap();
    let second = mgr.inspect("n").unwrap().unwrap().holder.unwrap();
    let between = second.since.duration_since(first.since).unwrap();
    assert!(between >= least, "granted after {between:?}");
    assert_eq!(_next.previous_holder(), PreviousHolder::Released);
}

fn hold_at_least_that_has_passed_delays_nobody(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr
        .with(LockOptions::new().hold_at_least(ms(100)))
        .lock("n")
        .unwrap();
    backend.pass(ms(150));
    guard.unlock().unwrap();
    assert!(mgr.try_lock("n").unwrap().is_some());
}

fn hold_at_least_may_be_longer_than_the_ttl(backend: &Backend) {
    let mgr = manager(backend);
    let once = mgr.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    let guard = once.lock("n").unwrap();
    assert!(mgr.inspect("n").unwrap().unwrap().time_left > Duration::from_secs(50));
    let fence = guard.fence();
    drop(guard);
    let info = mgr.inspect("n").unwrap().unwrap();
    assert_eq!(info.state, LockState::Cooling);
    assert!(info.time_left > Duration::from_secs(50));
    // A forced release ends a cooling as well, and only under the fence that the caller saw.
    assert!(!mgr.force_release("n", fence - 1).unwrap());
    assert!(mgr.force_release("n", fence).unwrap());
    assert!(mgr.inspect("n").unwrap().is_none());
    assert!(mgr.try_lock("n").unwrap().is_some());
}

fn an_unused_grant_leaves_no_cooling_behind(backend: &Backend) {
    let mgr = manager(backend);
    let once = mgr.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    drop(once.enqueue("n").unwrap());
    assert!(mgr.try_lock_for("n", SLACK).unwrap().is_some());
}

fn a_label_is_shown_beside_host_process_and_thread(backend: &Backend) {
    let mgr = manager(backend);
    let label = "nightly run 🦀 \"x\"";
    let _guard = mgr.with(LockOptions::new().label(label)).lock("n").unwrap();
    let holder = mgr.inspect("n").unwrap().unwrap().holder.unwrap();
    assert_eq!(holder.label, label);
    assert_eq!(holder.pid, process::id());
    assert_eq!(
        holder.host,
        rustix::system::uname().nodename().to_string_lossy()
    );
    assert!(!holder.manager.is_empty());
    assert!(holder.since.elapsed().unwrap() < SLACK);

    // One thread with a name, one without, and one whose name contains the record's separators.
    let longest = mgr.with(LockOptions::new().label("l".repeat(256)));
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    let threads = [named("billing"), thread::Builder::new(), named("a\tb\nc")];
    let shown = threads.map(|builder| {
        let (mgr, longest) = (mgr.clone(), longest.clone());
        let thread = builder.spawn(move || {
            let guard = longest.lock("m").unwrap();
            let holder = mgr.inspect("m").unwrap().unwrap().holder.unwrap();
            guard.unlock().unwrap();
            #[cfg(target_os = "linux")]
            assert_eq!(
                holder.thread_id,
                rustix::thread::gettid().as_raw_nonzero().get() as u32
            );
            assert_ne!(holder.thread_id, 0);
            holder
        });
        thread.unwrap().join().unwrap()
    });
    assert_eq!(
        shown.each_ref().map(|holder| &*holder.thread),
        ["billing", "-", "a b c"]
    );
    assert_eq!(shown[2].label.len(), 256);
}

fn p6_on_lost_is_called_exactly_once_per_lost_guard(backend: &Backend) {
    let mgr = manager(backend);
    let (sender, losses) = unbounded();
    let watched =
        mgr.with(LockOptions::new().on_lost(move |loss: &Loss| sender.send(loss.clone()).unwrap()));
    let lost = [watched.lock("a").unwrap(), watched.lock("b").unwrap()];
    watched.lock("kept").unwrap().unlock().unwrap();
    drop(watched.lock("kept").unwrap());
    let unwatched = mgr.lock("c").unwrap();
    for guard in lost.iter().chain([&unwatched]) {
        assert!(mgr.force_release(guard.name(), guard.fence()).unwrap());
    }
    let within = TTL / 3 + COMMAND_TIMEOUT + SLACK;
    let mut reported = [
        losses.recv_timeout(within).unwrap(),
        losses.recv_timeout(within).unwrap(),
    ];
    reported.sort_by(|a, b| a.lock.cmp(&b.lock));
    for (loss, guard) in reported.iter().zip(&lost) {
        assert_eq!((&*loss.lock, loss.fence), (guard.name(), guard.fence()));
        assert_eq!(loss.reason, LossReason::Forced);
        // The channel reports the same loss. The callback does not consume it.
        assert_eq!(&guard.lost().recv_timeout(SLACK).unwrap(), loss);
    }
    assert_eq!(
        unwatched.lost().recv_timeout(within).unwrap().reason,
        LossReason::Forced
    );
    drop((lost, unwatched));
    // The end of the last handle waits for the calls that were queued; none is left.
    drop((mgr, watched));
    assert_eq!(losses.iter().count(), 0);
}

fn p9_a_slow_or_panicking_callback_harms_nothing_else(backend: &Backend) {
    let mgr = manager(backend);
    let (release, gate) = unbounded::<()>();
    let (sender, losses) = unbounded();
    let slow = mgr.with(LockOptions::new().on_lost(move |_| gate.recv().unwrap()));
    let panicking = mgr.with(LockOptions::new().on_lost(|_| panic!("the test panics here")));
    let good =
        mgr.with(LockOptions::new().on_lost(move |loss: &Loss| sender.send(loss.fence).unwrap()));
    let lost = [
        slow.lock("a").unwrap(),
        panicking.lock("b").unwrap(),
        good.lock("c").unwrap(),
    ];
    let kept = mgr.lock("kept").unwrap();
    let within = TTL / 3 + COMMAND_TIMEOUT + SLACK;
    for guard in &lost {
        // One loss at a time, so that the calls come in this order.
        assert!(mgr.force_release(guard.name(), guard.fence()).unwrap());
        guard.lost().recv_timeout(within).unwrap();
    }
    // While the first call hangs, other locks are renewed, taken and released.
    let renewed = mgr.stats().renewals_confirmed;
    until(TTL + SLACK, "the other lock is renewed", || {
        mgr.stats().renewals_confirmed > renewed
    });
    kept.check().unwrap();
    mgr.lock("d").unwrap().unlock().unwrap();
    assert!(losses.is_empty());
    release.send(()).unwrap();
    assert_eq!(losses.recv_timeout(SLACK), Ok(lost[2].fence()));
    kept.unlock().unwrap();
}

fn a_callback_may_lock_and_drop_the_last_handle(backend: &Backend) {
    let mgr = manager(backend);
    let other = manager(backend);
    let (sender, done) = unbounded();
    let calls = Arc::new(AtomicUsize::new(0));
    let handle = {
        let mgr = mgr.clone();
        let calls = Arc::clone(&calls);
        let keep = parking_lot::Mutex::new(Some(mgr));
        LockOptions::new().on_lost(move |loss: &Loss| {
            calls.fetch_add(1, Ordering::SeqCst);
            let mgr = keep.lock().take().unwrap();
            // The callback waits for another holder, and then takes the lock that was lost.
            let waited = mgr.try_lock_for("held", TTL + SLACK).unwrap().unwrap();
            let again = mgr.try_lock_for(&loss.lock, TTL + SLACK).unwrap().unwrap();
            sender.send(again.fence() > loss.fence).unwrap();
            drop((waited, again, mgr));
            sender.send(true).unwrap();
        })
    };
    let held = other.lock("held").unwrap();
    let lost = mgr.with(handle).lock("n").unwrap();
    assert!(other.force_release("n", lost.fence()).unwrap());
    lost.lost()
        .recv_timeout(TTL / 3 + COMMAND_TIMEOUT + SLACK)
        .unwrap();
    drop((lost, mgr));
    until(SLACK, "the callback waits", || {
        other.inspect("held").unwrap().unwrap().waiters == 1
    });
    held.unlock().unwrap();
    assert_eq!(done.recv_timeout(TTL + SLACK), Ok(true));
    // The last handle was dropped on the callback thread, which cannot join itself.
    assert_eq!(done.recv_timeout(TTL + SLACK), Ok(true));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(other.try_lock_for("n", SLACK).unwrap().is_some());
}

fn a_prefix_separates_managers(backend: &Backend) {
    let with_prefix = |prefix: &str| {
        LockManager::builder(backend)
            .prefix(prefix)
            .options(LockOptions::new().ttl(TTL))
            .build()
            .unwrap()
    };
    // Some prefixes are globs that match others, and one begins like another.
    let prefixes = ["app", "app:x", "a*", "[ab]pp", "a?p", "a\\p", "é", "a b"];
    let managers = prefixes.map(with_prefix);
    let guards: Vec<_> = managers
        .iter()
        .map(|mgr| mgr.try_lock("n").unwrap().expect("the name is free here"))
        .collect();
    for (mgr, guard) in managers.iter().zip(&guards) {
        let listed: Vec<_> = mgr.list("*").map(Result::unwrap).collect();
        assert_eq!(listed.len(), 1, "{mgr:?} {listed:?}");
        assert_eq!(listed[0].fence, guard.fence());
    }
    for prefix in prefixes {
        assert_eq!(
            backend.query::<i64>(&["HEXISTS", &format!("{prefix}:{{n}}"), "o"]),
            1,
            "{prefix:?}"
        );
    }
    // Grants are delivered under each prefix.
    for (mgr, guard) in managers.iter().zip(guards) {
        let mut waiter = with_prefix(prefixes[0]).enqueue("other").unwrap();
        drop(waiter.wait_for(SLACK).unwrap());
        let waiter = mgr.enqueue("n").unwrap();
        guard.unlock().unwrap();
        drop(waiter.wait().unwrap());
    }
}
