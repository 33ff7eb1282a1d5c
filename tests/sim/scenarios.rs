//! Histories that random runs make seldom. Each is played with 20 seeds, which decide how long each
//! way through the network takes.

use std::sync::Arc;

use super::breach::Breach;
use super::defect::Defect;
use super::model::{ModelKind, Promise};
use super::plan::{Action, LeaseKind, NetworkFault, PlannedAction, Rng};
use super::process::{Outage, SimProcess};
use super::run::Run;
use super::sim_setting::SimSetting;
use super::simulation::server_of;
use crate::engine::Request;
use crate::script::{Call, LockSpec, Mode, Outcome, ScriptReply, Token, Verb, Wait};
use crate::store::{Answer, CallResult};

pub(super) const SEMAPHORE: ModelKind = ModelKind::Semaphore(3);

/// The promise that a run broke, if any, and the server's requests.
pub(super) struct PlayedRun {
    pub(super) breach: Option<Breach>,
    pub(super) transcript: String,
}

impl PlayedRun {
    #[track_caller]
    pub(super) fn assert_keeps_promises(&self) {
        let PlayedRun { breach, transcript } = self;
        assert!(breach.is_none(), "{breach:?}\n{transcript}");
    }

    /// The promise that it broke.
    #[track_caller]
    fn broken(&self) -> Promise {
        let transcript = &self.transcript;
        let breach = self.breach.as_ref();
        breach.unwrap_or_else(|| panic!("{transcript}")).promise
    }
}

/// Plays these actions of a mutex, at these times in ms.
fn play(actions: &[(u64, Action)], defect: Option<Defect>) -> Vec<PlayedRun> {
    play_of(ModelKind::Mutex, actions, defect)
}

pub(super) fn play_of(
    kind: ModelKind,
    actions: &[(u64, Action)],
    defect: Option<Defect>,
) -> Vec<PlayedRun> {
    let setting = SimSetting::new(kind);
    let mut server = server_of(defect);
    let planned: Vec<PlannedAction> = actions
        .iter()
        .map(|&(at, action)| PlannedAction { at, action })
        .collect();
    let mut play = |seed| {
        let mut run = Run::new(&setting, &mut server, seed, defect);
        run.transcript = Some(Vec::new());
        PlayedRun {
            breach: run.play(&planned).err(),
            transcript: run.transcript.unwrap_or_default().join("\n"),
        }
    };
    (0..20).map(&mut play).collect()
}

/// A caller of this process takes one permit for this long, and its wait has no deadline.
pub(super) fn lock(process: u8, hold: u64) -> Action {
    lock_permits(process, hold, 1)
}

pub(super) fn lock_permits(process: u8, hold: u64, permits: u32) -> Action {
    Action::Lock {
        process,
        timeout: None,
        hold,
        lease_kind: LeaseKind::Renewed,
        permits,
    }
}

pub(super) fn lock_for(process: u8, hold: u64, permits: u32, timeout: u64) -> Action {
    Action::Lock {
        process,
        timeout: Some(timeout),
        hold,
        lease_kind: LeaseKind::Renewed,
        permits,
    }
}

pub(super) fn try_lock(process: u8, hold: u64, permits: u32) -> Action {
    Action::TryLock {
        process,
        hold,
        permits,
    }
}

pub(super) fn fault(process: u8, fault: NetworkFault) -> Action {
    Action::NetworkFault { process, fault }
}

pub(super) fn pause(process: u8, pause: u64) -> Action {
    Action::Pause { process, pause }
}

pub(super) fn crash(process: u8) -> Action {
    Action::Crash { process }
}

#[track_caller]
fn assert_keeps_promises(actions: &[(u64, Action)]) {
    assert_keeps_promises_of(ModelKind::Mutex, actions);
}

#[track_caller]
fn assert_keeps_promises_of(kind: ModelKind, actions: &[(u64, Action)]) {
    for run in play_of(kind, actions, None) {
        run.assert_keeps_promises();
    }
}

