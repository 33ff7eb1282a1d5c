//! All that the command started ends with it: also processes outside its group, as those of
//! wrappers, of shells with job control, and of a run inside a run.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};

use super::loss::{cut_off, next_holder, through};
use super::{
    LONG, Run, TTL_TEXT, is_held, manager, run_script, script_gives, until_queued, waiters,
};
use crate::process::{end, exits, wrapped};
use crate::support::{Server, until};

/// Prints its process, then a line for TERM, and ignores it otherwise. It stands in double quotes
/// in a script.
const JOB: &str = r"trap 'echo term' TERM; echo \$\$; while :; do sleep 0.02; done";

/// Ways from the command to its job, as scripts in which `$JOB` is the job and `$BINARY` fairlock.
const WAYS: [&str; 6] = [
    "exec \"$BINARY\" run inner -- sh -c \"$JOB\"",
    "\"$BINARY\" run inner -- sh -c \"$JOB\"; true",
    "\"$BINARY\" run inner -- \"$BINARY\" run innermost -- sh -c \"$JOB\"",
    "timeout 60 \"$BINARY\" run inner -- timeout 60 sh -c \"$JOB\"",
    "timeout 60 sh -c \"$JOB\" & wait",
    "exec nohup bash -c 'set -m; sh -c \"$JOB\" & wait; wait'",
];

/// A run of which the inner one would take longer than the tests.
const SLOW: &str = "exec \"$BINARY\" run --ttl 3m --grace 1m inner -- sh -c \"$JOB\"";

/// A script that takes one of the ways.
fn script(way: &str) -> String {
    format!("export JOB=\"{JOB}\"; {way}")
}

fn is_alive(process: Pid) -> bool {
    test_kill_process(process).is_ok()
}

/// Whether the process lives. It is dead then.
fn kill(process: Pid) -> bool {
    let lives = is_alive(process);
    let _ = kill_process(process, Signal::KILL);
    lives
}

#[test]
fn job_is_dead_before_the_next_holder_has_the_outer_lock() {
    for way in WAYS.into_iter().chain([SLOW]) {
        let server = Server::start();
        let args = ["--max-hold", "1s", "--grace", "300ms", "a"];
        let mut run = Run::script(&server, &args, &script(way));
        let job = run.pid_line();
        let mut next = next_holder(&server, job);
        assert_eq!(run.line(), "term", "{way}");
        assert!(is_held(&server, "a"), "{way}");
        assert_eq!(next.line(), "dead", "{way}");
        assert!(!is_alive(job), "{way}");
        let ended = run.ended();
        assert_eq!(ended.code, Some(74), "{way}");
        // An inner run alone passes TERM on. `timeout` does so, too.
        assert!(way.contains("timeout") || ended.stdout.is_empty(), "{way}");
    }
}

#[test]
fn job_is_dead_when_the_outer_lock_is_lost_in_an_outage() {
    let (server, proxy) = cut_off();
    let mut run = through(&proxy, &["--ttl", "4s"], &script(SLOW));
    let job = run.pid_line();
    let mut next = next_holder(&server, job);
    proxy.pause_requests();
    assert_eq!(next.line(), "dead");
    assert_eq!(run.ended().code, Some(74));
}

/// Scripts that end once their input does, and leave a job that ignores TERM.
#[test]
fn process_that_was_left_behind_is_ended_before_the_release() {
    let server = Server::start();
    for way in [
        "sh -c \"$JOB\" & read end",
        "timeout 60 sh -c \"$JOB\" & read end",
        // An orphan of a shell with job control.
        "exec bash -c 'set -m; (sh -c \"$JOB\" & wait) & exec cat'",
        // An orphan before its end.
        "(sh -c \"$JOB\" &); read end",
    ] {
        let way = script(way).replace("read end", "read end; true");
        let mut run = Run::reading(&server, &["--grace", "300ms", "a"], &way);
        let job = run.pid_line();
        let mut next = next_holder(&server, job);
        run.end_input();
        assert_eq!(run.line(), "term", "{way}");
        assert!(is_held(&server, "a"), "{way}");
        assert_eq!(next.line(), "dead", "{way}");
        assert_eq!(run.ended().code, Some(0), "{way}");
        assert!(!is_alive(job), "{way}");
    }
    script_gives(&server, &["a"], "sleep 60 >&2 & exit 5", 5, "");
}

