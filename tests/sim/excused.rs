//! For each thing that the judge excuses, a history of the shipped engine and scripts that it would accuse otherwise, and
//! what it does not excuse.

use super::defect::Defect;
use super::model::ModelKind;
use super::model::Promise;
use super::plan::{Deed, Mishap, Terms};
use super::simulation::tests::{lock, play_of};

const SEMAPHORE: ModelKind = ModelKind::Semaphore(3);

#[track_caller]
fn assert_excused(kind: ModelKind, deeds: &[(u64, Deed)], shown_by: &str) {
    let runs = play_of(kind, deeds, None);
    assert!(
        runs.iter().any(|(_, told)| told.contains(shown_by)),
        "{shown_by} is in none of them: {}",
        runs[0].1
    );
    for (broken, told) in runs {
        assert!(broken.is_none(), "{broken:?}\n{told}");
    }
}

#[track_caller]
fn assert_accused(kind: ModelKind, deeds: &[(u64, Deed)], defect: Defect, promise: Promise) {
    for (broken, told) in play_of(kind, deeds, Some(defect)) {
        assert!(
            broken
                .as_ref()
                .is_some_and(|(broken, _)| *broken == promise),
            "{broken:?}\n{told}"
        );
    }
}

fn with(process: u8, hold: u64, terms: Terms, permits: u32) -> Deed {
    Deed::Lock {
        process,
        patience: None,
        hold,
        terms,
        permits,
    }
}

/// The order in which lost places are taken again (P3): he heard that he stands after a check was sent that was to find the
/// loss, so its answer tells nothing of him.
#[test]
fn who_hears_of_his_place_after_a_check_was_sent_is_no_part_of_its_answer() {
    let came = Deed::TryLock {
        process: 1,
        hold: 1,
        permits: 1,
    };
    let unheard = Deed::Mishap {
        process: 1,
        what: Mishap::LoseReply,
    };
    let heard_late = Deed::Mishap {
        process: 1,
        what: Mishap::DelayReply { by: 100 },
    };
    let late = Deed::Mishap {
        process: 1,
        what: Mishap::Delay { by: 150 },
    };
    let deeds = [
        (1, lock(0, 6_000)),
        (50, came),
        (99, unheard),
        (100, lock(1, 50)),
        (110, lock(1, 50)),
    ];
    let check = [(430, heard_late), (470, late), (600, Deed::DropRecord)];
    assert_excused(
        ModelKind::Mutex,
        &[&deeds[..], &check].concat(),
        "-> Absent",
    );
    // But he takes it again first if he heard before, however little.
    assert_excused(
        ModelKind::Mutex,
        &[&deeds[..], &[(450, Deed::DropRecord)]].concat(),
        "-> Absent",
    );
}

/// The same, of a check that came before the loss, and found an earlier one.
#[test]
fn a_check_that_came_before_a_loss_tells_nothing_of_it() {
    let mishap = |what| Deed::Mishap { process: 1, what };
    let lock_until = |patience| Deed::Lock {
        process: 1,
        patience: Some(patience),
        hold: 2_473,
        terms: Terms::Renewed,
        permits: 1,
    };
    let deeds = [
        (978, lock(2, 5_495)),
        (1_032, lock(1, 6_485)),
        (1_033, mishap(Mishap::LoseReply)),
        (1_033, mishap(Mishap::Delay { by: 305 })),
        (1_065, mishap(Mishap::LoseReply)),
        (1_169, lock_until(3_006)),
        (1_510, Deed::DropQueue),
        (1_556, lock(1, 7_925)),
        (1_556, mishap(Mishap::LoseReply)),
        (2_020, Deed::DropQueue),
    ];
    assert_excused(ModelKind::Mutex, &deeds, "waiting: [false, true, false]");
}

/// The same, of who took his place before the loss, and of whose request a copy comes after it.
#[test]
fn a_late_copy_from_before_a_loss_takes_no_place_again() {
    let late = Deed::Mishap {
        process: 1,
        what: Mishap::Reset { late: Some(270) },
    };
    let deeds = (0..4).map(|waiter| (500 + waiter, lock(1, 500)));
    // The check, and then what is sent when it has found the loss.
    let check = Deed::Mishap {
        process: 1,
        what: Mishap::Delay { by: 1 },
    };
    let found = [(1_900, Deed::FlushAll), (1_950, check), (1_951, late)];
    // It is checked once more before the next loss.
    let lost = [
        (
            2_015,
            Deed::Unsubscribe {
                process: 1,
                pause: 3,
            },
        ),
        (2_030, Deed::DropQueue),
    ];
    let deeds: Vec<_> = [(1, lock(0, 6_000))]
        .into_iter()
        .chain(deeds)
        .chain(found)
        .chain(lost)
        .collect();
    assert_excused(ModelKind::Mutex, &deeds, "Absent");
}

/// One grant for each token (P7): nobody heard of the first, and it lapsed; what was sent before comes then, in its time.
#[test]
fn a_request_may_come_after_a_grant_of_its_token_lapsed_of_which_nobody_had_heard() {
    let reset = Deed::Mishap {
        process: 0,
        what: Mishap::Reset { late: None },
    };
    let late = Deed::Mishap {
        process: 0,
        what: Mishap::Delay { by: 200 },
    };
    let came = Deed::TryLock {
        process: 1,
        hold: 9,
        permits: 1,
    };
    let mut deeds = vec![
        (1, lock(0, 1)),
        (
            50,
            Deed::Deaf {
                process: 0,
                pause: 3_300,
            },
        ),
        (60, lock(0, 5)),
    ];
    // Each of these makes it ask again at once.
    deeds.extend((0..21).map(|_| (2_700, reset)));
    deeds.extend([(2_701, late), (3_100, came)]);
    assert_excused(ModelKind::Mutex, &deeds, "mode: Unused } -> Released");
}

