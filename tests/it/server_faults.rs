//! The server refuses requests: transient errors are retried within the bound, all others are
//! returned with the server's own message. On Redis alone, since the messages are its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, Misuse};

use crate::connections::{granted, scripted_server, server_that_answers};
use crate::fixtures::{
    P, Record, SOON, T, TTL, Verb, Waiters, build, builder, manager, steady, warm_up, with_ttl,
};
use crate::support::{
    SLACK, ScriptedReply, ScriptedServer, Server, is_redis_62, scripted_server::is, until,
};

#[track_caller]
fn refused<X: std::fmt::Debug>(end: Result<X, Error>, code_is: &str, says: &str) {
    match end {
        Err(Error::Refused { code, message, .. }) => {
            assert!(
                code == code_is && message.contains(says),
                "{code} {message}"
            );
        }
        other => panic!("{other:?} instead of {code_is}"),
    }
}

/// Asserts that the call was refused several times, by this counter of the server, and still waits.
#[track_caller]
fn waits_on<X>(server: &Server, refusals: &str, waiting: &thread::JoinHandle<X>) {
    let before = server.counted(refusals);
    until(SOON, "it is refused again and again", || {
        server.counted(refusals) >= before + 3
    });
    assert!(!waiting.is_finished());
}

const TRANSIENT: [(&str, &str); 6] = [
    ("LOADING", "Redis is loading the dataset in memory"),
    ("BUSY", "Redis is busy running a script"),
    (
        "MISCONF",
        "Redis is configured to save RDB snapshots, but it is unable to persist to disk",
    ),
    ("NOREPLICAS", "Not enough good replicas to write"),
    ("MASTERDOWN", "Link with MASTER is down"),
    ("READONLY", "You can't write against a read only replica"),
];

#[test]
fn transient_refusals_are_retried_within_the_bound() {
    for (code, words) in TRANSIENT {
        let refuse = format!("{code} {words}");
        let (_fake, manager) = server_that_answers(move |n| {
            if n < 3 {
                ScriptedReply::error(&refuse)
            } else {
                granted(7)
            }
        });
        assert_eq!(
            manager.try_lock("a").unwrap().expect("it is free").fence(),
            7,
            "{code}"
        );
        let refuse = format!("{code} {words}");
        let (_fake, manager) = server_that_answers(move |n| {
            if n < 3 {
                ScriptedReply::error(&refuse)
            } else {
                granted(7)
            }
        });
        assert_eq!(manager.lock("a").unwrap().fence(), 7, "{code}");
    }
}

#[test]
fn p8_lasting_transient_refusals_end_in_the_servers_words() {
    const OUTAGE: Duration = Duration::from_secs(1);
    // With a short timeout, a loaded machine could end the call with a timeout instead.
    const T: Duration = crate::fixtures::DEFAULT_COMMAND_TIMEOUT;
    thread::scope(|scope| {
        for (code, words) in TRANSIENT {
            scope.spawn(move || {
                let scripted_server =
                    scripted_server(move |_| ScriptedReply::error(&format!("{code} {words}")));
                let manager =
                    build(LockManager::builder(scripted_server.url()).outage_limit(OUTAGE));
                let start = Instant::now();
                refused(manager.try_lock("a"), code, words);
                assert!(start.elapsed() <= 2 * T + SLACK);
                let start = Instant::now();
                refused(manager.lock("a"), code, words);
                assert!(start.elapsed() <= OUTAGE + T + SLACK);
            });
        }
    });
}