#[test]
fn command_leads_a_group_without_a_terminal() {
    let server = Server::start();
    let ended = end(run_script(&server, &["a"], "ps -o pid=,pgid= -p $$"));
    let ids: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "{ended:?}");
}

#[test]
fn process_in_a_session_of_its_own_lives_on() {
    let server = Server::start();
    // The second has a child in the group, and never reaps it. The dead child keeps no lock.
    for (daemon, code) in [
        (
            "setsid sh -c 'echo $$; exec sleep 60 >&- 2>&-' & exec sleep 60 >&2",
            143,
        ),
        (
            "(sleep 60 >&2 & exec setsid sh -c 'echo $$; exec sleep 60 >&- 2>&-') &
            exec sleep 60 >&2",
            143,
        ),
    ] {
        let mut run = Run::script(&server, &["--grace", "200ms", "a"], daemon);
        let daemon = run.pid_line();
        run.signal(Signal::TERM);
        until(LONG, "the command ends", || !run.is_running());
        let lives = is_alive(daemon);
        let _ = kill_process_group(daemon, Signal::KILL);
        assert!(lives);
        run.ends(code, "");
        assert!(!is_held(&server, "a"));
    }
}

#[test]
fn background_job_of_the_shell_that_became_fairlock_lives_on() {
    let server = Server::start();
    let binary = run_script(&server, &["--max-hold", "200ms", "a"], "sleep 60");
    let shell = ["sh", "-c", "sleep 60 >&- 2>&- & echo $!; exec \"$@\"", "sh"];
    let ended = exits(wrapped(&shell, &binary), 74);
    let job = ended.stdout.trim_end().parse().ok().and_then(Pid::from_raw);
    assert!(kill(job.expect("a process id")));
}

#[test]
fn processes_that_start_others_without_pause_are_all_killed() {
    let server = Server::start();
    // Each one starts the next, in a group of its own, and ends.
    let script = "trap '' TERM
        export NEXT='echo $$; sleep 0.01; set -m; bash -c \"$NEXT\" &'
        bash -c \"$NEXT\" & while :; do sleep 0.02; done";
    let args = ["--max-hold", "500ms", "--grace", "100ms", "a"];
    let ended = Run::script(&server, &args, script).ended();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    // None of them goes on, not even one that could not print its number.
    let ps = Command::new("ps").args(["-eo", "args="]).output();
    let all = String::from_utf8(ps.expect("ends").stdout).expect("text");
    assert!(!all.contains("echo $$; sleep 0.01; set -m"), "{all}");
}

#[test]
fn inner_run_ends_when_the_outer_one_is_killed() {
    let server = Server::start();
    // The shell dies with the outer run. It does not pass that on.
    let behind_a_shell = format!("{}; true", SLOW.trim_start_matches("exec "));
    let args = ["--ttl", "4s", "--grace", "300ms", "a"];
    let mut run = Run::script(&server, &args, &script(&behind_a_shell));
    let job = run.pid_line();
    run.signal(Signal::KILL);
    assert_eq!(run.line(), "term");
    until(LONG, "the job dies", || !is_alive(job));
    assert!(is_held(&server, "a"), "it is dead before the lock ends");

    // A run that joined has become its command.
    for way in [
        WAYS[0],
        "exec \"$BINARY\" run --reenter b -- sh -c \"$JOB\"",
    ] {
        let mut run = Run::script(&server, &["--ttl", TTL_TEXT, "b"], &script(way));
        let job = run.pid_line();
        run.signal(Signal::KILL);
        until(LONG, "the job dies", || !is_alive(job));
    }

    // One that waits leaves the queue.
    let guard = manager(&server).lock("awaited").expect("free");
    let way = "\"$BINARY\" run awaited -- echo it ran; true";
    let run = Run::script(&server, &["c"], way);
    until_queued(&server, "awaited", 1);
    run.signal(Signal::KILL);
    until(LONG, "it has left", || waiters(&server, "awaited") == 0);
    guard.unlock().expect("released");
}
