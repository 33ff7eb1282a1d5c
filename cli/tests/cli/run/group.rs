//! All that the command started ends with it.

use rustix::process::{Pid, Signal};

use super::{LONG, Run, is_alive, is_held, kill_group, run_script};
use crate::process::end;
use crate::support::{Server, until};

#[test]
fn command_runs_in_a_group_of_its_own() {
    let server = Server::start();
    let ended = end(&mut run_script(&server, &["a"], "ps -o pid=,pgid= -p $$"));
    let ids: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "{ended:?}");
}

#[test]
fn process_that_the_command_left_behind_is_ended() {
    let server = Server::start();
    let ended = end(&mut run_script(&server, &["a"], "sleep 60 >&2 & echo $$"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let group = ended.stdout.trim_end().parse().ok().and_then(Pid::from_raw);
    assert!(!is_alive(group.expect("a process id")));
    assert!(!is_held(&server, "a"));
}

#[test]
fn process_that_was_left_behind_and_ignores_term_is_killed() {
    let server = Server::start();
    let script = "(trap '' TERM; sleep 60 >&2) & echo $$; exit 5";
    let args = ["--grace", "200ms", "a"];
    let ended = end(&mut run_script(&server, &args, script));
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let group = ended.stdout.trim_end().parse().ok().and_then(Pid::from_raw);
    assert!(!is_alive(group.expect("a process id")));
}

#[test]
fn lock_is_held_until_the_last_process_is_dead() {
    let server = Server::start();
    // The process that is left behind takes a moment for its end.
    let left = "trap 'echo ending; sleep 1; exit' TERM; echo up; while :; do sleep 0.05; done";
    let script = format!("(sh -c \"{left}\") & read end; true");
    let mut run = Run::reading(&mut run_script(&server, &["a"], &script));
    assert_eq!(run.line(), "up");
    run.end_input();
    assert_eq!(run.line(), "ending");
    assert!(is_held(&server, "a"));
    assert_eq!(run.ended().code, Some(0));
    assert!(!is_held(&server, "a"));
}

#[test]
fn process_in_a_session_of_its_own_lives_on() {
    let server = Server::start();
    let script = "setsid sh -c 'echo $$; exec sleep 60 >&- 2>&-' & read end; true";
    let mut run = Run::reading(&mut run_script(&server, &["a"], script));
    let daemon = run.pid_line();
    run.end_input();
    until(LONG, "the command ends", || !run.is_running());
    let lives = is_alive(daemon);
    kill_group(daemon);
    assert!(lives);
}

#[test]
fn dead_process_that_nobody_reaps_keeps_no_lock() {
    let server = Server::start();
    // The subshell has a child in the group, leaves the group, and never reaps its child.
    let script = "(sleep 60 >&2 & exec setsid sh -c 'echo $$; exec sleep 60 >&- 2>&-') &
        exec sleep 60 >&2";
    let mut run = Run::script(&server, &["--grace", "200ms", "a"], script);
    let careless = run.pid_line();
    run.signal(Signal::TERM);
    let ended = run.ended();
    kill_group(careless);
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(!is_held(&server, "a"));
}
