//! Virtual processes on a virtual network, whatever goes wrong. A target of its own, so that nothing that goes by a
//! real clock runs beside it.
//!
//! `FAIRLOCK_STEPS` sets how long it is simulated, and `FAIRLOCK_SEED` where that begins; alone it plays one run.

use std::{env, time::Instant};

use super::defect::Defect;
use super::model::Promise;
use super::simulation::simulate;

const STEPS: u64 = 1_000_000;

#[test]
fn virtual_processes_keep_all_promises_whatever_goes_wrong() {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect(name))
    };
    let seed = number("FAIRLOCK_SEED");
    let steps = number("FAIRLOCK_STEPS").unwrap_or(if seed.is_some() { 1 } else { STEPS });
    let begun = Instant::now();
    let tally =
        simulate(seed.unwrap_or(0), steps, None).unwrap_or_else(|failure| panic!("{failure}"));
    println!(
        "{} steps in {} runs took {:?}",
        tally.steps,
        tally.runs,
        begun.elapsed()
    );
}

#[track_caller]
fn assert_found(defect: Defect, promises: &[Promise]) {
    let failure = simulate(0, STEPS, Some(defect)).expect_err("the defect is not found");
    println!("{defect:?}, after {} steps: {failure}", failure.steps());
    assert!(promises.contains(&failure.promise), "{failure}");
}

#[test]
fn served_time_that_counts_outages_is_found() {
    assert_found(Defect::R2, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn lost_places_that_are_taken_again_in_another_order_are_found() {
    assert_found(Defect::R4, &[Promise::Order]);
}

#[test]
fn requests_that_are_good_for_longer_than_their_callers_wait_are_found() {
    assert_found(Defect::R5, &[Promise::OneGrant]);
}

#[test]
fn a_token_that_is_sent_for_as_long_as_it_takes_is_found() {
    assert_found(Defect::R6, &[Promise::OneGrant]);
}

#[test]
fn a_token_that_a_late_copy_can_take_for_good_is_found() {
    assert_found(Defect::R7, &[Promise::OneGrant]);
}

#[test]
fn news_that_counts_while_a_request_is_in_flight_is_found() {
    assert_found(Defect::R8, &[Promise::Exclusion, Promise::OneGrant]);
}

#[test]
fn a_lapse_that_leaves_the_dead_their_places_is_found() {
    assert_found(Defect::R10, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn a_queue_whose_loss_is_not_noticed_is_found() {
    assert_found(
        Defect::R11,
        &[Promise::Service, Promise::WakeUp, Promise::Order],
    );
}

#[test]
fn a_grant_that_nobody_wants_and_nobody_gives_back_is_found() {
    assert_found(Defect::R13, &[Promise::OneGrant]);
}

#[test]
fn silent_processes_that_keep_their_places_for_too_long_are_found() {
    assert_found(Defect::Horizon, &[Promise::Order]);
}

#[test]
fn a_lease_that_outlasts_a_clock_that_went_back_is_found() {
    assert_found(Defect::R15, &[Promise::Service]);
}

#[test]
fn a_check_that_does_not_tell_who_the_owner_is_is_found() {
    assert_found(Defect::Owner, &[Promise::WakeUp]);
}

#[test]
fn a_hand_over_within_a_process_that_is_not_told_is_found() {
    assert_found(Defect::HandOver, &[Promise::WakeUp]);
}

#[test]
fn waiters_that_do_not_look_after_the_holder_are_found() {
    assert_found(Defect::Checks, &[Promise::Service, Promise::WakeUp]);
}

#[test]
fn a_lock_that_is_given_on_before_its_least_time_is_found() {
    assert_found(Defect::HoldAtLeast, &[Promise::Exclusion]);
}

#[test]
fn a_lock_that_is_held_past_its_longest_time_is_found() {
    assert_found(Defect::MaxHold, &[Promise::Service]);
}

#[test]
fn a_force_that_takes_whatever_is_there_is_found() {
    assert_found(Defect::Force, &[Promise::Fencing]);
}

#[test]
fn a_release_without_the_owner_check_is_found() {
    assert_found(Defect::OwnerUnchecked, &[Promise::Exclusion]);
}

#[test]
fn a_hand_over_that_keeps_the_fence_is_found() {
    assert_found(Defect::FenceKept, &[Promise::Fencing]);
}

#[test]
fn permits_that_are_not_there_are_found() {
    assert_found(Defect::Capacity, &[Promise::Exclusion]);
}

#[test]
fn a_light_one_that_overtakes_a_heavy_one_is_found() {
    assert_found(Defect::Overtaking, &[Promise::Order]);
}

#[test]
fn a_lapsed_holder_of_permits_that_leaves_the_dead_their_places_is_found() {
    assert_found(Defect::PermitR10, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn a_lapsed_holder_of_permits_that_is_forgotten_at_once_is_found() {
    assert_found(Defect::Tombstone, &[Promise::Exclusion]);
}

#[test]
fn permits_that_outlast_a_clock_that_went_back_are_found() {
    assert_found(Defect::PermitR15, &[Promise::Service]);
}

#[test]
fn a_reader_with_a_fence_of_its_own_is_found() {
    assert_found(Defect::ReaderRaises, &[Promise::Fencing, Promise::OneGrant]);
}

#[test]
fn a_grant_of_permits_that_keeps_the_fence_is_found() {
    assert_found(
        Defect::PermitFenceKept,
        &[Promise::Fencing, Promise::OneGrant],
    );
}

#[test]
fn a_release_that_gives_back_more_than_it_had_is_found() {
    assert_found(Defect::ReleasesMore, &[Promise::Exclusion]);
}

#[test]
fn a_downgrade_that_lets_a_writer_in_is_found() {
    assert_found(Defect::DowngradesAll, &[Promise::Exclusion]);
}

#[test]
fn holders_whose_loss_is_not_noticed_are_found() {
    assert_found(Defect::HoldersLost, &[Promise::Service, Promise::WakeUp]);
}

#[test]
fn a_record_that_is_lost_alone_and_not_made_again_from_its_holders_is_found() {
    assert_found(Defect::RecordLost, &[Promise::Exclusion, Promise::OneGrant]);
}

#[test]
fn permits_handed_over_within_a_process_that_is_not_told_are_found() {
    assert_found(Defect::PermitHandOver, &[Promise::WakeUp]);
}

#[test]
fn a_lookup_that_does_not_tell_of_a_missed_grant_is_found() {
    assert_found(Defect::Lookup, &[Promise::WakeUp, Promise::OneGrant]);
}

#[test]
fn a_release_by_one_whose_permits_are_gone_is_found() {
    assert_found(Defect::PermitUnchecked, &[Promise::Exclusion]);
}

#[test]
fn a_force_that_takes_permits_whatever_their_fence_is_found() {
    assert_found(Defect::PermitForce, &[Promise::Fencing]);
}
