//! P1 and P2: one holder at a time, each with a larger fence than all before, over processes. On Redis alone, which they
//! share.

use std::{
    fs::{self, File},
    path::Path,
    sync::Mutex,
    thread,
    time::Duration,
};

use fairlock::DEFAULT_TTL;

use crate::{
    managers::{assert_nothing_left, manager},
    support::{
        Kid, Server,
        kid::{hear, say},
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
    let mut kids: Vec<Kid> = (0..PROCESSES).map(|_| Kid::spawn("turns", &[&server.url(), path])).collect();
    for kid in &kids {
        kid.expect("ready", SOON);
    }
    kids.iter_mut().for_each(|kid| kid.tell("go"));
    for kid in &mut kids {
        kid.expect("done", RUN);
        kid.hush();
        kid.join(SOON);
    }

    let mut turns = Vec::new();
    for kid in &kids {
        let said = fs::read_to_string(dir.path().join(kid.pid().to_string())).unwrap();
        turns.extend(said.lines().map(Turn::parse));
    }
    assert_eq!(turns.len(), PROCESSES * THREADS * TURNS);
    assert!(turns.len() >= 5000);
    turns.sort_by_key(|turn| turn.start);
    for pair in turns.windows(2) {
        assert!(pair[0].end < pair[1].start, "two held it at once: {pair:?}");
        assert!(pair[0].fence < pair[1].fence, "a fence did not rise: {pair:?}");
    }
    assert_nothing_left(&server, "till");
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
        Self { fence: next(), start: next(), end: next() }
    }
}

/// Takes its turns in each of its threads, and leaves what it saw in a file named by its pid.
pub(crate) fn turns(args: &[String]) {
    let mgr = manager(args[0].as_str(), DEFAULT_TTL);
    let dir = Path::new(&args[1]);
    let taken = Mutex::new(String::new());
    say("ready");
    hear();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    let guard = mgr.lock("till").unwrap();
                    let (start, end) = enter(dir);
                    assert!(guard.is_held());
                    let fence = guard.fence();
                    drop(guard);
                    taken.lock().unwrap().push_str(&format!("{fence} {start} {end}\n"));
                }
            });
        }
    });
    fs::write(dir.join(std::process::id().to_string()), taken.into_inner().unwrap()).unwrap();
    say("done");
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
