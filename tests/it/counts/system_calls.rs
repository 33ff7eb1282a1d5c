//! The system calls of each operation, which `strace` counts in a process of its own.

use std::{collections::BTreeMap, env, fs, process::Command, thread, time::Duration};

use fairlock::LockManager;
use tempfile::TempDir;

use super::{
    operations::{OPERATIONS, quiet},
    page::Costs,
};
use crate::fixtures::SOON;
use crate::managers::manager;
use crate::support::{Child, Server, child::report, until};

/// How often each operation is repeated.
const TIMES: usize = 200;
const BEGIN: &str = "child: begin ";
const END: &str = "child: end ";

#[test]
fn each_operation_makes_few_system_calls() {
    // Some of them depend on how often another process comes between, so this counts a few times.
    let mut wrong: Vec<_> = OPERATIONS
        .iter()
        .map(|(operation, _)| (*operation, None))
        .collect();
    for _ in 0..4 {
        let trace = trace_of("operations");
        wrong.retain_mut(|(operation, excess_of_it)| {
            let calls = calls_between(&trace, operation, Threads::All);
            *excess_of_it = excess(operation, TIMES, &calls);
            excess_of_it.is_some()
        });
        if wrong.is_empty() {
            return;
        }
    }
    panic!("{wrong:#?}");
}

#[test]
fn renewals_and_waiters_make_few_system_calls() {
    let trace = trace_of("waits");
    let mut wrong = Vec::new();
    for (operation, times, _) in WAITS {
        // The main thread only polls until they are done.
        let calls = calls_between(&trace, operation, Threads::AllButMain);
        wrong.extend(excess(operation, times, &calls));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The system calls of this child of a test, as `strace` shows them.
fn trace_of(role: &str) -> String {
    let server = Server::start();
    Traced::spawn(role, &[&server.url()]).finish()
}

/// A child of a test, whose system calls `strace` writes to a file.
pub(super) struct Traced {
    pub(super) child: Child,
    dir: TempDir,
}

impl Traced {
    pub(super) fn spawn(role: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let version = Command::new("strace").arg("-V").output();
        version.expect("strace is here: its package must be installed");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-s", "100", "-o"]);
        strace.arg(dir.path().join("trace"));
        strace.arg(env::current_exe().expect("a running test has a binary"));
        let child = Child::spawn_by(strace, role, args);
        Self { child, dir }
    }

    /// Sends the line that it waits for.
    pub(super) fn go(&mut self) {
        self.child.send("go");
    }

    /// Waits for its end. Returns the trace.
    pub(super) fn finish(mut self) -> String {
        self.child.join();
        fs::read_to_string(self.dir.path().join("trace")).expect("strace wrote it")
    }
}

/// The calls whose number depends on the load: threads sleep or find what they wait for, and the
/// timeout of a socket follows a call that takes long.
const BY_LOAD: [&str; 3] = ["futex", "sched_yield", "setsockopt"];

/// A complaint, if the operation took more calls than its row says.
pub(super) fn excess(
    operation: &str,
    times: usize,
    calls: &BTreeMap<&str, usize>,
) -> Option<String> {
    let row = Costs::of(operation);
    let each = |calls: usize| calls as f64 / times as f64;
    let mut others = each(calls.values().sum());
    println!("{operation}: {others:.2} system calls: {calls:?}");
    let mut by_load = 0.0;
    if row.by_load.is_some() {
        by_load = each(BY_LOAD.iter().filter_map(|name| calls.get(name)).sum());
        others -= by_load;
    }
    // The renewal thread adds the fraction.
    let is_more = |seen: f64, most: Option<f64>| seen > most.unwrap_or(0.0) + 0.5;
    (is_more(others, row.system_calls) || is_more(by_load, row.by_load)).then(|| {
        format!("{operation}: {others} + {by_load} system calls each, not {row:?}: {calls:?}")
    })
}

/// The threads whose calls count.
#[derive(PartialEq)]
pub(super) enum Threads {
    All,
    AllButMain,
}

/// The calls by their names, between the two lines that the main thread wrote for this operation.
#[track_caller]
pub(super) fn calls_between<'a>(
    trace: &'a str,
    operation: &str,
    threads: Threads,
) -> BTreeMap<&'a str, usize> {
    let (_, rest) = trace
        .split_once(&format!("{BEGIN}{operation}"))
        .unwrap_or_else(|| panic!("no {operation} in {trace}"));
    let (calls, _) = rest
        .split_once(&format!("{END}{operation}"))
        .expect("it ends");
    let mut counts = BTreeMap::new();
    // The first line is the rest of the line that marks the begin, the last one that of the end.
    let mut lines: Vec<(&str, &str)> = calls.lines().skip(1).filter_map(split_thread).collect();
    let (main, _) = lines.pop().expect("the line that ends it");
    for (thread, call) in lines {
        // A call that another thread interrupts has a second line, for its end.
        if let Some((name, _)) = call.split_once('(')
            && !call.starts_with('<')
            && (threads == Threads::All || thread != main)
        {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

/// A line of the trace: the thread and its call.
fn split_thread(line: &str) -> Option<(&str, &str)> {
    let (thread, call) = line.split_once(' ')?;
    Some((thread, call.trim_start()))
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

/// Marks in the trace what it measures at the server with this URL, as this operation.
type Measure = fn(&str, &str);

/// Costs of a second, or of a renewal: how many of them are measured, and how.
const WAITS: [(&str, usize, Measure); 3] = [
    ("a lone renewal", 4, |url, operation| {
        hold(url, operation, 1)
    }),
    ("each of 50 renewals", 200, |url, operation| {
        hold(url, operation, 50)
    }),
    ("a second of 1,000 waiters", 4, wait_behind_a_holder),
];

/// Marks some time for each row in the trace.
pub(crate) fn waits(args: &[String]) {
    for (operation, _, run) in WAITS {
        run(&args[0], operation);
    }
}

/// Four renewals of each lease.
fn hold(url: &str, operation: &str, locks: u64) {
    let mgr = manager(url, Duration::from_secs(1));
    let guards: Vec<_> = (0..locks)
        .map(|i| mgr.lock(format!("k{i}")).unwrap())
        .collect();
    let renewed = |times: u64| {
        let all = mgr.stats().renewals_confirmed + times * locks;
        until(SOON, "every lease is renewed", || {
            mgr.stats().renewals_confirmed >= all
        });
    };
    // The first renewals make the script known to the server.
    renewed(1);
    report(format_args!("begin {operation}"));
    renewed(4);
    report(format_args!("end {operation}"));
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// Four seconds of a thousand waiters.
fn wait_behind_a_holder(url: &str, operation: &str) {
    let holder = quiet(url);
    let _guard = holder.lock("k").unwrap();
    let mgr = LockManager::connect(url).unwrap();
    let waiters: Vec<_> = (0..1000).map(|_| mgr.enqueue("k").unwrap()).collect();
    // The first checks open the connection, and make their scripts known to the server.
    let asked = mgr.stats().requests;
    until(SOON, "they are checked", || {
        mgr.stats().requests >= asked + 6
    });
    report(format_args!("begin {operation}"));
    // Time itself is under test: one check and one sign of life (R3) a second.
    thread::sleep(Duration::from_secs(4));
    report(format_args!("end {operation}"));
    drop(waiters);
}
