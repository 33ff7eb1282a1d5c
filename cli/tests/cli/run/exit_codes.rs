//! The exit code of `fairlock run`.

use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{LONG, Run, broken_program, is_held, manager, previous, run, run_script};
use crate::process::{end, without_server};
use crate::support::{Proxy, Server, until};

#[test]
fn command_s_own_exit_code_is_passed_on() {
    let server = Server::start();
    for code in [0, 1, 3, 75, 255] {
        let ended = end(&mut run_script(&server, &["a"], &format!("exit {code}")));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn command_that_died_by_a_signal_gives_128_and_the_signal() {
    let server = Server::start();
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::SEGV] {
        let script = format!("ulimit -c 0; kill -{} $$", signal.as_raw());
        let ended = end(&mut run_script(&server, &["a"], &script));
        assert_eq!(ended.code, Some(128 + signal.as_raw()), "{ended:?}");
    }
}

#[test]
fn taken_lock_gives_75_or_the_chosen_code() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("taken");
    for (args, code) in [
        (&["-n", "a"][..], 75),
        (&["--no-wait", "-E", "9", "a"], 9),
        (&["--wait", "100ms", "a"], 75),
        (&["-w", "0s", "-E", "0", "a"], 0),
    ] {
        let ended = end(&mut run_script(&server, args, "echo ran"));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!((&*ended.stdout, &*ended.stderr), ("", ""), "{args:?}");
    }
}

#[test]
fn missing_redis_gives_69() {
    let mut command = without_server(&["run", "a", "--", "true"]);
    let ended = end(command.env("FAIRLOCK_URL", "redis+unix:///no/such/socket"));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("/no/such/socket"), "{ended:?}");
}

#[test]
fn outage_at_the_end_of_a_wait_gives_69_and_not_busy() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("taken");
    let mut run = Run::script(&server, &["--wait", "3s", "a"], "echo ran");
    until(LONG, "queued", || super::waiters(&server, "a") == 1);
    server.kill();
    let ended = run.ended();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn wrong_usage_gives_64_and_sends_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    for args in [
        &["a"][..],
        &["a", "--"],
        &["a", "true"],
        &["--no-wait", "--wait", "1s", "a", "--", "true"],
        &["--wait", "10", "a", "--", "true"],
        &["--ttl", "10ms", "a", "--", "true"],
        &["--ttl", "25h", "a", "--", "true"],
        &["--ttl", "1s", "--command-timeout", "1s", "a", "--", "true"],
        &["--ttl", "10s", "--grace", "4501ms", "a", "--", "true"],
        &["--max-hold", "0s", "a", "--", "true"],
        &["--hold-at-least", "25h", "a", "--", "true"],
        &["--permits", "3/2", "a", "--", "true"],
        &["--permits", "1", "a", "--", "true"],
        &["--permits", "1/2", "--shared", "a", "--", "true"],
        &["--shared", "--exclusive", "a", "--", "true"],
        &["--on-loss", "panic", "a", "--", "true"],
        &["-E", "256", "a", "--", "true"],
        &["--label", "two\nlines", "a", "--", "true"],
    ] {
        let mut command = without_server(&["run"]);
        let ended = end(command.args(args).env("FAIRLOCK_URL", proxy.url()));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(!ended.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(proxy.commands(), 0);
}

#[test]
fn name_in_use_as_another_kind_gives_64() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("taken");
    let ended = end(&mut run_script(&server, &["--shared", "a"], "echo ran"));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("is a mutex"), "{ended:?}");
}

#[test]
fn missing_command_gives_127_before_the_lock_is_asked_for() {
    for program in [
        "no-such-command",
        "/no/such/command",
        "./no-such-command",
        "",
    ] {
        let ended = end(&mut without_server(&["run", "a", "--", program]));
        assert_eq!(ended.code, Some(127), "{ended:?}");
        let message = format!("fairlock: {program}: command not found\n");
        assert_eq!(ended.stderr, message);
    }
}

#[test]
fn command_without_the_right_to_execute_gives_126() {
    let ended = end(&mut without_server(&["run", "a", "--", "/etc/passwd"]));
    assert_eq!(ended.code, Some(126), "{ended:?}");
    let ended = end(&mut without_server(&["run", "a", "--", "/etc"]));
    assert_eq!(ended.code, Some(126), "{ended:?}");
}

#[test]
fn missing_interpreter_is_named_before_the_lock_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = dir.path().join("job");
    let path = script.to_str().expect("a plain name");
    for (first_line, named) in [
        ("#!/no/such/python3 -u\n", "\"/no/such/python3\""),
        ("#! /no/such/python3\n", "\"/no/such/python3\""),
        ("#!/bin/sh\r\n", "\"/bin/sh\\r\""),
    ] {
        fs::write(&script, format!("{first_line}echo ran\n")).expect("a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("rights");
        let ended = end(&mut without_server(&["run", "a", "--", path]));
        assert_eq!(ended.code, Some(126), "{ended:?}");
        let message = format!("{path}: bad interpreter: there is no file {named}");
        assert!(ended.stderr.contains(&message), "{ended:?}");
    }
}

#[test]
fn command_without_dashes_gets_the_tip_to_write_them() {
    for args in [&["run", "a", "ls", "-l"][..], &["run", "a"]] {
        let ended = end(&mut without_server(args));
        assert_eq!(ended.code, Some(64), "{ended:?}");
        let tip = "the command comes behind `--`";
        assert!(ended.stderr.contains(tip), "{ended:?}");
    }
    let ended = end(&mut without_server(&["run", "a", "--bogus", "--", "ls"]));
    assert!(!ended.stderr.contains("comes behind"), "{ended:?}");
}

#[test]
fn script_without_an_interpreter_is_run_by_the_shell() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a folder");
    let script = dir.path().join("job");
    fs::write(&script, "echo \"got $1\"; exit 7\n").expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("rights");
    let path = format!("{}:/bin:/usr/bin", dir.path().display());
    let mut by_path = run(&server, &["a"]);
    by_path.env("PATH", path).args(["job", "words"]);
    for command in [run(&server, &["a"]).arg(&script).arg("words"), &mut by_path] {
        let ended = end(command);
        assert_eq!((ended.code, &*ended.stdout), (Some(7), "got words\n"));
    }
}

#[test]
fn command_that_cannot_start_releases_the_lock() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a folder");
    end(&mut run_script(&server, &["a"], "kill -KILL $$"));
    let ended = end(run(&server, &["a"]).arg(broken_program(&dir)));
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert!(!is_held(&server, "a"));
    // Nothing has run, so the work of the holder before is still half done.
    assert_eq!(previous(&server, &["a"]), "lapsed");
}

#[test]
fn next_command_learns_how_the_one_before_ended() {
    let server = Server::start();
    assert_eq!(previous(&server, &["a"]), "unknown");
    assert_eq!(previous(&server, &["a"]), "released");
    // A failure is an end in good order, a death is not.
    end(&mut run_script(&server, &["a"], "exit 1"));
    assert_eq!(previous(&server, &["a"]), "released");
    end(&mut run_script(&server, &["a"], "kill -KILL $$"));
    assert_eq!(previous(&server, &["a"]), "lapsed");
    assert_eq!(previous(&server, &["a"]), "released");
    let guard = manager(&server).lock("a").expect("free");
    assert!(
        manager(&server)
            .force_release("a", guard.fence())
            .expect("answers")
    );
    assert_eq!(previous(&server, &["a"]), "forced");
}
