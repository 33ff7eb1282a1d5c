//! When circles and long waits are reported.

use super::*;
#[cfg(feature = "memory")]
use crate::manager::LockManager;
#[cfg(feature = "memory")]
use crate::memory::Memory;

#[test]
fn circle_is_reported_once_per_name_and_doubling_pause() {
    let registry = WaiterRegistry::new();
    let [one, other]: [Arc<str>; 2] = ["one", "other"].map(Arc::from);
    let second = Duration::from_secs(1);
    let begins = |name: &Arc<str>, at: f64| {
        let now = Time::from_nanos(0) + Duration::from_secs_f64(at);
        registry.begin_circle_report(BTreeSet::from([Arc::clone(name)]), now, second)
    };
    let reported: Vec<usize> = (0..160)
        .filter(|tenth| begins(&one, 100.0 + *tenth as f64 / 10.0))
        .collect();
    assert_eq!(reported, [0, 10, 30, 70, 150]);
    assert!(begins(&other, 116.0), "another name");
    assert!(!begins(&one, 130.9));
    // Nothing came for as long as the pause lasted: it is another circle.
    assert!(begins(&one, 150.0));
    assert!(!begins(&one, 150.9));
    assert!(begins(&one, 151.0));
}

#[test]
fn pause_between_reports_of_circles_has_a_bound() {
    for first_pause in [Duration::from_secs(1), LONGEST_PAUSE * 3, Duration::MAX] {
        let registry = WaiterRegistry::new();
        let mut now = Time::from_nanos(1);
        let begins = |now| {
            registry.begin_circle_report(BTreeSet::from([Arc::from("one")]), now, first_pause)
        };
        for _ in 0..20 {
            begins(now);
            now = now + LONGEST_PAUSE;
            assert!(
                begins(now),
                "reported at {now:?}, first pause {first_pause:?}"
            );
        }
    }
}

#[test]
fn circle_of_other_names_has_a_pause_of_its_own() {
    let registry = WaiterRegistry::new();
    let now = Time::from_nanos(1);
    let begins = |names: &[&str]| {
        let names = names.iter().copied().map(Arc::from).collect();
        registry.begin_circle_report(names, now, LONGEST_PAUSE)
    };
    assert!(begins(&["a"]));
    assert!(begins(&["a", "b"]), "another circle through that name");
    assert!(!begins(&["b", "a"]));
    assert!(!begins(&["a"]));
}

#[test]
fn names_of_circles_do_not_pile_up() {
    let registry = WaiterRegistry::new();
    for n in 0..10 * MOST_CIRCLES {
        let names = BTreeSet::from([Arc::from(n.to_string())]);
        let now = Time::from_nanos(1);
        assert!(registry.begin_circle_report(names.clone(), now, Duration::MAX));
        let later = now + LONGEST_PAUSE / 2;
        assert!(!registry.begin_circle_report(names, later, Duration::MAX));
    }
    assert!(registry.circles.lock().len() <= MOST_CIRCLES);
}

#[cfg(feature = "memory")]
#[test]
fn report_of_an_old_wait_silences_no_newer_one() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let _held = manager.lock("k").expect("it is free");
    let _waiter = manager.enqueue("k").expect("it is there");
    let begins = |at: u64, waited: u64| {
        let now = Time::from_nanos(0) + Duration::from_secs(at);
        let waiters = &manager.engine().waiters;
        waiters.begin_report("k", now, Duration::from_secs(waited))
    };
    assert!(begins(1000, 640), "it has waited for long");
    assert!(!begins(1001, 641), "not until it has doubled");
    // The first one has gone. The next one came when the first was reported.
    assert!(begins(1010, 10));
    assert!(!begins(1015, 15));
    assert!(begins(1020, 20));
    assert!(begins(1040, 40));
}
