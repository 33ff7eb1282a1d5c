//! `fairlock top`, in a pseudo-terminal.

use std::io::Read as _;
use std::process::{Child, Command};
use std::time::Duration;

use fairlock::{LockGuard, LossReason};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::look::{fairlock, labelled};
use crate::process::{end, give_environment, without_server};
use crate::support::{Proxy, Server, until, until_some};
use crate::terminal::{self, Terminal};

const SOON: Duration = Duration::from_secs(20);
const ESCAPE: &str = "\x1b";
const ENTER: &str = "\r";
/// For a test that waits until this is over, twice.
const BRIEF: [&str; 2] = ["--command-timeout", "2s"];

fn top(server: &Server, args: &[&str]) -> Terminal {
    let args = [&["top", "--interval", "100ms"], args].concat();
    Terminal::start(&fairlock(server, &args), 24, 100)
}

fn hold(server: &Server, label: &str, name: &str) -> LockGuard {
    labelled(server, label).lock(name).expect("free")
}

fn signal(terminal: &Terminal, signal: Signal) {
    kill_process(Pid::from_child(&terminal.program), signal).expect("it runs");
}

#[track_caller]
fn is_restored(terminal: &Terminal) {
    until(SOON, "the usual screen", || !terminal.is_alternate());
    assert!(!terminal.is_raw(), "the terminal is still raw");
}

