//! The replicas of a master: whether they are there, keep up, and suffice.

use super::answer::{Answer, ReplicaLine};
use super::facts::{Deployment, NodeAnswers};
use super::{Findings, Limits};

/// A replica acknowledges once per second. One that has not done so for this long is behind.
const LAG_S: u64 = 5;

pub(super) fn replicas(
    findings: &mut Findings<'_>,
    deployment: Deployment,
    answers: &NodeAnswers,
    limits: &Limits,
) -> Answer<String> {
    let replicas = answers.info()?.replicas();
    slow_ones(findings, &replicas);
    let online = replicas.iter().filter(|replica| replica.is_online).count();
    let wanted = limits.replica_acks;
    if (online as u64) < u64::from(wanted) {
        findings.fail(
            format!("replica_acks wants {wanted}, and {online} are there: no lock can be taken"),
            "start the missing replicas, or ask for fewer by replica_acks (--replica-acks)",
        );
    }
    let follows_failovers = matches!(deployment, Deployment::Sentinel | Deployment::Cluster);
    if follows_failovers && replicas.is_empty() {
        findings.warn(
            "there are none, so nothing takes over when this master dies",
            match deployment {
                Deployment::Cluster => "redis-cli --cluster add-node with --cluster-slave",
                _ => "start one with replicaof this master's host and port",
            },
        );
    }
    least_to_write(findings, answers, &replicas);
    let is_bounded = wanted > 0 || answers.settings.number("min-replicas-to-write") != Ok(0);
    if follows_failovers && !replicas.is_empty() && !is_bounded {
        findings.warn(
            "min-replicas-to-write is 0: a master that is cut off goes on granting locks",
            "CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 1, on the \
             replicas too",
        );
    }
    let acks = match wanted {
        0 => String::new(),
        wanted => format!("; replica_acks wants {wanted}"),
    };
    Ok(match replicas.len() {
        0 => "none; nothing takes over when this server dies".to_owned(),
        _ => format!("{online} in sync{acks}"),
    })
}

fn slow_ones(findings: &mut Findings<'_>, replicas: &[ReplicaLine]) {
    for ReplicaLine {
        host,
        port,
        is_online,
        lag,
    } in replicas
    {
        if !is_online {
            findings.warn(
                format!("{host}:{port} is not in sync yet"),
                "wait; if it lasts, look at the log of that replica",
            );
        } else if *lag >= LAG_S {
            findings.warn(
                format!(
                    "{host}:{port} has acknowledged nothing for {lag} s: a failover loses that"
                ),
                "is that replica overloaded, stopped, or on a slow network?",
            );
        }
    }
}

/// Whether the master refuses writes for want of replicas.
fn least_to_write(findings: &mut Findings<'_>, answers: &NodeAnswers, replicas: &[ReplicaLine]) {
    let settings = &answers.settings;
    let Ok(least @ 1..) = settings.number("min-replicas-to-write") else {
        return;
    };
    let max_lag = settings.number("min-replicas-max-lag").unwrap_or(u64::MAX);
    // 0 turns the setting off.
    let max_lag = if max_lag == 0 { u64::MAX } else { max_lag };
    let good = replicas
        .iter()
        .filter(|replica| replica.is_online && replica.lag <= max_lag);
    let good = good.count() as u64;
    if max_lag != u64::MAX && good < least {
        findings.fail(
            format!(
                "min-replicas-to-write is {least}, and {good} are good: locks are refused \
                 (NOREPLICAS)"
            ),
            "start the missing replicas",
        );
    }
}
