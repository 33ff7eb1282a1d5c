//! What stays in Redis when all is over: nothing that counts, and nothing for ever.

use std::{thread, time::Duration};

use fairlock::LockManager;

use crate::{
    managers::{
        RETENTION, assert_nothing_left, fields, horizon, manager, owner, patient, queue, record,
    },
    place::{Place, on_both_stores},
    scene::Record,
    support::{SLACK, until},
};

const TTL: Duration = Duration::from_secs(2);

on_both_stores! {
    nothing_is_left_after_contention_and_timeouts,
    a_wait_that_ended_leaves_no_place_in_the_queue,
    stamps_of_managers_that_went_away_do_not_pile_up,
    what_nobody_uses_is_gone_after_its_retention,
}

fn nothing_is_left_after_contention_and_timeouts(place: &Place) {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let managers = [manager(place, TTL), manager(place, TTL)];
    thread::scope(|scope| {
        for i in 0..12 {
            let mgr = &managers[i % 2];
            scope.spawn(move || contend(mgr, &NAMES, i));
        }
    });
    for name in NAMES {
        drop(managers[0].lock(name).unwrap());
        until(TTL + SLACK, "what went on in the background ends", || {
            fields(place, name, "w:") == 0
        });
        until(TTL + SLACK, "the last owner ends", || {
            owner(place, name).is_none()
        });
        assert_nothing_left(place, name);
    }
    assert!(
        managers
            .iter()
            .all(|mgr| mgr.stats().waiting == 0 && mgr.stats().held == 0)
    );
}

/// An answer that comes late on a busy machine is an error here, and no less to be cleaned up after.
pub(crate) fn contend(mgr: &LockManager, names: &[&str], who: usize) {
    for turn in 0..30 {
        let name = names[(who + turn) % names.len()];
        match (who + turn) % 4 {
            0 => drop(mgr.lock(name)),
            1 => drop(mgr.try_lock_for(name, Duration::from_millis(2))),
            2 => drop(mgr.enqueue(name)),
            _ => drop(mgr.try_lock(name)),
        }
    }
}

fn a_wait_that_ended_leaves_no_place_in_the_queue(place: &Place) {
    let holder = patient(place);
    let other = patient(place);
    let guard = holder.lock("k").unwrap();
    let stays = holder.enqueue("k").unwrap();
    let mut tries = other.enqueue("k").unwrap();
    assert!(
        other
            .try_lock_for("k", Duration::from_millis(20))
            .unwrap()
            .is_none()
    );
    assert!(
        holder
            .try_lock_for("k", Duration::from_millis(20))
            .unwrap()
            .is_none()
    );
    assert!(tries.wait_for(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(
        fields(place, "k", "w:"),
        2,
        "a waiter keeps its place between two waits"
    );
    drop(tries);
    assert_eq!(fields(place, "k", "w:"), 1);
    assert_eq!(queue(place, "k").len(), 1, "{:?}", record(place, "k"));
    drop(stays);
    guard.unlock().unwrap();
    assert_nothing_left(place, "k");
}

fn stamps_of_managers_that_went_away_do_not_pile_up(place: &Place) {
    const ROUNDS: usize = 8;
    const MANAGERS: usize = 60;
    let holder = manager(place, TTL);
    let guard = holder.lock("k").unwrap();
    let stays = holder.enqueue("k").unwrap();
    let mut most = 0;
    for _ in 0..ROUNDS {
        for _ in 0..MANAGERS {
            let passer_by = manager(place, TTL);
            let waiter = passer_by.enqueue("k").unwrap();
            drop(waiter);
            most = most.max(fields(place, "k", "m:"));
        }
        // A stamp is good for one horizon of served time, which passes here; only then may it be swept.
        let record = Record::of(place, "k");
        record.set(&[(
            "v",
            &(record.number("v") + horizon(TTL).as_micros() as u64).to_string(),
        )]);
    }
    assert!(
        most > MANAGERS && most < ROUNDS * MANAGERS / 2,
        "{most} stamps of {} managers",
        ROUNDS * MANAGERS
    );
    assert!(guard.is_held());
    guard.unlock().unwrap();
    stays.wait().unwrap().unlock().unwrap();
    assert_nothing_left(place, "k");
}

fn what_nobody_uses_is_gone_after_its_retention(place: &Place) {
    let (ours, other) = (manager(place, TTL), manager(place, TTL));
    let guard = ours.lock("k").unwrap();
    let waiters = [ours.enqueue("k").unwrap(), other.enqueue("k").unwrap()];
    guard.unlock().unwrap();
    drop(waiters);
    until(TTL + SLACK, "nobody owns it", || {
        owner(place, "k").is_none()
    });
    // What they may still do in the background would count as use.
    drop((ours, other));
    assert_eq!(place.keys("k"), ["fairlock:{k}"]);
    let (least, most) = RETENTION;
    if let Some(server) = place.server() {
        let left: u64 = server.query(&["PTTL", "fairlock:{k}"]);
        assert!(
            Duration::from_millis(left) <= most + TTL,
            "it stays for {left} ms"
        );
        assert!(
            Duration::from_millis(left) + SLACK >= least,
            "it stays for only {left} ms"
        );
    } else {
        place.pass(least - SLACK);
        assert_eq!(place.keys("k"), ["fairlock:{k}"]);
        place.pass(most - least + TTL + SLACK);
        assert_eq!(place.keys("k"), [""; 0]);
    }
}