#[test]
fn top_shows_a_held_name_and_its_queue() {
    let server = Server::start();
    let guard = hold(&server, "nightly", "invoices:42");
    let first = labelled(&server, "first").enqueue("invoices:42");
    let second = labelled(&server, "second").enqueue("invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("invoices:42");
    terminal.shows("1 name: 1 held, 1 awaited, 0 lapsed");
    terminal.shows("nightly");
    assert!(terminal.is_alternate() && terminal.is_raw());
    terminal.press(ENTER);
    terminal.shows("QUEUE");
    terminal.shows("2. ");
    let text = terminal.text();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}\n{text}"));
    let order = [
        "HOLDERS", "nightly", "QUEUE", "1. ", "first", "2. ", "second",
    ];
    assert!(order.map(at).is_sorted(), "{text}");
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
fn top_sorts_and_filters_by_keys() {
    let server = Server::start();
    let _old = hold(&server, "one", "zebra");
    let _new = hold(&server, "two", "apple");
    let mut terminal = top(&server, &["--sort", "name"]);
    terminal.shows("zebra");
    let is_first = |terminal: &Terminal, first: &str, then: &str| {
        let text = terminal.text();
        let (first, then) = (text.find(first), text.find(then));
        first.is_some() && then.is_some() && first < then
    };
    until(SOON, "by name", || is_first(&terminal, "apple", "zebra"));
    terminal.press("r");
    until(SOON, "reversed", || is_first(&terminal, "zebra", "apple"));
    terminal.press("r4");
    terminal.shows("HELD▾");
    until(SOON, "by age", || is_first(&terminal, "zebra", "apple"));
    terminal.press("/TWO");
    terminal.shows("filter: TWO_");
    until(SOON, "filtered", || !terminal.text().contains("zebra"));
    assert!(terminal.text().contains("apple"));
    terminal.press(ESCAPE);
    terminal.shows("zebra");
    terminal.press("?");
    terminal.shows("ctrl-z");
    // The help takes the key.
    terminal.press("q");
    until(SOON, "no help", || !terminal.text().contains("ctrl-z"));
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn top_lists_only_names_that_match() {
    let server = Server::start();
    let _one = hold(&server, "", "invoices:42");
    let _other = hold(&server, "", "reports");
    let terminal = top(&server, &["invoices:*"]);
    terminal.shows("1 name: 1 held");
    assert!(!terminal.text().contains("reports"));
}

#[test]
fn forced_release_happens_only_after_its_confirmation() {
    let server = Server::start();
    let guard = hold(&server, "nightly", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("invoices:42");
    for no in ["n", "\r", ESCAPE, "\x1b[200~y\x1b[201~"] {
        terminal.press("f");
        terminal.shows("Release by force?");
        terminal.shows(&format!("fence {}", guard.fence()));
        terminal.press(no);
        terminal.shows("nothing was released");
        terminal.press("j");
        terminal.shows("q quit");
    }
    guard.renew().expect("nobody took it");
    terminal.press("f");
    terminal.shows("Release by force?");
    terminal.press("y");
    terminal.shows("released \"invoices:42\" by force");
    terminal.shows("0 names");
    // It would learn of it at the next renewal.
    guard.renew().expect_err("it is released");
    let loss = guard.lost().recv_timeout(SOON).expect("a loss");
    assert_eq!(loss.reason, LossReason::Forced);
}

#[test]
fn forced_release_spares_a_holder_that_came_later() {
    let server = Server::start();
    let guard = hold(&server, "first", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("invoices:42");
    terminal.press("f");
    terminal.shows("Release by force?");
    guard.unlock().expect("held");
    let later = hold(&server, "second", "invoices:42");
    terminal.shows("has changed since");
    terminal.press("y");
    terminal.shows("not released");
    later.renew().expect("still held");
}

#[test]
fn signals_end_top_and_restore_the_terminal() {
    let server = Server::start();
    for (sent, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = top(&server, &[]);
        terminal.shows("0 names");
        signal(&terminal, sent);
        assert_eq!(terminal.ends(), Some(code));
        is_restored(&terminal);
    }
}

#[test]
fn killed_server_is_shown_and_quitting_restores_the_terminal() {
    let server = Server::start();
    let mut terminal = top(&server, &BRIEF);
    terminal.shows("0 names");
    server.kill();
    terminal.shows("Redis does not answer");
    terminal.press("q");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
}

#[test]
fn outage_is_shown_until_redis_answers_again() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let terminal = top(&server, &BRIEF);
    terminal.shows("invoices:42");
    server.stop();
    terminal.shows("Redis does not answer");
    assert!(terminal.text().contains("invoices:42"), "the last look");
    server.cont();
    until(SOON, "no outage", || {
        !terminal.text().contains("does not answer")
    });
}

#[test]
fn keys_work_while_redis_is_silent_and_over_a_slow_link() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    // A look that hangs goes on for longer than this test waits for anything.
    let mut command = without_server(&["top", "--interval", "100ms", "--command-timeout", "1m"]);
    let mut terminal = Terminal::start(command.env("FAIRLOCK_URL", proxy.url()), 24, 100);
    terminal.shows("0 names");
    proxy.delay(Duration::from_millis(100));
    let guard = hold(&server, "nightly", "invoices:42");
    terminal.shows("invoices:42");
    terminal.press(ENTER);
    terminal.shows("HOLDERS");
    terminal.shows("round trip 2");
    // No reply comes any more, so these answers do not come from Redis.
    proxy.pause_replies();
    terminal.press("?");
    terminal.shows("ctrl-z");
    terminal.press("?q");
    terminal.shows("q quit");
    terminal.press("/inv");
    terminal.shows("filter: inv_");
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
    is_restored(&terminal);
    drop(guard);
}

#[test]
fn top_draws_every_size_of_the_window() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let mut terminal = top(&server, &[]);
    terminal.shows("nightly");
    for (rows, columns) in [(5, 20), (2, 3), (1, 1), (60, 200)] {
        terminal.resize(rows, columns);
        until(SOON, "a frame of that size", || match columns {
            0..=10 => !terminal.text().contains("nightly"),
            _ => terminal.text().contains("invoices"),
        });
    }
    terminal.shows("LEFT");
    terminal.press("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn key_after_a_resize_and_a_long_text_are_read_at_once() {
    let server = Server::start();
    let mut terminal = top(&server, &[]);
    terminal.shows("0 names");
    terminal.resize(30, 90);
    terminal.press("?");
    terminal.shows("ctrl-z");
    terminal.press("q");
    until(SOON, "no help", || !terminal.text().contains("ctrl-z"));
    // More than one read, and its last key counts.
    terminal.press(&("j".repeat(1500) + "?"));
    terminal.shows("ctrl-z");
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn suspended_top_comes_back_with_its_screen() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]);
    give_environment(&mut shell, &fairlock(&server, &[]));
    shell.env("PS1", "ready> ");
    let mut terminal = Terminal::start(&shell, 24, 100);
    terminal.shows("ready>");
    let binary = env!("CARGO_BIN_EXE_fairlock");
    // Alone, and with a script around it, which stops with it.
    for line in [
        format!("{binary} top"),
        format!("sh -c '{binary} top; true'"),
    ] {
        terminal.press(&format!("{line}\r"));
        terminal.shows("invoices:42");
        terminal.press("\x1a");
        terminal.shows("Stopped");
        until(SOON, "the usual screen", || !terminal.is_alternate());
        // The shell sees only its own child stop. If the program went on before it stops as well,
        // it would stop afterwards.
        until(SOON, "all of the job is stopped", || {
            is_job_stopped(&terminal)
        });
        terminal.press("fg\r");
        terminal.shows("invoices:42");
        assert!(terminal.is_alternate() && terminal.is_raw());
        terminal.press("q");
        // The shell has the keys again. Before that, the program could still read them.
        until(SOON, "the prompt", || {
            !terminal.is_alternate() && terminal.text().trim_end().ends_with("ready>")
        });
        terminal.press("clear\r");
        until(SOON, "an empty screen", || {
            !terminal.text().contains("Stopped")
        });
    }
    terminal.press("exit\r");
    assert_eq!(terminal.ends(), Some(0));
}

