//! `fairlock why-waiting`, where a process below a run waits.

use rustix::process::Signal;
use serde_json::Value;

use super::{Run, holder, manager, until_queued};
use crate::support::Server;
use crate::why_waiting::{json, why_waiting};

/// An inner run that finds nothing about the run around it in its environment.
const UNAWARE: &str = "env -u FAIRLOCK_HELD \"$BINARY\"";

/// A run that executes the script when its input ends. `$BINARY` is fairlock.
fn ready(server: &Server, outer: &[&str], script: &str) -> Run {
    let mut run = Run::reading(server, outer, &format!("echo up; read go; {script}"));
    assert_eq!(run.line(), "up");
    run
}

/// Two runs, each around one that waits for the lock of the other.
fn crossed(server: &Server, one: &str, other: &str) -> [Run; 2] {
    let mut runs = [
        ready(server, &["a"], &format!("{one} run b -- true")),
        ready(server, &["b"], &format!("{other} run a -- true")),
    ];
    runs.iter_mut().for_each(Run::end_input);
    for name in ["a", "b"] {
        until_queued(server, name, 1);
    }
    runs
}

/// Ends the first run. The second one then gets the lock.
fn end_both([mut first, mut second]: [Run; 2]) {
    first.signal(Signal::TERM);
    first.ends(143, "");
    second.ends(0, "");
}

/// Writes into Redis that the holder is on another host.
fn move_holder_away(server: &Server, name: &str) {
    let key = format!("fairlock:{{{name}}}");
    let label: String = server.query(&["HGET", &key, "l"]);
    let (_, rest) = label.split_once('\t').expect("parts");
    let _: i64 = server.query(&["HSET", &key, "l", &format!("elsewhere\t{rest}")]);
    assert_eq!(holder(server, name).host, "elsewhere");
}

#[test]
fn deadlock_through_the_commands_of_two_runs_exits_2() {
    for way in ["\"$BINARY\"", UNAWARE, "timeout 60 \"$BINARY\""] {
        let server = Server::start();
        let runs = crossed(&server, way, way);
        for name in ["a", "b"] {
            let ended = why_waiting(&server, &[name]);
            assert_eq!((ended.code, &*ended.stderr), (Some(2), ""), "{ended:?}");
            let fence = manager(&server).inspect(name).unwrap().unwrap().fence;
            for part in [
                "    which waits for process ",
                ", which waits for ",
                "Deadlock: each of these, or a process for which it waits, waits for a lock",
                &format!("process {} on ", runs[0].pid()),
                &format!("process {} on ", runs[1].pid()),
                &format!("fairlock release {name} --fence {fence}"),
            ] {
                ended.shows(part);
            }
        }
        let object = json(&server, "a");
        let wait = &object["waits"][0];
        assert_eq!(wait["certain"], Value::Bool(true), "{object}");
        assert!(wait["through"]["pid"].is_u64() && wait["through"]["pid"] != wait["holder"]["pid"]);
        end_both(runs);
    }
}

#[test]
fn run_on_another_host_is_said_not_to_be_seen() {
    let server = Server::start();
    let runs = crossed(&server, "\"$BINARY\"", "\"$BINARY\"");
    move_holder_away(&server, "a");
    let ended = why_waiting(&server, &["a"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.shows("waits for no lock itself; only elsewhere shows whether its command waits");
    end_both(runs);
}

#[test]
fn run_whose_command_waits_for_its_lock_is_a_deadlock() {
    for (outer, inner) in [
        (&["a"][..], "a"),
        (&["--shared", "a"], "--exclusive a"),
        (&["--permits", "2/2", "a"], "--permits 1/2 a"),
    ] {
        let server = Server::start();
        let mut run = ready(&server, outer, &format!("{UNAWARE} run {inner} -- true"));
        run.end_input();
        until_queued(&server, "a", 1);
        let ended = why_waiting(&server, &["a"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let text = "Deadlock: a run waits for its command, which waits for the lock of the run.";
        ended.shows(text);
        run.signal(Signal::TERM);
        run.ends(143, "");
    }
}

#[test]
fn process_that_left_the_session_may_be_waited_for() {
    let server = Server::start();
    let away = "setsid --wait \"$BINARY\"";
    let runs = crossed(&server, away, "\"$BINARY\"");
    let ended = why_waiting(&server, &["a"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.shows("which may wait for process ");
    ended.shows("This may be a deadlock");
    let [mut first, mut second] = runs;
    second.signal(Signal::TERM);
    second.ends(143, "");
    first.ends(0, "");
}

#[test]
fn run_whose_command_waits_for_nothing_ends_the_chain() {
    let server = Server::start();
    for outer in [&["a"][..], &["--shared", "b"], &["--permits", "1/2", "c"]] {
        let mut run = ready(&server, outer, "true");
        let name = outer[outer.len() - 1];
        // The thread that is shown lives.
        let holder = holder(&server, name);
        let thread = holder.thread_id;
        let comm = std::fs::read_to_string(format!("/proc/{}/task/{thread}/comm", holder.pid));
        assert_eq!(comm.expect("it lives").trim_end(), holder.thread);
        let ended = why_waiting(&server, &[name]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let text = "    which waits for no lock\n";
        assert!(ended.stdout.ends_with(text), "{ended:?}");
        run.end_input();
        run.ends(0, "");
    }
}
