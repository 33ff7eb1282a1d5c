//! Checks of one server: how fast it answers, and what it is.

use std::time::Duration;

use super::answer::{Answer, Info, is_older};
use super::facts::{Deployment, NodeAnswers, NodeRole};
use super::{Findings, Limits};

/// The oldest server that can be used.
const OLDEST: (u32, u32) = (6, 2);

/// A connection must open within the connect timeout. One that needs half of it will fail when the
/// server is a little slower.
pub(super) fn connection(
    findings: &mut Findings<'_>,
    answers: &NodeAnswers,
    limits: &Limits,
) -> Answer<String> {
    let (took, limit) = (answers.connected_in, limits.connect_timeout);
    if took >= limit / 2 {
        findings.warn(
            format!("connecting took {took:.1?} of the {limit:?} that it may take"),
            format!(
                "set connect_timeout (--command-timeout) to at least {:?}",
                rounded(took * 4)
            ),
        );
    }
    if let Some(why) = &answers.stopped {
        findings.fail(
            format!("it stopped answering: {why}"),
            "run the diagnosis again; redis-cli SLOWLOG GET on the server has slow commands",
        );
    }
    Ok(format!("connected in {took:.1?}"))
}

/// Half of the time that a reply may take is an error: a hiccup of that length more fails calls. A
/// tenth is a warning.
pub(super) fn round_trip(
    findings: &mut Findings<'_>,
    answers: &NodeAnswers,
    limits: &Limits,
) -> Answer<String> {
    let mut times = answers.round_trips.clone();
    times.sort_unstable();
    let (slowest, median) = (times[times.len() - 1], times[times.len() / 2]);
    let limit = limits.reply();
    let message = format!(
        "{median:.1?}, the slowest of {} {slowest:.1?}; a reply may take {limit:?}",
        times.len()
    );
    let remedy = || {
        let timeout = rounded(slowest * 11);
        format!(
            "move this program nearer to the server, or use a command_timeout of {timeout:?} and a \
             ttl of {:?}",
            timeout * 10
        )
    };
    if slowest >= limit / 2 {
        findings.fail(message.as_str(), remedy());
    } else if slowest >= limit / 10 {
        findings.warn(message.as_str(), remedy());
    }
    Ok(message)
}

/// Rounded up to a number that somebody would write.
fn rounded(time: Duration) -> Duration {
    let ms = time.as_millis() as u64;
    let step = if ms < 1000 { 50 } else { 500 };
    Duration::from_millis(ms.div_ceil(step).max(1) * step)
}

pub(super) fn version(findings: &mut Findings<'_>, answers: &NodeAnswers) -> Answer<String> {
    let version = answers.info().and_then(|info| info.text("redis_version"));
    if version.is_err() && !answers.says_what_it_is {
        findings.warn(
            "neither HELLO nor INFO says what this server is: a proxy answers; if it is older than \
             Redis 6.2, or a replica, the first lock fails",
            "ask its operator for the version, and whether one master serves each key",
        );
    }
    let (info, version) = (answers.info()?, version?);
    let shown = match info.get("valkey_version") {
        Some(valkey) => format!("Valkey {valkey}"),
        None => format!("Redis {version}"),
    };
    if is_older(version, OLDEST) {
        let (major, minor) = OLDEST;
        findings.fail(
            format!("{shown} is too old"),
            format!("upgrade to Redis {major}.{minor} or newer, or to Valkey"),
        );
    }
    Ok(shown)
}

pub(super) fn role(
    findings: &mut Findings<'_>,
    deployment: Deployment,
    node: NodeRole,
    answers: &NodeAnswers,
) -> Answer<String> {
    let info = answers.info()?;
    let role = info.text("role")?;
    let mode = info.get("redis_mode").or(info.get("server_mode"));
    let link = info.get("master_link_status");
    match (node, role) {
        (NodeRole::Master, "master") => {
            return Ok(match mode {
                Some(mode) => format!("master, {mode}"),
                None => "master".to_owned(),
            });
        }
        (_, other) if !matches!(other, "master" | "slave" | "replica") => findings.fail(
            format!(
                "the role {other}: it takes writes while another server takes them, too, so both \
                 could grant one lock"
            ),
            "use a server that is the only master",
        ),
        (NodeRole::Master, _) => findings.fail(
            "a replica, which refuses locks",
            of_the_master(deployment, info),
        ),
        (NodeRole::Replica, "master") => findings.warn(
            "a master now; its master has listed it as a replica",
            "run the diagnosis again when the failover is over",
        ),
        (NodeRole::Replica, _) if link.is_some_and(|link| link != "up") => findings.warn(
            "a replica that has lost its master: what is written now would be lost",
            "INFO replication on it; look at its log, masterauth and the network",
        ),
        (NodeRole::Replica, _) => {}
    }
    Ok("a replica in sync with its master".to_owned())
}

/// Where to find the master of a server that is a replica.
fn of_the_master(deployment: Deployment, info: &Info) -> String {
    match (info.get("master_host"), info.get("master_port")) {
        _ if deployment != Deployment::Single => {
            "a failover may be under way: run the diagnosis again".to_owned()
        }
        (Some(host), Some(port)) => {
            format!("use redis://{host}:{port}, or a redis-sentinel:// URL")
        }
        _ => "use the URL of its master, or a redis-sentinel:// URL".to_owned(),
    }
}
