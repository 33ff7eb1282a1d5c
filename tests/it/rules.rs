//! The protocol's rules, each by its number, seen from outside: through the API, and by reading and rewriting
//! the record.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use crate::connections::fake_that;
use crate::scene::{
    LOG_ALL, Line, P, Record, SOON, T, TTL, Verb, build, builder, log_of, manager, micros, release, request,
    server_time, warm_up, with_ttl,
};
use crate::support::{FakeReply, Proxy, SLACK, Server, until};

/// A server, a manager whose network can be cut, and one whose network is sound.
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

fn mend(proxy: &Proxy) {
    proxy.resume_requests();
    proxy.resume_replies();
}

/// The manager that a record's request or waiter belongs to.
fn manager_of(request: &str) -> String {
    request.split(' ').nth(2).expect("a request names its manager").to_owned()
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
    // What the server did not know by its hash was sent again with its source.
    let mut log = log_of(&server, Verb::Acquire, "a");
    log.retain(|words| words[0] == "EVALSHA");
    let tokens: Vec<String> = log.iter().map(|words| words[9].clone()).collect();
    // The first wait asks once before the subscription and once after it.
    assert!(tokens.len() >= 16, "{}", tokens.len());
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len());
}

#[test]
fn r2_a_step_of_the_clock_ages_no_waiter() {
    // Forwards by an hour, as after an outage, and backwards.
    for hours in [1, -1] {
        let (server, proxy, ours, other) = cuttable();
        let holder = other.with(LockOptions::new().fixed_lease(TTL)).lock("a").unwrap();
        let waiter = ours.enqueue("a").unwrap();
        cut(&proxy);
        let record = Record::of(&server, "a");
        let [token] = &record.tokens()[..] else { panic!() };
        let before = record.number("v");
        let last_seen = record.number("s") as i64 - hours * 3_600_000_000;
        record.set(&[("s", &last_seen.to_string())]);
        holder.unlock().unwrap();
        assert_eq!(record.owner().as_ref(), Some(token), "the waiter counts as alive");
        let aged = record.number("v").checked_sub(before).expect("served time never falls");
        assert!(aged <= micros(P + T), "{aged} µs");
        mend(&proxy);
        drop(waiter);
        record.comes_to_rest();
    }
}

#[test]
fn r3_a_process_that_asks_counts_as_alive_when_it_does() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    // Nobody renews this lease, so that nobody but the waiter's process looks at the record.
    let _lapses = other.with(LockOptions::new().fixed_lease(10 * TTL)).lock("a").unwrap();
    let mut waiter = ours.enqueue("a").unwrap();
    let record = Record::of(&server, "a");
    let token = record.tokens().remove(0);
    let stamp = record.starting("m:").remove(0);
    let since = record.field(&stamp).unwrap().split(' ').nth(1).unwrap().to_owned();
    // At once: the stamp is long past, and the lock is free.
    record.set(&[(&stamp, &format!("1 {since}")), ("v", "1000000000"), ("e", "1")]);
    let guard = waiter.wait_for(P + T + SLACK).unwrap().expect("it was not taken for dead");
    assert_eq!(record.owner(), Some(token), "in the place that it had");
    assert_eq!(ours.stats().requeued, 0);
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r4_what_redis_forgot_is_enqueued_again_under_new_tokens_in_the_same_order() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let mut holder = other.lock("a").unwrap();
    let record = Record::of(&server, "a");
    let mut line = Line::of("a");
    (0..6).for_each(|_| line.stand(&ours));
    let before: HashSet<String> = record.tokens().into_iter().collect();
    // The lock itself is taken again before any waiter is back.
    let taken = loop {
        let _: i64 = server.query(&["DEL", &record.key, &record.queue]);
        if let Some(taken) = other.try_lock("a").unwrap() {
            break taken;
        }
        // A waiter was faster, and has it.
        let (_, guard) = line.next(SOON);
        drop(guard);
        line = Line::of("a");
        until(SOON, "all have gone", || ours.stats().waiting == 0);
        (0..6).for_each(|_| line.stand(&ours));
    };
    std::mem::replace(&mut holder, taken).lost();
    until(SOON, "all are back", || record.tokens().len() == 6);
    let after: HashSet<String> = record.tokens().into_iter().collect();
    assert!(before.is_disjoint(&after), "every attempt has a token of its own");
    assert_eq!(ours.stats().requeued % 6, 0);
    holder.unlock().unwrap();
    for who in 0..6 {
        line.serve(who, P + T + SLACK).unlock().unwrap();
    }
    record.comes_to_rest();
}

