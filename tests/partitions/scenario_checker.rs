//! Checks a scenario from its notes, by the soak's checker.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::Path,
    time::Duration,
};

use crate::{
    checker::{self, Rule, Timings},
    history::{Attempt, History},
    run::worker,
    scenarios::{CLIENTS, Grants, Promises, Scenario},
    support::SLACK,
};

/// Short, like the timings derived from it, so that leases end often; see docs/CONFIGURATION.md.
pub(crate) const TIMINGS: Timings = Timings {
    ttl: Duration::from_secs(2),
    check_period: Duration::from_millis(250),
    command_timeout: Duration::from_millis(200),
    horizon: Duration::from_secs(1),
    slack: SLACK,
};

/// When everything was cut, and when the repair began.
pub(crate) struct Times {
    pub(crate) cut: u64,
    pub(crate) repaired: u64,
}

/// The observations of one scenario.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) grants: [usize; 3],
    pub(crate) overlaps: Vec<(u64, u64)>,
    pub(crate) refused: usize,
    /// How often the resource accepted the same fence from two holders.
    pub(crate) shared_fences: usize,
    pub(crate) ends: String,
    pub(crate) failures: Vec<String>,
}

impl Outcome {
    pub(crate) fn failed(why: String) -> Outcome {
        Outcome {
            failures: vec![why],
            ..Outcome::default()
        }
    }

    /// The longest overlap of two holds, and the time from the first overlap to the end of the last.
    pub(crate) fn overlap_times(&self) -> (Duration, Duration) {
        let longest = self.overlaps.iter().map(|(from, to)| to - from).max();
        let first = self.overlaps.iter().map(|(from, _)| *from).min();
        let last = self.overlaps.iter().map(|(_, to)| *to).max();
        let all = last.unwrap_or(0) - first.unwrap_or(0);
        (
            Duration::from_nanos(longest.unwrap_or(0)),
            Duration::from_nanos(all),
        )
    }
}

pub(crate) fn check(scenario: &Scenario, with_queue: bool, dir: &Path, times: Times) -> Outcome {
    let texts: Vec<String> = fs::read_dir(dir)
        .expect("there are notes")
        .map(|entry| fs::read_to_string(entry.unwrap().path()).expect("notes are text"))
        .collect();
    let history = match History::read(texts.iter().map(String::as_str)) {
        Ok(history) => history,
        Err(why) => return Outcome::failed(why),
    };
    let mut failures = Vec::new();
    for finding in checker::check(&history, &TIMINGS) {
        let expected = match finding.rule {
            Rule::Order => with_queue,
            Rule::Fences => scenario.promises != Promises::TwoMasters,
            _ => true,
        };
        if expected && !finding.violations.is_empty() {
            let number = finding.violations.len();
            let first: Vec<_> = finding.violations.iter().take(3).collect();
            failures.push(format!(
                "{:?}: {number} violations: {first:#?}",
                finding.rule
            ));
        }
    }
    failures.extend(wrong_ends(scenario, &history));
    let shared_fences = shared_fences(&history);
    if scenario.promises != Promises::TwoMasters {
        failures.extend(shared_fences.first().cloned());
    }
    let from = times.cut + scenario.takes_effect_in.as_nanos() as u64;
    let mut grants = [0; 3];
    for (at, grants) in grants.iter_mut().enumerate() {
        let within = |a: &&Attempt| {
            let granted = a.granted.as_ref().map_or(0, |grant| grant.at);
            a.worker == worker(at) && a.asked > from && granted > from && granted < times.repaired
        };
        *grants = history.attempts.iter().filter(within).count();
        let wrong = match scenario.grants[at] {
            Grants::Some => *grants == 0,
            Grants::None => *grants > 0,
            Grants::Unknown => false,
        };
        if wrong {
            failures.push(format!(
                "client {} was granted {grants} locks while cut, expected {:?}",
                CLIENTS[at], scenario.grants[at]
            ));
        }
    }
    Outcome {
        grants,
        overlaps: checker::overlap_spans(&history),
        shared_fences: shared_fences.len(),
        refused: history.writes.iter().filter(|w| !w.accepted).count(),
        ends: ends(&history),
        failures,
    }
}

/// The servers' errors that a partition explains: a call that met them was not carried out.
const EXPLAINED: [&str; 2] = ["server:CLUSTERDOWN", "server:NOREPLICAS"];

/// Other errors of servers, and holders that learnt of another holder though no data was lost.
fn wrong_ends(scenario: &Scenario, history: &History) -> Option<String> {
    let may_lose_data = matches!(scenario.promises, Promises::Failover | Promises::TwoMasters);
    let wrong = |how: &str| {
        // Sentinels that do not hear each other can make every node a replica for a while.
        let explained = EXPLAINED.contains(&how) || how == "server:READONLY" && may_lose_data;
        how.starts_with("server:") && !explained || how == "lost:Taken" && !may_lose_data
    };
    let ends = history.attempts.iter().filter_map(|a| {
        let (at, how) = a.ended.as_ref()?;
        wrong(how).then(|| format!("{} ({:?}, {}) ended at {at}: {how}", a.id, a.name, a.verb))
    });
    let ends: Vec<String> = ends.collect();
    let first = ends.first()?;
    Some(format!("{} wrong ends, the first: {first}", ends.len()))
}

/// Two holders whose writes the resource accepted with the same fence could overwrite each other.
fn shared_fences(history: &History) -> Vec<String> {
    let readers: HashSet<&str> = history
        .attempts
        .iter()
        .filter(|a| a.demand.reads())
        .map(|a| a.id.as_str())
        .collect();
    let mut owners = HashMap::new();
    let mut shared = Vec::new();
    for write in history.writes.iter().filter(|w| w.accepted) {
        if readers.contains(write.attempt.as_str()) {
            continue;
        }
        let owner = owners
            .entry((&write.name, write.fence))
            .or_insert(&write.attempt);
        if **owner != write.attempt {
            shared.push(format!(
                "{owner} and {} both wrote {:?} with fence {}",
                write.attempt, write.name, write.fence
            ));
        }
    }
    shared
}

/// How the attempts ended, and how often.
fn ends(history: &History) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for attempt in &history.attempts {
        let how = attempt.ended.as_ref().map_or("never", |(_, how)| how);
        *counts.entry(how).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(how, n)| format!("{how} {n}")).collect();
    counts.join(", ")
}
