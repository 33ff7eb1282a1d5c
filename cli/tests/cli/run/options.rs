//! The options of `fairlock run`, and the environment that the command gets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::*;
use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_OUTAGE_LIMIT};

#[test]
fn command_finds_its_lock_in_the_environment_and_blocks_no_signal() {
    let server = Server::start();
    let script = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS
        grep SigBlk: /proc/self/status; env | grep -c '^FAIRLOCK_[SUM]'";
    let ended = end(run_script(&server, "'the name'", script));
    let guard = manager(&server).lock("the name").unwrap();
    let rest = "unknown\nSigBlk:\t0000000000000000\n1\n";
    let parts: Vec<&str> = ended.stdout.splitn(3, ',').collect();
    assert_eq!((parts[0], parts[2]), ("the name", rest), "{ended:?}");
    let fence: u64 = parts[1].parse().expect("a number");
    assert!(0 < fence && fence < guard.fence(), "{fence}");
}

#[test]
fn label_is_the_command_s_name_or_the_given_one() {
    let server = Server::start();
    for (args, label) in [
        ("a", "sh"),
        ("--label nightly a", "nightly"),
        ("--label '' a", ""),
    ] {
        let run = Run::asleep(&server, args);
        let holder = holder(&server, "a");
        assert_eq!((&*holder.label, holder.pid), (label, run.process.id()));
    }
}

#[test]
fn least_time_counts_for_all_or_for_success_alone() {
    let server = Server::start();
    for share in ["a", "--permits 2/2 b"] {
        let once = format!("--no-wait --hold-at-least 1h --only-after-success {share}");
        // Only the one that succeeds keeps the lock.
        for (script, code) in [("exit 3", 3), ("kill -KILL $$", 137)] {
            script_gives(&server, &once, script, code, "");
        }
        assert_eq!(previous(&server, &once), "lapsed");
        script_gives(&server, &once, "true", 75, "");
    }
    let once = "--no-wait --hold-at-least 1h c";
    script_gives(&server, once, "exit 3", 3, "");
    assert!(has_state(&server, "c", LockState::Cooling));
    script_gives(&server, once, "true", 75, "");
}

#[test]
fn permits_readers_and_a_writer_share_the_lock_as_they_may() {
    let server = Server::start();
    for (holders, refused) in [
        ("--permits 2/3 a; --permits 1/3 a", "--permits 1/3 -n a"),
        ("--shared b; -s b", "--exclusive --no-wait b"),
        ("-x c", "-s -n c"),
    ] {
        let start = |args| Run::asleep(&server, args);
        let _holders: Vec<Run> = holders.split("; ").map(start).collect();
        script_gives(&server, refused, "true", 75, "");
    }
}

#[test]
fn wait_with_a_time_outlasts_an_outage_and_one_without_does_not() {
    let server = Server::start();
    let guard = manager(&server).lock("a").unwrap();
    let mut patient = Run::script(&server, "--wait 1h a", "echo ran");
    let mut brief = Run::script(&server, "--wait 8s a", "echo ran");
    let mut endless = Run::script(&server, "a", "echo ran");
    until_queued(&server, "a", 3);
    server.stop();
    // The outage counts from the newest reply. It is as old as a check, which may have been late.
    let earliest = DEFAULT_OUTAGE_LIMIT - DEFAULT_CHECK_PERIOD - SLACK;
    throughout(earliest, "both wait", || {
        endless.is_running() && patient.is_running()
    });
    endless.ends(69, "");
    // Its time ended in the outage, so this is not 75.
    brief.ends(69, "");
    throughout(DEFAULT_CHECK_PERIOD + SLACK, "one waits on", || {
        patient.is_running()
    });
    server.cont();
    drop(guard);
    patient.ends(0, "ran\n");
}

#[test]
fn arguments_input_and_output_are_passed_on_byte_by_byte() {
    let server = Server::start();
    let mut command = run(&server, "a");
    let odd = OsStr::from_bytes(b"\xff\xfe \n");
    command.args(["printf", "%s|%s|%s"]).arg(odd);
    let output = command.args(["--wait", ""]).output().expect("ends");
    assert_eq!(output.stdout, b"\xff\xfe \n|--wait|");
    let echo = run_script(&server, "a", "cat; echo problem >&2");
    let ended = exits(wrapped("sh -c 'seq 20000 | \"$@\"' sh", &echo), 0);
    assert_eq!(ended.stdout.lines().count(), 20_000);
    assert_eq!(ended.stderr, "problem\n");
}

#[test]
fn command_timeout_changes_no_ttl_and_names_what_it_does_not_fit() {
    let server = Server::start();
    let _run = Run::asleep(&server, "--command-timeout 2s --ttl 16s a");
    assert_eq!(holder(&server, "a").ttl, Duration::from_secs(16));
    for times in ["4s --command-timeout 500ms", "1s --command-timeout 125ms"] {
        script_gives(&server, &format!("--ttl {times} b"), "true", 0, "");
    }
    let line = "FAIRLOCK_COMMAND_TIMEOUT=2s run b -- true";
    exits(at(&server.url(), line), 64).says("command_timeout 2s");
}

#[test]
fn line_shows_position_and_holder_and_each_change() {
    let server = Server::start();
    let manager = labelled(&server, "the holder");
    let guard = manager.lock("a").unwrap();
    let waiter = manager.enqueue("a").unwrap();
    let start = |option| {
        let args = format!("{option} a");
        Terminal::start(&run_script(&server, &args, "echo ran"))
    };
    let mut terminal = start("--wait=5m");
    let (host, pid) = (holder(&server, "a").host, std::process::id());
    let holder = format!(", held by the holder ({host}, pid {pid})");
    terminal.shows(&format!("fairlock: a: waiting, number 2 in line{holder}"));
    drop(waiter);
    terminal.shows("number 1 in line");
    let mut busy = start("--no-wait");
    busy.shows(&format!("fairlock: a: busy{holder}"));
    assert_eq!(busy.ends(), Some(75));
    guard.unlock().unwrap();
    terminal.shows("ran");
    assert_eq!(terminal.ends(), Some(0));
    let text = terminal.text();
    let lines: Vec<&str> = text.trim_end().lines().collect();
    assert!(lines.windows(2).all(|two| two[0] != two[1]), "{text}");
}

#[test]
fn wait_is_told_without_a_terminal_only_with_verbose() {
    let server = Server::start();
    let manager = labelled(&server, "the holder");
    for (options, is_told) in [("-v", true), ("", false), ("-v --quiet", false)] {
        let guard = manager.lock("a").unwrap();
        let mut run = Run::script(&server, &format!("{options} a"), "true");
        until_queued(&server, "a", 1);
        guard.unlock().unwrap();
        let waited = run.ends(0, "");
        let _guard = manager.lock("a").unwrap();
        let args = format!("{options} --timeout=100ms a");
        let busy = script_gives(&server, &args, "true", 75, "");
        for (ended, line) in [(waited, "waiting, number 1 in line"), (busy, "busy")] {
            let line = format!("fairlock: a: {line}, held by the holder (");
            assert_eq!(ended.stderr.contains(&line), is_told, "{ended:?}");
            assert!(is_told || !ended.stderr.contains(": waiting"), "{ended:?}");
        }
    }
}
