//! The answers of `inspect` and `list`, and the records that they leave alone.

use std::{
    collections::HashSet,
    process,
    time::{Duration, SystemTime},
};

use fairlock::{
    Error, LockManager, LockOptions, Misuse, PreviousHolder, Result,
    inspect::{Kind, LockInfo, LockState, Party},
};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{Record, SOON, build, server_time};
use crate::managers::{self, patient, patient_builder};
use crate::support::{SLACK, until};

const TTL: Duration = Duration::from_secs(2);

on_both_stores! {
    a_held_lock_shows_its_holder_fence_and_time_left,
    unused_names_are_not_shown,
    a_lapsed_lease_is_shown_with_its_holder_and_its_end,
    a_holder_that_passes_the_lock_on_or_keeps_it_says_so,
    lapsed_permits_are_shown_beside_live_ones,
    a_noticed_lapse_of_permits_is_shown_until_a_release,
    the_end_of_the_holder_before_is_shown,
    the_end_of_a_holder_that_cools_or_lapsed_is_shown,
    the_number_served_rises_with_each_hand_over,
    an_awaited_lock_without_a_holder_is_shown_as_free,
    the_queue_is_shown_in_order_with_its_labels,
    a_long_queue_is_counted_fully_but_shown_partly,
    list_matches_globs_against_names,
    a_glob_matches_characters_whatever_their_encoding_in_keys,
    list_shows_each_name_once_and_holds_no_connection,
    list_may_release_what_it_lists,
    list_skips_foreign_keys,
    list_ends_after_an_error,
    p10_another_kind_is_refused_by_name_without_a_write,
    p10_another_version_is_refused_by_name_without_a_write,
    waits_end_when_their_name_becomes_another_kind,
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

/// Checks its queues so seldom that a test can see a queue before any check.
fn slow(backend: &Backend) -> LockManager {
    LockManager::builder(backend)
        .options(LockOptions::new().ttl(Duration::from_secs(60)))
        .check_period(Duration::from_secs(30))
        .horizon(Duration::from_secs(32))
        .build()
        .unwrap()
}

fn labelled(mgr: &LockManager, label: &str) -> LockManager {
    mgr.with(LockOptions::new().label(label))
}

fn look(mgr: &LockManager) -> LockInfo {
    mgr.inspect("n")
        .unwrap()
        .expect("n is held, cooling or awaited")
}

fn names(mgr: &LockManager, pattern: &str) -> Vec<String> {
    let mut names: Vec<String> = mgr
        .list(pattern)
        .map(|info| info.unwrap().name.to_string())
        .collect();
    names.sort();
    names
}

fn a_held_lock_shows_its_holder_fence_and_time_left(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let before = SystemTime::now();
    let guard = labelled(&mgr, "why").lock("n").unwrap();
    let info = look(&other);
    assert_eq!((&*info.name, &info.kind), ("n", &Kind::Mutex));
    assert_eq!((info.state, info.fence), (LockState::Held, guard.fence()));
    assert!(info.time_left > Duration::ZERO && info.time_left <= TTL);
    assert_eq!((info.waiters, info.queue.len()), (0, 0));
    let holder = info.holder.unwrap();
    assert_eq!(
        (holder.pid, &*holder.label, holder.ttl),
        (process::id(), "why", TTL)
    );
    // The server's clock is this host's, in whole µs.
    assert!(holder.since + Duration::from_micros(1) >= before && holder.since <= SystemTime::now());
    // Looking changes nothing.
    let record = Record::of(backend, "n").fields();
    look(&other);
    assert_eq!(Record::of(backend, "n").fields(), record);
}

fn unused_names_are_not_shown(backend: &Backend) {
    let mgr = manager(backend);
    assert_eq!(mgr.inspect("n").unwrap(), None);
    assert_eq!(backend.keys("n"), [""; 0]);
    mgr.lock("n").unwrap().unlock().unwrap();
    // The record outlives the lock, because it keeps the fence.
    assert_eq!(backend.keys("n"), ["fairlock:{n}"]);
    assert_eq!(mgr.inspect("n").unwrap(), None);
    assert_eq!(mgr.list("*").count(), 0);
}

fn a_holder_that_passes_the_lock_on_or_keeps_it_says_so(backend: &Backend) {
    let mgr = slow(backend);
    let guard = labelled(&mgr, "first").lock("n").unwrap();
    let record = Record::of(backend, "n");
    let request = record.field("a").expect("it is held");
    for (handovers, hands_over, keeps) in [
        ("", false, false),
        (" 16 0", true, false),
        (" 0 1", false, false),
        (" 16 1", true, false),
        (" 65535 1", true, false),
        (" 65535 2", true, true),
    ] {
        record.set(&[("a", &format!("{request}{handovers}"))]);
        let info = look(&mgr);
        let holder = info.holder.as_ref().expect("it is held");
        assert_eq!(
            (holder.hands_over, holder.keeps),
            (hands_over, keeps),
            "{handovers}"
        );
        assert_eq!((&*holder.label, info.state), ("first", LockState::Held));
        let shown = info.to_string();
        let by = if keeps { "held or kept by" } else { "held by" };
        assert!(
            shown.starts_with(&format!("\"n\": mutex, {by} process ")),
            "{shown}"
        );
        assert_eq!(
            shown.contains("label \"first\" (its first guard), fence"),
            hands_over,
            "{shown}"
        );
    }
    // Nobody keeps a lock whose lease is over.
    record.set(&[("e", &(server_time(backend) - 7_000_000).to_string())]);
    let shown = look(&mgr).to_string();
    assert!(
        shown.starts_with("\"n\": mutex, lapsed, last held by process "),
        "{shown}"
    );
    drop(guard);
}

fn a_lapsed_lease_is_shown_with_its_holder_and_its_end(backend: &Backend) {
    let mgr = slow(backend);
    let guard = labelled(&mgr, "gone").lock("n").unwrap();
    let held = look(&mgr);
    assert_eq!(held.holder.as_ref().unwrap().lapsed_for, None);
    let ended = server_time(backend) - 7_000_000;
    Record::of(backend, "n").set(&[("e", &ended.to_string())]);
    let info = look(&mgr);
    assert_eq!(
        (info.state, info.time_left),
        (LockState::Lapsed, Duration::ZERO)
    );
    let shown = info.to_string();
    assert!(
        shown.starts_with("\"n\": mutex, lapsed, last held by process ")
            && shown.contains(", whose lease ended 7.")
            && !shown.contains("left"),
        "{shown}"
    );
    let holder = info.holder.as_ref().expect("who held it is known");
    assert_eq!((&*holder.label, holder.pid), ("gone", process::id()));
    let ago = holder.lapsed_for.expect("its lease is over");
    assert!(
        ago >= Duration::from_secs(7) && ago < Duration::from_secs(7) + SLACK,
        "{ago:?}"
    );
    assert_eq!(info.fence, guard.fence());
    let listed: Vec<_> = mgr.list("*").map(|info| info.unwrap().state).collect();
    assert_eq!(listed, [LockState::Lapsed]);
    // R9 (own lapse): its holder lives after all, and nobody has taken it.
    guard.renew().unwrap();
    assert_eq!(look(&mgr).state, LockState::Held);
}

/// Makes the leases of `n` that have this many permits look as if they had ended 7 s ago.
fn lapse_permits(backend: &Backend, permits: u32) {
    const LAPSE: &str = "
        local clock = redis.call('TIME')
        local ended = clock[1] * 1000000 + clock[2] - 7000000
        local all = redis.call('HGETALL', KEYS[1])
        for i = 1, #all, 2 do
          local weight = all[i] ~= 'p' and select(4, struct.unpack('<dI4I4I4', all[i + 1]))
          if weight == tonumber(ARGV[1]) then
            redis.call('HSET', KEYS[1], all[i], struct.pack('<d', ended) .. string.sub(all[i + 1], 9))
          end
        end
        local state = redis.call('HGET', KEYS[1], 'p')
        redis.call('HSET', KEYS[1], 'p', string.sub(state, 1, 8) .. struct.pack('<d', ended)
                                         .. string.sub(state, 17))
        return 1";
    let permits = permits.to_string();
    let command = ["EVAL", LAPSE, "1", "fairlock:{n}:h", &*permits];
    let _: i64 = backend.query(&command);
}

fn lapsed_permits_are_shown_beside_live_ones(backend: &Backend) {
    let mgr = slow(backend);
    let _live = labelled(&mgr, "live").semaphore("n", 5).acquire(1).unwrap();
    let _lapsed = labelled(&mgr, "lapsed")
        .semaphore("n", 5)
        .acquire(2)
        .unwrap();
    lapse_permits(backend, 2);
    let shown = |info: &LockInfo| -> Vec<(String, u32, bool)> {
        let show = |party: &Party| {
            let ago = party.lapsed_for;
            assert!(ago.is_none_or(|ago| ago >= Duration::from_secs(7) && ago < TTL * 4 + SLACK));
            (party.label.clone(), party.permits, ago.is_some())
        };
        // Those that lapsed are no holders: whoever counts holders must not count them.
        assert!(
            info.holders
                .iter()
                .all(|holder| holder.lapsed_for.is_none())
        );
        info.holders.iter().chain(&info.lapsed).map(show).collect()
    };
    let both = [
        ("live".to_owned(), 1, false),
        ("lapsed".to_owned(), 2, true),
    ];
    let info = look(&mgr);
    assert_eq!((info.state, shown(&info)), (LockState::Held, both.to_vec()));
    assert_eq!(info.holder.unwrap().label, "live");
    assert!(info.time_left > TTL);
    lapse_permits(backend, 1);
    let info = look(&mgr);
    assert_eq!(info.state, LockState::Lapsed);
    assert_eq!((info.time_left, info.holders.len()), (Duration::ZERO, 0));
    assert_eq!(info.lapsed.len(), 2);
}

/// The permits are with others by then, or free.
fn a_noticed_lapse_of_permits_is_shown_until_a_release(backend: &Backend) {
    let mgr = slow(backend);
    let semaphore = mgr.semaphore("n", 2);
    let _lapsed = semaphore.acquire(2).unwrap();
    lapse_permits(backend, 2);
    let next = semaphore.try_acquire(1).unwrap().expect("they are free");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let info = look(&mgr);
    assert_eq!((info.state, info.holders.len()), (LockState::Held, 1));
    let lapsed = &info.lapsed[0];
    assert_eq!(lapsed.permits, 2);
    assert!(lapsed.lapsed_for.is_some_and(|ago| ago < SLACK));
    next.unlock().unwrap();
    assert_eq!(mgr.inspect("n").unwrap(), None);
}

fn the_end_of_the_holder_before_is_shown(backend: &Backend) {
    let mgr = slow(backend);
    let mutex = mgr.mutex("n");
    let writer = mgr.rw_lock("n");
    let semaphore = mgr.semaphore("n", 2);
    let shown = || (look(&mgr).previous_holder, look(&mgr).to_string());
    let first = mutex.lock().unwrap();
    assert_eq!(shown().0, PreviousHolder::Unknown);
    first.unlock().unwrap();
    let clean = mutex.lock().unwrap();
    assert_eq!(shown().0, PreviousHolder::Released);
    assert!(!shown().1.contains("previous"), "{}", shown().1);
    assert!(mgr.force_release("n", clean.fence()).unwrap());
    let after_force = mutex.lock().unwrap();
    assert_eq!(shown().0, PreviousHolder::Forced);
    assert!(
        shown().1.ends_with(", previous holder: forced"),
        "{}",
        shown().1
    );
    after_force.abandon().unwrap();
    // The name becomes another kind, and another one. Work that is left half done is still known.
    let permits = semaphore.acquire(2).unwrap();
    assert_eq!(shown().0, PreviousHolder::Lapsed);
    permits.unlock().unwrap();
    let clean = semaphore.acquire(1).unwrap();
    assert_eq!(shown().0, PreviousHolder::Released);
    clean.abandon().unwrap();
    let write = writer.write().unwrap();
    assert_eq!(shown().0, PreviousHolder::Lapsed);
    write.unlock().unwrap();
}

fn the_end_of_a_holder_that_cools_or_lapsed_is_shown(backend: &Backend) {
    let mgr = slow(backend);
    let end = || (look(&mgr).state, look(&mgr).previous_holder);
    let hold = mgr.with(LockOptions::new().hold_at_least(Duration::from_secs(50)));
    hold.lock("n").unwrap().unlock().unwrap();
    assert_eq!(end(), (LockState::Cooling, PreviousHolder::Released));
    assert!(mgr.force_release("n", look(&mgr).fence).unwrap());
    hold.lock("n").unwrap().abandon().unwrap();
    assert_eq!(end(), (LockState::Cooling, PreviousHolder::Lapsed));
    assert!(mgr.force_release("n", look(&mgr).fence).unwrap());
    let _permits = mgr.semaphore("n", 2).acquire(2).unwrap();
    lapse_permits(backend, 2);
    // Nobody has noticed it yet.
    assert_eq!(end(), (LockState::Lapsed, PreviousHolder::Lapsed));
    assert!(mgr.force_release("n", look(&mgr).fence).unwrap());
    let _reader = mgr.rw_lock("n").read().unwrap();
    let before = look(&mgr).previous_holder;
    lapse_permits(backend, 1);
    // A reader leaves nothing half done.
    assert_eq!(end(), (LockState::Lapsed, before));
}

fn the_number_served_rises_with_each_hand_over(backend: &Backend) {
    // A waiter that its busy machine makes late would count as dead, and so as served.
    let mgr = slow(backend);
    let served = || look(&mgr).served;
    let enqueue = || mgr.enqueue("n").unwrap();
    let mutex = mgr.lock("n").unwrap();
    assert_eq!(served(), 0);
    let waiters = [enqueue(), enqueue(), enqueue()];
    let start = served();
    let mut holder = mutex;
    for (hand_over, waiter) in (1..).zip(waiters) {
        drop(holder);
        holder = waiter.wait().unwrap();
        assert_eq!(served(), start + hand_over);
    }
    drop(holder);
    let semaphore = mgr.semaphore("n", 1);
    let holder = semaphore.acquire(1).unwrap();
    let waiter = semaphore.enqueue(1).unwrap();
    let _next = semaphore.enqueue(1).unwrap();
    let start = served();
    drop(holder);
    let _holder = waiter.wait().unwrap();
    assert_eq!(served(), start + 1);
}

fn an_awaited_lock_without_a_holder_is_shown_as_free(backend: &Backend) {
    let (mgr, other) = (slow(backend), slow(backend));
    until(SOON, "it is seen before it is handed over", || {
        let guard = mgr.lock("n").unwrap();
        let _waiter = labelled(&other, "next").enqueue("n").unwrap();
        let _: () = backend.query(&["HDEL", "fairlock:{n}", "o", "a", "l"]);
        Record::of(backend, "n").set(&[("e", "0")]);
        let info = look(&mgr);
        // A manager that has just subscribed checks its waiters at once. That may serve the waiter
        // before this look.
        if info.waiters == 0 {
            return false;
        }
        assert_eq!(
            (info.state, info.holder, info.time_left),
            (LockState::Free, None, Duration::ZERO)
        );
        assert_eq!((info.waiters, &*info.queue[0].label), (1, "next"));
        assert_eq!(info.fence, guard.fence());
        assert_eq!(names(&mgr, "*"), ["n"]);
        true
    });
}

fn the_queue_is_shown_in_order_with_its_labels(backend: &Backend) {
    let managers = [manager(backend), manager(backend)];
    let _guard = managers[0].lock("n").unwrap();
    let labels: Vec<String> = (0..7).map(|i| format!("waiter {i} 🦀")).collect();
    let mut waiters: Vec<_> = labels
        .iter()
        .enumerate()
        .map(|(i, label)| labelled(&managers[i % 2], label).enqueue("n").unwrap())
        .collect();
    let info = look(&managers[0]);
    assert_eq!(info.waiters, 7);
    let shown: Vec<&str> = info.queue.iter().map(|party| &*party.label).collect();
    assert_eq!(shown, labels);
    for pair in info.queue.windows(2) {
        assert!(pair[0].since <= pair[1].since);
        assert_ne!(pair[0].manager, pair[1].manager);
        assert_eq!((pair[0].pid, pair[0].ttl), (process::id(), TTL));
    }
    // Waiters that left are not shown, though their entries may still be in the list.
    drop(waiters.remove(2));
    drop(waiters.remove(0));
    until(SLACK, "both are gone", || look(&managers[0]).waiters == 5);
    let shown: Vec<String> = look(&managers[1])
        .queue
        .into_iter()
        .map(|party| party.label)
        .collect();
    let left: Vec<&String> = [1, 3, 4, 5, 6].map(|i| &labels[i]).into();
    assert_eq!(shown.iter().collect::<Vec<_>>(), left);
}

fn a_long_queue_is_counted_fully_but_shown_partly(backend: &Backend) {
    let mgr = patient(backend);
    let guard = mgr.lock("n").unwrap();
    let many = 1005;
    let waiters: Vec<_> = (0..many)
        .map(|i| labelled(&mgr, &i.to_string()).enqueue("n").unwrap())
        .collect();
    let info = look(&mgr);
    assert_eq!(info.waiters, many as u64);
    assert_eq!(info.queue.len(), 1000);
    assert!(
        info.queue
            .iter()
            .enumerate()
            .all(|(i, party)| party.label == i.to_string())
    );
    drop(guard);
    mgr.shutdown(Duration::ZERO).unwrap();
    drop(waiters);
}

fn list_matches_globs_against_names(backend: &Backend) {
    let mgr = manager(backend);
    let all = [
        "a", "ab", "b", "a*", "a?", "[a]", "a\\b", "{a}", "a{b}", "%", "100%", "%7B", "inv:1",
        "inv:22", "a b", "é", "-", "^",
    ];
    let _guards = all.map(|name| mgr.lock(name).unwrap());
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mgr, "*"), sorted(&all));
    for (pattern, matched) in [
        ("a", &["a"][..]),
        ("inv:*", &["inv:1", "inv:22"]),
        ("inv:?", &["inv:1"]),
        ("inv:[0-9]*", &["inv:1", "inv:22"]),
        ("[ab]", &["a", "b"]),
        ("a\\*", &["a*"]),
        ("a\\?", &["a?"]),
        ("\\[a\\]", &["[a]"]),
        ("a\\\\b", &["a\\b"]),
        ("{a}", &["{a}"]),
        ("\\{a\\}", &["{a}"]),
        ("*{*", &["{a}", "a{b}"]),
        ("*}", &["{a}", "a{b}"]),
        ("%", &["%"]),
        ("*%", &["%", "100%"]),
        ("%7B", &["%7B"]),
        ("a b", &["a b"]),
        ("é", &["é"]),
        ("", &[]),
        ("nothing", &[]),
        ("*:q", &[]),
    ] {
        assert_eq!(names(&mgr, pattern), sorted(matched), "{pattern:?}");
    }
}

