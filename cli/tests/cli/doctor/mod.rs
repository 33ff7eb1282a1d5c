//! `fairlock doctor`: its findings and its exit codes, on every topology.

mod one_server;
mod output;
mod rights;
mod sets;
mod unusable;

use serde::Deserialize;

use crate::*;
use Level::{Error, Ok, Warning};

/// Timeouts that a loaded machine keeps, and the shortest ttl that fits them.
const TIMES: &str = "--command-timeout 1s --ttl 8s";

/// Settings of which no check complains.
const GOOD: [&str; 4] = [
    "--appendonly",
    "yes",
    "--cluster-require-full-coverage",
    "no",
];

/// The findings, read from JSON.
#[derive(Debug)]
struct Diagnosis {
    code: Option<i32>,
    findings: Vec<Finding>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Finding {
    check: String,
    level: Level,
    server: Option<String>,
    message: String,
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    Warning,
    Error,
}

impl Finding {
    fn says(&self, text: &str) -> bool {
        let remedy = self.remedy.as_deref().unwrap_or_default();
        self.message.contains(text) || remedy.contains(text)
    }
}

/// The diagnosis of these servers, within the promised bound: ten command timeouts, two of them to
/// build the managers.
#[track_caller]
fn diagnose(url: &str) -> Diagnosis {
    let started = Instant::now();
    let diagnosis = diagnose_with(url, TIMES);
    let (took, bound) = (started.elapsed(), Duration::from_secs(10) + SLACK);
    assert!(took < bound, "{took:?}: {diagnosis:#?}");
    diagnosis
}

fn diagnose_with(url: &str, args: &str) -> Diagnosis {
    diagnose_by(at(url, &format!("doctor --json {args}")))
}

fn diagnose_by(command: Command) -> Diagnosis {
    let ended = end(command);
    let lines = ended.stdout.lines();
    let findings = lines.map(|line| serde_json::from_str(line).expect("an object per line"));
    let (findings, code): (Vec<Finding>, _) = (findings.collect(), ended.code);
    assert!(!findings.is_empty(), "{:?}", ended.stderr);
    Diagnosis { code, findings }
}

impl Diagnosis {
    /// The findings of a check.
    fn of(&self, check: &str) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(move |finding| finding.check == check)
    }

    /// The check has findings of this level, one of them with this text in it or in its remedy, and
    /// none that is worse.
    #[track_caller]
    fn assert_finds(&self, check: &str, level: Level, text: &str) {
        let worst = self.of(check).map(|finding| finding.level).max();
        let fits = |finding: &Finding| finding.level == level && finding.says(text);
        let is_found = worst == Some(level) && self.of(check).any(fits);
        assert!(is_found, "{check}, {level:?}, {text}: {self:#?}");
    }

    /// The findings that are not ok, but for those that a loaded machine makes: speed is not under
    /// test.
    fn complaints(&self) -> Vec<&Finding> {
        let is_speed = |finding: &Finding| {
            let speeds = ["connected in", "a waiter had the lock"];
            finding.check == "round_trip" || speeds.iter().any(|text| finding.says(text))
        };
        let bad = self.findings.iter().filter(|finding| finding.level > Ok);
        bad.filter(|finding| !is_speed(finding)).collect()
    }

    #[track_caller]
    fn assert_no_complaint(&self) {
        assert!(self.complaints().is_empty(), "{self:#?}");
    }

    /// The servers that a check has findings about.
    fn servers_of(&self, check: &str) -> Vec<&str> {
        let servers = self.of(check).map(|finding| finding.server.as_deref());
        servers.flatten().collect()
    }

    /// These checks complain about this server, and no other does.
    #[track_caller]
    fn assert_complaints_of(&self, server: &Server, checks: &[&str]) {
        let address = server.addr().to_string();
        let mut of_server = self.complaints();
        of_server.retain(|finding| finding.server.as_deref() == Some(&*address));
        let found: Vec<&str> = of_server.iter().map(|finding| &*finding.check).collect();
        assert_eq!(found, checks, "{self:#?}");
    }
}

/// Waits until INFO has this text so often.
fn await_info(server: &Server, text: &str, times: usize) {
    until(LONG, text, || {
        let info: String = server.query(&["INFO"]);
        info.matches(text).count() == times
    });
}