/// P1: it was taken away by force before its holder heard of it, who hears of that by his first renewal.
#[test]
fn a_grant_that_was_taken_by_force_before_it_was_heard_of_is_believed_in_until_a_renewal() {
    let late = Deed::DelayMessage {
        process: 0,
        by: 1_200,
    };
    let force = Deed::Force {
        process: 2,
        stale: false,
    };
    let deeds = [
        (1, lock(1, 4_000)),
        (100, lock(0, 2_000)),
        (105, lock(1, 6_000)),
        (110, lock(0, 50)),
    ];
    assert_excused(
        ModelKind::Mutex,
        &[&deeds[..], &[(200, late), (300, force), (400, force)]].concat(),
        "Gone",
    );
}

/// P6: a mutex has room for one that ended without a release.
#[test]
fn of_a_mutex_the_last_one_that_lapsed_is_told_so() {
    let pause = |process, pause| Deed::Pause { process, pause };
    let fixed = |process| with(process, 9_000, Terms::Fixed, 1);
    let deeds = [
        (1, fixed(0)),
        (50, pause(0, 8_000)),
        (100, fixed(2)),
        (150, lock(1, 50)),
        (3_100, pause(2, 6_000)),
    ];
    assert_excused(ModelKind::Mutex, &deeds, "mode: Lost } -> Unknown");
    assert_excused(ModelKind::Mutex, &deeds, "mode: Lost } -> Lapsed");
    assert_accused(
        ModelKind::Mutex,
        &deeds,
        Defect::Unknown,
        Promise::Exclusion,
    );
}

/// P6: the clock went back, and what is known of a lapsed lease lasts one ttl from then, and no more than that.
#[test]
fn what_became_of_a_lease_is_known_for_a_ttl_after_the_clock_went_back() {
    let deeds = |pause| {
        let (fixed, waits) = (
            with(0, 9_000, Terms::Fixed, 1),
            with(1, 50, Terms::Renewed, 2),
        );
        let lapses = [
            (1, lock(2, 6_000)),
            (1, fixed),
            (50, Deed::Pause { process: 0, pause }),
            (100, waits),
        ];
        let looks = [
            (1_100, Deed::StepClock { by: -2_000 }),
            (1_150, lock(1, 1)),
            (2_400, lock(1, 1)),
        ];
        [&lapses[..], &looks].concat()
    };
    assert_excused(SEMAPHORE, &deeds(3_400), "-> Already");
    assert_excused(SEMAPHORE, &deeds(1_600), "-> Lapsed");
    assert_accused(
        SEMAPHORE,
        &deeds(1_600),
        Defect::TombstoneStep,
        Promise::Exclusion,
    );
    // What was forgotten before stays so, though its time by the clock comes once more.
    let waits = [
        (1, lock(2, 6_000)),
        (1, with(0, 9_000, Terms::Fixed, 1)),
        (100, with(1, 50, Terms::Renewed, 2)),
    ];
    let looks = [
        (1_500, lock(1, 1)),
        (2_500, lock(1, 1)),
        (2_600, Deed::StepClock { by: -2_000 }),
    ];
    let paused = [(
        50,
        Deed::Pause {
            process: 0,
            pause: 2_700,
        },
    )];
    let mut deeds = [&waits[..], &looks, &paused].concat();
    deeds.sort_by_key(|(at, _)| *at);
    assert_excused(SEMAPHORE, &deeds, "-> Already");
}

/// P5: the clock went back, and one that lapses before long keeps others from looking at those that last for too long.
#[test]
fn a_lease_that_the_clock_made_too_long_is_seen_when_one_beside_it_is_over() {
    let deeds = [
        (1, lock(0, 1)),
        (50, lock(0, 5_000)),
        (300, with(1, 9_000, Terms::Fixed, 1)),
    ];
    let waits = [
        (1_100, Deed::StepClock { by: -200 }),
        (1_120, with(2, 50, Terms::Renewed, 3)),
    ];
    assert_excused(SEMAPHORE, &[&deeds[..], &waits].concat(), "Waiting");
    assert_accused(
        SEMAPHORE,
        &[&deeds[..], &waits].concat(),
        Defect::Shortest,
        Promise::Service,
    );
}

/// P5: the same, of one who died, for whose lease others wait for longer than if the clock had not gone back.
#[test]
fn a_lease_of_the_dead_that_the_clock_made_too_long_is_waited_for() {
    let deeds = [
        (1, lock(0, 2_895)),
        (2_880, lock(1, 9_000)),
        (2_910, Deed::StepClock { by: -2_880 }),
    ];
    let dies = [
        (2_915, Deed::Crash { process: 1 }),
        (2_930, with(2, 50, Terms::Renewed, 3)),
    ];
    assert_excused(SEMAPHORE, &[&deeds[..], &dies].concat(), "Waiting");
}

/// P7: a reply from before a step of the clock that is heard after it dates what is sent then.
#[test]
fn what_is_dated_by_a_reply_from_before_a_step_of_the_clock_may_come_too_late() {
    let heard_late = Deed::Mishap {
        process: 0,
        what: Mishap::DelayReply { by: 200 },
    };
    let late = Deed::Mishap {
        process: 0,
        what: Mishap::Delay { by: 2_000 },
    };
    let deeds = [
        (1, lock(1, 9_000)),
        (100, lock(0, 50)),
        (299, heard_late),
        (300, lock(0, 50)),
    ];
    let dated = [
        (400, Deed::StepClock { by: -4_000 }),
        (599, late),
        (600, lock(0, 50)),
    ];
    assert_excused(
        ModelKind::Mutex,
        &[&deeds[..], &dated].concat(),
        "Waiting { ticket: 3",
    );
}
