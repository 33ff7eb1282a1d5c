//! The protocol's rules, by their numbers: those whose tests cut off one process alone, or read
//! what was sent. On Redis alone, behind a proxy; the other rules are in `behaviour/rules.rs`.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, PreviousHolder};

use crate::connections::server_that_answers;
use crate::fixtures::{
    LOG_ALL, P, Record, SOON, T, TTL, Verb, Waiters, build, builder, log_of, log_of_all, manager,
    manager_of, micros, release, request, server_time, warm_up, with_ttl,
};
use crate::sums::Sums;
use crate::support::proxy::all_of;
use crate::support::{Proxy, SLACK, ScriptedReply, Server, throughout, until, until_some};

/// A server, a manager whose network the proxy can cut, and one with a direct connection.
fn cuttable() -> (Server, Proxy, LockManager, LockManager) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, other) = (manager(proxy.url()), manager(server.url()));
    warm_up(&ours);
    warm_up(&other);
    (server, proxy, ours, other)
}

fn cut(proxy: &Proxy) {
    proxy.pause_requests();
    proxy.pause_replies();
}

fn reconnect(proxy: &Proxy) {
    proxy.resume_requests();
    proxy.resume_replies();
}

#[test]
fn r1_every_attempt_has_a_token_of_its_own() {
    let server = Server::start_with(&LOG_ALL);
    let manager = manager(server.url());
    let holder = manager.lock("a").unwrap();
    for _ in 0..5 {
        assert!(manager.try_lock("a").unwrap().is_none());
        drop(manager.enqueue("a").unwrap());
    }
    holder.unlock().unwrap();
    for _ in 0..5 {
        manager.lock("a").unwrap().unlock().unwrap();
    }
    // A script that the server does not know is sent again with its source. Count each request
    // once.
    let mut log = log_of(&server, Verb::Acquire, "a");
    log.retain(|words| words[0] == "EVALSHA");
    let tokens: Vec<String> = log.iter().map(|words| words[9].clone()).collect();
    // The first wait sends a request before the subscription and one after it.
    assert!(tokens.len() >= 16, "{}", tokens.len());
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len());
}

#[test]
fn r2_a_step_of_the_clock_ages_no_waiter() {
    // The clock steps forward by an hour, as after an outage, and back.
    for hours in [1, -1] {
        let (server, proxy, ours, other) = cuttable();
        let holder = other
            .with(LockOptions::new().fixed_lease(TTL))
            .lock("a")
            .unwrap();
        let waiter = ours.enqueue("a").unwrap();
        cut(&proxy);
        let record = Record::of(&server, "a");
        let [token] = &record.tokens()[..] else {
            panic!()
        };
        let before = record.number("v");
        let last_seen = record.number("s") as i64 - hours * 3_600_000_000;
        record.set(&[("s", &last_seen.to_string())]);
        holder.unlock().unwrap();
        assert_eq!(
            record.owner().as_ref(),
            Some(token),
            "the waiter counts as alive"
        );
        let aged = record
            .number("v")
            .checked_sub(before)
            .expect("served time never falls");
        assert!(aged <= micros(P + T), "{aged} µs");
        reconnect(&proxy);
        drop(waiter);
        record.comes_to_rest();
    }
}

#[test]
fn r5_an_attempt_takes_nothing_after_its_own_deadline() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    // The wait goes on, but its first attempt has timed out. The held copy belongs to that attempt.
    let held = proxy.hold_request_when(request(Verb::Acquire, "a"));
    let guard = ours.lock("a").unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    let taken = other.lock("a").unwrap();
    assert!(taken.fence() > fence);
    let before = record.dump();
    assert!(String::from_utf8_lossy(&held.release()).contains("late"));
    assert_eq!(record.dump(), before);
    taken.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r5_a_check_that_arrives_too_late_does_nothing() {
    let (server, proxy, ours, other) = cuttable();
    let holder = other.lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let held = proxy.hold_request_when(request(Verb::Sync, "a"));
    held.wait(P + SLACK);
    let sent = server_time(&server);
    until(SOON, "the check's time is over", || {
        server_time(&server) > sent + micros(2 * T)
    });
    assert!(String::from_utf8_lossy(&held.release()).contains("late"));
    holder.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
}

/// A guard of any kind.
type Held = Box<dyn std::any::Any>;
/// A way to take it.
type Take = fn(&LockManager) -> Held;

