//! Whether the server lets this user work: connections, rights, scripts and messages.

use std::time::Duration;

use super::answer::{Answer, Unknown};
use super::facts::{NodeAnswers, Settings, WorkAnswers};
use super::{Findings, Limits};

pub(super) fn clients(
    findings: &mut Findings<'_>,
    answers: &NodeAnswers,
    limits: &Limits,
) -> Answer<String> {
    let room = room(answers);
    if let Ok((connected, most)) = room
        && connected >= most - most / 10
    {
        findings.warn(
            format!("{connected} clients of {most} that may connect"),
            "CONFIG SET maxclients to a larger number, or look for clients that leak: CLIENT LIST",
        );
    }
    let idle = answers.settings.number("timeout");
    let pause = limits.longest_pause();
    if let Ok(seconds @ 1..) = idle
        && Duration::from_secs(seconds) <= pause
    {
        findings.warn(
            format!(
                "timeout is {seconds} s: connections are closed between two renewals, which come \
                 every {pause:.1?}"
            ),
            "CONFIG SET timeout 0",
        );
    }
    let room = room.map_or_else(
        |unknown| unknown.to_string(),
        |(c, m)| format!("{c} of {m}"),
    );
    Ok(match idle {
        Ok(0) => format!("{room}; idle connections stay open"),
        Ok(seconds) => format!(
            "{room}; timeout is {seconds} s: the first lock after such a pause connects again"
        ),
        Err(unknown) => format!("{room}; timeout {unknown}"),
    })
}

fn room(answers: &NodeAnswers) -> Answer<(u64, u64)> {
    let info = answers.info()?;
    Ok((
        info.number("connected_clients")?,
        info.number("maxclients")?,
    ))
}

pub(super) fn rights(
    findings: &mut Findings<'_>,
    user: &str,
    work: &WorkAnswers,
) -> Answer<String> {
    let lacking = work.lacking.clone()?.join(" ");
    if !lacking.is_empty() {
        findings.fail(
            format!("the user {user} lacks {lacking}"),
            format!("ACL SETUSER {user} {lacking}"),
        );
    }
    let mut shown = format!("the user {user} has all that locks need");
    for command in &work.absent {
        let loss = match &**command {
            "SCAN" => "no command and no call can list locks",
            "ASKING" => "a call fails while the slot of its name moves",
            // Nothing fails. What is slower without messages, the finding about them says.
            "HELLO" | "EVALSHA" | "PING" | "SUBSCRIBE" | "PUBLISH" => {
                shown += &format!("; the server has no {command}");
                continue;
            }
            _ => {
                findings.fail(
                    format!("the server has no {command}, which every lock needs"),
                    remedy_of_absent(command),
                );
                continue;
            }
        };
        findings.warn(
            format!("the server has no {command}: {loss}"),
            remedy_of_absent(command),
        );
    }
    Ok(shown)
}

fn remedy_of_absent(command: &str) -> String {
    format!("remove rename-command for {command} from the server's configuration")
}

pub(super) fn scripts(
    findings: &mut Findings<'_>,
    work: &WorkAnswers,
    answers: &NodeAnswers,
) -> Answer<String> {
    match &work.scripts {
        Ok(()) => {}
        Err(unknown @ Unknown::NoCommand(_)) => findings.fail(
            format!("{unknown}; every lock is a script"),
            remedy_of_absent("EVAL"),
        ),
        Err(Unknown::NoRight(command)) => findings.fail(
            format!("no right to {command}; every lock is a script"),
            "the rule is in the finding about rights",
        ),
        Err(unknown @ Unknown::Unanswered(_)) => return Err(unknown.clone()),
        Err(Unknown::Failed(why) | Unknown::Absent(why)) => findings.fail(
            format!("a script could not be run: {why}"),
            "EVAL \"return 1\" 0 in redis-cli, as the same user",
        ),
    }
    let limit = answers.settings.number("lua-time-limit");
    if limit == Ok(0) {
        findings.warn(
            "lua-time-limit is 0: a script that runs on and on cannot be ended",
            "CONFIG SET lua-time-limit 5000",
        );
    }
    Ok(match limit {
        Ok(ms) => format!("EVAL and EVALSHA run; BUSY after {ms} ms of a script"),
        Err(_) => "EVAL and EVALSHA run".to_owned(),
    })
}

pub(super) fn messages(
    findings: &mut Findings<'_>,
    message: &Answer<Duration>,
    answers: &NodeAnswers,
) -> Answer<String> {
    let took = message.clone().inspect_err(|unknown| {
        let (why, way) = match unknown {
            Unknown::NoRight(command) => {
                return findings.fail(
                    format!("no right to {command}; a caller that has to wait needs it"),
                    "the rule is in the finding about rights",
                );
            }
            Unknown::Unanswered(_) => return,
            Unknown::Failed(why) => (why.clone(), ':'),
            unknown => (unknown.to_string(), ';'),
        };
        findings.warn(
            format!("a published message did not arrive{way} {why}"),
            "SUBSCRIBE and PUBLISH in redis-cli through the same proxy; without messages each \
             hand-over takes up to a check period",
        );
    })?;
    if let Some(limit) = pubsub_limit(&answers.settings) {
        findings.warn(
            format!("client-output-buffer-limit disconnects subscribers at {limit} bytes"),
            "CONFIG SET client-output-buffer-limit \"pubsub 32mb 8mb 60\"",
        );
    }
    Ok(format!("a message arrived after {took:.1?}"))
}

/// The least number of bytes at which a subscriber is disconnected, if it is low enough to happen.
/// A manager's grants of one moment are far below that.
fn pubsub_limit(settings: &Settings) -> Option<u64> {
    const LEAST: u64 = 1 << 18;
    let limits = settings.get("client-output-buffer-limit").ok()?;
    let (_, rest) = limits.split_once("pubsub ")?;
    let mut numbers = rest.split(' ').filter_map(|number| number.parse().ok());
    let (hard, soft) = (numbers.next()?, numbers.next()?);
    let least = [hard, soft].into_iter().filter(|limit| *limit > 0).min()?;
    (least < LEAST).then_some(least)
}