#[test]
fn r5_an_attempt_takes_nothing_past_the_time_of_its_own() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    // The wait goes on, but the first copy of its request belongs to an attempt that was given up.
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
fn r5_a_clock_that_runs_ahead_makes_an_attempt_late_and_it_is_asked_again() {
    // A server whose clock jumps ahead after every handshake: the first request is late, which re-anchors.
    let (fake, manager) = fake_that(|n| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 + 3_600_000_000;
        if n == 0 {
            FakeReply::array([
                FakeReply::bulk("late"),
                FakeReply::integer(now),
                FakeReply::integer(0),
                FakeReply::array([]),
                FakeReply::array([]),
            ])
        } else {
            crate::connections::granted(7)
        }
    });
    let guard = manager.try_lock("a").unwrap().expect("late is no error");
    assert_eq!(guard.fence(), 7);
    let commands = fake.commands();
    let asked: Vec<_> = commands.iter().filter(|words| words.len() == 13).collect();
    assert_eq!(asked.len(), 2);
    let not_after = |i: usize| asked[i][10].parse::<u64>().unwrap();
    assert!(not_after(1) > not_after(0) + 3_000_000_000, "dated by the server's clock as it is now");
}

#[test]
fn r6_no_token_is_asked_for_later_than_a_ttl_after_its_first_time() {
    let ttl = Duration::from_secs(1);
    let fake = crate::support::Fake::start(|words| {
        if crate::support::fake::is(words, "EVALSHA") || crate::support::fake::is(words, "EVAL") {
            FakeReply::error("LOADING Redis is loading the dataset in memory")
        } else {
            FakeReply::polite(words)
        }
    });
    let manager = build(with_ttl(fake.url(), ttl).outage_limit(Duration::from_millis(2500)));
    assert!(manager.lock("a").is_err());
    let mut sent: HashMap<String, (u64, u64)> = HashMap::new();
    for words in fake.commands().iter().filter(|words| words.len() == 13) {
        let at: u64 = words[10].parse().unwrap();
        let (first, last) = sent.entry(words[9].clone()).or_insert((at, at));
        (*first, *last) = (at.min(*first), at.max(*last));
    }
    // The dates are those of each attempt's end; both ends of an age are as far from its sending.
    let oldest = sent.values().map(|(first, last)| last - first).max().unwrap();
    assert!(oldest <= micros(ttl), "a token was asked for over {oldest} µs");
    assert!(sent.len() >= 3, "another one each ttl: {}", sent.len());
}

#[test]
fn r7_an_abandon_is_repeated_until_no_copy_can_take_the_token() {
    let server = Server::tcp_with(&LOG_ALL);
    let proxy = Proxy::to(server.addr());
    let ours = manager(proxy.url());
    warm_up(&ours);
    // The caller learns at once that its connections broke. A copy of its request may still arrive and be
    // in time; the first abandon, sent at once, can not know.
    let first = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let second = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let third = proxy.reset_request_when(request(Verb::Acquire, "a"));
    let end = ours.try_lock("a");
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    first.wait(SOON);
    second.wait(SOON);
    third.wait(SOON);
    until(SOON, "it was abandoned twice", || log_of(&server, Verb::Release, "a").len() >= 2);
    let log = log_of(&server, Verb::Release, "a");
    assert!(log.iter().all(|words| words[11] == "unused" && words[9] == log[0][9]));
    assert!(Record::of(&server, "a").fields().is_empty());
}