/// R9 (own lapse): its process has given up the release, and nobody else has seen the lapse.
#[test]
fn r5_a_late_copy_of_a_renewal_revives_no_lapsed_lease() {
    let takes: [(usize, Take); 5] = [
        (1, |mgr| Box::new(mgr.lock("a").unwrap())),
        // Renewed in one call.
        (2, |mgr| {
            Box::new((mgr.lock("a").unwrap(), mgr.lock("b").unwrap()))
        }),
        (2, |mgr| Box::new(mgr.semaphore("a", 3).acquire(2).unwrap())),
        (2, |mgr| Box::new(mgr.rw_lock("a").read().unwrap())),
        (2, |mgr| Box::new(mgr.rw_lock("a").write().unwrap())),
    ];
    for (keys, take) in takes {
        let (server, proxy, ours, _other) = cuttable();
        let _: () = server.query(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        let guard = take(&ours);
        until(TTL + SLACK, "all are renewed", || {
            ours.stats().renewals_confirmed >= 2
        });
        let renewal = until_some(TTL + SLACK, "it is renewed", || {
            let mut log = log_of_all(&server);
            // No other script has as few keys or, with two, the holders' or both records.
            log.retain(|words| {
                let is_renewal = words.len() == 9 + keys || words.len() == 8 + 2 * keys;
                words[0] == "EVALSHA"
                    && words[2] == keys.to_string()
                    && is_renewal
                    && (keys == 1 || !words[4].ends_with(":q"))
            });
            log.pop()
        });
        proxy.refuse();
        proxy.close_all();
        drop(guard);
        let lapsed = server_time(&server) + micros(TTL);
        until(TTL + SLACK, "the lease lapses", || {
            server_time(&server) > lapsed
        });
        let hashes = || {
            let names: Vec<String> = server.query(&["KEYS", "fairlock:*"]);
            let is_hash = |name: &String| !name.ends_with(":q");
            let names = names.into_iter().filter(is_hash);
            names
                .map(|name| server.query::<Vec<Vec<u8>>>(&["HGETALL", &name]))
                .collect::<Vec<_>>()
        };
        let before = hashes();
        assert!(
            before.iter().any(|fields| !fields.is_empty()),
            "somebody has it"
        );
        let renewal: Vec<&str> = renewal.iter().map(String::as_str).collect();
        let answer: redis::Value = server.query(&renewal);
        assert!(format!("{answer:?}").contains("late"), "{answer:?}");
        assert_eq!(hashes(), before, "it wrote nothing");
    }
}

/// P7 (one grant for one request): its caller was told that nobody knows whether it ran.
#[test]
fn r5_a_late_release_by_force_takes_nothing() {
    for permits in [false, true] {
        let (server, proxy, ours, other) = cuttable();
        let take = |mgr: &LockManager| -> Held {
            match permits {
                false => Box::new(mgr.lock("a").unwrap()),
                true => Box::new(mgr.rw_lock("a").write().unwrap()),
            }
        };
        // The server knows the scripts.
        drop(take(&ours));
        let guard = take(&other);
        let fence = other.inspect("a").unwrap().unwrap().holders[0]
            .fence
            .unwrap();
        // The second copy goes out on another connection.
        let key = if permits {
            "fairlock:{a}:h"
        } else {
            "fairlock:{a}"
        };
        let held = [(); 2].map(|()| proxy.hold_request_when(all_of(&["forced", key])));
        let over = server_time(&server) + micros(2 * T);
        let forced = ours.force_release("a", fence);
        assert!(
            matches!(forced, Err(Error::Unavailable { .. })),
            "{forced:?}"
        );
        until(SOON, "its time is over", || server_time(&server) > over);
        for held in held.into_iter().filter(|held| held.is_held()) {
            assert!(String::from_utf8_lossy(&held.release()).contains("late"));
        }
        assert!(other.try_lock("b").unwrap().is_some(), "the server answers");
        let holders = other.inspect("a").unwrap().unwrap().holders;
        assert_eq!(holders.len(), 1, "it is still held");
        proxy.disarm();
        assert!(ours.force_release("a", fence).unwrap());
        drop((guard, server));
    }
}

#[test]
fn r5_an_attempt_late_by_a_fast_clock_is_repeated() {
    // This server's clock jumps ahead after the handshake. So the first request is late, and its
    // reply gives the client a new anchor.
    let (scripted_server, manager) = server_that_answers(|n| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 + 3_600_000_000;
        if n == 0 {
            ScriptedReply::array([
                ScriptedReply::bulk("late"),
                ScriptedReply::integer(now),
                ScriptedReply::integer(0),
            ])
        } else {
            crate::connections::granted(7)
        }
    });
    let guard = manager
        .try_lock("a")
        .unwrap()
        .expect("a late request is no error");
    assert_eq!(guard.fence(), 7);
    let commands = scripted_server.commands();
    let acquires: Vec<_> = commands.iter().filter(|words| words.len() == 13).collect();
    assert_eq!(acquires.len(), 2);
    let not_after = |i: usize| acquires[i][10].parse::<u64>().unwrap();
    assert!(
        not_after(1) > not_after(0) + 3_000_000_000,
        "the second request is dated by the server's new time"
    );
}

