//! Slots move from one master to another while their locks are kept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, PreviousHolder};

use super::manager_with;
use super::moved_slots::{Watched, move_to_and_fro, use_lock};
use crate::cluster_set::ClusterSet;
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{EndLoops, SLACK, until};

const TTL: Duration = Duration::from_secs(30);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(30);

fn keeper(set: &ClusterSet) -> LockManager {
    manager_with(set, TTL).with(LockOptions::new().keep_idle(TTL / 3))
}

#[test]
fn another_manager_gets_a_kept_lock_of_each_master() {
    let set = ClusterSet::start();
    let (mgr, other) = (keeper(&set), manager_with(&set, TTL));
    for master in 0..set.masters() {
        let name = set.name_on(master, 0);
        keep(&mgr, &name);
        assert!(costs_nothing(&mgr, || drop(mgr.lock(&name).unwrap())));
        let guard = other.try_lock_for(&name, SLACK).unwrap();
        let guard = guard.expect("the keeper is told across the nodes");
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
    assert_eq!(mgr.stats().losses(), 0);
}

/// Nobody has checked its subscription for a while. A message to itself proves it, over whichever node.
#[test]
fn idle_keeper_of_a_cluster_proves_its_subscription_by_one_message() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (period, timeout) = (Duration::from_millis(250), Duration::from_millis(500));
    let builder = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(TTL).keep_idle(TTL / 3))
        .check_period(period)
        .command_timeout(timeout);
    let mgr = builder.build().expect("the cluster is in order");
    let published = || -> u64 {
        let masters = 0..set.masters();
        masters.map(|at| set.node(at).calls("publish")).sum()
    };
    for master in [0, 1] {
        let name = set.name_on(master, 0);
        keep(&mgr, &name);
        mgr.lock(&name).unwrap().unlock().unwrap();
        let before = published();
        // Time itself is under test: a wish for proofs lasts 2 P + T, and the last proof as long.
        thread::sleep(2 * (2 * period + timeout) + period / 2);
        keep(&mgr, &name);
        assert_eq!(published() - before, 1, "master {master}");
        mgr.lock(&name).unwrap().unlock().unwrap();
    }
}

/// While a slot moves, a mutex that has an owner answers before it is queued for. The keeper is told
/// all the same, so that it does not keep the lock for as long as the slot moves.
#[test]
fn kept_lock_is_released_to_others_while_its_slot_moves() {
    let set = ClusterSet::start();
    let (mgr, other) = (keeper(&set), manager_with(&set, TTL));
    let name = set.name_on(0, 0);
    keep(&mgr, &name);
    let slot = set.slot_of(&name);
    let to = (set.owner_of(slot) + 1) % set.masters();
    set.begin_migration(slot, to);
    let guard = other.try_lock_for(&name, SOON).unwrap();
    drop(guard.expect("the keeper is told"));
    set.migrate(slot, to);
    drop(mgr.lock(&name).unwrap());
    let guard = other.try_lock_for(&name, SOON).unwrap();
    drop(guard.expect("whether it is kept again or not"));
    assert_eq!(mgr.stats().losses(), 0);
}

/// The record moves while it is kept: it is the same lease on the other master.
#[test]
fn kept_lock_follows_its_slot() {
    let set = ClusterSet::start();
    let (mgr, other) = (keeper(&set), manager_with(&set, TTL));
    let name = set.name_on(0, 0);
    let mut last = 0;
    for time in 0..4 {
        keep(&mgr, &name);
        let slot = set.slot_of(&name);
        set.migrate(slot, (set.owner_of(slot) + 1) % set.masters());
        let fence = mgr.lock(&name).unwrap().fence();
        assert!(fence > last, "{time}");
        let guard = other.try_lock_for(&name, SOON).unwrap();
        let guard = guard.expect("the keeper is told");
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
        assert!(guard.fence() > fence);
        last = guard.fence();
    }
    assert_eq!(mgr.stats().losses(), 0);
}

#[test]
fn keepers_and_others_exclude_each_other_while_a_slot_moves() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let patient = || {
        // A loaded machine may keep a reply for as long as the slack.
        LockManager::builder(set.url())
            .options(LockOptions::new().ttl(TTL))
            .command_timeout(SLACK * 2)
            .horizon(TTL / 2)
            .build()
            .expect("the cluster is in order")
    };
    let keeping = LockOptions::new().keep_idle(TTL / 3);
    let managers = [
        patient().with(keeping.clone()),
        patient().with(keeping),
        patient(),
    ];
    let watched = Watched::default();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = EndLoops(&is_over);
        let users: Vec<_> = managers
            .iter()
            .map(|manager| {
                let (name, watched, is_over) = (&name, &watched, &is_over);
                scope.spawn(move || use_lock(manager, name, watched, is_over))
            })
            .collect();
        move_to_and_fro(&set, set.slot_of(&name), 8);
        until(SOON, "all have had turns", || {
            watched.turns.load(Ordering::SeqCst) > 50
        });
        drop(end);
        for user in users {
            user.join().expect("no second holder").expect("no error");
        }
    });
    until(SOON, "nothing is held", || {
        managers.iter().all(|manager| manager.stats().held == 0)
    });
}
