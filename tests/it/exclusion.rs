//! P1 and P2: one holder at a time, each with a larger fence than all before, over processes. On Redis alone, which they
//! share.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::Mutex,
    thread,
    time::Duration,
};

use fairlock::{DEFAULT_TTL, MIN_TTL};

use crate::{
    managers::{assert_nothing_left, manager},
    support::{
        Child, Server,
        child::{receive, report},
        until_some,
    },
    worker::{SOON, machine_time},
};

const PROCESSES: usize = 8;
const THREADS: usize = 4;
const TURNS: usize = 157;

/// The whole run; its speed is not the point.
const RUN: Duration = Duration::from_secs(60);

#[test]
fn p1_turns_of_eight_processes_never_overlap_and_their_fences_rise() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|_| Child::spawn("turns", &[&server.url(), path]))
        .collect();
    for child in &children {
        child.expect("ready", SOON);
    }
    children.iter_mut().for_each(|child| child.send("go"));
    for child in &mut children {
        child.expect("done", RUN);
        child.close_stdin();
        child.join(SOON);
    }

    let mut turns = Vec::new();
    for child in &children {
        let said = fs::read_to_string(dir.path().join(child.pid().to_string())).unwrap();
        turns.extend(said.lines().map(Turn::parse));
    }
    assert_eq!(turns.len(), PROCESSES * THREADS * TURNS);
    assert!(turns.len() >= 5000);
    turns.sort_by_key(|turn| turn.start);
    for pair in turns.windows(2) {
        assert!(pair[0].end < pair[1].start, "two held it at once: {pair:?}");
        assert!(
            pair[0].fence < pair[1].fence,
            "a fence did not rise: {pair:?}"
        );
    }
    assert_nothing_left(&server, "till");
}

/// Each believer leaves what it sees in a file as it sees it, so that nothing is lost with one that is killed.
/// As it stands in the documentation, for a resource that lives in Redis.
#[test]
fn p2_the_documented_script_refuses_an_overtaken_holder() {
    let doc = include_str!("../../src/fence.rs");
    let block = doc
        .split("/// ```lua\n")
        .nth(1)
        .and_then(|rest| rest.split("/// ```").next())
        .expect("a script");
    let script: String = block
        .lines()
        .map(|line| line.trim_start_matches("///").trim())
        .collect::<Vec<_>>()
        .join("\n");
    let server = Server::start();
    let mgr = manager(server.url(), DEFAULT_TTL);
    let old = mgr.lock("n").unwrap().fence();
    let new = mgr.lock("n").unwrap().fence();
    let write = |value: &str, fence: u64| -> i64 {
        server.query(&[
            "EVAL",
            &script,
            "2",
            "data",
            "fence",
            value,
            &fence.to_string(),
        ])
    };
    assert_eq!(write("by the first", old), 1);
    assert_eq!(write("by the second", new), 1);
    assert_eq!(write("by the second again", new), 1);
    assert_eq!(write("late", old), 0, "fences {old} and {new}");
    assert_eq!(
        server.query::<String>(&["GET", "data"]),
        "by the second again"
    );
}

