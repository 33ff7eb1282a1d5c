//! Processes outside the group of the command: those of wrappers, of shells with job control, and
//! of a run inside a run.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::loss::{cut_off, next_holder, through};
use super::{LONG, Run, TTL_TEXT, is_held, manager, run_script, waiters};
use crate::process::{end, give_environment};
use crate::support::{SLACK, Server, until};

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

/// A script that takes one of the ways.
fn script(way: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_fairlock");
    format!("export BINARY='{binary}' JOB=\"{JOB}\"; {way}")
}

fn is_alive(process: Pid) -> bool {
    test_kill_process(process).is_ok()
}

#[test]
fn job_is_dead_before_the_next_holder_has_the_outer_lock() {
    for way in WAYS {
        let server = Server::start();
        let args = ["--max-hold", "1s", "--grace", "300ms", "a"];
        let mut run = Run::script(&server, &args, &script(way));
        let job = run.pid_line();
        let mut next = next_holder(&server, job);
        assert_eq!(run.line(), "term", "{way}");
        assert!(is_held(&server, "a"), "{way}");
        assert_eq!(next.line(), "dead", "{way}");
        assert!(!is_alive(job), "{way}");
        assert_eq!(run.ended().code, Some(74), "{way}");
    }
}

#[test]
fn orphan_of_a_shell_with_job_control_is_ended_before_the_release() {
    let server = Server::start();
    let way = "exec bash -c 'set -m; (sh -c \"$JOB\" & wait) & exec cat'";
    let args = ["--grace", "300ms", "a"];
    let mut run = Run::reading(&mut run_script(&server, &args, &script(way)));
    let job = run.pid_line();
    let mut next = next_holder(&server, job);
    run.end_input();
    assert_eq!(run.line(), "term");
    assert_eq!(next.line(), "dead");
    run.ends(0, "");
}

#[test]
fn inner_run_does_not_delay_the_end_of_the_outer_one() {
    let server = Server::start();
    let inner = "exec \"$BINARY\" run --ttl 60s --grace 20s inner -- sh -c \"$JOB\"";
    let args = ["--max-hold", "500ms", "--grace", "300ms", "a"];
    let mut run = Run::script(&server, &args, &script(inner));
    let job = run.pid_line();
    let start = Instant::now();
    run.ends(74, "term\n");
    // The time from the start of the command to that of the job is in it, too.
    let bound = Duration::from_millis(800) + SLACK;
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    assert!(!is_alive(job));
}

#[test]
fn job_gets_term_once_from_the_inner_run() {
    let server = Server::start();
    let inner = "exec \"$BINARY\" run --ttl 60s --grace 20s inner -- sh -c \"$JOB\"";
    let args = ["--max-hold", "500ms", "--grace", "1s", "a"];
    let mut run = Run::script(&server, &args, &script(inner));
    run.line();
    run.ends(74, "term\n");
}

#[test]
fn job_is_dead_when_the_outer_lock_is_lost_in_an_outage() {
    let (server, proxy) = cut_off();
    let way = "exec \"$BINARY\" run --ttl 60s inner -- sh -c \"$JOB\"";
    let mut run = through(&proxy, &["--ttl", "4s"], &script(way));
    let job = run.pid_line();
    let mut next = next_holder(&server, job);
    proxy.pause_requests();
    assert_eq!(next.line(), "dead");
    assert_eq!(run.ended().code, Some(74));
}

#[test]
fn job_in_another_group_that_was_left_behind_is_ended() {
    let server = Server::start();
    let way = "timeout 60 sh -c \"$JOB\" & read end; echo $!";
    let args = ["--grace", "200ms", "a"];
    let mut run = Run::reading(&mut run_script(&server, &args, &script(way)));
    // Once the job runs, `timeout` has moved to a group of its own.
    run.line();
    run.end_input();
    let job = run.pid_line();
    until(LONG, "the run ends", || !run.is_running());
    let lives = is_alive(job);
    let _ = kill_process(job, Signal::KILL);
    assert!(!lives);
    assert_eq!(run.ended().code, Some(0));
    assert!(!is_held(&server, "a"));
}

