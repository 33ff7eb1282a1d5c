//! The line that is shown while the lock is awaited.

use super::{LONG, manager, run_script, waiters};
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
    until(LONG, "queued", || waiters(&server, &name) == 1);
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
    until(LONG, "queued", || waiters(&server, "a") == 1);
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
fn without_a_terminal_a_wait_prints_nothing() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let mut run = super::Run::script(&server, &["a"], "true");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    guard.unlock().expect("released");
    let ended = run.ended();
    assert_eq!((&*ended.stdout, &*ended.stderr), ("", ""));
}

#[test]
fn verbose_run_says_once_for_whom_it_waits() {
    let server = Server::start();
    let manager = manager(&server).with(LockOptions::new().label("the holder"));
    let guard = manager.lock("a").expect("free");
    let mut run = super::Run::script(&server, &["-v", "--wait", "5m", "a"], "true");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    guard.unlock().expect("released");
    let ended = run.ended();
    let line = "fairlock: a: waiting, number 1 in line, held by the holder (";
    assert_eq!(ended.stderr.matches(line).count(), 1, "{ended:?}");
    assert_eq!(ended.stderr.matches(": waiting").count(), 1, "{ended:?}");
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
}

#[test]
fn verbose_run_names_the_holder_of_a_busy_lock() {
    let server = Server::start();
    let manager = manager(&server).with(LockOptions::new().label("the holder"));
    let _guard = manager.lock("a").expect("free");
    for args in [&["-n", "a"][..], &["--wait", "100ms", "a"]] {
        for (more, is_told) in [
            (&["-v"][..], true),
            (&[], false),
            (&["-v", "--quiet"], false),
        ] {
            let ended = super::Run::script(&server, &[more, args].concat(), "true").ended();
            assert_eq!(ended.code, Some(75), "{ended:?}");
            let line = "fairlock: a: busy, held by the holder (";
            assert_eq!(ended.stderr.contains(line), is_told, "{args:?}: {ended:?}");
        }
    }
}
