//! Runs one after the other, and what is told of one that fails.

use std::fmt;
use std::time::Duration;

use super::defect::Defect;
use super::judge::Broken;
use super::model::Promise;
use super::plan::{self, Planned};
use super::run::Run;
use crate::config::{Config, LockOptions, Wanted};
use crate::key::Key;
use crate::store::memory::server::Server;

/// How often a plan that fails is played again to shorten it.
const TRIES: u32 = 400;

/// What all runs have in common: one name, and a ttl of 3 s, from which all else is derived.
pub(super) struct Setting {
    pub(super) config: Config,
    pub(super) key: Key,
    pub(super) ttl: Duration,
    pub(super) renewed: LockOptions,
    pub(super) fixed: LockOptions,
}

/// What was simulated without any promise broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Events: requests that arrived, replies, messages, times that came, and what was done to somebody.
    pub steps: u64,
    /// Runs, each with a seed of its own and a server that is empty at first.
    pub runs: u64,
}

/// A run that broke a promise. Its text tells how to play it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub promise: Promise,
    /// The seed of the run.
    pub seed: u64,
    what: String,
    planned: Vec<Planned>,
    steps: u64,
}

impl Failure {
    /// How many steps were simulated before.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.promise, self.what)?;
        writeln!(f, "FAIRLOCK_SEED={} plays it again. It comes about by", self.seed)?;
        self.planned.iter().try_for_each(|planned| writeln!(f, "  {planned}"))
    }
}

/// Simulates runs of consecutive seeds until so many steps are done, or one fails. A single run, if `steps` is 1.
///
/// # Errors
/// The first run that breaks a promise, with what was needed for it.
pub fn simulate(seed: u64, steps: u64, defect: Option<Defect>) -> Result<Tally, Box<Failure>> {
    let setting = Setting::new();
    let mut server = Server::new();
    if let Some(defect) = defect {
        defect.put_into(&mut server);
    }
    let mut tally = Tally { steps: 0, runs: 0 };
    while tally.steps < steps {
        let seed = seed + tally.runs;
        let planned = plan::plan(seed);
        let mut play = |planned: &[Planned]| -> (u64, Option<Broken>) {
            let mut run = Run::new(&setting, &mut server, seed, defect);
            let broken = run.play(planned).err();
            (run.steps, broken)
        };
        let (done, broken) = play(&planned);
        tally.steps += done;
        tally.runs += 1;
        if let Some((promise, _)) = broken {
            let planned = plan::shorten(planned, TRIES, &mut |rest| play(rest).1.is_some_and(|(p, _)| p == promise));
            let what = play(&planned).1.map_or(String::new(), |(_, what)| what);
            return Err(Box::new(Failure { promise, seed, what, planned, steps: tally.steps }));
        }
    }
    Ok(tally)
}

impl Setting {
    fn new() -> Setting {
        let ttl = Duration::from_secs(3);
        let renewed = LockOptions::new().ttl(ttl);
        let wanted = Wanted { options: renewed.clone(), ..Wanted::default() };
        let (config, _) = Config::new(wanted).expect("the numbers of a ttl fit each other");
        let key = Key::new(&config.prefix, "a").expect("it is a name");
        Setting { config, key, ttl, renewed, fixed: LockOptions::new().fixed_lease(ttl) }
    }
}
