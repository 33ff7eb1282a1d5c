//! What the sentinels are asked, and when.

use std::thread;

use fairlock::Sentinel;

use super::common::{P, SOON, build, builder};
use crate::sentinel_set::{SERVICE, SentinelSet};
use crate::support::{Proxy, until};

fn through(proxy: &Proxy) -> Sentinel {
    Sentinel::new(SERVICE, [("127.0.0.1", proxy.addr().port())])
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
        thread::sleep(3 * P);
        proxy.commands() == before
    });
}

#[test]
fn sentinels_are_asked_once_in_a_check_period_while_a_lock_is_held() {
    let set = SentinelSet::start();
    let proxy = Proxy::to(set.sentinels[0].addr());
    let mgr = build(builder(through(&proxy)));
    let _held = mgr.lock("a").unwrap();
    let before = (proxy.commands(), proxy.connections());
    let periods = 8;
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
