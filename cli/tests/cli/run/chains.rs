//! `fairlock why-waiting`, where a process below a run waits.

use super::*;
use crate::why_waiting::{json, why_waiting};

/// An inner run that finds nothing about the run around it in its environment.
const UNAWARE: &str = "env -u FAIRLOCK_HELD \"$BINARY\"";

/// A run that executes the script when its input ends.
fn ready(server: &Server, outer: &str, script: &str) -> Run {
    let mut run = Run::reading(server, outer, &format!("echo up; read go; {script}"));
    assert_eq!(run.line(), "up");
    run
}

/// Two runs, each around one that waits for the lock of the other.
fn crossed(server: &Server, one: &str, other: &str) -> [Run; 2] {
    let mut runs = [
        ready(server, "a", &format!("{one} run b -- true")),
        ready(server, "b", &format!("{other} run a -- true")),
    ];
    runs.iter_mut().for_each(Run::end_input);
    until_queued(server, "a", 1);
    until_queued(server, "b", 1);
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
    server.query::<()>(&["HSET", &key, "l", &format!("elsewhere\t{rest}")]);
    assert_eq!(holder(server, name).host, "elsewhere");
}

#[test]
fn deadlock_through_the_commands_of_two_runs_exits_2() {
    for way in ["\"$BINARY\"", UNAWARE, "timeout 60 \"$BINARY\""] {
        let server = Server::start();
        let runs = crossed(&server, way, way);
        for name in ["a", "b"] {
            let ended = why_waiting(&server, name, 2);
            let fence = info(&server, name).unwrap().fence;
            let parts = "    which waits for process |, which waits for |Deadlock: each of these";
            has_parts(&ended.stdout, parts);
            let pids = runs.each_ref().map(|run| run.process.id());
            for part in pids.map(|pid| format!("process {pid} on ")) {
                ended.shows(&part);
            }
            ended.shows(&format!("fairlock release {name} --fence {fence}"));
        }
        let object = json(&server, "a");
        let wait = &object["waits"][0];
        assert_eq!(wait["certain"], Value::Bool(true), "{object}");
        assert!(wait["through"]["pid"].is_u64() && wait["through"]["pid"] != wait["holder"]["pid"]);
        end_both(runs);
    }
}

#[test]
fn run_that_is_not_seen_below_another_may_be_a_deadlock() {
    let unseen = "waits for no lock itself; only elsewhere shows whether its command waits";
    for (way, is_away, text) in [
        ("\"$BINARY\"", true, unseen),
        // A process that left the session may be waited for.
        ("setsid --wait \"$BINARY\"", false, "This may be a deadlock"),
    ] {
        let server = Server::start();
        let runs = crossed(&server, way, "\"$BINARY\"");
        if is_away {
            move_holder_away(&server, "a");
        }
        why_waiting(&server, "a", 0).shows(text);
        end_both(runs);
    }
}

#[test]
fn run_is_a_deadlock_if_its_command_waits_for_its_lock() {
    let text = "Deadlock: a run waits for its command, which waits for the lock of the run.";
    for (outer, inner) in [
        ("a", "a"),
        ("--shared a", "--exclusive a"),
        ("--permits 2/2 a", "--permits 1/2 a"),
    ] {
        let server = Server::start();
        let mut run = ready(&server, outer, &format!("{UNAWARE} run {inner} -- true"));
        // The thread that is shown lives.
        let holder = holder(&server, "a");
        let thread = holder.thread_id;
        let comm = fs::read_to_string(format!("/proc/{}/task/{thread}/comm", holder.pid));
        assert_eq!(comm.expect("it lives").trim_end(), holder.thread);
        let ended = why_waiting(&server, "a", 0);
        ended.shows("  which waits for no lock\n");
        run.end_input();
        until_queued(&server, "a", 1);
        why_waiting(&server, "a", 2).shows(text);
        run.signal(Signal::TERM);
        run.ends(143, "");
    }
}
