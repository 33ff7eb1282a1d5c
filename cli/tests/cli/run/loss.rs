//! The lock is lost while the command runs.

use std::io::{Write as _, pipe};

use rustix::fs::{OFlags, fcntl_setfl};

use super::*;

/// Prints its group, and then a line for TERM. A grandchild ignores TERM.
const TOUGH: &str = "trap 'echo term' TERM
    (trap '' TERM; while :; do sleep 0.02; done) >&2 &
    echo $$; while :; do sleep 0.02; done";

/// A server, a proxy that can cut it off, and a command whose lock `a` goes through the proxy.
pub(super) fn behind_a_proxy(args: &str, script: &str) -> (Server, Proxy, Run) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let mut command = at(&proxy.url(), &format!("run {args} a -- sh -c"));
    let run = Run::start(command.arg(script));
    (server, proxy, run)
}

/// Another client that waits for the lock. Once it has it, it prints whether the process or its
/// group is alive.
pub(super) fn next_holder(server: &Server, process: Pid) -> Run {
    let pid = process.as_raw_nonzero();
    let lives = format!("exec 2>/dev/null; kill -0 -{pid} || kill -0 {pid}");
    let script = format!("{lives} && echo alive || echo dead");
    let next = Run::script(server, "--ttl 2s a", &script);
    until_queued(server, "a", 1);
    next
}

#[test]
fn group_is_dead_before_the_next_holder_has_the_lock() {
    for is_stopped in [false, true] {
        // The margin of this ttl outlasts the delays of a busy machine.
        let (server, proxy, mut run) = behind_a_proxy("--ttl 4s", TOUGH);
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
        // No warning of the library without -v.
        assert!(!ended.stderr.contains("warning: lost"), "{ended:?}");
        assert_eq!(next.ended().code, Some(0));
    }
}

#[test]
fn full_pipe_for_the_log_stops_no_renewal_and_delays_no_loss() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (_unread, mut writer) = pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("set");
    while writer.write(b"\n").is_ok() {}
    // The flag is the pipe's, for all processes.
    fcntl_setfl(&writer, OFlags::empty()).expect("set");
    // A shell writes of a child that TERM ended, and would block.
    let script = "exec 2>/dev/null; trap 'echo term; exit 0' TERM
        echo $$; while :; do sleep 0.02; done";
    let line = "run -v --ttl 15s --command-timeout 500ms a -- sh -c";
    let mut command = at(&proxy.url(), line);
    let mut run = Run::start_with(command.arg(script), Stdio::null(), writer.into());
    run.line();
    // In an outage renewals fail, and the log has a line that nobody takes.
    proxy.pause_requests();
    // Each attempt opens a connection. The first failure is logged before the second attempt.
    let sent = proxy.commands();
    until(LONG, "renewals go on", || proxy.commands() > sent + 4);
    proxy.resume_requests();
    until(LONG, "renewed", || {
        info(&server, "a").is_some_and(|info| info.time_left > Duration::from_secs(13))
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
    for (loss, text, time) in [
        ("kill", "cannot be renewed", TTL * 2),
        ("FLUSHALL", "the lock is lost", TTL / 3),
        ("release", "released by force", TTL / 3),
    ] {
        let server = Server::start();
        let mut run = Run::script(&server, "-v --ttl 2s --grace 300ms a", TOUGH);
        let group = run.pid_line();
        match loss {
            "kill" => server.kill(),
            "release" => release_by_force(&server, "a"),
            _ => server.query(&[loss]),
        }
        let start = Instant::now();
        let ended = run.ends(74, "term\n");
        ended.says(text);
        // By -v.
        let is_logged = ended.stderr.contains("fairlock: warning: lost \"a\"");
        assert!(is_logged || loss != "release", "{ended:?}");
        assert!(!is_alive(group));
        let (took, grace) = (start.elapsed(), Duration::from_millis(300));
        assert!(took < time + grace + SLACK, "{took:?}");
    }
}

#[test]
fn max_hold_ends_the_group_and_then_releases_the_lock() {
    let server = Server::start();
    let mut run = Run::script(&server, "--max-hold 500ms --grace 300ms a", TOUGH);
    let group = run.pid_line();
    let mut next = next_holder(&server, group);
    assert_eq!(run.line(), "term");
    assert!(is_held(&server, "a"));
    assert_eq!(next.line(), "dead");
    run.ends(74, "").says("--max-hold 500ms is over");
    next.ended();
    script_gives(&server, "--max-hold 100ms a", "exec sleep 60", 74, "");
    assert_eq!(previous(&server, "a"), "lapsed");
}

#[test]
fn command_that_slept_through_the_loss_never_runs_again() {
    let server = Server::start();
    // So many that some would say so before KILL comes.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do
            (trap 'echo continued' CONT TERM; sleep 60 >&2 & echo up; wait; sleep 60) &
        done; echo $$; wait";
    let mut run = Run::script(&server, "--ttl 2s a", script);
    let mut lines: Vec<String> = (0..11).map(|_| run.line()).collect();
    lines.retain(|line| line != "up");
    let group = Pid::from_raw(lines[0].parse().expect("a number")).expect("a process id");
    // All of it sleeps, as a suspended host does.
    kill_process_group(group, Signal::STOP).expect("sent");
    run.signal(Signal::STOP);
    until(LONG, "the lock lapses", || !is_held(&server, "a"));
    run.signal(Signal::CONT);
    run.ends(74, "").says("killed");
    assert!(!is_alive(group));
}

#[test]
fn fairlock_that_is_killed_takes_the_command_with_it() {
    let server = Server::start();
    let script = "trap '' TERM HUP; echo $$; while :; do sleep 0.02; done";
    let mut run = Run::script(&server, "--ttl 10s a", script);
    let command = run.pid_line();
    run.signal(Signal::KILL);
    run.ended();
    until(LONG, "the command dies", || !is_alive(command));
    assert!(is_held(&server, "a"), "it is dead before the lock ends");
    let guard = manager(&server).try_lock_for("a", Duration::from_secs(30));
    assert!(guard.expect("answers").is_some());
}
