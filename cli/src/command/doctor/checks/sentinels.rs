//! Sentinels: whether each answers, whether they agree, and when they act.

use std::collections::HashMap;
use std::time::Duration;

use super::answer::{Answer, Unknown};
use super::facts::{Facts, SentinelAnswers, SentinelFacts};
use super::{Check, Finding, Findings, Level, Limits, failure};

/// Whether all sentinels that answer name one master.
pub(super) fn agreement(facts: &Facts) -> Vec<Finding> {
    if facts.sentinels.is_empty() {
        return Vec::new();
    }
    let named: Vec<(&str, &str)> = facts
        .sentinels
        .iter()
        .filter_map(|sentinel| {
            let answers = sentinel.answers.as_ref().ok()?;
            let master = answers.master.as_ref().ok()?.as_deref()?;
            Some((sentinel.address.as_str(), master))
        })
        .collect();
    Findings::of(Check::Sentinels, None, |findings| {
        let Some((_, first)) = named.first() else {
            findings.fail(
                "no sentinel names a master",
                "start the sentinels, and SENTINEL MONITOR the service on each",
            );
            return Ok(String::new());
        };
        if named.iter().any(|(_, master)| master != first) {
            let all = named
                .iter()
                .map(|(by, master)| format!("{by} names {master}"));
            let all = all.collect::<Vec<_>>().join(", ");
            findings.fail(
                format!("the sentinels disagree: {all}"),
                "a failover may be under way; if it lasts, SENTINEL RESET the service on those \
                 that are behind",
            );
        }
        if let [_] = facts.sentinels[..] {
            findings.warn(
                "the URL names one sentinel: without it, no other master is found",
                "name all sentinels in the URL",
            );
        }
        let count = facts.sentinels.len();
        Ok(format!("{} of {count} name {first}", named.len()))
    })
}

/// One sentinel. Without it, locks go on.
pub(super) fn sentinel(facts: &Facts, sentinel: &SentinelFacts, limits: &Limits) -> Vec<Finding> {
    let SentinelFacts { address, user, .. } = sentinel;
    match &sentinel.answers {
        Ok(answers) => Findings::of(Check::Sentinels, Some(address), |findings| {
            answered(findings, facts, answers, user, limits)
        }),
        Err(error) => {
            let mut finding = failure::of_server(error, Check::Sentinels, address);
            finding.level = Level::Warning;
            vec![finding]
        }
    }
}

fn answered(
    findings: &mut Findings<'_>,
    facts: &Facts,
    answers: &SentinelAnswers,
    user: &str,
    limits: &Limits,
) -> Answer<String> {
    watching(findings, answers, user);
    if let Ok(fields) = &answers.fields {
        state(findings, fields);
        times(findings, fields, limits);
    }
    if let Ok(Err(why)) = &answers.can_agree {
        let remedy = "start the missing sentinels: a majority of them must be there";
        // Another one leads a failover, if that one can.
        if facts.sentinels.iter().any(can_lead) {
            findings.warn(format!("it cannot lead a failover: {why}"), remedy);
        } else {
            let message = format!("the sentinels cannot agree on a failover: {why}");
            findings.fail(message, remedy);
        }
    }
    let fields = answers.fields.as_ref().map_err(Clone::clone)?;
    let field = |name: &str| fields.get(name).map_or("some", String::as_str);
    Ok(format!(
        "knows {} other sentinels and {} replicas; {} must agree; down after {} ms",
        field("num-other-sentinels"),
        field("num-slaves"),
        field("quorum"),
        field("down-after-milliseconds"),
    ))
}

/// Whether it says that it could lead a failover now.
fn can_lead(sentinel: &SentinelFacts) -> bool {
    let answers = sentinel.answers.as_ref();
    answers.is_ok_and(|answers| answers.can_agree == Ok(Ok(())))
}

fn watching(findings: &mut Findings<'_>, answers: &SentinelAnswers, user: &str) {
    match (&answers.master, &answers.fields) {
        // A manager asks both questions.
        (Err(Unknown::NoRight(_)), _) | (_, Err(Unknown::NoRight(_))) => findings.fail(
            format!("the user {user} may not ask for the master"),
            format!(
                "ACL SETUSER {user} +sentinel|get-master-addr-by-name +sentinel|master, at the \
                 sentinel"
            ),
        ),
        (Ok(Some(_)), _) => {}
        (Ok(None), _) => findings.fail(
            "it does not watch the service of the URL",
            "SENTINEL MONITOR the service there, or correct the name of the service",
        ),
        (Err(unknown), _) => findings.fail(
            format!("the master is {unknown}"),
            "is it a sentinel? Its port is mostly 26379",
        ),
    }
}

fn state(findings: &mut Findings<'_>, fields: &HashMap<String, String>) {
    let flags = fields.get("flags").map_or("", String::as_str);
    if flags
        .split(',')
        .any(|flag| matches!(flag, "s_down" | "o_down"))
    {
        findings.fail(
            "the master is down in the eyes of this sentinel",
            "wait for the failover; SENTINEL CKQUORUM says whether it can happen",
        );
    }
    let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok());
    if number("num-other-sentinels").is_some_and(|others| others < 2) {
        findings.warn(
            "there are fewer than three sentinels: when one is away, no failover happens",
            "run three sentinels or more, on different hosts",
        );
    }
    if number("num-slaves") == Some(0) {
        findings.warn(
            "it knows no replica, so no failover is possible",
            "start a replica of the master",
        );
    }
}

/// A failover that begins later than leases end loses all locks.
fn times(findings: &mut Findings<'_>, fields: &HashMap<String, String>, limits: &Limits) {
    let time = |name: &str| {
        let ms = fields.get(name)?.parse().ok()?;
        Some(Duration::from_millis(ms))
    };
    let Some(down_after) = time("down-after-milliseconds") else {
        return;
    };
    let (timeout, survived) = (limits.command_timeout, limits.ttl * 2 / 3);
    if down_after < timeout {
        findings.warn(
            format!(
                "down-after-milliseconds is {down_after:?}: a master that is slow but within the \
                 command timeout of {timeout:?} is replaced"
            ),
            format!(
                "SENTINEL SET the service down-after-milliseconds {}",
                (timeout * 2).as_millis()
            ),
        );
    } else if down_after >= survived {
        findings.warn(
            format!(
                "down-after-milliseconds is {down_after:?}: when the master dies, locks with a \
                 ttl of {:?} are lost before another takes over",
                limits.ttl
            ),
            format!(
                "SENTINEL SET the service down-after-milliseconds {}, or a ttl of {:?}",
                (survived / 3).as_millis(),
                down_after * 3
            ),
        );
    }
    if time("failover-timeout").is_some_and(|timeout| timeout < down_after) {
        findings.warn(
            "failover-timeout is shorter than down-after-milliseconds",
            "SENTINEL SET the service failover-timeout 60000",
        );
    }
}
