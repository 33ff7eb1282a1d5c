//! Connections, messages, data, time or memory are lost while locks are kept. On Redis alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, PreviousHolder};

use crate::behaviour::kept::{P, SHORT_TTL, T, gets, keeper, patient, plain, short};
use crate::fixtures::{Record, SOON, Verb, is_free_within, manager_of, request, server_time};
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{EndLoops, Proxy, SLACK, Server, Shifted, until};

/// Locks and drops the name in a loop until the flag is set.
fn relock(mgr: &LockManager, name: &str, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let guard = mgr.lock(name).unwrap();
        guard.check().unwrap();
        drop(guard);
        // Time itself is under test: the work between two guards.
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_subscription_of_a_keeper_costs_others_one_check() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(killed >= 1);
        drop(gets(&other, name, P + T + SLACK));
    }
    assert_eq!(mgr.stats().losses(), 0);
}

#[test]
fn keeper_whose_subscriptions_keep_dying_keeps_others_not_waiting() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    let kills = server.repeat(
        &["CLIENT", "KILL", "TYPE", "pubsub"],
        Duration::from_millis(10),
    );
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        scope.spawn(|| relock(&mgr, "a", &over));
        for _ in 0..3 {
            let guard = other.try_lock_for("a", 2 * P + T + SLACK).unwrap();
            drop(guard.expect("nothing is kept without a subscription"));
        }
    });
    drop(kills);
    assert_eq!(mgr.stats().losses(), 0);
}

/// A connection that failed may have been to a server that serves no more: the kept lock is
/// confirmed first.
#[test]
fn killed_connections_end_no_kept_lock_wrongly() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    let mut last = 0;
    for _ in 0..5 {
        keep(&mgr, "a");
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]);
        let guard = mgr.lock("a").unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        assert!(other.try_lock("a").unwrap().is_none(), "a guard has it");
        guard.renew().unwrap();
        guard.unlock().unwrap();
        is_free_within(SLACK, &other, "a");
    }
    assert_eq!(mgr.stats().losses(), 0);
}

/// Connections have failed, as when another server takes over, and that one does not know the lock.
/// The subscription lives on, and the next renewal is far off.
#[test]
fn failed_connections_stop_lending_until_a_renewal() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let last = mgr.lock(name).unwrap().fence();
        let _: i64 = server.query(&["DEL", &format!("fairlock:{{{name}}}")]);
        let theirs = other.try_lock(name).unwrap().expect("the record is gone");
        assert!(theirs.fence() > last);
        let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]);
        // So many names are on both lanes, which find out.
        for i in 0..8 {
            drop(mgr.lock(format!("n{i}")).unwrap());
        }
        assert!(
            mgr.try_lock(name).unwrap().is_none(),
            "it may have another owner"
        );
        theirs.check().unwrap();
        theirs.unlock().unwrap();
    }
    assert_eq!(other.stats().losses(), 0);
}

/// Redis has lost the record. Fences go on rising, and the keeper learns of it with its next renewal.
#[test]
fn fences_rise_across_flushall_while_a_lock_is_kept() {
    let server = Server::start();
    let ttl = SHORT_TTL;
    let mgr = short(server.url(), LockOptions::new().keep_idle(ttl / 3));
    let other = plain(server.url());
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let mut last = 0;
        // At full speed, so that the fences are as far as they may be.
        for _ in 0..20_000 {
            last = mgr.lock(name).unwrap().fence();
        }
        let _: String = server.query(&["FLUSHALL"]);
        let theirs = other.try_lock(name).unwrap().expect("the record is gone");
        assert!(theirs.fence() > last, "{} after {last}", theirs.fence());
        until(ttl / 3 + T + SLACK, "the keeper learns of it", || {
            mgr.try_lock(name).unwrap().is_none()
        });
        theirs.check().unwrap();
        let fence = theirs.fence();
        drop(theirs);
        assert!(mgr.lock(name).unwrap().fence() > fence);
    }
}

#[test]
fn fences_of_relocks_at_full_speed_never_pass_the_server_time() {
    let server = Server::start();
    let mgr = keeper(server.url());
    keep(&mgr, "a");
    let mutex = mgr.mutex("a");
    let mut last = 0;
    // More than one grant has fences for.
    for _ in 0..30 {
        for _ in 0..5_000 {
            let fence = mutex.lock().unwrap().fence();
            assert!(fence > last);
            last = fence;
        }
        let now = server_time(&server);
        assert!(last <= now, "{last} is {} µs ahead", last - now);
    }
    let threads: Vec<u64> = thread::scope(|scope| {
        let loops = [(); 3]
            .map(|()| scope.spawn(|| (0..5_000).map(|_| mutex.lock().unwrap().fence()).max()));
        loops
            .into_iter()
            .map(|one| one.join().unwrap().unwrap())
            .collect()
    });
    assert!(threads.iter().all(|fence| *fence <= server_time(&server)));
}

