//! The options of `fairlock run`, and the environment that the command gets.

use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_OUTAGE_LIMIT};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlock::inspect::{Access, LockState};
use rustix::process::Signal;

use super::{LONG, Run, broken_program, is_held, manager, run, run_script, until_renewed, waiters};
use crate::process::end;
use crate::support::{SLACK, Server, throughout, until};

#[test]
fn command_finds_name_fence_and_previous_holder() {
    let server = Server::start();
    let script = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS";
    let ended = end(&mut run_script(&server, &["the name"], script));
    let guard = manager(&server).lock("the name").expect("free");
    let parts: Vec<&str> = ended.stdout.trim_end().split(',').collect();
    let [name, fence, previous] = parts[..] else {
        panic!("{ended:?}");
    };
    assert_eq!((name, previous), ("the name", "unknown"));
    let fence: u64 = fence.parse().expect("a number");
    assert!(0 < fence && fence < guard.fence(), "{fence}");
}

#[test]
fn lock_is_held_while_the_command_runs_and_free_after() {
    let server = Server::start();
    let mut run = Run::script(&server, &["a"], "echo up; exec sleep 60");
    run.line();
    assert!(is_held(&server, "a"));
    run.signal(Signal::TERM);
    assert_eq!(run.ended().code, Some(143));
    assert!(!is_held(&server, "a"));
}

#[test]
fn label_is_the_command_s_name_or_the_given_one() {
    let server = Server::start();
    for (args, label) in [
        (&["a"][..], "sh"),
        (&["--label", "nightly", "a"], "nightly"),
        (&["--label", "", "a"], ""),
    ] {
        let mut run = Run::script(&server, args, "echo up; exec sleep 60");
        run.line();
        let info = manager(&server).inspect("a").expect("answers");
        let holder = info.and_then(|info| info.holder).expect("held");
        assert_eq!(holder.label, label);
        assert_eq!(holder.pid, run.process.id());
    }
}

#[test]
fn lock_has_the_given_ttl_and_is_renewed() {
    let server = Server::start();
    let script = "echo up; exec sleep 60";
    let mut run = Run::script(&server, &["--ttl", "4s", "a"], script);
    run.line();
    let info = manager(&server).inspect("a").expect("answers");
    let holder = info.and_then(|info| info.holder).expect("held");
    assert_eq!(holder.ttl, Duration::from_secs(4));
    until_renewed(&server, "a");
}

#[test]
fn hold_at_least_keeps_the_lock_after_the_command() {
    let server = Server::start();
    let once = ["--no-wait", "--hold-at-least", "1h", "a"];
    assert_eq!(end(&mut run_script(&server, &once, "true")).code, Some(0));
    let info = manager(&server).inspect("a").expect("answers");
    assert_eq!(info.map(|info| info.state), Some(LockState::Cooling));
    assert_eq!(end(&mut run_script(&server, &once, "true")).code, Some(75));
}

#[test]
fn permits_are_taken_of_a_semaphore() {
    let server = Server::start();
    let script = "echo up; exec sleep 60";
    let mut first = Run::script(&server, &["--permits", "2/3", "a"], script);
    first.line();
    let mut second = Run::script(&server, &["--permits", "1/3", "a"], script);
    second.line();
    let third = ["--permits", "1/3", "--no-wait", "a"];
    assert_eq!(end(&mut run_script(&server, &third, "true")).code, Some(75));
}

#[test]
fn readers_share_the_lock_and_a_writer_excludes_them() {
    let server = Server::start();
    let script = "echo up; exec sleep 60";
    let mut first = Run::script(&server, &["--shared", "a"], script);
    first.line();
    let mut second = Run::script(&server, &["-s", "a"], script);
    second.line();
    let writer = ["--exclusive", "--no-wait", "a"];
    assert_eq!(
        end(&mut run_script(&server, &writer, "true")).code,
        Some(75)
    );
    drop((first, second));
    let mut writer = Run::script(&server, &["-x", "a"], script);
    writer.line();
    let info = manager(&server).inspect("a").expect("answers");
    let holder = info.and_then(|info| info.holder).expect("held");
    assert_eq!(holder.access, Access::Writer);
    let reader = ["-s", "-n", "a"];
    assert_eq!(
        end(&mut run_script(&server, &reader, "true")).code,
        Some(75)
    );
}

#[test]
fn command_waits_for_its_turn() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let mut run = Run::script(&server, &["a"], "echo ran");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    guard.unlock().expect("released");
    run.ends(0, "ran\n");
}

#[test]
fn wait_with_a_time_outlasts_an_outage_and_one_without_does_not() {
    let server = Server::start();
    let manager = manager(&server);
    let guard = manager.lock("a").expect("free");
    let mut patient = Run::script(&server, &["--wait", "1h", "a"], "echo ran");
    let mut endless = Run::script(&server, &["a"], "echo ran");
    until(LONG, "queued", || waiters(&server, "a") == 2);
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
    command.args(["printf", "%s|%s|%s"]);
    let odd = OsStr::from_bytes(b"\xff\xfe \n");
    let output = command
        .arg(odd)
        .args(["--wait", ""])
        .output()
        .expect("ends");
    assert_eq!(output.stdout, b"\xff\xfe \n|--wait|");
}