#[test]
fn r8_a_grant_heard_while_its_request_has_no_answer_is_one_grant() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    let holder = other.lock("a").unwrap();
    // It stands in the queue and does not know it yet.
    let trap = proxy.swallow_silently_when(request(Verb::Acquire, "a"));
    let waiting = thread::spawn({
        let ours = ours.clone();
        move || ours.lock("a").unwrap()
    });
    trap.wait(SOON);
    holder.unlock().unwrap();
    let guard = waiting.join().unwrap();
    assert_eq!(record.number("f"), guard.fence());
    let owner = record.owner();
    guard.renew().unwrap();
    assert_eq!(record.owner(), owner);
    assert_eq!((record.number("n"), record.number("r")), (0, 0));
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r9_a_lease_that_lapsed_is_the_owners_until_somebody_else_clears_it() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let lapse = || {
        let past = server_time(&server) - micros(TTL);
        record.set(&[("e", &past.to_string())]);
    };
    // A renewal extends it.
    let guard = ours.lock("a").unwrap();
    lapse();
    guard.renew().unwrap();
    assert!(record.number("e") > server_time(&server));
    // A release clears it, as a good one.
    lapse();
    guard.unlock().unwrap();
    let guard = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    // Another token sees it as free, and from then on it is lost.
    lapse();
    let next = ours.try_lock("a").unwrap().expect("it has lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let loss = guard.lost().recv_timeout(TTL / 3 + SLACK).expect("the loss is told");
    assert_eq!(loss.reason, LossReason::Expired);
    // What tells of the loss leaves the successor alone.
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r9_only_a_good_release_ends_the_trace_of_a_lapse() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let fixed = ours.with(LockOptions::new().fixed_lease(Duration::from_millis(20)));
    drop(ours.lock("a").unwrap());
    std::mem::forget(fixed.try_lock("a").unwrap().expect("it is free"));
    let second = loop {
        // Each one lapses as well.
        if let Some(guard) = fixed.try_lock("a").unwrap() {
            break guard;
        }
    };
    assert_eq!(second.previous_holder(), PreviousHolder::Lapsed);
    std::mem::forget(second);
    let third = other.try_lock_for("a", SOON).unwrap().expect("it lapses");
    assert_eq!(third.previous_holder(), PreviousHolder::Lapsed);
    assert!(record.number("x") < third.fence());
    third.unlock().unwrap();
    let fourth = other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(fourth.previous_holder(), PreviousHolder::Released);
}