/// Each reply arrives just within its timeout and makes the client send another request.
#[test]
fn p8_calls_end_in_time_though_every_reply_demands_another() {
    const T: Duration = Duration::from_secs(2);
    type Verb = fn(&LockManager) -> Result<bool, Error>;
    thread::scope(|scope| {
        for status in ["late", "more"] {
            scope.spawn(move || {
                let scripted_server = scripted_server(move |_| {
                    // Time itself is under test: the server is slow.
                    thread::sleep(T * 19 / 20);
                    let now = std::time::UNIX_EPOCH
                        .elapsed()
                        .expect("it is after 1970")
                        .as_micros() as i64;
                    ScriptedReply::array([
                        ScriptedReply::bulk(status),
                        ScriptedReply::integer(now),
                        ScriptedReply::integer(1),
                    ])
                });
                let builder = with_ttl(scripted_server.url(), Duration::from_secs(15))
                    .command_timeout(T)
                    .horizon(P + 3 * T);
                let builder = builder.check_period(P).outage_limit(T);
                let mut calls: Vec<(Verb, Duration)> = vec![
                    (|m| m.try_lock("a").map(|guard| guard.is_some()), 2 * T),
                    (
                        |m| m.try_lock_for("b", T / 2).map(|guard| guard.is_some()),
                        T / 2 + T,
                    ),
                ];
                if status == "late" {
                    // "more" is progress, and a wait without a deadline goes on.
                    calls.push((|m| m.lock("c").map(|_| true), T + T));
                }
                thread::scope(|scope| {
                    for (call, bound) in calls {
                        // A manager of its own: calls on one connection would wait for each
                        // other's replies.
                        let manager = build(builder.clone());
                        scope.spawn(move || {
                            let start = Instant::now();
                            let end = call(&manager);
                            let took = start.elapsed();
                            let expected = match status {
                                "more" => matches!(end, Ok(false)),
                                _ => matches!(end, Err(Error::Unavailable { .. })),
                            };
                            assert!(expected, "{status}: {end:?}");
                            assert!(
                                took <= bound + SLACK,
                                "{status}: {took:?} where {bound:?} is promised"
                            );
                        });
                    }
                });
            });
        }
    });
}

#[test]
fn other_refusals_are_returned_at_once() {
    for code in ["ERR", "NOPERM", "OOM", "WRONGTYPE", "NOAUTH", "CROSSSLOT"] {
        let (scripted_server, manager) = server_that_answers(move |_| {
            ScriptedReply::error(&format!("{code} whatever the server says"))
        });
        refused(manager.try_lock("a"), code, "whatever the server says");
        refused(manager.lock("a"), code, "whatever the server says");
        let asked = scripted_server.count("EVALSHA") + scripted_server.count("EVAL");
        assert!(asked <= 4, "the request was not repeated: {asked}");
    }
}

#[test]
fn waits_outlast_a_busy_server_or_end_in_its_words() {
    // The name that all servers know.
    let server = Server::start_with(&["--lua-time-limit", "20"]);
    let patient = manager(server.url());
    let hasty = build(builder(server.url()).outage_limit(Duration::from_secs(1)));
    let holder = patient.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&patient);
    let mut short = Waiters::of("a");
    short.add(&hasty);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connection();
            let busy = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .query::<()>(&mut connection);
            assert!(busy.is_err(), "it was killed");
        });
        until(
            SOON,
            "the server is busy",
            || matches!(server.try_query::<()>(&["PING"]), Err(e) if e.code() == Some("BUSY")),
        );
        refused(patient.try_lock("b"), "BUSY", "");
        let (_, end) = short.next_end(Duration::from_secs(1) + SLACK);
        refused(end, "BUSY", "");
        let _: () = server.query(&["SCRIPT", "KILL"]);
    });
    drop(holder);
    queue.expect_grant(0, TTL + P + SLACK).unlock().unwrap();
    patient
        .try_lock("b")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn a_server_that_cannot_save_is_reported_and_recovers() {
    // Root may write to any directory, but this one can hold no file. 6.2 protects no setting.
    let server = if is_redis_62() {
        Server::start()
    } else {
        Server::start_with(&["--enable-protected-configs", "yes"])
    };
    let manager = build(steady(server.url()));
    warm_up(&manager);
    let held = manager.lock("held").unwrap();
    let _: () = server.query(&["CONFIG", "SET", "dir", "/proc"]);
    let _: () = server.query(&["CONFIG", "SET", "save", "3600 1"]);
    let _: String = server.query(&["BGSAVE"]);
    until(SOON, "the save has failed", || {
        let info: String = server.query(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    refused(manager.try_lock("a"), "MISCONF", "RDB");
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.lock("a").unwrap().unlock()
    });
    waits_on(&server, "total_error_replies", &waiting);
    let _: () = server.query(&["CONFIG", "SET", "save", ""]);
    waiting.join().unwrap().unwrap();
    held.check().unwrap();
    held.unlock().unwrap();
}

#[test]
fn a_server_lacking_replicas_is_reported_and_recovers() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    warm_up(&manager);
    let held = manager.lock("held").unwrap();
    let _: () = server.query(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let before = Record::of(&server, "a").dump();
    refused(manager.try_lock("a"), "NOREPLICAS", "replicas");
    assert_eq!(Record::of(&server, "a").dump(), before);
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.lock("a").unwrap().unlock()
    });
    waits_on(&server, "total_error_replies", &waiting);
    let _: () = server.query(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    waiting.join().unwrap().unwrap();
    held.check().unwrap();
    held.unlock().unwrap();
}

