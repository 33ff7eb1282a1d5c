//! Redis is silent: every call ends in time, losses are reported, and everything resumes
//! afterwards.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{
    H, P, Record, SOON, T, TTL, Waiters, build, builder, manager, steady, warm_up, with_ttl,
};
use crate::sums::Sums;
use crate::support::{EndLoops, SLACK, throughout, until, until_some};

on_both_stores! {
    p8_drop_and_unlock_in_silence_end_within_a_command_timeout,
    p8_every_verb_keeps_its_bound_in_silence,
    p8_a_managers_first_call_keeps_its_bound_in_silence,
    p6_a_lease_outlives_an_outage_of_half_its_ttl,
    p6_a_loss_in_a_silent_outage_is_reported_on_time,
    p6_is_held_turns_false_by_the_clock_alone,
    p3_waiters_keep_their_order_over_an_outage,
    p3_nobody_overtakes_the_queue_after_an_outage,
    a_call_made_in_an_outage_is_served_afterwards,
    p7_waiters_dropped_in_a_long_outage_leave_the_queue,
    p8_waits_end_at_the_outage_limit_and_later_calls_work,
    p8_a_timed_try_in_silence_is_unavailable_not_none,
}

fn p8_drop_and_unlock_in_silence_end_within_a_command_timeout(backend: &Backend) {
    let manager = manager(backend);
    warm_up(&manager);
    let [dropped, unlocked, third] =
        ["dropped", "unlocked", "third"].map(|name| manager.lock(name).unwrap());
    backend.go_away();
    let start = Instant::now();
    drop(dropped);
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    let start = Instant::now();
    let end = unlocked.unlock();
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    // The same holds when no connection is open.
    let start = Instant::now();
    drop(third);
    assert!(start.elapsed() <= T + SLACK, "{:?}", start.elapsed());
    backend.come_back();
    // A lapsed record would still name its owner, so these were released.
    for name in ["dropped", "unlocked", "third"] {
        Record::of(backend, name).comes_to_rest();
    }
}

fn p8_every_verb_keeps_its_bound_in_silence(backend: &Backend) {
    // T is longer than the slack, so a verb that waited twice would show.
    const T: Duration = Duration::from_millis(1600);
    const P: Duration = Duration::from_millis(500);
    const OUTAGE: Duration = Duration::from_secs(2);
    let manager = LockManager::builder(backend)
        .command_timeout(T)
        .check_period(P)
        .horizon(P + 3 * T)
        .outage_limit(OUTAGE);
    let manager = manager.lanes(32).build().unwrap();
    warm_up(&manager);
    let other = LockManager::connect(backend).unwrap();
    let _taken = other.lock("taken").unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| manager.lock(name).unwrap());
    let [stays, leaves] = [(); 2].map(|()| manager.enqueue("taken").unwrap());
    backend.go_away();

    let took = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let bounded = |what: &'static str,
                       bound: Duration,
                       call: Box<dyn FnOnce() -> Option<Error> + Send>| {
            let took = &took;
            scope.spawn(move || {
                let start = Instant::now();
                let end = call();
                took.lock()
                    .unwrap()
                    .push((what, start.elapsed(), bound, end));
            });
        };
        let m = &manager;
        bounded("try_lock", 2 * T, {
            let m = m.clone();
            Box::new(move || m.try_lock("x").err())
        });
        bounded("try_lock_for", T / 2 + T, {
            let m = m.clone();
            Box::new(move || m.try_lock_for("x", T / 2).err())
        });
        bounded("lock", OUTAGE + T, {
            let m = m.clone();
            Box::new(move || m.lock("x").err())
        });
        bounded("enqueue", OUTAGE + T, {
            let m = m.clone();
            Box::new(move || m.enqueue("x").err())
        });
        // The check that is under way at the limit may be sent again, since its connection may have
        // died in silence.
        bounded("wait", OUTAGE + T, Box::new(move || stays.wait().err()));
        bounded("inspect", 2 * T, {
            let m = m.clone();
            Box::new(move || m.inspect("x").err())
        });
        bounded("list", 4 * T, {
            let m = m.clone();
            Box::new(move || m.list("*").find_map(Result::err))
        });
        bounded("force_release", 2 * T, {
            let m = m.clone();
            Box::new(move || m.force_release("x", 1).err())
        });
        bounded("renew", 2 * T, Box::new(move || a.renew().err()));
        bounded("unlock", T, Box::new(move || b.unlock().err()));
        bounded("build", T, {
            let to = fairlock::endpoint::Endpoint::from(backend);
            Box::new(move || {
                LockManager::builder(to)
                    .command_timeout(T)
                    .check_period(P)
                    .horizon(P + 3 * T)
                    .build()
                    .err()
            })
        });
        let unknown = || Some(Error::Closed);
        bounded(
            "drop of a guard",
            T,
            Box::new(move || {
                drop(c);
                unknown()
            }),
        );
        bounded(
            "drop of a waiter",
            T,
            Box::new(move || {
                drop(leaves);
                unknown()
            }),
        );
    });
    for (what, took, bound, end) in took.into_inner().unwrap() {
        assert!(
            took <= bound + SLACK,
            "{what} took {took:?} where {bound:?} is promised"
        );
        assert!(
            matches!(end, Some(Error::Unavailable { .. } | Error::Closed)),
            "{what} ended with {end:?}"
        );
    }
    let start = Instant::now();
    let end = manager.shutdown(Duration::ZERO);
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    drop(manager);
    assert!(start.elapsed() <= 3 * T + SLACK, "{:?}", start.elapsed());
}

