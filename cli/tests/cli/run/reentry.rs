//! A run inside a run: what it learns from the one around it.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::{Signal, test_kill_process};

use super::loss::next_holder;
use super::{LONG, Run, broken_program, is_held, manager, run_script, waiters};
use crate::process::{Ended, end, fairlock, without_server};
use crate::support::{Server, until};

/// `fairlock run OUTER -- sh -c SCRIPT`, where `$BINARY` is fairlock.
fn around(server: &Server, outer: &[&str], script: &str) -> Command {
    let mut command = run_script(server, outer, script);
    command.env("BINARY", env!("CARGO_BIN_EXE_fairlock"));
    command
}

#[track_caller]
fn inside(server: &Server, outer: &[&str], script: &str) -> Ended {
    end(&mut around(server, outer, script))
}

#[test]
fn run_that_would_wait_for_its_ancestor_is_refused_at_once() {
    let server = Server::start();
    for (outer, inner) in [
        (&["a"][..], "a"),
        (&["--exclusive", "a"], "--exclusive a"),
        (&["--exclusive", "a"], "--shared a"),
        (&["--shared", "a"], "--exclusive a"),
        (&["--permits", "2/2", "a"], "--permits 1/2 a"),
        (&["--permits", "1/2", "a"], "--permits 2/2 a"),
    ] {
        for way in ["", "timeout 60", "nohup", "\"$BINARY\" run between --"] {
            let script = format!("{way} \"$BINARY\" run {inner} -- echo it ran");
            let ended = inside(&server, outer, &script);
            assert_eq!(ended.code, Some(64), "{outer:?}: {ended:?}");
            let text = "a: held by the run around this one (pid ";
            assert!(ended.stderr.contains(text), "{ended:?}");
            assert!(ended.stderr.contains("--reenter"), "{ended:?}");
            assert_eq!(ended.stdout, "");
        }
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn run_that_does_not_wait_gets_the_code_of_a_conflict() {
    let server = Server::start();
    let script =
        "\"$BINARY\" run -n a -- true; echo $?; \"$BINARY\" run -n -E 9 a -- true; echo $?";
    let ended = inside(&server, &["a"], script);
    assert_eq!(ended.stdout, "75\n9\n", "{ended:?}");
}

#[test]
fn run_beside_its_ancestor_gets_what_is_free() {
    let server = Server::start();
    for (outer, inner) in [
        (&["--permits", "1/2", "a"][..], "--permits 1/2 a"),
        (&["--shared", "a"], "--shared a"),
        (&["a"], "b"),
        (&["a"], "--prefix other a"),
    ] {
        let script = format!("\"$BINARY\" run {inner} -- echo it ran");
        let ended = inside(&server, outer, &script);
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(0), "it ran\n"),
            "{ended:?}"
        );
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn reader_in_a_reader_is_refused_behind_a_writer() {
    let server = Server::start();
    let script = "echo up; read go; \"$BINARY\" run --shared a -- echo it ran";
    let mut command = around(&server, &["--shared", "a"], script);
    let (read, write) = std::io::pipe().expect("a pipe");
    let mut run = Run::start_with_input(&mut command, read.into());
    assert_eq!(run.line(), "up");
    let mut writer = Run::script(&server, &["--exclusive", "a"], "true");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    drop(write);
    let ended = run.ends(64, "");
    assert!(ended.stderr.contains("would wait for itself"), "{ended:?}");
    writer.ends(0, "");
}

#[test]
fn run_that_reenters_joins_the_one_around_it() {
    let server = Server::start();
    let print = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS";
    for (outer, inner) in [
        (&["a"][..], "a"),
        (&["--exclusive", "a"], "--exclusive a"),
        (&["--exclusive", "a"], "--shared a"),
        (&["--shared", "a"], "--shared a"),
        (&["--permits", "2/2", "a"], "--permits 1/2 a"),
    ] {
        let inner = format!("\"$BINARY\" run --reenter {inner} -- sh -c '{print}; exit 3'");
        // A run with another lock is between them.
        let script = format!("{print}; \"$BINARY\" run b -- sh -c \"$INNER\"");
        let mut command = around(&server, outer, &script);
        let ended = end(command.env("INNER", &inner));
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{ended:?}");
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn run_that_wants_more_than_its_ancestor_has_cannot_join() {
    let server = Server::start();
    for (outer, inner) in [
        (&["--shared", "a"][..], "--exclusive a"),
        (&["--permits", "1/2", "a"], "--permits 2/2 a"),
    ] {
        let script = format!("\"$BINARY\" run --reenter {inner} -- echo it ran");
        let ended = inside(&server, outer, &script);
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(
            ended.stderr.contains("less than this one wants"),
            "{ended:?}"
        );
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn run_that_joined_ends_with_the_outer_lock() {
    let server = Server::start();
    let job = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let script = "timeout 60 \"$BINARY\" run --reenter a -- sh -c \"$JOB\"";
    let args = ["--max-hold", "1s", "--grace", "200ms", "a"];
    let mut run = Run::start(around(&server, &args, script).env("JOB", job));
    let job = run.pid_line();
    let mut next = next_holder(&server, job);
    assert_eq!(next.line(), "dead");
    assert_eq!(run.ended().code, Some(74));
    assert!(test_kill_process(job).is_err());
}

#[test]
fn run_in_another_session_cannot_join() {
    let server = Server::start();
    let script = "setsid -w \"$BINARY\" run --reenter a -- echo it ran";
    let ended = inside(&server, &["a"], script);
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("another session"), "{ended:?}");
}

#[test]
fn run_beside_another_cannot_join_it() {
    let server = Server::start();
    let mut run = Run::script(&server, &["a"], "echo $FAIRLOCK_HELD; exec sleep 60");
    let held = run.line();
    let mut beside = run_script(&server, &["--reenter", "a"], "echo it ran");
    let ended = end(beside.env("FAIRLOCK_HELD", held));
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    assert!(ended.stderr.contains("cannot join"), "{ended:?}");
}

#[test]
fn run_that_reenters_without_an_ancestor_takes_the_lock() {
    let server = Server::start();
    let script = "echo up; exec sleep 60";
    let mut run = Run::script(&server, &["--reenter", "a"], script);
    run.line();
    assert!(is_held(&server, "a"));
}

#[test]
fn daemon_of_a_run_that_ended_takes_the_lock() {
    let server = Server::start();
    let ended = inside(&server, &["a"], "echo $FAIRLOCK_HELD");
    let held = ended.stdout.trim_end().to_owned();
    assert!(held.contains("\"name\":\"a\""), "{held}");
    let late =
        |args: &[&str]| end(run_script(&server, args, "echo it ran").env("FAIRLOCK_HELD", &held));
    let ended = late(&["a"]);
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "it ran\n"),
        "{ended:?}"
    );
    // Another client has it under another fence.
    let _guard = manager(&server).lock("a").expect("free");
    for args in [&["--wait", "100ms", "a"][..], &["--reenter", "-n", "a"]] {
        let ended = late(args);
        assert_eq!((ended.code, &*ended.stderr), (Some(75), ""), "{ended:?}");
    }
}

#[test]
fn same_server_by_another_name_is_recognized() {
    let server = Server::tcp();
    let other = server.url().replace("127.0.0.1", "localhost");
    let script = format!("\"$BINARY\" run --url {other} a -- echo it ran");
    let ended = inside(&server, &["a"], &script);
    assert_eq!(ended.code, Some(64), "{ended:?}");
    // Another server is another lock.
    let second = Server::start();
    let script = format!("\"$BINARY\" run --url {} a -- echo it ran", second.url());
    let ended = inside(&server, &["a"], &script);
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "it ran\n"),
        "{ended:?}"
    );
}

#[test]
fn inner_call_goes_to_the_redis_of_the_outer_one() {
    let server = Server::tcp_with(&["--requirepass", "a secret"]);
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("password"), "a secret\n").expect("written");
    let mut command = without_server(&["run", "--url", &server.url(), "--prefix", "other"]);
    command
        .args(["--password-file", "password", "--command-timeout", "1s"])
        .args(["a", "--", "sh", "-c", "cd /; \"$BINARY\" ls; env"])
        .env("BINARY", env!("CARGO_BIN_EXE_fairlock"))
        .env("FAIRLOCK_CLUSTER", "127.0.0.1:1")
        .env("FAIRLOCK_PASSWORD", "wrong")
        .current_dir(dir.path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("held"), "{ended:?}");
    assert!(!ended.stdout.contains("a secret"), "{ended:?}");
}

