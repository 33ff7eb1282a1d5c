//! No new connection can be had, while one is open: for a limit of the server or of the host, or since
//! the network drops what is new. Nothing that is held is lost, and waits and releases go on. On Redis
//! alone, since the in-memory store has no connections. The tests of other topologies are in
//! `topologies`.

use fairlock::{LockManager, LockOptions};

use crate::fixtures::{
    P, SOON, STEADY_T as T, STEADY_TTL as TTL, Waiters, build, is_free_within, steady,
};
use crate::process::leave_no_room_for_threads;
use crate::support::child::{Child, report};
use crate::support::{Proxy, SLACK, Server, throughout, until};

/// A manager whose renewal thread and subscription have no connection yet.
fn on_one_connection(server: &Server) -> LockManager {
    build(steady(server.url()).lanes(1))
}

/// The server takes no more clients from now on. Those that it has stay.
fn fill(server: &Server) {
    let _: () = server.query(&["CONFIG", "SET", "maxclients", "1"]);
}

/// The numbers of the connections of all managers that have this role.
fn connections(server: &Server, role: &str) -> Vec<String> {
    let role = format!(":{role} ");
    let clients = server.clients().into_iter();
    let clients = clients.filter(|client| client.contains(&role));
    let number = |client: String| {
        client
            .split(' ')
            .find_map(|w| Some(w.strip_prefix("id=")?.to_owned()))
    };
    clients.filter_map(number).collect()
}

fn kill(server: &Server, connections: &[String]) {
    for number in connections {
        let _: i64 = server.query(&["CLIENT", "KILL", "ID", number]);
    }
}

fn is_owned(server: &Server, name: &str) -> bool {
    let owner: Option<String> = server.query(&["HGET", &format!("fairlock:{{{name}}}"), "o"]);
    owner.is_some_and(|owner| !owner.is_empty())
}

#[test]
fn locks_of_each_kind_are_kept_on_a_full_server() {
    let server = Server::start();
    let (mgr, giver) = (on_one_connection(&server), on_one_connection(&server));
    let detached = giver.lock("detached").unwrap().detach(SOON).unwrap();
    let mutex = mgr.lock("mutex").unwrap();
    let read = mgr.rw_lock("read").read().unwrap();
    let write = mgr.rw_lock("write").write().unwrap();
    let permits = mgr.semaphore("permits", 3).acquire(2).unwrap();
    let group = mgr.lock_all(["g1", "g2"]).unwrap();
    let keeping = mgr.with(LockOptions::new().keep_idle(TTL / 10));
    let kept = keeping.lock("kept").unwrap();
    let lending = mgr.with(LockOptions::new().local_handovers(8));
    let lent = lending.lock("lent").unwrap();
    fill(&server);
    let attached = mgr.mutex("detached").attach(&detached).unwrap();
    throughout(2 * TTL, "all is held", || {
        mutex.is_held()
            && read.is_held()
            && write.is_held()
            && permits.is_held()
            && group.is_held()
            && kept.is_held()
            && lent.is_held()
            && attached.is_held()
    });
    mutex.renew().unwrap();
    let other_names = ["mutex", "lent", "detached"];
    for guard in [mutex, lent, attached] {
        guard.unlock().unwrap();
    }
    drop((read, write, permits, group, kept));
    for name in other_names {
        assert!(mgr.try_lock(name).unwrap().is_some(), "{name} is free");
    }
}

#[test]
fn renewals_go_on_after_their_connection_was_killed() {
    let server = Server::start();
    let mgr = on_one_connection(&server);
    let guard = mgr.lock("a").unwrap();
    until(SOON, "renewals have a connection", || {
        connections(&server, "renewal").len() == 1
    });
    fill(&server);
    kill(&server, &connections(&server, "renewal"));
    throughout(2 * TTL, "it is held", || guard.check().is_ok());
    // Once it can have a connection, it has one again.
    let _: () = server.query(&["CONFIG", "SET", "maxclients", "100"]);
    until(TTL, "renewals have a connection again", || {
        connections(&server, "renewal").len() == 1
    });
    guard.unlock().unwrap();
}

