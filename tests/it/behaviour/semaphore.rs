//! Permits out of a fixed number of them, for many holders at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use fairlock::{
    Error, LockManager, LockOptions, LossReason, Misuse, PreviousHolder, Semaphore, SemaphoreGuard,
    inspect::{Kind, LockState},
};

use crate::backend::{Backend, InjectedFault, Keyspace, on_both_stores};
use crate::fixtures::{self, P, SOON, STEADY_TTL as TTL, build, steady};
use crate::managers;
use crate::sums::Sums;
use crate::support::{throughout, until};

/// The most permits that a semaphore can have.
const MAX_PERMITS: u32 = 1_000_000;

on_both_stores! {
    permits_in_use_never_exceed_the_capacity,
    every_verb_takes_and_releases_permits,
    a_heavy_request_is_not_overtaken,
    one_release_grants_several_waiters_of_all_processes,
    a_try_does_not_overtake_waiters,
    a_waiter_that_times_out_unblocks_those_behind,
    another_kind_of_permits_is_refused_while_in_use,
    a_mutex_and_a_semaphore_are_distinguished,
    an_impossible_number_of_permits_is_an_error,
    each_grant_has_a_larger_fence,
    a_lapsed_holder_loses_only_its_own_permits,
    frequent_use_by_others_hides_no_lapse,
    a_dead_process_with_many_permits_delays_others_once,
    a_flush_loses_permits_and_waiters_queue_again,
    losing_any_single_key_is_survived,
    inspect_and_stats_count_permits_and_waiters,
    force_release_ends_only_its_own_fence,
    options_apply_to_permits,
    the_end_of_the_last_holder_is_reported,
    a_wait_for_permits_that_times_out_leaves_nothing,
    a_waiter_keeps_its_place_and_gets_all_permits_together,
    dropping_a_heavy_waiter_unblocks_those_behind,
    every_key_has_a_ttl_while_permits_are_held,
    a_record_lasts_while_its_holders_are_renewed,
    a_scan_of_many_holders_postpones_the_next_one,
    short_leases_cause_no_early_scan_of_many_holders,
}

on_both_stores! {
    redis_with_faults:
    waiters_for_permits_recover_from_lost_messages,
    p7_a_release_sent_twice_gets_the_same_answer_twice,
}

fn manager(backend: &Backend) -> LockManager {
    build(steady(backend))
}

/// Lets the leases of all holders whose entry contains `contained` lapse, as if those holders had
/// been silent.
pub(super) fn end_leases(backend: &Backend, name: &str, contained: &str) -> i64 {
    let key = format!("fairlock:{{{name}}}");
    let script = "local all, ended = redis.call('HGETALL', KEYS[2]), 0\n\
        for i = 1, #all, 2 do\n\
          if all[i] ~= 'p' and string.find(all[i + 1], ARGV[1], 1, true) then\n\
            local over = struct.pack('<d', 1) .. string.sub(all[i + 1], 9, 20) .. struct.pack('<b', 1)\n\
            redis.call('HSET', KEYS[2], all[i], over .. string.sub(all[i + 1], 22))\n\
            ended = ended + 1\n\
          end\n\
        end\n\
        local p = redis.call('HGET', KEYS[2], 'p')\n\
        redis.call('HSET', KEYS[2], 'p', string.sub(p, 1, 8) .. struct.pack('<d', 1) .. string.sub(p, 17))\n\
        return ended";
    backend.query(&["EVAL", script, "2", &key, &format!("{key}:h"), contained])
}

/// Waits until nobody holds or awaits the name, and checks that no trace of earlier users is left.
#[track_caller]
pub(super) fn comes_to_rest(backend: &Backend, mgr: &LockManager, name: &str) {
    until(SOON, "nobody holds it or waits for it", || {
        mgr.inspect(name).unwrap().is_none()
    });
    let key = format!("fairlock:{{{name}}}");
    until(SOON, "no waiter is left", || {
        let fields: Vec<String> = backend.query(&["HKEYS", &key]);
        !fields.iter().any(|field| field.starts_with("w:"))
            && managers::queue(backend, name).is_empty()
    });
    let backend: &dyn Keyspace = backend;
    assert_eq!(backend.keys_without_ttl(), [""; 0]);
}

#[track_caller]
pub(super) fn waiters(mgr: &LockManager, name: &str, many: u64) {
    until(SOON, "they wait", || {
        mgr.inspect(name).unwrap().map_or(0, |info| info.waiters) == many
    });
}

