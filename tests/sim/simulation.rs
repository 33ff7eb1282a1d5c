//! Runs one after the other, and the report of one that fails.

use std::fmt;

use super::defect::Defect;
use super::model::Promise;
use super::mutation::server_with;
use super::plan::{self, PlannedAction};
use super::run::Run;
use super::sim_setting::SimSetting;
use crate::store::memory::server::Server;

/// How often a plan that fails is played again to shorten it.
const TRIES: u32 = 400;

/// How many of a failed run's last requests the report shows.
const LAST_REQUESTS: usize = 40;

/// The amount that was simulated, with every promise kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many events there were: requests that arrived, replies, messages, timers and actions.
    pub(crate) steps: u64,
    /// How many runs there were. Each has a seed of its own and starts with an empty server.
    pub(crate) runs: u64,
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
    let mut server = server_of(defect);
    let mut tally = Tally { steps: 0, runs: 0 };
    for seed in seed.. {
        let setting = SimSetting::of_run(seed);
        if tally.steps >= steps {
            break;
        }
        if defect.is_some_and(|defect| !defect.concerns(setting.kind)) {
            continue;
        }
        let planned = plan::plan(seed);
        let mut run = Run::new(&setting, &mut server, seed, defect);
        let breach = run.play(&planned).err();
        tally.steps += run.steps;
        tally.runs += 1;
        if let Some(breach) = breach {
            let mut again = |planned: &[PlannedAction]| {
                let mut run = Run::new(&setting, &mut server, seed, defect);
                run.transcript = Some(Vec::new());
                let breach = run.play(planned).err();
                (breach, run.transcript.unwrap_or_default())
            };
            let planned = plan::shorten(planned, TRIES, &mut |rest| {
                let (found, _) = again(rest);
                found.is_some_and(|found| found.promise == breach.promise)
            });
            let (shortened, transcript) = again(&planned);
            return Err(Box::new(Failure {
                promise: breach.promise,
                what: shortened.unwrap_or(breach).what,
                seed,
                planned,
                transcript,
                steps: tally.steps,
            }));
        }
    }
    Ok(tally)
}

/// A server with the shipped scripts, but for the lines that the defect changes.
pub(super) fn server_of(defect: Option<Defect>) -> Server {
    server_with(&defect.map(Defect::mutations).unwrap_or_default())
}