#[test]
fn r6_no_token_is_requested_again_after_one_ttl() {
    let ttl = Duration::from_secs(1);
    let scripted_server = crate::support::ScriptedServer::start(|words| {
        if crate::support::scripted_server::is(words, "EVALSHA")
            || crate::support::scripted_server::is(words, "EVAL")
        {
            ScriptedReply::error("LOADING Redis is loading the dataset in memory")
        } else {
            ScriptedReply::polite(words)
        }
    });
    let manager =
        build(with_ttl(scripted_server.url(), ttl).outage_limit(Duration::from_millis(2500)));
    assert!(manager.lock("a").is_err());
    let mut sent: HashMap<String, (u64, u64)> = HashMap::new();
    for words in scripted_server
        .commands()
        .iter()
        .filter(|words| words.len() == 13)
    {
        let at: u64 = words[10].parse().unwrap();
        let (first, last) = sent.entry(words[9].clone()).or_insert((at, at));
        *first = at.min(*first);
        *last = at.max(*last);
    }
    // Each date is the end of an attempt. All ends are equally long after the sending, so their
    // differences are ages.
    let oldest = sent
        .values()
        .map(|(first, last)| last - first)
        .max()
        .unwrap();
    assert!(
        oldest <= micros(ttl),
        "a token was requested again after {oldest} µs"
    );
    assert!(
        sent.len() >= 3,
        "there is a new token for each TTL: {}",
        sent.len()
    );
}

#[test]
fn r7_an_abandon_repeats_until_no_copy_can_take_the_token() {
    let server = Server::tcp_with(&LOG_ALL);
    let proxy = Proxy::to(server.addr());
    let ours = manager(proxy.url());
    warm_up(&ours);
    // R7 (late copies): the caller notices at once that its connections broke, and abandons the
    // token at once. But a copy of its request may still arrive in time, after that first abandon.
    let first = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let second = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let third = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let end = ours.try_lock("a");
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    first.wait(SOON);
    second.wait(SOON);
    third.wait(SOON);
    until(SOON, "it was abandoned twice", || {
        log_of(&server, Verb::Release, "a").len() >= 2
    });
    let log = log_of(&server, Verb::Release, "a");
    assert!(
        log.iter()
            .all(|words| words[11] == "unused" && words[9] == log[0][9])
    );
    assert!(Record::of(&server, "a").fields().is_empty());
}