#[test]
fn p1_stopped_and_killed_holders_never_overlap_with_others() {
    const ROUNDS: usize = 6;
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut children: Vec<Child> = (0..4)
        .map(|_| Child::spawn("believers", &[&server.url(), path]))
        .collect();
    let (mut newest, mut lapses) = (0, 0);
    for round in 0..ROUNDS {
        let mut next = |but: usize| {
            until_some(SOON, "somebody else is granted the lock", || {
                let mut granted = None;
                for (who, child) in children.iter().enumerate().filter(|(who, _)| *who != but) {
                    for said in child.pending_lines() {
                        let (fence, previous) = said
                            .split_once(' ')
                            .expect("a fence and what was before it");
                        lapses += usize::from(previous == "Lapsed");
                        let fence: u64 = fence.parse().unwrap();
                        if fence > newest {
                            (newest, granted) = (fence, Some(who));
                        }
                    }
                }
                granted
            })
        };
        let holder = next(usize::MAX);
        children[holder].stop();
        next(holder);
        if round < ROUNDS - 2 {
            children[holder].cont();
        } else {
            children.remove(holder).kill();
        }
    }
    assert!(lapses > 0, "nobody was stopped while it held the lock");
    for child in &mut children {
        child.close_stdin();
        child.join(SOON);
    }

    let mut seen: Vec<Glimpse> = Vec::new();
    for file in fs::read_dir(dir.path()).unwrap() {
        let said = fs::read_to_string(file.unwrap().path()).unwrap();
        seen.extend(said.lines().filter_map(Glimpse::parse));
    }
    seen.sort_by_key(|glimpse| (glimpse.fence, glimpse.after));
    let mut latest = &seen[0];
    for glimpse in &seen {
        assert!(
            glimpse.fence == latest.fence || latest.before <= glimpse.after,
            "both hold: {latest:?} {glimpse:?}"
        );
        if glimpse.before > latest.before {
            latest = glimpse;
        }
    }
}

/// `is_held` was true with this fence, at some moment between two.
#[derive(Debug)]
struct Glimpse {
    fence: u64,
    before: u64,
    after: u64,
}

impl Glimpse {
    /// None of the half of a line that a killed process leaves.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line
            .strip_suffix('.')?
            .split(' ')
            .map(|n| n.parse().unwrap());
        Some(Self {
            fence: words.next()?,
            before: words.next()?,
            after: words.next()?,
        })
    }
}

/// Holds again and again, says of each grant that it came, and writes down all the while that it believes.
pub(crate) fn believers(args: &[String]) {
    let mgr = manager(args[0].as_str(), MIN_TTL);
    let mut seen = File::create(Path::new(&args[1]).join(std::process::id().to_string())).unwrap();
    let parting = thread::spawn(|| while receive().is_some() {});
    while !parting.is_finished() {
        let guard = mgr.lock("till").unwrap();
        let fence = guard.fence();
        report(format_args!("{fence} {:?}", guard.previous_holder()));
        let start = machine_time();
        loop {
            let before = machine_time();
            if !guard.is_held() {
                break;
            }
            let line = format!("{fence} {before} {}.\n", machine_time());
            seen.write_all(line.as_bytes()).unwrap();
            // Not before the look: what counts is what is seen on waking from a stop.
            if before - start > 100_000_000 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[derive(Debug)]
struct Turn {
    fence: u64,
    start: u64,
    end: u64,
}

impl Turn {
    fn parse(line: &str) -> Self {
        let mut words = line.split(' ').map(|n| n.parse().unwrap());
        let mut next = || words.next().unwrap();
        Self {
            fence: next(),
            start: next(),
            end: next(),
        }
    }
}

/// Takes its turns in each of its threads, and leaves what it saw in a file named by its pid.
pub(crate) fn turns(args: &[String]) {
    let mgr = manager(args[0].as_str(), DEFAULT_TTL);
    let dir = Path::new(&args[1]);
    let taken = Mutex::new(String::new());
    report("ready");
    receive();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    let guard = mgr.lock("till").unwrap();
                    let (start, end) = enter(dir);
                    assert!(guard.is_held());
                    let fence = guard.fence();
                    drop(guard);
                    taken
                        .lock()
                        .unwrap()
                        .push_str(&format!("{fence} {start} {end}\n"));
                }
            });
        }
    });
    fs::write(
        dir.join(std::process::id().to_string()),
        taken.into_inner().unwrap(),
    )
    .unwrap();
    report("done");
}

/// The overlap detector, of which Redis knows nothing: the file is made by whoever is inside, and the
/// file system lets nobody make it twice.
fn enter(dir: &Path) -> (u64, u64) {
    let inside = dir.join("inside");
    let start = machine_time();
    File::create_new(&inside).unwrap_or_else(|e| panic!("somebody else is inside: {e}"));
    thread::yield_now();
    fs::remove_file(&inside).unwrap();
    (start, machine_time())
}
