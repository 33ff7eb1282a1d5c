//! On both stores: random sequences of operations and faults. The reference model must allow
//! everything that clients see.
//!
//! A sequence is a plain vector of planned steps. It does not use `proptest-state-machine`, which
//! draws each operation from the state of a model that knows the result of the last one. The model
//! here cannot know which waiter was handed a lock before a client has seen it. A step that is
//! impossible is skipped. So any shorter vector is a sequence too, and proptest can shrink it by
//! itself.
//!
//! `PROPTEST_CASES` sets the number of cases. A failure prints the shortest sequence that was
//! found. Make a test of it.

mod sequence_run;
mod store_under_test;

use std::{cell::Cell, env, time::Duration};

use crate::model::{LeaseTerm, ModelKind};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};

use sequence_run::{CLIENTS, NAMES, PlannedStep, SequenceRun, StepKind};
use store_under_test::{InMemory, OnRedis, StoreUnderTest};

use crate::fixtures::SOON;

/// How many sequences each store runs, unless the environment says otherwise.
const CASES: u32 = 250;

const LONGEST: usize = 40;

/// How many permits a writer takes.
const WRITER: u32 = 1 << 30;

#[test]
fn clients_of_a_server_see_only_what_the_model_allows() {
    assert_promises_hold(&OnRedis::start());
}

#[test]
fn memory_clients_see_only_what_the_model_allows() {
    assert_promises_hold(&InMemory::new());
}

#[track_caller]
fn assert_promises_hold(store: &dyn StoreUnderTest) {
    let default = Config::default();
    let cases = if env::var_os("PROPTEST_CASES").is_some() {
        default.cases
    } else {
        CASES
    };
    // A failing sequence becomes a test of its own, so no file of seeds is kept.
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..default
    });
    // A sequence may fail because something never happens. Shrinking would be slow if each try
    // waited for that with the full limit.
    let time_limit = Cell::new(SOON);
    let result = runner.run(
        &(kinds(), vec(planned_step(), 1..LONGEST)),
        |(kinds, steps)| {
            let mut run = SequenceRun::new(store, kinds, time_limit.get());
            let outcome = steps
                .iter()
                .try_for_each(|step| run.perform(step))
                .and_then(|()| run.finish());
            if outcome.is_err() {
                time_limit.set(Duration::from_secs(1));
            }
            outcome
        },
    );
    match result {
        Ok(()) => store.assert_keys_expire(),
        Err(TestError::Fail(why, (kinds, steps))) => {
            let steps: Vec<String> = steps.iter().map(|step| format!("  {step:?}\n")).collect();
            panic!("{why}by these steps on {kinds:?}:\n{}", steps.concat())
        }
        Err(error) => panic!("{error}"),
    }
}

fn planned_step() -> impl Strategy<Value = PlannedStep> {
    (
        0..CLIENTS,
        0..NAMES,
        any::<u8>(),
        any::<u8>(),
        step_kind(),
        prop::bool::weighted(0.15),
    )
        .prop_map(
            |(client, name, pick, permits, kind, loses_reply)| PlannedStep {
                client,
                name,
                pick,
                permits,
                kind,
                loses_reply,
            },
        )
}

fn kinds() -> impl Strategy<Value = [ModelKind; NAMES as usize]> {
    prop::array::uniform2(prop_oneof![
        Just(ModelKind::Mutex),
        Just(ModelKind::Semaphore(3)),
        Just(ModelKind::ReadWrite(WRITER))
    ])
}

fn step_kind() -> impl Strategy<Value = StepKind> {
    let lease = || prop_oneof![Just(LeaseTerm::Fixed), Just(LeaseTerm::Renewed)];
    prop_oneof![
        3 => lease().prop_map(StepKind::TryLock),
        6 => lease().prop_map(StepKind::Enqueue),
        5 => Just(StepKind::TakeGrant),
        1 => Just(StepKind::Cancel),
        2 => Just(StepKind::Unlock),
        3 => Just(StepKind::Drop),
        2 => Just(StepKind::Downgrade),
        1 => Just(StepKind::Renew),
        1 => any::<bool>().prop_map(|stale| StepKind::ForceRelease { stale }),
        2 => Just(StepKind::Inspect),
        1 => Just(StepKind::OtherKind),
        1 => Just(StepKind::Repeat),
        1 => Just(StepKind::Misuse),
        2 => Just(StepKind::Expire),
        1 => Just(StepKind::Lapse),
        1 => Just(StepKind::LoseMessage),
    ]
}