fn a_glob_matches_characters_whatever_their_encoding_in_keys(backend: &Backend) {
    let mgr = manager(backend);
    let all = ["{", "}", "%", "é", "🦀", "x"];
    let _guards = all.map(|name| mgr.lock(name).unwrap());
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(names(&mgr, "?"), sorted);
    assert_eq!(names(&mgr, "[{é]"), ["{", "é"]);
    assert_eq!(names(&mgr, "[^{é%]"), ["x", "}", "🦀"]);
    assert!(names(&mgr, "[7B]").is_empty());
    assert!(names(&mgr, "??").is_empty());
}

fn list_shows_each_name_once_and_holds_no_connection(backend: &Backend) {
    let mgr = build(patient_builder(backend).lanes(1));
    let many = 1200;
    let guards: Vec<_> = (0..many)
        .map(|i| mgr.lock(format!("n{i}")).unwrap())
        .collect();
    let mut seen = HashSet::new();
    for info in mgr.list("n*") {
        let info = info.unwrap();
        assert!(
            seen.insert(info.name.to_string()),
            "{} came twice",
            info.name
        );
        // The manager has one lane only, and other calls use it between two pages.
        if seen.len() % 100 == 1 {
            mgr.lock("within").unwrap().unlock().unwrap();
            assert!(mgr.inspect(&info.name).unwrap().is_some());
        }
    }
    assert_eq!(seen.len(), many);
    assert_eq!(mgr.list("n*").take(3).count(), 3);
    mgr.shutdown(Duration::ZERO).unwrap();
    drop(guards);
}