/// A manager that never waited has to subscribe first. That must not add to any bound.
fn p8_a_managers_first_call_keeps_its_bound_in_silence(backend: &Backend) {
    const T: Duration = Duration::from_secs(2);
    const OUTAGE: Duration = T;
    type Verb = fn(&LockManager) -> Option<Error>;
    let verbs: [(&str, Duration, Verb); 4] = [
        ("try_lock", 2 * T, |m| m.try_lock("x").err()),
        ("try_lock_for", T / 2 + T, |m| {
            m.try_lock_for("x", T / 2).err()
        }),
        ("lock", OUTAGE + T, |m| m.lock("x").err()),
        ("enqueue", OUTAGE + T, |m| m.enqueue("x").err()),
    ];
    let fresh = verbs.map(|verb| {
        let builder = with_ttl(backend, Duration::from_secs(15))
            .command_timeout(T)
            .check_period(P);
        (build(builder.horizon(P + 3 * T).outage_limit(OUTAGE)), verb)
    });
    backend.go_away();
    thread::scope(|scope| {
        for (manager, (what, bound, call)) in &fresh {
            scope.spawn(move || {
                let start = Instant::now();
                let end = call(manager);
                let took = start.elapsed();
                assert!(
                    took <= *bound + SLACK,
                    "{what} took {took:?} where {bound:?} is promised"
                );
                assert!(
                    matches!(end, Some(Error::Unavailable { .. })),
                    "{what} ended with {end:?}"
                );
            });
        }
    });
    // Without it, each manager would wait at its end for what it has sent.
    backend.come_back();
}

fn p6_a_lease_outlives_an_outage_of_half_its_ttl(backend: &Backend) {
    const TTL: Duration = Duration::from_secs(3);
    let manager = build(with_ttl(backend, TTL));
    let guard = manager.lock("a").unwrap();
    let start = Instant::now();
    backend.go_away();
    backend.pass(TTL / 2);
    until(TTL / 4, "a renewal falls into the outage", || {
        manager.stats().renewals_failed > 0
    });
    backend.come_back();
    let at_its_return = manager.stats();
    until(TTL / 2, "a renewal succeeds", || {
        manager.stats().renewals_confirmed > at_its_return.renewals_confirmed
    });
    let rest = (TTL + TTL / 10).saturating_sub(start.elapsed());
    throughout(rest, "it is held", || guard.is_held());
    assert!(guard.lost().is_empty());
    assert_eq!(manager.stats().losses(), 0);
    guard.unlock().unwrap();
}

