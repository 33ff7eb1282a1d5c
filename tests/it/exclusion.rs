//! P1 and P2 across processes: one holder at a time, each with a larger fence than all before it.
//! On Redis alone, which the processes share.

use crate::fixtures::DEFAULT_TTL;
use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::Mutex,
    thread,
    time::Duration,
};

use crate::{
    managers::{assert_nothing_left, manager, patient},
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

/// For the whole run; its speed is not under test. On a busy machine each turn waits for several
/// processes to run.
const RUN: Duration = Duration::from_secs(600);

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
        child.join();
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
        assert!(
            pair[0].end < pair[1].start,
            "two processes held it at once: {pair:?}"
        );
        assert!(
            pair[0].fence < pair[1].fence,
            "a fence did not rise: {pair:?}"
        );
    }
    assert_nothing_left(&server, "till");
}

/// The scripts are those in the documentation, for a resource that lives in Redis. Two turns add to
/// it, in every order of their statements.
#[test]
fn p2_the_documented_scripts_lose_nothing_with_a_pause_anywhere() {
    let doc = include_str!("../../src/fence.rs");
    let scripts: Vec<String> = doc
        .split("/// ```lua\n")
        .skip(1)
        .filter_map(|rest| rest.split("/// ```").next())
        .map(|block| {
            let lines = block
                .lines()
                .map(|line| line.trim_start_matches("///").trim());
            lines.collect::<Vec<_>>().join("\n")
        })
        .collect();
    let [claim, write] = &scripts[..] else {
        panic!("the claim and the write, not {scripts:?}");
    };
    let server = Server::start();
    let mgr = manager(server.url(), DEFAULT_TTL);
    let fences = [(); 2].map(|()| mgr.lock("n").unwrap().fence().to_string());
    let mut refused = 0;
    // Each bit says whose statement is next: the older holder's, or the newer one's.
    for order in (0..64_u32).filter(|order| order.count_ones() == 3) {
        let (fence_key, data) = (format!("fence:{order}"), format!("data:{order}"));
        // The value that each turn has read, and whether it goes on. Its next statement.
        let mut turns = [(0, true, 0); 2];
        let mut accepted = 0;
        for turn in (0..6).map(|bit| (order >> bit & 1) as usize) {
            let fence = &fences[turn];
            let (read, goes_on, statement) = &mut turns[turn];
            *statement += 1;
            match statement {
                _ if !*goes_on => {}
                1 => {
                    *goes_on = server.query::<i64>(&["EVAL", claim, "1", &fence_key, fence]) == 1;
                }
                2 => *read = server.query::<Option<i64>>(&["GET", &data]).unwrap_or(0),
                _ => {
                    let more = [5, 7][turn];
                    let total = (*read + more).to_string();
                    let write = ["EVAL", write, "2", &fence_key, &data, fence, &total];
                    *goes_on = server.query::<i64>(&write) == 1;
                    accepted += if *goes_on { more } else { 0 };
                }
            }
        }
        let total = server.query::<Option<i64>>(&["GET", &data]).unwrap_or(0);
        assert_eq!(total, accepted, "order {order:06b}");
        assert!(turns[1].1, "the newer turn was refused: order {order:06b}");
        refused += i32::from(!turns[0].1);
    }
    assert_eq!(refused, 19, "of 20, all but the one in which it ends first");
}

/// Each process appends what it sees to a file at once, so that a kill loses nothing.
#[test]
fn p1_stopped_and_killed_holders_never_overlap_with_others() {
    const ROUNDS: usize = 6;
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut children: Vec<Child> = (0..4)
        .map(|_| Child::spawn("sampling_holder", &[&server.url(), path]))
        .collect();
    let mut newest = 0;
    let mut lapses = 0;
    for round in 0..ROUNDS {
        let mut next = |but: usize| {
            until_some(SOON, "another process is granted the lock", || {
                let mut granted = None;
                for (who, child) in children.iter().enumerate().filter(|(who, _)| *who != but) {
                    for said in child.pending_lines() {
                        let (fence, previous) = said
                            .split_once(' ')
                            .expect("a fence and what was before it");
                        lapses += usize::from(previous == "Lapsed");
                        let fence: u64 = fence.parse().unwrap();
                        if fence > newest {
                            newest = fence;
                            granted = Some(who);
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
    assert!(lapses > 0, "no process was stopped while it held the lock");
    for child in &mut children {
        child.close_stdin();
        child.join();
    }

    let mut seen: Vec<HeldSample> = Vec::new();
    for file in fs::read_dir(dir.path()).unwrap() {
        let said = fs::read_to_string(file.unwrap().path()).unwrap();
        seen.extend(said.lines().filter_map(HeldSample::parse));
    }
    seen.sort_by_key(|sample| (sample.fence, sample.after));
    let mut latest = &seen[0];
    for sample in &seen {
        assert!(
            sample.fence == latest.fence || latest.before <= sample.after,
            "both hold: {latest:?} {sample:?}"
        );
        if sample.before > latest.before {
            latest = sample;
        }
    }
}

/// `is_held` returned true with this fence at some moment between `before` and `after`.
#[derive(Debug)]
struct HeldSample {
    fence: u64,
    before: u64,
    after: u64,
}

impl HeldSample {
    /// `None` for the partial line that a killed process leaves.
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

/// Acquires the lock again and again, reports each grant, and records every time that `is_held`
/// returns true.
pub(crate) fn sampling_holder(args: &[String]) {
    let mgr = manager(args[0].as_str(), Duration::from_secs(1));
    let mut seen = File::create(Path::new(&args[1]).join(std::process::id().to_string())).unwrap();
    let stdin_closed = thread::spawn(|| while receive().is_some() {});
    while !stdin_closed.is_finished() {
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
            // The check of the time comes after the sample: the sample right after a stop is the
            // one that matters.
            if before - start > 100_000_000 {
                break;
            }
            // A pause between two polls.
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

/// Takes its turns in each of its threads, and writes what it saw to a file named after its pid.
pub(crate) fn turns(args: &[String]) {
    let mgr = patient(args[0].as_str());
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

/// Detects overlaps without the help of Redis: each holder creates the same file, and the file
/// system does not let two processes create it.
fn enter(dir: &Path) -> (u64, u64) {
    let inside = dir.join("inside");
    let start = machine_time();
    File::create_new(&inside).unwrap_or_else(|e| panic!("another holder is inside: {e}"));
    thread::yield_now();
    fs::remove_file(&inside).unwrap();
    (start, machine_time())
}