/// Waits for "n" on a thread of its own. The waiter is queued when this returns.
pub(super) fn queue_up<G: Send + 'static>(
    mgr: &LockManager,
    take: impl FnOnce() -> fairlock::Result<G> + Send + 'static,
) -> Receiver<G> {
    let (sender, receiver) = unbounded();
    let before = mgr.inspect("n").unwrap().map_or(0, |info| info.waiters);
    thread::spawn(move || {
        if let Ok(guard) = take() {
            let _ = sender.send(guard);
        }
    });
    waiters(mgr, "n", before + 1);
    receiver
}

/// Waits for this many permits on a thread of its own. The waiter is queued when this returns.
pub(super) fn wait(
    mgr: &LockManager,
    semaphore: &Semaphore,
    permits: u32,
) -> Receiver<SemaphoreGuard> {
    let semaphore = semaphore.clone();
    queue_up(mgr, move || semaphore.acquire(permits))
}

#[track_caller]
pub(super) fn served<G>(receiver: &Receiver<G>) -> G {
    receiver.recv_timeout(SOON).expect("its turn comes")
}

fn permits_in_use_never_exceed_the_capacity(backend: &Backend) {
    const PERMITS: u32 = 5;
    let managers = [manager(backend), manager(backend), manager(backend)];
    let held = AtomicU32::new(0);
    thread::scope(|scope| {
        for i in 0..9_u32 {
            let semaphore = managers[i as usize % 3].semaphore("n", PERMITS);
            let held = &held;
            scope.spawn(move || {
                for round in 0..20 {
                    let permits = 1 + (i + round) % PERMITS;
                    let guard = semaphore.acquire(permits).unwrap();
                    assert!(held.fetch_add(permits, Ordering::SeqCst) + permits <= PERMITS);
                    thread::yield_now();
                    assert!(guard.is_held());
                    held.fetch_sub(permits, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    comes_to_rest(backend, &managers[0], "n");
}

fn every_verb_takes_and_releases_permits(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 4);
    assert_eq!(n.name(), "n");
    assert!(format!("{n:?}").contains("permits: 4"));
    let soon = Duration::from_millis(50);
    let guards = [
        n.acquire(1).unwrap(),
        n.try_acquire(1).unwrap().unwrap(),
        n.try_acquire_for(1, soon).unwrap().unwrap(),
        n.try_acquire_for(1, SOON).unwrap().unwrap(),
    ];
    assert_eq!(mgr.stats().held, 4);
    assert!(n.try_acquire(1).unwrap().is_none());
    assert!(n.try_acquire_for(1, soon).unwrap().is_none());
    drop(guards);
    n.acquire(4).unwrap().unlock().unwrap();
    n.try_acquire(3).unwrap().unwrap().unlock().unwrap();
    let guard = n.try_acquire_for(2, soon).unwrap().unwrap();
    assert!(n.try_acquire_for(3, soon).unwrap().is_none());
    assert!(n.try_acquire_for(2, SOON).unwrap().is_some());
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn a_heavy_request_is_not_overtaken(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let n = mgr.semaphore("n", 3);
    let (first, second) = (n.acquire(1).unwrap(), n.acquire(1).unwrap());
    let heavy = wait(&other, &n, 3);
    let light = wait(&other, &other.semaphore("n", 3), 1);
    assert!(
        n.try_acquire(1).unwrap().is_none(),
        "one permit is left, but others came first"
    );
    drop(first);
    throughout(P, "both wait", || heavy.is_empty() && light.is_empty());
    drop(second);
    let heavy = served(&heavy);
    assert!(light.is_empty());
    drop(heavy);
    served(&light).unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn one_release_grants_several_waiters_of_all_processes(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let all = ours.semaphore("n", 6).acquire(6).unwrap();
    let waiting: Vec<_> = [
        (&ours, 1),
        (&theirs, 2),
        (&ours, 2),
        (&theirs, 1),
        (&ours, 1),
    ]
    .map(|(mgr, permits)| wait(&ours, &mgr.semaphore("n", 6), permits))
    .into_iter()
    .collect();
    all.unlock().unwrap();
    let guards: Vec<SemaphoreGuard> = waiting[..4].iter().map(served).collect();
    assert!(
        guards.windows(2).all(|two| two[0].fence() < two[1].fence()),
        "in their order"
    );
    assert!(waiting[4].is_empty());
    let handed = ours.stats().handovers + theirs.stats().handovers;
    assert_eq!(handed, 4);
    drop(guards);
    drop(served(&waiting[4]));
    comes_to_rest(backend, &ours, "n");
}

fn a_try_does_not_overtake_waiters(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 2);
    let guard = n.acquire(1).unwrap();
    let heavy = wait(&mgr, &n, 2);
    assert!(n.try_acquire(1).unwrap().is_none());
    drop(guard);
    drop(served(&heavy));
    comes_to_rest(backend, &mgr, "n");
}

fn a_waiter_that_times_out_unblocks_those_behind(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let n = mgr.semaphore("n", 2);
    let guard = n.acquire(1).unwrap();
    thread::scope(|scope| {
        let heavy = scope.spawn(|| {
            other
                .semaphore("n", 2)
                .try_acquire_for(2, TTL / 4)
                .unwrap()
                .is_none()
        });
        waiters(&mgr, "n", 1);
        let light = wait(&mgr, &n, 1);
        assert!(heavy.join().unwrap());
        drop(served(&light));
    });
    drop(guard);
    comes_to_rest(backend, &mgr, "n");
}

fn another_kind_of_permits_is_refused_while_in_use(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.semaphore("n", 2).acquire(2).unwrap();
    for error in [
        mgr.rw_lock("n").read().unwrap_err(),
        mgr.rw_lock("n").try_write().unwrap_err(),
    ] {
        assert!(
            matches!(
                &error,
                Error::Misused {
                    lock: Some(lock),
                    misuse: Misuse::Kind {
                        is: Kind::Semaphore { permits: 2, .. },
                        asked: Kind::RwLock,
                        ..
                    },
                    ..
                } if &**lock == "n"
            ),
            "{error:?}"
        );
        assert!(error.to_string().ends_with("while it is in use"), "{error}");
    }
    let waits = wait(&mgr, &mgr.semaphore("n", 2), 1);
    drop(guard);
    drop(served(&waits));
    let writer = mgr.rw_lock("n").write().unwrap();
    assert!(mgr.semaphore("n", 3).try_acquire(1).is_err());
    drop(writer);
    comes_to_rest(backend, &mgr, "n");
}

fn a_mutex_and_a_semaphore_are_distinguished(backend: &Backend) {
    let mgr = manager(backend);
    let permit = mgr.semaphore("n", 2).acquire(1).unwrap();
    let error = mgr.try_lock("n").unwrap_err();
    assert!(matches!(
        &error,
        Error::Misused {
            misuse: Misuse::Kind {
                is: Kind::Semaphore { permits: 2, .. },
                asked: Kind::Mutex,
                ..
            },
            ..
        }
    ));
    let error = mgr.try_lock_for("n", TTL).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Misused {
                misuse: Misuse::Kind { .. },
                ..
            }
        ),
        "{error:?}"
    );
    let _lock = mgr.lock("m").unwrap();
    let error = mgr.semaphore("m", 2).acquire(1).unwrap_err();
    assert!(matches!(
        &error,
        Error::Misused {
            misuse: Misuse::Kind {
                is: Kind::Mutex,
                asked: Kind::Semaphore { permits: 2, .. },
                ..
            },
            ..
        }
    ));
    assert!(permit.is_held());
    permit.unlock().unwrap();
    // Nobody holds it any more.
    mgr.try_lock("n").unwrap().unwrap().unlock().unwrap();
}

fn an_impossible_number_of_permits_is_an_error(backend: &Backend) {
    let mgr = manager(backend);
    let asked = mgr.stats().requests;
    for (permits, of) in [(1, 0), (1, MAX_PERMITS + 1), (0, 3), (4, 3)] {
        let n = mgr.semaphore("n", of);
        for error in [
            n.acquire(permits).unwrap_err(),
            n.try_acquire_for(permits, TTL).unwrap_err(),
        ] {
            assert!(
                matches!(
                    &error,
                    Error::Misused {
                        misuse: Misuse::Setting {
                            name: "permits",
                            ..
                        },
                        ..
                    }
                ),
                "{error:?}"
            );
            assert_eq!(error.lock(), Some("n"));
        }
    }
    assert!(matches!(
        mgr.semaphore("", 1).acquire(1),
        Err(Error::Misused {
            misuse: Misuse::Name,
            ..
        })
    ));
    assert_eq!(mgr.stats().requests, asked);
    mgr.semaphore("n", MAX_PERMITS)
        .acquire(MAX_PERMITS)
        .unwrap()
        .unlock()
        .unwrap();
}

fn each_grant_has_a_larger_fence(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 100);
    let guards: Vec<_> = (0..20).map(|_| n.acquire(1).unwrap()).collect();
    assert!(guards.windows(2).all(|two| two[0].fence() < two[1].fence()));
    let last = guards[19].fence();
    drop(guards);
    backend.flush_all();
    assert!(n.acquire(1).unwrap().fence() > last);
}

fn a_lapsed_holder_loses_only_its_own_permits(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let labelled = |label: &str| {
        theirs
            .with(LockOptions::new().label(label))
            .semaphore("n", 2)
            .acquire(1)
            .unwrap()
    };
    let (stays, goes) = (labelled("stays"), labelled("goes"));
    let next = wait(&ours, &ours.semaphore("n", 2), 1);
    assert_eq!(end_leases(backend, "n", "\tgoes"), 1);
    let next = served(&next);
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    let loss = goes.lost().recv_timeout(SOON).unwrap();
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::Expired, goes.fence())
    );
    assert!(stays.is_held() && next.is_held());
    stays.unlock().unwrap();
    next.unlock().unwrap();
    assert!(matches!(goes.unlock(), Err(Error::Lost { .. })));
    comes_to_rest(backend, &ours, "n");
}

fn frequent_use_by_others_hides_no_lapse(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    // The ttl is so long that no renewal falls into the test.
    let goes = theirs
        .with(LockOptions::new().ttl(10 * TTL))
        .semaphore("n", 2)
        .acquire(1)
        .unwrap();
    let shorten = "local all, clock = redis.call('HGETALL', KEYS[2]), redis.call('TIME')
                   local soon = struct.pack('<d', clock[1] * 1000000 + clock[2] + 200000)
                   for i = 1, #all, 2 do
                     local at = all[i] == 'p' and 9 or 1
                     redis.call('HSET', KEYS[2], all[i],
                       string.sub(all[i + 1], 1, at - 1) .. soon .. string.sub(all[i + 1], at + 8))
                   end";
    let _: () = backend.query(&["EVAL", shorten, "2", "fairlock:{n}", "fairlock:{n}:h"]);
    let n = ours.semaphore("n", 2);
    until(SOON, "its permit is free again", || {
        // Each of these leases is longer than the one that lapses.
        n.acquire(1).unwrap().unlock().unwrap();
        n.try_acquire(2).unwrap().is_some()
    });
    assert!(matches!(goes.renew(), Err(Error::Lost { .. })));
}

fn a_dead_process_with_many_permits_delays_others_once(backend: &Backend) {
    const MANY: u32 = 50;
    let (ours, theirs) = (manager(backend), manager(backend));
    let guards: Vec<_> = (0..MANY)
        .map(|_| theirs.semaphore("n", MANY).acquire(1).unwrap())
        .collect();
    let next = wait(&ours, &ours.semaphore("n", MANY), MANY);
    assert_eq!(end_leases(backend, "n", "semaphore"), i64::from(MANY));
    let next = served(&next);
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    until(SOON, "all losses are reported", || {
        theirs.stats().losses() == u64::from(MANY)
    });
    drop(guards);
    next.unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn waiters_for_permits_recover_from_lost_messages(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let all = ours.semaphore("n", 3).acquire(3).unwrap();
    // The last of them keeps waiting, so only the tickets show that the others were granted.
    let waiting = [1, 2, 3].map(|permits| wait(&ours, &theirs.semaphore("n", 3), permits));
    backend.inject(InjectedFault::MessageLost);
    if backend.server().is_none() {
        backend.inject(InjectedFault::MessageLost);
    }
    all.unlock().unwrap();
    let (first, second) = (served(&waiting[0]), served(&waiting[1]));
    assert!(waiting[2].is_empty());
    drop((first, second));
    drop(served(&waiting[2]));
    comes_to_rest(backend, &ours, "n");
}

fn a_flush_loses_permits_and_waiters_queue_again(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let guard = ours.semaphore("n", 2).acquire(2).unwrap();
    let waiting = wait(&ours, &theirs.semaphore("n", 2), 2);
    backend.flush_all();
    let next = served(&waiting);
    assert!(next.fence() > guard.fence());
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::NotOwner
    );
    next.unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn losing_any_single_key_is_survived(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    for key in ["fairlock:{n}", "fairlock:{n}:q", "fairlock:{n}:h"] {
        let n = ours.semaphore("n", 2);
        let guard = n.acquire(2).unwrap();
        let waiting = [
            wait(&ours, &theirs.semaphore("n", 2), 1),
            wait(&ours, &n, 1),
        ];
        let _: () = backend.query(&["DEL", key]);
        if key.ends_with(":h") {
            assert_eq!(
                guard.lost().recv_timeout(SOON).unwrap().reason,
                LossReason::NotOwner
            );
        } else {
            // The holder is still known and still counts.
            throughout(TTL / 4, key, || {
                guard.is_held() && waiting.iter().all(Receiver::is_empty)
            });
            guard.unlock().unwrap();
        }
        let guards = waiting.each_ref().map(served);
        drop(guards);
        comes_to_rest(backend, &ours, "n");
    }
}

fn inspect_and_stats_count_permits_and_waiters(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let labelled = theirs.with(LockOptions::new().label("upload"));
    let first = ours.semaphore("n", 5).acquire(2).unwrap();
    let second = labelled.semaphore("n", 5).acquire(3).unwrap();
    let waiting = wait(&ours, &labelled.semaphore("n", 5), 4);
    let info = ours.inspect("n").unwrap().unwrap();
    assert!(matches!(info.kind, Kind::Semaphore { permits: 5, .. }));
    assert_eq!(
        (info.state, info.fence, info.waiters),
        (LockState::Held, second.fence(), 1)
    );
    let mut holders: Vec<_> = info
        .holders
        .iter()
        .map(|party| (party.fence, party.permits, &*party.label))
        .collect();
    holders.sort_unstable();
    assert_eq!(
        holders,
        [
            (Some(first.fence()), 2, ""),
            (Some(second.fence()), 3, "upload")
        ]
    );
    assert!(
        info.holder
            .is_some_and(|holder| info.holders.contains(&holder))
    );
    assert!(info.time_left > TTL / 2 && info.time_left <= TTL);
    let queue: Vec<_> = info
        .queue
        .iter()
        .map(|party| (party.fence, party.permits, &*party.label))
        .collect();
    assert_eq!(queue, [(None, 4, "upload")]);
    let _lock = ours.lock("m").unwrap();
    let mut listed: Vec<_> = ours
        .list("*")
        .map(|info| info.unwrap())
        .map(|info| (info.name, info.kind))
        .collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        listed.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
        ["m", "n"]
    );
    assert!(matches!(
        (&listed[0].1, &listed[1].1),
        (Kind::Mutex, Kind::Semaphore { .. })
    ));
    assert_eq!((theirs.stats().held, theirs.stats().waiting), (1, 1));
    drop((first, second));
    drop(served(&waiting));
    comes_to_rest(backend, &ours, "n");
}

fn force_release_ends_only_its_own_fence(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let (goes, stays) = (
        theirs.semaphore("n", 2).acquire(1).unwrap(),
        theirs.semaphore("n", 2).acquire(1).unwrap(),
    );
    let next = wait(&ours, &ours.semaphore("n", 2), 1);
    assert!(!ours.force_release("n", goes.fence() - 1).unwrap());
    assert!(ours.force_release("n", goes.fence()).unwrap());
    let next = served(&next);
    assert_eq!(next.previous_holder(), PreviousHolder::Forced);
    assert_eq!(
        goes.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Forced
    );
    assert!(stays.is_held() && next.is_held());
    assert!(!ours.force_release("n", goes.fence()).unwrap());
    drop((stays, next));
    comes_to_rest(backend, &ours, "n");
}

fn options_apply_to_permits(backend: &Backend) {
    let mgr = manager(backend);
    let with = |options: LockOptions| mgr.with(options).semaphore("n", 2);
    // It cools and still counts, but only for `hold_at_least`, although its lease would have lasted
    // longer.
    let least = Duration::from_millis(400);
    let started = Instant::now();
    with(LockOptions::new().ttl(10 * TTL).hold_at_least(least))
        .acquire(2)
        .unwrap()
        .unlock()
        .unwrap();
    assert_eq!(mgr.inspect("n").unwrap().unwrap().state, LockState::Cooling);
    assert!(mgr.semaphore("n", 2).try_acquire(1).unwrap().is_none());
    let after = mgr
        .semaphore("n", 2)
        .try_acquire_for(1, SOON)
        .unwrap()
        .expect("it has cooled");
    after.unlock().unwrap();
    assert!(backend.server().is_none() || started.elapsed() >= least);
    // A fixed lease is never renewed.
    let fixed = with(LockOptions::new().fixed_lease(Duration::from_millis(300)))
        .try_acquire(1)
        .unwrap()
        .unwrap();
    let other = with(LockOptions::new().max_hold(Duration::from_millis(300)))
        .acquire(1)
        .unwrap();
    assert_eq!(
        fixed.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Expired
    );
    assert_eq!(
        other.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::MaxHold
    );
    mgr.semaphore("n", 2).acquire(2).unwrap().unlock().unwrap();
    // A renewed lease lasts longer than its ttl.
    let short = fixtures::manager(backend);
    let guard = short.semaphore("n", 2).acquire(1).unwrap();
    let longer = fixtures::TTL + fixtures::TTL / 4;
    throughout(longer, "it is held", || guard.is_held());
    assert!(short.stats().renewals_confirmed > 0);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn the_end_of_the_last_holder_is_reported(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 1);
    let guard = n.acquire(1).unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
    drop(guard);
    let guard = n.acquire(1).unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    end_leases(backend, "n", "semaphore");
    let next = n.acquire(1).unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(guard.renew().is_err());
}

fn a_wait_for_permits_that_times_out_leaves_nothing(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.semaphore("n", 1).acquire(1).unwrap();
    for _ in 0..3 {
        assert!(
            other
                .semaphore("n", 1)
                .try_acquire_for(1, Duration::from_millis(50))
                .unwrap()
                .is_none()
        );
    }
    waiters(&mgr, "n", 0);
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
    assert_eq!(mgr.stats().waiting + other.stats().waiting, 0);
}

fn every_key_has_a_ttl_while_permits_are_held(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let n = ours.semaphore("n", 2);
    let end_in_time = |keys: &[&str]| {
        for key in keys {
            let left: i64 = backend.query(&["PTTL", &format!("fairlock:{{n}}{key}")]);
            assert!((3_600_000..3_700_000).contains(&left), "{key:?}: {left} ms");
        }
    };
    let first = n.acquire(2).unwrap();
    end_in_time(&["", ":h"]);
    let next = wait(&ours, &theirs.semaphore("n", 2), 2);
    end_in_time(&["", ":q", ":h"]);
    // The last holder goes and the next is granted in one step.
    drop(first);
    let next = served(&next);
    end_in_time(&["", ":h"]);
    next.renew().unwrap();
    end_in_time(&["", ":h"]);
    drop(next);
    let kept = n.acquire(1).unwrap();
    let _: () = backend.query(&["DEL", "fairlock:{n}:h"]);
    let _other = n.acquire(1).unwrap();
    end_in_time(&["", ":h"]);
    drop(kept);
}

fn a_waiter_keeps_its_place_and_gets_all_permits_together(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 3);
    let held = n.acquire(2).unwrap();
    let mut heavy = n.enqueue(3).unwrap();
    let light = n.enqueue(1).unwrap();
    assert_eq!((heavy.position(), light.position()), (Some(1), Some(2)));
    assert!(heavy.wait_for(Duration::ZERO).unwrap().is_none());
    held.unlock().unwrap();
    let all = heavy.wait_for(SOON).unwrap().expect("its turn comes");
    assert!(n.try_acquire(1).unwrap().is_none());
    assert_eq!(mgr.inspect("n").unwrap().unwrap().holders[0].permits, 3);
    all.unlock().unwrap();
    light.wait().unwrap().unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn dropping_a_heavy_waiter_unblocks_those_behind(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let held = ours.semaphore("n", 2).acquire(1).unwrap();
    let heavy = ours.semaphore("n", 2).enqueue(2).unwrap();
    let light = theirs.semaphore("n", 2).enqueue(1).unwrap();
    drop(heavy);
    let served = light.wait().unwrap();
    assert!(held.is_held());
    drop((held, served));
    comes_to_rest(backend, &ours, "n");
}

/// Without the record, the name could be taken as a mutex beside its permits.
fn a_record_lasts_while_its_holders_are_renewed(backend: &Backend) {
    let mgr = manager(backend);
    let permit = mgr.semaphore("n", 2).acquire(1).unwrap();
    let soon = fixtures::server_time(backend) / 1000 + 60_000;
    backend.query::<i64>(&["PEXPIREAT", "fairlock:{n}", &soon.to_string()]);
    permit.renew().unwrap();
    let left: i64 = backend.query(&["PTTL", "fairlock:{n}"]);
    assert!(left >= 3_600_000, "{left} ms");
    permit.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn a_scan_of_many_holders_postpones_the_next_one(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 1000);
    let _permit = n.acquire(1).unwrap();
    // 500 more holders, of which one lapses every 5 ms from now on.
    let fill = "local all, clock = redis.call('HGETALL', KEYS[1]), redis.call('TIME')
                local holder = all[1] == 'p' and all[4] or all[2]
                for i = 1, 500 do
                  local ends = clock[1] * 1000000 + clock[2] + 5000 * i
                  redis.call('HSET', KEYS[1], 'other ' .. i, struct.pack('<d', ends) .. string.sub(holder, 9))
                end
                local p = redis.call('HGET', KEYS[1], 'p')
                redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 40) .. struct.pack('<I4', 501) .. string.sub(p, 45))";
    let _: () = backend.query(&["EVAL", fill, "1", "fairlock:{n}:h"]);
    assert_eq!(
        end_leases(backend, "n", "nobody's"),
        0,
        "only the next call scans"
    );
    let before = fixtures::server_time(backend) as f64;
    assert!(n.try_acquire(1000).unwrap().is_none());
    let next = next_scan(backend) - before;
    assert!(next >= 25_000.0, "50 µs for each holder, and not {next} µs");
}

