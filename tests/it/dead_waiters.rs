//! So many dead waiters are in front of a free lock that skipping them takes longer than a call
//! has. On Redis alone: a scripted server has no end of them, and a real one gets its many by a
//! script.

use std::{
    thread,
    time::{Duration, Instant},
};

use fairlock::{LockManager, Result};

use crate::{
    connections::{granted, permits_granted, scripted_server, server_that_answers},
    fixtures::{Record, SOON, build, with_ttl},
    support::{SLACK, ScriptedReply, Server, until, until_some},
};

const T: Duration = Duration::from_millis(500);
/// The outage limit of [`server_that_answers`].
const OUTAGE: Duration = Duration::from_secs(1);

/// The answer of a script that passed over as many dead waiters as one call may.
fn more() -> ScriptedReply {
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .expect("it is after 1970")
        .as_micros() as i64;
    // Time itself is under test: a script needs a moment for that.
    thread::sleep(Duration::from_millis(1));
    ScriptedReply::array([
        ScriptedReply::bulk("more"),
        ScriptedReply::integer(now),
        ScriptedReply::integer(1),
    ])
}

/// Makes each call on a thread of its own. Each must return that the lock was not taken, and within
/// its bound.
fn assert_none_in_time(mgr: &LockManager, calls: &[(&str, Duration, Call)]) {
    thread::scope(|scope| {
        for (what, bound, call) in calls {
            scope.spawn(move || {
                let start = Instant::now();
                let taken = call(mgr);
                let took = start.elapsed();
                assert!(!taken.unwrap_or_else(|e| panic!("{what}: {e}")), "{what}");
                assert!(took <= *bound + SLACK, "{what}: {took:?}");
            });
        }
    });
}

/// True if the lock was taken.
type Call = fn(&LockManager) -> Result<bool>;

#[test]
fn p8_tries_and_timed_waits_behind_endless_dead_waiters_are_none() {
    const WAIT: Duration = Duration::from_millis(700);
    let server = scripted_server(|_| more());
    let builder = with_ttl(server.url(), Duration::from_secs(15)).command_timeout(T);
    let mgr = build(builder.outage_limit(OUTAGE).lanes(16));
    let calls: &[(&str, Duration, Call)] = &[
        ("try_lock", 2 * T, |m| Ok(m.try_lock("a")?.is_some())),
        ("try_acquire", 2 * T, |m| {
            Ok(m.semaphore("s", 2).try_acquire(1)?.is_some())
        }),
        ("try_write", 2 * T, |m| {
            Ok(m.rw_lock("w").try_write()?.is_some())
        }),
        ("try_lock_all", 3 * T, |m| {
            Ok(m.try_lock_all(["b", "c"])?.is_some())
        }),
        ("try_lock_for", WAIT + T, |m| {
            Ok(m.try_lock_for("d", WAIT)?.is_some())
        }),
        ("try_read_for", WAIT + T, |m| {
            Ok(m.rw_lock("r").try_read_for(WAIT)?.is_some())
        }),
        ("try_lock_all_for", WAIT + 2 * T, |m| {
            Ok(m.try_lock_all_for(["e", "f"], WAIT)?.is_some())
        }),
        ("longer than the outage limit", 2 * OUTAGE + T, |m| {
            Ok(m.try_lock_for("g", 2 * OUTAGE)?.is_some())
        }),
    ];
    assert_none_in_time(&mgr, calls);
    assert_eq!(mgr.stats().acquisitions_timed_out, calls.len() as u64);
}

#[test]
fn a_wait_goes_on_while_dead_waiters_are_skipped() {
    let start = Instant::now();
    let server = |granted: fn(i64) -> ScriptedReply| {
        server_that_answers(move |n| match start.elapsed() > 2 * OUTAGE {
            true => granted(100 + n as i64),
            false => more(),
        })
    };
    let (_server, mgr) = server(granted);
    let (_other, permits) = server(permits_granted);
    thread::scope(|scope| {
        scope.spawn(|| mgr.lock("a").unwrap().check().unwrap());
        scope.spawn(|| mgr.enqueue("b").unwrap().wait().unwrap().check().unwrap());
        scope.spawn(|| mgr.lock_all(["c", "d"]).unwrap().check().unwrap());
        scope.spawn(|| {
            let semaphore = permits.semaphore("s", 2);
            semaphore.acquire(1).unwrap().check().unwrap();
        });
    });
    assert!(start.elapsed() > 2 * OUTAGE);
}

#[test]
fn a_lock_behind_a_hundred_thousand_dead_waiters_is_taken() {
    const MANY: u64 = 100_000;
    const AT_ONCE: u64 = 5_000;
    const QUEUE_UP: &str = "
        for i = ARGV[2] + 1, ARGV[3] do
          local token = string.format('%032x', i)
          redis.call('HSET', KEYS[1], 'w:' .. token, i .. ARGV[1])
          redis.call('RPUSH', KEYS[2], token)
        end
        return 1";
    // Without its owner, so that nobody holds the lock.
    const COPY: &str = "
        redis.call('HSET', KEYS[2], unpack(redis.call('HGETALL', KEYS[1])))
        return redis.call('HDEL', KEYS[2], 'o')";
    const PUT_IN_PLACE: &str = "
        local left = redis.call('PTTL', KEYS[1])
        for i = 1, 2 do
          redis.call('RENAME', KEYS[i + 2], KEYS[i])
          redis.call('PEXPIRE', KEYS[i], left)
        end
        return 1";
    let server = Server::start();
    let [record, copy] = ["a", "copy"].map(|name| Record::of(&server, name));
    // A lost reply would not be counted.
    let builder = LockManager::builder(server.url()).command_timeout(2 * T);
    let mgr = build(builder);
    let holder = mgr.lock("a").unwrap();
    let waiter = mgr.enqueue("a").unwrap();
    let queued = record.starting("w:").pop().unwrap();
    let request = record.field(&queued).unwrap();
    drop(waiter);
    // A drop does not wait for its reply. Its release must not meet what is written below.
    until(SOON, "the waiter has left", || {
        record.starting("w:").is_empty()
    });
    // The manager may ask for the record at any time, so it is written in one step. Waiters like that
    // one, but of a process that has no stamp.
    let _: i64 = server.query(&["EVAL", COPY, "2", &record.key, &copy.key]);
    let words: Vec<&str> = request.split(' ').collect();
    let request = request.replace(words[2], "gone");
    let request = request.strip_prefix(words[0]).unwrap();
    let [key, queue] = [&copy.key, &copy.queue].map(String::as_str);
    for before in (0..MANY).step_by(AT_ONCE as usize) {
        let [before, last] = [before, before + AT_ONCE].map(|n| n.to_string());
        server.query::<()>(&["EVAL", QUEUE_UP, "2", key, queue, request, &before, &last]);
    }
    let many = &*MANY.to_string();
    copy.set(&[
        ("e", "0"),
        ("n", many),
        ("r", many),
        ("q", many),
        ("h", "0"),
    ]);
    let _: i64 = server.query(&[
        "EVAL",
        PUT_IN_PLACE,
        "4",
        &record.key,
        &record.queue,
        key,
        queue,
    ]);
    drop(holder);
    let guard = until_some(SOON, "all are skipped", || mgr.try_lock("a").unwrap());
    guard.unlock().unwrap();
    record.comes_to_rest();
    // The renewal thread may not have read the last reply yet.
    until(SOON, "all are counted", || mgr.stats().dead_waiters == MANY);
}
