//! Faults of the server, for permits, readers and writers: it restarts with its data or without,
//! forgets its scripts, has no memory left, or refuses a command to its user. Also many callers on
//! one connection. On Redis alone, since only Redis has these faults.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockOptions, PreviousHolder, RwLock};

use crate::backend::Backend;
use crate::behaviour::many_holders::plant_holders;
use crate::behaviour::permit_loss::{loses_all_permits, loses_all_readers};
use crate::data_loss::evict_all;
use crate::fixtures::{P, SOON, STEADY_TTL, T, TTL, build, manager, steady, warm_up, with_ttl};
use crate::managers::patient;
use crate::permits::{PermitWaiters, Permits, Want, release};
use crate::sums::Sums;
use crate::support::{EndLoops, Proxy, SLACK, Server, throughout, until};

#[test]
fn p3_an_empty_restart_keeps_waiters_for_permits_in_queue_order() {
    let backend = Backend::redis();
    let server = backend.server().expect("it is a Redis backend");
    loses_all_permits(&backend, || server.restart());
}

#[test]
fn p3_an_empty_restart_keeps_readers_and_writers_in_queue_order() {
    let backend = Backend::redis();
    let server = backend.server().expect("it is a Redis backend");
    loses_all_readers(&backend, || server.restart());
}

#[test]
fn p2_permit_fences_rise_over_an_eviction_that_costs_no_place() {
    let backend = Backend::redis();
    let server = backend.server().expect("it is a Redis backend");
    loses_all_permits(&backend, || evict_all(server));
}

#[test]
fn p1_reader_and_permit_leases_survive_a_restart_with_the_data() {
    // With the default fsync policy the server may keep the newest writes in memory while the disk
    // is busy.
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (holding, waiting) = (build(steady(server.url())), build(steady(server.url())));
    let readers = [&holding, &waiting, &holding].map(|mgr| Want::Read.take(mgr, "r").unwrap());
    let permits = [(&holding, 1), (&waiting, 2)]
        .map(|(mgr, many)| Want::Permits(many, 3).take(mgr, "n").unwrap());
    let mut writers = PermitWaiters::of(&server, "r");
    let mut takers = PermitWaiters::of(&server, "n");
    for (want, many) in [(Want::Write, 1), (Want::Read, 2), (Want::Read, 3)] {
        writers.add(&waiting, want);
        takers.add(&holding, Want::Permits(many, 3));
    }

    server.restart();
    let before = [&holding, &waiting].map(|mgr| mgr.stats().renewals_confirmed);
    until(STEADY_TTL, "the leases are renewed", || {
        holding.stats().renewals_confirmed >= before[0] + 3
            && waiting.stats().renewals_confirmed >= before[1] + 2
    });
    readers
        .iter()
        .chain(&permits)
        .for_each(|guard| guard.check().unwrap());
    assert!(writers.none_ended() && takers.none_ended());
    readers
        .into_iter()
        .chain(permits)
        .for_each(|guard| guard.unlock().unwrap());
    writers.expect_grant(0, 2 * P + SLACK).unlock().unwrap();
    for guard in writers
        .expect_grants(1..3, 2 * P + SLACK)
        .into_iter()
        .chain(takers.expect_grants(0..2, 2 * P + SLACK))
    {
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        guard.unlock().unwrap();
    }
    takers.expect_grant(2, 2 * P + SLACK).unlock().unwrap();
    assert_eq!(
        holding.stats().requeues + waiting.stats().requeues,
        0,
        "every waiter kept its place"
    );
    assert_eq!(holding.stats().losses() + waiting.stats().losses(), 0);
    for name in ["r", "n"] {
        Permits::of(&server, name).comes_to_rest();
    }
}