fn list_may_release_what_it_lists(backend: &Backend) {
    let mgr = patient(backend);
    let guards: Vec<_> = (0..300)
        .map(|i| mgr.lock(format!("n{i}")).unwrap())
        .collect();
    for info in mgr.list("*") {
        let info = info.unwrap();
        assert!(
            mgr.force_release(&info.name, info.fence).unwrap(),
            "{info:?}"
        );
    }
    assert_eq!(names(&mgr, "*"), [""; 0]);
    mgr.shutdown(Duration::ZERO).unwrap();
    drop(guards);
}

fn list_skips_foreign_keys(backend: &Backend) {
    let mgr = manager(backend);
    let _guard = mgr.lock("mine").unwrap();
    let foreign: &[&[&str]] = &[
        &["RPUSH", "fairlock:{list}", "x"],
        &["HSET", "fairlock:{hash}", "a", "b"],
        &["HSET", "fairlock:{open", "k", "mutex/1"],
        &["HSET", "fairlock:{%zz}", "k", "mutex/1", "o", "x"],
        &["HSET", "fairlock:{}", "k", "mutex/1", "o", "x"],
        &["HSET", "fairlock:{kind}", "k", "semaphore/1"],
        &["HSET", "fairlock:{version}", "k", "mutex/2"],
        &["HSET", "fairlock", "k", "mutex/1"],
        &["HSET", "other:{n}", "k", "mutex/1"],
    ];
    for command in foreign {
        let _: () = backend.query(command);
    }
    // A string key, or a name that is not text, cannot be made in memory.
    if let Some(server) = backend.server() {
        let _: () = server.query(&["SET", "fairlock:{string}", "x"]);
        let mut binary = redis::cmd("HSET");
        binary.arg(b"fairlock:{\xff\xfe}").arg("k").arg("mutex/1");
        let _: () = binary.query(&mut server.connection()).unwrap();
    }
    assert_eq!(names(&mgr, "*"), ["mine"]);
}