/// In random runs this happens about once in some million steps.
#[test]
fn r3_waiter_back_from_a_long_pause_keeps_its_place() {
    let actions = [
        (1, lock(0, 9_000)),
        (300, lock(1, 50)),
        (700, pause(1, 7_500)),
        (4_600, crash(0)),
    ];
    assert_keeps_promises(&actions);
    for run in play(&actions, Some(Defect::R3)) {
        let promise = run.broken();
        assert!(
            matches!(promise, Promise::Order | Promise::WakeUp),
            "{promise:?}\n{}",
            run.transcript
        );
    }
}

#[test]
fn dead_holder_gets_grace_for_one_outage_only() {
    let actions = [
        (1, lock(0, 9_000)),
        (100, lock(0, 50)),
        (200, lock(1, 50)),
        (300, crash(0)),
        (1_500, Action::Hang { pause: 2_000 }),
        (3_700, Action::Hang { pause: 1_200 }),
    ];
    assert_keeps_promises(&actions);
    for run in play(&actions, Some(Defect::Grace)) {
        run.broken();
    }
}

#[test]
fn dead_holder_of_permits_gets_grace_for_one_outage_only() {
    let actions = [
        (1, lock_permits(0, 9_000, 3)),
        (100, lock_permits(0, 50, 3)),
        (200, lock_permits(1, 50, 3)),
        (300, crash(0)),
        (1_500, Action::Hang { pause: 2_000 }),
        (3_700, Action::Hang { pause: 1_200 }),
    ];
    assert_keeps_promises_of(SEMAPHORE, &actions);
    for run in play_of(SEMAPHORE, &actions, Some(Defect::PermitGrace)) {
        run.broken();
    }
}

#[test]
fn dead_process_does_not_keep_a_lease_that_is_over() {
    let actions = [(1, lock(0, 9_000)), (100, lock(1, 50)), (300, crash(0))];
    assert_keeps_promises(&actions);
    for run in play(&actions, Some(Defect::Checks)) {
        let promise = run.broken();
        let what = run.breach.map_or_else(String::new, |breach| breach.what);
        assert!(
            promise == Promise::Service && what.contains("was over"),
            "{what}\n{}",
            run.transcript
        );
    }
}

#[test]
fn dropped_waiter_gives_up_its_place() {
    let actions = [
        (1, lock(0, 2_000)),
        (100, lock(1, 50)),
        (200, Action::DropWaiter { process: 1 }),
    ];
    for run in play(&actions, None) {
        run.assert_keeps_promises();
        let transcript = &run.transcript;
        assert!(transcript.contains("mode: Unused"), "{transcript}");
    }
}

#[test]
fn process_that_received_nothing_is_served_afterwards() {
    let deaf = Action::LoseInbound {
        process: 1,
        pause: 900,
    };
    assert_keeps_promises(&[(1, lock(0, 500)), (100, lock(1, 50)), (200, deaf)]);
}

/// One request passes over 64 heads. Then its sender sends it again.
#[test]
fn more_dead_heads_than_one_request_passes_over_are_passed() {
    for kind in [ModelKind::Mutex, SEMAPHORE] {
        let all = |process, hold| lock_permits(process, hold, kind.permits());
        let dead = (0..70).map(|waiter| (100 + waiter, all(1, 50)));
        let first = [(1, all(0, 4_000)), (300, all(2, 50)), (400, crash(1))];
        let actions: Vec<(u64, Action)> = first.into_iter().chain(dead).collect();
        let lapse = (401, crash(0));
        // About when the last waiter finds that the lease is over.
        let newcomer = (3_002, try_lock(0, 9, kind.permits()));
        for (after, answer) in [
            (&[][..], "-> Already"),
            (&[lapse], "-> Synced"),
            (&[lapse, newcomer], "-> More"),
        ] {
            let mut actions = [&actions, after].concat();
            actions.sort_by_key(|(at, _)| *at);
            let runs = play_of(kind, &actions, None);
            assert!(
                runs.iter().any(|run| run.transcript.contains(answer)),
                "no answer was {answer}"
            );
            for run in runs {
                run.assert_keeps_promises();
            }
        }
    }
}

