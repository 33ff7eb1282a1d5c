//! `fairlock show`.

use std::time::Duration;

use fairlock::LockOptions;

use crate::look::{Lapsed, fairlock, labelled, objects, until_awaited};
use crate::process::{exits, gives, printed};
use crate::support::{Server, Shifted};
use crate::terminal::Terminal;

const HOUR: i64 = 3600 * 1_000_000;

#[track_caller]
fn shows(server: &Server, name: &str, parts: &[&str]) {
    let page = printed(fairlock(server, &["show", name]));
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn queue_is_shown_in_order_with_owners() {
    let server = Server::start();
    let holder = labelled(&server, "a label that is rather long for this window");
    let guard = holder.lock("n").unwrap();
    let mut queue = Vec::new();
    for (label, waiters) in ["second", "first", "third"].into_iter().zip(1..) {
        queue.push(labelled(&server, label).enqueue("n").unwrap());
        until_awaited(&holder, "n", waiters);
    }
    let fence = guard.fence().to_string();
    shows(&server, "n", &["mutex", "held, ", "rather long", &fence]);
    let json = printed(fairlock(&server, &["show", "n", "--json"]));
    let info = holder.inspect("n").unwrap().expect("it is held");
    let shown = &objects(&json)[0];
    assert_eq!((&shown.name, &shown.holders), (&info.name, &info.holders));

    let mut terminal = Terminal::start(&fairlock(&server, &["show", "n"]), 30, 40);
    terminal.program.wait().expect("it ends");
    terminal.shows("third");
    let text = terminal.text();
    let pid = std::process::id().to_string();
    for (position, label) in [("1", "second"), ("2", "first"), ("3", "third")] {
        let is_shown = |line: &str| {
            let row: Vec<&str> = line.split_whitespace().collect();
            row.starts_with(&[position, label]) && row.contains(&&*pid)
        };
        assert!(text.lines().any(is_shown), "{position}: {text}");
    }
    let is_cut = |line: &str| line.starts_with("a label") && line.contains('…');
    assert!(text.lines().any(is_cut), "{text}");
}

/// Times are the server's, which is hours behind.
#[test]
fn each_state_and_kind_is_explained() {
    let shifted = Shifted::start_as(Server::tcp_with_env);
    let server = &shifted.server;
    let (one, two) = (labelled(server, "one"), labelled(server, "two"));
    let long = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600 + 60));
    shifted.step_to(-8 * HOUR);
    let _guard = one.with(long).lock("fixed").unwrap();
    shifted.step_to(-5 * HOUR);
    let times = [" 3h 00m ", "held, 7h 00m left", "10h 1m fixed"];
    shows(server, "fixed", &times);
    let _permits = [
        one.semaphore("permits", 5).acquire(3).unwrap(),
        two.semaphore("permits", 5).acquire(1).unwrap(),
    ];
    let _readers = [&one, &two].map(|manager| manager.rw_lock("readers").read().unwrap());
    let _writer = one.rw_lock("readers").enqueue_write().unwrap();
    until_awaited(&one, "readers", 1);
    let cooling = one.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    let minute = Duration::from_secs(60);
    let _detached = one.lock("detached").unwrap().detach(minute).unwrap();
    let _lapsed = Lapsed::of(server, "lapsed");
    let permits = [
        "semaphore of 5 permits",
        "one",
        "3 permits",
        "two",
        "1 permit",
    ];
    let readers = ["one", "two", "reader", "1 waiting", "writer"];
    let lapsed = ["state     lapsed", "previous  lapsed: the work", " ago"];
    for (name, parts) in [
        ("permits", &permits[..]),
        ("readers", &readers),
        ("cooling", &["cooling: released", "last held by"]),
        ("detached", &["detached: no process", "detached by"]),
        ("lapsed", &lapsed),
    ] {
        shows(server, name, parts);
    }
}

#[test]
fn name_that_nobody_uses_exits_1() {
    let server = Server::start();
    for args in [&["show", "x"][..], &["show", "x", "--json"]] {
        gives(fairlock(&server, args), 1, "");
    }
    exits(fairlock(&server, &["show", ""]), 64);
}
