//! A name with several addresses: one that leads nowhere holds up no connection, and no thread stays
//! behind. On Redis alone, since the in-memory store has no address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};

use crate::fixtures::{SOON, STEADY_T, T, builder, steady, warm_up};
use crate::footprint::own_threads;
use crate::support::child::{Child, receive, report};
use crate::support::hosts::{BlackHole, Hosts, Nowhere};
use crate::support::{SLACK, Server, until};

const SERVER: Ipv4Addr = Ipv4Addr::LOCALHOST;
const NOWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const NOWHERE_TOO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// As the kernel has the names of the threads.
const CONNECTING: &str = "fairlock-connec";
const RESOLVING: &str = "fairlock-resolv";
/// For a role with many steps.
const LONG: Duration = Duration::from_secs(60);

fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::from((address, port))
}

#[test]
fn address_that_swallows_packets_holds_up_no_connection() {
    check(&[(NOWHERE, Nowhere::Swallows)], &[NOWHERE, SERVER]);
}

#[test]
fn address_that_accepts_in_silence_holds_up_no_connection() {
    check(&[(NOWHERE, Nowhere::Accepts)], &[NOWHERE, SERVER]);
}

#[test]
fn several_dead_addresses_leave_time_for_the_last() {
    let nowhere = [
        (NOWHERE, Nowhere::Swallows),
        (NOWHERE_TOO, Nowhere::Accepts),
    ];
    check(&nowhere, &[NOWHERE, NOWHERE_TOO, SERVER]);
}

#[test]
fn address_that_refuses_leaves_its_time_to_the_next() {
    check(&[], &[NOWHERE, SERVER]);
}

/// Every connection of a manager, and each of them again after all were closed.
#[track_caller]
fn check(nowhere: &[(Ipv4Addr, Nowhere)], addresses: &[Ipv4Addr]) {
    let server = Server::tcp();
    let port = server.addr().port();
    let _nowhere: Vec<BlackHole> = nowhere
        .iter()
        .map(|(address, how)| BlackHole::at(at(*address, port), *how))
        .collect();
    let hosts = Hosts::new(&[("several.test", addresses)]);
    let url = format!("redis://several.test:{port}");
    let mut child = hosts.spawn("connects", &[&url]);
    child.expect("connected", LONG);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    child.send("closed");
    child.expect("connected again", LONG);
    child.join();
}

pub(crate) fn connects(args: &[String]) {
    let started = Instant::now();
    let manager = steady(args[0].as_str()).build().unwrap();
    let took = started.elapsed();
    assert!(took <= STEADY_T + SLACK, "build took {took:?}");
    warm_up(&manager);
    let held = manager.lock("held").unwrap();
    use_all(&manager, "first");
    report("connected");
    receive();
    held.renew().unwrap();
    use_all(&manager, "second");
    assert!(held.is_held());
    until(SOON, "no thread stays behind", || {
        own_threads().iter().all(|name| name != CONNECTING)
    });
    report("connected again");
}

/// Uses the lanes, the subscription and the renewal thread's connection.
fn use_all(manager: &LockManager, name: &str) {
    let renewed = manager.stats().renewals_confirmed;
    let guard = manager.lock(name).unwrap();
    let waiter = manager.enqueue(name).unwrap();
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    until(SOON, "the held lock is renewed", || {
        manager.stats().renewals_confirmed > renewed
    });
}

#[test]
fn name_that_never_resolves_costs_one_thread() {
    let hosts = Hosts::new(&[("hangs.test", &[])]);
    let child = hosts.spawn("cannot_connect", &["redis://hangs.test:6379", RESOLVING]);
    child.expect("gave up", LONG);
}

#[test]
fn addresses_that_all_hang_leave_no_thread() {
    let free = Server::tcp();
    let port = free.addr().port();
    let addresses = [NOWHERE, NOWHERE_TOO];
    let _nowhere = addresses.map(|address| BlackHole::at(at(address, port), Nowhere::Swallows));
    let hosts = Hosts::new(&[("hangs.test", &addresses)]);
    let url = format!("redis://hangs.test:{port}");
    let child = hosts.spawn("cannot_connect", &[&url]);
    child.expect("gave up", LONG);
}

#[test]
fn unix_socket_with_a_full_queue_leaves_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut queued = Vec::new();
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        match socket.connect(&SockAddr::unix(&path).unwrap()) {
            Ok(()) => queued.push(socket),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    let url = format!("redis+unix://{}", path.display());
    let child = Child::spawn("cannot_connect", &[&url]);
    child.expect("gave up", LONG);
}

/// Tries to connect to a URL again and again: each attempt keeps its bound, and no threads are left in
/// the end but those named.
pub(crate) fn cannot_connect(args: &[String]) {
    for _ in 0..6 {
        let tries: Vec<_> = (0..2)
            .map(|_| {
                let builder = builder(args[0].as_str());
                thread::spawn(move || {
                    let started = Instant::now();
                    let error = builder.build().map(drop).unwrap_err();
                    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
                    let took = started.elapsed();
                    assert!(took <= T + SLACK, "{took:?}");
                })
            })
            .collect();
        for one in tries {
            one.join().unwrap();
        }
    }
    until(SOON, "no other threads are left", || {
        own_threads() == args[1..]
    });
    report("gave up");
}