#[test]
fn waiters_outlast_a_loading_server_and_keep_their_places() {
    // Loading these keys takes two seconds or more, because each is slow. The server answers
    // clients in between: 6.2 after every 2 MiB, so there the keys must be large.
    let (answers, size) = if is_redis_62() {
        (["--rdbcompression", "no"], 20_000)
    } else {
        (["--loading-process-events-interval-bytes", "1024"], 100)
    };
    let server = Server::start_with(&[&["--key-load-delay", "1000"], &answers[..]].concat());
    let (ours, other) = (build(steady(server.url())), build(steady(server.url())));
    warm_up(&ours);
    let holder = other.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&ours);
    let fill = "for i = 1, 2000 do redis.call('SET', 'other:' .. i, string.rep('x', ARGV[1])) end";
    let _: () = server.query(&["EVAL", fill, "0", &size.to_string()]);
    let _: () = server.query(&["SAVE"]);
    thread::scope(|scope| {
        let restart = scope.spawn(|| server.restart());
        until(
            SOON,
            "the server reports that it is loading",
            || matches!(ours.try_lock("b"), Err(Error::Refused { code, .. }) if code == "LOADING"),
        );
        assert!(!restart.is_finished());
        restart.join().unwrap();
    });
    holder.renew().expect("its lease has not lapsed");
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    assert_eq!(ours.stats().requeues, 0);
    ours.try_lock("b")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}

#[test]
fn a_server_with_too_many_clients_is_reported_and_recovers() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    // The test's own connection is open already, and takes the only slot.
    let _: () = server.query(&["CONFIG", "SET", "maxclients", "1"]);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    refused(manager.try_lock("a"), "ERR", "max number of clients");
    refused(
        LockManager::connect(server.url()),
        "ERR",
        "max number of clients",
    );
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.lock("a").unwrap().unlock()
    });
    waits_on(&server, "rejected_connections", &waiting);
    let _: () = server.query(&["CONFIG", "SET", "maxclients", "1000"]);
    waiting.join().unwrap().unwrap();
}

#[test]
fn r17_a_demoted_master_has_all_its_connections_replaced() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    warm_up(&manager);
    let held = manager.lock("held").unwrap();
    until(
        SOON,
        "the subscription and the renewal thread are connected",
        || manager.stats().renewals_confirmed > 0 && subscriptions(&server).len() == 1,
    );
    let ids = ids(&server);
    let subscription = subscriptions(&server);
    let _: () = server.query(&["REPLICAOF", "127.0.0.1", "1"]);
    refused(manager.try_lock("a"), "READONLY", "");
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.lock("a").unwrap().unlock()
    });
    waits_on(&server, "total_error_replies", &waiting);
    let _: () = server.query(&["REPLICAOF", "NO", "ONE"]);
    waiting.join().unwrap().unwrap();
    held.renew().unwrap();
    // R17 (subscription): the connections of the lanes, the renewal thread and the subscription are
    // all replaced; a lane's when it is used again.
    warm_up(&manager);
    until(SOON, "every connection was replaced", || {
        let now = self::ids(&server);
        now.iter().all(|id| !ids.contains(id)) && subscriptions(&server).len() == 1
    });
    assert_ne!(subscriptions(&server), subscription);
    held.unlock().unwrap();
}

