//! The soak: workers in several processes use the same locks, of every kind, while a fault is
//! injected every few hundred ms. Each process logs what it sees. Afterwards a checker that knows
//! nothing of the engine decides from these logs alone whether the promises were kept.
//!
//!     tests/run.sh --test soak                                       for a minute
//!     tests/run.sh --test soak -- --seconds 600                      for ten
//!     tests/run.sh --test soak -- --seconds 30 --without-fences
//!
//! In the last of these the resource ignores fences, workers are paused, and the run fails unless
//! that is found unsafe.
//!
//! `FAIRLOCK_SEED` determines the faults and their order; their timing depends on the machine. The
//! logs of a failed run are kept, and `--check DIR` checks them again.

#[allow(dead_code, reason = "some of it is for the target `partitions`")]
mod checker;
mod fault_injector;
mod history;
mod history_writer;
mod resource;
mod rng;
#[path = "../it/support/mod.rs"]
mod support;
#[allow(dead_code, reason = "some of it is for the target `partitions`")]
mod worker;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use checker::{Finding, Rule, Timings};
use fault_injector::{FaultInjector, FaultMix};
use history::History;
use history_writer::HistoryWriter;
use resource::Fences;
use support::{SLACK, Server};

const WORKERS: usize = 4;

/// Short, like the timings derived from it, so that leases end often; see docs/CONFIGURATION.md.
const TTL: Duration = Duration::from_secs(2);
const TIMINGS: Timings = Timings {
    ttl: TTL,
    check_period: Duration::from_millis(250),
    command_timeout: Duration::from_millis(200),
    horizon: Duration::from_secs(1),
    slack: SLACK,
};

/// Each worker holds a lock for at most four seconds, one after the other.
const FINISH_WITHIN: Duration = Duration::from_secs(60);

struct Options {
    lasting: Duration,
    fences: Fences,
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    if env::var_os("FAIRLOCK_CHILD").is_some() {
        support::child::play(&[("work", worker::work)]);
        return ExitCode::SUCCESS;
    }
    let options = Options::parse(env::args().skip(1));
    let dir = options.check.clone().unwrap_or_else(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-{}", process::id()));
        fs::create_dir_all(&dir).expect("a directory for the history");
        run(&dir, &options);
        dir
    });
    let findings = report(&dir);
    let violated: Vec<Rule> = findings
        .iter()
        .filter(|f| !f.violations.is_empty())
        .map(|f| f.rule)
        .collect();
    let expected: &[Rule] = if options.fences == Fences::Ignored {
        &[Rule::Resource]
    } else {
        &[]
    };
    // A promise that was never checked counts as untested, not as kept.
    let untested: Vec<Rule> = findings
        .iter()
        .filter(|f| f.checked == 0 && f.rule != Rule::Crash)
        .map(|f| f.rule)
        .collect();
    if violated == expected && untested.is_empty() {
        println!(
            "soak: passed: {}",
            if expected.is_empty() {
                "safe"
            } else {
                "unsafe without fences"
            }
        );
        if options.check.is_none() {
            let _ = fs::remove_dir_all(dir);
        }
        return ExitCode::SUCCESS;
    }
    println!(
        "soak: FAILED: violations of {violated:?}, expected {expected:?}; untested {untested:?}; see {}",
        dir.display()
    );
    ExitCode::FAILURE
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Options {
        let mut options = Options {
            lasting: Duration::from_secs(60),
            fences: Fences::Checked,
            check: None,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seconds" => {
                    let seconds = args
                        .next()
                        .and_then(|n| n.parse().ok())
                        .expect("--seconds wants a number");
                    options.lasting = Duration::from_secs(seconds);
                }
                "--without-fences" => options.fences = Fences::Ignored,
                "--check" => {
                    options.check = Some(args.next().expect("--check wants a directory").into())
                }
                other => panic!("no such option: {other}"),
            }
        }
        options
    }
}

