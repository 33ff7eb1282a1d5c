//! Slots that move from one master to another while their locks are used.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions, Result, RwLock};

use super::{manager, manager_with};
use crate::cluster_set::ClusterSet;
use crate::support::{EndLoops, SLACK, throughout, until, until_some};

/// The observations of all holders of one name.
#[derive(Default)]
pub(super) struct Watched {
    inside: AtomicUsize,
    last_fence: Mutex<u64>,
    pub(super) turns: AtomicU64,
}

impl Watched {
    /// Holds the lock for a moment. Panics if somebody else holds it, or held it with a higher
    /// fence.
    pub(super) fn hold(&self, fence: u64) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "a second holder");
        let mut last = self
            .last_fence
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(fence > *last, "fence {fence} after {last}");
        *last = fence;
        drop(last);
        // Time itself is under test: a second holder would be noticed in it.
        thread::sleep(Duration::from_millis(1));
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes the lock in all ways, again and again. Returns the first error.
pub(super) fn use_lock(
    manager: &LockManager,
    name: &str,
    watched: &Watched,
    is_over: &AtomicBool,
) -> Result<()> {
    let mut turn = 0;
    while !is_over.load(Ordering::SeqCst) {
        turn += 1;
        match turn % 4 {
            0 => {
                if let Some(guard) = manager.try_lock(name)? {
                    watched.hold(guard.fence());
                }
            }
            1 => {
                let guard = manager.lock(name)?;
                watched.hold(guard.fence());
                guard.unlock()?;
            }
            2 => {
                let guard = manager.lock(name)?;
                watched.hold(guard.fence());
            }
            _ => {
                let short = Duration::from_millis(5);
                if let Some(guard) = manager.try_lock_for(name, short)? {
                    watched.hold(guard.fence());
                }
            }
        }
    }
    Ok(())
}

/// Moves the slot to and fro, and lets clients meet each stage of it.
pub(super) fn move_to_and_fro(set: &ClusterSet, slot: u16, times: usize) {
    let home = set.owner_of(slot);
    let away = (home + 1) % set.masters();
    for time in 0..times {
        let (from, to) = if time % 2 == 0 {
            (home, away)
        } else {
            (away, home)
        };
        set.begin_migration(slot, to);
        // Time itself is under test: each stage lasts for a while.
        thread::sleep(Duration::from_millis(60));
        set.move_keys(slot, from, to);
        // Time itself is under test, as above.
        thread::sleep(Duration::from_millis(30));
        set.move_keys(slot, from, to);
        set.end_migration(slot, to);
        // Time itself is under test, as above.
        thread::sleep(Duration::from_millis(60));
    }
}

#[test]
fn slot_that_moves_under_contention_shows_in_no_call() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    // A loaded machine may keep a reply for as long as the slack.
    let patient = || {
        LockManager::builder(set.url())
            .options(LockOptions::new().ttl(Duration::from_secs(30)))
            .command_timeout(SLACK * 2)
            .horizon(Duration::from_secs(15))
            .build()
            .expect("the cluster is in order")
    };
    let managers = [patient(), patient(), patient()];
    let watched = Watched::default();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = EndLoops(&is_over);
        let users: Vec<_> = managers
            .iter()
            .flat_map(|manager| [manager, manager])
            .map(|manager| {
                let (name, watched, is_over) = (&name, &watched, &is_over);
                scope.spawn(move || use_lock(manager, name, watched, is_over))
            })
            .collect();
        move_to_and_fro(&set, set.slot_of(&name), 16);
        drop(end);
        for user in users {
            user.join().expect("no second holder").expect("no error");
        }
    });
    assert!(watched.turns.load(Ordering::SeqCst) > 100);
    for index in 0..set.masters() {
        assert_eq!(set.node(index).keys_without_ttl(), Vec::<String>::new());
    }
    drop(managers);
}