#[test]
fn lock_is_kept_over_the_lane_of_another_name() {
    let server = Server::start();
    let mgr = build(steady(server.url()).lanes(8));
    let guards: Vec<_> = (0..16).map(|i| mgr.lock(i.to_string()).unwrap()).collect();
    fill(&server);
    let lanes = connections(&server, "lane");
    assert!(lanes.len() > 2, "{lanes:?}");
    kill(&server, &lanes[1..]);
    throughout(2 * TTL, "all are held", || {
        guards.iter().all(|g| g.is_held())
    });
    // Some of them have no lane. So the renewal thread releases them.
    drop(guards);
    until(T + P + SLACK, "all are released", || {
        (0..16).all(|i| !is_owned(&server, &i.to_string()))
    });
}

#[test]
fn waiter_without_a_subscription_gets_its_lock() {
    let server = Server::start();
    let (ours, other) = (on_one_connection(&server), on_one_connection(&server));
    let theirs = other.lock("a").unwrap();
    fill(&server);
    let mut waiters = Waiters::of("a");
    waiters.add(&ours);
    throughout(2 * TTL, "it waits", || waiters.none_ended());
    theirs.unlock().unwrap();
    let guard = waiters.expect_grant(0, P + 2 * T + SLACK);
    throughout(TTL, "it is held", || guard.is_held());
    drop(guard);
    is_free_within(T + P + SLACK, &other, "a");
}

#[test]
fn locks_are_released_without_a_lane_on_a_full_server() {
    let server = Server::start();
    let mgr = on_one_connection(&server);
    let [dropped, unlocked, kept] = ["dropped", "unlocked", "held"].map(|n| mgr.lock(n).unwrap());
    until(SOON, "renewals have a connection", || {
        connections(&server, "renewal").len() == 1
    });
    fill(&server);
    kill(&server, &connections(&server, "lane"));
    drop(dropped);
    unlocked.unlock().unwrap();
    for name in ["dropped", "unlocked"] {
        until(T + P + SLACK, "it is released", || !is_owned(&server, name));
    }
    throughout(2 * TTL, "it is held", || kept.is_held());
}

/// A firewall drops what is new, or a proxy has no way to the server.
#[test]
fn locks_are_kept_while_new_connections_hang_or_end() {
    type Stop = fn(&Proxy);
    let ways: [(&str, Stop); 2] = [("closed", Proxy::refuse), ("hang", Proxy::swallow_new)];
    for (way, stop) in ways {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        // A connection may be awaited for longer than a lock lasts.
        let mgr = build(steady(proxy.url()).lanes(1).connect_timeout(2 * TTL));
        let guard = mgr.lock("a").unwrap();
        stop(&proxy);
        throughout(2 * TTL, way, || guard.is_held());
        guard.unlock().unwrap();
        assert!(mgr.try_lock("a").unwrap().is_some(), "{way}: it is free");
    }
}

/// The credentials that open connections began with have ended, and no others are given.
#[test]
fn locks_are_kept_after_the_password_was_changed() {
    let server = Server::start();
    let mgr = on_one_connection(&server);
    let guard = mgr.lock("a").unwrap();
    let _: () = server.query(&["CONFIG", "SET", "requirepass", "another"]);
    throughout(2 * TTL, "it is held", || guard.check().is_ok());
    guard.unlock().unwrap();
}

#[test]
fn locks_are_kept_without_another_thread() {
    let server = Server::start();
    let child = Child::spawn("kept_without_threads", &[&server.url()]);
    child.expect("kept", 4 * TTL);
    child.expect("waited", 2 * SOON);
}

pub(crate) fn kept_without_threads(args: &[String]) {
    let mgr = build(steady(args[0].as_str()).lanes(1));
    let other = build(steady(args[0].as_str()).lanes(1));
    let guard = mgr.lock("a").unwrap();
    let theirs = other.lock("b").unwrap();
    leave_no_room_for_threads();
    throughout(2 * TTL, "it is held", || guard.check().is_ok());
    report("kept");
    // One more try is needed, since no subscription tells of the release.
    assert!(mgr.try_lock_for("b", 4 * P).unwrap().is_none());
    theirs.unlock().unwrap();
    mgr.lock("b").unwrap().unlock().unwrap();
    guard.unlock().unwrap();
    report("waited");
}
