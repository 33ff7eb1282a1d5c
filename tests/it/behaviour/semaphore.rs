//! Permits out of a number of them, for many holders at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use fairlock::{
    Error, Kind, LockGuard, LockManager, LockOptions, LockState, LossReason, MAX_PERMITS,
    PreviousHolder, Semaphore,
};

use crate::backend::{Backend, InjectedFault, Keyspace, on_both_stores};
use crate::fixtures::{self, P, SOON, STEADY_TTL as TTL, build, steady};
use crate::managers;
use crate::support::until;

on_both_stores! {
    never_more_permits_are_held_than_there_are,
    every_verb_takes_permits_and_gives_them_back,
    who_asks_for_many_is_not_overtaken,
    several_are_handed_permits_in_one_step_whoever_they_wait_with,
    a_try_does_not_overtake_those_who_wait,
    who_gives_up_lets_those_behind_have_their_turn,
    another_number_is_refused_while_in_use_and_holds_afterwards,
    a_mutex_and_a_semaphore_are_told_apart,
    a_number_that_cannot_be_had_is_an_error,
    each_grant_has_a_larger_fence,
    a_holder_that_lapses_is_lost_by_itself,
    others_who_come_and_go_hide_no_lapse,
    a_process_that_dies_with_many_permits_delays_others_once,
    what_was_granted_before_a_flush_is_lost_and_waiters_stand_again,
    the_loss_of_any_key_alone_is_survived,
    all_is_seen_and_counted,
    what_is_forced_away_is_that_of_one_fence,
    options_hold_for_permits,
    the_way_in_which_the_last_holder_ended_is_told,
    a_place_kept_and_given_up_leaves_nothing,
    a_place_is_kept_between_two_looks_and_gives_its_permits_together,
    a_heavy_place_that_is_dropped_lets_those_behind_it_go_on,
    every_key_ends_by_itself_also_while_permits_are_held,
    a_record_lasts_for_as_long_as_its_holders_are_renewed,
    a_look_at_many_holders_puts_the_next_one_off,
    leases_that_are_short_bring_no_look_at_many_holders_before_its_time,
}

on_both_stores! {
    redis_with_faults:
    a_message_that_is_lost_is_made_up_for,
    p7_a_release_that_is_sent_twice_hears_the_same_twice,
}

fn manager(backend: &Backend) -> LockManager {
    build(steady(backend))
}

/// Ends the time of all holders of a name whose record has this in it, as if they had been silent for so long.
pub(super) fn end_leases(backend: &Backend, name: &str, whose: &str) -> i64 {
    let key = format!("fairlock:{{{name}}}");
    let script = "local all, ended = redis.call('HGETALL', KEYS[2]), 0\n\
        for i = 1, #all, 2 do\n\
          if string.find(all[i + 1], ARGV[1], 1, true) then\n\
            local over = struct.pack('<d', 1) .. string.sub(all[i + 1], 9, 20) .. struct.pack('<b', 1)\n\
            redis.call('HSET', KEYS[2], all[i], over .. string.sub(all[i + 1], 22))\n\
            ended = ended + 1\n\
          end\n\
        end\n\
        local p = redis.call('HGET', KEYS[1], 'p')\n\
        redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 8) .. struct.pack('<d', 1) .. string.sub(p, 17))\n\
        return ended";
    backend.query(&["EVAL", script, "2", &key, &format!("{key}:h"), whose])
}

