//! The data in Redis after all use has ended: nothing that counts, and nothing forever.

use std::{thread, time::Duration};

use fairlock::LockManager;

use crate::{
    backend::{Backend, on_both_stores},
    fixtures::Record,
    managers::{
        RETENTION, assert_nothing_left, fields, horizon, manager, owner, patient, queue, record,
    },
    support::{SLACK, until},
};

const TTL: Duration = Duration::from_secs(2);

on_both_stores! {
    nothing_is_left_after_contention_and_timeouts,
    an_ended_wait_leaves_no_queue_entry,
    stamps_of_closed_managers_do_not_pile_up,
    unused_keys_expire_after_their_retention,
}

fn nothing_is_left_after_contention_and_timeouts(backend: &Backend) {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let managers = [manager(backend, TTL), manager(backend, TTL)];
    thread::scope(|scope| {
        for i in 0..12 {
            let mgr = &managers[i % 2];
            scope.spawn(move || contend(mgr, &NAMES, i));
        }
    });
    for name in NAMES {
        drop(managers[0].lock(name).unwrap());
        until(TTL + SLACK, "the background work ends", || {
            fields(backend, name, "w:") == 0
        });
        until(TTL + SLACK, "the last owner ends", || {
            owner(backend, name).is_none()
        });
        assert_nothing_left(backend, name);
    }
    assert!(
        managers
            .iter()
            .all(|mgr| mgr.stats().waiting == 0 && mgr.stats().held == 0)
    );
}

/// On a busy machine an answer can come late and is then an error here. It must be cleaned up as
/// well.
pub(crate) fn contend(mgr: &LockManager, names: &[&str], offset: usize) {
    for turn in 0..30 {
        let name = names[(offset + turn) % names.len()];
        match (offset + turn) % 4 {
            0 => drop(mgr.lock(name)),
            1 => drop(mgr.try_lock_for(name, Duration::from_millis(2))),
            2 => drop(mgr.enqueue(name)),
            _ => drop(mgr.try_lock(name)),
        }
    }
}

fn an_ended_wait_leaves_no_queue_entry(backend: &Backend) {
    let holder = patient(backend);
    let other = patient(backend);
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
        fields(backend, "k", "w:"),
        2,
        "a waiter keeps its place between two waits"
    );
    drop(tries);
    assert_eq!(fields(backend, "k", "w:"), 1);
    assert_eq!(queue(backend, "k").len(), 1, "{:?}", record(backend, "k"));
    drop(stays);
    guard.unlock().unwrap();
    assert_nothing_left(backend, "k");
}

fn stamps_of_closed_managers_do_not_pile_up(backend: &Backend) {
    const ROUNDS: usize = 8;
    const MANAGERS: usize = 60;
    let holder = manager(backend, TTL);
    let guard = holder.lock("k").unwrap();
    let stays = holder.enqueue("k").unwrap();
    let mut most = 0;
    for _ in 0..ROUNDS {
        for _ in 0..MANAGERS {
            let passer_by = manager(backend, TTL);
            let waiter = passer_by.enqueue("k").unwrap();
            drop(waiter);
            most = most.max(fields(backend, "k", "m:"));
        }
        // A stamp is valid for one horizon of served time. This write lets that time pass; only
        // then may the stamp be removed.
        let record = Record::of(backend, "k");
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
    assert_nothing_left(backend, "k");
}

fn unused_keys_expire_after_their_retention(backend: &Backend) {
    let (ours, other) = (manager(backend, TTL), manager(backend, TTL));
    let guard = ours.lock("k").unwrap();
    let waiters = [ours.enqueue("k").unwrap(), other.enqueue("k").unwrap()];
    guard.unlock().unwrap();
    drop(waiters);
    until(TTL + SLACK, "nobody owns it", || {
        owner(backend, "k").is_none()
    });
    // Background work of the managers would count as use.
    drop((ours, other));
    assert_eq!(backend.keys("k"), ["fairlock:{k}"]);
    let (least, most) = RETENTION;
    if let Some(server) = backend.server() {
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
        backend.pass(least - SLACK);
        assert_eq!(backend.keys("k"), ["fairlock:{k}"]);
        backend.pass(most - least + TTL + SLACK);
        assert_eq!(backend.keys("k"), [""; 0]);
    }
}
