//! Connections: how calls end when one breaks, and how many there are. On Redis alone, since the
//! in-memory store has none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions};

use crate::fixtures::{
    Record, SOON, STEADY_T, STEADY_TTL, T, Verb, build, builder, release, request, steady, warm_up,
    with_ttl,
};
use crate::sums::Sums;
use crate::support::{
    Proxy, SLACK, ScriptedReply, ScriptedServer, Server, scripted_server::is, until,
};

#[test]
fn idle_connections_closed_by_the_server_fail_no_call() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    warm_up(&manager);
    let held = manager.lock("held").unwrap();
    // The test's own connection is not killed (SKIPME).
    let close = || server.query::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    for _ in 0..3 {
        assert!(close() > 0);
        let a = manager.try_lock("a").unwrap().expect("it is free");
        close();
        a.unlock().unwrap();
        close();
        let b = manager.lock("b").unwrap();
        close();
        held.renew().unwrap();
        close();
        assert!(manager.inspect("b").unwrap().is_some());
        close();
        let listed: Result<Vec<_>, Error> = manager.list("*").collect();
        assert_eq!(listed.unwrap().len(), 2);
        close();
        let mut waiter = manager.enqueue("b").unwrap();
        close();
        assert!(manager.force_release("b", b.fence()).unwrap());
        close();
        drop(waiter.wait_for(SOON).unwrap().expect("it is the next"));
        close();
        assert!(manager.try_lock_for("held", T).unwrap().is_none());
        drop(b);
    }
    held.unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
    Record::of(&server, "b").comes_to_rest();
    Record::of(&server, "held").comes_to_rest();
}

#[test]
fn the_first_connection_may_be_closed_before_its_first_use() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    manager
        .try_lock("a")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}

