//! The tests' tools: real servers, a proxy that injects network faults, a scripted server and
//! worker processes. Nothing here knows fairlock.

// Each test binary uses another part of these tools.
#![allow(
    dead_code,
    unused_imports,
    reason = "the tools are kept complete, used or not"
)]

pub(crate) mod child;
pub(crate) mod gateway;
pub(crate) mod hosts;
pub(crate) mod notes;
pub(crate) mod packed;
mod preload;
pub(crate) mod proxy;
mod repeated;
pub(crate) mod scripted_server;
pub(crate) mod server;
mod shifted;
mod wire;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) use child::Child;
pub(crate) use gateway::{Gateway, Unknown};
pub(crate) use proxy::{Proxy, all_of, contains};
pub(crate) use scripted_server::{ScriptedReply, ScriptedServer};
pub(crate) use server::{Server, is_redis_7, is_redis_62};
pub(crate) use shifted::Shifted;

/// The time that a noisy machine may add to any bound that is promised to users.
///
/// Tests run eight at a time on as few as two cores, with servers and workers beside them. So a
/// runnable thread can wait this long for its turn. It is the only slack a test may add.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);

/// Polls until `pred` is true; panics naming `what` when that took longer than `deadline`.
#[track_caller]
pub(crate) fn until(deadline: Duration, what: &str, mut pred: impl FnMut() -> bool) {
    until_some(deadline, what, || pred().then_some(()));
}

/// Like [`until`], and returns the value that the poll found.
#[track_caller]
pub(crate) fn until_some<T>(
    deadline: Duration,
    what: &str,
    mut poll: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        // The age is read before the poll: a poll that began in time counts, however long the
        // scheduler delayed it.
        let age = start.elapsed();
        if let Some(found) = poll() {
            return found;
        }
        assert!(age < deadline, "not within {deadline:?}: {what}");
        // A pause between two polls.
        sleep(Duration::from_millis(2));
    }
}

/// Ends the loops of a test's other threads even when the test panics, so that it fails instead of
/// hanging.
pub(crate) struct EndLoops<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndLoops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls for this long, and panics naming `what` as soon as `pred` is false. It is for a claim that
/// something does not change.
#[track_caller]
pub(crate) fn throughout(time: Duration, what: &str, mut pred: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        // The age is read before the poll, so the last poll comes at the end of the time or later.
        let age = start.elapsed();
        assert!(pred(), "no longer after {age:?}: {what}");
        if age >= time {
            return;
        }
        // A pause between two polls.
        sleep(Duration::from_millis(2).min(time - age));
    }
}

/// Stops a process and returns once the kernel shows it as stopped: the signal alone is only a
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
    // The command's name is in brackets and may itself contain brackets and spaces.
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}