/// Nobody holds it or waits for it, and nothing of those who did is left or stays.
#[track_caller]
pub(super) fn comes_to_rest(backend: &Backend, mgr: &LockManager, name: &str) {
    until(SOON, "nobody has it or waits for it", || {
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

/// Waits for so many permits on a thread of its own; when this returns it stands in the queue.
fn wait(mgr: &LockManager, semaphore: &Semaphore, permits: u32) -> Receiver<LockGuard> {
    let (sender, receiver) = unbounded();
    let before = mgr
        .inspect(semaphore.name())
        .unwrap()
        .map_or(0, |info| info.waiters);
    let semaphore = semaphore.clone();
    thread::spawn(move || {
        if let Ok(guard) = semaphore.acquire_many(permits) {
            let _ = sender.send(guard);
        }
    });
    waiters(mgr, "n", before + 1);
    receiver
}

#[track_caller]
fn served(receiver: &Receiver<LockGuard>) -> LockGuard {
    receiver.recv_timeout(SOON).expect("its turn comes")
}

fn never_more_permits_are_held_than_there_are(backend: &Backend) {
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
                    let guard = semaphore.acquire_many(permits).unwrap();
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

fn every_verb_takes_permits_and_gives_them_back(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 4);
    assert_eq!((n.name(), n.permits()), ("n", 4));
    assert!(format!("{n:?}").contains("permits: 4"));
    let (soon, later) = (Duration::from_millis(50), Instant::now() + SOON);
    let guards = [
        n.acquire().unwrap(),
        n.try_acquire().unwrap().unwrap(),
        n.try_acquire_for(soon).unwrap().unwrap(),
        n.try_acquire_until(later).unwrap().unwrap(),
    ];
    assert_eq!(mgr.stats().held, 4);
    assert!(n.try_acquire().unwrap().is_none());
    assert!(n.try_acquire_for(soon).unwrap().is_none());
    assert!(n.try_acquire_until(Instant::now()).unwrap().is_none());
    drop(guards);
    n.acquire_many(4).unwrap().unlock().unwrap();
    n.try_acquire_many(3).unwrap().unwrap().unlock().unwrap();
    let guard = n.try_acquire_many_for(2, soon).unwrap().unwrap();
    assert!(n.try_acquire_many_for(3, soon).unwrap().is_none());
    assert!(n.try_acquire_many_until(2, later).unwrap().is_some());
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn who_asks_for_many_is_not_overtaken(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let n = mgr.semaphore("n", 3);
    let (first, second) = (n.acquire().unwrap(), n.acquire().unwrap());
    let heavy = wait(&other, &n, 3);
    let light = wait(&other, &other.semaphore("n", 3), 1);
    assert!(
        n.try_acquire().unwrap().is_none(),
        "one is left, but others were first"
    );
    drop(first);
    thread::sleep(P);
    assert!(heavy.is_empty() && light.is_empty());
    drop(second);
    let heavy = served(&heavy);
    assert!(light.is_empty());
    drop(heavy);
    served(&light).unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn several_are_handed_permits_in_one_step_whoever_they_wait_with(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let all = ours.semaphore("n", 6).acquire_many(6).unwrap();
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
    let guards: Vec<LockGuard> = waiting[..4].iter().map(served).collect();
    assert!(
        guards.windows(2).all(|two| two[0].fence() < two[1].fence()),
        "in their order"
    );
    assert!(waiting[4].is_empty());
    let handed = ours.stats().handed_over + theirs.stats().handed_over;
    assert_eq!(handed, 4);
    drop(guards);
    drop(served(&waiting[4]));
    comes_to_rest(backend, &ours, "n");
}

fn a_try_does_not_overtake_those_who_wait(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 2);
    let guard = n.acquire().unwrap();
    let heavy = wait(&mgr, &n, 2);
    assert!(n.try_acquire().unwrap().is_none());
    drop(guard);
    drop(served(&heavy));
    comes_to_rest(backend, &mgr, "n");
}

fn who_gives_up_lets_those_behind_have_their_turn(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let n = mgr.semaphore("n", 2);
    let guard = n.acquire().unwrap();
    thread::scope(|scope| {
        let heavy = scope.spawn(|| {
            other
                .semaphore("n", 2)
                .try_acquire_many_for(2, TTL / 4)
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

fn another_number_is_refused_while_in_use_and_holds_afterwards(backend: &Backend) {
    let mgr = manager(backend);
    let guard = mgr.semaphore("n", 2).acquire_many(2).unwrap();
    let errors = [
        mgr.semaphore("n", 3).acquire().unwrap_err(),
        mgr.semaphore("n", 3).try_acquire().unwrap_err(),
        mgr.semaphore("n", 3).try_acquire_for(TTL).unwrap_err(),
    ];
    for error in errors {
        let Error::WrongKind {
            lock, is, asked, ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(&**lock, "n");
        assert!(matches!(
            (is, asked),
            (
                Kind::Semaphore { permits: 2, .. },
                Kind::Semaphore { permits: 3, .. }
            )
        ));
        assert!(
            error.to_string().contains("2 permits") && error.to_string().contains("3 permits"),
            "{error}"
        );
        assert!(error.to_string().ends_with("while it is in use"), "{error}");
    }
    let error = mgr.rw_lock("n").read().unwrap_err();
    assert!(
        matches!(
            &error,
            Error::WrongKind {
                asked: Kind::RwLock,
                ..
            }
        ),
        "{error:?}"
    );
    let waits = wait(&mgr, &mgr.semaphore("n", 2), 1);
    drop(guard);
    drop(served(&waits));
    let guards = [0; 3].map(|_| mgr.semaphore("n", 3).acquire().unwrap());
    assert!(mgr.semaphore("n", 3).try_acquire().unwrap().is_none());
    drop(guards);
    let writer = mgr.rw_lock("n").write().unwrap();
    assert!(mgr.semaphore("n", 3).try_acquire().is_err());
    drop(writer);
    comes_to_rest(backend, &mgr, "n");
}

fn a_mutex_and_a_semaphore_are_told_apart(backend: &Backend) {
    let mgr = manager(backend);
    let permit = mgr.semaphore("n", 2).acquire().unwrap();
    let error = mgr.try_lock("n").unwrap_err();
    assert!(matches!(
        &error,
        Error::WrongKind {
            is: Kind::Semaphore { permits: 2, .. },
            asked: Kind::Mutex,
            ..
        }
    ));
    let error = mgr.try_lock_for("n", TTL).unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    let _lock = mgr.lock("m").unwrap();
    let error = mgr.semaphore("m", 2).acquire().unwrap_err();
    assert!(matches!(
        &error,
        Error::WrongKind {
            is: Kind::Mutex,
            asked: Kind::Semaphore { permits: 2, .. },
            ..
        }
    ));
    assert!(permit.is_held());
    permit.unlock().unwrap();
    // Nobody holds it, but its record is there.
    let error = mgr.try_lock("n").unwrap_err();
    assert!(matches!(
        &error,
        Error::WrongKind {
            is: Kind::Semaphore { permits: 2, .. },
            asked: Kind::Mutex,
            ..
        }
    ));
    assert!(
        error
            .to_string()
            .ends_with("until an hour after its last use"),
        "{error}"
    );
}

fn a_number_that_cannot_be_had_is_an_error(backend: &Backend) {
    let mgr = manager(backend);
    let asked = mgr.stats().requests;
    for (permits, of) in [(1, 0), (1, MAX_PERMITS + 1), (0, 3), (4, 3)] {
        let n = mgr.semaphore("n", of);
        for error in [
            n.acquire_many(permits).unwrap_err(),
            n.try_acquire_many_for(permits, TTL).unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::Config { what, .. } if what == "permits"),
                "{error:?}"
            );
        }
    }
    assert!(matches!(
        mgr.semaphore("", 1).acquire(),
        Err(Error::Config { .. })
    ));
    assert_eq!(mgr.stats().requests, asked);
    mgr.semaphore("n", MAX_PERMITS)
        .acquire_many(MAX_PERMITS)
        .unwrap()
        .unlock()
        .unwrap();
}

fn each_grant_has_a_larger_fence(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 100);
    let guards: Vec<_> = (0..20).map(|_| n.acquire().unwrap()).collect();
    assert!(guards.windows(2).all(|two| two[0].fence() < two[1].fence()));
    let last = guards[19].fence();
    drop(guards);
    backend.flush_all();
    assert!(n.acquire().unwrap().fence() > last);
}

fn a_holder_that_lapses_is_lost_by_itself(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let labelled = |label: &str| {
        theirs
            .with(LockOptions::new().label(label))
            .semaphore("n", 2)
            .acquire()
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

fn others_who_come_and_go_hide_no_lapse(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    // It is not renewed for so long.
    let goes = theirs
        .with(LockOptions::new().ttl(10 * TTL))
        .semaphore("n", 2)
        .acquire()
        .unwrap();
    let shorten = "local all, clock = redis.call('HGETALL', KEYS[2]), redis.call('TIME')
                   local soon = struct.pack('<d', clock[1] * 1000000 + clock[2] + 200000)
                   local p = redis.call('HGET', KEYS[1], 'p')
                   redis.call('HSET', KEYS[2], all[1], soon .. string.sub(all[2], 9))
                   redis.call('HSET', KEYS[1], 'p', string.sub(p, 1, 8) .. soon .. string.sub(p, 17))";
    let _: () = backend.query(&["EVAL", shorten, "2", "fairlock:{n}", "fairlock:{n}:h"]);
    let n = ours.semaphore("n", 2);
    until(SOON, "its permit comes back", || {
        // Each of these lasts for longer than the one that goes.
        n.acquire().unwrap().unlock().unwrap();
        n.try_acquire_many(2).unwrap().is_some()
    });
    assert!(matches!(goes.renew(), Err(Error::Lost { .. })));
}

fn a_process_that_dies_with_many_permits_delays_others_once(backend: &Backend) {
    const MANY: u32 = 50;
    let (ours, theirs) = (manager(backend), manager(backend));
    let guards: Vec<_> = (0..MANY)
        .map(|_| theirs.semaphore("n", MANY).acquire().unwrap())
        .collect();
    let next = wait(&ours, &ours.semaphore("n", MANY), MANY);
    assert_eq!(end_leases(backend, "n", "semaphore"), i64::from(MANY));
    let next = served(&next);
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    until(SOON, "all are told", || {
        theirs.stats().lost == u64::from(MANY)
    });
    drop(guards);
    next.unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn a_message_that_is_lost_is_made_up_for(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let all = ours.semaphore("n", 3).acquire_many(3).unwrap();
    // The newest of them waits on, so that nothing but their tickets tells of the others.
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

fn what_was_granted_before_a_flush_is_lost_and_waiters_stand_again(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let guard = ours.semaphore("n", 2).acquire_many(2).unwrap();
    let waiting = wait(&ours, &theirs.semaphore("n", 2), 2);
    backend.flush_all();
    let next = served(&waiting);
    assert!(next.fence() > guard.fence());
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Taken
    );
    next.unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn the_loss_of_any_key_alone_is_survived(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    for key in ["fairlock:{n}", "fairlock:{n}:q", "fairlock:{n}:h"] {
        let n = ours.semaphore("n", 2);
        let guard = n.acquire_many(2).unwrap();
        let waiting = [
            wait(&ours, &theirs.semaphore("n", 2), 1),
            wait(&ours, &n, 1),
        ];
        let _: () = backend.query(&["DEL", key]);
        if key.ends_with(":h") {
            assert_eq!(
                guard.lost().recv_timeout(SOON).unwrap().reason,
                LossReason::Taken
            );
        } else {
            // Who holds it is known still, and counts.
            thread::sleep(TTL / 4);
            assert!(
                guard.is_held() && waiting.iter().all(Receiver::is_empty),
                "{key}"
            );
            guard.unlock().unwrap();
        }
        let guards = waiting.each_ref().map(served);
        drop(guards);
        comes_to_rest(backend, &ours, "n");
    }
}

fn all_is_seen_and_counted(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let labelled = theirs.with(LockOptions::new().label("upload"));
    let first = ours.semaphore("n", 5).acquire_many(2).unwrap();
    let second = labelled.semaphore("n", 5).acquire_many(3).unwrap();
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

fn what_is_forced_away_is_that_of_one_fence(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let (goes, stays) = (
        theirs.semaphore("n", 2).acquire().unwrap(),
        theirs.semaphore("n", 2).acquire().unwrap(),
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

fn options_hold_for_permits(backend: &Backend) {
    let mgr = manager(backend);
    let with = |options: LockOptions| mgr.with(options).semaphore("n", 2);
    // It cools, and counts meanwhile, but no longer, though the lease would have gone on.
    let least = Duration::from_millis(400);
    let started = Instant::now();
    with(LockOptions::new().ttl(10 * TTL).hold_at_least(least))
        .acquire_many(2)
        .unwrap()
        .unlock()
        .unwrap();
    assert_eq!(mgr.inspect("n").unwrap().unwrap().state, LockState::Cooling);
    assert!(mgr.semaphore("n", 2).try_acquire().unwrap().is_none());
    let after = mgr
        .semaphore("n", 2)
        .try_acquire_for(SOON)
        .unwrap()
        .expect("it has cooled");
    after.unlock().unwrap();
    assert!(backend.server().is_none() || started.elapsed() >= least);
    // It is never renewed.
    let fixed = with(LockOptions::new().fixed_lease(Duration::from_millis(300)))
        .try_acquire()
        .unwrap()
        .unwrap();
    let other = with(LockOptions::new().max_hold(Duration::from_millis(300)))
        .acquire()
        .unwrap();
    assert_eq!(
        fixed.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Expired
    );
    assert_eq!(
        other.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::MaxHold
    );
    mgr.semaphore("n", 2)
        .acquire_many(2)
        .unwrap()
        .unlock()
        .unwrap();
    // One that is renewed lasts for longer than its ttl.
    let short = fixtures::manager(backend);
    let guard = short.semaphore("n", 2).acquire().unwrap();
    thread::sleep(fixtures::TTL + fixtures::TTL / 4);
    assert!(guard.is_held() && short.stats().renewed > 0);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn the_way_in_which_the_last_holder_ended_is_told(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 1);
    let guard = n.acquire().unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Unknown);
    drop(guard);
    let guard = n.acquire().unwrap();
    assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    end_leases(backend, "n", "semaphore");
    let next = n.acquire().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(guard.renew().is_err());
}

fn a_place_kept_and_given_up_leaves_nothing(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let guard = mgr.semaphore("n", 1).acquire().unwrap();
    for _ in 0..3 {
        assert!(
            other
                .semaphore("n", 1)
                .try_acquire_for(Duration::from_millis(50))
                .unwrap()
                .is_none()
        );
    }
    waiters(&mgr, "n", 0);
    guard.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
    assert_eq!(mgr.stats().waiting + other.stats().waiting, 0);
}

fn every_key_ends_by_itself_also_while_permits_are_held(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let n = ours.semaphore("n", 2);
    let end_in_time = |keys: &[&str]| {
        for key in keys {
            let left: i64 = backend.query(&["PTTL", &format!("fairlock:{{n}}{key}")]);
            assert!((3_600_000..3_700_000).contains(&left), "{key:?}: {left} ms");
        }
    };
    let first = n.acquire_many(2).unwrap();
    end_in_time(&["", ":h"]);
    let next = wait(&ours, &theirs.semaphore("n", 2), 2);
    end_in_time(&["", ":q", ":h"]);
    // The last holder goes and another comes in one step.
    drop(first);
    let next = served(&next);
    end_in_time(&["", ":h"]);
    next.renew().unwrap();
    end_in_time(&["", ":h"]);
    drop(next);
    let kept = n.acquire().unwrap();
    let _: () = backend.query(&["DEL", "fairlock:{n}:h"]);
    let _other = n.acquire().unwrap();
    end_in_time(&["", ":h"]);
    drop(kept);
}

fn a_place_is_kept_between_two_looks_and_gives_its_permits_together(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 3);
    let held = n.acquire_many(2).unwrap();
    let mut heavy = n.enqueue_many(3).unwrap();
    let light = n.enqueue().unwrap();
    assert_eq!((heavy.position(), light.position()), (Some(1), Some(2)));
    assert!(heavy.wait_for(Duration::ZERO).unwrap().is_none());
    held.unlock().unwrap();
    let all = heavy.wait_for(SOON).unwrap().expect("its turn comes");
    assert!(n.try_acquire().unwrap().is_none());
    assert_eq!(mgr.inspect("n").unwrap().unwrap().holders[0].permits, 3);
    all.unlock().unwrap();
    light.wait().unwrap().unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn a_heavy_place_that_is_dropped_lets_those_behind_it_go_on(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let held = ours.semaphore("n", 2).acquire().unwrap();
    let heavy = ours.semaphore("n", 2).enqueue_many(2).unwrap();
    let light = theirs.semaphore("n", 2).enqueue().unwrap();
    drop(heavy);
    let served = light.wait().unwrap();
    assert!(held.is_held());
    drop((held, served));
    comes_to_rest(backend, &ours, "n");
}

/// Without it the name could be taken as a mutex beside them.
fn a_record_lasts_for_as_long_as_its_holders_are_renewed(backend: &Backend) {
    let mgr = manager(backend);
    let permit = mgr.semaphore("n", 2).acquire().unwrap();
    let soon = fixtures::server_time(backend) / 1000 + 60_000;
    backend.query::<i64>(&["PEXPIREAT", "fairlock:{n}", &soon.to_string()]);
    permit.renew().unwrap();
    let left: i64 = backend.query(&["PTTL", "fairlock:{n}"]);
    assert!(left >= 3_600_000, "{left} ms");
    permit.unlock().unwrap();
    comes_to_rest(backend, &mgr, "n");
}

fn a_look_at_many_holders_puts_the_next_one_off(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 1000);
    let _permit = n.acquire().unwrap();
    // 500 more, of whom one ends every 5 ms from now on.
    let fill = "local all, clock = redis.call('HGETALL', KEYS[1]), redis.call('TIME')
                for i = 1, 500 do
                  local ends = clock[1] * 1000000 + clock[2] + 5000 * i
                  redis.call('HSET', KEYS[1], 'other ' .. i, struct.pack('<d', ends) .. string.sub(all[2], 9))
                end";
    let _: () = backend.query(&["EVAL", fill, "1", "fairlock:{n}:h"]);
    assert_eq!(
        end_leases(backend, "n", "nobody's"),
        0,
        "it only has the next call look"
    );
    let before = fixtures::server_time(backend) as f64;
    assert!(n.try_acquire_many(1000).unwrap().is_none());
    let next = next_look(backend) - before;
    assert!(
        next >= 10_000.0,
        "at 20 µs a holder, and not after {next} µs"
    );
}

fn leases_that_are_short_bring_no_look_at_many_holders_before_its_time(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.semaphore("n", 10_000);
    let _permit = n.acquire().unwrap();
    // 3,000 more, whose leases last for 10 ms.
    let fill = "local all, clock = redis.call('HGETALL', KEYS[1]), redis.call('TIME')
                for i = 1, 3000 do
                  local ends = clock[1] * 1000000 + clock[2] + 10000
                  redis.call('HSET', KEYS[1], 'other ' .. i, struct.pack('<dI4', ends, 10) .. string.sub(all[2], 13))
                end";
    let try_all = || assert!(n.try_acquire_many(10_000).unwrap().is_none());
    until(SOON, "two calls come soon after each other", || {
        let _: () = backend.query(&["EVAL", fill, "1", "fairlock:{n}:h"]);
        assert_eq!(
            end_leases(backend, "n", "nobody's"),
            0,
            "it only has the next call look"
        );
        try_all();
        let next = next_look(backend);
        try_all();
        let soon = (fixtures::server_time(backend) as f64) < next;
        assert!(
            !soon || next_look(backend) == next,
            "the second has looked as well"
        );
        soon
    });
}

/// The time before which no holder is looked for that has lapsed.
fn next_look(backend: &Backend) -> f64 {
    let look = "return tostring(struct.unpack('<d', string.sub(redis.call('HGET', KEYS[1], 'p'), 9)) - ARGV[1])";
    let base = 1_700_000_000_000_000_u64;
    let after: String = backend.query(&["EVAL", look, "1", "fairlock:{n}", &base.to_string()]);
    base as f64 + after.parse::<f64>().unwrap()
}

fn p7_a_release_that_is_sent_twice_hears_the_same_twice(backend: &Backend) {
    // They renew so late that no renewal hears of the loss before.
    let [ours, theirs] =
        [LockManager::connect(backend), LockManager::connect(backend)].map(|mgr| mgr.unwrap());
    let permit = ours.semaphore("n", 2).acquire().unwrap();
    assert!(theirs.force_release("n", permit.fence()).unwrap());
    backend.settle();
    backend.inject(InjectedFault::Disconnect);
    let end = permit.unlock();
    assert!(
        matches!(&end, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Forced),
        "{end:?}"
    );
    comes_to_rest(backend, &theirs, "n");
}