#[test]
fn a_server_without_memory_grants_locks_only_to_queued_waiters() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let holder = ours.lock("a").unwrap();
    let free = ours.lock("free").unwrap();
    free.unlock().unwrap();
    let unrenewed = ours.with(LockOptions::new().fixed_lease(10 * TTL));
    let _lapses = unrenewed.lock("lapsed").unwrap();
    Record::of(&server, "lapsed").set(&[("e", "1"), ("a", "0 1 0123456789abcdef 2000 0 0")]);
    let mut queue = Waiters::of("a");
    queue.add(&other);
    queue.add(&ours);
    until(SOON, "the server knows the scripts", || {
        ours.stats().renewals_confirmed > 0
    });
    let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);

    let a = Record::of(&server, "a");
    let tokens = a.tokens();
    // A name that was never acquired, one that was released, and one that lapsed.
    for name in ["new", "free", "lapsed"] {
        let before = Record::of(&server, name).dump();
        let start = Instant::now();
        refused(ours.try_lock(name), "OOM", "memory");
        refused(ours.lock(name), "OOM", "memory");
        assert!(start.elapsed() <= T + SLACK, "at once");
        assert_eq!(Record::of(&server, name).dump(), before);
    }
    let start = Instant::now();
    refused(ours.enqueue("a"), "OOM", "memory");
    assert!(start.elapsed() <= T + SLACK, "at once");
    assert_eq!(
        (a.tokens(), a.number("r")),
        (tokens, 2),
        "no waiter was added"
    );

    holder.renew().unwrap();
    // The renewal thread's renewals succeed too.
    let renewed = ours.stats().renewals_confirmed;
    until(TTL, "it is renewed", || {
        ours.stats().renewals_confirmed > renewed
    });
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    assert_eq!(ours.stats().requeues + other.stats().requeues, 0);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    ours.lock("a").unwrap().unlock().unwrap();
    a.comes_to_rest();
}

/// Otherwise the places of a process would be void, and its waiters would not find lost grants.
#[test]
fn r20_checks_are_carried_out_without_memory() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let _held = (
        ours.lock("m").unwrap(),
        ours.semaphore("s", 1).acquire(1).unwrap(),
    );
    let _waiters = (
        other.enqueue("m").unwrap(),
        other.semaphore("s", 1).enqueue(1).unwrap(),
    );
    // A check writes the stamp of its manager, and nothing else does here.
    let stamps = || {
        ["m", "s"].map(|name| {
            let key = format!("fairlock:{{{name}}}");
            let mut fields: BTreeMap<String, Vec<u8>> = server.query(&["HGETALL", &key]);
            fields.retain(|field, _| field.starts_with("m:"));
            fields
        })
    };
    let all_change = || {
        let before = stamps();
        until(2 * P + T + SLACK, "each name is checked", || {
            before
                .iter()
                .zip(stamps())
                .all(|(before, now)| *before != now)
        });
    };
    all_change();
    let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    all_change();
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
}

#[test]
fn r20_renewals_that_go_together_are_carried_out_without_memory() {
    let server = Server::start();
    let ours = manager(server.url());
    let held: Vec<_> = (0..10)
        .map(|i| ours.lock(format!("a{i}")).unwrap())
        .collect();
    let renewed_again = || {
        let before = ours.stats().renewals_confirmed;
        until(2 * SOON, "all of them are renewed", || {
            ours.stats().renewals_confirmed >= before + 2 * held.len() as u64
        });
    };
    renewed_again();
    let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    renewed_again();
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(ours.stats().renewals_failed, 0);
}

#[test]
fn a_key_without_rights_harms_no_renewal_of_another() {
    let server = Server::start();
    let rules = [
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">p",
        "~fairlock:*",
        "&*",
        "+@all",
    ];
    let _: () = server.query(&rules);
    let ours = manager(format!("{}?user=u&pass=p", server.url()));
    let held: Vec<_> = (0..10)
        .map(|i| ours.lock(format!("a{i}")).unwrap())
        .collect();
    // Only this user's keys change, not its connections.
    let keys = (1..10).map(|i| format!("~fairlock:{{a{i}}}*"));
    let rules = ["ACL", "SETUSER", "u", "resetkeys"].map(str::to_owned);
    let rules: Vec<String> = rules.into_iter().chain(keys).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let _: () = server.query(&rules);
    let loss = held[0].lost().recv_timeout(SOON);
    assert_eq!(
        loss.expect("it cannot be renewed").reason,
        LossReason::Expired
    );
    assert!(held[1..].iter().all(|guard| guard.is_held()));
}

