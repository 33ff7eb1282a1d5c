//! `fairlock ls`, and what several commands show of the dead.

use crate::support::is_redis_62;
use crate::*;

/// Long enough for every test, whatever the clock does.
const FOR_HOURS: LockOptions = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600));
const HOUR: i64 = 3600 * 1_000_000;

/// What `ls` prints.
fn ls(server: &Server, args: &str) -> String {
    printed(fairlock(server, &format!("ls {args}")))
}

/// The first column of each row.
#[track_caller]
fn names(server: &Server, args: &str) -> Vec<String> {
    let page = ls(server, args);
    let names = page.lines().skip(1).map(|row| row.split(' ').next());
    names.map(|name| name.unwrap_or("").to_owned()).collect()
}

/// Locks of these numbers.
fn numbered(manager: &LockManager, count: u32) -> Vec<LockGuard> {
    let lock = |i| manager.lock(format!("n{i}")).unwrap();
    (0..count).map(lock).collect()
}

#[test]
fn filters_pick_names_and_each_must_hold() {
    let server = Server::start();
    // Nothing is held.
    assert_eq!(ls(&server, "--json"), "");
    Terminal::start(&fairlock(&server, "ls")).shows("nothing is held");
    let manager = labelled(&server, "nightly job");
    let _held = manager.lock("held").unwrap();
    let _awaited = manager.lock("awaited").unwrap();
    let _waiter = manager.enqueue("awaited").unwrap();
    until_queued(&server, "awaited", 1);
    lapse(&server, "lapsed");
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(60)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    for (args, expected) in [
        ("", &["awaited", "cooling", "held", "lapsed"][..]),
        ("*a*ed", &["awaited", "lapsed"]),
        ("--held", &["awaited", "held"]),
        ("--lapsed", &["lapsed"]),
        ("--awaited", &["awaited"]),
        ("--held --lapsed", &[]),
        ("h* --held", &["held"]),
    ] {
        assert_eq!(names(&server, args), expected, "{args}");
        let found = ls(&server, &format!("{args} --json --sort name"));
        let name = |line| serde_json::from_str::<Value>(line).unwrap()["name"].clone();
        let found: Vec<Value> = found.lines().map(name).collect();
        assert_eq!(found, expected, "{args}");
    }
    let parts = format!(" held | {} |nightly job| ago|mutex", std::process::id());
    has_parts(&ls(&server, "awaited"), &parts);
}

/// This machine's clock is hours behind the server's, then hours ahead.
#[test]
fn ages_and_the_order_are_by_the_servers_clock() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let manager = manager(server).with(FOR_HOURS);
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
    until_queued(server, "a", 2);
    for (key, order) in [
        ("name", ["a", "b", "c"]),
        ("held", ["b", "c", "a"]),
        ("waiters", ["a", "c", "b"]),
        ("waited", ["c", "a", "b"]),
        ("left", ["c", "b", "a"]),
    ] {
        assert_eq!(names(server, &format!("--sort {key}")), order, "{key}");
        let mut turned = names(server, &format!("--sort {key} -r"));
        turned.reverse();
        assert_eq!(turned, order, "{key}");
    }
    assert_eq!(names(server, "--older 90m"), ["b"]);
    assert_eq!(names(server, "--older 3h"), [""; 0]);
    has_parts(&ls(server, "c"), " 1h 00m ");
    shifted.step_to(3 * HOUR);
    assert_eq!(names(server, "--older 5h30m"), ["b"]);
}

