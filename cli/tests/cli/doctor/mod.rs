//! `fairlock doctor`: its lines, its JSON and its exit codes, on every topology.

mod one_server;
mod output;
mod rights;
mod sets;
mod unusable;

use std::fmt;
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = self.remedy.as_deref().unwrap_or_default();
        write!(f, "{}: {}; remedy: {remedy}", self.check, self.message)
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
    fn of(&self, check: &str) -> Vec<&Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.check == check).collect()
    }

    /// The check has findings of this level, one of them with this text in it or in its remedy, and
    /// none that is worse.
    #[track_caller]
    fn assert_finds(&self, check: &str, level: Level, text: &str) {
        let found = self.of(check);
        let worst = found.iter().map(|finding| finding.level).max();
        let mut fitting = found.iter().filter(|finding| finding.level == level);
        assert!(
            worst == Some(level) && fitting.any(|finding| finding.to_string().contains(text)),
            "{check}, {level:?}, {text}: {self:#?}"
        );
    }

    /// The findings that are not ok, but for those that a loaded machine makes: speed is not under
    /// test.
    fn complaints(&self) -> Vec<&Finding> {
        let is_speed = |finding: &Finding| {
            let speeds = ["connected in", "no message came: a waiter"];
            let is_slow = speeds.iter().any(|text| finding.message.starts_with(text));
            is_slow || finding.check == "round_trip"
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
        let found = self.of(check).into_iter();
        let servers = found.filter_map(|finding| finding.server.as_deref());
        servers.collect()
    }

    /// The checks that complain about this server.
    fn complaints_of(&self, server: &Server) -> Vec<&str> {
        let address = server.addr().to_string();
        let all = self.complaints().into_iter();
        let of_server = all.filter(|finding| finding.server.as_deref() == Some(&*address));
        of_server.map(|finding| &*finding.check).collect()
    }
}

/// Waits until INFO has this text so often.
fn await_info(server: &Server, text: &str, times: usize) {
    crate::support::until(SOON, text, || {
        let info: String = server.query(&["INFO"]);
        info.matches(text).count() == times
    });
}

/// Makes a server a replica of another.
fn follow(replica: &Server, master: &Server) {
    let address = master.addr();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    replica.query::<()>(&["REPLICAOF", &host, &port]);
}