fn p6_a_loss_in_a_silent_outage_is_reported_on_time(backend: &Backend) {
    let (called, calls) = crossbeam_channel::unbounded();
    let options = LockOptions::new().ttl(TTL).on_lost(move |loss| {
        let _ = called.send((Instant::now(), loss.clone()));
    });
    let ours = manager(backend).with(options);
    let other = manager(backend);
    let guard = ours.lock("a").unwrap();
    backend.go_away();
    // A renewal whose reply had already arrived may still move the deadline.
    let mut deadline = Instant::now();
    let loss = until_some(TTL + T + SLACK, "the loss is reported", || {
        if guard.is_held() {
            deadline = Instant::now() + guard.remaining();
        }
        guard.lost().try_recv().ok()
    });
    let reported_at = Instant::now();
    assert!(
        reported_at < deadline + T + SLACK,
        "{:?} late",
        reported_at - deadline
    );
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::Expired, guard.fence())
    );
    assert!(
        reported_at + Duration::from_millis(5) >= deadline,
        "not while it is held"
    );
    assert!(!guard.is_held());
    let (called, same) = calls
        .recv_deadline(deadline + T + SLACK)
        .expect("so is on_lost");
    assert_eq!(same, loss);
    assert!(called + Duration::from_millis(5) >= deadline);

    backend.come_back();
    Record::of(backend, "a").comes_to_rest();
    assert!(!guard.is_held() && guard.remaining().is_zero());
    let next = other.try_lock("a").unwrap().expect("it was released");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.renew(), Err(Error::Lost { .. })));
    assert!(matches!(guard.check(), Err(Error::Lost { .. })));
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    next.renew().unwrap();
    assert!(calls.is_empty(), "once");
}

fn p6_is_held_turns_false_by_the_clock_alone(backend: &Backend) {
    let manager = manager(backend);
    let guard = manager.lock("a").unwrap();
    backend.go_away();
    let deadline = Instant::now() + guard.remaining() + T;
    until(TTL + SLACK, "it is not held any more", || !guard.is_held());
    assert!(Instant::now() <= deadline + SLACK);
    backend.come_back();
    throughout(TTL / 3, "it is lost", || !guard.is_held());
}

fn p3_waiters_keep_their_order_over_an_outage(backend: &Backend) {
    let patient = || build(builder(backend).outage_limit(Duration::MAX));
    let managers = [patient(), patient()];
    // The holder is a third process: its own waiters would lose their places with its lease (R10:
    // places of the dead).
    let holding = patient();
    let holder = holding.lock("a").unwrap();
    let fence = holder.fence();
    let mut queue = Waiters::of("a");
    for waiter in 0..6 {
        queue.add(&managers[waiter % 2]);
    }
    backend.go_away();
    // Past the holder's lease and past the horizon: an outage makes no waiter look dead (R2: served
    // time).
    backend.pass(TTL + H / 2);
    assert!(!holder.is_held());
    assert!(queue.none_ended());
    backend.come_back();
    let back = Instant::now();
    let mut last = fence;
    for waiter in 0..6 {
        let guard = queue.expect_grant(waiter, Duration::from_secs(2) + SLACK);
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.unlock().unwrap();
    }
    assert!(
        back.elapsed() <= Duration::from_secs(2) + SLACK,
        "{:?}",
        back.elapsed()
    );
    assert_eq!(managers.each_ref().map(|m| m.stats().requeues), [0, 0]);
    Record::of(backend, "a").comes_to_rest();
}

