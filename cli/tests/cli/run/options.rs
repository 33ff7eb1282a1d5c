//! The options of `fairlock run`, and the environment that the command gets.

use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_OUTAGE_LIMIT};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::Duration;

use fairlock::inspect::LockState;

use super::{Run, holder, manager, previous, run, run_script, script_gives, until_queued};
use crate::process::{end, exits};
use crate::support::{SLACK, Server, throughout};

#[test]
fn command_finds_its_lock_in_the_environment_and_blocks_no_signal() {
    let server = Server::start();
    let script = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS
        grep SigBlk: /proc/self/status; env | grep -c '^FAIRLOCK_[SUM]'";
    let mut command = run_script(&server, &["the name"], script);
    let ended = end(command.env_remove("FAIRLOCK_COMMAND_TIMEOUT"));
    let guard = manager(&server).lock("the name").expect("free");
    let (own, rest) = ended.stdout.split_once('\n').expect("lines");
    let parts: Vec<&str> = own.split(',').collect();
    let [name, fence, previous] = parts[..] else {
        panic!("{ended:?}");
    };
    assert_eq!((name, previous), ("the name", "unknown"));
    let fence: u64 = fence.parse().expect("a number");
    assert!(0 < fence && fence < guard.fence(), "{fence}");
    assert_eq!(rest, "SigBlk:\t0000000000000000\n1\n");
}

#[test]
fn label_is_the_command_s_name_or_the_given_one() {
    let server = Server::start();
    for (args, label) in [
        (&["a"][..], "sh"),
        (&["--label", "nightly", "a"], "nightly"),
        (&["--label", "", "a"], ""),
    ] {
        let run = Run::asleep(&server, args);
        let holder = holder(&server, "a");
        assert_eq!((&*holder.label, holder.pid), (label, run.process.id()));
    }
}

#[test]
fn least_time_counts_for_all_or_for_success_alone() {
    let server = Server::start();
    for share in [&["a"][..], &["--permits", "2/2", "b"]] {
        let once = ["--no-wait", "--hold-at-least", "1h", "--only-after-success"];
        let once = [&once[..], share].concat();
        // Only the one that succeeds keeps the lock.
        for (script, code) in [("exit 3", 3), ("kill -KILL $$", 137), ("exit 3", 3)] {
            script_gives(&server, &once, script, code, "");
        }
        script_gives(&server, &once, "kill -KILL $$", 137, "");
        assert_eq!(previous(&server, &once), "lapsed");
        script_gives(&server, &once, "true", 75, "");
    }
    let once = ["--no-wait", "--hold-at-least", "1h", "c"];
    script_gives(&server, &once, "exit 3", 3, "");
    let info = manager(&server).inspect("c").expect("answers");
    assert_eq!(info.map(|info| info.state), Some(LockState::Cooling));
    script_gives(&server, &once, "true", 75, "");
}

#[test]
fn permits_readers_and_a_writer_share_the_lock_as_they_may() {
    let server = Server::start();
    for (holders, refused) in [
        (
            &["--permits 2/3 a", "--permits 1/3 a"][..],
            "--permits 1/3 -n a",
        ),
        (&["--shared b", "-s b"], "--exclusive --no-wait b"),
        (&["-x c"], "-s -n c"),
    ] {
        let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
        let holders = holders
            .iter()
            .map(|line| Run::asleep(&server, &words(line)));
        let _holders: Vec<Run> = holders.collect();
        script_gives(&server, &words(refused), "true", 75, "");
    }
    let _writer = Run::asleep(&server, &["-x", "d"]);
    assert!(!holder(&server, "d").shared);
}

#[test]
fn wait_with_a_time_outlasts_an_outage_and_one_without_does_not() {
    let server = Server::start();
    let manager = manager(&server);
    let guard = manager.lock("a").expect("free");
    let mut patient = Run::script(&server, &["--wait", "1h", "a"], "echo ran");
    let mut endless = Run::script(&server, &["a"], "echo ran");
    until_queued(&server, "a", 2);
    server.stop();
    // The outage counts from the newest reply. It is as old as a check, which may have been late.
    let earliest = DEFAULT_OUTAGE_LIMIT - DEFAULT_CHECK_PERIOD - SLACK;
    throughout(earliest, "both wait", || {
        endless.is_running() && patient.is_running()
    });
    endless.ends(69, "");
    throughout(DEFAULT_CHECK_PERIOD + SLACK, "one waits on", || {
        patient.is_running()
    });
    server.cont();
    drop(guard);
    patient.ends(0, "ran\n");
}

#[test]
fn arguments_are_passed_on_byte_by_byte() {
    let server = Server::start();
    let mut command = run(&server, &["a"]);
    let odd = OsStr::from_bytes(b"\xff\xfe \n");
    command.args(["printf", "%s|%s|%s"]).arg(odd);
    let output = command.args(["--wait", ""]).output().expect("ends");
    assert_eq!(output.stdout, b"\xff\xfe \n|--wait|");
}

#[test]
fn standard_input_and_output_are_the_command_s() {
    let server = Server::start();
    let mut command = run_script(&server, &["a"], "cat; echo problem >&2");
    let piped = Stdio::piped;
    let command = command.stdin(piped()).stdout(piped()).stderr(piped());
    let mut process = command.spawn().expect("starts");
    let mut input = process.stdin.take().expect("piped");
    let lines = "\u{e9} and words\n".repeat(20_000);
    let copy = lines.clone();
    let writer = std::thread::spawn(move || input.write_all(copy.as_bytes()));
    let output = process.wait_with_output().expect("ends");
    writer.join().expect("no panic").expect("written");
    let same = output.stdout == lines.as_bytes();
    assert!(same, "{} bytes", output.stdout.len());
    assert_eq!(output.stderr, b"problem\n");
}

#[test]
fn command_timeout_changes_no_ttl_and_names_what_it_does_not_fit() {
    let server = Server::start();
    let _run = Run::asleep(&server, &["--command-timeout", "2s", "--ttl", "16s", "a"]);
    assert_eq!(holder(&server, "a").ttl, Duration::from_secs(16));
    for (ttl, timeout) in [("4s", "500ms"), ("1s", "125ms"), ("12s", "1500ms")] {
        let args = ["--ttl", ttl, "--command-timeout", timeout, "b"];
        script_gives(&server, &args, "true", 0, "");
    }
    let mut by_variable = run_script(&server, &["b"], "true");
    let ended = exits(by_variable.env("FAIRLOCK_COMMAND_TIMEOUT", "2s"), 64);
    ended.says("command_timeout 2s");
}