#[test]
fn standard_input_and_output_are_the_command_s() {
    let server = Server::start();
    let mut command = run_script(&server, &["a"], "cat; echo problem >&2");
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = process.stdin.take().expect("piped");
    let lines: Vec<u8> = (0..20_000)
        .flat_map(|n| format!("{n} \u{e9}\n").into_bytes())
        .collect();
    let copy = lines.clone();
    let writer = std::thread::spawn(move || input.write_all(&copy));
    let output = process.wait_with_output().expect("ends");
    writer.join().expect("no panic").expect("written");
    assert!(output.stdout == lines, "{} bytes", output.stdout.len());
    assert_eq!(output.stderr, b"problem\n");
}

#[test]
fn command_that_cannot_start_uses_up_no_least_time() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let program = broken_program(&folder);
    for share in [&[][..], &["--permits", "2/2"]] {
        let once = [&["--hold-at-least", "1h", "a"], share].concat();
        assert_eq!(end(run(&server, &once).arg(&program)).code, Some(126));
        let next = [&["--no-wait", "a"], share].concat();
        assert_eq!(super::previous(&server, &next), "released");
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn long_command_timeout_fits_a_long_ttl_and_changes_none() {
    let server = Server::start();
    let script = "echo up; exec sleep 60";
    let args = ["--command-timeout", "2s", "--ttl", "16s", "a"];
    let mut run = Run::script(&server, &args, script);
    run.line();
    let info = manager(&server).inspect("a").expect("answers");
    let holder = info.and_then(|info| info.holder).expect("held");
    assert_eq!(holder.ttl, Duration::from_secs(16));
    drop(run);
    let args = ["--command-timeout", "1s", "--timeout", "600ms", "a"];
    let ended = end(&mut run_script(&server, &args, "true"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn command_timeout_that_does_not_fit_the_default_ttl_is_an_error() {
    let server = Server::start();
    for by_variable in [false, true] {
        let option = match by_variable {
            true => "FAIRLOCK_COMMAND_TIMEOUT",
            false => "--command-timeout",
        };
        let message = format!(
            "the default --ttl 10s is too short for {option} 2s: make it 16s, or {option} 1s 250ms"
        );
        let mut command = crate::process::fairlock(&server, &["run"]);
        if by_variable {
            command.env("FAIRLOCK_COMMAND_TIMEOUT", "2s");
        } else {
            command.args(["--command-timeout", "2s"]);
        }
        let ended = end(command.args(["a", "--", "true"]));
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert_eq!(ended.stderr, format!("fairlock: {message}\n"));
    }
}

#[test]
fn timeout_is_the_longest_wait() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    for option in ["--wait", "--timeout", "-w"] {
        let start = Instant::now();
        let ended = end(&mut run_script(&server, &[option, "300ms", "a"], "true"));
        assert_eq!(ended.code, Some(75), "{ended:?}");
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(300), "{waited:?}");
        assert!(waited < Duration::from_millis(300) + SLACK, "{waited:?}");
    }
}

#[test]
fn ttl_that_is_too_short_for_the_timeout_names_both_options() {
    let server = Server::start();
    for (ttl, timeout, message) in [
        (
            "1s",
            "500ms",
            "--ttl 1s is too short for --command-timeout 500ms: make it 4s, or \
             --command-timeout 125ms",
        ),
        (
            "4s",
            "1500ms",
            "--ttl 4s is too short for --command-timeout 1s 500ms: make it 12s, or \
             --command-timeout 500ms",
        ),
    ] {
        let args = ["--ttl", ttl, "--command-timeout", timeout, "a"];
        let ended = end(&mut run_script(&server, &args, "true"));
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert_eq!(ended.stderr, format!("fairlock: {message}\n"));
    }
    for (ttl, timeout) in [("4s", "500ms"), ("1s", "125ms"), ("12s", "1500ms")] {
        let args = ["--ttl", ttl, "--command-timeout", timeout, "a"];
        let ended = end(&mut run_script(&server, &args, "true"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn command_blocks_no_signal() {
    let server = Server::start();
    let script = "grep SigBlk: /proc/self/status";
    let ended = end(&mut run_script(&server, &["a"], script));
    assert_eq!(ended.stdout, "SigBlk:\t0000000000000000\n");
}

#[test]
fn least_time_can_count_for_success_alone() {
    let server = Server::start();
    let once = ["--no-wait", "--hold-at-least", "1h", "--only-after-success"];
    for share in [&["a"][..], &["--permits", "2/2", "b"]] {
        let once = [&once[..], share].concat();
        // Only the one that succeeds keeps the lock.
        for (script, code) in [
            ("exit 3", 3),
            ("kill -KILL $$", 137),
            ("exit 3", 3),
            ("true", 0),
            ("true", 75),
        ] {
            let ended = end(&mut run_script(&server, &once, script));
            assert_eq!(ended.code, Some(code), "{ended:?}");
        }
    }
    // Readers have the fence of a writer, so its time cannot be ended for it alone.
    for share in ["--shared", "--exclusive"] {
        let args = [&once[..], &[share, "c"]].concat();
        let ended = end(&mut run_script(&server, &args, "true"));
        assert_eq!(ended.code, Some(64), "{ended:?}");
    }
}

#[test]
fn next_command_learns_of_a_death_after_which_the_lock_is_free_at_once() {
    let server = Server::start();
    let once = ["--hold-at-least", "1h", "--only-after-success", "a"];
    end(&mut run_script(&server, &once, "kill -KILL $$"));
    assert_eq!(super::previous(&server, &once), "lapsed");
}
