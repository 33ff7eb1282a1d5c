//! Redis loses all of its data, or a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlock::{Error, LossReason, PreviousHolder};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON, STEADY_TTL as TTL, Waiters, build, steady, warm_up};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    p3_a_flushall_is_reported_and_waiters_keep_their_order,
    p6_holders_of_many_names_learn_of_a_flush_once,
    p2_a_guard_is_lost_when_its_token_is_granted_again,
}

fn p3_a_flushall_is_reported_and_waiters_keep_their_order(backend: &Backend) {
    loses_everything(backend, || backend.flush_all());
}

pub(crate) fn loses_everything(backend: &Backend, disaster: impl FnOnce()) {
    let managers = [build(steady(backend)), build(steady(backend))];
    managers.iter().for_each(warm_up);
    let holder = managers[0].lock("a").unwrap();
    let mut largest = holder.fence();
    let mut queue = Waiters::of("a");
    for waiter in 0..8 {
        queue.add(&managers[waiter % 2]);
    }

    disaster();
    let loss = holder
        .lost()
        .recv_timeout(TTL / 3 + SLACK)
        .expect("the loss is reported");
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::NotOwner, holder.fence())
    );
    assert!(!holder.is_held());

    // The order across processes depends on which one syncs first; each process keeps its own
    // order.
    let mut seen: [Vec<usize>; 2] = Default::default();
    for _ in 0..8 {
        let (waiter, end) = queue.next_end(SOON);
        let guard = end.unwrap();
        assert!(guard.is_held());
        assert!(guard.fence() > largest, "fences rise over a loss of data");
        largest = guard.fence();
        seen[waiter % 2].push(waiter);
        guard.unlock().unwrap();
    }
    assert_eq!(seen, [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    until(
        SLACK,
        "all but one, which found a free lock, were queued again",
        || managers.iter().map(|m| m.stats().requeues).sum::<u64>() >= 7,
    );
    let again = managers[1].try_lock("a").unwrap().expect("it is free");
    assert!(again.fence() > largest);
    drop((holder, again));
    Record::of(backend, "a").comes_to_rest();
}

fn p6_holders_of_many_names_learn_of_a_flush_once(backend: &Backend) {
    let losses_reported = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&losses_reported);
    let options = fairlock::LockOptions::new().ttl(TTL).on_lost(move |loss| {
        assert_eq!(loss.reason, LossReason::NotOwner);
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let manager = build(steady(backend)).with(options);
    let guards: Vec<_> = (0..50)
        .map(|i| manager.lock(format!("a{i}")).unwrap())
        .collect();
    backend.flush_all();
    for guard in &guards {
        guard
            .lost()
            .recv_timeout(TTL / 3 + SLACK)
            .expect("the loss is reported");
        assert!(
            guard.lost().recv_timeout(SLACK).is_err(),
            "reported once, then the channel is closed"
        );
    }
    until(SOON, "every callback is called", || {
        losses_reported.load(Ordering::SeqCst) == 50
    });
    drop(guards);
    assert_eq!(
        (
            manager.stats().losses(),
            losses_reported.load(Ordering::SeqCst)
        ),
        (50, 50)
    );
}

/// As after a failover to a copy in which the holder's entry still waited: others may have held the
/// lock before that entry was granted again. A resource that checks fences would refuse every write
/// under the old fence.
fn p2_a_guard_is_lost_when_its_token_is_granted_again(backend: &Backend) {
    let manager = build(steady(backend));
    let [asks, waits] = ["asks", "waits"].map(|name| manager.lock(name).unwrap());
    for guard in [&asks, &waits] {
        let later = (guard.fence() + 1).to_string();
        Record::of(backend, guard.name()).set(&[("f", &later), ("g", &later)]);
    }
    let end = asks.renew();
    assert!(
        matches!(&end, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::NotOwner),
        "{end:?}"
    );
    for guard in [&asks, &waits] {
        let loss = guard
            .lost()
            .recv_timeout(TTL / 3 + SLACK)
            .expect("the loss is reported");
        assert_eq!(
            (loss.reason, loss.fence),
            (LossReason::NotOwner, guard.fence())
        );
        // Nobody holds it under the later fence either.
        let next = manager
            .try_lock_for(guard.name(), SOON)
            .unwrap()
            .expect("it is released");
        assert!(next.fence() > guard.fence() + 1);
        assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    }
}
