//! The channel of wake-ups fails: nobody waits for longer than a check period. On Redis alone, where it is a connection.

use std::time::Duration;

use fairlock::{Endpoint, LockManager};

use crate::fixtures::{P, Record, SOON, T, Waiters, build, manager, warm_up, with_ttl};
use crate::support::{Proxy, SLACK, Server, contains, until};

#[test]
fn p4_waiters_are_served_while_subscriptions_keep_dying() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let kills = server.repeat(
        &["CLIENT", "KILL", "TYPE", "pubsub"],
        Duration::from_millis(10),
    );
    for _ in 0..5 {
        let holder = other.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&ours);
        queue.add(&ours);
        holder.unlock().unwrap();
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
        queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    }
    drop(kills);
    assert_eq!(ours.stats().requeued, 0);
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_a_killed_subscription_is_opened_again() {
    let server = Server::start();
    let ours = manager(server.url());
    warm_up(&ours);
    for _ in 0..2 {
        until(SOON, "it listens", || listeners(&server).len() == 1);
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    until(SOON, "it listens again", || listeners(&server).len() == 1);
}

#[test]
fn p4_missed_grants_are_looked_up_once_the_subscription_returns() {
    let server = Server::start();
    // No check would come within the time that this may take, nor would the holder's time be up.
    let period = SOON + SLACK;
    let patient = || {
        build(
            with_ttl(server.url(), period * 4)
                .check_period(period)
                .command_timeout(T)
                .horizon(period + 3 * T),
        )
    };
    let (ours, other) = (patient(), patient());
    warm_up(&ours);
    let holder = other.lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    until(SOON, "it listens", || !listeners(&server).is_empty());
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    holder.unlock().unwrap();
    waiter
        .wait_for(SOON)
        .unwrap()
        .expect("it is asked for")
        .unlock()
        .unwrap();
}

/// A manager whose leases are so long that only its checks can bring what a message did not.
fn checking(to: impl Into<Endpoint>) -> LockManager {
    let ttl = Duration::from_secs(20);
    build(with_ttl(to, ttl).check_period(P).command_timeout(T))
}

/// Lets the place be checked a few times, so that the next check is the ordinary one.
fn settle(manager: &LockManager) {
    let before = manager.stats().requests;
    until(SOON, "the place is checked", || {
        manager.stats().requests >= before + 3
    });
}

#[test]
fn p4_messages_lost_on_half_open_subscriptions_cost_one_check_period() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (checking(proxy.url()), checking(server.url()));
    warm_up(&ours);
    let mut heard_by = Vec::new();
    for _ in 0..2 {
        let holder = other.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&ours);
        settle(&ours);
        heard_by.extend(listeners(&server));
        // From its next PING on nothing arrives on that connection any more, and nobody closes it.
        let deaf = proxy.swallow_silently_when(contains("PING"));
        deaf.wait(P + SLACK);
        holder.unlock().unwrap();
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeued, 0);
    // What is silent for a check period is given up, and replaced.
    until(SOON, "another one listens", || {
        let now = listeners(&server);
        now.len() == 1 && !heard_by.contains(&now[0])
    });
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_an_unpublished_message_costs_one_check_period() {
    let server = Server::start();
    let _: () = server.query(&[
        "ACL", "SETUSER", "mute", "on", ">p", "~*", "&*", "+@all", "-publish",
    ]);
    let mute = checking(format!("{}?user=mute&pass=p", server.url()));
    let ours = checking(server.url());
    warm_up(&ours);
    let holder = mute.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&ours);
    settle(&ours);
    holder.unlock().unwrap();
    assert_eq!(
        mute.stats().background_releases,
        0,
        "the release was refused for its last step"
    );
    let first = queue.expect_grant(0, P + T + SLACK);
    let stats: String = server.query(&["INFO", "commandstats"]);
    let published = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_publish:"));
    assert!(
        published.is_none_or(|line| line.contains("calls=0,")),
        "{published:?}"
    );
    first.unlock().unwrap();
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_a_failing_subscription_fails_no_wait() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (manager(proxy.url()), manager(server.url()));
    let holder = other.lock("a").unwrap();
    let deaf = proxy.swallow_silently_when(contains("SUBSCRIBE"));
    let mut queue = Waiters::of("a");
    let start = std::time::Instant::now();
    queue.add(&ours);
    // The try, the subscription and the place: one command timeout is for the second.
    assert!(start.elapsed() <= T + SLACK);
    assert!(deaf.has_struck());
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

/// The ids of the connections with a subscription.
fn listeners(server: &Server) -> Vec<String> {
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    server
        .clients()
        .iter()
        .filter(|line| line.contains(" sub=1 "))
        .map(id)
        .collect()
}