fn short_leases_cause_no_early_scan_of_many_holders(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 10_000);
    let _permit = n.acquire(1).unwrap();
    // 3,000 more holders with leases of 10 ms.
    let fill = "local all, clock = redis.call('HGETALL', KEYS[1]), redis.call('TIME')
                local holder = ''
                for i = 1, #all, 2 do
                  if all[i] ~= 'p' then holder = all[i + 1] end
                end
                for i = 1, 3000 do
                  local ends = clock[1] * 1000000 + clock[2] + 10000
                  redis.call('HSET', KEYS[1], 'other ' .. i, struct.pack('<dI4', ends, 10) .. string.sub(holder, 13))
                end
                local p = redis.call('HGET', KEYS[1], 'p')
                redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 40) .. struct.pack('<I4', 3001) .. string.sub(p, 45))";
    let try_all = || assert!(n.try_acquire(10_000).unwrap().is_none());
    until(SOON, "two calls come soon after each other", || {
        let _: () = backend.query(&["EVAL", fill, "1", "fairlock:{n}:h"]);
        assert_eq!(
            end_leases(backend, "n", "nobody's"),
            0,
            "only the next call scans"
        );
        try_all();
        let next = next_scan(backend);
        try_all();
        let soon = (fixtures::server_time(backend) as f64) < next;
        assert!(
            !soon || next_scan(backend) == next,
            "the second call has scanned as well"
        );
        soon
    });
}

/// Before this time no call scans the holders for lapsed ones.
fn next_scan(backend: &Backend) -> f64 {
    let look = "return tostring(struct.unpack('<d', string.sub(redis.call('HGET', KEYS[1], 'p'), 9)) - ARGV[1])";
    let base = 1_700_000_000_000_000_u64;
    let after: String = backend.query(&["EVAL", look, "1", "fairlock:{n}:h", &base.to_string()]);
    base as f64 + after.parse::<f64>().unwrap()
}

fn p7_a_release_sent_twice_gets_the_same_answer_twice(backend: &Backend) {
    // The default ttl puts the next renewal far off, so only the release can find the loss.
    let [ours, theirs] =
        [LockManager::connect(backend), LockManager::connect(backend)].map(|mgr| mgr.unwrap());
    let permit = ours.semaphore("n", 2).acquire(1).unwrap();
    assert!(theirs.force_release("n", permit.fence()).unwrap());
    backend.wait_until_idle();
    backend.inject(InjectedFault::Disconnect);
    let end = permit.unlock();
    assert!(
        matches!(&end, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Forced),
        "{end:?}"
    );
    comes_to_rest(backend, &theirs, "n");
}