#[test]
fn unlock_on_a_closed_connection_uses_another() {
    let server = Server::start();
    let manager = build(steady(server.url()).lanes(1));
    let guard = manager.lock("a").unwrap();
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    guard.unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn connections_reset_while_idle_fail_no_call() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = build(steady(proxy.url()));
    warm_up(&manager);
    for _ in 0..3 {
        proxy.reset_all();
        let guard = manager.try_lock("a").unwrap().expect("it is free");
        proxy.reset_all();
        guard.renew().unwrap();
        proxy.reset_all();
        guard.unlock().unwrap();
    }
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p7_a_reply_cut_at_any_byte_is_requested_again() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = build(steady(proxy.url()));
    warm_up(&manager);
    // Positions in the 24 bytes of a grant: inside its length, at the line's end, inside each of its
    // numbers, inside its end.
    for cut in [1, 3, 5, 9, 16, 21, 22, 23] {
        // A break at a connection's first use does not count as a close while idle, so `inspect` is
        // its first use.
        assert!(manager.inspect("a").unwrap().is_none());
        let fault = proxy.cut_reply_when(cut, request(Verb::Acquire, "a"));
        let guard = manager.try_lock("a").unwrap().expect("it is free");
        assert_eq!(fault.wait(SOON).len(), cut);
        assert_eq!(Record::of(&server, "a").number("f"), guard.fence());
        let fault = proxy.cut_reply_when(cut.min(10), release("used", "a"));
        guard.unlock().unwrap();
        fault.wait(SOON);
    }
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn a_broken_off_reply_is_never_joined_with_the_next() {
    let grant = granted(77);
    let ScriptedReply::Raw(whole) = grant.clone() else {
        unreachable!()
    };
    // The rest of the first reply never comes. If the client used the connection again, it would
    // read the next reply as the rest of the first one.
    let half = ScriptedReply::Raw(whole[..whole.len() / 2].to_vec());
    for first in [half, ScriptedReply::Silent] {
        let (scripted_server, manager) = server_with_first_reply(first);
        let connects = manager.stats().connects;
        // The call goes out again on the next connection.
        let guard = manager.try_lock("a").unwrap().expect("it is free");
        assert_eq!(guard.fence(), 77);
        assert!(manager.stats().connects > connects || scripted_server.count("HELLO") > 1);
    }
}

#[test]
fn a_partly_written_request_costs_no_lease_and_no_connection() {
    // On a busy machine, the locks are taken over seconds. Their renewals still all fail, and are made
    // up for, before a lease ends.
    let ttl = 3 * STEADY_TTL;
    let server = Server::start();
    let manager = build(with_ttl(server.url(), ttl).command_timeout(STEADY_T));
    // Each brace takes three bytes in a key. So the renewals are larger than the buffer of a unix
    // socket whose peer does not read.
    let names: Vec<String> = (0..140)
        .map(|i| format!("{i:03}{}", "{".repeat(509)))
        .collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| manager.lock(name).unwrap())
        .collect();
    until(ttl, "the renewal thread is connected", || {
        manager.stats().renewals_confirmed >= names.len() as u64
    });
    server.stop();
    until(ttl / 2 + SLACK, "the next renewals fail", || {
        manager.stats().renewals_failed >= 128
    });
    server.cont();
    let renewed = manager.stats().renewals_confirmed;
    until(ttl / 2, "all leases are renewed", || {
        manager.stats().renewals_confirmed >= renewed + names.len() as u64
    });
    for guard in guards {
        guard.unlock().unwrap();
    }
    assert_eq!(manager.stats().losses(), 0);
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

#[test]
fn garbage_is_an_error_and_the_next_call_is_clean() {
    for garbage in [
        &b"garbage\r\n"[..],
        b"\r\n\r\n",
        b"*3\r\n:1\r\n$x\r\n",
        b"$-7\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let (_fake, manager) = server_with_first_reply(ScriptedReply::Raw(garbage.to_vec()));
        let end = manager.try_lock("a");
        assert!(
            matches!(end, Err(Error::Unavailable { .. } | Error::Refused { .. })),
            "{garbage:?} gave {end:?}"
        );
        let guard = manager.try_lock("a").unwrap().expect("it is free");
        assert_eq!(guard.fence(), 77);
    }
}

#[test]
fn an_unexpected_reply_shape_is_an_error_never_a_grant() {
    let int = ScriptedReply::integer;
    let text = |text: &str| ScriptedReply::bulk(text);
    let list = |items: Vec<ScriptedReply>| ScriptedReply::array(items);
    let none = || list(vec![]);
    let answer = |status: ScriptedReply, now: ScriptedReply, said: Vec<ScriptedReply>| {
        list([status, now, int(0)].into_iter().chain(said).collect())
    };
    let says = |status: &str, said: Vec<ScriptedReply>| answer(text(status), int(1), said);
    let fields = || vec![int(77), int(1), int(1_000_000), int(-1), int(0)];
    let and = |rest: ScriptedReply| fields().into_iter().chain([rest]).collect();
    let other = vec![text("token"), int(1), int(1), int(1), int(0), int(0)];
    let shapes = vec![
        ScriptedReply::nil(),
        ScriptedReply::ok(),
        int(1),
        text("granted"),
        none(),
        list(vec![text("granted")]),
        list(vec![text("granted"), int(1), int(0), list(fields())]),
        list(vec![
            text("granted"),
            int(1),
            int(0),
            list(fields()),
            none(),
        ]),
        answer(int(7), int(1), fields()),
        answer(text("granted"), text("now"), fields()),
        answer(text("granted"), int(-1), fields()),
        says("granted", vec![]),
        says("granted", vec![int(77), int(1)]),
        says("granted", vec![int(77), int(1), int(1), int(0)]),
        says("granted", vec![int(-77), int(1), int(1), int(0), int(0)]),
        says("granted", vec![int(77), int(1), int(-1), int(0), int(0)]),
        says("granted", vec![int(77), int(1), int(1), int(9), int(0)]),
        says("granted", vec![int(77), int(1), int(1), int(0), int(-1)]),
        says("granted", ["77", "1", "1", "0", "0"].map(text).to_vec()),
        says("granted", and(text("token"))),
        says("granted", and(none())),
        says("granted", fields().into_iter().chain(other).collect()),
        says("Granted", fields()),
        says("renewed", vec![int(-1), int(1), int(0)]),
        says("released", vec![int(1)]),
        says("synced", fields()),
        says("busy", vec![text("soon")]),
        says("kind", vec![int(3)]),
        list(vec![
            list(vec![]),
            list(vec![]),
            list(vec![]),
            list(vec![]),
            list(vec![]),
        ]),
        ScriptedReply::Raw(b"*3\r\n$7\r\ngr\xff\xfeted\r\n:1\r\n:0\r\n".to_vec()),
    ];
    for shape in shapes {
        let shown = format!("{shape:?}");
        // The second reply is a grant, so that the renewal and the release get the unexpected reply
        // too.
        let (_fake, manager) =
            server_that_answers(move |n| if n == 1 { granted(77) } else { shape.clone() });
        match manager.try_lock("a") {
            Err(Error::Refused { code, .. }) => assert_eq!(code, "PROTOCOL", "{shown}"),
            other => panic!("{shown} gave {other:?}"),
        }
        let guard = manager
            .try_lock("a")
            .unwrap()
            .expect("the second reply is a grant");
        assert_eq!(guard.fence(), 77);
        assert!(guard.renew().is_err(), "{shown}");
        assert!(guard.unlock().is_err(), "{shown}");
    }
}

#[test]
fn p7_a_possible_grant_in_a_malformed_reply_is_abandoned() {
    let (scripted_server, manager) =
        server_with_first_reply(ScriptedReply::array([ScriptedReply::bulk("granted")]));
    assert!(matches!(manager.try_lock("a"), Err(Error::Refused { .. })));
    until(SOON, "the token is abandoned", || {
        scripted_server
            .commands()
            .iter()
            .any(|words| words.last().is_some_and(|mode| mode == "unused"))
    });
    let commands = scripted_server.commands();
    let token = |count: usize| {
        let words = commands
            .iter()
            .find(|words| words.len() == count)
            .expect("it was sent");
        words[9].clone()
    };
    assert_eq!(token(13), token(12), "the token of the request");
}

#[test]
fn p9_renewals_of_many_leases_outlast_a_flapping_network() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let lost = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&lost);
    let options = LockOptions::new().ttl(STEADY_TTL).on_lost(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let manager = build(steady(proxy.url())).with(options);
    let guards: Vec<_> = (0..40)
        .map(|i| manager.lock(format!("a{i}")).unwrap())
        .collect();
    let end = Instant::now() + STEADY_TTL + T;
    while Instant::now() < end {
        // Time itself is under test: connections live for this long.
        thread::sleep(Duration::from_millis(300));
        proxy.reset_all();
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}

#[test]
fn p9_waiters_hold_no_connection() {
    let server = Server::start();
    let mgr = builder(server.url()).lanes(1).build().unwrap();
    let guard = mgr.lock("n").unwrap();
    let mut waiting: Vec<_> = (0..20).map(|_| mgr.enqueue("n").unwrap()).collect();
    let thread = thread::spawn({
        let mgr = mgr.clone();
        move || mgr.lock("n").unwrap().unlock()
    });
    until(SLACK, "a thread waits as well", || {
        mgr.inspect("n").unwrap().unwrap().waiters == 21
    });
    mgr.lock("another").unwrap().unlock().unwrap();
    // One of the lane, one of the renewal thread and one of the subscription.
    assert!(server.clients().len() <= 3, "{:?}", server.clients());
    guard.unlock().unwrap();
    for mut waiter in waiting.drain(..) {
        waiter.wait_for(SOON).unwrap().unwrap().unlock().unwrap();
    }
    thread.join().unwrap().unwrap();
    assert!(mgr.inspect("n").unwrap().is_none());
}

#[test]
fn a_pool_never_exceeds_its_configured_size() {
    let server = Server::start();
    let size = 2;
    let mgr = builder(server.url()).lanes(size).build().unwrap();
    let most = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|i| {
                let mgr = &mgr;
                scope.spawn(move || {
                    for turn in 0..20 {
                        drop(mgr.lock(format!("n{}", (i + turn) % 4)).unwrap());
                    }
                })
            })
            .collect();
        let mut most = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            most = most.max(server.clients().len());
            // A pause between two polls.
            thread::sleep(Duration::from_millis(2));
        }
        most
    });
    // The renewal thread and the subscription have one connection each.
    assert!(most <= size as usize + 2, "{most} connections");
    assert!(
        most > size as usize,
        "{most} connections: nothing was measured"
    );
}