#[test]
fn r10_the_waiters_of_a_process_whose_lease_lapsed_are_passed_over() {
    // Longer than the slack, so that a grant to the dead process would show as a delay.
    let ttl = Duration::from_secs(4);
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let dying = build(with_ttl(proxy.url(), ttl));
    let alive = build(with_ttl(server.url(), ttl));
    warm_up(&dying);
    let holder = dying.lock("a").unwrap();
    let unheard = dying.enqueue("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&alive);
    cut(&proxy);
    let record = Record::of(&server, "a");
    let dead = manager_of(&record.field("a").unwrap());
    let past = server_time(&server) - 1;
    record.set(&[("e", &past.to_string())]);
    let guard = line.serve(0, ttl / 8 + ttl / 10 + SLACK);
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    assert_eq!(record.field(&format!("m:{dead}")), None, "its stamp is void");
    mend(&proxy);
    holder.lost().recv_timeout(SOON).expect("it was lost");
    // It was not dead after all, and its waiter is at the end of the queue now.
    guard.unlock().unwrap();
    drop(unheard.wait().unwrap());
    assert_eq!(dying.stats().requeued, 1);
}

#[test]
fn r15_a_clock_that_went_back_does_not_make_a_released_lock_cool() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let holder = ours.lock("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&other);
    record.set(&[("g", &(server_time(&server) + micros(Duration::from_secs(1800))).to_string())]);
    holder.unlock().unwrap();
    line.serve(0, P + T + SLACK).unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn every_way_of_a_grant_raises_a_fence_that_is_ahead_of_the_clock() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let ahead = server_time(&server) + micros(Duration::from_secs(1800));
    drop(ours.lock("a").unwrap());
    record.set(&[("f", &ahead.to_string())]);
    let uncontended = ours.lock("a").unwrap();
    assert_eq!(uncontended.fence(), ahead + 1);
    let mut line = Line::of("a");
    line.stand(&ours);
    line.stand(&other);
    uncontended.unlock().unwrap();
    let within = line.serve(0, SOON);
    assert_eq!(within.fence(), ahead + 2, "handed over within a process");
    within.unlock().unwrap();
    let across = line.serve(1, SOON);
    assert_eq!(across.fence(), ahead + 3, "handed over to another");
    across.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r10_a_lease_that_lapsed_in_an_outage_costs_nobody_his_place() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    warm_up(&other);
    let record = Record::of(&server, "a");
    for _ in 0..2 {
        let holder = ours.lock("a").unwrap();
        let mut line = Line::of("a");
        line.stand(&ours);
        line.stand(&other);
        // As an outage leaves it that was longer than the lease.
        let past = (server_time(&server) - 2 * micros(P + T)).to_string();
        record.set(&[("e", &past), ("s", &past)]);
        // The first to come back is somebody else.
        assert!(other.try_lock("a").unwrap().is_none());
        // It may have been handed on already, to the waiter of the holder's own process.
        let _ = holder.unlock();
        line.serve(0, 2 * (P + T) + SLACK).unlock().unwrap();
        line.serve(1, 2 * (P + T) + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeued + other.stats().requeued, 0);
    record.comes_to_rest();
}

#[test]
fn r10_a_fixed_lease_that_lapsed_says_nothing_of_its_process() {
    let (server, proxy, ours, other) = cuttable();
    let fixed = ours.with(LockOptions::new().fixed_lease(TTL)).lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&other);
    let record = Record::of(&server, "a");
    let first = record.tokens().remove(0);
    cut(&proxy);
    let past = server_time(&server) - 1;
    record.set(&[("e", &past.to_string())]);
    // The other's sync hands it to the first in line, who counts as alive for a horizon.
    until(P + T + SLACK, "it is handed on", || record.owner().as_ref() == Some(&first));
    mend(&proxy);
    let guard = waiter.wait().unwrap();
    assert_eq!(record.owner(), Some(first));
    guard.unlock().unwrap();
    line.serve(0, P + T + SLACK).unlock().unwrap();
    drop(fixed);
    record.comes_to_rest();
}

#[test]
fn r11_a_queue_that_was_deleted_or_shortened_is_stood_in_again() {
    let server = Server::start();
    let managers = [manager(server.url()), manager(server.url())];
    let record = Record::of(&server, "a");
    let damages: [&[&str]; 4] =
        [&["DEL", &record.queue], &["LPOP", &record.queue], &["RPOP", &record.queue, "2"], &["DEL", &record.key]];
    for damage in damages {
        let holder = managers[0].lock("a").unwrap();
        let mut line = Line::of("a");
        for who in 0..6 {
            line.stand(&managers[who % 2]);
        }
        let requeued = || managers.iter().map(|m| m.stats().requeued).sum::<u64>();
        let before = requeued();
        let _: redis::Value = server.query(damage);
        if damage[1] == record.queue {
            // Their syncs find out, long before the queue is needed.
            until(SOON, "all stand in it again", || requeued() == before + 6);
            holder.check().unwrap();
        }
        drop(holder);
        let mut seen: [Vec<usize>; 2] = Default::default();
        for _ in 0..6 {
            let (who, guard) = line.next(SOON);
            seen[who % 2].push(who);
            guard.unwrap().unlock().unwrap();
        }
        for order in &mut seen {
            assert_eq!(order.len(), 3, "{damage:?}");
        }
        if damage[0] == "DEL" {
            assert_eq!(seen, [vec![0, 2, 4], vec![1, 3, 5]], "{damage:?}");
        }
        record.comes_to_rest();
    }
}

#[test]
fn r11_a_list_left_from_a_lost_record_is_nobodys_queue() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let holder = other.lock("a").unwrap();
    let stale: Vec<String> = (0..70).map(|i| format!("{i:032x}")).collect();
    for token in &stale {
        let _: i64 = server.query(&["RPUSH", &record.queue, token]);
    }
    let mut line = Line::of("a");
    line.stand(&ours);
    line.stand(&ours);
    assert_eq!(record.tokens().len(), 2, "only those who wait");
    assert_eq!((record.number("n"), record.number("r")), (2, 2));
    holder.unlock().unwrap();
    line.serve(0, P + T + SLACK).unlock().unwrap();
    line.serve(1, P + T + SLACK).unlock().unwrap();
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
        // Read first, so that time that passes in between counts against us.
        let left = record.number("e").saturating_sub(server_time(&server));
        let remaining = guard.remaining();
        assert!(micros(remaining) <= left, "{remaining:?} where the server leaves {left} µs");
        assert!(!remaining.is_zero());
    };
    // Every message and every reply is under way for longer than the margin.
    proxy.delay(Duration::from_millis(80));
    let own = ours.lock("a").unwrap();
    earlier(&own);
    own.renew().unwrap();
    earlier(&own);
    own.unlock().unwrap();
    for _ in 0..3 {
        let holder = other.lock("a").unwrap();
        let waiter = ours.enqueue("a").unwrap();
        let handed = ours.stats().handed_over;
        holder.unlock().unwrap();
        let guard = waiter.wait().unwrap();
        earlier(&guard);
        assert!(ours.stats().handed_over > handed, "it came by message");
        guard.unlock().unwrap();
    }
}