/// The loss spared its entry in the list, and it acquires again before it learns of the loss.
#[test]
fn token_that_is_queued_twice_is_granted_permits_once() {
    let lost = fault(1, NetworkFault::LoseReply);
    let actions = [
        (88, lock_permits(0, 2_137, 3)),
        (680, lock_permits(1, 2_167, 1)),
        (856, Action::DropQueue),
        (856, lost),
        (1_003, lock_permits(1, 2_408, 1)),
        (1_003, lost),
    ];
    assert_keeps_promises_of(SEMAPHORE, &actions);
}

/// The waiter left, a late copy of its acquire queued it again, and its process died.
#[test]
fn dead_token_that_is_queued_twice_counts_once() {
    let late = fault(1, NetworkFault::Reset { late: Some(250) });
    for kind in [ModelKind::Mutex, SEMAPHORE] {
        let all = |process, hold| lock_permits(process, hold, kind.permits());
        let actions = [
            (1, all(1, 9)),
            (50, all(0, 4_000)),
            (100, late),
            (101, lock_for(1, 50, kind.permits(), 100)),
            (150, all(1, 50)),
            (360, crash(1)),
            (400, all(2, 50)),
            (410, all(2, 50)),
        ];
        assert_keeps_promises_of(kind, &actions);
    }
}

/// A late copy of the acquire takes the permit again while it cools. That lease does not cool.
#[test]
fn permits_taken_again_while_they_cool_count_once() {
    let late = fault(0, NetworkFault::Reset { late: Some(40) });
    let cools = Action::Lock {
        process: 0,
        timeout: None,
        hold: 17,
        lease_kind: LeaseKind::HoldAtLeast,
        permits: 1,
    };
    let actions = [(1, lock(0, 8)), (600, late), (700, cools)];
    for run in play_of(SEMAPHORE, &actions, None) {
        run.assert_keeps_promises();
        let transcript = &run.transcript;
        assert!(
            transcript.contains("mode: Used } -> Lapsed"),
            "no late copy came: {transcript}"
        );
    }
}

/// It ends a cooling, and the second copy finds nothing to end.
#[test]
fn forced_release_that_comes_twice_is_not_refused() {
    let cools = Action::Lock {
        process: 0,
        timeout: None,
        hold: 17,
        lease_kind: LeaseKind::HoldAtLeast,
        permits: 1,
    };
    let late = fault(2, NetworkFault::Reset { late: Some(1) });
    let force = Action::Force {
        process: 2,
        stale: false,
    };
    let actions = [(1, lock(2, 8)), (600, cools), (650, late), (651, force)];
    for kind in [ModelKind::Mutex, SEMAPHORE] {
        let mut is_repeated = false;
        for run in play_of(kind, &actions, None) {
            run.assert_keeps_promises();
            let mut lines = run.transcript.lines();
            is_repeated |=
                lines.any(|line| line.contains("mode: Forced") && line.contains("-> Already"));
        }
        assert!(is_repeated, "no forced release came twice");
    }
    let runs = play(&actions, Some(Defect::ForceForgotten));
    let is_refused = |run: &PlayedRun| {
        let breach = run.breach.as_ref();
        breach.is_some_and(|breach| breach.promise == Promise::OneGrant)
    };
    assert!(runs.iter().any(is_refused), "{}", runs[0].transcript);
}

/// Only the renewals of the dead holder have seen that the clock went back.
#[test]
fn dead_permits_lapse_in_time_after_the_clock_went_back() {
    for at in [3_700, 4_000] {
        let actions = [
            (1, lock(0, 9_000)),
            (600, Action::StepClock { by: -3_500 }),
            (1_200, crash(0)),
            (at, lock_permits(1, 50, 3)),
        ];
        assert_keeps_promises_of(SEMAPHORE, &actions);
    }
}

