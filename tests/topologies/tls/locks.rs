//! Locks work through TLS as they do in plain text.

use std::collections::HashSet;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, PreviousHolder};

use super::certificates::argument;
use super::{SOON, T, TTL, TlsServer, build, builder, patient};
use crate::connection_names::await_role;
use crate::sums::Sums;
use crate::support::child::{Role, report};
use crate::support::{Child, Proxy, SLACK, until, until_some};

#[test]
fn locks_exclude_each_other_and_are_handed_over() {
    let server = TlsServer::start();
    let (ours, other) = (server.manager(), server.manager());
    let guard = ours.lock("a").unwrap();
    assert!(other.try_lock("a").unwrap().is_none());
    let waiter = other.enqueue("a").unwrap();
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    assert!(ours.try_lock("a").unwrap().is_none());
    drop(next);
    let last = ours.try_lock_for("a", SOON).unwrap().expect("it is free");
    last.unlock().unwrap();
}

#[test]
fn unused_name_is_deleted() {
    let server = TlsServer::start();
    let mgr = server.manager();
    let guard = mgr.lock("a").unwrap();
    assert!(!mgr.delete("a").unwrap());
    guard.unlock().unwrap();
    assert!(mgr.delete("a").unwrap());
    assert_eq!(server.server.query::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
}

#[test]
fn connections_have_their_names() {
    let server = TlsServer::start();
    let labelled = server
        .builder()
        .options(LockOptions::new().ttl(TTL).label("billing"));
    let mgr = build(labelled);
    let _guard = mgr.lock("a").unwrap();
    let _waiter = mgr.enqueue("a").unwrap();
    for role in ["lane", "renewal", "subscription"] {
        await_role(&server.server, role);
    }
}

/// Nobody asks the server for a long time: the period of checks is longer than the test waits.
#[test]
fn hand_over_arrives_by_the_subscription() {
    let server = TlsServer::start();
    let slow = || {
        patient(&server)
            .options(LockOptions::new().ttl(3 * 4 * SOON))
            .check_period(2 * SOON)
            .horizon(3 * SOON)
    };
    let (ours, other) = (build(slow()), build(slow()));
    let guard = ours.lock("a").unwrap();
    let mut waiter = other.enqueue("a").unwrap();
    guard.unlock().unwrap();
    let next = waiter.wait_for(SOON).unwrap().expect("the message came");
    next.unlock().unwrap();
}

/// Each name takes part of a reply of many records.
#[test]
fn list_of_thousands_of_names_is_complete() {
    const NAMES: usize = 3000;
    let server = TlsServer::start();
    let mgr = build(patient(&server));
    let guards: Vec<_> = (0..NAMES)
        .map(|i| mgr.lock(format!("{i}-{}", "x".repeat(100))).unwrap())
        .collect();
    let listed: HashSet<_> = mgr.list("*").map(|info| info.unwrap().name).collect();
    assert_eq!(listed.len(), NAMES);
    drop(guards);
}

#[test]
fn many_threads_share_one_lane() {
    const THREADS: u64 = 32;
    let server = TlsServer::start();
    let mgr = build(patient(&server).lanes(1));
    let ends_at = Instant::now() + Duration::from_secs(2);
    let shared: [AtomicU64; 3] = Default::default();
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for who in 0..THREADS {
            let (mgr, shared, turns) = (&mgr, &shared, &turns);
            scope.spawn(move || {
                let mut turn = who;
                while Instant::now() < ends_at {
                    let own = mgr.lock(format!("own{who}-{}", "y".repeat(who as usize * 15)));
                    drop(own.unwrap());
                    let at = (turn % 3) as usize;
                    let guard = mgr.lock(format!("shared{at}")).unwrap();
                    assert_eq!(shared[at].swap(who + 1, Ordering::SeqCst), 0);
                    assert_eq!(shared[at].swap(0, Ordering::SeqCst), who + 1);
                    match turn % 2 {
                        0 => guard.unlock().unwrap(),
                        _ => drop(guard),
                    }
                    turn += 1;
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(mgr.stats().losses(), 0);
    assert!(turns.into_inner() >= THREADS);
}

#[test]
fn renewals_go_on_over_reconnects() {
    let server = TlsServer::start();
    let proxy = Proxy::raw(server.addr);
    let mgr = build(builder(&super::url_of(proxy.addr())).tls_ca(server.authority.pem()));
    let guard = mgr.lock("a").unwrap();
    let ends_at = Instant::now() + 2 * TTL;
    let mut resets = 0;
    while Instant::now() < ends_at {
        let before = mgr.stats().renewals_confirmed;
        if resets % 2 == 0 {
            proxy.reset_all();
        } else {
            proxy.close_all();
        }
        resets += 1;
        until(TTL, "it is renewed", || {
            mgr.stats().renewals_confirmed > before
        });
    }
    assert!(guard.is_held() && resets >= 3, "{resets}");
    guard.unlock().unwrap();
}

#[test]
fn exit_after_a_drop_releases() {
    let server = TlsServer::start();
    let other = server.manager();
    other.lock("a").unwrap().unlock().unwrap();
    let ca = server.authority.file();
    for i in 0..20 {
        let name = format!("k{i}");
        let mut child = Child::spawn(
            "tls_drops_and_exits",
            &[&server.url(), ca.to_str().unwrap(), &name],
        );
        child.expect("dropped", SOON);
        child.join();
        let guard = until_some(SLACK, "it is released", || other.try_lock(&name).unwrap());
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
}

/// A child that takes a lock, drops it and exits at once.
pub(crate) const DROPS_AND_EXITS: (&str, Role) = ("tls_drops_and_exits", |args| {
    let ca = std::fs::read(&args[1]).unwrap();
    let mgr = build(builder(&args[0]).tls_ca(ca));
    // Known to the connection by now, so the drop does not wait for its reply.
    for _ in 0..2 {
        mgr.lock("warm").unwrap().unlock().unwrap();
    }
    let guard = mgr.lock(&args[2]).unwrap();
    report("dropped");
    drop(guard);
    process::exit(0);
});

/// GUIDE.md says 256 KiB. Half of that is for what the caller does itself.
#[test]
fn half_of_the_documented_stack_is_enough_over_tls() {
    let server = TlsServer::start();
    let ca = server.authority.file();
    let mut child = Child::spawn("tls_small_stack", &[&server.url(), argument(&ca), "131072"]);
    child.expect("waited", SOON);
    child.join();
}

/// A thread with this stack connects, locks, waits and releases.
pub(crate) const SMALL_STACK: (&str, Role) = ("tls_small_stack", |args| {
    let ca = std::fs::read(&args[1]).unwrap();
    let connect = {
        let url = args[0].clone();
        move || build(builder(&url).tls_ca(ca.clone()))
    };
    let theirs = connect();
    let guard = theirs.lock("awaited").unwrap();
    let thread = thread::Builder::new()
        .stack_size(args[2].parse().unwrap())
        .spawn(move || {
            let mgr = connect();
            mgr.lock("a").unwrap().unlock().unwrap();
            drop(mgr.lock("awaited").unwrap());
            mgr.shutdown(Duration::ZERO).unwrap();
        })
        .unwrap();
    let waits = || {
        theirs
            .inspect("awaited")
            .unwrap()
            .is_some_and(|info| info.waiters == 1)
    };
    until(SOON, "it waits", waits);
    guard.unlock().unwrap();
    thread.join().unwrap();
    report("waited");
});

#[test]
fn shutdown_ends_a_call_that_waits_for_a_reply() {
    let server = TlsServer::start();
    let mgr: LockManager = server.manager();
    mgr.lock("a").unwrap().unlock().unwrap();
    server.server.stop();
    thread::scope(|scope| {
        let call = scope.spawn(|| mgr.lock("b"));
        let started = Instant::now();
        let _ = mgr.shutdown(T);
        assert!(call.join().unwrap().is_err());
        let took = started.elapsed();
        assert!(took <= 4 * T + SLACK, "{took:?}");
    });
    server.server.cont();
}
