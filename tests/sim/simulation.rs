//! Runs one after the other, and the report of one that fails.

use std::fmt;

use super::defect::Defect;
use super::model::{ModelKind, Promise};
use super::mutation::{REWRITES_EARLY, server_with};
use super::plan::{self, Action, NameKey, PlannedAction};
use super::run::Run;
use super::sim_setting::SimSetting;
use crate::store::memory::server::ScriptServer;

/// How often a plan that fails is played again to shorten it.
const TRIES: u32 = 400;

/// How many of a failed run's last requests the report shows.
const LAST_REQUESTS: usize = 40;

/// The amount that was simulated, with every promise kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many events there were: requests that arrived, replies, messages, timers and actions.
    pub(crate) steps: u64,
    /// How many runs there were. Each has a seed of its own and starts with an empty server.
    pub(crate) runs: u64,
    /// How many guards got a kept lock.
    pub(crate) kept_turns: u64,
    /// How many messages said that somebody waits.
    pub(crate) recalls: u64,
}

/// A run that broke a promise. Its text says how to play it again.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The first promise that it broke.
    pub(crate) promise: Promise,
    what: String,
    /// The seed of the run.
    seed: u64,
    planned: Vec<PlannedAction>,
    transcript: Vec<String>,
    steps: u64,
}

impl Failure {
    /// How many steps were simulated up to it.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.promise, self.what)?;
        writeln!(
            f,
            "FAIRLOCK_SEED={} plays it again. These actions lead to it:",
            self.seed
        )?;
        self.planned
            .iter()
            .try_for_each(|planned| writeln!(f, "  {planned}"))?;
        writeln!(f, "The server's last requests:")?;
        let from = self.transcript.len().saturating_sub(LAST_REQUESTS);
        self.transcript[from..]
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Simulates runs of consecutive seeds until this many steps are done, or one run fails. With 1
/// step it plays a single run.
///
/// # Errors
/// The first run that breaks a promise, with the actions that it takes.
pub(crate) fn simulate(
    seed: u64,
    steps: u64,
    defect: Option<Defect>,
) -> Result<Tally, Box<Failure>> {
    let mut simulation = Simulation::new(defect);
    for seed in seed.. {
        if simulation.tally.steps >= steps {
            break;
        }
        if simulation.concerns(seed) {
            simulation.play(seed, plan::plan(seed))?;
        }
    }
    Ok(simulation.tally)
}

/// The same for runs in which nothing goes wrong but that the server loses one key. Each of these is
/// played again and again: the server loses each of the keys after each of its requests.
///
/// # Errors
/// As for [`simulate`].
pub(crate) fn lose_each_key(
    seed: u64,
    steps: u64,
    defect: Option<Defect>,
) -> Result<Tally, Box<Failure>> {
    let mut simulation = Simulation::new(defect);
    for seed in seed.. {
        if !simulation.concerns(seed) {
            continue;
        }
        let calm = plan::calm_plan(seed);
        let requests = simulation.play(seed, calm.clone())?;
        let keys = [NameKey::Queue, NameKey::Record, NameKey::Holders];
        let is_mutex = plan::kind(seed) == ModelKind::Mutex;
        for key in keys.into_iter().take(if is_mutex { 2 } else { 3 }) {
            for requests in 1..=requests {
                if simulation.tally.steps >= steps {
                    return Ok(simulation.tally);
                }
                let action = Action::LoseKeyAfter { requests, key };
                let loss = PlannedAction { at: 0, action };
                simulation.play(seed, [&[loss], &calm[..]].concat())?;
            }
        }
    }
    Ok(simulation.tally)
}

struct Simulation {
    defect: Option<Defect>,
    server: ScriptServer,
    /// For every other run of each kind. No run has a queue that the shipped scripts write anew.
    early_server: ScriptServer,
    tally: Tally,
}

impl Simulation {
    fn new(defect: Option<Defect>) -> Simulation {
        let mut mutations = defect.map(Defect::mutations).unwrap_or_default();
        let server = server_with(&mutations);
        mutations.push(REWRITES_EARLY);
        Simulation {
            defect,
            server,
            early_server: server_with(&mutations),
            tally: Tally::default(),
        }
    }

    /// Whether the run of this seed can show the defect.
    fn concerns(&self, seed: u64) -> bool {
        let kind = plan::kind(seed);
        let keeps = || SimSetting::of_run(seed).keep.is_some();
        self.defect
            .is_none_or(|defect| defect.concerns(kind) && (!defect.is_of_keepers() || keeps()))
    }

    /// Plays a plan. Returns how many requests the server has run.
    fn play(&mut self, seed: u64, planned: Vec<PlannedAction>) -> Result<u64, Box<Failure>> {
        let setting = SimSetting::of_run(seed);
        let server = if (seed / 4).is_multiple_of(2) {
            &mut self.server
        } else {
            &mut self.early_server
        };
        let mut run = Run::new(&setting, server, seed, self.defect);
        let breach = run.play(&planned).err();
        let requests = run.requests;
        self.tally.steps += run.steps;
        self.tally.runs += 1;
        self.tally.kept_turns += run.kept_turns;
        self.tally.recalls += run.recalls;
        let Some(breach) = breach else {
            return Ok(requests);
        };
        let mut again = |planned: &[PlannedAction]| {
            let mut run = Run::new(&setting, server, seed, self.defect);
            run.transcript = Some(Vec::new());
            let breach = run.play(planned).err();
            (breach, run.transcript.unwrap_or_default())
        };
        let planned = plan::shorten(planned, TRIES, &mut |rest| {
            let (found, _) = again(rest);
            found.is_some_and(|found| found.promise == breach.promise)
        });
        let (shortened, transcript) = again(&planned);
        Err(Box::new(Failure {
            promise: breach.promise,
            what: shortened.unwrap_or(breach).what,
            seed,
            planned,
            transcript,
            steps: self.tally.steps,
        }))
    }
}

/// A server with the shipped scripts, but for the lines that the defect changes.
pub(super) fn server_of(defect: Option<Defect>) -> ScriptServer {
    server_with(&defect.map(Defect::mutations).unwrap_or_default())
}
