//! `fairlock doctor`: its findings and its exit codes, on every topology.

mod one_server;
mod output;
mod rights;
mod sets;
mod unusable;

use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::process::{end, without_server};
use crate::support::{SLACK, Server};

/// Timeouts that a loaded machine keeps, and the shortest ttl that fits them.
const TIMES: [&str; 4] = ["--command-timeout", "1s", "--ttl", "8s"];

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

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

/// The diagnosis of these servers, within the promised bound.
#[track_caller]
fn diagnose(url: &str) -> Diagnosis {
    diagnose_with(url, &TIMES)
}

#[track_caller]
fn diagnose_with(url: &str, args: &[&str]) -> Diagnosis {
    diagnose_by(&mut without_server(&[]), url, args)
}

/// The promised bound is ten command timeouts: two of them to build the managers.
#[track_caller]
fn diagnose_by(command: &mut Command, url: &str, args: &[&str]) -> Diagnosis {
    let timeout = args.iter().skip_while(|arg| **arg != "--command-timeout");
    let timeout = timeout.skip(1).find_map(|text| text.strip_suffix('s'));
    let timeout = Duration::from_secs(timeout.map_or(1, |s| s.parse().expect("seconds")));
    let started = Instant::now();
    command.args(["doctor", "--json"]).args(args);
    let ended = end(command.env("FAIRLOCK_URL", url));
    let took = started.elapsed();
    assert!(took < 10 * timeout + SLACK, "{took:?}: {ended:?}");
    let lines = ended.stdout.lines();
    let findings = lines.map(|line| serde_json::from_str(line).expect("an object per line"));
    let findings: Vec<Finding> = findings.collect();
    assert!(!findings.is_empty(), "{ended:?}");
    let code = ended.code;
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
        let mut fitting = self.of(check).filter(|finding| finding.level == level);
        assert!(
            worst == Some(level) && fitting.any(|finding| finding.says(text)),
            "{check}, {level:?}, {text}: {self:#?}"
        );
    }

    /// The findings that are not ok, but for those that a loaded machine makes: speed is not under
    /// test.
    fn complaints(&self) -> Vec<&Finding> {
        let is_speed = |finding: &Finding| {
            let speeds = ["connected in", "a waiter had the lock"];
            finding.check == "round_trip" || speeds.iter().any(|text| finding.says(text))
        };
        let findings = self.findings.iter();
        let bad = findings.filter(|finding| finding.level > Level::Ok && !is_speed(finding));
        bad.collect()
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
        let all = self.complaints().into_iter();
        let of_server = all.filter(|finding| finding.server.as_deref() == Some(&*address));
        let found: Vec<&str> = of_server.map(|finding| &*finding.check).collect();
        assert_eq!(found, checks, "{self:#?}");
    }
}

/// Waits until INFO has this text so often.
fn await_info(server: &Server, text: &str, times: usize) {
    crate::support::until(SOON, text, || {
        let info: String = server.query(&["INFO"]);
        info.matches(text).count() == times
    });
}