/// A lock that is held and that nobody waits for has one key. Its slot moves, but not yet that key.
#[test]
fn held_lock_in_a_migrating_slot_has_no_second_holder() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let (one, other) = (manager(&set), manager(&set));
    let held = one.lock(&name).expect("it is free");
    set.begin_migration(slot, 1);
    for _ in 0..3 {
        let tried = other.try_lock(&name).expect("the owner answers");
        assert!(tried.is_none(), "a second holder");
    }
    let short = Duration::from_millis(50);
    let tried = other.try_lock_for(&name, short).expect("it is only taken");
    assert!(tried.is_none(), "a second holder");
    held.renew().expect("it is held");
    // The record alone is on the other side now.
    set.move_keys(slot, 0, 1);
    assert!(other.try_lock(&name).expect("redis answers").is_none());
    held.renew().expect("it is held");
    held.unlock().expect("it is held");
    let free = other.try_lock(&name).expect("redis answers");
    free.expect("it is free").unlock().expect("it is held");
    set.end_migration(slot, 1);
}

/// Such a mutex has a record and no queue. The queue's key counts as missing.
#[test]
fn mutex_without_waiters_is_shown_while_its_slot_moves() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let manager = manager(&set);
    let held = manager.lock(&name).expect("it is free");
    let assert_shown = |fence: Option<u64>| {
        let seen = manager.inspect(&name).expect("one side knows it");
        assert_eq!(seen.and_then(|seen| seen.holder?.fence), fence);
        let mut listed = manager.list("*").map(|seen| seen.expect("it is shown"));
        assert_eq!(listed.any(|seen| *seen.name == *name), fence.is_some());
    };
    let fence = Some(held.fence());
    assert_shown(fence);
    set.begin_migration(slot, 1);
    assert_shown(fence);
    set.move_keys(slot, 0, 1);
    assert_shown(fence);
    held.unlock().expect("it is held");
    assert_shown(None);
    set.end_migration(slot, 1);
    assert_shown(None);
}

#[test]
fn wait_outlasts_a_migration_longer_than_the_outage_limit() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let one = manager(&set);
    let limit = Duration::from_millis(500);
    let impatient = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(Duration::from_secs(3)))
        .outage_limit(limit)
        .build()
        .expect("the cluster is in order");
    let in_line = impatient.with(LockOptions::new().local_handovers(9));
    let held = one.lock(&name).expect("it is free");
    set.begin_migration(slot, 1);
    thread::scope(|scope| {
        // One of the last two sends the place of their line, and the other waits for it.
        let waiters = [&impatient, &in_line, &in_line].map(|manager| {
            scope.spawn(|| {
                let granted = manager.try_lock_for(&name, Duration::from_secs(30));
                assert!(granted.expect("no error").is_some());
            })
        });
        let wait = || waiters.iter().all(|waiter| !waiter.is_finished());
        throughout(limit * 4, "they wait", wait);
        set.move_keys(slot, 0, 1);
        set.end_migration(slot, 1);
        held.unlock().expect("it is held");
    });
}

/// A reshard that was interrupted leaves its slot in migration for ever.
#[test]
fn enqueue_ends_at_the_outage_limit_while_a_slot_moves() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (limit, timeout) = (Duration::from_millis(500), Duration::from_millis(400));
    let impatient = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(Duration::from_secs(3)))
        .command_timeout(timeout)
        .outage_limit(limit)
        .build()
        .expect("the cluster is in order");
    let in_line = impatient.with(LockOptions::new().local_handovers(9));
    let one = manager(&set);
    let [name, permits, books] = [0, 1, 2].map(|n| set.name_on(0, n));
    let held = one.lock(&name).expect("it is free");
    let permit = one.semaphore(&permits, 1).acquire(1).expect("it is free");
    let reader = one.rw_lock(&books).read().expect("it is free");
    let slots = [&name, &permits, &books].map(|name| set.slot_of(name));
    for slot in slots {
        set.begin_migration(slot, 1);
    }
    for record in [&permits, &books] {
        set.move_these(&[format!("fairlock:{{{record}}}")], 0, 1);
    }
    let enqueues: [(&str, &(dyn Fn() -> Result<()> + Sync)); 5] = [
        ("a mutex", &|| impatient.enqueue(&name).map(drop)),
        ("a line", &|| in_line.enqueue(&name).map(drop)),
        ("permits", &|| {
            impatient.semaphore(&permits, 1).enqueue(1).map(drop)
        }),
        ("a reader", &|| {
            impatient.rw_lock(&books).enqueue_read().map(drop)
        }),
        ("a writer", &|| {
            impatient.rw_lock(&books).enqueue_write().map(drop)
        }),
    ];
    thread::scope(|scope| {
        for (what, enqueue) in enqueues {
            scope.spawn(move || {
                let started = Instant::now();
                let error = enqueue().expect_err("nobody can queue there");
                assert!(error.is_temporary(), "{what}: {error}");
                let took = started.elapsed();
                assert!(took <= limit + timeout * 2 + SLACK, "{what}: {took:?}");
            });
        }
    });
    for slot in slots {
        set.move_keys(slot, 0, 1);
        set.end_migration(slot, 1);
    }
    for (what, enqueue) in enqueues {
        enqueue().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    held.unlock().expect("it is held");
    permit.unlock().expect("it is held");
    reader.unlock().expect("it is held");
}

