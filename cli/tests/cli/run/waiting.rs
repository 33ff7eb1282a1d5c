//! The line that is shown while the lock is awaited.

use super::{LONG, Run, manager, run_script, script_gives, until_queued};
use crate::support::{Server, until};
use crate::terminal::Terminal;
use fairlock::LockOptions;

#[test]
fn line_shows_position_holder_and_times_and_is_erased() {
    let server = Server::start();
    let manager = manager(&server).with(LockOptions::new().label("the holder"));
    let guard = manager.lock("a").expect("free");
    let waiter = manager.enqueue("a").expect("queued");
    let program = run_script(&server, &["--wait", "5m", "a"], "echo ran");
    let mut terminal = Terminal::start(&program, 24, 120);
    terminal.shows("a: waiting, number 2 in line, held by the holder (");
    terminal.shows("s waited, 4m 5");
    let pid = format!("pid {})", std::process::id());
    assert!(terminal.text().contains(&pid), "{}", terminal.text());
    drop(waiter);
    terminal.shows("number 1 in line");
    guard.unlock().expect("released");
    terminal.shows("ran");
    assert!(!terminal.text().contains("waiting"), "{}", terminal.text());
    assert!(terminal.program.wait().expect("ends").success());
}

#[test]
fn line_fits_a_narrow_terminal() {
    let server = Server::start();
    let name = "a".repeat(300);
    let guard = manager(&server).lock(&name).expect("free");
    let program = run_script(&server, &[&name], "echo ran");
    let mut terminal = Terminal::start(&program, 24, 30);
    terminal.shows(&"a".repeat(29));
    until_queued(&server, &name, 1);
    guard.unlock().expect("released");
    terminal.shows("ran");
    assert_eq!(terminal.text().trim(), "ran");
    terminal.program.wait().expect("ends");
}

/// Another waiter comes, and draws its line more than once: each is drawn each second.
#[track_caller]
pub(super) fn until_a_later_waiter_shows_its_line(server: &Server) {
    let mut later = Terminal::start(&run_script(server, &["a"], "true"), 24, 120);
    later.shows("number 2 in line");
    let first = later.text();
    until(LONG, "drawn again", || later.text() != first);
    later.press("\x03");
    later.ends();
}

#[test]
fn quiet_shows_nothing() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let program = run_script(&server, &["--quiet", "a"], "echo ran");
    let mut terminal = Terminal::start(&program, 24, 80);
    until_queued(&server, "a", 1);
    until_a_later_waiter_shows_its_line(&server);
    assert_eq!(terminal.text().trim(), "");
    guard.unlock().expect("released");
    terminal.shows("ran");
    terminal.program.wait().expect("ends");
}

#[test]
fn busy_lock_is_named_with_its_holder_on_a_terminal() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    let program = run_script(&server, &["--no-wait", "a"], "echo ran");
    let mut terminal = Terminal::start(&program, 24, 80);
    terminal.shows("fairlock: a: busy, held by ");
    assert_eq!(terminal.program.wait().expect("ends").code(), Some(75));
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
        assert_eq!(
            ended.stderr.matches(line).count(),
            usize::from(is_told),
            "{ended:?}"
        );
        assert!(is_told || !ended.stderr.contains(": waiting"), "{ended:?}");

        let _guard = manager.lock("a").expect("free");
        let busy = [options, &["--timeout=100ms", "a"]].concat();
        let ended = script_gives(&server, &busy, "true", 75, "");
        let line = "fairlock: a: busy, held by the holder (";
        assert_eq!(ended.stderr.contains(line), is_told, "{ended:?}");
    }
}
