//! Random runs: the shipped code keeps all promises, and each defect breaks the promise that it
//! should.
//!
//! `FAIRLOCK_STEPS` sets the number of steps, and `FAIRLOCK_SEED` the first seed. With a seed alone
//! the test plays one run.

use std::env;
use std::time::Instant;

use super::defect::Defect;
use super::model::Promise;
use super::simulation::{lose_each_key, simulate};

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
    println!("{tally:?} took {:?}", begun.elapsed());
    assert!(
        seed.is_some() || tally.kept_turns > 500 && tally.recalls > 200,
        "hardly a lock was kept: {tally:?}"
    );
}

/// A report that cannot be played again helps nobody.
#[test]
fn same_seed_makes_the_same_run() {
    let report = || {
        let failure = simulate(0, STEPS, Some(Defect::LookCutShort)).expect_err("it is found");
        failure.to_string()
    };
    assert_eq!(report(), report());
}

/// Random runs with this defect break one of these promises.
#[track_caller]
fn assert_found(defect: Defect, promises: &[Promise]) {
    let failure = simulate(0, STEPS, Some(defect)).expect_err("no run shows the defect");
    println!("{defect:?}, after {} steps: {failure}", failure.steps());
    assert!(promises.contains(&failure.promise), "{failure}");
}

