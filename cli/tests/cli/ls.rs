//! `fairlock ls`.

use std::process::Stdio;
use std::time::Duration;

use fairlock::LockOptions;

use crate::look::{
    Lapsed, fairlock, first_column, is_golden, labelled, masked, objects, until_awaited,
};
use crate::process::{Ended, code_unread, end, exits, printed, wrapped};
use crate::run::LONG;
use crate::support::{Proxy, SLACK, Server, Shifted, contains, is_redis_62, until};
use crate::terminal::Terminal;

/// Long enough for every test, whatever the clock does.
const FOR_HOURS: LockOptions = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600));
const HOUR: i64 = 3600 * 1_000_000;

/// The first column of each row.
#[track_caller]
fn names(server: &Server, args: &[&str]) -> Vec<String> {
    first_column(&printed(fairlock(server, &[&["ls"], args].concat())))
}

#[test]
fn filters_pick_names_and_each_must_hold() {
    let server = Server::tcp();
    let manager = labelled(&server, "nightly job");
    let _held = manager.lock("held").unwrap();
    let _awaited = manager.lock("awaited").unwrap();
    let _waiter = manager.enqueue("awaited").unwrap();
    until_awaited(&manager, "awaited", 1);
    let _lapsed = Lapsed::of(&server, "lapsed");
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    for (args, expected) in [
        (&[][..], &["awaited", "cooling", "held", "lapsed"][..]),
        (&["*a*ed"], &["awaited", "lapsed"]),
        (&["--held"], &["awaited", "held"]),
        (&["--lapsed"], &["lapsed"]),
        (&["--awaited"], &["awaited"]),
        (&["--held", "--lapsed"], &[]),
        (&["h*", "--held"], &["held"]),
    ] {
        assert_eq!(names(&server, args), expected, "{args:?}");
    }
    let row = end(fairlock(&server, &["ls", "awaited"])).stdout;
    let pid = std::process::id().to_string();
    for part in ["held", "nightly job", &pid, " ago", "mutex"] {
        assert!(row.contains(part), "{part}: {row}");
    }
}

/// This machine's clock is hours behind the server's, then hours ahead.
#[test]
fn ages_and_the_order_are_by_the_servers_clock() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let manager = labelled(server, "").with(FOR_HOURS);
    let lock = |name: &str, hours: u64| {
        let lease = Duration::from_secs(hours * 3600);
        let options = LockOptions::new().fixed_lease(lease);
        manager.with(options).lock(name).unwrap()
    };
    shifted.step_to(-3 * HOUR);
    let _b = lock("b", 20);
    shifted.step_to(-2 * HOUR);
    let _c = lock("c", 10);
    let _one = manager.enqueue("c").unwrap();
    shifted.step_to(-HOUR);
    let _a = lock("a", 24);
    let _two = [manager.enqueue("a").unwrap(), manager.enqueue("a").unwrap()];
    until_awaited(&manager, "a", 2);
    for (key, order) in [
        ("name", ["a", "b", "c"]),
        ("held", ["b", "c", "a"]),
        ("waiters", ["a", "c", "b"]),
        ("waited", ["c", "a", "b"]),
        ("left", ["c", "b", "a"]),
    ] {
        assert_eq!(names(server, &["--sort", key]), order, "{key}");
        let mut turned = order;
        turned.reverse();
        assert_eq!(names(server, &["--sort", key, "-r"]), turned, "{key}");
    }
    assert_eq!(names(server, &["--older", "90m"]), ["b"]);
    assert_eq!(names(server, &["--older", "3h"]), [""; 0]);
    let row = end(fairlock(server, &["ls", "c"])).stdout;
    assert!(row.contains(" 1h 00m "), "{row}");
    shifted.step_to(3 * HOUR);
    assert_eq!(names(server, &["--older", "5h30m"]), ["b"]);
}

