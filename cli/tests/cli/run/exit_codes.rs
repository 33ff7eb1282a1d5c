//! The exit code of `fairlock run`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{
    Run, broken_program, executable, gives, is_held, manager, previous, run, script_gives,
    until_queued,
};
use crate::process::{end, without_server};
use crate::support::{Proxy, SLACK, Server};

#[test]
fn exit_code_or_signal_of_the_command_is_passed_on() {
    let server = Server::start();
    for code in [0, 1, 3, 75, 255] {
        let ended = script_gives(&server, &["a"], &format!("exit {code}"), code, "");
        assert_eq!(ended.stderr, "");
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::SEGV] {
        let script = format!("ulimit -c 0; kill -{} $$", signal.as_raw());
        script_gives(&server, &["a"], &script, 128 + signal.as_raw(), "");
    }
}

#[test]
fn taken_lock_gives_75_or_the_chosen_code_in_time() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("taken");
    for (args, code) in [
        (&["-n", "a"][..], 75),
        (&["--no-wait", "-E", "9", "a"], 9),
        (&["-w", "0s", "-E", "0", "a"], 0),
    ] {
        let ended = script_gives(&server, args, "echo ran", code, "");
        assert_eq!(ended.stderr, "", "{args:?}");
    }
    for option in ["--wait", "--timeout", "-w"] {
        let start = Instant::now();
        script_gives(&server, &[option, "300ms", "a"], "true", 75, "");
        let (waited, least) = (start.elapsed(), Duration::from_millis(300));
        assert!((least..least + SLACK).contains(&waited), "{waited:?}");
    }
    // As another kind.
    script_gives(&server, &["--shared", "a"], "echo ran", 64, "");
}

#[test]
fn redis_that_goes_away_gives_69() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("taken");
    let mut run = Run::script(&server, &["--wait", "3s", "a"], "echo ran");
    until_queued(&server, "a", 1);
    server.kill();
    run.ends(69, "");
}

#[test]
fn wrong_usage_gives_64_and_sends_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    for line in [
        "a",
        "a --",
        "a true",
        "--no-wait --wait 1s a -- true",
        "--wait 10 a -- true",
        "--ttl 10ms a -- true",
        "--ttl 25h a -- true",
        "--ttl 1s --command-timeout 1s a -- true",
        "--command-timeout 2s a -- true",
        "--ttl 4s --command-timeout 1500ms a -- true",
        "--ttl 10s --grace 4501ms a -- true",
        "--hold-at-least 25h a -- true",
        "--permits 3/2 a -- true",
        "--permits 1 a -- true",
        "--permits 1/2 --shared a -- true",
        "--shared --exclusive a -- true",
        "--only-after-success --hold-at-least 1h --shared a -- true",
        "-E 256 a -- true",
        "--label two\nlines a -- true",
        "--attach a -- true",
    ] {
        let mut command = without_server(&["run"]);
        command
            .args(line.split(' '))
            .env("FAIRLOCK_URL", proxy.url());
        let ended = gives(&mut command, 64, "");
        assert!(!ended.stderr.is_empty(), "{line}");
    }
    assert_eq!(proxy.commands(), 0);
}

#[test]
fn program_that_cannot_run_is_named_before_the_lock_is_asked_for() {
    let refused = |program: &str, code, text: &str| {
        let ended = gives(without_server(&["run", "a", "--", program]), code, "");
        ended.says(text);
    };
    for program in [
        "no-such-command",
        "/no/such/command",
        "./no-such-command",
        "",
    ] {
        refused(program, 127, "command not found");
    }
    for program in ["/etc/passwd", "/etc"] {
        refused(program, 126, "cannot be executed");
    }
}

#[test]
fn script_without_an_interpreter_is_run_by_the_shell() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a folder");
    let script = executable(&dir, "echo \"got $1\"; exit 7\n");
    let path = format!("{}:/bin:/usr/bin", dir.path().display());
    let mut by_path = run(&server, &["a"]);
    by_path.env("PATH", path).args(["program", "words"]);
    for command in [run(&server, &["a"]).arg(&script).arg("words"), &mut by_path] {
        gives(command, 7, "got words\n");
    }
}

#[test]
fn command_that_cannot_start_leaves_the_lock_as_it_was() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a folder");
    let program = broken_program(&dir);
    end(super::run_script(&server, &["a"], "kill -KILL $$"));
    gives(run(&server, &["a"]).arg(&program), 126, "");
    assert!(!is_held(&server, "a"));
    // Nothing has run, so the work of the holder before is still half done.
    assert_eq!(previous(&server, &["a"]), "lapsed");
    // It uses up no least time, and no time of a detached lock.
    for once in [
        &["--hold-at-least", "1h", "b"][..],
        &["--hold-at-least", "1h", "--permits", "2/2", "c"],
        &["--detach", "1h", "d"],
    ] {
        gives(run(&server, once).arg(&program), 126, "");
        let next = [&["--no-wait"], &once[2..]].concat();
        assert_eq!(previous(&server, &next), "released");
    }
}

#[test]
fn next_command_learns_how_the_one_before_ended() {
    let server = Server::start();
    let end_with = |script: &str| end(super::run_script(&server, &["a"], script));
    assert_eq!(previous(&server, &["a"]), "unknown");
    assert_eq!(previous(&server, &["a"]), "released");
    // A failure is an end in good order, a death is not.
    end_with("exit 1");
    assert_eq!(previous(&server, &["a"]), "released");
    end_with("kill -KILL $$");
    assert_eq!(previous(&server, &["a"]), "lapsed");
    assert_eq!(previous(&server, &["a"]), "released");
    let guard = manager(&server).lock("a").expect("free");
    let forced = manager(&server).force_release("a", guard.fence());
    assert!(forced.expect("answers"));
    assert_eq!(previous(&server, &["a"]), "forced");
}
