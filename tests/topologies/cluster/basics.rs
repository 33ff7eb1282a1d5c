//! Locks on several masters that are all in order.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use fairlock::{Error, LockManager, LockOptions};

use super::{manager, manager_with};
use crate::cluster_set::ClusterSet;
use crate::support::{SLACK, Server, until};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn locks_of_all_masters_are_taken_waited_for_and_listed() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (one, other) = (manager(&set), manager(&set));
    let names: Vec<String> = (0..3)
        .flat_map(|master| (0..3).map(move |n| (master, n)))
        .map(|(master, n)| set.name_on(master, n))
        .collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| one.lock(name).expect("it is free"))
        .collect();
    for name in &names {
        assert!(other.try_lock(name).expect("redis answers").is_none());
    }
    let listed: BTreeSet<String> = other
        .list("*")
        .map(|found| found.expect("redis answers").name.to_string())
        .collect();
    assert_eq!(listed, names.iter().cloned().collect());
    thread::scope(|scope| {
        let waiting: Vec<_> = names
            .iter()
            .map(|name| {
                scope.spawn({
                    let other = &other;
                    move || other.try_lock_for(name, LONG)
                })
            })
            .collect();
        let is_queued = |name: &String| {
            let info = one.inspect(name).expect("redis answers");
            info.is_some_and(|info| info.waiters == 1)
        };
        until(LONG / 2, "all are queued", || names.iter().all(is_queued));
        drop(guards);
        for waiter in waiting {
            let granted = waiter.join().expect("no panic").expect("redis answers");
            assert!(granted.is_some());
        }
    });
}

#[test]
fn detached_locks_of_all_masters_are_attached_once() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (one, other) = (manager(&set), manager(&set));
    for name in (0..3).map(|master| set.name_on(master, 0)) {
        let guard = one.lock(&name).expect("it is free");
        let fence = guard.fence();
        let detached = guard.detach(LONG).expect("it is held");
        assert!(other.try_lock(&name).expect("redis answers").is_none());
        let attached = other.attach(&detached).expect("it is detached");
        assert!(attached.fence() > fence);
        let again = one.attach(&detached).expect_err("it is spent");
        assert!(matches!(again, Error::Lost { .. }), "{again}");
        attached.unlock().expect("it is held");
    }
}

#[test]
fn waiters_of_all_masters_are_ready_when_they_are_granted() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (one, other) = (manager(&set), manager(&set));
    for name in (0..3).map(|master| set.name_on(master, 0)) {
        let guard = one.lock(&name).expect("it is free");
        let mut waiter = other.enqueue(&name).expect("redis answers");
        assert!(waiter.ready().is_empty());
        guard.unlock().expect("it was held");
        waiter.ready().recv_timeout(LONG).expect("it is granted");
        let granted = waiter.wait_for(Duration::ZERO).expect("redis answers");
        granted
            .expect("it is granted")
            .unlock()
            .expect("it is held");
    }
}

/// The calls of a group are on their way to all masters before any has answered.
#[test]
fn lock_all_asks_all_masters_at_once() {
    let set = ClusterSet::start_with(3, 0, &[]);
    // A caller that waits for one master first waits longer than this test does.
    let manager = LockManager::builder(set.url())
        .options(LockOptions::new().ttl(LONG * 2))
        .command_timeout(SLACK * 2)
        .horizon(LONG)
        .build()
        .expect("the cluster is in order");
    let names: Vec<String> = (0..3)
        .flat_map(|master| [(master, 0), (master, 1)])
        .map(|(master, n)| set.name_on(master, n))
        .collect();
    // All lanes are open, and the user's rights are known.
    for _ in 0..2 {
        let held = manager.lock_all(&names).expect("they are free");
        held.unlock().expect("they are held");
    }
    set.nodes().iter().for_each(Server::stop);
    thread::scope(|scope| {
        let taken = scope.spawn(|| manager.lock_all(&names));
        until(SLACK, "each master has its calls unread", || {
            set.nodes()
                .iter()
                .all(|node| has_unread_bytes(node.addr().port()))
        });
        set.nodes().iter().for_each(Server::cont);
        let held = taken.join().expect("no panic").expect("they are free");
        held.unlock().expect("they are held");
    });
}

/// The master of the first name is silent. The lock of the second was taken away by force.
#[test]
fn unlock_of_several_reports_a_loss_before_an_outage() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let [ours, theirs] = [(); 2].map(|()| manager_with(&set, LONG));
    let mut names = [0, 1].map(|master| (set.name_on(master, 0), master));
    names.sort();
    let [(_, silent), (lost, _)] = &names;
    let held = ours.lock_all(names.iter().map(|(name, _)| name));
    let held = held.expect("they are free");
    let fence = held.fence(lost).expect("it is one of them");
    assert!(theirs.force_release(lost, fence).expect("redis answers"));
    set.nodes()[*silent].stop();
    let error = held.unlock().expect_err("one is lost");
    set.nodes()[*silent].cont();
    let Error::Lost { loss, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(&*loss.lock, lost);
}

/// Whether a connection to this port has bytes that the server has not read.
fn has_unread_bytes(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let local = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The local address, the state (01 is established), and the bytes to send and to read.
        words[1].ends_with(&local) && words[3] == "01" && !words[4].ends_with(":00000000")
    })
}

#[test]
fn groups_over_several_masters_do_not_deadlock() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let managers = [manager(&set), manager(&set)];
    let names: Vec<String> = (0..3).map(|master| set.name_on(master, 0)).collect();
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]];
    thread::scope(|scope| {
        for (at, order) in orders.iter().enumerate() {
            let manager = &managers[at % 2];
            let group = order.map(|n| names[n].clone());
            scope.spawn(move || {
                for _ in 0..10 {
                    let held = manager
                        .try_lock_all_for(&group, LONG)
                        .expect("redis answers");
                    held.expect("no deadlock").unlock().expect("they are held");
                }
            });
        }
    });
}

#[test]
fn cycle_takes_as_many_requests_as_on_one_node() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let manager = manager(&set);
    let names: Vec<String> = (0..3).map(|master| set.name_on(master, 0)).collect();
    let cycle = || {
        for name in &names {
            drop(manager.lock(name).expect("it is free"));
        }
    };
    cycle();
    let before = manager.stats();
    for _ in 0..100 {
        cycle();
    }
    let after = manager.stats();
    assert_eq!(after.requests - before.requests, 600);
    assert_eq!(after.connects, before.connects);
}

#[test]
fn unused_names_of_all_masters_are_deleted() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let (one, other) = (manager(&set), manager(&set));
    for master in 0..3 {
        let (name, permits) = (set.name_on(master, 0), set.name_on(master, 1));
        let guard = one.lock(&name).expect("it is free");
        assert!(!other.delete(&name).expect("redis answers"));
        let fence = guard.fence();
        guard.unlock().expect("it was held");
        let permit = one.semaphore(&permits, 2).acquire(1).expect("it is free");
        permit.unlock().expect("it was held");
        for name in [&name, &permits] {
            assert!(other.delete(name).expect("redis answers"));
        }
        assert_eq!(keys(set.node(master)), [""; 0]);
        let next = other.lock(&name).expect("it is free");
        assert!(next.fence() > fence);
    }
}

fn keys(node: &Server) -> Vec<String> {
    node.query(&["KEYS", "*"])
}
