//! The diagnosis of real servers: each check is right about a server that is as it should be, and
//! finds the one thing that is wrong.

mod one_server;
mod rights;
mod sets;

use std::time::{Duration, Instant};

use fairlock::{Builder, Check, Diagnosis, Endpoint, Finding, Level, LockManager, LockOptions};

use crate::support::SLACK;

/// Timeouts that a loaded machine keeps, and the shortest ttl that fits them.
const TTL: Duration = Duration::from_millis(6500);
const T: Duration = Duration::from_secs(1);
const P: Duration = Duration::from_millis(250);

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

fn builder(to: impl Into<Endpoint>) -> Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(P)
        .horizon(P + 13 * T / 4)
}

fn manager(to: impl Into<Endpoint>) -> LockManager {
    builder(to).build().expect("the servers are there")
}

/// The promised bound of a diagnosis: two connect timeouts and six command timeouts.
#[track_caller]
fn in_time(manager: &LockManager) -> Diagnosis {
    let started = Instant::now();
    let diagnosis = manager.diagnose();
    assert!(started.elapsed() < 8 * T + SLACK, "{:?}", started.elapsed());
    diagnosis
}

/// The findings of a check.
fn of(diagnosis: &Diagnosis, check: Check) -> Vec<&Finding> {
    let findings = diagnosis.findings.iter();
    findings.filter(|finding| finding.check == check).collect()
}

/// The check has findings of this level, one of them with this text in it or in its remedy, and none
/// that is worse.
#[track_caller]
fn assert_finds(diagnosis: &Diagnosis, check: Check, level: Level, text: &str) {
    let found = of(diagnosis, check);
    let worst = found.iter().map(|finding| finding.level).max();
    let mut fitting = found.iter().filter(|finding| finding.level == level);
    assert!(
        worst == Some(level) && fitting.any(|finding| finding.to_string().contains(text)),
        "{check}, {level}, {text}: {found:#?}"
    );
}

/// The findings that are not ok, but for those that a loaded machine makes: speed is not under test.
fn complaints(diagnosis: &Diagnosis) -> Vec<&Finding> {
    let is_speed = |finding: &Finding| {
        finding.check == Check::RoundTrip || finding.message.starts_with("connecting took")
    };
    let findings = diagnosis.findings.iter();
    findings
        .filter(|finding| finding.level > Level::Ok && !is_speed(finding))
        .collect()
}

#[track_caller]
fn assert_no_complaint(diagnosis: &Diagnosis) {
    assert!(complaints(diagnosis).is_empty(), "{diagnosis}");
}
