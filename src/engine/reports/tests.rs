//! When circles are reported.

use super::*;

#[test]
fn circle_is_reported_once_per_name_and_doubling_pause() {
    let reported = ReportedCircles::new();
    let [one, other]: [Arc<str>; 2] = ["one", "other"].map(Arc::from);
    let second = Duration::from_secs(1);
    let begins = |name: &Arc<str>, at: f64| {
        let now = Time::from_nanos(0) + Duration::from_secs_f64(at);
        reported.begin(BTreeSet::from([Arc::clone(name)]), now, second)
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
        let reported = ReportedCircles::new();
        let mut now = Time::from_nanos(1);
        let begins = |now| reported.begin(BTreeSet::from([Arc::from("one")]), now, first_pause);
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
    let reported = ReportedCircles::new();
    let now = Time::from_nanos(1);
    let begins = |names: &[&str]| {
        let names = names.iter().copied().map(Arc::from).collect();
        reported.begin(names, now, LONGEST_PAUSE)
    };
    assert!(begins(&["a"]));
    assert!(begins(&["a", "b"]), "another circle through that name");
    assert!(!begins(&["b", "a"]));
    assert!(!begins(&["a"]));
}

#[test]
fn names_of_circles_do_not_pile_up() {
    let reported = ReportedCircles::new();
    for n in 0..10 * MOST_CIRCLES {
        let names = BTreeSet::from([Arc::from(n.to_string())]);
        let now = Time::from_nanos(1);
        assert!(reported.begin(names.clone(), now, Duration::MAX));
        let later = now + LONGEST_PAUSE / 2;
        assert!(!reported.begin(names, later, Duration::MAX));
    }
    assert!(reported.0.lock().len() <= MOST_CIRCLES);
}
