//! The results of one run, or of several runs that measured a part each.

use std::env;
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::thread;

use crate::support::figure::Line;
use crate::support::{is_quick, server};

/// Before what a run was made on, in the file of the results.
const ABOUT: &str = "# ";

pub(crate) struct Results {
    /// Each machine, server and commit once.
    about: Vec<String>,
    /// By section, and otherwise as they were measured. A figure that was measured twice counts as it was
    /// measured last.
    pub(crate) lines: Vec<Line>,
}

impl Results {
    pub(crate) fn parse(text: &str) -> Results {
        let mut results = Results {
            about: Vec::new(),
            lines: Vec::new(),
        };
        for line in text.lines() {
            match line.strip_prefix(ABOUT) {
                Some(about) if results.about.iter().any(|known| known == about) => {}
                Some(about) => results.about.push(about.to_owned()),
                None => results.add(Line::parse(line).expect("a line of the results")),
            }
        }
        results.lines.sort_by_key(|line| line.figure.section);
        results
    }

    fn add(&mut self, line: Line) {
        match self.lines.iter_mut().find(|known| is_same(known, &line)) {
            Some(known) => *known = line,
            None => self.lines.push(line),
        }
    }

    /// The file of the results again.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for about in &self.about {
            let _ = writeln!(text, "{ABOUT}{about}");
        }
        for line in &self.lines {
            let _ = writeln!(text, "{}", line.to_text());
        }
        text
    }

    pub(crate) fn about(&self) -> String {
        self.about.join("; and on ")
    }
}

/// Whether these are one figure, measured twice.
fn is_same(one: &Line, other: &Line) -> bool {
    let key = |line: &Line| (line.figure.section, line.cores);
    key(one) == key(other)
        && one.bench == other.bench
        && one.figure.title == other.figure.title
        && one.figure.case == other.figure.case
}

/// The head of the results of a run that is made here and now.
pub(crate) fn head() -> String {
    let cores = thread::available_parallelism().map_or(0, |n| n.get());
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("of an unknown model", |(_, model)| model);
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let commit = commit
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        .unwrap_or_default();
    // "a private redis 7.0.15 on port 43625 of this host"
    let about = server().about;
    let redis = about.split(" on port ").next().unwrap_or_default();
    let quick = if is_quick() { ", a first look" } else { "" };
    format!("{ABOUT}{cores} cores ({model}) with {redis}, commit {commit}{quick}")
}