#[test]
fn late_copy_of_an_acquire_takes_no_lock_for_good() {
    let late = fault(1, NetworkFault::Reset { late: Some(270) });
    for comes in [lock(1, 9), try_lock(1, 9, 1)] {
        assert_keeps_promises(&[(1, lock(1, 8)), (600, late), (1300, comes)]);
    }
}

#[test]
fn waiter_waits_on_after_a_later_one_was_served() {
    let actions = [
        (1, lock(0, 125)),
        (20, lock(0, 270)),
        (200, fault(0, NetworkFault::LoseReply)),
        (240, lock(0, 100)),
        (310, Action::DropQueue),
        (390, lock(1, 280)),
    ];
    assert_keeps_promises(&actions);
}

fn drop_and_try(process: u8) -> Action {
    Action::DropAndTry {
        process,
        permits: 1,
    }
}

/// The try is written behind the release, whose reply nobody has read.
#[test]
fn lock_dropped_just_now_can_be_taken_again() {
    let actions = [(1, lock(0, 2_000)), (100, drop_and_try(0))];
    for kind in [ModelKind::Mutex, SEMAPHORE] {
        for run in play_of(kind, &actions, None) {
            run.assert_keeps_promises();
            let transcript = &run.transcript;
            let order = ["mode: Used } -> Released", "wait: No } -> Granted"];
            let found = order.map(|what| transcript.find(what));
            assert!(found[0].is_some() && found[0] < found[1], "{transcript}");
        }
    }
}

/// The connection ends under the release, and its caller is gone. The try that comes next sends it
/// again first.
#[test]
fn dropped_lock_is_released_first_on_the_next_connection() {
    for late in [None, Some(1)] {
        let reset = fault(0, NetworkFault::Reset { late });
        let actions = [(1, lock(0, 2_000)), (100, reset), (100, drop_and_try(0))];
        for run in play(&actions, None) {
            run.assert_keeps_promises();
            let transcript = &run.transcript;
            assert!(transcript.contains("wait: No } -> Granted"), "{transcript}");
        }
        let runs = play(&actions, Some(Defect::ResendOrder));
        let is_late = |run: &PlayedRun| run.breach.is_some() && run.broken() == Promise::Order;
        assert!(runs.iter().any(is_late) || late.is_some());
    }
}

/// The server does not know the script of the release, and the answer to the try behind it is void.
#[test]
fn release_refused_by_noscript_is_sent_again_before_answers_count() {
    let actions = [
        (1, lock(0, 2_000)),
        (100, Action::ForgetScripts),
        (100, drop_and_try(0)),
    ];
    for run in play(&actions, None) {
        run.assert_keeps_promises();
        let transcript = &run.transcript;
        assert!(
            transcript.contains("mode: Used } -> \"NOSCRIPT\""),
            "{transcript}"
        );
        assert!(transcript.contains("-> Granted"), "{transcript}");
    }
    for run in play(&actions, Some(Defect::RefusedIsDone)) {
        assert_eq!(run.broken(), Promise::OneGrant, "{}", run.transcript);
    }
}

/// Replies that nobody waits for are read a command timeout later: a release that was lost is sent
/// again then, and no caller was needed for that.
#[test]
fn lost_release_of_a_dropped_guard_is_sent_again() {
    let faults = [
        NetworkFault::LoseRequest,
        NetworkFault::LoseReply,
        NetworkFault::Reset { late: None },
        NetworkFault::Reset { late: Some(700) },
    ];
    for lost in faults {
        let drop_and_wait = Action::Lock {
            process: 0,
            timeout: None,
            hold: 98,
            lease_kind: LeaseKind::Renewed,
            permits: 1,
        };
        let actions = [
            (1, drop_and_wait),
            (90, fault(0, lost)),
            (1_200, lock(1, 9)),
        ];
        assert_keeps_promises(&actions);
    }
}

