//! `fairlock ls`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use fairlock::LockOptions;

use crate::look::{Lapsed, fairlock, labelled, objects, until_awaited};
use crate::process::{Ended, end};
use crate::run::LONG;
use crate::support::{Proxy, SLACK, Server, Shifted, contains, is_redis_62, until, until_some};
use crate::terminal::Terminal;

/// Long enough for every test, whatever the clock does.
const FOR_HOURS: LockOptions = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600));
const HOUR: i64 = 3600 * 1_000_000;

/// The first column of each row.
fn names(server: &Server, args: &[&str]) -> Vec<String> {
    let mut all = vec!["ls"];
    all.extend(args);
    let ended = end(&mut fairlock(server, &all));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = ended.stdout.lines().skip(1);
    rows.map(|row| row.split(' ').next().expect("a name").to_owned())
        .collect()
}

#[test]
fn a_row_shows_holder_times_and_queue() {
    let server = Server::start();
    let manager = labelled(&server, "nightly job");
    let guard = manager.lock("invoices:42").unwrap();
    let waiter = labelled(&server, "").enqueue("invoices:42").unwrap();
    until_awaited(&manager, "invoices:42", 1);
    let ended = end(&mut fairlock(&server, &["ls"]));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let [titles, row] = ended.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("a row and its titles: {ended:?}");
    };
    for title in [
        "NAME", "KIND", "STATE", "HELD", "LEFT", "WAITERS", "WAITED", "PREVIOUS",
    ] {
        assert!(titles.contains(title), "{title}: {titles}");
    }
    let holder = manager
        .inspect("invoices:42")
        .unwrap()
        .unwrap()
        .holder
        .unwrap();
    let pid = std::process::id().to_string();
    let fence = guard.fence().to_string();
    for part in [
        "invoices:42",
        "mutex",
        "held",
        "nightly job",
        &holder.host,
        &pid,
        &fence,
    ] {
        assert!(row.contains(part), "{part}: {row}");
    }
    drop(waiter);
}

#[test]
fn filters_pick_names_and_each_must_hold() {
    let server = Server::tcp();
    let manager = labelled(&server, "");
    let _held = manager.lock("held").unwrap();
    let _awaited = manager.lock("awaited").unwrap();
    let _waiter = manager.enqueue("awaited").unwrap();
    until_awaited(&manager, "awaited", 1);
    let _lapsed = Lapsed::of(&server, "lapsed");
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    assert_eq!(
        names(&server, &[]),
        ["awaited", "cooling", "held", "lapsed"]
    );
    assert_eq!(names(&server, &["*a*ed"]), ["awaited", "lapsed"]);
    assert_eq!(names(&server, &["--held"]), ["awaited", "held"]);
    assert_eq!(names(&server, &["--lapsed"]), ["lapsed"]);
    assert_eq!(names(&server, &["--awaited"]), ["awaited"]);
    assert_eq!(names(&server, &["--held", "--lapsed"]), [""; 0]);
    assert_eq!(names(&server, &["h*", "--held"]), ["held"]);
}

/// This machine's clock is hours behind the server's, then hours ahead.
#[test]
fn ages_are_differences_to_the_servers_clock() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let manager = labelled(server, "").with(FOR_HOURS);
    shifted.step_to(-3 * HOUR);
    let _old = manager.lock("old").unwrap();
    shifted.step_to(-2 * HOUR);
    let _new = manager.lock("new").unwrap();
    let _waiter = manager.enqueue("new").unwrap();
    assert_eq!(names(server, &["--older", "30m"]), ["old"]);
    assert_eq!(names(server, &["--older", "2h"]), [""; 0]);
    let row = end(&mut fairlock(server, &["ls", "old"])).stdout;
    assert!(row.contains(" 1h 00m "), "{row}");
    shifted.step_to(3 * HOUR);
    assert_eq!(names(server, &["--older", "5h30m"]), ["old"]);
    assert_eq!(names(server, &["--older", "4h"]), ["new", "old"]);
}

#[test]
fn rows_come_in_the_order_that_sort_names() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let manager = labelled(server, "").with(FOR_HOURS);
    let lock = |name: &str, hours: u64| {
        let lease = Duration::from_secs(hours * 3600);
        let options = LockOptions::new().fixed_lease(lease);
        manager.with(options).lock(name).unwrap()
    };
    let _b = lock("b", 20);
    shifted.step_to(HOUR);
    let _c = lock("c", 10);
    let _one = manager.enqueue("c").unwrap();
    shifted.step_to(2 * HOUR);
    let _a = lock("a", 24);
    let _two = [manager.enqueue("a").unwrap(), manager.enqueue("a").unwrap()];
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
}