#[test]
fn no_command_goes_through_all_foreign_keys() {
    let enable = ["--enable-debug-command", "yes"];
    let server = Server::start_with(if is_redis_62() { &[] } else { &enable });
    let manager = manager(&server);
    let _guard = manager.lock("mine").unwrap();
    server.query::<()>(&["DEBUG", "POPULATE", "200000", "foreign"]);
    server.query::<()>(&["CONFIG", "RESETSTAT"]);
    assert_eq!(names(&server, ""), ["mine"]);
    // A page is short: it keeps the server from other clients for as long as it lasts.
    assert!(server.calls("scan") >= 200_000 / 1024);
    // One inspects the name; the others are this test's manager, which renews it.
    assert!(server.calls("evalsha") + server.calls("eval") < 20);
    assert_eq!(server.calls("keys"), 0);
}

#[test]
fn unknown_kind_is_a_warning() {
    let server = Server::start();
    let _guard = manager(&server).lock("mine").unwrap();
    for (name, value) in [("newer", "gate/1"), ("version", "mutex/2")] {
        server.query::<()>(&["HSET", &format!("fairlock:{{{name}}}"), "k", value]);
    }
    server.query::<()>(&["HSET", "fairlock:{foreign}", "field", "value"]);
    // A list looks at no other type.
    server.query::<()>(&["SET", "fairlock:{text}", "value"]);
    let ended = exits(fairlock(&server, "ls"), 0);
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    let is_warning = |line: &str| line.starts_with("fairlock: warning: ");
    assert!(ended.stderr.lines().all(is_warning), "{ended:?}");
    ended.says("passed over 3 records: ");
}

/// The server dies when the list asks for its second page.
#[test]
fn outage_leaves_the_names_found_and_no_part_of_a_page() {
    for (options, is_printed) in [("", true), ("n10* --json", true), ("--prometheus", false)] {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let _guards = numbered(&manager(&server).with(FOR_HOURS), 1200);
        // The cursor of the first page is 0.
        let held = proxy.hold_request_when(|request| {
            contains("SCAN")(request) && !contains("\r\n$1\r\n0\r\n$5\r\nMATCH")(request)
        });
        let command = at(&proxy.url(), &format!("ls --command-timeout 2s {options}"));
        let mut run = Run::start(command);
        held.wait(SLACK * 8);
        server.kill();
        let ended = run.ended();
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.starts_with("fairlock: "), "{ended:?}");
        assert_eq!(ended.stdout.contains("n10"), is_printed, "{ended:?}");
        assert!(is_printed || ended.stdout.is_empty(), "{ended:?}");
    }
}

/// A table of what the other nodes have is better than nothing. The exit code says that it is not
/// all.
#[test]
fn stopped_node_of_a_cluster_hides_only_its_own_names() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let manager = patient(&set.url(), "nightly");
    let names = [0, 1, 2].map(|master| set.name_on(master, 0));
    let _guards = names.each_ref().map(|name| manager.lock(name).unwrap());
    set.node(0).stop();
    let about = format!("fairlock: redis at {} is unavailable", set.node(0).addr());
    let show = |name: &str| format!("show {name}");
    for (line, code, found) in [
        ("ls --sort name", 69, &names[1..]),
        ("ls --sort name --json", 69, &names[1..]),
        (&show(&names[0]), 69, &[]),
        (&show(&names[1]), 0, &names[1..2]),
    ] {
        let line = format!("{line} --command-timeout 2s");
        let ended = exits(at(&set.url(), &line), code);
        let is_found = |name: &&String| ended.stdout.contains(name.as_str());
        let shown: Vec<&String> = names.iter().filter(is_found).collect();
        assert_eq!(shown, found.iter().collect::<Vec<_>>(), "{ended:?}");
        assert_eq!(ended.stderr.starts_with(&about), code == 69, "{ended:?}");
        assert!(ended.stderr.lines().count() < 2, "{ended:?}");
    }
    set.node(0).cont();
}

