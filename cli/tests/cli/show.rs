//! `fairlock show`.

use std::time::Duration;

use fairlock::LockOptions;

use crate::look::{Lapsed, fairlock, labelled, objects, until_awaited};
use crate::process::end;
use crate::support::{Server, Shifted};
use crate::terminal::Terminal;

const HOUR: i64 = 3600 * 1_000_000;

#[track_caller]
fn shows(server: &Server, name: &str, parts: &[&str]) {
    let ended = end(&mut fairlock(server, &["show", name]));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{name}");
    for part in parts {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
}

#[test]
fn queue_is_shown_in_order_with_owners() {
    let server = Server::start();
    let holder = labelled(&server, "a label that is rather long for this window");
    let guard = holder.lock("n").unwrap();
    let mut queue = Vec::new();
    for (at, label) in ["second", "first", "third"].iter().enumerate() {
        queue.push(labelled(&server, label).enqueue("n").unwrap());
        until_awaited(&holder, "n", at as u64 + 1);
    }
    let fence = guard.fence().to_string();
    shows(&server, "n", &["mutex", "held, ", "rather long", &fence]);
    let json = end(&mut fairlock(&server, &["show", "n", "--json"]));
    assert_eq!((json.code, &*json.stderr), (Some(0), ""));
    let info = holder.inspect("n").unwrap().expect("it is held");
    let shown = &objects(&json.stdout)[0];
    assert_eq!((&shown.name, &shown.holders), (&info.name, &info.holders));

    let mut terminal = Terminal::start(&fairlock(&server, &["show", "n"]), 30, 40);
    terminal.program.wait().expect("it ends");
    terminal.shows("third");
    let text = terminal.text();
    let rows = text.lines().map(|line| line.split_whitespace().collect());
    let rows: Vec<Vec<&str>> = rows.collect();
    let pid = std::process::id().to_string();
    for (position, label) in [("1", "second"), ("2", "first"), ("3", "third")] {
        let is_shown =
            |row: &Vec<&str>| row.starts_with(&[position, label]) && row.contains(&&*pid);
        assert!(rows.iter().any(is_shown), "{position}: {text}");
    }
    let is_cut = |line: &str| line.starts_with("a label") && line.contains('…');
    assert!(text.lines().any(is_cut), "{text}");
}

#[test]
fn all_holders_of_permits_are_shown() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let _permits = [
        one.semaphore("s", 5).acquire(3).unwrap(),
        two.semaphore("s", 5).acquire(1).unwrap(),
    ];
    let parts = [
        "semaphore of 5 permits",
        "one",
        "3 permits",
        "two",
        "1 permit",
    ];
    shows(&server, "s", &parts);
    let _readers = [
        one.rw_lock("r").read().unwrap(),
        two.rw_lock("r").read().unwrap(),
    ];
    let _writer = one.rw_lock("r").enqueue_write().unwrap();
    until_awaited(&one, "r", 1);
    let parts = ["one", "two", "reader", "1 waiting", "writer"];
    shows(&server, "r", &parts);
}

#[test]
fn times_are_right_while_the_clocks_differ() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let long = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600 + 60));
    let manager = labelled(server, "").with(long);
    shifted.step_to(-8 * HOUR);
    let _guard = manager.lock("n").unwrap();
    shifted.step_to(-5 * HOUR);
    shows(
        server,
        "n",
        &[" 3h 00m ", "held, 7h 00m left", "10h 1m fixed"],
    );
}

#[test]
fn lapse_and_cooling_and_detached_lock_are_explained() {
    let server = Server::tcp();
    let manager = labelled(&server, "");
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    shows(&server, "cooling", &["cooling: released", "last held by"]);
    let minute = Duration::from_secs(60);
    let _detached = manager.lock("detached").unwrap().detach(minute).unwrap();
    shows(
        &server,
        "detached",
        &["detached: no process", "detached by"],
    );
    let _lapsed = Lapsed::of(&server, "lapsed");
    let parts = ["state     lapsed", "previous  lapsed: the work", " ago"];
    shows(&server, "lapsed", &parts);
}

#[test]
fn name_that_nobody_uses_exits_1() {
    let server = Server::start();
    for args in [&["show", "x"][..], &["show", "x", "--json"]] {
        let ended = end(&mut fairlock(&server, args));
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
        assert_eq!(ended.stderr, "fairlock: \"x\" is not in use\n");
    }
    let ended = end(&mut fairlock(&server, &["show", ""]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
}
