//! `fairlock show`.

use std::time::Duration;

use fairlock::LockOptions;

use crate::look::{Lapsed, fairlock, labelled, objects, until_awaited};
use crate::process::end;
use crate::support::{Server, Shifted};
use crate::terminal::Terminal;

const HOUR: i64 = 3600 * 1_000_000;

fn show(server: &Server, name: &str) -> String {
    let ended = end(&mut fairlock(server, &["show", name]));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{name}");
    ended.stdout
}

#[test]
fn the_queue_is_shown_in_order_with_owners() {
    let server = Server::start();
    let holder = labelled(&server, "nightly");
    let guard = holder.lock("n").unwrap();
    let mut queue = Vec::new();
    for (at, label) in ["second", "first", "third"].iter().enumerate() {
        queue.push(labelled(&server, label).enqueue("n").unwrap());
        until_awaited(&holder, "n", at as u64 + 1);
    }
    let text = show(&server, "n");
    let fence = guard.fence().to_string();
    for part in [
        "mutex",
        "held, ",
        "1 holder",
        "nightly",
        "3 waiting",
        "previous",
        &fence,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let pid = std::process::id().to_string();
    for (position, label) in [("1", "second"), ("2", "first"), ("3", "third")] {
        let of_waiter = |row: &&Vec<&str>| row.starts_with(&[position, label]);
        let row = rows
            .iter()
            .find(of_waiter)
            .unwrap_or_else(|| panic!("{position}: {text}"));
        assert!(row.contains(&&*pid), "{text}");
    }
}

#[test]
fn all_holders_of_permits_are_shown() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let _permits = [
        one.semaphore("s", 5).acquire_many(3).unwrap(),
        two.semaphore("s", 5).acquire().unwrap(),
    ];
    let text = show(&server, "s");
    for part in [
        "semaphore of 5 permits",
        "2 holders",
        "one",
        "3 permits",
        "two",
        "1 permit",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let _readers = [
        one.rw_lock("r").read().unwrap(),
        two.rw_lock("r").read().unwrap(),
    ];
    let _writer = one.rw_lock("r").enqueue_write().unwrap();
    until_awaited(&one, "r", 1);
    let text = show(&server, "r");
    for part in [
        "reader/writer lock",
        "2 holders",
        "reader",
        "1 waiting",
        "writer",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn times_are_right_while_the_clocks_differ() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let long = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600));
    let manager = labelled(server, "").with(long);
    shifted.step_to(-8 * HOUR);
    let _guard = manager.lock("n").unwrap();
    shifted.step_to(-5 * HOUR);
    let text = show(server, "n");
    assert!(text.contains(" 3h 00m "), "{text}");
    assert!(
        text.contains("held, 7h 00m left") || text.contains("held, 6h 59m left"),
        "{text}"
    );
    assert!(text.contains("10h fixed"), "{text}");
}

#[test]
fn a_lapse_and_a_cooling_are_explained() {
    let server = Server::tcp();
    let manager = labelled(&server, "");
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    let text = show(&server, "cooling");
    assert!(text.contains("cooling: released"), "{text}");
    let minute = Duration::from_secs(60);
    let _detached = manager.lock("detached").unwrap().detach(minute).unwrap();
    let text = show(&server, "detached");
    assert!(
        text.contains("detached: no process holds it, and it can be attached for "),
        "{text}"
    );
    assert!(text.contains("\ndetached by\n"), "{text}");
    let text = show(&server, "cooling");
    assert!(
        text.contains("cooling: released") && text.contains("last holder"),
        "{text}"
    );
    let _lapsed = Lapsed::of(&server, "lapsed");
    let text = show(&server, "lapsed");
    assert!(text.contains("state     lapsed"), "{text}");
    assert!(text.contains("previous  lapsed: the work"), "{text}");
    assert!(text.contains(" ago"), "{text}");
}

#[test]
fn a_name_that_nobody_uses_exits_1() {
    let server = Server::start();
    for args in [&["show", "x"][..], &["show", "x", "--json"]] {
        let ended = end(&mut fairlock(&server, args));
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
        assert_eq!(ended.stderr, "fairlock: \"x\" is not in use\n");
    }
    let ended = end(&mut fairlock(&server, &["show", ""]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
}

#[test]
fn json_is_one_object() {
    let server = Server::start();
    let manager = labelled(&server, "me");
    let _guard = manager.lock("n").unwrap();
    let ended = end(&mut fairlock(&server, &["show", "n", "--json"]));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let [shown] = &objects(&ended.stdout)[..] else {
        panic!("{ended:?}");
    };
    let info = manager.inspect("n").unwrap().expect("it is held");
    assert_eq!((&shown.name, &shown.holders), (&info.name, &info.holders));
}

#[test]
fn both_tables_fit_a_narrow_window() {
    let server = Server::start();
    let manager = labelled(&server, "a label that is rather long for this window");
    let _guard = manager.lock("n").unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_awaited(&manager, "n", 1);
    let mut terminal = Terminal::start(&fairlock(&server, &["show", "n"]), 30, 40);
    terminal.program.wait().expect("it ends");
    terminal.shows("1 waiting");
    terminal.shows("#");
    let text = terminal.text();
    let rows: Vec<&str> = text.lines().collect();
    let cut = rows
        .iter()
        .filter(|row| row.contains("a lab") && row.contains('…'));
    assert_eq!(cut.count(), 2, "{text}");
    let titles = rows
        .iter()
        .filter(|row| row.contains("LABEL") && row.contains("PID"));
    assert_eq!(titles.count(), 2, "{text}");
}