#[test]
fn r2_served_time_that_counts_outages_is_found() {
    assert_found(Defect::R2, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn r22_try_that_calls_nobody_is_found() {
    assert_found(Defect::NobodyCalled, &[Promise::Order]);
}

#[test]
fn r4_lost_places_taken_in_another_order_are_found() {
    assert_found(Defect::R4, &[Promise::Order]);
}

#[test]
fn r5_request_that_outlives_its_caller_s_wait_is_found() {
    assert_found(Defect::R5, &[Promise::OneGrant]);
}

/// R9 (own lapse): it would revive the lease of a process that has given up its release.
#[test]
fn r5_renewal_that_outlives_its_sender_s_wait_is_found() {
    for defect in [Defect::RenewalR5, Defect::JointRenewalR5, Defect::ForceR5] {
        assert_found(defect, &[Promise::OneGrant]);
    }
}

#[test]
fn r6_token_that_is_never_replaced_is_found() {
    assert_found(Defect::R6, &[Promise::OneGrant]);
}

#[test]
fn r7_late_copy_that_takes_the_lock_for_good_is_found() {
    assert_found(Defect::R7, &[Promise::OneGrant]);
}

#[test]
fn r8_message_that_counts_during_a_request_is_found() {
    assert_found(Defect::R8, &[Promise::Exclusion, Promise::OneGrant]);
}

#[test]
fn r10_lapse_that_leaves_the_dead_their_places_is_found() {
    assert_found(Defect::R10, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn r11_unnoticed_loss_of_the_queue_is_found() {
    assert_found(
        Defect::R11,
        &[Promise::Service, Promise::WakeUp, Promise::Order],
    );
}

/// Each key is lost at every step of calm runs.
#[test]
fn any_single_key_lost_at_any_step_breaks_nothing() {
    let tally = lose_each_key(0, STEPS, None);
    let tally = tally.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{} steps in {} runs", tally.steps, tally.runs);
}

#[test]
fn r11_lost_list_that_is_written_anew_is_found() {
    let promises = [Promise::Service, Promise::WakeUp, Promise::Order];
    assert_found(Defect::R11Rewrite, &promises);
    let failure = lose_each_key(0, STEPS, Some(Defect::R11Rewrite));
    let failure = failure.expect_err("no run shows the defect");
    println!("after {} steps: {failure}", failure.steps());
    assert!(promises.contains(&failure.promise), "{failure}");
}

#[test]
fn r13_unwanted_grant_that_is_never_released_is_found() {
    assert_found(Defect::R13, &[Promise::OneGrant]);
}

#[test]
fn silent_waiter_that_keeps_its_place_too_long_is_found() {
    assert_found(Defect::Horizon, &[Promise::Order]);
}

#[test]
fn r15_lease_prolonged_by_a_clock_that_went_back_is_found() {
    assert_found(Defect::R15, &[Promise::Service]);
}

#[test]
fn sync_that_does_not_report_the_owner_is_found() {
    assert_found(Defect::Owner, &[Promise::WakeUp]);
}

#[test]
fn unreported_hand_over_within_a_process_is_found() {
    assert_found(Defect::HandOver, &[Promise::WakeUp]);
}

#[test]
fn waiters_that_never_check_the_holder_are_found() {
    assert_found(Defect::Checks, &[Promise::Service, Promise::WakeUp]);
}

#[test]
fn r16_hand_over_before_hold_at_least_is_found() {
    assert_found(Defect::HoldAtLeast, &[Promise::Exclusion]);
}

#[test]
fn lock_held_past_its_max_hold_is_found() {
    assert_found(Defect::MaxHold, &[Promise::Service]);
}

#[test]
fn forced_release_that_ignores_the_fence_is_found() {
    assert_found(Defect::Force, &[Promise::Fencing]);
}

#[test]
fn release_without_the_owner_check_is_found() {
    assert_found(Defect::OwnerUnchecked, &[Promise::Exclusion]);
}

#[test]
fn renewals_together_that_ignore_the_owner_are_found() {
    assert_found(Defect::TogetherUnchecked, &[Promise::BadInput]);
}

#[test]
fn renewals_together_that_give_too_much_time_are_found() {
    assert_found(Defect::TogetherTooLong, &[Promise::Service]);
}

#[test]
fn release_that_ignores_the_fence_is_found() {
    assert_found(Defect::FenceUnchecked, &[Promise::Exclusion]);
}

#[test]
fn release_that_ignores_the_fence_without_waiters_is_found() {
    assert_found(Defect::FenceUncheckedAlone, &[Promise::Exclusion]);
}

#[test]
fn released_lock_that_counts_as_held_is_found() {
    assert_found(Defect::ReleaseTakenForCooling, &[Promise::WakeUp]);
}

#[test]
fn earlier_ends_that_are_forgotten_are_found() {
    assert_found(Defect::EndsForgotten, &[Promise::Exclusion]);
}

#[test]
fn earlier_force_taken_for_a_lapse_is_found() {
    assert_found(Defect::ForceTakenForLapse, &[Promise::Exclusion]);
}

#[test]
fn hand_over_that_keeps_the_fence_is_found() {
    assert_found(Defect::FenceKept, &[Promise::Fencing]);
}

#[test]
fn grant_of_more_permits_than_are_left_is_found() {
    assert_found(Defect::Capacity, &[Promise::Exclusion]);
}

#[test]
fn light_request_that_overtakes_a_heavy_one_is_found() {
    assert_found(Defect::Overtaking, &[Promise::Order]);
}

#[test]
fn r10_lapse_of_permits_that_keeps_dead_places_is_found() {
    assert_found(Defect::PermitR10, &[Promise::Order, Promise::WakeUp]);
}

#[test]
fn lapsed_permits_that_are_forgotten_at_once_are_found() {
    assert_found(Defect::Tombstone, &[Promise::Exclusion]);
}

#[test]
fn r15_permits_prolonged_by_a_clock_that_went_back_are_found() {
    assert_found(Defect::PermitR15, &[Promise::Service]);
}

#[test]
fn reader_with_a_fence_of_its_own_is_found() {
    assert_found(Defect::ReaderRaises, &[Promise::Fencing, Promise::OneGrant]);
}

#[test]
fn grant_of_permits_that_keeps_the_fence_is_found() {
    assert_found(
        Defect::PermitFenceKept,
        &[Promise::Fencing, Promise::OneGrant],
    );
}

#[test]
fn release_of_more_permits_than_held_is_found() {
    assert_found(Defect::ReleasesMore, &[Promise::Exclusion]);
}

#[test]
fn downgrade_that_lets_a_writer_in_is_found() {
    assert_found(Defect::DowngradesAll, &[Promise::Exclusion]);
}

#[test]
fn looks_that_take_many_calls_keep_all_promises() {
    let tally = simulate(0, STEPS / 2, Some(Defect::OnePerPage));
    tally.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn look_that_ends_after_its_first_page_is_found() {
    assert_found(
        Defect::LookCutShort,
        &[Promise::Order, Promise::Service, Promise::WakeUp],
    );
}

#[test]
fn record_made_again_without_an_expiry_is_found() {
    assert_found(Defect::RecordLost, &[Promise::Leftovers]);
}

#[test]
fn unreported_hand_over_of_permits_is_found() {
    assert_found(Defect::PermitHandOver, &[Promise::WakeUp]);
}

#[test]
fn lookup_that_hides_a_missed_grant_is_found() {
    assert_found(Defect::Lookup, &[Promise::WakeUp, Promise::OneGrant]);
}

#[test]
fn release_of_permits_already_lost_is_found() {
    assert_found(Defect::PermitUnchecked, &[Promise::Exclusion]);
}

#[test]
fn forced_release_of_permits_that_ignores_the_fence_is_found() {
    assert_found(Defect::PermitForce, &[Promise::Fencing]);
}

#[test]
fn r15_downgrade_that_keeps_a_too_long_lease_is_found() {
    assert_found(Defect::DowngradeR15, &[Promise::Service]);
}

#[test]
fn r15_lock_that_cools_for_longer_after_a_clock_step_is_found() {
    assert_found(Defect::CoolingR15, &[Promise::Service]);
}

#[test]
fn answer_that_prolongs_a_lease_after_a_clock_step_is_found() {
    assert_found(Defect::LeftTooLong, &[Promise::Exclusion]);
}

#[test]
fn client_that_believes_such_an_answer_is_found() {
    assert_found(Defect::LeftBelieved, &[Promise::Exclusion]);
}

#[test]
fn client_alone_withstands_such_an_answer() {
    let tally = simulate(0, STEPS / 4, Some(Defect::LeftDoubted));
    tally.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn drop_that_leaves_a_waiter_s_grant_unread_is_found() {
    assert_found(Defect::LeavesWaiters, &[Promise::WakeUp]);
}

#[test]
fn grant_dated_by_a_later_request_is_found() {
    assert_found(Defect::LaneDate, &[Promise::Exclusion]);
}

#[test]
fn refused_release_that_counts_as_done_is_found() {
    assert_found(Defect::RefusedIsDone, &[Promise::OneGrant]);
}

#[test]
fn answer_that_overtakes_a_refused_release_is_found() {
    assert_found(Defect::RefusedIsOvertaken, &[Promise::Order]);
}

#[test]
fn call_sent_again_before_an_earlier_release_is_found() {
    assert_found(Defect::ResendOrder, &[Promise::Order]);
}

#[test]
fn line_without_a_place_is_found() {
    assert_found(Defect::LinePlace, &[Promise::Leftovers]);
}

#[test]
fn line_with_one_turn_more_than_allowed_is_found() {
    assert_found(Defect::OneTurnMore, &[Promise::Order]);
}

#[test]
fn reserved_fences_that_are_given_out_again_are_found() {
    for defect in [
        Defect::ReserveForgotten,
        Defect::LastFenceForgotten,
        Defect::LastFenceUnnamed,
    ] {
        assert_found(defect, &[Promise::Fencing]);
    }
}

/// The fence runs away from the clock, and falls when the data is lost.
#[test]
fn abandoned_guard_that_uses_up_its_reserve_is_found() {
    assert_found(Defect::ReserveBurnt, &[Promise::Fencing]);
}

#[test]
fn forced_release_that_takes_the_first_fence_only_is_found() {
    assert_found(Defect::ForceFirstOnly, &[Promise::Fencing]);
}

/// Some of what can go wrong with a kept lock is rare among all runs.
#[test]
fn runs_of_keepers_alone_keep_all_promises() {
    let tally = simulate(0, STEPS / 2, Some(Defect::KeepersAlone));
    let tally = tally.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{tally:?}");
    assert!(
        tally.kept_turns > 2_000 && tally.recalls > 1_000,
        "{tally:?}"
    );
}

#[test]
fn process_that_nobody_tells_of_waiters_is_found() {
    for defect in [
        Defect::WantedIgnored,
        Defect::NobodyTold,
        Defect::GrantSaysNothing,
    ] {
        assert_found(defect, &[Promise::Order]);
    }
}

#[test]
fn deaf_process_that_believes_it_hears_is_found() {
    assert_found(Defect::AlwaysHeard, &[Promise::Order]);
}

#[test]
fn kept_lock_in_the_way_of_its_own_process_is_found() {
    assert_found(Defect::NoWayMade, &[Promise::Service]);
}
