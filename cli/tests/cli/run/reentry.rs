//! A run inside a run: what it learns from the one around it.

use rustix::process::test_kill_process;

use super::loss::next_holder;
use super::{Run, broken_program, gives, is_held, manager, run_script, script_gives, until_queued};
use crate::process::{Ended, end, exits, without_server};
use crate::support::Server;

/// `fairlock run OUTER -- sh -c SCRIPT`.
#[track_caller]
fn inside(server: &Server, outer: &str, script: &str) -> Ended {
    end(run_script(
        server,
        &outer.split(' ').collect::<Vec<_>>(),
        script,
    ))
}

#[track_caller]
fn is_refused(ended: &Ended, text: &str) {
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    ended.says(text);
}

#[test]
fn run_that_would_wait_for_its_ancestor_is_refused_at_once() {
    let server = Server::start();
    for (outer, inner) in [
        ("a", "a"),
        ("--exclusive b", "--exclusive b"),
        ("--exclusive b", "--shared b"),
        ("--shared b", "--exclusive b"),
        ("--permits 2/2 c", "--permits 1/2 c"),
        ("--permits 1/2 c", "--permits 2/2 c"),
    ] {
        for way in ["", "timeout 60", "nohup", "\"$BINARY\" run between --"] {
            let script = format!("{way} \"$BINARY\" run {inner} -- echo it ran");
            let ended = inside(&server, outer, &script);
            is_refused(&ended, ": held by the run around this one (pid ");
            is_refused(&ended, "--reenter");
        }
    }
    // Without a wait it is a conflict.
    let script =
        "\"$BINARY\" run -n a -- true; echo $?; \"$BINARY\" run -n -E 9 a -- true; echo $?";
    script_gives(&server, &["a"], script, 0, "75\n9\n");
}

#[test]
fn run_beside_its_ancestor_gets_what_is_free() {
    let server = Server::start();
    let second = Server::start();
    let elsewhere = format!("--url {} a", second.url());
    for (outer, inner) in [
        ("--permits 1/2 c", "--permits 1/2 c"),
        ("--shared b", "--shared b"),
        ("a", "d"),
        ("a", "--prefix other a"),
        ("a", &*elsewhere),
    ] {
        let script = format!("\"$BINARY\" run {inner} -- echo it ran");
        let ended = inside(&server, outer, &script);
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(0), "it ran\n"),
            "{ended:?}"
        );
    }
}

#[test]
fn reader_in_a_reader_is_refused_behind_a_writer() {
    let server = Server::start();
    let script = "echo up; read go; \"$BINARY\" run --shared a -- echo it ran";
    let mut run = Run::reading(&server, &["--shared", "a"], script);
    assert_eq!(run.line(), "up");
    let mut writer = Run::script(&server, &["--exclusive", "a"], "true");
    until_queued(&server, "a", 1);
    run.end_input();
    is_refused(&run.ended(), "would wait for itself");
    writer.ends(0, "");
}

#[test]
fn run_that_reenters_joins_the_one_around_it() {
    let server = Server::start();
    let print = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS";
    for (outer, inner) in [
        ("a", "a"),
        ("--exclusive b", "--exclusive b"),
        ("--exclusive b", "--shared b"),
        ("--shared b", "--shared b"),
        ("--permits 2/2 c", "--permits 1/2 c"),
    ] {
        // A run with another lock is between them.
        let script = format!(
            "export INNER='{print}; exit 3'; {print}; \"$BINARY\" run d -- \
             sh -c '\"$BINARY\" run --reenter {inner} -- sh -c \"$INNER\"'"
        );
        let ended = inside(&server, outer, &script);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{ended:?}");
    }
    // Its program cannot be executed.
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\"$BINARY\" run --reenter a -- \"$PROGRAM\"";
    let mut command = run_script(&server, &["a"], script);
    gives(command.env("PROGRAM", broken_program(&folder)), 126, "");
    // Without one around it, it takes the lock.
    let _run = Run::asleep(&server, &["--reenter", "a"]);
    assert!(is_held(&server, "a"));
}

