//! All that the command started ends with it: also processes outside its group, as those of
//! wrappers, of shells with job control, and of a run inside a run.

use super::loss::{behind_a_proxy, next_holder};
use super::*;

/// Prints its process, then a line for TERM, and ignores it otherwise. It stands in double quotes
/// in a script.
const JOB: &str = r"trap 'echo term' TERM; echo \$\$; while :; do sleep 0.02; done";

/// Ways from the command to its job, as scripts in which `$JOB` is the job and `$BINARY` fairlock.
const WAYS: [&str; 7] = [
    "exec \"$BINARY\" run inner -- sh -c \"$JOB\"",
    "\"$BINARY\" run inner -- sh -c \"$JOB\"; true",
    "\"$BINARY\" run inner -- \"$BINARY\" run innermost -- sh -c \"$JOB\"",
    "timeout 60 \"$BINARY\" run inner -- timeout 60 sh -c \"$JOB\"",
    "timeout 60 \"$BINARY\" run --reenter a -- sh -c \"$JOB\"",
    "timeout 60 sh -c \"$JOB\" & wait",
    "exec nohup bash -c 'set -m; sh -c \"$JOB\" & wait; wait'",
];

/// A run of which the inner one would take longer than the tests.
const SLOW: &str = "exec \"$BINARY\" run --ttl 3m --grace 1m inner -- sh -c \"$JOB\"";

/// A script that takes one of the ways.
fn script(way: &str) -> String {
    format!("export JOB=\"{JOB}\"; {way}")
}

#[test]
fn job_is_dead_before_the_next_holder_has_the_outer_lock() {
    for way in WAYS.into_iter().chain([SLOW]) {
        let server = Server::start();
        let mut run = Run::script(&server, "--max-hold 1s --grace 300ms a", &script(way));
        let job = run.pid_line();
        let mut next = next_holder(&server, job);
        assert_eq!(run.line(), "term", "{way}");
        assert!(is_held(&server, "a"), "{way}");
        assert_eq!(next.line(), "dead", "{way}");
        assert!(test_kill_process(job).is_err(), "{way}");
        let ended = run.ended();
        assert_eq!(ended.code, Some(74), "{way}");
        // An inner run alone passes TERM on. `timeout` does so, too.
        assert!(way.contains("timeout") || ended.stdout.is_empty(), "{way}");
    }
}

#[test]
fn job_is_dead_when_the_outer_lock_is_lost_in_an_outage() {
    let (server, proxy, mut run) = behind_a_proxy("--ttl 4s", &script(SLOW));
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
        "sh -c \"$JOB\" & read end; true",
        "timeout 60 sh -c \"$JOB\" & read end; true",
        // An orphan of a shell with job control.
        "exec bash -c 'set -m; (sh -c \"$JOB\" & wait) & exec cat'",
        // An orphan before its end.
        "(sh -c \"$JOB\" &); read end; true",
    ] {
        let mut run = Run::reading(&server, "--grace 300ms a", &script(way));
        let job = run.pid_line();
        let mut next = next_holder(&server, job);
        run.end_input();
        assert_eq!(run.line(), "term", "{way}");
        assert!(is_held(&server, "a"), "{way}");
        assert_eq!(next.line(), "dead", "{way}");
        assert_eq!(run.ended().code, Some(0), "{way}");
        assert!(test_kill_process(job).is_err(), "{way}");
    }
    script_gives(&server, "a", "sleep 60 >&2 & exit 5", 5, "");
}

#[test]
fn command_leads_a_group_without_a_terminal() {
    let server = Server::start();
    let ended = end(run_script(&server, "a", "ps -o pid=,pgid= -p $$"));
    let ids: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "{ended:?}");
}

#[test]
fn process_that_is_not_the_commands_lives_on() {
    let server = Server::start();
    // In a session of its own. The second has a child in the group, and never reaps it: the dead
    // child keeps no lock.
    let daemon = "setsid sh -c 'echo $$; exec sleep 60 >&- 2>&-'";
    for script in [
        format!("{daemon} & exec sleep 60 >&2"),
        format!("(sleep 60 >&2 & exec {daemon}) & exec sleep 60 >&2"),
    ] {
        let mut run = Run::script(&server, "--grace 200ms a", &script);
        let daemon = run.pid_line();
        run.signal(Signal::TERM);
        until(LONG, "the command ends", || !run.is_running());
        assert_ne!(state(daemon), "Z");
        kill_process_group(daemon, Signal::KILL).expect("sent");
        run.ends(143, "");
        assert!(!is_held(&server, "a"));
    }
    // A background job of the shell that became fairlock.
    let binary = run_script(&server, "--max-hold 200ms a", "sleep 60");
    let shell = "sh -c 'sleep 60 >&- 2>&- & echo $!; exec \"$@\"' sh";
    let mut run = Run::start(wrapped(shell, &binary));
    let job = run.pid_line();
    run.ends(74, "");
    assert_ne!(state(job), "Z");
    kill_process(job, Signal::KILL).expect("sent");
}

#[test]
fn processes_that_start_others_without_pause_are_all_killed() {
    let server = Server::start();
    // Each one starts the next, in a group of its own, and ends.
    let script = "trap '' TERM
        export NEXT='echo $$; sleep 0.01; set -m; bash -c \"$NEXT\" &'
        bash -c \"$NEXT\" & while :; do sleep 0.02; done";
    let ended = Run::script(&server, "--max-hold 500ms --grace 100ms a", script).ended();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    // None of them goes on, not even one that could not print its number.
    let all = printed(Command::new("ps").args(["-eo", "args="]));
    assert!(!all.contains("echo $$; sleep 0.01; set -m"), "{all}");
}

#[test]
fn inner_run_ends_when_the_outer_one_is_killed() {
    let server = Server::start();
    // The shell dies with the outer run. It does not pass that on.
    let way = script(&format!("{}; true", SLOW.trim_start_matches("exec ")));
    let mut run = Run::script(&server, "--ttl 4s --grace 300ms a", &way);
    let job = run.pid_line();
    run.signal(Signal::KILL);
    assert_eq!(run.line(), "term");
    until(LONG, "the job dies", || test_kill_process(job).is_err());
    assert!(is_held(&server, "a"), "it is dead before the lock ends");

    // A run that joined has become its command.
    let joined = "exec \"$BINARY\" run --reenter b -- sh -c \"$JOB\"";
    for way in [WAYS[0], joined] {
        let mut run = Run::script(&server, "--ttl 2s b", &script(way));
        let job = run.pid_line();
        run.signal(Signal::KILL);
        until(LONG, "the job dies", || test_kill_process(job).is_err());
    }

    // One that waits leaves the queue.
    let guard = manager(&server).lock("awaited").unwrap();
    let way = "\"$BINARY\" run awaited -- echo it ran; true";
    let run = Run::script(&server, "c", way);
    until_queued(&server, "awaited", 1);
    run.signal(Signal::KILL);
    until_queued(&server, "awaited", 0);
    guard.unlock().unwrap();
}