#[test]
fn r12_a_grant_heard_late_is_confirmed_before_it_is_returned() {
    let (server, proxy, ours, other) = cuttable();
    let holder = other.lock("a").unwrap();
    let waiter = ours.enqueue("a").unwrap();
    proxy.pause_replies();
    holder.unlock().unwrap();
    let record = Record::of(&server, "a");
    let granted = record.number("g");
    until(TTL, "more than half of the lease is over", || server_time(&server) - granted > micros(TTL / 2 + TTL / 10));
    proxy.resume_replies();
    let guard = waiter.wait().unwrap();
    let remaining = guard.remaining();
    assert_eq!(record.number("g"), granted, "it is the grant that was made then");
    assert!(remaining > TTL / 2 - T, "{remaining:?}");
    assert!(record.number("e") > granted + micros(TTL), "it was renewed");
    guard.unlock().unwrap();
    record.comes_to_rest();
}

/// A record in which a token owns the lock that nobody has.
fn plant(server: &Server, name: &str, token: &str, of: &str) -> String {
    let record = Record::of(server, name);
    let now = server_time(server);
    let (now, end) = (now.to_string(), (now + 60_000_000).to_string());
    record.set(&[
        ("k", "mutex/1"),
        ("o", token),
        ("a", &format!("0 {now} {of} 60000 0 0")),
        ("l", "host\t1\t-\t"),
        ("e", &end),
        ("g", &now),
        ("f", &now),
        ("x", "0"),
    ]);
    let _: i64 = server.query(&["PEXPIRE", &record.key, "120000"]);
    format!("{token} {now} {now} 60000000 0 {}", record.key)
}

fn listening(server: &Server) -> String {
    let channels = || server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "fairlock:grants:*"]);
    until(SOON, "somebody listens", || channels().len() == 1);
    channels().remove(0)
}