/// The release is on its way to a node that does not serve the slot any more. The next call of the
/// same manager comes behind it all the same.
#[test]
fn call_behind_a_redirected_release_finds_the_lock_free() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let manager = manager(&set);
    // Each lane knows the scripts.
    for master in 0..3 {
        let guard = manager.lock(set.name_on(master, 1));
        guard.expect("it is free").unlock().expect("it is held");
    }
    let mut from = 0;
    for to in [1, 2, 0, 1] {
        let held = manager.lock(&name).expect("it is free");
        set.begin_migration(slot, to);
        set.move_keys(slot, from, to);
        drop(held);
        let held = manager.try_lock(&name).expect("redis answers");
        let held = held.expect("ASK: the release came first");
        set.move_keys(slot, from, to);
        set.end_migration(slot, to);
        drop(held);
        let held = manager.try_lock(&name).expect("redis answers");
        let held = held.expect("MOVED: the release came first");
        set.migrate(slot, from);
        set.migrate(slot, to);
        held.unlock().expect("it is held");
        from = to;
    }
}

/// R4: the record is gone, and the slot is in migration. The waiters queue again one by one.
#[test]
fn waiters_keep_their_order_when_they_queue_again_elsewhere() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let (one, other) = (manager(&set), manager(&set));
    let held = one.lock(&name).expect("it is free");
    let waiters: Vec<_> = (0..5)
        .map(|_| other.enqueue(&name).expect("redis answers"))
        .collect();
    set.begin_migration(slot, 1);
    let record = format!("fairlock:{{{name}}}");
    let queue = format!("{record}:q");
    set.node(0).query::<()>(&["DEL", &record, &queue]);
    // It finds out that its lock is gone.
    held.lost().recv().expect("a loss");
    let asked = other.stats().requests;
    until(SLACK * 2, "the waiters queue again", || {
        other.stats().requests >= asked + 5
    });
    set.move_keys(slot, 0, 1);
    set.end_migration(slot, 1);
    let mut last = 0;
    for (index, waiter) in waiters.into_iter().enumerate() {
        let mut waiter = waiter;
        let granted = waiter
            .wait_for(Duration::from_secs(10))
            .expect("redis answers");
        let guard = granted.unwrap_or_else(|| panic!("waiter {index} is not the next"));
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.unlock().expect("it is held");
    }
}

/// No check of a waiter is answered, since its keys are on two sides. None counts as a silence either:
/// a node answers.
#[test]
fn waiter_is_ready_although_its_slot_moves_for_long() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let slot = set.slot_of(&name);
    let one = manager_with(&set, Duration::from_secs(60));
    let limit = Duration::from_secs(2);
    let builder = LockManager::builder(set.url()).outage_limit(limit);
    let other = builder.build().expect("the cluster is in order");
    let held = one.lock(&name).expect("it is free");
    let mut waiter = other.enqueue(&name).expect("redis answers");
    assert!(waiter.ready().is_empty());
    set.begin_migration(slot, 1);
    set.move_these(&[format!("fairlock:{{{name}}}:q")], 0, 1);
    let long = Duration::from_secs(10);
    waiter
        .ready()
        .recv_timeout(long)
        .expect("the limit is over");
    let refused = waiter.wait_for(Duration::ZERO);
    let is_undecided =
        |error: &Error| matches!(error, Error::Refused { code, .. } if code == "TRYAGAIN");
    assert!(refused.as_ref().is_err_and(is_undecided), "{refused:?}");
    set.move_keys(slot, 0, 1);
    set.end_migration(slot, 1);
    held.unlock().expect("it is held");
    let granted = until_some(long, "it is granted", || {
        let _ = waiter.ready().recv_timeout(long);
        waiter.wait_for(Duration::ZERO).ok().flatten()
    });
    granted.unlock().expect("it is held");
}

