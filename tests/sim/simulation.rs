//! Runs one after the other, and what is told of one that fails.

use std::fmt;
use std::time::Duration;

use super::defect::Defect;
use super::judge::Broken;
use super::model::ModelKind;
use super::model::Promise;
use super::plan::{self, Planned, Terms};
use super::run::Run;
use crate::config::{Config, Settings};
use crate::key::Key;
use crate::options::LockOptions;
use crate::script::LockSpec;
use crate::store::memory::server::Server;

/// How often a plan that fails is played again to shorten it.
const TRIES: u32 = 400;

/// How many of the requests of a run that failed are told.
const SHOWN: usize = 40;

/// What runs have in common: one name, and a ttl of 3 s, from which all else is derived.
pub(super) struct Setting {
    /// What the name is used as.
    pub(super) kind: ModelKind,
    pub(super) config: Config,
    pub(super) key: Key,
    pub(super) ttl: Duration,
    /// The least and the longest time of those who ask for one.
    pub(super) moment: Duration,
}

/// What was simulated without any promise broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Events: requests that arrived, replies, messages, times that came, and what was done to somebody.
    pub(crate) steps: u64,
    /// Runs, each with a seed of its own and a server that is empty at first.
    pub(crate) runs: u64,
}

/// A run that broke a promise. Its text tells how to play it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Which.
    pub(crate) promise: Promise,
    /// The seed of the run.
    pub(crate) seed: u64,
    what: String,
    planned: Vec<Planned>,
    told: Vec<String>,
    steps: u64,
}

impl Failure {
    /// How many steps were simulated before.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.promise, self.what)?;
        writeln!(
            f,
            "FAIRLOCK_SEED={} plays it again. It comes about by",
            self.seed
        )?;
        self.planned
            .iter()
            .try_for_each(|planned| writeln!(f, "  {planned}"))?;
        writeln!(f, "The server ran last")?;
        self.told
            .iter()
            .rev()
            .take(SHOWN)
            .rev()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Simulates runs of consecutive seeds until so many steps are done, or one fails. A single run, if `steps` is 1.
///
/// # Errors
/// The first run that breaks a promise, with what was needed for it.
pub(crate) fn simulate(
    seed: u64,
    steps: u64,
    defect: Option<Defect>,
) -> Result<Tally, Box<Failure>> {
    let mut server = Server::new();
    if let Some(defect) = defect {
        defect.put_into(&mut server);
    }
    let mut tally = Tally { steps: 0, runs: 0 };
    for seed in seed.. {
        let setting = Setting::new(plan::kind(seed));
        if tally.steps >= steps {
            break;
        }
        if defect.is_some_and(|defect| !defect.concerns(setting.kind)) {
            continue;
        }
        let planned = plan::plan(seed);
        let mut told = Vec::new();
        let mut play = |planned: &[Planned], tell: bool| -> (u64, Option<Broken>) {
            let mut run = Run::new(&setting, &mut server, seed, defect);
            run.told = tell.then(Vec::new);
            let broken = run.play(planned).err();
            told = run.told.unwrap_or_default();
            (run.steps, broken)
        };
        let (done, broken) = play(&planned, false);
        tally.steps += done;
        tally.runs += 1;
        if let Some((promise, what)) = broken {
            let planned = plan::shorten(planned, TRIES, &mut |rest| {
                play(rest, false).1.is_some_and(|(p, _)| p == promise)
            });
            let what = play(&planned, true).1.map_or(what, |(_, what)| what);
            return Err(Box::new(Failure {
                promise,
                seed,
                what,
                planned,
                told,
                steps: tally.steps,
            }));
        }
    }
    Ok(tally)
}

impl Setting {
    fn new(kind: ModelKind) -> Setting {
        let ttl = Duration::from_secs(3);
        let wanted = Settings {
            options: LockOptions::new().ttl(ttl),
            ..Settings::default()
        };
        let (config, _) = Config::new(wanted).expect("the numbers of a ttl fit each other");
        let key = Key::new(&config.prefix, "a").expect("it is a name");
        Setting {
            kind,
            config,
            key,
            ttl,
            moment: ttl / 3,
        }
    }

