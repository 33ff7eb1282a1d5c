//! When the sentinels are asked.

use std::thread;
use std::time::Instant;

use fairlock::endpoint::Endpoint;

use super::common::{P, SOON, TTL, build, builder};
use crate::sentinel_set::{SERVICE, SentinelSet};
use crate::support::{Proxy, until};

fn through(proxy: &Proxy) -> Endpoint {
    Endpoint::sentinel(SERVICE, [("127.0.0.1", proxy.addr().port())])
}

#[test]
fn idle_manager_asks_the_sentinels_nothing() {
    let set = SentinelSet::start();
    let proxy = Proxy::to(set.sentinels[0].addr());
    let mgr = build(builder(through(&proxy)));
    mgr.lock("a").unwrap().unlock().unwrap();
    // A waiter opens the subscription.
    drop(mgr.enqueue("a").unwrap());
    until(SOON, "the last check is over", || {
        let before = proxy.commands();
        // Time itself is under test: nothing is sent in it.
        thread::sleep(3 * P);
        proxy.commands() == before
    });
}

#[test]
fn sentinels_are_asked_once_per_check_period_while_locked() {
    let set = SentinelSet::start();
    let proxy = Proxy::to(set.sentinels[0].addr());
    let mgr = build(builder(through(&proxy)));
    let _held = mgr.lock("a").unwrap();
    let before = (proxy.commands(), proxy.connections());
    let periods = 8;
    // Time itself is under test: the questions of these periods are counted.
    thread::sleep(P * periods);
    let asked = proxy.commands() - before.0;
    // Each question is two commands. A busy machine may be late with some.
    let most = 2 * (u64::from(periods) + 1);
    assert!((4..=most).contains(&asked), "{asked} of {most} commands");
    assert_eq!(
        proxy.connections(),
        before.1,
        "one connection serves all questions"
    );
}

/// One resolution at a time is for all callers, with a pause in between.
#[test]
fn many_callers_in_an_outage_ask_as_often_as_one() {
    let set = SentinelSet::start();
    let proxy = Proxy::to(set.sentinels[0].addr());
    let mgr = build(builder(through(&proxy)));
    mgr.lock("a").unwrap().unlock().unwrap();
    set.sentinels[1].stop();
    set.sentinels[2].stop();
    set.nodes[0].kill();
    let before = proxy.commands();
    let started = Instant::now();
    thread::scope(|scope| {
        for i in 0..16 {
            let mgr = &mgr;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert!(mgr.try_lock(format!("a{i}")).is_err());
                }
            });
        }
    });
    // The pause is a quarter of a back-off, which is a twentieth of the ttl.
    let pauses = started.elapsed().as_nanos() / (TTL / 80).as_nanos();
    let asked = u128::from(proxy.commands() - before) / 2;
    assert!(asked <= pauses + 2, "{asked} questions in {pauses} pauses");
}