/// All guards of a process are dropped, and it crashes at once. Its kernel sends what was written,
/// unless it resets the connection.
#[test]
fn lock_dropped_before_a_crash_is_free_at_once() {
    let crash = Action::DropAndCrash { process: 0 };
    let actions = [(1, lock(0, 2_000)), (50, lock(1, 9)), (200, crash)];
    for run in play(&actions, None) {
        run.assert_keeps_promises();
        let transcript = &run.transcript;
        assert!(
            transcript.contains("mode: Used } -> Released"),
            "{transcript}"
        );
    }
    let several = [1, 1, 2, 3].map(|at| (at, lock(0, 2_000)));
    let actions = [&several[..], &[(200, crash)]].concat();
    let readers = ModelKind::ReadWrite(LockSpec::write().weight);
    assert_keeps_promises_of(readers, &actions);
    let runs = play_of(readers, &actions, Some(Defect::LeavesUnread));
    let is_reset = |run: &PlayedRun| run.breach.is_some() && run.broken() == Promise::Service;
    assert!(runs.iter().any(is_reset), "{}", runs[0].transcript);
}

/// P6, R15 (clock went back): the server's clock goes back between a grant and an answer that
/// repeats it, by more than the lease is long.
#[test]
fn repeated_grant_has_no_more_than_its_full_lease() {
    let back = Action::StepClock { by: -9_000 };
    // The acquire is sent again.
    let sent_again = [
        (1, try_lock(0, 1, 1)),
        (99, fault(0, NetworkFault::LoseReply)),
        (100, lock(0, 9_000)),
        (200, back),
    ];
    // The message is lost, and a lookup finds the grant. The clock goes back after the check that
    // makes the process send it.
    let looked_up = [
        (1, lock_permits(1, 1_000, 3)),
        (100, lock(0, 9_000)),
        (900, Action::LoseMessage { process: 0 }),
        (1_150, fault(0, NetworkFault::DelayReply { by: 100 })),
        (1_280, back),
    ];
    // The message is lost, and the waiter leaves the queue at its deadline.
    let left_queue = [
        (1, lock_permits(1, 1_000, 3)),
        (100, lock_for(0, 9_000, 1, 950)),
        (900, Action::LoseMessage { process: 0 }),
        (1_030, back),
    ];
    let histories: [&[(u64, Action)]; 3] = [&sent_again, &looked_up, &left_queue];
    for actions in histories {
        assert_keeps_promises(actions);
        assert_keeps_promises_of(SEMAPHORE, actions);
    }
}

/// R7 (late copies): a try for several names was sent twice, and its second copy takes nothing. The
/// first may have taken the lock, or may take it yet. The next try has another token.
#[test]
fn r7_doubtful_try_for_a_group_is_abandoned() {
    let setting = SimSetting::new(ModelKind::Mutex);
    let outage = Outage::default();
    let mut process = SimProcess::new(1, &setting.config, Rng::new(1), 0, outage);
    let options = setting.options(LeaseKind::Renewed);
    let request = Arc::new(Request::new(
        LockSpec::MUTEX,
        setting.key.clone(),
        &options,
        1,
    ));
    for (outcome, resent) in [
        (Outcome::Late, true),
        (Outcome::More, true),
        (Outcome::Late, false),
    ] {
        let token = Token::new();
        let call = process.engine.begin_try(&request, token, Wait::No);
        let reply = ScriptReply::of(outcome, Some(1));
        let sent = process.local(0);
        let result = CallResult {
            answer: Ok(Answer {
                reply,
                sent,
                resent,
            }),
            not_after: 7,
        };
        let granted = process
            .engine
            .on_group_try_reply(&request, token, &call, result);
        let (_, calls) = process.engine.collect();
        let abandons = |call: &Call| matches!(call.verb, Verb::Release { token: of, mode: Mode::Unused, .. } if of == token);
        assert_eq!((granted, calls.iter().any(abandons)), (false, resent));
    }
}