    pub(super) fn spec(&self, permits: u32) -> LockSpec {
        match self.kind {
            ModelKind::Mutex => LockSpec::MUTEX,
            ModelKind::Semaphore(all) => LockSpec::semaphore(all, permits),
            ModelKind::ReadWrite(all) if permits == all => LockSpec::write(),
            ModelKind::ReadWrite(_) => LockSpec::read(),
        }
    }

    pub(super) fn options(&self, terms: Terms) -> LockOptions {
        let options = LockOptions::new().ttl(self.ttl);
        match terms {
            Terms::Renewed => options,
            Terms::Fixed if self.kind == ModelKind::Mutex => {
                LockOptions::new().fixed_lease(self.ttl)
            }
            // Beside leases that last longer.
            Terms::Fixed => LockOptions::new().fixed_lease(self.moment),
            Terms::HoldAtLeast => options.hold_at_least(self.moment),
            Terms::MaxHold => options.max_hold(self.moment),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{Deed, Mishap};
    use super::*;

    /// What the runs of these deeds break, and what the server ran. The seed decides how long each way takes.
    fn play(deeds: &[(u64, Deed)], defect: Option<Defect>) -> Vec<(Option<Broken>, String)> {
        play_of(ModelKind::Mutex, deeds, defect)
    }

    pub(in crate::sim) fn play_of(
        kind: ModelKind,
        deeds: &[(u64, Deed)],
        defect: Option<Defect>,
    ) -> Vec<(Option<Broken>, String)> {
        let (setting, mut server) = (Setting::new(kind), Server::new());
        if let Some(defect) = defect {
            defect.put_into(&mut server);
        }
        let planned: Vec<Planned> = deeds
            .iter()
            .map(|(at, deed)| Planned {
                at: *at,
                deed: *deed,
            })
            .collect();
        let mut play = |seed| {
            let mut run = Run::new(&setting, &mut server, seed, defect);
            run.told = Some(Vec::new());
            let broken = run.play(&planned).err();
            (broken, run.told.unwrap_or_default().join("\n"))
        };
        (0..20).map(&mut play).collect()
    }

    pub(in crate::sim) fn lock(process: u8, hold: u64) -> Deed {
        Deed::Lock {
            process,
            patience: None,
            hold,
            terms: Terms::Renewed,
            permits: 1,
        }
    }

    #[track_caller]
    fn assert_keeps_promises(deeds: &[(u64, Deed)]) {
        for (broken, told) in play(deeds, None) {
            assert!(broken.is_none(), "{broken:?}\n{told}");
        }
    }

    /// In random runs this comes about once in some million steps.
    #[test]
    fn a_waiter_that_slept_for_too_long_and_is_the_first_to_ask_keeps_its_place() {
        let sleep = Deed::Pause {
            process: 1,
            pause: 7_500,
        };
        let deeds = [
            (1, lock(0, 9_000)),
            (300, lock(1, 50)),
            (700, sleep),
            (4_600, Deed::Crash { process: 0 }),
        ];
        assert_keeps_promises(&deeds);
        for (broken, told) in play(&deeds, Some(Defect::R3)) {
            let promise = broken.map(|(promise, _)| promise);
            assert!(
                matches!(promise, Some(Promise::Order | Promise::WakeUp)),
                "{promise:?}\n{told}"
            );
        }
    }

    #[test]
    fn a_dead_holder_is_spared_by_one_outage_and_not_by_the_next() {
        let (first, second) = (Deed::Hang { pause: 2_000 }, Deed::Hang { pause: 1_200 });
        let deeds = [
            (1, lock(0, 9_000)),
            (100, lock(0, 50)),
            (200, lock(1, 50)),
            (300, Deed::Crash { process: 0 }),
        ];
        let deeds = [&deeds[..], &[(1_500, first), (3_700, second)]].concat();
        assert_keeps_promises(&deeds);
        for (broken, told) in play(&deeds, Some(Defect::Grace)) {
            assert!(broken.is_some(), "{told}");
        }
    }

    #[test]
    fn a_dead_holder_of_permits_is_spared_by_one_outage_and_not_by_the_next() {
        let (first, second) = (Deed::Hang { pause: 2_000 }, Deed::Hang { pause: 1_200 });
        let all = |process, hold| Deed::Lock {
            process,
            patience: None,
            hold,
            terms: Terms::Renewed,
            permits: 3,
        };
        let deeds = [
            (1, all(0, 9_000)),
            (100, all(0, 50)),
            (200, all(1, 50)),
            (300, Deed::Crash { process: 0 }),
        ];
        let deeds = [&deeds[..], &[(1_500, first), (3_700, second)]].concat();
        for (broken, told) in play_of(ModelKind::Semaphore(3), &deeds, None) {
            assert!(broken.is_none(), "{broken:?}\n{told}");
        }
        for (broken, told) in play_of(ModelKind::Semaphore(3), &deeds, Some(Defect::PermitGrace)) {
            assert!(broken.is_some(), "{told}");
        }
    }

    #[test]
    fn a_lease_that_is_over_is_not_left_to_the_dead() {
        let deeds = [
            (1, lock(0, 9_000)),
            (100, lock(1, 50)),
            (300, Deed::Crash { process: 0 }),
        ];
        assert_keeps_promises(&deeds);
        for (broken, told) in play(&deeds, Some(Defect::Checks)) {
            let (promise, what) = broken.unwrap_or_else(|| panic!("{told}"));
            assert!(
                promise == Promise::Service && what.contains("was over"),
                "{what}\n{told}"
            );
        }
    }

    #[test]
    fn a_place_that_is_dropped_is_given_back() {
        let deeds = [
            (1, lock(0, 2_000)),
            (100, lock(1, 50)),
            (200, Deed::Drop { process: 1 }),
        ];
        assert_keeps_promises(&deeds);
        for (_, told) in play(&deeds, None) {
            assert!(told.contains("mode: Unused"), "{told}");
        }
    }

    #[test]
    fn a_process_that_hears_nothing_is_served_afterwards() {
        let deaf = Deed::Deaf {
            process: 1,
            pause: 900,
        };
        let deeds = [(1, lock(0, 500)), (100, lock(1, 50)), (200, deaf)];
        assert_keeps_promises(&deeds);
    }

    /// One request passes over 64; whoever sent it sends it again.
    #[test]
    fn more_heads_than_one_request_passes_over_are_passed_over() {
        for kind in [ModelKind::Mutex, ModelKind::Semaphore(3)] {
            let all = |process, hold| {
                let permits = kind.permits();
                Deed::Lock {
                    process,
                    patience: None,
                    hold,
                    terms: Terms::Renewed,
                    permits,
                }
            };
            let dead = (0..70).map(|waiter| (100 + waiter, all(1, 50)));
            let deeds = [
                (1, all(0, 4_000)),
                (300, all(2, 50)),
                (400, Deed::Crash { process: 1 }),
            ];
            let deeds: Vec<(u64, Deed)> = deeds.into_iter().chain(dead).collect();
            let lapse = [(401, Deed::Crash { process: 0 })];
            // About when the one who waits finds that the lease is over.
            let comes = (
                3_002,
                Deed::TryLock {
                    process: 0,
                    hold: 9,
                    permits: kind.permits(),
                },
            );
            for (after, said) in [
                (&[][..], "-> Already"),
                (&lapse, "-> Synced"),
                (&[lapse[0], comes], "-> More"),
            ] {
                let mut deeds = [&deeds, after].concat();
                deeds.sort_by_key(|(at, _)| *at);
                let runs = play_of(kind, &deeds, None);
                assert!(
                    runs.iter().any(|(_, told)| told.contains(said)),
                    "{said} was never said"
                );
                for (broken, told) in runs {
                    assert!(broken.is_none(), "{broken:?}\n{told}");
                }
            }
        }
    }

    /// Its entry in the list was not lost with those that were, and it asks again before it hears of that.
    #[test]
    fn a_token_that_stands_twice_is_granted_permits_once() {
        let semaphore = |process, hold, permits| Deed::Lock {
            process,
            patience: None,
            hold,
            terms: Terms::Renewed,
            permits,
        };
        let lost = Deed::Mishap {
            process: 1,
            what: Mishap::LoseReply,
        };
        let deeds = [
            (88, semaphore(0, 2_137, 3)),
            (680, semaphore(1, 2_167, 1)),
            (856, Deed::DropQueue),
            (856, lost),
            (1_003, semaphore(1, 2_408, 1)),
            (1_003, lost),
        ];
        for (broken, told) in play_of(ModelKind::Semaphore(3), &deeds, None) {
            assert!(broken.is_none(), "{broken:?}\n{told}");
        }
    }

    /// It left, a late copy of its acquire put it there again, and its process died.
    #[test]
    fn a_dead_token_that_stands_twice_is_counted_once() {
        let late = Deed::Mishap {
            process: 1,
            what: Mishap::Reset { late: Some(250) },
        };
        for kind in [ModelKind::Mutex, ModelKind::Semaphore(3)] {
            let all = |process, hold, patience| {
                let permits = kind.permits();
                Deed::Lock {
                    process,
                    patience,
                    hold,
                    terms: Terms::Renewed,
                    permits,
                }
            };
            let began = [(1, all(1, 9, None)), (50, all(0, 4_000, None)), (100, late)];
            let deeds = [(101, all(1, 50, Some(100))), (150, all(1, 50, None))];
            let others = [
                (360, Deed::Crash { process: 1 }),
                (400, all(2, 50, None)),
                (410, all(2, 50, None)),
            ];
            for (broken, told) in play_of(kind, &[&began[..], &deeds, &others].concat(), None) {
                assert!(broken.is_none(), "{broken:?}\n{told}");
            }
        }
    }

    /// A late copy of its acquire takes it again meanwhile, and is given back as well.
    #[test]
    fn permits_that_cool_twice_count_once() {
        let late = Deed::Mishap {
            process: 0,
            what: Mishap::Reset { late: Some(40) },
        };
        let terms = Terms::HoldAtLeast;
        let cools = Deed::Lock {
            process: 0,
            patience: None,
            hold: 17,
            terms,
            permits: 1,
        };
        for (broken, told) in play_of(
            ModelKind::Semaphore(3),
            &[(1, lock(0, 8)), (600, late), (700, cools)],
            None,
        ) {
            assert!(broken.is_none(), "{broken:?}\n{told}");
            assert!(
                told.matches("mode: Used } -> Released").count() > 2,
                "it cooled once: {told}"
            );
        }
    }

    /// Its renewals alone have seen the clock that went back.
    #[test]
    fn permits_of_one_who_dies_after_the_clock_went_back_are_looked_after_in_time() {
        let deeds = [
            (1, lock(0, 9_000)),
            (600, Deed::StepClock { by: -3_500 }),
            (1_200, Deed::Crash { process: 0 }),
        ];
        let all = Deed::Lock {
            process: 1,
            patience: None,
            hold: 50,
            terms: Terms::Renewed,
            permits: 3,
        };
        for at in [3_700, 4_000] {
            for (broken, told) in play_of(
                ModelKind::Semaphore(3),
                &[&deeds[..], &[(at, all)]].concat(),
                None,
            ) {
                assert!(broken.is_none(), "{broken:?}\n{told}");
            }
        }
    }

    #[test]
    fn a_late_copy_of_an_acquire_takes_no_lock_for_good() {
        let late = Deed::Mishap {
            process: 1,
            what: Mishap::Reset { late: Some(270) },
        };
        assert_keeps_promises(&[(1, lock(1, 8)), (600, late), (1300, lock(1, 9))]);
        assert_keeps_promises(&[
            (1, lock(1, 8)),
            (600, late),
            (
                1300,
                Deed::TryLock {
                    process: 1,
                    hold: 9,
                    permits: 1,
                },
            ),
        ]);
    }

    #[test]
    fn a_waiter_that_asks_again_after_a_later_one_was_served_waits_on() {
        let lost = Deed::Mishap {
            process: 0,
            what: Mishap::LoseReply,
        };
        let deeds = [
            (1, lock(0, 125)),
            (20, lock(0, 270)),
            (200, lost),
            (240, lock(0, 100)),
        ];
        assert_keeps_promises(
            &[&deeds[..], &[(310, Deed::DropQueue), (390, lock(1, 280))]].concat(),
        );
    }
}
