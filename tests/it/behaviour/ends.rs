//! The ways in which the holding of a lock comes to its end, other than a drop in its place.

use std::{
    mem,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockOptions, LossReason, PreviousHolder};

use crate::{
    managers::{assert_nothing_left, command_timeout, manager, patient},
    place::{Place, on_both_stores},
    support::SLACK,
};

const TTL: Duration = Duration::from_secs(1);

on_both_stores! {
    a_guard_is_released_by_the_thread_that_it_was_moved_to,
    a_panic_releases_what_is_held,
    a_guard_that_is_forgotten_is_renewed_until_max_hold,
}

fn a_guard_is_released_by_the_thread_that_it_was_moved_to(place: &Place) {
    let mgr = patient(place);
    let guard = mgr.lock("k").unwrap();
    let waiter = mgr.enqueue("k").unwrap();
    let moved = thread::spawn(move || {
        assert!(guard.is_held());
        guard.unlock()
    });
    moved.join().unwrap().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert_nothing_left(place, "k");
}

fn a_panic_releases_what_is_held(place: &Place) {
    let mgr = patient(place);
    let holder = mgr.clone();
    let waiting = mgr.clone();
    let (locked, is_locked) = mpsc::channel();
    let (queued, is_queued) = mpsc::channel();
    let panicking = thread::spawn(move || {
        let _guard = holder.lock("k").unwrap();
        locked.send(()).unwrap();
        is_queued.recv().unwrap();
        panic!("as the test wants it");
    });
    is_locked.recv().unwrap();
    let waiter = waiting.enqueue("k").unwrap();
    queued.send(()).unwrap();
    assert!(panicking.join().is_err());
    let guard = waiter.wait().unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    guard.unlock().unwrap();
    assert_nothing_left(place, "k");
}

fn a_guard_that_is_forgotten_is_renewed_until_max_hold(place: &Place) {
    let limit = TTL + TTL / 2;
    let (told, losses) = mpsc::channel();
    let options = LockOptions::new().max_hold(limit).on_lost(move |loss| told.send(loss.clone()).unwrap());
    let holder = manager(place, TTL);
    let start = Instant::now();
    let guard = holder.with(options).lock("k").unwrap();
    let fence = guard.fence();
    mem::forget(guard);
    let guard = manager(place, TTL).lock("k").unwrap();
    let took = start.elapsed();
    assert!(took >= limit, "the leaked guard's lease ended after {took:?}");
    assert!(took < limit + command_timeout(TTL) + SLACK, "{took:?}");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    let loss = losses.recv_timeout(SLACK).unwrap();
    assert_eq!((&*loss.name, loss.fence, loss.reason), ("k", fence, LossReason::MaxHold));
    assert!(losses.try_recv().is_err(), "it was told twice");
}