#[test]
fn environment_without_options_is_left_as_it_is() {
    let server = Server::start();
    let url = server.url();
    let script = "env | grep -c '^FAIRLOCK_[SCUMT]'; echo $FAIRLOCK_URL";
    let ended = end(&mut fairlock(
        &server,
        &["run", "a", "--", "sh", "-c", script],
    ));
    assert_eq!(ended.stdout, format!("1\n{url}\n"), "{ended:?}");
}

#[test]
fn label_of_an_inner_run_names_the_outer_one() {
    let server = Server::start();
    let script = "echo $FAIRLOCK_FENCE; exec \"$BINARY\" run b -- sh -c 'echo up; exec sleep 60'";
    let mut run = Run::start(&mut around(&server, &["a"], script));
    let fence = run.line();
    assert_eq!(run.line(), "up");
    let info = manager(&server)
        .inspect("b")
        .expect("answers")
        .expect("held");
    let label = &info.holder.expect("held").label;
    assert_eq!(*label, format!("sh (in a, fence {fence})"));
    run.signal(Signal::TERM);
    assert_eq!(run.ended().code, Some(143));
}

#[test]
fn daemon_takes_the_lock_after_the_least_time_of_its_ancestor() {
    let server = Server::start();
    let outer = ["--hold-at-least", "2s", "a"];
    let ended = inside(&server, &outer, "echo $FAIRLOCK_HELD");
    let held = ended.stdout.trim_end();
    let mut late = run_script(&server, &["a"], "echo it ran");
    let ended = end(late.env("FAIRLOCK_HELD", held));
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "it ran\n"),
        "{ended:?}"
    );
}

