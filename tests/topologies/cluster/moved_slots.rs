//! Slots that move from one master to another while their locks are used.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use fairlock::{LockManager, Result};

use super::manager;
use crate::cluster_set::ClusterSet;

/// What all holders of one name see.
#[derive(Default)]
struct Watched {
    inside: AtomicUsize,
    last_fence: Mutex<u64>,
    turns: AtomicU64,
}

impl Watched {
    /// Holds the lock for a moment. Panics if somebody else holds it, or held it with a higher
    /// fence.
    fn hold(&self, fence: u64) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "a second holder");
        let mut last = self
            .last_fence
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(fence > *last, "fence {fence} after {last}");
        *last = fence;
        drop(last);
        thread::sleep(Duration::from_millis(1));
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes the lock in all ways, again and again. Returns the first error.
fn use_lock(
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
fn move_to_and_fro(set: &ClusterSet, slot: u16, times: usize) {
    let home = set.owner_of(slot);
    let away = (home + 1) % set.masters();
    for time in 0..times {
        let (from, to) = if time % 2 == 0 {
            (home, away)
        } else {
            (away, home)
        };
        set.begin_migration(slot, to);
        thread::sleep(Duration::from_millis(60));
        set.move_keys(slot, from, to);
        thread::sleep(Duration::from_millis(30));
        set.move_keys(slot, from, to);
        set.end_migration(slot, to);
        thread::sleep(Duration::from_millis(60));
    }
}

#[test]
fn slot_that_moves_under_contention_shows_in_no_call() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let name = set.name_on(0, 0);
    let managers = [manager(&set), manager(&set), manager(&set)];
    let watched = Watched::default();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let users: Vec<_> = managers
            .iter()
            .flat_map(|manager| [manager, manager])
            .map(|manager| {
                let (name, watched, is_over) = (&name, &watched, &is_over);
                scope.spawn(move || use_lock(manager, name, watched, is_over))
            })
            .collect();
        move_to_and_fro(&set, set.slot_of(&name), 16);
        is_over.store(true, Ordering::SeqCst);
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