fn p3_nobody_overtakes_the_queue_after_an_outage(backend: &Backend) {
    let patient = || build(builder(backend).outage_limit(Duration::MAX));
    let [holding, waiting, barging] = [(); 3].map(|()| patient());
    let holder = holding.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&waiting);
    queue.add(&waiting);
    let barged = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    let barge = |manager: &LockManager| {
        while !over.load(Ordering::Relaxed) {
            match manager.try_lock("a") {
                Ok(Some(guard)) => barged.lock().unwrap().push(guard.fence()),
                Ok(None) => {}
                // A pause between two polls: in memory the error comes at once.
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    thread::scope(|scope| {
        let end = EndLoops(&over);
        for manager in [&barging, &waiting, &holding] {
            scope.spawn(|| barge(manager));
        }
        backend.go_away();
        // The lease runs out during the outage, so the first caller afterwards finds the lock free.
        backend.pass(TTL + H / 2);
        backend.come_back();
        queue
            .expect_grant(0, Duration::from_secs(2) + SLACK)
            .unlock()
            .unwrap();
        let last = queue.expect_grant(1, Duration::from_secs(2) + SLACK);
        let fence = last.fence();
        last.unlock().unwrap();
        until(SOON, "a try wins once the queue is empty", || {
            !barged.lock().unwrap().is_empty()
        });
        drop(end);
        assert!(
            barged.lock().unwrap().iter().all(|won| *won > fence),
            "somebody overtook the queue"
        );
    });
    drop(holder);
}

fn a_call_made_in_an_outage_is_served_afterwards(backend: &Backend) {
    let manager = manager(backend);
    backend.go_away();
    let calls = ["a", "b"].map(|name| {
        let manager = manager.clone();
        thread::spawn(move || manager.lock(name).unwrap().unlock())
    });
    backend.pass(3 * T);
    backend.come_back();
    for call in calls {
        call.join().unwrap().unwrap();
    }
}

/// Unlike a lease, a queue entry does not end with the ttl: the other waiters of its process keep
/// it alive.
fn p7_waiters_dropped_in_a_long_outage_leave_the_queue(backend: &Backend) {
    let ours = build(builder(backend).outage_limit(10 * TTL));
    let theirs = build(builder(backend).options(LockOptions::new().fixed_lease(10 * TTL)));
    warm_up(&ours);
    let held = theirs.lock("a").unwrap();
    let places: Vec<_> = (0..4).map(|_| ours.enqueue("a").unwrap()).collect();
    backend.go_away();
    let mut places = places.into_iter();
    let mut stays = places.next_back().unwrap();
    drop(places);
    backend.pass(TTL + SLACK);
    backend.come_back();
    until(SOON, "one waiter is left", || {
        theirs
            .inspect("a")
            .is_ok_and(|seen| seen.unwrap().queue.len() == 1)
    });
    held.unlock().unwrap();
    assert!(
        stays.wait_for(P + T + SLACK).unwrap().is_some(),
        "it is served next"
    );
}

fn p8_waits_end_at_the_outage_limit_and_later_calls_work(backend: &Backend) {
    const OUTAGE: Duration = Duration::from_secs(1);
    let manager = build(builder(backend).outage_limit(OUTAGE));
    let holder = manager.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&manager);
    queue.add(&manager);
    backend.go_away();
    let start = Instant::now();
    for _ in 0..2 {
        let (_, end) = queue.next_end(OUTAGE + SLACK);
        let Err(Error::Unavailable { waited, lock, .. }) = &end else {
            panic!("{end:?}")
        };
        assert!(*waited >= OUTAGE, "{waited:?}");
        assert_eq!(lock.as_deref(), Some("a"));
    }
    assert!(
        start.elapsed() + P + T >= OUTAGE,
        "not before its time: {:?}",
        start.elapsed()
    );
    // An enqueue that begins in the outage has the same limit.
    let start = Instant::now();
    assert!(matches!(manager.lock("b"), Err(Error::Unavailable { .. })));
    assert!(start.elapsed() <= OUTAGE + T + SLACK);
    backend.come_back();
    drop(holder);
    // The waiters have left, so nobody is ahead of the next caller.
    let guard = manager
        .try_lock_for("a", SOON)
        .unwrap()
        .expect("it is free");
    guard.unlock().unwrap();
    Record::of(backend, "a").comes_to_rest();
    Record::of(backend, "b").comes_to_rest();
}

fn p8_a_timed_try_in_silence_is_unavailable_not_none(backend: &Backend) {
    // The holder's lease outlasts the silence, however slow the machine.
    let ours = manager(backend);
    let other = build(steady(backend));
    warm_up(&ours);
    let _holder = other.lock("a").unwrap();
    assert!(
        ours.try_lock_for("a", 2 * T).unwrap().is_none(),
        "while Redis answers"
    );
    let mut waiter = ours.enqueue("a").unwrap();
    let at_most = P + 3 * T;
    let call = thread::spawn({
        let ours = ours.clone();
        move || {
            let start = Instant::now();
            (ours.try_lock_for("a", at_most), start.elapsed())
        }
    });
    until(SOON, "it is queued", || {
        Record::of(backend, "a").number("r") == 2
    });
    backend.go_away();
    let start = Instant::now();
    // A waiter that keeps its place gets no error before the outage limit.
    assert!(waiter.wait_for(at_most).unwrap().is_none());
    assert!(start.elapsed() <= at_most + SLACK);
    let (end, took) = call.join().unwrap();
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    assert!(took <= at_most + T + SLACK, "{took:?}");
    backend.come_back();
    // The waiter has kept its place, and the call has left the queue.
    until(SOON, "one is left", || {
        Record::of(backend, "a").number("r") == 1
    });
}