fn list_ends_after_an_error(backend: &Backend) {
    let mgr = manager(backend);
    backend.go_away();
    let mut list = mgr.list("*");
    let error = list.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(list.next().is_none() && list.next().is_none());
}

fn p10_another_kind_is_refused_by_name_without_a_write(backend: &Backend) {
    let mgr = manager(backend);
    let _: () = backend.query(&["HSET", "fairlock:{n}", "k", "semaphore/1", "cap", "3"]);
    assert_refused(
        backend,
        &mgr,
        |error| matches!(&error, Error::Misused { lock: Some(lock), misuse: Misuse::Kind { is: Kind::Other(kind), .. }, .. } if &**lock == "n" && &**kind == "semaphore"),
    );
}

fn p10_another_version_is_refused_by_name_without_a_write(backend: &Backend) {
    let mgr = manager(backend);
    let _: () = backend.query(&["HSET", "fairlock:{n}", "k", "mutex/2", "o", "somebody"]);
    assert_refused(backend, &mgr, |error| {
        matches!(&error, Error::Refused { lock: Some(lock), code, message, .. }
            if &**lock == "n" && code == "WRONGVERSION" && message.contains("mutex/2"))
    });
}

#[track_caller]
fn assert_refused(backend: &Backend, mgr: &LockManager, expected: fn(&Error) -> bool) {
    let record: Vec<String> = backend.query(&["HGETALL", "fairlock:{n}"]);
    let wait = Duration::from_millis(50);
    let verbs: [(&str, Result<()>); 9] = [
        ("lock", mgr.lock("n").map(drop)),
        ("try_lock", mgr.try_lock("n").map(drop)),
        ("try_lock_for", mgr.try_lock_for("n", wait).map(drop)),
        ("enqueue", mgr.enqueue("n").map(drop)),
        ("mutex", mgr.mutex("n").lock().map(drop)),
        ("inspect", mgr.inspect("n").map(drop)),
        ("force_release", mgr.force_release("n", 7).map(drop)),
        ("delete", mgr.delete("n").map(drop)),
        // Once more, because the subscription may have been opened since.
        ("lock", mgr.lock("n").map(drop)),
    ];
    for (verb, result) in verbs {
        let error = result.unwrap_err();
        assert!(expected(&error), "{verb}: {error:?}");
    }
    assert_eq!(
        backend.query::<Vec<String>>(&["HGETALL", "fairlock:{n}"]),
        record
    );
    assert_eq!(backend.keys("n"), ["fairlock:{n}"]);
    assert_eq!(mgr.stats().waiting, 0);
}

fn waits_end_when_their_name_becomes_another_kind(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    backend.delete("n");
    let _: () = backend.query(&["HSET", "fairlock:{n}", "k", "semaphore/1"]);
    for _ in 0..2 {
        let error = waiter.wait_for(TTL + SLACK).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Misused {
                    misuse: Misuse::Kind { .. },
                    ..
                }
            ),
            "{error:?}"
        );
    }
    // Its holder fails too: the record now belongs to another lock.
    let error = guard.renew().unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Lost { .. }
                | Error::Misused {
                    misuse: Misuse::Kind { .. },
                    ..
                }
        ),
        "{error:?}"
    );
}
