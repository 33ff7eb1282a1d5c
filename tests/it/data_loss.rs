//! A server loses its data, or only its scripts, or restarts with its data. On Redis alone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockOptions, LossReason, PreviousHolder};

use crate::backend::Backend;
use crate::behaviour::data_loss::loses_everything;
use crate::fixtures::{P, Record, SOON, STEADY_TTL as TTL, Waiters, build, steady};
use crate::sums::Sums;
use crate::support::{SLACK, Server, until};

#[test]
fn p3_an_empty_restart_is_reported_and_keeps_the_queue_order() {
    let backend = Backend::redis();
    let server = backend.server().expect("it is a Redis backend");
    loses_everything(&backend, || server.restart());
}

/// The policy evicts any key, so also those of locks.
pub(crate) fn evict_all(server: &Server) {
    let mut evicting = redis::pipe();
    for (setting, value) in [
        ("maxmemory-policy", "allkeys-random"),
        ("maxmemory", "1"),
        ("maxmemory", "0"),
    ] {
        evicting
            .cmd("CONFIG")
            .arg("SET")
            .arg(setting)
            .arg(value)
            .ignore();
        // While memory is short, the server evicts keys before each command.
        evicting.cmd("PING").ignore();
    }
    let mut connection = server.connection();
    until(SOON, "keys were evicted, and none is left", || {
        evicting.query::<()>(&mut connection).unwrap();
        server.counted("evicted_keys") > 0 && server.query::<u64>(&["DBSIZE"]) == 0
    });
}

#[test]
fn p2_fences_rise_over_an_eviction_that_costs_no_place() {
    let backend = Backend::redis();
    let server = backend.server().expect("it is a Redis backend");
    loses_everything(&backend, || evict_all(server));
}

/// As after a failover to a replica that had not received the latest grant. The forgotten holder
/// learns of its loss.
#[test]
fn p2_fences_rise_over_a_restart_with_older_data() {
    let server = Server::start();
    let (ours, other) = (build(steady(server.url())), build(steady(server.url())));
    let first = ours.lock("a").unwrap();
    let _: () = server.query(&["SAVE"]);
    first.unlock().unwrap();
    let second = other.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&other);

    server.restart();
    assert!(
        Record::of(&server, "a").owner().is_some(),
        "the record names the first holder again"
    );
    let loss = second
        .lost()
        .recv_timeout(TTL / 3 + SLACK)
        .expect("the loss is reported");
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::NotOwner, second.fence())
    );
    // The record names a holder that released long ago. It delays the others like a crashed one.
    let mut largest = second.fence();
    for _ in 0..2 {
        let (_, end) = queue.next_end(TTL + P + SLACK);
        let guard = end.unwrap();
        assert!(guard.fence() > largest, "{} after {largest}", guard.fence());
        largest = guard.fence();
        guard.unlock().unwrap();
    }
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p1_unexpired_leases_survive_a_restart_that_kept_the_data() {
    // With the default fsync policy the server may keep the newest writes in memory while the disk
    // is busy.
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let holding = build(steady(server.url()));
    let waiting = build(steady(server.url()));
    let holder = holding.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    for _ in 0..3 {
        queue.add(&waiting);
        queue.add(&holding);
    }

    server.restart();
    let before = holding.stats().renewals_confirmed;
    until(TTL, "the lease is renewed", || {
        holding.stats().renewals_confirmed > before
    });
    holder.check().unwrap();
    assert!(queue.none_ended());
    holder.unlock().unwrap();
    for who in 0..6 {
        let guard = queue.expect_grant(who, 2 * P + SLACK);
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        guard.unlock().unwrap();
    }
    assert_eq!(
        holding.stats().requeues + waiting.stats().requeues,
        0,
        "every waiter kept its place"
    );
    Record::of(&server, "a").comes_to_rest();
}

/// The server knows the script of a release, and no other. A member that has the last turn leaves, so
/// the renewal thread sends the place of its line and the release of the tenure.
#[test]
fn a_line_keeps_its_order_when_scripts_are_forgotten() {
    let server = Server::start();
    let (ours, other) = (build(steady(server.url())), build(steady(server.url())));
    let ours = ours.with(LockOptions::new().local_handovers(1));
    let guard = ours.lock("a").unwrap();
    let [idle, mut last] = [(); 2].map(|()| ours.enqueue("a").unwrap());
    guard.unlock().unwrap();
    let others = other.lock("b").unwrap();
    let _: String = server.query(&["SCRIPT", "FLUSH"]);
    others.unlock().unwrap();
    let before = ours.stats().handovers;
    drop(idle);
    let last = last.wait_for(SOON).unwrap().expect("it is the next");
    let handed_over = ours.stats().handovers - before;
    assert_eq!(handed_over, 1, "the release came first");
    last.unlock().unwrap();
}

#[test]
fn no_caller_notices_scripts_flushed_in_a_loop() {
    let server = Server::start();
    let managers = [build(steady(server.url())), build(steady(server.url()))];
    let kept = managers[0].lock("kept").unwrap();
    let inside = [const { AtomicBool::new(false) }; 2];
    let turns = AtomicU32::new(0);
    let flushes = server.repeat(&["SCRIPT", "FLUSH"], Duration::from_millis(1));
    thread::scope(|scope| {
        for i in 0..6 {
            let managers = &managers;
            let inside = &inside;
            let turns = &turns;
            scope.spawn(move || {
                let name = i / 3;
                let end = Instant::now() + Duration::from_millis(1200);
                while Instant::now() < end {
                    let guard = managers[i % 2].lock(["x", "y"][name]).unwrap();
                    assert!(
                        !inside[name].swap(true, Ordering::SeqCst),
                        "two holders at once"
                    );
                    managers[i % 2]
                        .inspect(["x", "y"][name])
                        .unwrap()
                        .expect("it is held");
                    assert!(inside[name].swap(false, Ordering::SeqCst));
                    guard.unlock().unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    drop(flushes);
    assert!(turns.into_inner() > 20);
    kept.renew().unwrap();
    kept.unlock().unwrap();
    let stats = managers.each_ref().map(|m| m.stats());
    assert_eq!(
        stats.map(|s| s.losses() + s.renewals_failed + s.requeues),
        [0, 0]
    );
}
