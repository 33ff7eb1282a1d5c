//! The lock is lost while the command runs.

use std::io::{ErrorKind, Write as _, pipe};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    LONG, Run, TTL, TTL_TEXT, is_alive, is_held, manager, previous, script_gives, until_queued,
};
use crate::look::release_by_force;
use crate::process::without_server;
use crate::support::{Proxy, SLACK, Server, contains, until};

/// The ttl where a process must be dead in time: its margin outlasts the delays of a busy machine.
const MARGIN_TTL: &str = "4s";

/// Prints its group, and then a line for TERM. A grandchild ignores TERM.
const TOUGH: &str = "trap 'echo term' TERM
    (trap '' TERM; while :; do sleep 0.02; done) >&2 &
    echo $$; while :; do sleep 0.02; done";

/// A server, and a proxy that can cut it off.
pub(super) fn cut_off() -> (Server, Proxy) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    (server, proxy)
}

/// A command whose locks go through the proxy.
pub(super) fn through(proxy: &Proxy, args: &[&str], script: &str) -> Run {
    let mut command = without_server(&["run"]);
    command.args(args).args(["a", "--", "sh", "-c", script]);
    command.env("BINARY", env!("CARGO_BIN_EXE_fairlock"));
    Run::start(command.env("FAIRLOCK_URL", proxy.url()))
}

/// Another client that waits for the lock. Once it has it, it prints whether the process or its
/// group is alive.
pub(super) fn next_holder(server: &Server, process: Pid) -> Run {
    let pid = process.as_raw_nonzero();
    let script = format!("kill -0 -{pid} || kill -0 {pid} && echo alive || echo dead");
    let script = format!("{{ {script}; }} 2>/dev/null");
    let next = Run::script(server, &["--ttl", TTL_TEXT, "a"], &script);
    until_queued(server, "a", 1);
    next
}

#[test]
fn group_is_dead_before_the_next_holder_has_the_lock() {
    for is_stopped in [false, true] {
        let (server, proxy) = cut_off();
        let mut run = through(&proxy, &["--ttl", MARGIN_TTL], TOUGH);
        let group = run.pid_line();
        let mut next = next_holder(&server, group);
        if is_stopped {
            kill_process_group(group, Signal::STOP).expect("sent");
        }
        proxy.pause_requests();
        if !is_stopped {
            assert_eq!(run.line(), "term");
            assert!(is_held(&server, "a"), "TERM comes before the loss");
        }
        assert_eq!(next.line(), "dead");
        // A stopped one has not seen TERM.
        let ended = run.ends(74, "");
        // The reason, too.
        ended.says("unavailable");
        assert_eq!(next.ended().code, Some(0));
    }
}

#[test]
fn command_that_ends_at_term_gives_74_too() {
    let (server, proxy) = cut_off();
    let script = "trap 'exit 0' TERM; echo $$; while :; do sleep 0.02; done";
    let mut run = through(&proxy, &["--ttl", TTL_TEXT], script);
    run.line();
    proxy.pause_requests();
    assert_eq!(run.ended().code, Some(74));
    // The lock was left before its end, and the work was interrupted.
    proxy.resume_requests();
    assert_eq!(previous(&server, &["a"]), "lapsed");
}

#[test]
fn short_outage_does_not_end_the_command() {
    let (server, proxy) = cut_off();
    let script = "echo $$; sleep 4; echo done";
    let mut run = through(&proxy, &["--ttl", "4s", "--grace", "100ms"], script);
    run.line();
    // A renewal fails. The next one, which is sent after the timeout, comes in time.
    let renewal = proxy.hold_request_when(contains("{a}"));
    renewal.wait(LONG);
    proxy.pause_requests();
    let sent = proxy.commands();
    until(LONG, "the renewal has failed", || proxy.commands() > sent);
    proxy.resume_requests();
    run.ends(0, "done\n");
    drop(server);
}

