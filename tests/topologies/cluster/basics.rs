//! Locks on several masters that are all in order.

use std::{collections::BTreeSet, thread, time::Duration};

use super::{manager, manager_with};
use crate::cluster_set::ClusterSet;
use crate::support::SLACK;

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
        thread::sleep(Duration::from_millis(200));
        drop(guards);
        for waiter in waiting {
            let granted = waiter.join().expect("no panic").expect("redis answers");
            assert!(granted.is_some());
        }
    });
    let _ = (manager_with, SLACK);
}