#[test]
fn json_has_one_object_per_line_as_the_library_gives_it() {
    let server = Server::start();
    let manager = labelled(&server, "a \"label\"").with(FOR_HOURS);
    let _guards = ["a", "b\nc"].map(|name| manager.lock(name).unwrap());
    let _permits = manager.semaphore("s", 3).acquire_many(2).unwrap();
    let _reader = manager.rw_lock("r").read().unwrap();
    let ended = end(&mut fairlock(&server, &["ls", "--json", "--sort", "name"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for (mut shown, name) in objects(&ended.stdout)
        .into_iter()
        .zip(["a", "b\nc", "r", "s"])
    {
        let mut info = manager.inspect(name).unwrap().expect("it is held");
        (info.seen_at, info.time_left) = (shown.seen_at, shown.time_left);
        if let Some(holder) = &mut shown.holder {
            assert_eq!(holder.label, "a \"label\"");
        }
        assert_eq!(shown, info);
    }
    assert_eq!(ended.stdout.lines().count(), 4);
}

#[test]
fn a_table_fits_the_window() {
    let server = Server::start();
    let manager = labelled(&server, "数据库迁移任务").with(FOR_HOURS);
    let long = "a/very/long/name/".repeat(20);
    let names = [
        "short",
        "数据库:用户表:很长的名字:真的很长",
        "🦀🦀🦀",
        &long,
        "\x1b[2Jevil",
    ];
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
    let piped = end(&mut fairlock(&server, &["ls"])).stdout;
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
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        let number = line.and_then(|line| line.split(',').next());
        number.map_or(0, |number| number.parse::<u64>().unwrap())
    };
    // A page is short: it keeps the server from other clients for as long as it lasts.
    assert!(calls("scan") >= 200_000 / 1024, "{stats}");
    // One inspects the name; the others are this test's manager, which renews it.
    assert!(calls("evalsha") + calls("eval") < 20, "{stats}");
    assert_eq!(calls("keys"), 0, "{stats}");
}

#[test]
fn an_unknown_kind_is_a_warning() {
    let server = Server::start();
    let _guard = labelled(&server, "").lock("mine").unwrap();
    let _: () = server.query(&["HSET", "fairlock:{newer}", "k", "gate/1"]);
    let _: () = server.query(&["HSET", "fairlock:{foreign}", "field", "value"]);
    let _: () = server.query(&["SET", "fairlock:{text}", "value"]);
    let ended = end(&mut fairlock(&server, &["ls"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    let warnings: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        warnings
            .iter()
            .all(|line| line.starts_with("fairlock: warning: ")),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("\"newer\""), "{ended:?}");
}

#[test]
fn a_list_that_fails_midway_keeps_its_lines_and_exits_69() {
    let server = Server::start();
    let manager = labelled(&server, &"x".repeat(100)).with(FOR_HOURS);
    let many = 1500;
    let _guards: Vec<_> = (0..many)
        .map(|i| manager.lock(format!("n{i}")).unwrap())
        .collect();
    let mut command = fairlock(&server, &["ls", "--json", "--command-timeout", "2s"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = vec![lines.next().unwrap().unwrap()];
    // A pipe holds 64 KiB, and the list is 20 times that: most of it was not asked for yet.
    server.kill();
    seen.extend(lines.map(Result::unwrap));
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(69), "{stderr}");
    assert!(stderr.starts_with("fairlock: "), "{stderr}");
    assert!(!seen.is_empty() && seen.len() < many, "{}", seen.len());
    objects(&seen.join("\n"));
}

/// The server dies when the list asks for its second page.
fn ends_on_the_second_page(options: &[&str]) -> Ended {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = labelled(&server, "").with(FOR_HOURS);
    let _guards: Vec<_> = (0..1200)
        .map(|i| manager.lock(format!("n{i}")).unwrap())
        .collect();
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
    ended
}

#[test]
fn names_found_before_an_outage_are_in_the_table() {
    let ended = ends_on_the_second_page(&[]);
    assert!(ended.stdout.lines().count() > 1, "{ended:?}");
}

#[test]
fn a_search_that_takes_long_says_so_on_a_terminal() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let _guard = labelled(&server, "").lock("mine").unwrap();
    let held = proxy.hold_request_when(contains("SCAN"));
    let mut command = fairlock(&server, &["ls", "--command-timeout", "10s"]);
    command.env("FAIRLOCK_URL", proxy.url());
    let mut terminal = Terminal::start(&command, 20, 80);
    terminal.shows("going through all keys");
    held.release();
    terminal.shows("mine");
    terminal.program.wait().expect("it ends");
    assert!(!terminal.text().contains("going"), "{}", terminal.text());
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let server = Server::start();
    let manager = labelled(&server, &"x".repeat(100));
    let _guards: Vec<_> = (0..400)
        .map(|i| manager.lock(format!("n{i}")).unwrap())
        .collect();
    for more in ["", "--json"] {
        let shell = fairlock(&server, &[]);
        let line = format!(
            "set -o pipefail; {} ls {more} | head -1",
            env!("CARGO_BIN_EXE_fairlock")
        );
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &line]);
        for (name, value) in shell.get_envs() {
            match value {
                Some(value) => bash.env(name, value),
                None => bash.env_remove(name),
            };
        }
        let ended = end(&mut bash);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{more}");
        assert_eq!(ended.stdout.lines().count(), 1);
    }
}

#[test]
fn nothing_in_use_is_an_empty_list() {
    let server = Server::start();
    let ended = end(&mut fairlock(&server, &["ls", "--json"]));
    assert_eq!(
        (ended.code, &*ended.stdout, &*ended.stderr),
        (Some(0), "", "")
    );
    let mut terminal = Terminal::start(&fairlock(&server, &["ls"]), 10, 60);
    terminal.shows("nothing is held");
    assert_eq!(terminal.program.wait().unwrap().code(), Some(0));
}

/// The value of a series of `ls --prometheus`.
fn series(page: &str, series: &str) -> Option<f64> {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().expect("a number"))
}

#[test]
fn prometheus_page_has_all_names_and_states() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let odd = "a \"b\" \\ \n";
    let _held = manager.with(FOR_HOURS).lock(odd).unwrap();
    let _waiter = labelled(&server, "").enqueue(odd).unwrap();
    until_awaited(&manager, odd, 1);
    let _permit = manager.semaphore("s", 3).acquire().unwrap();
    let ended = end(&mut fairlock(&server, &["ls", "--prometheus"]));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    let value = |name: &str| series(&ended.stdout, name);
    assert_eq!(value("fairlock_locks{state=\"held\"}"), Some(2.0));
    assert_eq!(value("fairlock_locks{state=\"lapsed\"}"), Some(0.0));
    let labels = r#"{name="a \"b\" \\ \n",kind="mutex"}"#;
    for (gauge, is_right) in [
        (
            "fairlock_lock_holders",
            &(|n| n == 1.0) as &dyn Fn(f64) -> bool,
        ),
        ("fairlock_lock_waiters", &|n| n == 1.0),
        ("fairlock_lock_hold_seconds", &|n| n > 0.0),
        ("fairlock_lock_wait_seconds", &|n| n > 0.0),
    ] {
        let found = value(&format!("{gauge}{labels}"));
        assert!(found.is_some_and(is_right), "{gauge}: {}", ended.stdout);
    }
    let permit = r#"{name="s",kind="semaphore"}"#;
    assert_eq!(value(&format!("fairlock_lock_holders{permit}")), Some(1.0));
    assert_eq!(value(&format!("fairlock_lock_wait_seconds{permit}")), None);
    let typed = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("# TYPE "));
    assert_eq!(typed.count(), 6);
}