#[test]
fn r13_a_grant_that_nobody_wants_is_released_at_once() {
    let server = Server::start();
    let manager = manager(server.url());
    warm_up(&manager);
    let channel = listening(&server);
    let of = channel.rsplit(':').next().unwrap();
    let message = plant(&server, "a", "0123456789abcdef0123456789abcdef", of);
    assert!(manager.try_lock("a").unwrap().is_none());
    let _: i64 = server.query(&["PUBLISH", &channel, &message]);
    Record::of(&server, "a").comes_to_rest();
    // As unused: what the holder before left behind is not forgotten.
    let guard = manager.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
}

#[test]
fn r13_news_that_come_late_or_twice_harm_no_holder() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let channel = listening(&server);
    let record = Record::of(&server, "a");
    let holder = other.lock("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&ours);
    holder.unlock().unwrap();
    let guard = line.serve(0, P + T + SLACK);
    let owner = record.owner().unwrap();
    let [f, g] = ["f", "g"].map(|field| record.number(field));
    let again = format!("{owner} {f} {g} {} 0 {}", TTL.as_micros(), record.key);
    let after = plant(&server, "after", "0123456789abcdef0123456789abcdef", "x");
    for _ in 0..3 {
        let _: i64 = server.query(&["PUBLISH", &channel, &again]);
    }
    for nonsense in ["", " ", "a b c d e f", &"x".repeat(100_000), "0123 1 1 1 1 fairlock:{a}"] {
        let _: i64 = server.query(&["PUBLISH", &channel, nonsense]);
    }
    let _: i64 = server.query(&["PUBLISH", &channel, &after]);
    // Messages are taken in order: once this one was acted upon, so were those before.
    Record::of(&server, "after").comes_to_rest();
    assert_eq!(record.owner(), Some(owner));
    guard.renew().unwrap();
    guard.unlock().unwrap();
    // And after the release, while somebody else has it.
    let next = other.lock("a").unwrap();
    let after = plant(&server, "after", "0123456789abcdef0123456789abcdef", "x");
    let _: i64 = server.query(&["PUBLISH", &channel, &again]);
    let _: i64 = server.query(&["PUBLISH", &channel, &after]);
    Record::of(&server, "after").comes_to_rest();
    next.renew().unwrap();
    next.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r14_a_lease_that_is_being_released_is_not_renewed_and_not_lost() {
    let (server, proxy, ours, _) = cuttable();
    let told = crossbeam_channel::unbounded();
    let options = LockOptions::new().ttl(TTL).on_lost(move |loss| drop(told.0.send(loss.clone())));
    let guard = ours.with(options).lock("a").unwrap();
    let lost = guard.lost().clone();
    let held = proxy.hold_request_when(release("used", "a"));
    let unlock = thread::spawn(move || guard.unlock());
    held.wait(SOON);
    let renewed = ours.stats().renewed;
    // The record goes meanwhile: were it still renewed, that would be a loss.
    let _: i64 = server.query(&["DEL", &Record::of(&server, "a").key]);
    thread::sleep(TTL / 3 + T);
    held.release();
    let end = unlock.join().unwrap();
    assert!(end.is_err(), "its outcome is not known, or that it was gone");
    assert_eq!((ours.stats().renewed, ours.stats().lost), (renewed, 0));
    assert!(told.1.is_empty() && lost.recv().is_err(), "nothing was told");
}

#[test]
fn r14_a_lost_lease_is_given_up_as_well() {
    let server = Server::start();
    let manager = manager(server.url());
    let guard = manager.with(LockOptions::new().max_hold(T)).lock("a").unwrap();
    let loss = guard.lost().recv_timeout(T + T + SLACK).expect("it may be held no longer");
    assert_eq!(loss.reason, LossReason::MaxHold);
    Record::of(&server, "a").comes_to_rest();
    drop(guard);
}

#[test]
fn r15_a_lease_that_ends_too_late_is_cut_to_what_was_granted() {
    let (server, proxy, ours, other) = cuttable();
    let record = Record::of(&server, "a");
    let far = || {
        let end = server_time(&server) + 3_600_000_000;
        record.set(&[("e", &end.to_string())]);
    };
    // At the next renewal.
    let guard = ours.lock("a").unwrap();
    far();
    guard.renew().unwrap();
    assert!(record.number("e") <= server_time(&server) + micros(TTL));
    // And when others look, so that a crash delays nobody by more than its ttl.
    cut(&proxy);
    far();
    let start = Instant::now();
    let next = other.lock("a").unwrap();
    assert!(start.elapsed() <= TTL + P + T + SLACK, "{:?}", start.elapsed());
    assert!(next.fence() > guard.fence());
    mend(&proxy);
}

#[test]
fn r15_no_other_lease_is_ever_shortened() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let guard = ours.with(LockOptions::new().ttl(TTL).hold_at_least(10 * TTL)).lock("a").unwrap();
    let end = record.number("e");
    assert_eq!(end, record.number("g") + micros(10 * TTL), "R16: the longer of the two");
    guard.renew().unwrap();
    let mut line = Line::of("a");
    line.stand(&other);
    let renewed = ours.stats().renewed;
    until(TTL, "the renewal thread comes by", || ours.stats().renewed > renewed);
    assert!(other.try_lock_for("a", 2 * P).unwrap().is_none());
    assert_eq!(record.number("e"), end);
}