#[test]
fn lock_is_held_while_a_job_in_another_group_ends() {
    let server = Server::start();
    let left = "trap 'echo ending; sleep 1; exit' TERM; echo up; while :; do sleep 0.05; done";
    let script = "bash -c 'set -m; sh -c \"$LEFT\" & read end; true'";
    let mut command = run_script(&server, &["a"], script);
    let mut run = Run::reading(command.env("LEFT", left));
    assert_eq!(run.line(), "up");
    run.end_input();
    assert_eq!(run.line(), "ending");
    assert!(is_held(&server, "a"));
    assert_eq!(run.ended().code, Some(0));
    assert!(!is_held(&server, "a"));
}

#[test]
fn background_job_of_the_shell_that_became_fairlock_lives_on() {
    let server = Server::start();
    let binary = run_script(&server, &["--max-hold", "200ms", "a"], "sleep 60");
    let words: Vec<String> = std::iter::once(binary.get_program())
        .chain(binary.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("text")))
        .collect();
    let script = format!("sleep 60 >&- 2>&- & echo $!; exec {}", words.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    give_environment(&mut command, &binary);
    let ended = end(&mut command);
    let job = ended.stdout.trim_end().parse().ok().and_then(Pid::from_raw);
    let job = job.expect("a process id");
    let lives = is_alive(job);
    let _ = kill_process(job, Signal::KILL);
    assert!(lives);
    assert_eq!(ended.code, Some(74), "{ended:?}");
}

#[test]
fn processes_that_start_others_without_pause_are_all_killed() {
    let server = Server::start();
    // Each one starts the next, in a group of its own, and ends.
    let script = "trap '' TERM
        export NEXT='echo $$; sleep 0.01; set -m; bash -c \"$NEXT\" &'
        bash -c \"$NEXT\" & while :; do sleep 0.02; done";
    let args = ["--max-hold", "500ms", "--grace", "100ms", "a"];
    let mut run = Run::script(&server, &args, script);
    let ended = run.ended();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    let last = ended.stdout.lines().last().expect("some");
    let last = Pid::from_raw(last.parse().expect("a number")).expect("a process id");
    assert!(!is_alive(last));
    // None of them goes on, not even one that could not print its number.
    let ps = Command::new("ps").args(["-eo", "args="]).output();
    let all = String::from_utf8(ps.expect("ends").stdout).expect("text");
    assert!(!all.contains("echo $$; sleep 0.01; set -m"), "{all}");
}

#[test]
fn inner_run_behind_a_shell_ends_when_the_outer_one_is_killed() {
    let server = Server::start();
    // The shell dies with the outer run. It does not pass that on.
    let way = "\"$BINARY\" run --ttl 60s --grace 20s inner -- sh -c \"$JOB\"; true";
    let args = ["--ttl", "4s", "--grace", "300ms", "a"];
    let mut run = Run::script(&server, &args, &script(way));
    let job = run.pid_line();
    run.signal(Signal::KILL);
    assert_eq!(run.line(), "term");
    until(LONG, "the job dies", || !is_alive(job));
    assert!(is_held(&server, "a"), "it is dead before the lock ends");
}

#[test]
fn inner_run_that_waits_ends_when_the_outer_one_is_killed() {
    let server = Server::start();
    let guard = manager(&server).lock("inner").expect("free");
    let way = "\"$BINARY\" run inner -- echo it ran; true";
    let run = Run::script(&server, &["a"], &script(way));
    until(LONG, "queued", || waiters(&server, "inner") == 1);
    run.signal(Signal::KILL);
    until(LONG, "it has left", || waiters(&server, "inner") == 0);
    guard.unlock().expect("released");
}

#[test]
fn job_dies_with_both_runs_when_the_outer_one_is_killed() {
    let server = Server::start();
    let way = "exec \"$BINARY\" run inner -- sh -c \"$JOB\"";
    let mut run = Run::script(&server, &["--ttl", TTL_TEXT, "a"], &script(way));
    let job = run.pid_line();
    run.signal(Signal::KILL);
    until(LONG, "the job dies", || !is_alive(job));
}
