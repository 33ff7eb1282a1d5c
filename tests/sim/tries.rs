//! R22 (tries among the dead), in histories that random runs make seldom.

use super::defect::Defect;
use super::model::{ModelKind, Promise};
use super::plan::Action;
use super::scenarios::{PlayedRun, SEMAPHORE, crash, lock_permits, play_of, try_lock};

const KINDS: [ModelKind; 3] = [ModelKind::Mutex, SEMAPHORE, ModelKind::ReadWrite(1 << 30)];

/// A process holds the lock, and another waits. The holder dies. Then this happens, and a third
/// process tries at this time.
fn play_try(
    kind: ModelKind,
    events: &[(u64, Action)],
    tries_at: u64,
    defect: Option<Defect>,
) -> Vec<PlayedRun> {
    let all = kind.permits();
    let mut actions = vec![
        (1, lock_permits(0, 60_000, all)),
        (100, lock_permits(1, 50, all)),
    ];
    actions.push((200, crash(0)));
    actions.extend(events);
    actions.push((tries_at, try_lock(2, 10, all)));
    play_of(kind, &actions, defect)
}

#[test]
fn r22_first_try_passes_all_the_dead() {
    for kind in KINDS {
        for run in play_try(kind, &[(250, crash(1))], 20_000, None) {
            run.assert_keeps_promises();
            let transcript = &run.transcript;
            assert!(
                transcript.contains("wait: NoneCame } -> Granted"),
                "{transcript}"
            );
        }
    }
}

/// The server was away for longer than the horizon, and is back just now.
#[test]
fn r22_live_waiter_keeps_its_place_after_an_outage() {
    let away = [
        Action::Hang { pause: 6_000 },
        Action::Restart {
            keep: true,
            pause: 6_000,
        },
        Action::FailOver {
            clock: 0,
            pause: 6_000,
        },
    ];
    let mut found = 0;
    for kind in KINDS {
        for outage in away {
            for tries_at in [6_301, 6_305, 6_310, 6_320, 6_335, 6_360] {
                let events = [(250, Action::Replicate), (300, outage)];
                for run in play_try(kind, &events, tries_at, None) {
                    run.assert_keeps_promises();
                }
                let runs = play_try(kind, &events, tries_at, Some(Defect::NobodyAwaited));
                let broken = runs.iter().filter_map(|run| run.breach.as_ref());
                found += broken
                    .filter(|breach| breach.promise == Promise::Order)
                    .count();
            }
        }
    }
    assert!(found > 0, "no try comes so early that nobody is back");
}

/// The clock of the server goes forward by more than the horizon, and nobody was away.
#[test]
fn r22_live_waiter_answers_the_call_after_a_step_of_the_clock() {
    for kind in KINDS {
        let events = [(1_000, Action::StepClock { by: 3_600_000 })];
        for run in play_try(kind, &events, 1_001, None) {
            run.assert_keeps_promises();
        }
    }
}

/// A live holder has one permit, a live waiter wants all, and a try wants one. The waiter comes
/// before the try asks again, and nobody can serve it.
#[test]
fn r22_try_behind_a_waiter_who_came_gets_nothing() {
    let actions = [
        (1, lock_permits(0, 60_000, 1)),
        (100, lock_permits(1, 50, 3)),
        (300, Action::Hang { pause: 2_000 }),
        (2_301, try_lock(2, 10, 1)),
        (4_000, crash(0)),
    ];
    for run in play_of(SEMAPHORE, &actions, None) {
        run.assert_keeps_promises();
        let transcript = &run.transcript;
        assert!(
            transcript.contains("wait: NoneCame } -> Busy"),
            "{transcript}"
        );
    }
    let runs = play_of(SEMAPHORE, &actions, Some(Defect::AnswerIgnored));
    assert!(runs.iter().all(|run| run.breach.is_some()));
}