fn run(dir: &Path, options: &Options) {
    let seed = env::var("FAIRLOCK_SEED")
        .ok()
        .map_or_else(|| process::id().into(), |s| s.parse().expect("a number"));
    println!(
        "soak: {:?} from FAIRLOCK_SEED={seed}, {WORKERS} workers, fences {:?}",
        options.lasting, options.fences
    );
    // Writes made before a reply stay in the kernel when the server is killed. With an fsync policy
    // the server could delay its writes.
    let server = Server::tcp_with(&["--appendonly", "yes", "--appendfsync", "no"]);
    let socket_dir = tempfile::tempdir().expect("a directory for a socket");
    let socket = socket_dir.path().join("resource");
    resource::serve(&socket, HistoryWriter::new(dir, "resource"), options.fences);
    let history = Arc::new(HistoryWriter::new(dir, "-"));
    thread::spawn({
        let history = Arc::clone(&history);
        move || history.watch_clock()
    });
    let paths = [dir, &socket].map(|path| path.to_str().expect("our paths are UTF-8"));
    let mut injector = FaultInjector::new(&server, &history, TIMINGS, paths, seed);
    injector.start_workers(WORKERS);
    let mix = if options.fences == Fences::Ignored {
        FaultMix::Pauses
    } else {
        FaultMix::Everything
    };
    injector.run(mix, options.lasting);
    let calm = Instant::now();
    if let Err(stuck) = injector.finish(FINISH_WITHIN) {
        println!("soak: workers did not end within {FINISH_WITHIN:?}: {stuck}");
    }
    println!(
        "soak: after the last fault all workers ended within {:.1?}",
        calm.elapsed()
    );
    for key in server.query::<Vec<String>>(&["KEYS", "*"]) {
        let left: i64 = server.query(&["PTTL", &key]);
        history.log(format_args!("key {} {left}", key.replace(' ', "_")));
    }
}

/// Prints the findings, and returns them.
fn report(dir: &Path) -> Vec<Finding> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .expect("a history")
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let texts: Vec<_> = files
        .iter()
        .map(|path| fs::read_to_string(path).expect("a history is text"))
        .collect();
    let history =
        History::read(texts.iter().map(String::as_str)).unwrap_or_else(|why| panic!("{why}"));

    let mut ends = BTreeMap::<&str, usize>::new();
    let mut faults = BTreeMap::<&str, usize>::new();
    for attempt in &history.attempts {
        *ends
            .entry(attempt.ended.as_ref().map_or("killed", |(_, how)| how))
            .or_default() += 1;
    }
    for fault in &history.faults {
        *faults.entry(&fault.kind).or_default() += 1;
    }
    let grants = history.attempts.iter().filter_map(|a| a.granted.as_ref());
    let mut kinds = BTreeMap::<&str, usize>::new();
    for attempt in history.attempts.iter().filter(|a| a.granted.is_some()) {
        let kind = match attempt.demand {
            demand if demand.reads() => "read",
            demand if demand.rw => "write",
            demand if demand.of == 1 => "mutex",
            _ => "semaphore",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    let queued = history
        .attempts
        .iter()
        .filter(|a| a.queued.is_some())
        .count();
    let local_handovers = checker::local_handovers(&history);
    let downgrades = grants.clone().filter(|g| g.downgraded.is_some()).count();
    let refused = history
        .writes
        .iter()
        .filter(|write| !write.accepted)
        .count();
    println!(
        "attempts {}, by their ends: {}",
        history.attempts.len(),
        list(&ends)
    );
    println!(
        "grants {}, lost while held {}",
        grants.clone().count(),
        grants.filter(|g| g.lost.is_some()).count()
    );
    println!(
        "of them {}, downgrades {downgrades}; seen in a queue {queued}; at least {local_handovers} \
         local hand-overs, {} turns of kept locks",
        list(&kinds),
        history.kept_turns
    );
    println!("writes {}, refused {refused}", history.writes.len());
    println!("faults {}: {}", history.faults.len(), list(&faults));
    println!(
        "longest wait {:.1?}",
        checker::longest_wait(&history, &TIMINGS)
    );

    let findings = checker::check(&history, &TIMINGS);
    println!(
        "{:<12} {:>9} {:>7} {:>10}",
        "rule", "checked", "excused", "violations"
    );
    for finding in &findings {
        let Finding {
            rule,
            checked,
            excused,
            violations,
        } = finding;
        println!(
            "{:<12} {checked:>9} {excused:>7} {:>10}",
            format!("{rule:?}"),
            violations.len()
        );
        for how in violations.iter().take(5) {
            println!("  {how}");
        }
    }
    findings
}

fn list(counts: &BTreeMap<&str, usize>) -> String {
    counts
        .iter()
        .map(|(what, n)| format!("{what} {n}"))
        .collect::<Vec<_>>()
        .join(", ")
}