#[test]
fn variable_that_fairlock_did_not_write_is_named() {
    let server = Server::start();
    for value in ["yes", "{}", "[1]", ""] {
        let mut command = run_script(&server, &["a"], "echo it ran");
        let ended = end(command.env("FAIRLOCK_HELD", value));
        assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
        assert!(ended.stderr.contains("FAIRLOCK_HELD is "), "{ended:?}");
    }
}

#[test]
fn run_inside_a_run_is_refused_on_a_quorum() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let times = ["--ttl", "2s", "--wait", "1m"];
    let script = "\"$BINARY\" run --ttl 2s a -- echo it ran";
    let mut command = without_server(&[&["run"], &times[..], &["a", "--", "sh", "-c"]].concat());
    command
        .arg(script)
        .env("BINARY", env!("CARGO_BIN_EXE_fairlock"))
        .env("FAIRLOCK_URL", urls.join(" "));
    let ended = end(&mut command);
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    assert!(ended.stderr.contains("would wait for itself"), "{ended:?}");
}

#[test]
fn run_around_in_another_container_cannot_be_joined() {
    let server = Server::start();
    // The same number, but another process.
    let script = "HELD=$(echo \"$FAIRLOCK_HELD\" | sed 's/\"start\":[0-9]*/\"start\":1/')
        FAIRLOCK_HELD=$HELD \"$BINARY\" run --reenter a -- echo it ran";
    let ended = inside(&server, &["a"], script);
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    assert!(ended.stderr.contains("or container"), "{ended:?}");
}

#[test]
fn run_that_joined_does_not_execute_what_is_no_program() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = around(
        &server,
        &["a"],
        "\"$BINARY\" run --reenter a -- \"$PROGRAM\"",
    );
    let ended = end(command.env("PROGRAM", broken_program(&folder)));
    assert_eq!(ended.code, Some(126), "{ended:?}");
    let script = folder.path().join("script");
    std::fs::write(&script, "echo it ran; exit 3\n").expect("written");
    let right = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, right).expect("executable");
    let ended = end(command.env("PROGRAM", script));
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(3), "it ran\n"),
        "{ended:?}"
    );
}