#[test]
fn connections_are_opened_on_demand() {
    let server = Server::start();
    let mgr = LockManager::connect(server.url()).unwrap();
    mgr.lock("n").unwrap().unlock().unwrap();
    assert!(server.clients().len() <= 2, "{:?}", server.clients());
}

/// The server's reply to an acquire that takes a mutex. Nobody else waits for it.
pub(crate) fn granted(fence: i64) -> ScriptedReply {
    granted_with(fence, &[0])
}

/// The server's reply to an acquire that takes permits.
pub(crate) fn permits_granted(fence: i64) -> ScriptedReply {
    granted_with(fence, &[])
}

fn granted_with(fence: i64, waiters: &[i64]) -> ScriptedReply {
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .expect("it is after 1970")
        .as_micros() as i64;
    let left = crate::fixtures::DEFAULT_TTL.as_micros() as i64;
    let numbers = [now, 0, fence, now, left, -1];
    let numbers = numbers.iter().chain(waiters).copied();
    ScriptedReply::array(
        [ScriptedReply::bulk("granted")]
            .into_iter()
            .chain(numbers.map(ScriptedReply::integer)),
    )
}

/// A server that answers the first script with this reply and all others with a grant, and a
/// manager of it.
fn server_with_first_reply(first: ScriptedReply) -> (ScriptedServer, LockManager) {
    server_that_answers(move |n| if n == 0 { first.clone() } else { granted(77) })
}

/// A server that answers the n-th script, counted from 0, with `answer(n)`, and a manager of it.
pub(crate) fn server_that_answers(
    answer: impl Fn(usize) -> ScriptedReply + Send + Sync + 'static,
) -> (ScriptedServer, LockManager) {
    let scripted_server = scripted_server(answer);
    let manager = build(steady(scripted_server.url()).outage_limit(Duration::from_secs(1)));
    (scripted_server, manager)
}

/// The server of [`server_that_answers`].
pub(crate) fn scripted_server(
    answer: impl Fn(usize) -> ScriptedReply + Send + Sync + 'static,
) -> ScriptedServer {
    let scripts = AtomicUsize::new(0);
    ScriptedServer::start(move |words| {
        if is(words, "EVALSHA") || is(words, "EVAL") {
            // Requests from the background must not use up the replies that are meant for the
            // test's calls.
            if words.iter().any(|w| w == b"unused") {
                return ScriptedReply::Silent;
            }
            return answer(scripts.fetch_add(1, Ordering::SeqCst));
        }
        ScriptedReply::polite(words)
    })
}
