//! The findings of the doctor, read from its JSON.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::process::{end, without_server};
use crate::support::{SLACK, Server};

/// Timeouts that a loaded machine keeps, and the shortest ttl that fits them.
pub(super) const T: Duration = Duration::from_secs(1);
pub(super) const TIMES: [&str; 4] = ["--command-timeout", "1s", "--ttl", "8s"];

/// For what must happen, but whose time is not under test.
pub(super) const SOON: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Diagnosis {
    pub(super) code: Option<i32>,
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Finding {
    pub(super) check: String,
    pub(super) level: Level,
    pub(super) server: Option<String>,
    pub(super) message: String,
    pub(super) remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
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
pub(super) fn diagnose(url: &str) -> Diagnosis {
    diagnose_with(url, &TIMES)
}

/// With these options.
#[track_caller]
pub(super) fn diagnose_with(url: &str, args: &[&str]) -> Diagnosis {
    diagnose_by(&mut without_server(&[]), url, args)
}

/// The promised bound: two connect timeouts and six command timeouts. To build the manager takes
/// one more.
#[track_caller]
pub(super) fn diagnose_by(command: &mut Command, url: &str, args: &[&str]) -> Diagnosis {
    let timeout = args.iter().skip_while(|arg| **arg != "--command-timeout");
    let timeout = timeout.skip(1).find_map(|text| text.strip_suffix('s'));
    let timeout = Duration::from_secs(timeout.map_or(1, |s| s.parse().expect("seconds")));
    let started = Instant::now();
    command.args(["doctor", "--json"]).args(args);
    let ended = end(command.env("FAIRLOCK_URL", url));
    let took = started.elapsed();
    assert!(took < 9 * timeout + SLACK, "{took:?}: {ended:?}");
    let lines = ended.stdout.lines();
    let findings = lines.map(|line| serde_json::from_str(line).expect("an object per line"));
    let findings: Vec<Finding> = findings.collect();
    assert!(!findings.is_empty(), "{ended:?}");
    Diagnosis {
        code: ended.code,
        findings,
    }
}

impl Diagnosis {
    /// The findings of a check.
    pub(super) fn of(&self, check: &str) -> Vec<&Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.check == check).collect()
    }

    /// The check has findings of this level, one of them with this text in it or in its remedy, and
    /// none that is worse.
    #[track_caller]
    pub(super) fn assert_finds(&self, check: &str, level: Level, text: &str) {
        let found = self.of(check);
        let worst = found.iter().map(|finding| finding.level).max();
        let mut fitting = found.iter().filter(|finding| finding.level == level);
        assert!(
            worst == Some(level) && fitting.any(|finding| finding.to_string().contains(text)),
            "{check}, {level:?}, {text}: {found:#?}"
        );
    }

    /// The findings that are not ok, but for those that a loaded machine makes: speed is not under
    /// test.
    pub(super) fn complaints(&self) -> Vec<&Finding> {
        let is_speed = |finding: &Finding| {
            finding.check == "round_trip" || finding.message.starts_with("connecting took")
        };
        let findings = self.findings.iter();
        findings
            .filter(|finding| finding.level > Level::Ok && !is_speed(finding))
            .collect()
    }

    #[track_caller]
    pub(super) fn assert_no_complaint(&self) {
        assert!(self.complaints().is_empty(), "{self:#?}");
    }

    /// The servers that a check has findings about.
    pub(super) fn servers_of(&self, check: &str) -> Vec<&str> {
        let found = self.of(check).into_iter();
        found
            .filter_map(|finding| finding.server.as_deref())
            .collect()
    }

    /// The checks that complain about this server.
    pub(super) fn complaints_of(&self, server: &Server) -> Vec<&str> {
        let address = server.addr().to_string();
        let of_server = self.complaints().into_iter();
        let of_server = of_server.filter(|finding| finding.server.as_deref() == Some(&*address));
        of_server.map(|finding| &*finding.check).collect()
    }
}
