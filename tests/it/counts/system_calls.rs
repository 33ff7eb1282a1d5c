//! The system calls of each operation, which `strace` counts in a process of its own.

use std::{collections::BTreeMap, env, fs, process::Command};

use super::{operations::OPERATIONS, page::Costs};
use crate::support::{Child, Server, child::report};

/// How often each operation is repeated.
const TIMES: usize = 200;
const BEGIN: &str = "child: begin ";
const END: &str = "child: end ";

#[test]
fn each_operation_makes_few_system_calls() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let version = Command::new("strace").arg("-V").output();
    version.expect("strace is here: its package must be installed");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-s", "100", "-o"]).arg(&trace);
    strace.arg(env::current_exe().expect("a running test has a binary"));
    let mut child = Child::spawn_by(strace, "operations", &[&server.url()]);
    child.join();
    let text = fs::read_to_string(&trace).expect("strace wrote it");
    let mut wrong = Vec::new();
    for (operation, _) in OPERATIONS {
        let calls = calls_between(&text, operation);
        let each = calls.values().sum::<usize>() as f64 / TIMES as f64;
        println!("{operation}: {each:.2} system calls");
        let most = Costs::of(operation).system_calls.expect("it has a limit");
        // The renewal thread adds the fraction.
        if each > most + 0.5 {
            wrong.push(format!("{operation}: {each} system calls each: {calls:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The calls of all threads, by their names, between the two lines of this operation.
#[track_caller]
fn calls_between<'a>(trace: &'a str, operation: &str) -> BTreeMap<&'a str, usize> {
    let (_, rest) = trace
        .split_once(&format!("{BEGIN}{operation}"))
        .unwrap_or_else(|| panic!("no {operation} in {trace}"));
    let (calls, _) = rest
        .split_once(&format!("{END}{operation}"))
        .expect("it ends");
    let mut counts = BTreeMap::new();
    // The first line is the rest of the line that marks the begin, the last one that of the end.
    let mut lines: Vec<&str> = calls.lines().skip(1).collect();
    lines.pop();
    for line in lines {
        let call = line
            .split_once(' ')
            .map_or(line, |(_, call)| call.trim_start());
        // A call that another thread interrupts has a second line, for its end.
        if let Some((name, _)) = call.split_once('(')
            && !call.starts_with('<')
        {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

/// Runs each operation between two lines, which its writes show in the trace.
pub(crate) fn operations(args: &[String]) {
    for (operation, prepare) in OPERATIONS {
        let mut cycle = prepare(&args[0]);
        // The first cycles open connections and make the scripts known to the server.
        (0..20).for_each(|_| cycle());
        report(format_args!("begin {operation}"));
        (0..TIMES).for_each(|_| cycle());
        report(format_args!("end {operation}"));
    }
}
