//! The lines about a lock that others have.

use super::{Run, manager, run_script, script_gives, until_queued};
use crate::support::Server;
use crate::terminal::Terminal;
use fairlock::LockOptions;

#[test]
fn line_shows_position_and_holder_and_each_change() {
    let server = Server::start();
    let manager = manager(&server).with(LockOptions::new().label("the holder"));
    let guard = manager.lock("a").expect("free");
    let waiter = manager.enqueue("a").expect("queued");
    let start = |option| {
        let program = run_script(&server, &[option, "a"], "echo ran");
        Terminal::start(&program, 24, 120)
    };
    let mut terminal = start("--wait=5m");
    let pid = std::process::id();
    let holder = format!(
        ", held by the holder ({}, pid {pid})",
        super::holder(&server, "a").host
    );
    terminal.shows(&format!("fairlock: a: waiting, number 2 in line{holder}"));
    drop(waiter);
    terminal.shows("number 1 in line");
    let mut busy = start("--no-wait");
    busy.shows(&format!("fairlock: a: busy{holder}"));
    assert_eq!(busy.ends(), Some(75));
    guard.unlock().expect("released");
    terminal.shows("ran");
    assert_eq!(terminal.ends(), Some(0));
    let text = terminal.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.windows(2).all(|two| two[0] != two[1]), "{text}");
}

#[test]
fn wait_is_told_without_a_terminal_only_with_verbose() {
    let server = Server::start();
    let manager = manager(&server).with(LockOptions::new().label("the holder"));
    for (options, is_told) in [
        (&["-v"][..], true),
        (&[], false),
        (&["-v", "--quiet"], false),
    ] {
        let guard = manager.lock("a").expect("free");
        let mut run = Run::script(&server, &[options, &["a"]].concat(), "true");
        until_queued(&server, "a", 1);
        guard.unlock().expect("released");
        let ended = run.ends(0, "");
        let line = "fairlock: a: waiting, number 1 in line, held by the holder (";
        assert_eq!(ended.stderr.contains(line), is_told, "{ended:?}");
        assert!(is_told || !ended.stderr.contains(": waiting"), "{ended:?}");

        let _guard = manager.lock("a").expect("free");
        let busy = [options, &["--timeout=100ms", "a"]].concat();
        let ended = script_gives(&server, &busy, "true", 75, "");
        let line = "fairlock: a: busy, held by the holder (";
        assert_eq!(ended.stderr.contains(line), is_told, "{ended:?}");
    }
}