#[test]
fn json_has_one_object_per_line_as_the_library_gives_it() {
    let server = Server::start();
    let none = end(fairlock(&server, &["ls", "--json"]));
    assert_eq!((none.code, &*none.stdout, &*none.stderr), (Some(0), "", ""));
    let manager = labelled(&server, "a \"label\"").with(FOR_HOURS);
    let _guards = ["a", "b\nc"].map(|name| manager.lock(name).unwrap());
    let _permits = manager.semaphore("s", 3).acquire(2).unwrap();
    let _reader = manager.rw_lock("r").read().unwrap();
    let ended = exits(fairlock(&server, &["ls", "--json", "--sort", "name"]), 0);
    let all = objects(&ended.stdout);
    assert_eq!(all.len(), 4);
    for (shown, name) in all.into_iter().zip(["a", "b\nc", "r", "s"]) {
        let mut info = manager.inspect(name).unwrap().expect("it is held");
        (info.seen_at, info.time_left) = (shown.seen_at, shown.time_left);
        assert_eq!(shown, info);
    }
}

#[test]
fn table_fits_the_window_and_a_pipe_gets_all() {
    let server = Server::start();
    let mut nothing = Terminal::start(&fairlock(&server, &["ls"]), 10, 60);
    nothing.shows("nothing is held");
    assert_eq!(nothing.program.wait().unwrap().code(), Some(0));
    let manager = labelled(&server, "数据库迁移任务").with(FOR_HOURS);
    let long = "a/very/long/name/".repeat(20);
    let names = ["short", "数据库:用户表", "🦀🦀🦀", &long, "\x1b[2Jevil"];
    let _guards = names.map(|name| manager.lock(name).unwrap());
    for columns in [20, 40, 80, 200] {
        let mut terminal = Terminal::start(&fairlock(&server, &["ls"]), 30, columns);
        terminal.program.wait().expect("it ends");
        // Titles and five rows: no row has wrapped.
        until(LONG, "there are six lines", || {
            let text = terminal.text();
            text.lines().filter(|line| !line.is_empty()).count() == 6
        });
        let text = terminal.text();
        assert!(text.contains("short") && text.contains("u{1b}"), "{text}");
        assert!(text.trim_start().starts_with("NAME"), "{text}");
        assert!(text.contains('…'), "{columns}: {text}");
    }
    let piped = end(fairlock(&server, &["ls"])).stdout;
    assert!(piped.contains(&long) && !piped.contains('…'), "{piped}");
}

#[test]
fn no_command_goes_through_all_foreign_keys() {
    let enable = ["--enable-debug-command", "yes"];
    let server = Server::start_with(if is_redis_62() { &[] } else { &enable });
    let manager = labelled(&server, "");
    let _guard = manager.lock("mine").unwrap();
    let _: () = server.query(&["DEBUG", "POPULATE", "200000", "foreign"]);
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    let slow = SLACK.as_micros().to_string();
    let _: () = server.query(&["CONFIG", "SET", "slowlog-log-slower-than", &slow]);
    let _: () = server.query(&["SLOWLOG", "RESET"]);
    assert_eq!(names(&server, &[]), ["mine"]);
    assert_eq!(server.query::<u64>(&["SLOWLOG", "LEN"]), 0);
    let stats: String = server.query(&["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = format!("cmdstat_{command}:calls=");
        let number = stats.lines().find_map(|row| row.strip_prefix(&line));
        let number = number.and_then(|row| row.split(',').next());
        number.map_or(0, |number| number.parse::<u64>().unwrap())
    };
    // A page is short: it keeps the server from other clients for as long as it lasts.
    assert!(calls("scan") >= 200_000 / 1024, "{stats}");
    // One inspects the name; the others are this test's manager, which renews it.
    assert!(calls("evalsha") + calls("eval") < 20, "{stats}");
    assert_eq!(calls("keys"), 0, "{stats}");
}

#[test]
fn unknown_kind_is_a_warning() {
    let server = Server::start();
    let _guard = labelled(&server, "").lock("mine").unwrap();
    let _: () = server.query(&["HSET", "fairlock:{newer}", "k", "gate/1"]);
    let _: () = server.query(&["HSET", "fairlock:{foreign}", "field", "value"]);
    let _: () = server.query(&["HSET", "fairlock:{version}", "k", "mutex/2"]);
    let _: () = server.query(&["SET", "fairlock:{text}", "value"]);
    let ended = exits(fairlock(&server, &["ls"]), 0);
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    let is_warning = |line: &str| line.starts_with("fairlock: warning: ");
    assert!(ended.stderr.lines().all(is_warning), "{ended:?}");
    for name in ["newer", "version", "foreign"] {
        ended.says(&format!("{name:?}"));
    }
}

/// The server dies when the list asks for its second page.
#[test]
fn outage_leaves_the_names_found_and_no_part_of_a_page() {
    // The names of the second are so few that they fit the pipe, which nobody reads yet.
    for (options, is_printed) in [
        (&[][..], true),
        (&["n10*", "--json"], true),
        (&["--prometheus"], false),
    ] {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let manager = labelled(&server, "").with(FOR_HOURS);
        let lock = |i| manager.lock(format!("n{i}")).unwrap();
        let _guards: Vec<_> = (0..1200).map(lock).collect();
        // The cursor of the first page is 0.
        let held = proxy.hold_request_when(|request| {
            contains("SCAN")(request) && !contains("\r\n$1\r\n0\r\n$5\r\nMATCH")(request)
        });
        let mut command = fairlock(&server, &["ls", "--command-timeout", "2s"]);
        command.args(options).env("FAIRLOCK_URL", proxy.url());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("it starts");
        held.wait(SLACK * 8);
        server.kill();
        let ended = Ended::from(child.wait_with_output().expect("it ends"));
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.starts_with("fairlock: "), "{ended:?}");
        assert_eq!(ended.stdout.contains("n10"), is_printed, "{ended:?}");
        assert!(is_printed || ended.stdout.is_empty(), "{ended:?}");
    }
}

