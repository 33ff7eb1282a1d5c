//! Whatever clients do and whatever befalls them, they see only what the promises allow. On both stores: random
//! sequences of operations, held against the reference model.
//!
//! The sequences are plain vectors of wishes, and no `proptest-state-machine`: that one draws each operation from the
//! state of a model that knows what the last one did, and here a model cannot know who was handed a lock before it
//! has been seen. A wish that nobody can have is passed over, so any shorter vector is a sequence too, and
//! shrinking is proptest's own.
//!
//! `PROPTEST_CASES` asks for more cases. A failure shows the shortest sequence that was found; it is to become a test.

mod arm;
mod play;

use std::{cell::Cell, env, time::Duration};

use crate::model::{LeaseTerm, ModelKind};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};

use arm::{Arm, InMemory, OnRedis};
use play::{CLIENTS, NAMES, Run, What, Wish};

use crate::scene::SOON;

/// How many sequences a store is tried with, unless the environment says otherwise.
const CASES: u32 = 250;

const LONGEST: usize = 40;

/// What a writer takes.
const WRITER: u32 = 1 << 30;

#[test]
fn clients_of_a_server_see_only_what_the_model_allows() {
    assert_promises_hold(&OnRedis::start());
}

#[test]
fn clients_of_the_memory_store_see_only_what_the_model_allows() {
    assert_promises_hold(&InMemory::new());
}

#[track_caller]
fn assert_promises_hold(arm: &dyn Arm) {
    let default = Config::default();
    let cases = if env::var_os("PROPTEST_CASES").is_some() {
        default.cases
    } else {
        CASES
    };
    // A sequence that fails is found by its promise, not by a file of seeds.
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..default
    });
    // What fails because nothing happens would make shrinking slow if each try waited for it as long.
    let patience = Cell::new(SOON);
    let result = runner.run(&(kinds(), vec(wish(), 1..LONGEST)), |(kinds, wishes)| {
        let mut run = Run::new(arm, kinds, patience.get());
        let seen = wishes
            .iter()
            .try_for_each(|wish| run.fulfil(wish))
            .and_then(|()| run.calm_down());
        if seen.is_err() {
            patience.set(Duration::from_secs(1));
        }
        seen
    });
    match result {
        Ok(()) => arm.assert_forgets(),
        Err(TestError::Fail(why, (kinds, wishes))) => {
            let wishes: Vec<String> = wishes.iter().map(|wish| format!("  {wish:?}\n")).collect();
            panic!("{why}by, of {kinds:?},\n{}", wishes.concat())
        }
        Err(error) => panic!("{error}"),
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    (
        0..CLIENTS,
        0..NAMES,
        any::<u8>(),
        any::<u8>(),
        what(),
        prop::bool::weighted(0.15),
    )
        .prop_map(|(client, name, pick, permits, what, twice)| Wish {
            client,
            name,
            pick,
            permits,
            what,
            twice,
        })
}

fn kinds() -> impl Strategy<Value = [ModelKind; NAMES as usize]> {
    prop::array::uniform2(prop_oneof![
        Just(ModelKind::Mutex),
        Just(ModelKind::Semaphore(3)),
        Just(ModelKind::ReadWrite(WRITER))
    ])
}

fn what() -> impl Strategy<Value = What> {
    let lease = || prop_oneof![Just(LeaseTerm::Fixed), Just(LeaseTerm::Renewed)];
    prop_oneof![
        3 => lease().prop_map(What::TryLock),
        6 => lease().prop_map(What::Enqueue),
        5 => Just(What::Claim),
        1 => Just(What::Leave),
        3 => Just(What::Unlock),
        1 => Just(What::Drop),
        2 => Just(What::Downgrade),
        1 => Just(What::Renew),
        1 => any::<bool>().prop_map(|stale| What::ForceRelease { stale }),
        2 => Just(What::Inspect),
        1 => Just(What::Repeat),
        1 => Just(What::Misuse),
        2 => Just(What::RunOut),
        1 => Just(What::Lapse),
        1 => Just(What::LoseNews),
    ]
}
