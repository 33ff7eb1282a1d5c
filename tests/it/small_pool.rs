//! P9: a pool of one connection serves many, and renewals do not queue for it. On Redis alone, since in memory there is no
//! pool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, LockOptions};

use crate::{
    managers::{EndLoops, assert_nothing_left, check_period},
    support::{SLACK, Server, until},
};

const TTL: Duration = Duration::from_secs(2);

#[test]
fn p9_fifty_threads_share_one_connection_without_deadlock_or_late_renewal() {
    let server = Server::start();
    let losses = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&losses);
    let options = LockOptions::new().ttl(TTL).on_lost(move |_| {
        told.fetch_add(1, Ordering::Relaxed);
    });
    // The longest timeout that fits the ttl: an unlock that takes longer may say so.
    let builder = LockManager::builder(server.url()).pool_size(1).options(options);
    let builder = builder.command_timeout(TTL / 7).check_period(TTL / 10).horizon(TTL * 11 / 20);
    let mgr = builder.build().unwrap();
    let held = mgr.lock("held").unwrap();
    let over = AtomicBool::new(false);
    let turns: Vec<AtomicU64> = (0..50).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for (i, turns) in turns.iter().enumerate() {
            let (mgr, over) = (&mgr, &over);
            scope.spawn(move || {
                // Most of them in one queue, some in others.
                let name = format!("k{}", i.saturating_sub(39));
                while !over.load(Ordering::Relaxed) {
                    let guard = mgr.lock(&name).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                    guard.unlock().unwrap();
                }
            });
        }
        let end = EndLoops(&over);
        let start = Instant::now();
        while start.elapsed() < 2 * TTL {
            held.check().unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        let before: Vec<u64> = turns.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        until(check_period(TTL) + SLACK, "everybody's turn comes", || {
            turns.iter().zip(&before).all(|(n, before)| n.load(Ordering::Relaxed) > *before)
        });
        drop(end);
    });
    assert!(mgr.stats().renewed >= 4, "{:?}", mgr.stats());
    assert_eq!(losses.load(Ordering::Relaxed), 0);
    held.unlock().unwrap();
    for i in 0..=10 {
        assert_nothing_left(&server, &format!("k{i}"));
    }
}
