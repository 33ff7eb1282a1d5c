//! Clocks. No client's clock counts, so the difference to this host is information alone. Where a
//! lock may go by another server's clock later, the clocks of the servers must agree.

use std::time::Duration;

use super::answer::Answer;
use super::facts::{ClockReading, Deployment, Facts, NodeAnswers};
use super::{Check, Finding, Findings, Limits};
use crate::duration::measured;

/// The clock of one server.
pub(super) fn clock(answers: &NodeAnswers) -> Answer<String> {
    let ClockReading { ahead_us, error } = answers.clock;
    let by = measured(Duration::from_micros(ahead_us.unsigned_abs()));
    let side = if ahead_us < 0 { "behind" } else { "ahead of" };
    Ok(format!(
        "{by} {side} this host's (± {error:.1?}); no client's clock counts"
    ))
}

/// The clocks of all servers that may keep the same lock, one after the other or together.
pub(super) fn clocks(facts: &Facts, limits: &Limits) -> Vec<Finding> {
    let allowed = match facts.deployment {
        Deployment::Single => return Vec::new(),
        // A lease that goes by another clock after a failover, or after its slot has moved.
        Deployment::Sentinel | Deployment::Cluster => limits.clock_margin(),
        // A server whose clock differs by one ttl has no vote.
        _ => limits.ttl / 2,
    };
    let readings = facts.nodes.iter().filter_map(|node| {
        let answers = node.answers.as_ref().ok()?;
        Some((node.address.as_str(), answers.clock))
    });
    let readings: Vec<_> = readings.collect();
    let first = readings.iter().min_by_key(|(_, clock)| clock.ahead_us);
    let last = readings.iter().max_by_key(|(_, clock)| clock.ahead_us);
    let (Some((behind, first)), Some((ahead, last))) = (first, last) else {
        return Vec::new();
    };
    let apart = Duration::from_micros(last.ahead_us.abs_diff(first.ahead_us));
    let error = first.error + last.error;
    let certainly = apart.saturating_sub(error);
    let apart = measured(apart);
    Findings::of(Check::Clocks, None, |findings| {
        if readings.len() < 2 {
            return Ok("only one server answers, so there is nothing to compare".to_owned());
        }
        let message =
            format!("the clock of {ahead} is {apart} ahead of that of {behind} (± {error:.1?})");
        let remedy = "synchronise the clocks of all servers (NTP): chronyc makestep on each host";
        if certainly >= limits.ttl {
            let why = match facts.deployment {
                Deployment::Quorum => "that is a ttl, so it has no vote",
                _ => "after a failover, leases end a whole ttl early or late",
            };
            findings.fail(format!("{message}: {why}"), remedy);
        } else if certainly > allowed {
            let harmless = format!("{message}; up to {allowed:.1?} does no harm");
            findings.warn(harmless, remedy);
        }
        Ok(format!(
            "at most {apart} apart (± {error:.1?}); up to {allowed:.1?} does no harm"
        ))
    })
}
