//! Random runs of a quorum keep all promises, and each defect breaks the promise that it should.
//!
//! `FAIRLOCK_STEPS` sets the number of steps, and `FAIRLOCK_SEED` the first seed. With a seed alone
//! the test plays one run.

use std::env;
use std::time::Instant;

use super::defect::Defect;
use super::simulate;
use crate::sim::Promise;

const STEPS: u64 = 300_000;
/// A defect is found in fewer.
const STEPS_TO_A_DEFECT: u64 = 3_000_000;

#[test]
fn quorum_keeps_all_promises_whatever_goes_wrong() {
    let number = |name: &str| {
        let text = env::var(name).ok();
        text.map(|text| text.parse::<u64>().expect(name))
    };
    let seed = number("FAIRLOCK_SEED");
    let steps = number("FAIRLOCK_STEPS").unwrap_or(if seed.is_some() { 1 } else { STEPS });
    let begun = Instant::now();
    let tally = simulate(seed.unwrap_or(0), steps, None);
    let tally = tally.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{tally:?} took {:?}", begun.elapsed());
}

/// Random runs with this defect break one of these promises.
#[track_caller]
fn assert_found(defect: Defect, promises: &[Promise]) {
    let failure =
        simulate(0, STEPS_TO_A_DEFECT, Some(defect)).expect_err("no run shows the defect");
    println!("{defect:?}, after {} steps: {failure}", failure.steps);
    assert!(promises.contains(&failure.breach.promise), "{failure}");
}

#[test]
fn grants_under_different_fences_that_count_together_are_found() {
    assert_found(Defect::MixedFences, &[Promise::Fencing]);
}

#[test]
fn refusal_that_raises_the_fence_of_a_node_is_found() {
    assert_found(Defect::RefusalRaises, &[Promise::Service]);
}

#[test]
fn node_that_votes_as_soon_as_it_restarts_is_found() {
    assert_found(
        Defect::NoUptimeCheck,
        &[Promise::Exclusion, Promise::Fencing],
    );
}

#[test]
fn renewal_that_takes_its_next_holders_name_is_found() {
    assert_found(
        Defect::RenewalTakesBack,
        &[Promise::Fencing, Promise::Exclusion],
    );
}

#[test]
fn lease_believed_without_the_margin_for_clocks_is_found() {
    assert_found(Defect::NoMargin, &[Promise::Exclusion]);
}

#[test]
fn lease_dated_by_its_decision_is_found() {
    assert_found(Defect::DatedByDecision, &[Promise::Exclusion]);
}

#[test]
fn grant_of_a_minority_that_is_not_released_is_found() {
    assert_found(
        Defect::MinorityKept,
        &[Promise::Leftovers, Promise::Service],
    );
}

#[test]
fn r5_late_request_that_takes_a_node_is_found() {
    assert_found(Defect::NoDates, &[Promise::OneGrant]);
}

#[test]
fn r7_release_that_does_not_outlast_late_copies_is_found() {
    assert_found(Defect::ReleasedOnce, &[Promise::OneGrant]);
}

#[test]
fn p7_release_that_forgets_its_earlier_attempts_is_found() {
    assert_found(Defect::EachAttemptAlone, &[Promise::OneGrant]);
}

#[test]
fn fence_below_the_clocks_of_the_nodes_is_found() {
    assert_found(Defect::FenceBelowClock, &[Promise::Fencing]);
}
