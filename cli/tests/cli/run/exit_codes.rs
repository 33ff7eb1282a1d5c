//! The exit code of `fairlock run`.

use super::*;

#[test]
fn exit_code_or_signal_of_the_command_is_passed_on() {
    let server = Server::start();
    for code in [0, 1, 3, 75, 255] {
        let ended = script_gives(&server, "a", &format!("exit {code}"), code, "");
        assert_eq!(ended.stderr, "");
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::SEGV] {
        let script = format!("ulimit -c 0; kill -{} $$", signal.as_raw());
        script_gives(&server, "a", &script, 128 + signal.as_raw(), "");
    }
}

#[test]
fn taken_lock_gives_75_or_the_chosen_code_in_time() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").unwrap();
    for (args, code) in [("-n a", 75), ("--no-wait -E 9 a", 9), ("-w 0s -E 0 a", 0)] {
        let ended = script_gives(&server, args, "echo ran", code, "");
        assert_eq!(ended.stderr, "", "{args}");
    }
    for option in ["--wait", "--timeout", "-w"] {
        let start = Instant::now();
        script_gives(&server, &format!("{option} 300ms a"), "true", 75, "");
        let (waited, least) = (start.elapsed(), Duration::from_millis(300));
        assert!((least..least + SLACK).contains(&waited), "{waited:?}");
    }
    // As another kind.
    script_gives(&server, "--shared a", "echo ran", 64, "");
}

#[test]
fn program_that_cannot_run_is_named_before_the_lock_is_asked_for() {
    for (program, code, text) in [
        ("no-such-command", 127, "command not found"),
        ("./no-such-command", 127, "command not found"),
        ("''", 127, "command not found"),
        ("/etc/passwd", 126, "cannot be executed"),
        ("/etc", 126, "cannot be executed"),
    ] {
        gives(bare(&format!("run a -- {program}")), code, "").says(text);
    }
}

#[test]
fn script_without_an_interpreter_is_run_by_the_shell() {
    let server = Server::start();
    let dir = tempdir().expect("a folder");
    let script = executable(&dir, "echo \"got $1\"; exit 7\n");
    let path = format!("{}:/bin:/usr/bin", dir.path().display());
    for program in [script.as_path(), "program".as_ref()] {
        let mut command = run(&server, "a");
        command.arg(program).arg("words").env("PATH", &path);
        gives(command, 7, "got words\n");
    }
}

#[test]
fn command_that_cannot_start_leaves_the_lock_as_it_was() {
    let server = Server::start();
    let dir = tempdir().expect("a folder");
    let program = broken_program(&dir);
    end(run_script(&server, "a", "kill -KILL $$"));
    gives(run(&server, "a").arg(&program), 126, "");
    assert!(!is_held(&server, "a"));
    // Nothing has run, so the work of the holder before is still half done.
    assert_eq!(previous(&server, "a"), "lapsed");
    // It uses up no least time, and no time of a detached lock.
    for (once, lock) in [
        ("--hold-at-least 1h", "b"),
        ("--hold-at-least 1h", "--permits 2/2 c"),
        ("--detach 1h", "d"),
    ] {
        let mut broken = run(&server, &format!("{once} {lock}"));
        gives(broken.arg(&program), 126, "");
        assert_eq!(previous(&server, &format!("--no-wait {lock}")), "released");
    }
}

#[test]
fn next_command_learns_how_the_one_before_ended() {
    let server = Server::start();
    let end_with = |script: &str| end(run_script(&server, "a", script));
    assert_eq!(previous(&server, "a"), "unknown");
    assert_eq!(previous(&server, "a"), "released");
    // A failure is an end in good order, a death is not.
    end_with("exit 1");
    assert_eq!(previous(&server, "a"), "released");
    end_with("kill -KILL $$");
    assert_eq!(previous(&server, "a"), "lapsed");
    assert_eq!(previous(&server, "a"), "released");
    let _guard = manager(&server).lock("a").unwrap();
    release_by_force(&server, "a");
    assert_eq!(previous(&server, "a"), "forced");
}