#[test]
fn r17_a_wait_without_channel_rights_names_the_missing_right() {
    let server = Server::start();
    let _: () = server.query(&[
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">p",
        "~*",
        "resetchannels",
        "+@all",
    ]);
    let ours = manager(format!("{}?user=u&pass=p", server.url()));
    let other = manager(server.url());
    warm_up(&other);
    // Acquiring a free lock needs no channel.
    ours.lock("a").unwrap().unlock().unwrap();
    let holder = other.lock("a").unwrap();
    for wait in [
        |m: &LockManager| m.try_lock_for("a", SOON).map(drop),
        |m: &LockManager| m.lock("a").map(drop),
    ] {
        let start = Instant::now();
        refused(wait(&ours), "NOPERM", "&fairlock:grants:*");
        assert!(start.elapsed() <= 3 * T + SLACK);
    }
    assert!(ours.try_lock("a").unwrap().is_none());
    assert_eq!(other.inspect("a").unwrap().expect("it is held").waiters, 0);
    // With the right, it can wait. Within a check period of the refusal, it still gets the old
    // error.
    let _: () = server.query(&["ACL", "SETUSER", "u", "&fairlock:grants:*"]);
    until(P + SLACK, "it may wait", || ours.enqueue("a").is_ok());
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
}

#[test]
fn a_user_without_script_or_key_rights_gets_noperm() {
    let server = Server::start();
    let _: () = server.query(&["ACL", "SETUSER", "u", "on", ">p", "~other:*", "&*", "+@all"]);
    let _: () = server.query(&[
        "ACL", "SETUSER", "v", "on", ">p", "~*", "&*", "+@all", "-evalsha", "-eval",
    ]);
    for user in ["u", "v"] {
        let manager = manager(format!("{}?user={user}&pass=p", server.url()));
        refused(manager.try_lock("a"), "NOPERM", "");
        refused(manager.lock("a"), "NOPERM", "");
    }
    assert_eq!(Record::of(&server, "a").dump(), [None, None]);
}

#[test]
fn a_key_of_another_type_is_refused_and_never_written() {
    let server = Server::start();
    let manager = manager(server.url());
    warm_up(&manager);
    let record = Record::of(&server, "a");
    let _: () = server.query(&["SET", &record.key, "theirs"]);
    let before = record.dump();
    refused(manager.try_lock("a"), "WRONGTYPE", "");
    refused(manager.lock("a"), "WRONGTYPE", "");
    refused(manager.inspect("a"), "WRONGTYPE", "");
    refused(manager.force_release("a", 1), "WRONGTYPE", "");
    assert_eq!(record.dump(), before);
    assert_eq!(
        server.query::<i64>(&["PTTL", &record.key]),
        -1,
        "the key got an expiry"
    );
    let _: () = server.query(&["DEL", &record.key]);

    // The queue's key, which only a caller that must wait uses.
    let holder = manager.lock("a").unwrap();
    let _: () = server.query(&["SET", &record.queue, "theirs"]);
    let before = record.dump();
    refused(manager.lock("a"), "WRONGTYPE", "");
    refused(manager.enqueue("a"), "WRONGTYPE", "");
    let [hash, list] = record.dump();
    assert_eq!(list, before[1]);
    assert!(
        record.starting("w:").is_empty() && record.starting("m:").is_empty(),
        "{hash:?}"
    );
    assert_eq!((record.field("n"), record.field("r")), (None, None));
    holder.unlock().unwrap();
}