/// Nobody reads the fences, so nothing holds the turns back. The next manager's fence is larger than
/// all of them, and than the time.
#[test]
fn turns_whose_fences_nobody_reads_leave_larger_ones_for_others() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    let mutex = mgr.mutex("a");
    for _ in 0..3 {
        for _ in 0..70_000 {
            drop(mutex.lock().unwrap());
        }
        let last = mutex.lock().unwrap().fence();
        assert!(last <= server_time(&server));
        let theirs = other.lock("a").unwrap();
        assert!(theirs.fence() > last);
    }
}

#[test]
fn flushed_scripts_delay_no_release_of_a_kept_lock() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), patient(server.url()));
    for name in ["a", "b", "c"] {
        keep(&mgr, name);
        let mut waiter = other.enqueue(name).unwrap();
        drop(waiter.wait_for(SLACK).unwrap().expect("it is released"));
        keep(&mgr, name);
        let _: String = server.query(&["SCRIPT", "FLUSH"]);
        drop(gets(&other, name, SLACK));
    }
    assert_eq!(mgr.stats().losses(), 0);
}

/// A server without memory refuses new locks. A kept one costs it nothing.
#[test]
fn kept_locks_work_on_a_server_without_memory() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    keep(&mgr, "b");
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(costs_nothing(&mgr, || drop(mgr.lock("a").unwrap())));
    let guard = mgr.lock("b").unwrap();
    // Whatever the server says to others, the keeper is told, and frees it.
    let refused = other.try_lock("b");
    assert!(!matches!(refused, Ok(Some(_))), "{refused:?}");
    until(SLACK + P, "the guard learns of it", || {
        let _ = other.try_lock("b");
        guard.is_wanted()
    });
    drop(guard);
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    for name in ["a", "b"] {
        drop(gets(&other, name, SOON));
    }
    assert_eq!(mgr.stats().losses(), 0);
}

const HALF_AN_HOUR: i64 = 30 * 60 * 1_000_000;

/// By the server's clock the kept lease is over. Another manager takes it, and its fence is larger.
#[test]
fn kept_lock_lapses_by_a_forward_clock_step() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let ttl = SHORT_TTL;
    let mgr = short(server.url(), LockOptions::new().keep_idle(ttl / 3));
    let other = plain(server.url());
    keep(&mgr, "a");
    let last = mgr.lock("a").unwrap().fence();
    shifted.step_to(HALF_AN_HOUR);
    let theirs = other.try_lock_for("a", P + T + SLACK).unwrap().unwrap();
    assert!(theirs.fence() > last);
    until(ttl / 3 + T + SLACK, "the keeper learns of it", || {
        mgr.try_lock("a").unwrap().is_none()
    });
    let fence = theirs.fence();
    drop(theirs);
    assert!(mgr.lock("a").unwrap().fence() > fence);
}

#[test]
fn kept_lock_is_released_after_a_backward_clock_step() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    let last = mgr.lock("a").unwrap().fence();
    shifted.step_to(-HALF_AN_HOUR);
    // The lease is as long as before for its owner, and others are told of it.
    let theirs = gets(&other, "a", P + T + SLACK);
    assert!(theirs.fence() > last);
    let fence = theirs.fence();
    drop(theirs);
    keep(&mgr, "a");
    assert!(mgr.lock("a").unwrap().fence() > fence);
    drop(gets(&other, "a", P + T + SLACK));
    assert_eq!(mgr.stats().losses(), 0);
}

/// The message comes on the subscription while the reply to the grant is on its way.
#[test]
fn wanted_message_that_overtakes_the_grant_counts() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (mgr, other) = (keeper(proxy.url()), patient(server.url()));
    for name in ["a", "b", "c", "d"] {
        keep(&mgr, name);
        mgr.lock(name).unwrap().unlock().unwrap();
        let slow = proxy.trickle_when(Duration::from_millis(3), request(Verb::Acquire, name));
        thread::scope(|scope| {
            let locking = scope.spawn(|| mgr.lock(name).unwrap());
            until(SLACK, "it is granted", || {
                Record::of(&server, name).owner().is_some()
            });
            let mut waiter = other.enqueue(name).unwrap();
            assert!(slow.has_triggered());
            let guard = locking.join().unwrap();
            until(SLACK, "the guard learns of it", || guard.is_wanted());
            drop(guard);
            drop(waiter.wait_for(SLACK).unwrap().expect("it is the next"));
        });
        proxy.reset_all();
    }
}

