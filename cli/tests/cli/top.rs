//! `fairlock top`, in a pseudo-terminal.

use std::io::Read as _;
use std::time::Duration;

use fairlock::{LockGuard, LossReason};
use rustix::process::{Pid, Signal, kill_process};

use crate::look::{fairlock, is_golden, labelled, masked};
use crate::process::wrapped;
use crate::support::{Server, until, until_some};
use crate::terminal::{self, Terminal};

const SOON: Duration = Duration::from_secs(20);
const ESCAPE: &str = "\x1b";
const ENTER: &str = "\r";

fn top(server: &Server, args: &[&str]) -> Terminal {
    let args = [&["top", "--interval", "100ms"], args].concat();
    Terminal::start(&fairlock(server, &args), 24, 140)
}

fn hold(server: &Server, label: &str, name: &str) -> LockGuard {
    labelled(server, label).lock(name).expect("free")
}

#[track_caller]
fn is_restored(terminal: &Terminal) {
    until(SOON, "the usual screen", || !terminal.is_alternate());
    assert!(!terminal.is_raw(), "the terminal is still raw");
}

#[test]
fn top_shows_held_names_and_the_queue_of_one() {
    let server = Server::start();
    let guard = hold(&server, "nightly", "invoices:42");
    let _other = hold(&server, "", "reports");
    let first = labelled(&server, "first").enqueue("invoices:42");
    let second = labelled(&server, "second").enqueue("invoices:42");
    let mut terminal = top(&server, &["--sort", "name"]);
    terminal.shows("awaited: 1");
    // The rate, at the second look.
    terminal.shows(" 0.0 ");
    assert!(terminal.is_alternate() && terminal.is_raw() && terminal.is_colored());
    let text = terminal.text();
    let lines = text.lines().filter(|line| !line.is_empty());
    let lines = lines.map(|line| line.split_whitespace().collect());
    let frame: Vec<String> = lines.map(|words: Vec<&str>| words.join(" ")).collect();
    assert!(frame[0].starts_with("Locks on "), "{text}");
    is_golden("top.frame.txt", &masked(&frame[1..].join("\n")));
    terminal.press(ENTER);
    terminal.shows("2. ");
    let text = terminal.text();
    let (_, rest) = text.split_once("HOLDERS").expect("the name is open");
    let parts = "held for |nightly|QUEUE|1. |first|2. |second".split('|');
    let places: Option<Vec<usize>> = parts.map(|part| rest.find(part)).collect();
    assert!(places.is_some_and(|places| places.is_sorted()), "{text}");
    // Handed over to the first waiter.
    guard.unlock().expect("held");
    terminal.shows("1 waiting");
    terminal.press("q");
    terminal.shows("q quit");
    terminal.press("q");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
    drop((first, second));
}

#[test]
fn forced_release_needs_its_confirmation_and_spares_later_holders() {
    let server = Server::start();
    let guard = hold(&server, "first", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("invoices:42");
    let ask = |terminal: &mut Terminal, fence: u64| {
        terminal.press("jf");
        terminal.shows(&format!("fence {fence}"));
    };
    for no in [ESCAPE, "\x1b[200~y\x1b[201~"] {
        ask(&mut terminal, guard.fence());
        terminal.press(no);
        terminal.shows("nothing was released");
    }
    ask(&mut terminal, guard.fence());
    guard.unlock().expect("nobody took it");
    let later = hold(&server, "second", "invoices:42");
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
    let loss = later.lost().recv_timeout(SOON).expect("a loss");
    assert_eq!(loss.reason, LossReason::Forced);
}

#[test]
fn signals_end_top_and_restore_the_terminal() {
    let server = Server::start();
    for (sent, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = top(&server, &[]);
        terminal.shows("names: 0");
        kill_process(Pid::from_child(&terminal.program), sent).expect("it runs");
        assert_eq!(terminal.ends(), Some(code));
        is_restored(&terminal);
    }
}

#[test]
fn outage_is_shown_until_redis_answers_again() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let mut terminal = top(&server, &["--command-timeout", "2s"]);
    terminal.shows("invoices:42");
    server.stop();
    terminal.shows("Failing for ");
    assert!(terminal.text().contains("invoices:42"), "the last look");
    server.cont();
    terminal.hides("Failing for ");
    server.kill();
    terminal.shows("Failing for ");
    terminal.press("q");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
}

#[test]
fn keys_work_without_color_while_redis_is_silent() {
    let server = Server::start();
    // A look that hangs goes on for longer than this test waits for anything.
    let args = ["top", "--interval", "100ms", "--command-timeout", "1m"];
    let mut command = fairlock(&server, &args);
    let mut terminal = Terminal::start(command.env("NO_COLOR", "1"), 24, 100);
    terminal.shows("names: 0");
    assert!(!terminal.is_colored());
    server.stop();
    terminal.press("?");
    terminal.shows("ctrl-l");
    terminal.press("?/inv");
    terminal.shows("filter: inv_");
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
    server.cont();
}

#[test]
fn every_window_is_drawn_and_keys_behind_it_read() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("nightly");
    for (rows, columns) in [(5, 20), (2, 3), (1, 1)] {
        terminal.resize(rows, columns);
        terminal.hides("nightly");
    }
    terminal.resize(60, 200);
    terminal.shows("LEFT");
    // More than one read, and its last key counts.
    terminal.press(&("j".repeat(1500) + "?"));
    terminal.shows("ctrl-l");
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
}

/// Nobody would restore the terminal.
#[test]
fn no_key_and_no_signal_stops_top() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("invoices:42");
    terminal.press("\x1a");
    kill_process(Pid::from_child(&terminal.program), Signal::TSTP).expect("it runs");
    terminal.press("?");
    terminal.shows("ctrl-l");
    assert!(terminal.is_alternate() && terminal.is_raw());
    terminal.press("qq");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
}

/// It is not the controlling terminal, so no signal says that it is gone.
#[test]
fn closed_terminal_ends_top() {
    let server = Server::start();
    let (mut keyboard, opened) = terminal::pair();
    terminal::set_size(&keyboard, 24, 80);
    let copy = || opened.try_clone().expect("a copy");
    // It is killed if it goes on.
    let killed = "timeout --foreground --signal=KILL 60 setsid";
    let killed: Vec<&str> = killed.split(' ').collect();
    let mut command = wrapped(&killed, &fairlock(&server, &["top"]));
    command.stdin(copy()).stdout(copy()).stderr(copy());
    let mut program = command.spawn().expect("timeout of coreutils");
    drop((command, opened));
    let mut shown = Vec::new();
    // Each read ends: the program draws once a second.
    until(SOON, "a frame", || {
        let mut bytes = [0; 4096];
        let count = keyboard.read(&mut bytes).expect("the program runs");
        shown.extend_from_slice(&bytes[..count]);
        String::from_utf8_lossy(&shown).contains("NAME")
    });
    drop(keyboard);
    let status = until_some(SOON, "it ends", || program.try_wait().expect("its state"));
    assert_eq!(status.code(), Some(129));
}
