//! What the tests stand on: real servers, a proxy that misbehaves on demand, a scripted server
//! and worker processes. Nothing here knows fairlock.

// The kit is one piece; which part a test happens to use changes from day to day.
#![allow(dead_code, unused_imports, reason = "a kit is kept whole, used or not")]

pub(crate) mod child;
pub(crate) mod packed;
pub(crate) mod proxy;
mod repeated;
pub(crate) mod scripted_server;
pub(crate) mod server;
mod wire;

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) use child::Child;
pub(crate) use proxy::{Proxy, all_of, contains};
pub(crate) use scripted_server::{ScriptedReply, ScriptedServer};
pub(crate) use server::Server;

/// What a noisy machine may add to any bound that is promised to users.
///
/// Tests run eight at a time on as few as two cores, with servers and workers beside them, so a
/// runnable thread can wait this long for its turn. It is the only slack a test may add.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);

/// Polls until `pred` is true; panics naming `what` when that took longer than `deadline`.
#[track_caller]
pub(crate) fn until(deadline: Duration, what: &str, mut pred: impl FnMut() -> bool) {
    until_some(deadline, what, || pred().then_some(()));
}

/// As [`until`], and returns the value that the poll found.
#[track_caller]
pub(crate) fn until_some<T>(
    deadline: Duration,
    what: &str,
    mut poll: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        // The age is read before the poll: a poll that began in time counts, however long the
        // scheduler kept it.
        let age = start.elapsed();
        if let Some(found) = poll() {
            return found;
        }
        assert!(age < deadline, "not within {deadline:?}: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Stops a process and returns once the kernel shows it stopped: the signal alone is only a
/// request.
fn freeze(pid: Pid) {
    signal(pid, Signal::STOP);
    until(Duration::from_secs(5), "the process stops", || {
        matches!(state_of(pid), Some('T') | None)
    });
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap_or_else(|e| panic!("cannot send {signal:?} to {pid:?}: {e}"));
}

fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The command's name stands in brackets and may itself contain brackets and spaces.
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}
