//! A child process that reads its orders line by line, so that its costs can be measured apart from
//! those of the bench.

#![allow(dead_code, reason = "no bench needs all of it")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Sub;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::time::ClockId;

use crate::support::{now, read};

/// This bench, started again with other arguments. Ends when it is dropped.
pub(crate) struct ChildProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    pub(crate) fn spawn(url: &str, args: &[&str]) -> ChildProcess {
        let this = env::current_exe().expect("a running bench has a binary");
        let mut child = Command::new(this)
            .args(args)
            .env("FAIRLOCK_BENCH_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the bench can be started again");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        ChildProcess {
            process: child,
            stdin,
            stdout,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its reply to this order, as numbers.
    pub(crate) fn ask<const N: usize>(&mut self, what: &str) -> [u64; N] {
        let stdin = self.stdin.as_mut().expect("it is open until the drop");
        writeln!(stdin, "{what}").expect("the child lives");
        let mut said = String::new();
        self.stdout.read_line(&mut said).expect("the child lives");
        let numbers: Vec<u64> = said
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        numbers
            .try_into()
            .unwrap_or_else(|_| panic!("to {what:?} the child said {said:?}"))
    }

    pub(crate) fn usage(&mut self) -> Usage {
        let [at, cpu, switches, rss] = self.ask("usage");
        Usage {
            at,
            cpu,
            switches,
            rss,
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

/// In the child: answers each line until the parent has closed the pipe.
pub(crate) fn serve(mut answer: impl FnMut(&str) -> Vec<u64>) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let numbers = if line == "usage" {
            usage().into()
        } else {
            answer(&line)
        };
        let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        println!("{}", words.join(" "));
    }
}

/// The resources that a process has used up to a moment.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// ns
    pub(crate) at: u64,
    /// ns
    pub(crate) cpu: u64,
    pub(crate) switches: u64,
    /// Bytes.
    pub(crate) rss: u64,
}

impl Usage {
    pub(crate) fn seconds(&self) -> f64 {
        self.at as f64 / 1e9
    }

    /// % of a core.
    pub(crate) fn load(&self) -> f64 {
        100.0 * self.cpu as f64 / self.at as f64
    }
}

impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage {
            at: self.at - before.at,
            cpu: self.cpu - before.cpu,
            switches: self.switches.saturating_sub(before.switches),
            rss: self.rss.saturating_sub(before.rss),
        }
    }
}

/// The usage of this process. The clock counts processor time in ns, /proc in hundredths of a
/// second.
fn usage() -> [u64; 4] {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let switches = tasks
        .map(|task| {
            sum_of(
                &task.path().join("status").to_string_lossy(),
                "ctxt_switches:",
            )
        })
        .sum();
    let rss = sum_of("/proc/self/status", "VmRSS:") * 1024;
    [now(), read(ClockId::ProcessCPUTime), switches, rss]
}

/// The sum of the numbers in the lines whose name contains this.
fn sum_of(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let numbers = text
        .lines()
        .filter(|line| line.contains(name))
        .filter_map(|line| line.split_whitespace().nth(1));
    numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}