/// For longer than a call may take, one key of a lock is on one side, and the others are on the other.
#[test]
fn release_of_each_kind_needs_no_second_key_while_its_slot_moves() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (one, other) = (manager(&set), manager(&set));
    for (n, moved) in ["", ":q", "", ":q", ":h", "", ":q", ":h"]
        .into_iter()
        .enumerate()
    {
        let name = set.name_on(0, n);
        let slot = set.slot_of(&name);
        let key = format!("fairlock:{{{name}}}{moved}");
        let split = || {
            set.begin_migration(slot, 1);
            set.move_these(std::slice::from_ref(&key), 0, 1);
        };
        let together = || {
            set.move_keys(slot, 0, 1);
            set.end_migration(slot, 1);
        };
        let soon = Duration::from_secs(10);
        match n {
            0..2 => {
                let held = one.lock(&name).expect("it is free");
                let mut waiter = other.enqueue(&name).expect("redis answers");
                split();
                held.unlock().expect("the record is enough");
                together();
                let next = waiter.wait_for(soon).expect("redis answers");
                next.expect("it is the next").unlock().expect("it is held");
            }
            2..5 => {
                let semaphore = one.semaphore(&name, 2);
                let held = semaphore.acquire(2).expect("it is free");
                let wanted = other.semaphore(&name, 2);
                let mut waiter = wanted.enqueue(1).expect("redis answers");
                split();
                held.unlock().expect("the holders' key is enough");
                together();
                let next = waiter.wait_for(soon).expect("redis answers");
                next.expect("it is the next").unlock().expect("it is held");
            }
            _ => {
                let held = one.rw_lock(&name).write().expect("it is free");
                let wanted = other.rw_lock(&name);
                let mut waiter = wanted.enqueue_write().expect("redis answers");
                split();
                let reader = RwLock::downgrade(held).expect("the holders' key is enough");
                reader.unlock().expect("the holders' key is enough");
                together();
                let next = waiter.wait_for(soon).expect("redis answers");
                next.expect("it is the next").unlock().expect("it is held");
            }
        }
    }
}

/// The same for permits that must cool. They count as taken until their least time is over.
#[test]
fn permits_cool_though_their_keys_are_on_both_sides() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let least = Duration::from_secs(1);
    let options = LockOptions::new().ttl(Duration::from_secs(3));
    let one = manager(&set).with(options.hold_at_least(least));
    let other = manager(&set);
    for (n, moved) in ["", ":q", ":h"].into_iter().enumerate() {
        let name = set.name_on(0, n);
        let slot = set.slot_of(&name);
        let key = format!("fairlock:{{{name}}}{moved}");
        let started = Instant::now();
        let held = one.semaphore(&name, 3).acquire(2);
        let held = held.expect("it is free");
        let mut waiter = other.semaphore(&name, 3).enqueue(2).expect("redis answers");
        set.begin_migration(slot, 1);
        set.move_these(&[key], 0, 1);
        held.unlock().expect("the holders' key is enough");
        set.move_keys(slot, 0, 1);
        set.end_migration(slot, 1);
        let next = waiter
            .wait_for(Duration::from_secs(10))
            .expect("redis answers");
        let next = next.expect("it is the next");
        assert!(started.elapsed() >= least, "{:?}", started.elapsed());
        next.unlock().expect("it is held");
    }
}

/// Many waiters have left, so the script writes the queue anew. In a slot in migration, a key that
/// is missing for a moment would be out of the script's reach.
#[test]
fn queue_is_written_anew_in_a_migrating_slot() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let (one, other) = (manager(&set), manager(&set));
    let held = one.lock(&name).expect("it is free");
    let many: Vec<_> = (0..80)
        .map(|_| other.enqueue(&name).expect("redis answers"))
        .collect();
    let mut last = other.enqueue(&name).expect("redis answers");
    set.begin_migration(set.slot_of(&name), 1);
    drop(many);
    let queue = format!("fairlock:{{{name}}}:q");
    let length: usize = set.node(0).query(&["LLEN", &queue]);
    assert!(length < 80, "it is written anew: {length}");
    held.unlock().expect("it is held");
    let granted = last.wait_for(Duration::from_secs(10));
    let guard = granted.expect("no error").expect("it is the next");
    guard.unlock().expect("it is held");
    assert_eq!(other.stats().requeues, 0);
}