#[test]
fn r8_a_notice_during_its_unanswered_request_is_one_grant() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    let holder = other.lock("a").unwrap();
    // The waiter is queued, but does not know it yet.
    let fault = proxy.swallow_silently_when(request(Verb::Acquire, "a"));
    let waiting = thread::spawn({
        let ours = ours.clone();
        move || ours.lock("a").unwrap()
    });
    fault.wait(SOON);
    holder.unlock().unwrap();
    let guard = waiting.join().unwrap();
    assert_eq!(ours.stats().handovers, 1);
    assert_eq!(record.number("f"), guard.fence());
    let owner = record.owner();
    guard.renew().unwrap();
    assert_eq!(record.owner(), owner);
    assert_eq!((record.number("n"), record.number("r")), (0, 0));
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r10_waiters_of_a_process_with_a_lapsed_lease_are_skipped() {
    // Longer than the slack, so that a grant to the dead process would cause a noticeable delay.
    let ttl = Duration::from_secs(4);
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let dying = build(with_ttl(proxy.url(), ttl));
    let alive = build(with_ttl(server.url(), ttl));
    warm_up(&dying);
    let holder = dying.lock("a").unwrap();
    let waiter = dying.enqueue("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&alive);
    cut(&proxy);
    let record = Record::of(&server, "a");
    let dead = manager_of(&record.field("a").unwrap());
    let past = server_time(&server) - 1;
    record.set(&[("e", &past.to_string())]);
    let guard = queue.expect_grant(0, ttl / 8 + ttl / 10 + SLACK);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    assert_eq!(
        record.field(&format!("m:{dead}")),
        None,
        "its stamp is removed"
    );
    reconnect(&proxy);
    holder.lost().recv_timeout(SOON).expect("it was lost");
    // The process was alive after all. Its waiter has joined the end of the queue.
    guard.unlock().unwrap();
    drop(waiter.wait().unwrap());
    until(SLACK, "its new place is counted", || {
        dying.stats().requeues == 1
    });
}

#[test]
fn r10_a_lapsed_fixed_lease_says_nothing_about_its_process() {
    let (server, proxy, ours, other) = cuttable();
    let fixed = ours
        .with(LockOptions::new().fixed_lease(TTL))
        .lock("a")
        .unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    let record = Record::of(&server, "a");
    let first = record.tokens().remove(0);
    cut(&proxy);
    let past = server_time(&server) - 1;
    record.set(&[("e", &past.to_string())]);
    // The other's sync grants it to the first waiter, which counts as alive for a horizon.
    until(
        P + T + SLACK,
        "the lapsed lock is granted to the first waiter",
        || record.owner().as_ref() == Some(&first),
    );
    reconnect(&proxy);
    let guard = waiter.wait().unwrap();
    assert_eq!(record.owner(), Some(first));
    guard.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    drop(fixed);
    record.comes_to_rest();
}

#[test]
fn r12_no_deadline_is_later_than_the_servers() {
    let ttl = Duration::from_secs(5);
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(with_ttl(proxy.url(), ttl));
    let other = build(with_ttl(server.url(), ttl));
    warm_up(&ours);
    let record = Record::of(&server, "a");
    let earlier = |guard: &fairlock::LockGuard| {
        // Read first, so that time passing in between can only make the test stricter.
        let left = record.number("e").saturating_sub(server_time(&server));
        let remaining = guard.remaining();
        assert!(
            micros(remaining) <= left,
            "{remaining:?} where the server leaves {left} µs"
        );
        assert!(!remaining.is_zero());
    };
    // Each message and reply takes longer to arrive than the margin.
    proxy.delay(Duration::from_millis(80));
    let own = ours.lock("a").unwrap();
    earlier(&own);
    own.renew().unwrap();
    earlier(&own);
    own.unlock().unwrap();
    for _ in 0..3 {
        let holder = other.lock("a").unwrap();
        let waiter = ours.enqueue("a").unwrap();
        let handed = ours.stats().handovers;
        holder.unlock().unwrap();
        let guard = waiter.wait().unwrap();
        earlier(&guard);
        assert!(ours.stats().handovers > handed, "the grant came by message");
        guard.unlock().unwrap();
    }
}

#[test]
fn r12_a_late_grant_notice_is_confirmed_before_it_is_returned() {
    let (server, proxy, ours, other) = cuttable();
    let holder = other.lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    proxy.pause_replies();
    holder.unlock().unwrap();
    let record = Record::of(&server, "a");
    let granted = record.number("g");
    until(TTL, "more than half of the lease is over", || {
        server_time(&server) - granted > micros(TTL / 2 + TTL / 10)
    });
    proxy.resume_replies();
    let guard = waiter.wait().unwrap();
    let remaining = guard.remaining();
    assert_eq!(
        record.number("g"),
        granted,
        "it is the grant made at that time"
    );
    assert!(remaining > TTL / 2 - T, "{remaining:?}");
    assert!(record.number("e") > granted + micros(TTL), "it was renewed");
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r12_a_watched_waiter_is_ready_once_its_grant_is_confirmed() {
    let (server, proxy, ours, other) = cuttable();
    let holder = other.lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    assert!(waiter.ready().is_empty());
    proxy.pause_replies();
    holder.unlock().unwrap();
    let record = Record::of(&server, "a");
    let granted = record.number("g");
    until(TTL, "more than half of the lease is over", || {
        server_time(&server) - granted > micros(TTL / 2 + TTL / 10)
    });
    assert!(waiter.ready().is_empty(), "no message has come");
    proxy.resume_replies();
    // No thread waits by `wait`, so the renewal thread has the grant confirmed by itself.
    waiter.ready().recv_timeout(SOON).unwrap();
    let guard = waiter.wait_for(Duration::ZERO).unwrap();
    let guard = guard.expect("it is confirmed when the message comes");
    assert_eq!(record.number("g"), granted, "it is that grant");
    assert!(guard.remaining() > TTL / 2 - T, "{:?}", guard.remaining());
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r14_a_lease_being_released_is_neither_renewed_nor_reported_lost() {
    let (server, proxy, ours, _) = cuttable();
    let losses = crossbeam_channel::unbounded();
    let options = LockOptions::new()
        .ttl(TTL)
        .on_lost(move |loss| drop(losses.0.send(loss.clone())));
    let guard = ours.with(options).lock("a").unwrap();
    let lost = guard.lost().clone();
    let held = proxy.hold_request_when(release("used", "a"));
    let unlock = thread::spawn(move || guard.unlock());
    held.wait(SOON);
    let renewed = ours.stats().renewals_confirmed;
    // The record is deleted. If the lease were still renewed, this would be reported as a loss.
    let _: i64 = server.query(&["DEL", &Record::of(&server, "a").key]);
    throughout(TTL / 3 + T, "no loss is reported", || losses.1.is_empty());
    held.release();
    let end = unlock.join().unwrap();
    assert!(
        end.is_err(),
        "the release failed, or found nothing to release"
    );
    // The release counts the loss that it finds, whichever thread has its answer.
    until(SOON, "the release finds the record gone", || {
        ours.stats().losses() == 1
    });
    assert_eq!(ours.stats().renewals_confirmed, renewed);
    assert!(
        losses.1.is_empty() && lost.recv().is_err(),
        "no loss was reported"
    );
}

#[test]
fn r15_a_lease_ending_too_late_is_cut_to_its_grant() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    let far = || {
        let end = server_time(&server) + 3_600_000_000;
        record.set(&[("e", &end.to_string())]);
    };
    // The next renewal cuts it.
    let guard = ours.lock("a").unwrap();
    far();
    guard.renew().unwrap();
    assert!(record.number("e") <= server_time(&server) + micros(TTL));
    // Requests of others cut it too, so that a crash delays them by no more than the TTL.
    cut(&proxy);
    far();
    let start = Instant::now();
    let next = other.lock("a").unwrap();
    assert!(
        start.elapsed() <= TTL + P + T + SLACK,
        "{:?}",
        start.elapsed()
    );
    assert!(next.fence() > guard.fence());
    reconnect(&proxy);
}

#[test]
fn r20_scripts_are_never_loaded_and_numbers_never_rounded() {
    let server = Server::start_with(&LOG_ALL);
    let manager = build(builder(server.url()));
    let holder = manager.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&manager);
    assert!(manager.try_lock_for("a", 2 * P).unwrap().is_none());
    holder.renew().unwrap();
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    let stats: String = server.query(&["INFO", "commandstats"]);
    assert!(
        !stats.contains("script|load")
            && !stats.contains("cmdstat_function")
            && !stats.contains("fcall")
    );
    for (field, value) in Record::of(&server, "a").fields() {
        assert!(!value.contains("e+"), "{field} is {value}");
    }
}

/// The late copy queues the waiter's token again, behind the entry that the waiter has cancelled.
/// Two entries then have the same token.
#[test]
fn r7_a_late_copy_of_an_acquire_costs_no_permit() {
    let server = Server::start_with(&LOG_ALL);
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let waiting = |n: usize| {
        let queue = || server.query::<usize>(&["LLEN", "fairlock:{a}:q"]);
        until(SOON, "they wait", || queue() == n);
    };
    let writer = other.rw_lock("a").write().unwrap();
    let times_out = thread::spawn({
        let ours = ours.clone();
        move || ours.rw_lock("a").try_read_for(2 * P).unwrap().is_none()
    });
    waiting(1);
    let stays = thread::spawn(move || other.rw_lock("a").read().unwrap());
    waiting(2);
    assert!(
        times_out.join().unwrap(),
        "no reader is granted beside a writer"
    );
    let is_readers = |words: &Vec<String>| {
        words.len() == 15 && words[12] == "1" && words[13].contains(" 0 0 1 ")
    };
    let mut copy = log_of_all(&server).into_iter().find(is_readers).unwrap();
    // Date the copy as if it was sent just before the timeout.
    copy[11] = (server_time(&server) + micros(T)).to_string();
    let copy: Vec<&str> = copy.iter().map(String::as_str).collect();
    server.query::<redis::Value>(&copy);
    assert_eq!(server.query::<usize>(&["LLEN", "fairlock:{a}:q"]), 3);
    writer.unlock().unwrap();
    stays.join().unwrap().unlock().unwrap();
    // No lease has to lapse for that.
    assert!(
        ours.rw_lock("a")
            .try_write_for(P + T + SLACK)
            .unwrap()
            .is_some()
    );
}