#[test]
fn full_pipe_for_the_log_stops_no_renewal_and_delays_no_loss() {
    let (server, proxy) = cut_off();
    let (_unread, mut writer) = pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("set");
    let full = loop {
        if let Err(error) = writer.write(b"\n") {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    // The flag is the pipe's, for all processes.
    fcntl_setfl(&writer, OFlags::empty()).expect("set");
    let mut command = without_server(&["run", "-v", "--ttl", "15s", "--command-timeout", "500ms"]);
    // A shell writes of a child that TERM ended, and would block.
    let script = "exec 2>/dev/null; trap 'echo term; exit 0' TERM
        echo $$; while :; do sleep 0.02; done";
    command.args(["a", "--", "sh", "-c", script]);
    command.env("FAIRLOCK_URL", proxy.url());
    let mut run = Run::start_with(&mut command, Stdio::null(), writer.into());
    run.line();
    // In an outage renewals fail, and the log has a line that nobody takes.
    proxy.pause_requests();
    // Each attempt opens a connection. The first failure is logged before the second attempt.
    let sent = proxy.commands();
    until(LONG, "renewals go on", || proxy.commands() > sent + 4);
    proxy.resume_requests();
    let manager = manager(&server);
    until(LONG, "renewed", || {
        let info = manager.inspect("a").expect("answers");
        info.is_some_and(|info| info.time_left > Duration::from_secs(13))
    });
    release_by_force(&server, "a");
    let released = Instant::now();
    run.ends(74, "term\n");
    let (took, period) = (released.elapsed(), Duration::from_secs(5));
    assert!(took < period + SLACK, "{took:?}");
}

#[test]
fn loss_ends_the_command_by_term_and_then_kill() {
    // As each shows: at once, at the next renewal, or when the lease and the release are over.
    let server_dies = |server: &Server| server.kill();
    let data_is_lost = |server: &Server| server.query::<()>(&["FLUSHALL"]);
    let forced = |server: &Server| release_by_force(server, "a");
    let losses: [&dyn Fn(&Server); 3] = [&server_dies, &data_is_lost, &forced];
    let texts = [
        ("cannot be renewed", TTL * 2),
        ("the lock is lost", TTL / 3),
        ("released by force", TTL / 3),
    ];
    for (lose, (text, time)) in losses.into_iter().zip(texts) {
        let server = Server::start();
        let grace = Duration::from_millis(300);
        let args = ["--ttl", TTL_TEXT, "--grace", "300ms", "a"];
        let mut run = Run::script(&server, &args, TOUGH);
        let group = run.pid_line();
        lose(&server);
        let start = Instant::now();
        let ended = run.ends(74, "term\n");
        ended.says(text);
        assert!(!is_alive(group));
        assert!(
            start.elapsed() < time + grace + SLACK,
            "{:?}",
            start.elapsed()
        );
    }
}

#[test]
fn max_hold_ends_the_group_and_then_releases_the_lock() {
    let server = Server::start();
    let args = ["--max-hold", "500ms", "--grace", "300ms", "a"];
    let mut run = Run::script(&server, &args, TOUGH);
    let group = run.pid_line();
    let mut next = next_holder(&server, group);
    assert_eq!(run.line(), "term");
    assert!(is_held(&server, "a"));
    assert_eq!(next.line(), "dead");
    let ended = run.ended();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    ended.says("--max-hold 500ms is over");
    next.ended();
    script_gives(
        &server,
        &["--max-hold", "100ms", "a"],
        "exec sleep 60",
        74,
        "",
    );
    assert_eq!(previous(&server, &["a"]), "lapsed");
}

#[test]
fn command_that_slept_through_the_loss_never_runs_again() {
    let server = Server::start();
    // So many that some would say so before KILL comes.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do
            (trap 'echo continued' CONT TERM; sleep 60 >&2 & echo up; wait; sleep 60) &
        done; echo $$; wait";
    let mut run = Run::script(&server, &["--ttl", TTL_TEXT, "a"], script);
    let mut lines: Vec<String> = (0..11).map(|_| run.line()).collect();
    lines.retain(|line| line != "up");
    let group = Pid::from_raw(lines[0].parse().expect("a number")).expect("a process id");
    // All of it sleeps, as a suspended host does.
    kill_process_group(group, Signal::STOP).expect("sent");
    run.signal(Signal::STOP);
    until(LONG, "the lock lapses", || !is_held(&server, "a"));
    run.signal(Signal::CONT);
    let ended = run.ends(74, "");
    ended.says("killed");
    assert!(!is_alive(group));
}

#[test]
fn fairlock_that_is_killed_takes_the_command_with_it() {
    let server = Server::start();
    let script = "trap '' TERM HUP; echo $$; while :; do sleep 0.02; done";
    let mut run = Run::script(&server, &["--ttl", TTL_TEXT, "a"], script);
    let command = run.pid_line();
    run.process.kill().expect("sent");
    run.process.wait().expect("ended");
    until(LONG, "the command dies", || !is_alive(command));
    assert!(is_held(&server, "a"), "it is dead before the lock ends");
    let guard = manager(&server).try_lock_for("a", LONG).expect("answers");
    assert!(guard.is_some());
}