#[test]
fn r15_the_fence_and_its_memory_outlast_a_clock_that_went_back() {
    let server = Server::start();
    let manager = manager(server.url());
    let record = Record::of(&server, "a");
    manager.lock("a").unwrap().unlock().unwrap();
    // An hour ahead of the server's clock, as after a step back; and close to what a double can count.
    for ahead in [server_time(&server) + 3_600_000_000, (1 << 53) - 1000] {
        record.set(&[("f", &ahead.to_string()), ("x", &ahead.to_string())]);
        for n in 1..4 {
            let guard = manager.lock("a").unwrap();
            assert_eq!(guard.fence(), ahead + n, "R20: to the last digit");
            guard.unlock().unwrap();
            let keeps: u64 = server.query(&["PEXPIRETIME", &record.key]);
            assert!(keeps >= ahead / 1000 + 3_600_000, "an hour past the fence");
        }
    }
}

#[test]
fn r16_a_lock_that_is_to_be_held_at_least_cools() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    let record = Record::of(&server, "a");
    let least = 3 * T;
    let guard = ours.with(LockOptions::new().ttl(TTL).hold_at_least(least)).lock("a").unwrap();
    let granted = record.number("g");
    guard.unlock().unwrap();
    assert_eq!((record.owner(), record.number("e")), (None, granted + micros(least)));
    assert!(ours.try_lock("a").unwrap().is_none() && other.try_lock("a").unwrap().is_none());
    let mut line = Line::of("a");
    line.stand(&other);
    let next = line.serve(0, least + P + T + SLACK);
    assert!(record.number("g") >= granted + micros(least), "not before its time");
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    next.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r16_a_fixed_lease_that_may_wait_must_outlast_a_check() {
    let server = Server::start();
    // P + 2 T is 1.4 s here.
    let manager = build(
        with_ttl(server.url(), 2 * TTL)
            .check_period(Duration::from_millis(400))
            .command_timeout(Duration::from_millis(500)),
    );
    let short = manager.with(LockOptions::new().fixed_lease(Duration::from_millis(1400)));
    for end in [short.lock("a").err(), short.enqueue("a").err(), short.try_lock_for("a", T).err()] {
        assert!(matches!(end, Some(Error::Config { .. })), "{end:?}");
    }
    assert!(Record::of(&server, "a").fields().is_empty());
    drop(short.try_lock("a").unwrap().expect("for a try it is long enough"));
    let long = manager.with(LockOptions::new().fixed_lease(Duration::from_millis(1500)));
    let holder = manager.lock("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&long);
    holder.unlock().unwrap();
    let guard = line.serve(0, SOON);
    let granted = Record::of(&server, "a").number("g");
    guard.lost().recv_timeout(Duration::from_millis(1500) + SLACK).expect("nobody renews it");
    assert_eq!(Record::of(&server, "a").number("g"), granted);
}

#[test]
fn r19_waiters_that_leave_the_middle_of_a_long_queue_leave_no_trace() {
    let server = Server::start();
    let manager = manager(server.url());
    let record = Record::of(&server, "a");
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<Option<fairlock::Waiter>> = (0..300).map(|_| Some(manager.enqueue("a").unwrap())).collect();
    let all = record.tokens();
    assert_eq!(all.len(), 300);
    let stays = |i: usize| i % 30 == 7;
    for (i, waiter) in waiters.iter_mut().enumerate() {
        if !stays(i) {
            *waiter = None;
        }
    }
    let live: Vec<&String> = all.iter().enumerate().filter(|(i, _)| stays(*i)).map(|(_, token)| token).collect();
    until(SOON, "all have left", || record.starting("w:").len() == live.len());
    let (tokens, n, r) = (record.tokens(), record.number("n"), record.number("r"));
    assert_eq!(r as usize, live.len());
    assert_eq!(n as usize, tokens.len());
    assert!(tokens.len() <= 2 * live.len() + 64, "{} for {}", tokens.len(), live.len());
    let kept: Vec<&String> = tokens.iter().filter(|token| live.contains(token)).collect();
    assert_eq!(kept, live, "in the order in which they stood");

    holder.unlock().unwrap();
    let mut fence = 0;
    for waiter in waiters.into_iter().flatten() {
        let guard = waiter.wait().unwrap();
        assert!(guard.fence() > fence);
        fence = guard.fence();
        guard.unlock().unwrap();
    }
    record.comes_to_rest();
}

#[test]
fn r19_the_last_ones_who_leave_take_the_dead_before_them_along() {
    let server = Server::start();
    let manager = manager(server.url());
    let record = Record::of(&server, "a");
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<_> = (0..20).map(|_| manager.enqueue("a").unwrap()).collect();
    // From the second on, and the last at the end: each leaves a dead entry until the tail is free.
    waiters.drain(1..19);
    until(SOON, "two are left", || record.number("r") == 2);
    assert_eq!(record.tokens().len(), 20);
    waiters.pop();
    until(SOON, "the tail is gone", || record.tokens().len() == 1);
    assert_eq!((record.number("n"), record.number("r")), (1, 1));
    holder.unlock().unwrap();
    waiters.pop().unwrap().wait().unwrap().unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn r19_more_dead_heads_than_one_call_may_pass_are_passed() {
    let server = Server::start();
    let manager = manager(server.url());
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<_> = (0..200).map(|_| manager.enqueue("a").unwrap()).collect();
    // The record keeps as many dead as are alive, and 64.
    waiters.drain(0..130);
    let mut line = Line::of("a");
    line.stand(&manager);
    drop(holder);
    for waiter in waiters {
        waiter.wait().unwrap().unlock().unwrap();
    }
    line.serve(0, P + T + SLACK).unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn r20_scripts_are_never_loaded_and_numbers_never_rounded() {
    let server = Server::start_with(&LOG_ALL);
    let manager = build(builder(server.url()));
    let holder = manager.lock("a").unwrap();
    let mut line = Line::of("a");
    line.stand(&manager);
    assert!(manager.try_lock_for("a", 2 * P).unwrap().is_none());
    holder.renew().unwrap();
    holder.unlock().unwrap();
    line.serve(0, P + T + SLACK).unlock().unwrap();
    let stats: String = server.query(&["INFO", "commandstats"]);
    assert!(!stats.contains("script|load") && !stats.contains("cmdstat_function") && !stats.contains("fcall"));
    for (field, value) in Record::of(&server, "a").fields() {
        assert!(!value.contains("e+"), "{field} is {value}");
    }
}