#[test]
fn prometheus_page_is_whole_or_absent() {
    let ended = ends_on_the_second_page(&["--prometheus"]);
    assert_eq!(ended.stdout, "", "{ended:?}");
}

#[test]
fn ls_and_watch_end_without_a_reader_while_redis_is_silent() {
    let server = Server::start();
    server.stop();
    for args in [&["ls"][..], &["watch", "n"]] {
        let args = [args, &["--command-timeout", "1h"]].concat();
        let mut command = fairlock(&server, &args);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let ended = until_some(SLACK * 8, "it ends", || {
            child.try_wait().expect("its state")
        });
        assert_eq!(ended.code(), Some(0), "{args:?}");
    }
    server.cont();
}

#[test]
fn prometheus_totals_have_no_series_of_names() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let page = || {
        let ended = end(&mut fairlock(&server, &["ls", "--prometheus", "--totals"]));
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        ended.stdout
    };
    let none = page();
    assert_eq!(series(&none, "fairlock_locks_holders"), Some(0.0), "{none}");
    assert!(!none.contains("-0"), "{none}");
    let long = manager.with(FOR_HOURS);
    let _held: Vec<_> = (0..20)
        .map(|number| long.lock(format!("n{number}")).unwrap())
        .collect();
    let _permits = manager.semaphore("s", 3).acquire().unwrap();
    let _waiter = labelled(&server, "").enqueue("n0").unwrap();
    until_awaited(&manager, "n0", 1);
    let some = page();
    assert_eq!(some.lines().count(), none.lines().count(), "{some}");
    assert!(!some.contains("name="), "{some}");
    let value = |name: &str| series(&some, name);
    assert_eq!(value("fairlock_locks{state=\"held\"}"), Some(21.0));
    assert_eq!(value("fairlock_locks_holders"), Some(21.0));
    assert_eq!(value("fairlock_locks_waiters"), Some(1.0));
    assert!(value("fairlock_locks_hold_seconds").is_some_and(|time| time > 0.0));
    assert!(value("fairlock_locks_wait_seconds").is_some_and(|time| time > 0.0));
    assert_eq!(value("fairlock_locks_lapsed_seconds"), Some(0.0));
    let refused = end(&mut fairlock(&server, &["ls", "--totals"]));
    assert_eq!(refused.code, Some(64), "{refused:?}");
}
