//! The wake-up channel fails: each wait takes at most one check period longer. On Redis alone,
//! where the channel is a connection.

use std::thread;
use std::time::Duration;

use fairlock::{LockManager, endpoint::Endpoint};

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
    assert_eq!(ours.stats().requeues, 0);
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_a_killed_subscription_is_opened_again() {
    let server = Server::start();
    let ours = manager(server.url());
    warm_up(&ours);
    for _ in 0..2 {
        until(SOON, "it is subscribed", || subscribers(&server).len() == 1);
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    until(SOON, "it is subscribed again", || {
        subscribers(&server).len() == 1
    });
}

#[test]
fn p4_missed_grants_are_looked_up_once_the_subscription_returns() {
    let server = Server::start();
    // The period is so long that neither a check nor the end of the lease comes within the time of
    // this test.
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
    until(SOON, "it is subscribed", || {
        !subscribers(&server).is_empty()
    });
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    holder.unlock().unwrap();
    waiter
        .wait_for(SOON)
        .unwrap()
        .expect("the missed grant is looked up")
        .unlock()
        .unwrap();
}

/// A manager with leases so long that only its checks can replace a lost message.
fn checking(to: impl Into<Endpoint>) -> LockManager {
    let ttl = Duration::from_secs(20);
    build(with_ttl(to, ttl).check_period(P).command_timeout(T))
}

/// Waits for a few checks of the waiter, so that the next check is an ordinary one.
fn await_checks(manager: &LockManager) {
    let before = manager.stats().requests;
    until(SOON, "the waiter is checked", || {
        // Every other one is a PING.
        manager.stats().requests >= before + 6
    });
}

#[test]
fn p4_messages_lost_on_half_open_subscriptions_cost_one_check_period() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (checking(proxy.url()), checking(server.url()));
    warm_up(&ours);
    let mut old_subscriptions = Vec::new();
    for _ in 0..2 {
        let holder = other.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&ours);
        await_checks(&ours);
        old_subscriptions.extend(subscribers(&server));
        // From the next PING on, nothing arrives on that connection, and no side closes it.
        let half_open = proxy.swallow_silently_when(contains("PING"));
        half_open.wait(P + SLACK);
        holder.unlock().unwrap();
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeues, 0);
    // A subscription that is silent for a check period is closed and replaced.
    until(SOON, "another connection is subscribed", || {
        let now = subscribers(&server);
        now.len() == 1 && !old_subscriptions.contains(&now[0])
    });
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn stats_count_every_command_that_is_sent() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (manager(proxy.url()), manager(server.url()));
    // Each count is read while the other may grow, so the two agree only between two commands.
    let agree = |when: &str| {
        until(SOON, &format!("the counts agree {when}"), || {
            proxy.commands() == ours.stats().requests
        });
    };
    agree("after the handshake");
    warm_up(&ours);
    agree("after calls, scripts and a subscription");
    let guard = ours.lock("held").unwrap();
    assert_eq!(ours.list("*").count(), 1);
    agree("after a page of keys");
    until(SOON, "it is renewed", || {
        ours.stats().renewals_confirmed > 1
    });
    agree("after renewals");
    let holder = other.lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let pings = server.calls("ping");
    until(SOON, "the subscription is checked", || {
        server.calls("ping") >= pings + 3
    });
    agree("after checks");
    drop((waiter, holder, guard));
    agree("at the end");
}

#[test]
fn a_manager_in_which_nobody_waits_sends_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (manager(proxy.url()), manager(server.url()));
    warm_up(&ours);
    await_quiet(&proxy);
    let holder = other.lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let pings = server.calls("ping");
    until(SOON, "the subscription is checked", || {
        server.calls("ping") >= pings + 3
    });
    drop(waiter);
    await_quiet(&proxy);
    holder.unlock().unwrap();
}

/// Waits until nothing is sent for a few check periods.
fn await_quiet(proxy: &Proxy) {
    until(SOON, "nothing is sent any more", || {
        let sent = proxy.commands();
        // Time itself is under test: nothing is sent in it.
        thread::sleep(4 * P);
        proxy.commands() == sent
    });
}

#[test]
fn p4_a_subscription_that_died_idle_costs_one_check_period() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (checking(proxy.url()), checking(server.url()));
    warm_up(&ours);
    await_quiet(&proxy);
    let old = subscribers(&server);
    proxy.silence_subscriptions();
    let holder = other.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    // Although that waiter is gone, the subscription is checked and replaced.
    until(
        2 * P + T + SLACK,
        "another connection is subscribed",
        || {
            let now = subscribers(&server);
            now.len() == 1 && now != old
        },
    );
    assert_eq!(ours.stats().requeues, 0);
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_an_unpublished_message_costs_one_check_period() {
    let server = Server::start();
    let _: () = server.query(&["ACL", "SETUSER", "mute", "on", ">p", "~*", "&*", "+@all"]);
    let mute = checking(format!("{}?user=mute&pass=p", server.url()));
    let ours = checking(server.url());
    warm_up(&ours);
    let holder = mute.lock("a").unwrap();
    // Without it from the beginning, the lock would have been refused.
    let _: () = server.query(&["ACL", "SETUSER", "mute", "-publish"]);
    // Redis 6.2 counts the question for the rights.
    let published = || server.calls("publish");
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&ours);
    await_checks(&ours);
    let before = published();
    holder.unlock().unwrap();
    assert_eq!(
        mute.stats().background_releases,
        0,
        "the release failed because its PUBLISH is not allowed"
    );
    let first = queue.expect_grant(0, P + T + SLACK);
    assert_eq!(published(), before);
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
    let half_open = proxy.swallow_silently_when(contains("SUBSCRIBE"));
    let mut queue = Waiters::of("a");
    let start = std::time::Instant::now();
    queue.add(&ours);
    // The caller sends a try, a subscription and an enqueue. The subscription may take one command
    // timeout.
    assert!(start.elapsed() <= T + SLACK);
    assert!(half_open.has_triggered());
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

/// The ids of the connections with a subscription.
fn subscribers(server: &Server) -> Vec<String> {
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    server
        .clients()
        .iter()
        .filter(|line| line.contains(" sub=1 "))
        .map(id)
        .collect()
}