/// Whether a job of the shell in this terminal is there, and all its processes are stopped.
fn is_job_stopped(terminal: &Terminal) -> bool {
    let shell = Pid::from_child(&terminal.program).as_raw_nonzero().get();
    let mut states = Vec::new();
    for process in std::fs::read_dir("/proc").expect("Linux") {
        let path = process.expect("a process").path().join("stat");
        // It is gone, or it is no process.
        let Ok(stat) = std::fs::read_to_string(path) else {
            continue;
        };
        let (start, rest) = stat.rsplit_once(')').expect("a name in brackets");
        // The state, the parent, the group and the session.
        let fields: Vec<&str> = rest.split_whitespace().take(4).collect();
        let is_shell = start.starts_with(&format!("{shell} ("));
        if !is_shell && fields[3] == shell.to_string() {
            states.push(fields[0].to_owned());
        }
    }
    !states.is_empty() && states.iter().all(|state| state == "T")
}

/// No shell with job control is there, as in a container. The session's leader is a shell in the
/// group of its command.
#[test]
fn top_goes_on_where_no_shell_could_continue_it() {
    let server = Server::start();
    let _guard = hold(&server, "nightly", "invoices:42");
    let binary = fairlock(&server, &["top"]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$BINARY\" top; echo code-$?"])
        .env("BINARY", binary.get_program());
    give_environment(&mut shell, &binary);
    let mut terminal = Terminal::start(&shell, 24, 100);
    terminal.shows("invoices:42");
    let group = Pid::from_child(&terminal.program);
    for _ in 0..2 {
        terminal.press("\x1a");
        terminal.shows("there is no shell to suspend to");
        terminal.press("j");
        terminal.shows("q quit");
        kill_process_group(group, Signal::TSTP).expect("it runs");
        terminal.shows("there is no shell to suspend to");
        terminal.press("j");
        terminal.shows("q quit");
    }
    terminal.press("q");
    terminal.shows("code-0");
}

#[test]
fn top_without_a_terminal_exits_64() {
    let server = Server::start();
    let ended = end(&mut fairlock(&server, &["top"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("terminal"), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

/// It is not the controlling terminal, so no signal says that it is gone.
#[test]
fn closed_terminal_ends_top() {
    let server = Server::start();
    let (mut keyboard, opened) = terminal::pair();
    let terminal = || opened.try_clone().expect("a copy");
    let mut command = Command::new("setsid");
    command.args([env!("CARGO_BIN_EXE_fairlock"), "top"]);
    give_environment(&mut command, &fairlock(&server, &[]));
    command
        .stdin(terminal())
        .stdout(terminal())
        .stderr(terminal());
    let mut program = Reaped(command.spawn().expect("setsid of util-linux"));
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
    let status = until_some(SOON, "it ends", || program.0.try_wait().expect("its state"));
    assert_eq!(status.code(), Some(129));
}

/// Killed at the end of its test, whatever the outcome.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interval_below_100ms_or_above_a_day_is_refused() {
    let server = Server::start();
    for interval in ["99ms", "500000000000y"] {
        let command = fairlock(&server, &["top", "--interval", interval]);
        let mut terminal = Terminal::start(&command, 24, 100);
        let ended = || terminal.program.try_wait().expect("it is ours");
        let status = until_some(SOON, "it ends", ended);
        assert_eq!(status.code(), Some(64), "{interval}");
    }
}