#[test]
fn run_that_cannot_join_says_why() {
    let server = Server::start();
    for (outer, script) in [
        ("--shared b", "\"$BINARY\" run --reenter --exclusive b -- echo it ran"),
        ("--permits 1/2 c", "\"$BINARY\" run --reenter --permits 2/2 c -- echo"),
        ("a", "setsid -w \"$BINARY\" run --reenter a -- echo it ran"),
        // The same number, but another process, as in another container.
        (
            "a",
            "export FAIRLOCK_HELD=$(echo \"$FAIRLOCK_HELD\" | sed 's/\"start\":[0-9]*/\"start\":1/')
            \"$BINARY\" run --reenter a -- echo it ran",
        ),
    ] {
        is_refused(&inside(&server, outer, script), "this one cannot join it");
    }
    // A run beside it.
    let mut run = Run::script(&server, &["a"], "echo $FAIRLOCK_HELD; exec sleep 60");
    let mut beside = run_script(&server, &["--reenter", "a"], "echo it ran");
    let ended = end(beside.env("FAIRLOCK_HELD", run.line()));
    is_refused(&ended, "this one cannot join it");
}

#[test]
fn run_that_joined_ends_with_the_outer_lock() {
    let server = Server::start();
    let script = "export JOB='trap \"\" TERM; echo $$; while :; do sleep 0.02; done'
        timeout 60 \"$BINARY\" run --reenter a -- sh -c \"$JOB\"";
    let args = ["--max-hold", "1s", "--grace", "200ms", "a"];
    let mut run = Run::script(&server, &args, script);
    let job = run.pid_line();
    assert_eq!(next_holder(&server, job).line(), "dead");
    run.ends(74, "");
    assert!(test_kill_process(job).is_err());
}

#[test]
fn daemon_of_a_run_that_ended_takes_the_lock() {
    let server = Server::start();
    for outer in ["a", "--hold-at-least 2s b"] {
        let ended = inside(&server, outer, "echo $FAIRLOCK_HELD");
        let held = ended.stdout.trim_end().to_owned();
        let name = &outer[outer.len() - 1..];
        assert!(held.contains(&format!("\"name\":\"{name}\"")), "{held}");
        let late = |args: &[&str], code, stdout: &str| {
            let mut late = run_script(&server, args, "echo it ran");
            gives(late.env("FAIRLOCK_HELD", &held), code, stdout);
        };
        late(&[name], 0, "it ran\n");
        // Another client has it under another fence.
        let _guard = manager(&server).lock(name).expect("free");
        late(&["--wait", "100ms", name], 75, "");
        late(&["--reenter", "-n", name], 75, "");
    }
}

#[test]
fn same_servers_by_another_name_are_recognized() {
    let server = Server::tcp();
    let other = server.url().replace("127.0.0.1", "localhost");
    let script = format!("\"$BINARY\" run --url {other} a -- echo it ran");
    is_refused(&inside(&server, "a", &script), "would wait for itself");
    // A quorum, too.
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let script = "\"$BINARY\" run --ttl 2s a -- echo it ran";
    let mut command = run_script(&server, &["--ttl", "2s", "--wait", "1m", "a"], script);
    let ended = end(command.env("FAIRLOCK_URL", urls.join(" ")));
    is_refused(&ended, "would wait for itself");
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
    let ended = exits(&mut command, 0);
    ended.shows("held");
    assert!(!ended.stdout.contains("a secret"), "{ended:?}");
}

#[test]
fn variable_that_fairlock_did_not_write_is_named() {
    let server = Server::start();
    for value in ["yes", "{}", "[1]", ""] {
        let mut command = run_script(&server, &["a"], "echo it ran");
        let ended = end(command.env("FAIRLOCK_HELD", value));
        is_refused(&ended, "FAIRLOCK_HELD is ");
    }
}
