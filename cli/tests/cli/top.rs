//! `fairlock top`, in a pseudo-terminal.

use std::io::Read as _;

use fairlock::LossReason;

use crate::*;

fn top(server: &Server, args: &str) -> Terminal {
    Terminal::start(&fairlock(server, &format!("top --interval 100ms {args}")))
}

/// A lock that the window shows, once it does.
fn hold(server: &Server, label: &str) -> LockGuard {
    labelled(server, label).lock("invoices:42").unwrap()
}

#[track_caller]
fn is_restored(terminal: &Terminal) {
    until(LONG, "the usual screen", || !terminal.is_alternate());
    assert!(!terminal.is_raw(), "the terminal is still raw");
}

/// The program ends with this code, and the terminal is as before.
fn ends(mut terminal: Terminal, code: i32) {
    assert_eq!(terminal.ends(), Some(code));
    is_restored(&terminal);
}

#[test]
fn top_shows_held_names_and_the_queue_of_one() {
    let server = Server::start();
    let guard = hold(&server, "nightly");
    let _other = manager(&server).lock("reports").unwrap();
    let first = labelled(&server, "first").enqueue("invoices:42");
    let second = labelled(&server, "second").enqueue("invoices:42");
    let mut terminal = top(&server, "--sort name");
    terminal.shows("awaited: 1");
    // The rate, at the second look.
    terminal.shows(" 0.0 ");
    assert!(terminal.is_alternate() && terminal.is_raw() && terminal.is_colored());
    let text = terminal.text();
    let lines = text.lines().map(str::trim);
    let frame: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    assert!(frame[0].starts_with("Locks on "), "{text}");
    is_golden("top.frame.txt", &masked(&frame[1..].join("\n")));
    terminal.press("\r");
    terminal.shows("2. ");
    // Handed over to the first waiter.
    guard.unlock().expect("held");
    terminal.shows("1 waiting");
    terminal.press("q");
    terminal.shows("q quit");
    terminal.press("q");
    ends(terminal, 0);
    drop((first, second));
}

#[test]
fn forced_release_needs_its_confirmation_and_spares_later_holders() {
    let server = Server::start();
    let guard = hold(&server, "first");
    let mut terminal = top(&server, "");
    terminal.shows("invoices:42");
    let ask = |terminal: &mut Terminal, fence: u64| {
        terminal.press("jf");
        terminal.shows(&format!("fence {fence}"));
    };
    ask(&mut terminal, guard.fence());
    // A paste is no answer.
    terminal.press("\x1b[200~y\x1b[201~");
    terminal.shows("nothing was released");
    ask(&mut terminal, guard.fence());
    guard.unlock().expect("nobody took it");
    let later = hold(&server, "second");
    terminal.shows("has changed since");
    terminal.press("y");
    terminal.shows("not released");
    terminal.shows("second");
    ask(&mut terminal, later.fence());
    later.renew().expect("still held");
    terminal.press("y");
    terminal.shows("released \"invoices:42\" by force");
    terminal.shows("names: 0");
    later.renew().expect_err("it is released");
    let loss = later.lost().recv_timeout(LONG).expect("a loss");
    assert_eq!(loss.reason, LossReason::Forced);
}

#[test]
fn signals_end_top_and_restore_the_terminal() {
    let server = Server::start();
    for (sent, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let terminal = top(&server, "");
        terminal.shows("names: 0");
        kill_process(Pid::from_child(&terminal.program), sent).expect("it runs");
        ends(terminal, code);
    }
}

#[test]
fn outage_is_shown_until_redis_answers_again() {
    let server = Server::start();
    let _guard = hold(&server, "nightly");
    let mut terminal = top(&server, "--command-timeout 2s");
    terminal.shows("invoices:42");
    server.stop();
    terminal.shows("Failing for ");
    assert!(terminal.text().contains("invoices:42"), "the last look");
    server.cont();
    terminal.hides("Failing for ");
    server.kill();
    terminal.shows("Failing for ");
    terminal.press("q");
    ends(terminal, 0);
}

#[test]
fn keys_work_in_any_window_while_redis_is_silent() {
    let server = Server::start();
    let _guard = hold(&server, "nightly");
    // A look that hangs goes on for longer than this test waits for anything.
    let mut command = fairlock(&server, "top --interval 100ms --command-timeout 1m");
    let mut terminal = Terminal::start(command.env("NO_COLOR", "1"));
    terminal.shows("nightly");
    assert!(!terminal.is_colored());
    server.stop();
    terminal.resize(1, 1);
    terminal.hides("nightly");
    terminal.resize(60, 200);
    terminal.shows("LEFT");
    // More than one read, and its last key counts.
    terminal.press(&("j".repeat(1500) + "?"));
    terminal.shows("ctrl-l");
    terminal.press("?/inv");
    terminal.shows("filter: inv_");
    terminal.press("\x03");
    ends(terminal, 0);
    server.cont();
}

/// Nobody would restore the terminal.
#[test]
fn no_key_and_no_signal_stops_top() {
    let server = Server::start();
    let _guard = hold(&server, "nightly");
    let mut terminal = top(&server, "");
    terminal.shows("invoices:42");
    terminal.press("\x1a");
    kill_process(Pid::from_child(&terminal.program), Signal::TSTP).expect("it runs");
    terminal.press("?");
    terminal.shows("ctrl-l");
    assert!(terminal.is_alternate() && terminal.is_raw());
    terminal.press("qq");
    ends(terminal, 0);
}

/// It is not the controlling terminal, so no signal says that it is gone.
#[test]
fn closed_terminal_ends_top() {
    let server = Server::start();
    let (mut keyboard, opened) = terminal::pair();
    let copy = || opened.try_clone().expect("a copy");
    // It is killed if it goes on.
    let killed = "timeout --foreground --signal=KILL 60 setsid";
    let mut command = wrapped(killed, &fairlock(&server, "top"));
    command.stdin(copy()).stdout(copy()).stderr(copy());
    let mut program = command.spawn().expect("timeout of coreutils");
    drop((command, opened));
    let mut shown = Vec::new();
    // Each read ends: the program draws once a second.
    until(LONG, "a frame", || {
        let mut bytes = [0; 4096];
        let count = keyboard.read(&mut bytes).expect("the program runs");
        shown.extend_from_slice(&bytes[..count]);
        String::from_utf8_lossy(&shown).contains("NAME")
    });
    drop(keyboard);
    let status = until_some(LONG, "it ends", || program.try_wait().unwrap());
    assert_eq!(status.code(), Some(129));
}