#[test]
fn closed_pipe_ends_it_quietly() {
    let server = Server::start();
    let manager = labelled(&server, &"x".repeat(100));
    let lock = |i| manager.lock(format!("n{i}")).unwrap();
    let _guards: Vec<_> = (0..400).map(lock).collect();
    let head = ["bash", "-c", "set -o pipefail; \"$@\" | head -1", "bash"];
    for args in [&["ls"][..], &["ls", "--json"]] {
        let first = printed(wrapped(&head, &fairlock(&server, args)));
        assert_eq!(first.lines().count(), 1);
    }
    // Nothing is written while Redis is silent.
    server.stop();
    for args in [&["ls"][..], &["show", "n", "--follow"]] {
        let args = [args, &["--command-timeout", "1h"]].concat();
        let code = code_unread(&mut fairlock(&server, &args));
        assert_eq!(code, Some(0), "{args:?}");
    }
    server.cont();
}

#[test]
fn prometheus_has_series_of_names_or_totals_alone() {
    let server = Server::start();
    let page = |options: &[&str]| {
        let args = [&["ls", "--prometheus"], options].concat();
        printed(fairlock(&server, &args))
    };
    let none = page(&["--totals"]);
    let manager = labelled(&server, "");
    let odd = "a \"b\" \\ \n";
    let _held = manager.with(FOR_HOURS).lock(odd).unwrap();
    let _waiter = labelled(&server, "").enqueue(odd).unwrap();
    until_awaited(&manager, odd, 1);
    let _permit = manager.semaphore("s", 3).acquire(1).unwrap();
    let (all, totals) = (page(&[]), page(&["--totals"]));
    is_golden("ls.prometheus.txt", &masked(&format!("{all}{totals}")));
    for (page, series) in [
        (&all, "fairlock_locks{state=\"held\"} 2\n"),
        (&all, "fairlock_locks{state=\"lapsed\"} 0\n"),
        (&all, "kind=\"semaphore\"} 1\n"),
        (&totals, "fairlock_locks_holders 2\n"),
        (&totals, "fairlock_locks_waiters 1\n"),
        (&totals, "fairlock_locks_lapsed_seconds 0\n"),
    ] {
        assert!(page.contains(series), "{series}: {page}");
    }
    let number = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
    for time in ["hold_seconds", "wait_seconds"] {
        let with_time = |line: &&str| line.contains(time) && !line.starts_with('#');
        let values: Vec<f64> = all.lines().filter(with_time).filter_map(number).collect();
        let total = totals.lines().find(with_time).and_then(number);
        let longest = values.into_iter().fold(0.0, f64::max);
        assert!(longest > 0.0 && total >= Some(longest), "{all} {totals}");
    }
    assert_eq!(totals.lines().count(), none.lines().count(), "{totals}");
}
