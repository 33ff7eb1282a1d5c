//! Redis loses what it knew, or a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LossReason, PreviousHolder};

use crate::scene::{Line, P, Record, SOON, STEADY_TTL as TTL, build, steady, warm_up};
use crate::support::{SLACK, Server, until};

#[test]
fn an_empty_restart_is_told_to_holders_and_waiters_are_served_in_order() {
    loses_everything(Server::restart);
}

#[test]
fn a_flushall_is_told_to_holders_and_waiters_are_served_in_order() {
    loses_everything(|server| server.query(&["FLUSHALL"]));
}

fn loses_everything(disaster: impl Fn(&Server)) {
    let server = Server::start();
    let managers = [build(steady(server.url())), build(steady(server.url()))];
    managers.iter().for_each(warm_up);
    let holder = managers[0].lock("a").unwrap();
    let mut largest = holder.fence();
    let mut line = Line::of("a");
    for who in 0..8 {
        line.stand(&managers[who % 2]);
    }

    disaster(&server);
    let loss = holder.lost().recv_timeout(TTL / 3 + SLACK).expect("the loss is told");
    assert_eq!((loss.reason, loss.fence), (LossReason::Taken, holder.fence()));
    assert!(!holder.is_held());

    // Across processes the order of their syncs decides; within each one it is kept.
    let mut seen: [Vec<usize>; 2] = Default::default();
    for _ in 0..8 {
        let (who, end) = line.next(SOON);
        let guard = end.unwrap();
        assert!(guard.is_held());
        assert!(guard.fence() > largest, "fences rise over a loss of data");
        largest = guard.fence();
        seen[who % 2].push(who);
        guard.unlock().unwrap();
    }
    assert_eq!(seen, [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    let requeued: u64 = managers.iter().map(|m| m.stats().requeued).sum();
    assert!(requeued >= 7, "all but one that came to a free lock stood in the queue again: {requeued}");
    let again = managers[1].try_lock("a").unwrap().expect("it is free");
    assert!(again.fence() > largest);
    drop((holder, again));
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn leases_inside_their_time_go_on_over_a_restart_that_kept_the_data() {
    let server = Server::start_with(&["--appendonly", "yes"]);
    let holding = build(steady(server.url()));
    let waiting = build(steady(server.url()));
    let holder = holding.lock("a").unwrap();
    let mut line = Line::of("a");
    for _ in 0..3 {
        line.stand(&waiting);
        line.stand(&holding);
    }

    server.restart();
    let before = holding.stats().renewed;
    until(TTL, "the lease is renewed", || holding.stats().renewed > before);
    holder.check().unwrap();
    assert!(line.is_quiet());
    holder.unlock().unwrap();
    for who in 0..6 {
        let guard = line.serve(who, 2 * P + SLACK);
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        guard.unlock().unwrap();
    }
    assert_eq!(holding.stats().requeued + waiting.stats().requeued, 0, "every place was kept");
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn no_caller_notices_scripts_flushed_in_a_loop() {
    let server = Server::start();
    let managers = [build(steady(server.url())), build(steady(server.url()))];
    let kept = managers[0].lock("kept").unwrap();
    let inside = [const { AtomicBool::new(false) }; 2];
    let turns = AtomicU32::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _: () = server.query(&["SCRIPT", "FLUSH"]);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let workers: Vec<_> = (0..6)
            .map(|i| {
                let (managers, inside, turns) = (&managers, &inside, &turns);
                scope.spawn(move || {
                    let name = i / 3;
                    let end = Instant::now() + Duration::from_millis(1200);
                    while Instant::now() < end {
                        let guard = managers[i % 2].lock(["x", "y"][name]).unwrap();
                        assert!(!inside[name].swap(true, Ordering::SeqCst), "two holders at once");
                        managers[i % 2].inspect(["x", "y"][name]).unwrap().expect("it is held");
                        assert!(inside[name].swap(false, Ordering::SeqCst));
                        guard.unlock().unwrap();
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        for end in ends {
            end.unwrap();
        }
    });
    assert!(turns.into_inner() > 20);
    kept.renew().unwrap();
    kept.unlock().unwrap();
    let stats = managers.each_ref().map(|m| m.stats());
    assert_eq!(stats.map(|s| s.lost + s.renewal_failures + s.requeued), [0, 0]);
}

#[test]
fn holders_of_many_names_are_each_told_of_a_flush_once() {
    let server = Server::start();
    let told = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&told);
    let options = fairlock::LockOptions::new().ttl(TTL).on_lost(move |loss| {
        assert_eq!(loss.reason, LossReason::Taken);
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let manager = build(steady(server.url())).with(options);
    let guards: Vec<_> = (0..50).map(|i| manager.lock(&format!("a{i}")).unwrap()).collect();
    let _: () = server.query(&["FLUSHALL"]);
    for guard in &guards {
        guard.lost().recv_timeout(TTL / 3 + SLACK).expect("the loss is told");
        assert!(guard.lost().recv_timeout(SLACK).is_err(), "and once, then the channel is closed");
    }
    until(SOON, "every callback is called", || told.load(Ordering::SeqCst) == 50);
    drop(guards);
    assert_eq!((manager.stats().lost, told.load(Ordering::SeqCst)), (50, 50));
}