#[test]
fn no_holder_of_permits_notices_scripts_flushed_in_a_loop() {
    /// Of each of six threads.
    const TURNS: usize = 30;
    let server = Server::start();
    let managers = [patient(server.url()), patient(server.url())];
    let kept = Want::Permits(1, 3).take(&managers[0], "n").unwrap();
    let believed = AtomicU32::new(1);
    let flushes = server.repeat(&["SCRIPT", "FLUSH"], Duration::from_millis(1));
    thread::scope(|scope| {
        for i in 0..6 {
            let mgr = &managers[i % 2];
            let believed = &believed;
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let guard = Want::Permits(1, 3).take(mgr, "n").unwrap();
                    assert!(
                        believed.fetch_add(1, Ordering::SeqCst) < 3,
                        "more permits are held than exist"
                    );
                    mgr.inspect("n").unwrap().expect("it is held");
                    believed.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                    // Readers, writers and downgrades too.
                    let reader = RwLock::downgrade(mgr.rw_lock("r").write().unwrap()).unwrap();
                    reader.renew().unwrap();
                    reader.unlock().unwrap();
                }
            });
        }
    });
    drop(flushes);
    kept.renew().unwrap();
    kept.unlock().unwrap();
    let stats = managers.each_ref().map(|mgr| mgr.stats());
    assert_eq!(
        stats.map(|s| s.losses() + s.renewals_failed + s.requeues),
        [0, 0]
    );
    for name in ["r", "n"] {
        Permits::of(&server, name).comes_to_rest();
    }
}

#[test]
fn a_server_without_memory_grants_permits_only_to_queued_waiters() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let n = Permits::of(&server, "n");
    let holder = Want::Permits(2, 3).take(&ours, "n").unwrap();
    let writer = ours.rw_lock("r").write().unwrap();
    Want::Permits(3, 3)
        .take(&ours, "free")
        .unwrap()
        .unlock()
        .unwrap();
    let unrenewed = ours.with(LockOptions::new().fixed_lease(10 * TTL));
    let cools = ours.with(LockOptions::new().hold_at_least(TTL / 2));
    let cools = Want::Permits(1, 3).take(&cools, "cools").unwrap();
    let _lapses = Want::Permits(3, 3).take(&unrenewed, "lapsed").unwrap();
    let (mut takers, mut readers) = (
        PermitWaiters::of(&server, "n"),
        PermitWaiters::of(&server, "r"),
    );
    takers.add(&other, Want::Permits(2, 3));
    takers.add(&ours, Want::Permits(3, 3));
    for (mgr, want) in [
        (&other, Want::Read),
        (&ours, Want::Read),
        (&other, Want::Write),
    ] {
        readers.add(mgr, want);
    }
    until(SOON, "the server knows the scripts", || {
        ours.stats().renewals_confirmed > 0
    });
    cools.renew().unwrap();
    Permits::of(&server, "lapsed").was_away(P);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);

    // A name that was never acquired, one that was released, one that lapsed, and one that others
    // wait for.
    for name in ["new", "free", "lapsed"] {
        let record = Permits::of(&server, name);
        let before = record.dump();
        let start = Instant::now();
        for end in [
            Want::Permits(1, 3).try_take(&ours, name),
            Want::Permits(1, 3).take(&ours, name).map(Some),
        ] {
            assert!(
                matches!(&end, Err(Error::Refused { code, .. }) if code == "OOM"),
                "{end:?}"
            );
        }
        assert!(start.elapsed() <= T + SLACK, "at once");
        assert_eq!(record.dump(), before);
    }
    let waiters = n.waiters();
    let tokens = n.tokens();
    let end = Want::Permits(1, 3).take(&ours, "n");
    assert!(
        matches!(&end, Err(Error::Refused { code, .. }) if code == "OOM"),
        "{end:?}"
    );
    assert_eq!(
        (n.waiters(), n.tokens()),
        (waiters, tokens),
        "no waiter was added"
    );

    holder.renew().unwrap();
    // The renewal thread's renewals succeed too.
    let renewed = ours.stats().renewals_confirmed;
    until(TTL, "they are renewed", || {
        ours.stats().renewals_confirmed >= renewed + 3
    });
    holder.unlock().unwrap();
    takers.expect_grant(0, P + T + SLACK).unlock().unwrap();
    takers.expect_grant(1, P + T + SLACK).unlock().unwrap();
    let reader = RwLock::downgrade(writer).unwrap();
    let both = readers.expect_grants(0..2, P + T + SLACK);
    assert!(reader.is_held());
    reader.unlock().unwrap();
    both.into_iter().for_each(|reader| reader.unlock().unwrap());
    readers.expect_grant(2, P + T + SLACK).unlock().unwrap();
    cools.unlock().unwrap();
    assert_eq!(ours.stats().requeues + other.stats().requeues, 0);
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    for name in ["n", "r"] {
        Permits::of(&server, name).comes_to_rest();
    }
    Want::Permits(3, 3)
        .take(&ours, "cools")
        .unwrap()
        .unlock()
        .unwrap();
}

