//! The data that a restart of a server loses, and whether it can write to its disk.

use super::Findings;
use super::answer::{Answer, Info};
use super::facts::{Deployment, NodeAnswers};

/// The data that a server keeps on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// An append-only file that is synced for each write.
    Always,
    /// An append-only file that is synced once per second.
    EverySecond,
    /// An append-only file that the system writes when it likes.
    BySystem,
    /// An append-only file; how it is synced is not known.
    Somehow,
    /// Snapshots alone.
    Snapshots,
    /// No append-only file; whether there are snapshots is not known.
    AtMostSnapshots,
    Nothing,
}

pub(super) fn persistence(
    findings: &mut Findings<'_>,
    deployment: Deployment,
    answers: &NodeAnswers,
) -> Answer<String> {
    let info = answers.info()?;
    disk(findings, info, answers);
    let durability = durability(info, answers)?;
    let message = loses(durability);
    // A server of a quorum that restarts waits for a ttl before it votes. So it need not remember.
    if deployment == Deployment::Quorum {
        return Ok(format!("{message}; it has no vote for one ttl then"));
    }
    match durability {
        Durability::Nothing | Durability::AtMostSnapshots | Durability::Snapshots => findings.warn(
            message,
            "CONFIG SET appendonly yes; with CONFIG SET appendfsync always, not even the newest \
             lock is lost",
        ),
        Durability::BySystem => {
            findings.warn(message, "CONFIG SET appendfsync everysec, or always")
        }
        Durability::Always | Durability::EverySecond | Durability::Somehow => {}
    }
    Ok(message.to_owned())
}

/// Whether the server refuses writes because of its disk, or is not ready.
fn disk(findings: &mut Findings<'_>, info: &Info, answers: &NodeAnswers) {
    let is = |field: &str, value: &str| info.get(field) == Some(value);
    if is("loading", "1") {
        findings.fail(
            "the server loads its data, and refuses locks until it is ready",
            "wait; INFO persistence has loading_eta_seconds",
        );
    }
    if is("rdb_last_bgsave_status", "err") {
        let message = "the last snapshot could not be written";
        let remedy = "make room on the server's disk or correct dir, then BGSAVE";
        let stops = answers.settings.get("stop-writes-on-bgsave-error");
        let has_save_points = answers
            .settings
            .get("save")
            .is_ok_and(|save| !save.is_empty());
        if has_save_points && stops == Ok("yes") {
            findings.fail(format!("{message}: locks are refused (MISCONF)"), remedy);
        } else {
            findings.warn(message, remedy);
        }
    }
    if is("aof_last_write_status", "err") {
        findings.fail(
            "the append-only file cannot be written: locks are refused (MISCONF)",
            "make room on the server's disk",
        );
    }
    if is("aof_last_bgrewrite_status", "err") {
        findings.warn(
            "the append-only file could not be rewritten, so it grows",
            "make room on the server's disk, then BGREWRITEAOF",
        );
    }
}

fn durability(info: &Info, answers: &NodeAnswers) -> Answer<Durability> {
    let settings = &answers.settings;
    Ok(match info.text("aof_enabled")? {
        "1" => match settings.get("appendfsync") {
            Ok("always") => Durability::Always,
            Ok("everysec") => Durability::EverySecond,
            Ok(_) => Durability::BySystem,
            Err(_) => Durability::Somehow,
        },
        _ => match settings.get("save") {
            Ok("") => Durability::Nothing,
            Ok(_) => Durability::Snapshots,
            Err(_) => Durability::AtMostSnapshots,
        },
    })
}

fn loses(durability: Durability) -> &'static str {
    match durability {
        Durability::Always => "appendfsync always: a restart loses no lock",
        Durability::EverySecond => {
            "appendfsync everysec: a crash of the host may lose the locks of the last two seconds"
        }
        Durability::BySystem => {
            "appendfsync no: a crash of the host may lose the locks of the last half minute"
        }
        Durability::Somehow => "appendonly yes: a restart keeps locks; appendfsync is not known",
        Durability::Snapshots => {
            "snapshots alone: a restart goes back to the last one, and loses the locks since"
        }
        Durability::AtMostSnapshots => {
            "no append-only file, and snapshots are not known: a restart loses the newest locks, \
             or all"
        }
        Durability::Nothing => "no append-only file: a restart loses all locks",
    }
}
