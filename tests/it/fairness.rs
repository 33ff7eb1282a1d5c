//! P3: first come, first served, across processes. On Redis alone, which they share.

use crate::fixtures::DEFAULT_TTL;
use std::{sync::Mutex, thread};

use crate::{
    managers::{patient, queue},
    support::{SLACK, Server, until},
    worker::{self, SOON, expect_got},
};

#[test]
fn p3_grants_follow_the_enqueue_order_of_all_processes() {
    const ROUNDS: usize = 8;
    let server = Server::start();
    let holder = patient(server.url());
    let guard = holder.lock("k").unwrap();
    let local = [holder.clone(), patient(server.url())];
    let mut children = [
        worker::start(&server.url(), DEFAULT_TTL),
        worker::start(&server.url(), DEFAULT_TTL),
    ];

    // In each round all four enqueue, and each round begins with another one.
    let granted = Mutex::new(Vec::new());
    let mut order = 0;
    thread::scope(|scope| {
        for round in 0..ROUNDS {
            for i in 0..4 {
                let who = (round + i) % 4;
                order += 1;
                if who < 2 {
                    let waiter = local[who].enqueue("k").unwrap();
                    assert_eq!(waiter.position(), Some(order), "the place in the queue");
                    let granted = &granted;
                    scope.spawn(move || {
                        let guard = waiter.wait().unwrap();
                        granted.lock().unwrap().push((guard.fence(), who));
                    });
                } else {
                    children[who - 2].send("turn k");
                    children[who - 2].expect("queued", SOON);
                }
            }
        }
        assert_eq!(queue(&server, "k").len(), 4 * ROUNDS);
        guard.unlock().unwrap();
    });
    let mut granted = granted.into_inner().unwrap();
    for (i, child) in children.iter().enumerate() {
        granted.extend((0..ROUNDS).map(|_| (expect_got(child, "k", SOON).fence, i + 2)));
    }
    granted.sort_unstable();
    let expected: Vec<usize> = (0..ROUNDS)
        .flat_map(|round| (0..4).map(move |i| (round + i) % 4))
        .collect();
    let granted_to: Vec<usize> = granted.iter().map(|(_, who)| *who).collect();
    assert_eq!(granted_to, expected, "grants by fence: {granted:?}");
    until(SLACK, "the last release", || queue(&server, "k").is_empty());
}