#[test]
fn tryagain_makes_the_caller_send_the_one_key_form() {
    let scripted_server = ScriptedServer::start(|words| {
        if is(words, "EVALSHA") && words[2] == b"2" {
            ScriptedReply::error("TRYAGAIN Multiple keys request during rehashing of slot")
        } else if Verb::Acquire.is_in(words, "a") || words.len() == 12 {
            granted(7)
        } else {
            ScriptedReply::polite(words)
        }
    });
    let manager = manager(scripted_server.url());
    let guard = manager.try_lock("a").unwrap().expect("it is free");
    assert_eq!(guard.fence(), 7);
    let singles = scripted_server
        .commands()
        .iter()
        .filter(|words| words[0] == "EVALSHA" && words[2] == "1")
        .count();
    assert_eq!(singles, 1);
    // A release of a lock without waiters uses the one-key form too.
    let released = ScriptedReply::array([
        ScriptedReply::bulk("released"),
        ScriptedReply::integer(1),
        ScriptedReply::integer(0),
    ]);
    let released = Arc::new(released);
    let scripted_server = ScriptedServer::start(move |words| {
        if is(words, "EVALSHA") && words[2] == b"2" {
            ScriptedReply::error("TRYAGAIN Multiple keys request during rehashing of slot")
        } else if is(words, "EVALSHA") && words.last().is_some_and(|mode| mode == b"used") {
            (*released).clone()
        } else if is(words, "EVALSHA") {
            granted(7)
        } else {
            ScriptedReply::polite(words)
        }
    });
    let manager = self::manager(scripted_server.url());
    manager.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn a_script_forgotten_by_the_server_is_sent_whole_once() {
    let known = Arc::new(AtomicBool::new(false));
    let sources = Arc::new(AtomicUsize::new(0));
    let scripted_server = ScriptedServer::start({
        let known = Arc::clone(&known);
        let sources = Arc::clone(&sources);
        move |words| {
            if is(words, "EVAL") {
                known.store(true, Ordering::SeqCst);
                sources.fetch_add(1, Ordering::SeqCst);
                granted(7)
            } else if is(words, "EVALSHA") && words.len() == 13 {
                if known.load(Ordering::SeqCst) {
                    granted(8)
                } else {
                    ScriptedReply::error("NOSCRIPT No matching script. Please use EVAL.")
                }
            } else {
                ScriptedReply::polite(words)
            }
        }
    });
    let manager = manager(scripted_server.url());
    let first = manager.try_lock("a").unwrap().expect("it is free");
    let second = manager.try_lock("b").unwrap().expect("it is free");
    assert_eq!((first.fence(), second.fence()), (7, 8));
    assert_eq!(sources.load(Ordering::SeqCst), 1);
    // R20 (write order): no SCRIPT LOAD or FUNCTION, since a failover or a flush would undo it.
    assert_eq!(
        scripted_server.count("SCRIPT")
            + scripted_server.count("FUNCTION")
            + scripted_server.count("FCALL"),
        0
    );
}

#[test]
fn a_server_too_old_is_refused_as_a_configuration_error() {
    let says = |version: &'static str| {
        ScriptedServer::start(move |words| {
            if is(words, "HELLO") {
                let pairs = ["server", "redis", "version", version];
                ScriptedReply::array(pairs.map(ScriptedReply::bulk))
            } else {
                ScriptedReply::polite(words)
            }
        })
    };
    for version in ["6.0.16", "6.1.9", "5.0.14", "2.8"] {
        let scripted_server = says(version);
        match LockManager::connect(scripted_server.url()) {
            Err(Error::Misused {
                misuse: Misuse::Server,
                message,
                ..
            }) => {
                assert!(
                    message.contains(version) && message.contains("6.2"),
                    "{message}"
                );
            }
            other => panic!("{version} gave {other:?}"),
        }
    }
    for version in ["6.2.0", "7.0.15", "8.2.1", "10.0"] {
        LockManager::connect(says(version).url()).unwrap();
    }
    let ancient = ScriptedServer::start(|words| {
        if is(words, "HELLO") {
            ScriptedReply::error("ERR unknown command `HELLO`, with args beginning with: `2`, ")
        } else if is(words, "INFO") {
            ScriptedReply::bulk("# Server\r\nredis_version:5.0.14\r\n")
        } else {
            ScriptedReply::polite(words)
        }
    });
    assert!(matches!(
        LockManager::connect(ancient.url()),
        Err(Error::Misused { .. })
    ));
}

fn ids(server: &Server) -> Vec<String> {
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    server
        .clients()
        .iter()
        .filter(|line| !line.contains("cmd=replicaof"))
        .map(id)
        .collect()
}

fn subscriptions(server: &Server) -> Vec<String> {
    let listening = |line: &&String| line.contains(" sub=1 ");
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    server.clients().iter().filter(listening).map(id).collect()
}
