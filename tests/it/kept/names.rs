//! Which names are kept, where that takes long or needs connections. On Redis alone.

use std::time::Duration;

use fairlock::LockOptions;

use crate::behaviour::kept::{P, SHORT_TTL, builder, gets, keeper, keeping, plain, short};
use crate::fixtures::{SOON, build};
use crate::keeping::{costs_nothing, keep};
use crate::managers::owner;
use crate::sums::Sums;
use crate::support::{SLACK, Server, throughout, until};

/// A closed connection casts doubt on what is kept. It says nothing of what others want.
#[test]
fn trouble_makes_no_name_cold() {
    let server = Server::start();
    let mgr = keeper(server.url());
    keep(&mgr, "warm");
    for kind in ["pubsub", "normal"] {
        let before = mgr.stats().kept_turns;
        until(SOON, "it is kept, and young", || {
            drop(mgr.lock("a").unwrap());
            mgr.stats().kept_turns > before
        });
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", kind]);
        until(SOON, "it is kept again", || {
            drop(mgr.lock("a").unwrap());
            costs_nothing(&mgr, || drop(mgr.lock("a").unwrap()))
        });
        assert_eq!(mgr.stats().cold_names, 0, "{kind}");
    }
}

/// A lock in use is kept for as long as it is used, through all its renewals.
#[test]
fn kept_lock_in_use_outlives_its_keep_time_and_its_ttl() {
    let server = Server::start();
    let keep_time = Duration::from_millis(400);
    let ttl = SHORT_TTL;
    let mgr = short(server.url(), LockOptions::new().keep_idle(keep_time));
    keep(&mgr, "a");
    let before = mgr.stats();
    let fence = mgr.inspect("a").unwrap().unwrap().fence;
    throughout(ttl * 3 / 2, "one grant goes on", || {
        drop(mgr.lock("a").unwrap());
        mgr.stats().kept_turns > before.kept_turns
    });
    let info = mgr.inspect("a").unwrap().unwrap();
    let after = mgr.stats();
    // A machine that is too busy to use it in time may end it.
    if after.cold_names == before.cold_names && after.renewals_failed == before.renewals_failed {
        assert_eq!(info.fence, fence);
    }
    assert_eq!(after.losses(), 0);
}

/// The names that are held in Redis, among those of a test.
fn taken(server: &Server, names: &[String]) -> usize {
    names
        .iter()
        .filter(|name| owner(server, name).is_some())
        .count()
}

#[test]
fn at_most_1024_names_are_kept_and_the_rest_released() {
    let server = Server::start();
    let mgr = keeper(server.url());
    keep(&mgr, "warm");
    let names: Vec<String> = (0..1300).map(|i| format!("n{i}")).collect();
    for _ in 0..12 {
        names.iter().for_each(|name| drop(mgr.lock(name).unwrap()));
    }
    until(SOON, "the others are released", || {
        taken(&server, &names) <= 1024
    });
    assert!(taken(&server, &names) >= 1000);
    // The others are free for everyone.
    let other = plain(server.url());
    let free: Vec<_> = names
        .iter()
        .filter(|name| owner(&server, name).is_none())
        .collect();
    assert!(!free.is_empty());
    for name in free {
        drop(other.try_lock(name).unwrap().expect("it is free"));
    }
    // And those that are kept are recalled one by one.
    for name in &names {
        drop(gets(&other, name, SLACK));
    }
    assert_eq!(mgr.stats().losses(), 0);
}

/// Its user has no right to the channel, so nobody could tell it that they wait.
#[test]
fn user_without_the_channel_locks_and_keeps_nothing() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    drop(mgr.lock("first").unwrap());
    let _: String = server.query(&["ACL", "SETUSER", "default", "resetchannels"]);
    for _ in 0..30 {
        drop(mgr.lock("a").unwrap());
        drop(mgr.try_lock("a").unwrap().expect("it is free"));
    }
    let stats = mgr.stats();
    assert_eq!((stats.kept_turns, stats.losses()), (0, 0));
    assert!(stats.connects < 15, "{stats}");
    until(SLACK, "it is free", || {
        other.try_lock("a").unwrap().is_some()
    });
}

/// A manager that only takes part in others' hand-overs, or none, opens no subscription and sends
/// no PING.
#[test]
fn manager_without_keep_needs_no_subscription_for_free_locks() {
    let server = Server::start();
    let mgr = build(builder(server.url()).options(keeping().no_keep_idle()));
    let pings = server.calls("ping");
    for _ in 0..50 {
        drop(mgr.lock("a").unwrap());
    }
    throughout(2 * P, "nothing is proven", || server.calls("ping") == pings);
    assert!(!server.clients().iter().any(|line| line.contains(" sub=1 ")));
}