#[test]
fn a_permanently_refused_downgrade_is_reported() {
    let server = Server::start();
    let _: () = server.query(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"]);
    let ours = manager(format!("{}?user=u&pass=p", server.url()));
    let writer = ours.rw_lock("r").write().unwrap();
    let _: () = server.query(&["ACL", "SETUSER", "u", "-eval", "-evalsha"]);
    let end = RwLock::downgrade(writer);
    assert!(
        matches!(&end, Err(Error::Refused { code, .. }) if code == "NOPERM"),
        "{end:?}"
    );
    // It could not be released, either.
    let other = manager(server.url());
    let next = Want::Write
        .take_for(&other, "r", TTL + P + SLACK)
        .unwrap()
        .expect("its lease is over");
    next.unlock().unwrap();
}

#[test]
fn a_refused_release_of_some_permits_leaves_the_guard_as_it_was() {
    let server = Server::start();
    let _: () = server.query(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"]);
    let ours = manager(format!("{}?user=u&pass=p", server.url()));
    let mut guard = ours.semaphore("s", 3).acquire(3).unwrap();
    let _: () = server.query(&["ACL", "SETUSER", "u", "-eval", "-evalsha"]);
    let end = guard.release_permits(1);
    assert!(
        matches!(&end, Err(Error::Refused { code, .. }) if code == "NOPERM"),
        "{end:?}"
    );
    assert!(guard.is_held() && guard.permits() == 3);
    let _: () = server.query(&["ACL", "SETUSER", "u", "+eval", "+evalsha"]);
    guard.release_permits(1).unwrap();
    let record = Permits::of(&server, "s");
    assert_eq!((guard.permits(), record.used()), (2, 2));
    guard.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn p9_fifty_threads_share_permits_on_one_connection_without_deadlock() {
    const PERMITS: u32 = 4;
    let server = Server::start();
    let mgr = build(steady(server.url()).lanes(1));
    let held = Want::Permits(1, PERMITS).take(&mgr, "n").unwrap();
    let over = AtomicBool::new(false);
    let believed = AtomicU32::new(1);
    let turns: Vec<AtomicU64> = (0..50).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for (i, turns) in turns.iter().enumerate() {
            let (mgr, over, believed) = (&mgr, &over, &believed);
            scope.spawn(move || {
                let many = 1 + i as u32 % (PERMITS - 1);
                while !over.load(Ordering::Relaxed) {
                    let guard = Want::Permits(many, PERMITS)
                        .take_for(mgr, "n", 4 * SOON)
                        .unwrap();
                    let guard = guard.expect("no deadlock");
                    assert!(believed.fetch_add(many, Ordering::SeqCst) + many <= PERMITS);
                    // Time itself is under test: a second holder would be noticed in it.
                    thread::sleep(Duration::from_millis(1));
                    believed.fetch_sub(many, Ordering::SeqCst);
                    guard.unlock().unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let end = EndLoops(&over);
        throughout(STEADY_TTL, "it is held", || held.check().is_ok());
        let before: Vec<u64> = turns.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        until(P + SLACK, "every thread gets its turn", || {
            turns
                .iter()
                .zip(&before)
                .all(|(n, before)| n.load(Ordering::Relaxed) > *before)
        });
        drop(end);
    });
    assert!(
        mgr.stats().renewals_confirmed >= 2 && mgr.stats().losses() == 0,
        "{:?}",
        mgr.stats()
    );
    held.unlock().unwrap();
    Permits::of(&server, "n").comes_to_rest();
}

/// The timeout is so long that the test would notice a call that waited for one command timeout and
/// then for another. Calls without a reply are ahead of it on the only lane.
#[test]
fn p8_dropping_permits_takes_one_command_timeout_while_redis_is_silent() {
    const T: Duration = Duration::from_secs(2);
    let server = Server::start();
    let builder = with_ttl(server.url(), Duration::from_secs(12))
        .command_timeout(T)
        .horizon(P + 3 * T);
    let ours = build(builder.check_period(P).lanes(1));
    warm_up(&ours);
    let guards = [Want::Permits(2, 3), Want::Read, Want::Write]
        .map(|want| (want, want.take(&ours, &format!("{want:?}"))));
    server.stop();
    thread::scope(|scope| {
        let before = ours.stats().requests;
        for _ in 0..3 {
            scope.spawn(|| Want::Read.try_take(&ours, "x").unwrap_err());
        }
        until(
            SOON,
            "one call has the connection and the others wait for it",
            || ours.stats().requests > before,
        );
        for (want, guard) in guards {
            scope.spawn(move || {
                let start = Instant::now();
                drop(guard.unwrap());
                assert!(
                    start.elapsed() <= T + SLACK,
                    "{want:?} took {:?}",
                    start.elapsed()
                );
            });
        }
    });
    server.cont();
    for want in [Want::Permits(2, 3), Want::Read, Want::Write] {
        Permits::of(&server, &format!("{want:?}")).comes_to_rest();
    }
    Permits::of(&server, "x").comes_to_rest();
}

/// One release serves at most 32 waiters. The process that should send the next request is cut off,
/// so the waiters' own checks must let the others in.
#[test]
fn p4_all_of_many_readers_enter_after_one_bounded_release() {
    const MANY: usize = 150;
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (gone, ours, other) = (
        manager(proxy.url()),
        manager(server.url()),
        manager(server.url()),
    );
    warm_up(&gone);
    let record = Permits::of(&server, "r");
    // The server must know the scripts, so that the first request is the one that takes effect.
    Want::Write.take(&gone, "r").unwrap().unlock().unwrap();
    let writer = Want::Write.take(&gone, "r").unwrap();
    let mut queue = PermitWaiters::of(&server, "r");
    for who in 0..MANY {
        queue.add(if who % 2 == 0 { &ours } else { &other }, Want::Read);
    }
    queue.add(&ours, Want::Write);
    let first = proxy.swallow_silently_when(release("used", "r"));
    let dropping = thread::spawn(move || drop(writer));
    assert!(String::from_utf8_lossy(&first.wait(SOON)).contains("released"));
    proxy.pause_requests();
    let readers = queue.expect_grants(0..MANY, P + T + SLACK);
    assert_eq!((record.used(), record.holding().len()), (MANY as u64, MANY));
    assert!(queue.none_ended() && readers.iter().all(|reader| reader.is_held()));
    dropping.join().unwrap();
    // The rest of the release arrives late, and ends no reader's lease.
    proxy.resume_requests();
    readers.iter().for_each(|reader| reader.check().unwrap());
    drop(readers);
    queue.expect_grant(MANY, P + T + SLACK).unlock().unwrap();
    assert_eq!(ours.stats().requeues + other.stats().requeues, 0);
    record.comes_to_rest();
}

/// Every call reads one page, which has 32 holders or a few more. A call that read all of them would keep the
/// server from all its other clients for that time.
#[test]
fn no_call_reads_more_than_one_page_of_many_holders() {
    let server = Server::start();
    let (ours, other) = (patient(server.url()), patient(server.url()));
    // The check of rights, before the first lock, runs every command.
    warm_up(&other);
    let record = Permits::of(&server, "n");
    let want = |permits| Want::Permits(permits, 1_000_000);
    let [kept, released] = [(); 2].map(|()| want(1).take(&ours, "n").unwrap());
    for ahead in [60_000_000, -1] {
        plant_holders(&server, &record, 20_000, ahead);
        let _: () = server.query(&["CONFIG", "RESETSTAT"]);
        if ahead > 0 {
            assert!(want(999_999).try_take(&other, "n").unwrap().is_none());
            ours.inspect("n").unwrap().expect("it is held");
            assert!(!ours.force_release("n", 1).unwrap());
        } else {
            let most = want(999_000).take_for(&other, "n", SOON).unwrap();
            most.expect("they have lapsed").unlock().unwrap();
        }
        kept.renew().unwrap();
        let calls = |command: &str| server.calls(command);
        for all in ["hgetall", "hkeys", "hvals"] {
            assert_eq!(calls(all), 0, "{all} reads all holders");
        }
        assert!(
            calls("hscan") >= 20_000 / 32 / 2,
            "the holders were looked at"
        );
        assert!(
            calls("hscan") <= calls("evalsha") + calls("eval"),
            "one page in each call"
        );
    }
    kept.unlock().unwrap();
    drop(released);
}

/// Both a call that ends leases and a call that deletes their entries take one page of 32, or a few
/// more, among a hundred thousand.
#[test]
fn a_call_ends_one_page_of_a_hundred_thousand_lapsed_holders() {
    const LAPSED: u32 = 100_000;
    const PAGE: u64 = 2 * 32;
    let server = Server::start();
    let mgr = patient(server.url());
    let record = Permits::of(&server, "n");
    let [_kept, first, second] = [(); 3].map(|()| {
        let fixed = mgr.with(LockOptions::new().fixed_lease(4 * SOON));
        Want::Permits(1, 1_000_000).take(&fixed, "n").unwrap()
    });
    let entries = || server.query::<u64>(&["HLEN", &record.holders]);
    plant_holders(&server, &record, LAPSED, -1);
    let (taken, before) = (record.used(), entries());
    first.unlock().unwrap();
    let ended = taken - 1 - record.used();
    assert!((1..=PAGE).contains(&ended), "{ended} leases ended");
    assert_eq!(entries(), before - 1, "they stay for a ttl");
    // That ttl is over for all, and another look begins.
    let over = "
        local page = { '0' }
        repeat
          page = redis.call('HSCAN', KEYS[1], page[1], 'COUNT', 1000)
          for i = 1, #page[2], 2 do
            if string.sub(page[2][i], 1, 24) == string.rep('0', 24) then
              redis.call('HSET', KEYS[1], page[2][i],
                struct.pack('<d', 1) .. string.sub(page[2][i + 1], 9, 16) .. struct.pack('<I4b', 0, 3)
                  .. string.sub(page[2][i + 1], 22))
            end
          end
        until page[1] == '0'
        local p = redis.call('HGET', KEYS[1], 'p')
        redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 8) .. struct.pack('<d', 1) .. string.sub(p, 17, 46))
        return 1";
    let _: i64 = server.query(&["EVAL", over, "1", &record.holders]);
    let before = entries();
    second.unlock().unwrap();
    let deleted = before - 1 - entries();
    assert!((1..=PAGE).contains(&deleted), "{deleted} entries deleted");
}

/// After a restart the cursor of a look may miss holders. Another look finds them.
#[test]
fn p5_a_look_at_many_holders_survives_a_restart_and_flushed_scripts() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (ours, other) = (build(steady(server.url())), manager(server.url()));
    let record = Permits::of(&server, "n");
    let want = |permits| Want::Permits(permits, 10_000);
    let [kept, released] = [(); 2].map(|()| want(1).take(&ours, "n").unwrap());
    plant_holders(&server, &record, 5_000, -1);
    // A release looks at one page.
    released.unlock().unwrap();
    let state_length = || server.query::<u64>(&["HSTRLEN", &record.holders, "p"]);
    assert!(state_length() > 46, "the look is under way");
    server.restart();
    let _: () = server.query(&["SCRIPT", "FLUSH"]);
    assert!(state_length() > 46, "the look is under way");
    let mut queue = PermitWaiters::of(&server, "n");
    queue.add(&other, want(9_999));
    // Holders that the first look misses are found when its tombstones are over: a ttl later.
    let put_off = Duration::from_micros(50) * 5_000;
    let rest = queue.expect_grant(0, STEADY_TTL + 2 * put_off + 2 * (P + T) + SLACK);
    assert_eq!(record.used(), 10_000);
    kept.renew().unwrap();
    rest.unlock().unwrap();
    kept.unlock().unwrap();
    record.comes_to_rest();
}