#[test]
fn closed_pipe_ends_it_quietly() {
    let server = Server::start();
    let _guards = numbered(&labelled(&server, &"x".repeat(100)), 400);
    let head = "bash -c 'set -o pipefail; \"$@\" | head -1' bash";
    for line in ["ls", "ls --json"] {
        let first = printed(wrapped(head, &fairlock(&server, line)));
        assert_eq!(first.lines().count(), 1);
    }
    // Nothing is written while Redis is silent.
    server.stop();
    for line in ["ls", "show n --follow"] {
        let line = format!("{line} --command-timeout 1h");
        let code = code_unread(&mut fairlock(&server, &line), || ());
        assert_eq!(code, Some(0), "{line}");
    }
    server.cont();
}

#[test]
fn prometheus_has_series_of_names_or_totals_alone() {
    let server = Server::start();
    let none = ls(&server, "--prometheus --totals");
    let manager = manager(&server);
    let odd = "a \"b\" \\ \n";
    let _held = manager.with(FOR_HOURS).lock(odd).unwrap();
    let _waiter = manager.enqueue(odd).unwrap();
    until_queued(&server, odd, 1);
    let _permit = manager.semaphore("s", 3).acquire(1).unwrap();
    let all = ls(&server, "--prometheus");
    let totals = ls(&server, "--prometheus --totals");
    // The counts are always the same, the times are not.
    let mask = |line: &str| match line.rsplit_once(' ') {
        Some((series, time)) if time.contains('.') && time.parse::<f64>().is_ok() => {
            format!("{series} N\n")
        }
        _ => format!("{line}\n"),
    };
    let pages: String = format!("{all}{totals}").lines().map(mask).collect();
    is_golden("ls.prometheus.txt", &pages);
    // The time of a total is that of the name which has the longest.
    let longest = |page: &str, series: &str| {
        let lines = page.lines().filter(|line| line.starts_with(series));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.fold(0.0, f64::max)
    };
    for time in ["hold_seconds", "wait_seconds"] {
        let one = longest(&all, &format!("fairlock_lock_{time}"));
        let total = longest(&totals, &format!("fairlock_locks_{time}"));
        assert!(0.0 < one && one <= total, "{all} {totals}");
    }
    assert_eq!(totals.lines().count(), none.lines().count(), "{totals}");
}

/// A holder and two waiters die: first all show them as silent, then the first run without waiting
/// gets the lock.
#[test]
fn no_wait_takes_a_lock_that_only_the_dead_want() {
    let server = Server::start();
    let manager = manager(&server);
    let mut dead = vec![Run::asleep(&server, "--ttl 2s k")];
    for waiters in 1..=2 {
        let line = "run --ttl 2s k -- true";
        dead.push(Run::start(fairlock(&server, line)));
        until_queued(&server, "k", waiters);
    }
    // These live on, and are not marked.
    let _guard = manager.lock("alive").unwrap();
    let _waiter = labelled(&server, "").enqueue("alive").unwrap();
    until_queued(&server, "alive", 1);
    assert_eq!(names(&server, "--awaited"), ["alive", "k"]);
    for run in &mut dead {
        run.signal(Signal::KILL);
        run.ended();
    }
    until(LONG, "nobody alive waits", || {
        names(&server, "--awaited") == ["alive"]
    });
    let row = ls(&server, "k");
    let is_marked = row.contains("lapsed") && row.contains(" ago, silent");
    assert!(is_marked, "{row}");
    let queue = printed(fairlock(&server, "show k"));
    assert_eq!(queue.matches(" ago, silent").count(), 2, "{queue}");
    let why = printed(fairlock(&server, "why-waiting k"));
    assert!(why.contains("2 waiting, 2 of them not heard of"), "{why}");
    for line in ["ls alive", "show alive", "why-waiting alive"] {
        let text = printed(fairlock(&server, line));
        let is_marked = text.contains("silent") || text.contains("not heard of");
        assert!(!is_marked, "{text}");
    }
    let started = Instant::now();
    exits(fairlock(&server, "run --no-wait k -- true"), 0);
    assert!(started.elapsed() < Duration::from_secs(1) + SLACK);
    assert!(info(&server, "k").is_none());
}