/// A message about an older grant ends no newer one, and nonsense ends nothing.
#[test]
fn late_and_strange_wanted_messages_end_no_kept_lock() {
    let server = Server::start();
    let mgr = keeper(server.url());
    keep(&mgr, "a");
    let old = mgr.inspect("a").unwrap().unwrap().fence;
    mgr.lock("a").unwrap().unlock().unwrap();
    keep(&mgr, "a");
    let new = mgr.inspect("a").unwrap().unwrap().fence;
    assert!(new > old);
    let record = Record::of(&server, "a");
    let channel = format!(
        "fairlock:grants:{}",
        manager_of(&record.field("a").unwrap())
    );
    let tell = |text: &str| {
        let received: i64 = server.query(&["PUBLISH", &channel, text]);
        assert_eq!(received, 1, "the keeper is subscribed");
    };
    for text in [
        format!("wanted {old} fairlock:{{a}}"),
        format!("wanted {} fairlock:{{a}}", new - 1),
        format!("wanted {new} fairlock:{{b}}"),
        format!("wanted {new} other:{{a}}"),
        format!("wanted {new} fairlock:{{a"),
        format!("wanted {new}"),
        format!("wanted -{new} fairlock:{{a}}"),
        "wanted 99999999999999999999999 fairlock:{a}".to_owned(),
        "wanted  fairlock:{a}".to_owned(),
        "wanted".to_owned(),
        "wanted x fairlock:{a}".to_owned(),
        "1 waiting".to_owned(),
        "1 waiting x 1 2 3 4 5".to_owned(),
        String::new(),
        "\0\u{1}é wanted".to_owned(),
    ] {
        tell(&text);
    }
    // Answered after all of them.
    let pings = server.calls("ping");
    until(SOON, "the subscription is proven", || {
        server.calls("ping") > pings + 1
    });
    assert!(costs_nothing(&mgr, || drop(mgr.lock("a").unwrap())));
    assert_eq!(mgr.inspect("a").unwrap().unwrap().fence, new);
    assert_eq!(mgr.stats().recalls, 0);
    // Twice, as after a second copy.
    for _ in 0..2 {
        tell(&format!("wanted {new} fairlock:{{a}}"));
    }
    is_free_within(SLACK, &plain(server.url()), "a");
    assert_eq!(mgr.stats().recalls, 1);
}

/// The server starts again, empty. Others take the name; the keeper must not lend it for long.
#[test]
fn restarted_server_without_the_record_ends_kept_locks() {
    let server = Server::tcp();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    let last = mgr.lock("a").unwrap().fence();
    server.restart();
    let theirs = other
        .try_lock_for("a", SOON)
        .unwrap()
        .expect("the record is gone");
    assert!(theirs.fence() > last);
    // All connections have failed, so nothing is lent that was not confirmed since.
    until(P + 2 * T + SLACK, "the keeper learns of it", || {
        matches!(mgr.try_lock("a"), Ok(None))
    });
    let fence = theirs.fence();
    drop(theirs);
    assert!(mgr.lock("a").unwrap().fence() > fence);
    assert_eq!(other.stats().losses(), 0);
}

/// Redis is silent for a while. Kept locks go on while their leases last, and fail no call.
#[test]
fn kept_locks_work_while_redis_is_silent_for_a_moment() {
    let server = Server::start();
    let (mgr, other) = (keeper(server.url()), plain(server.url()));
    keep(&mgr, "a");
    server.stop();
    let mut turns = 0;
    // Until the subscription is not heard any more, two check periods and a timeout at most.
    let before = mgr.stats().kept_turns;
    until(P / 2, "it is lent", || {
        drop(mgr.lock("a").unwrap());
        turns += 1;
        turns > 20
    });
    assert_eq!(mgr.stats().kept_turns, before + turns);
    server.cont();
    drop(gets(&other, "a", SOON));
    assert_eq!(mgr.stats().losses(), 0);
    let before = PreviousHolder::Released;
    assert_eq!(mgr.lock("a").unwrap().previous_holder(), before);
}
