//! Runs one scenario: workers on the clients' hosts, the cut, the repair, and the check at the end.

use std::{
    env, fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    history_writer::{HistoryWriter, now},
    resource::{self, Fences},
    rng::Rng,
    scenario_checker::{self, Outcome, Times},
    scenarios::{CLIENTS, Fault, Grants, Promises, Scenario, World},
    servers::Servers,
    support::Child,
    worker::{Kinds, Load, WorkerConfig},
};

/// A worker has connected within this time on a loaded machine.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// After the repair every client gets a lock within this time. Every held lock ends within a TTL, and
/// each worker waits behind at most the eight other threads of its kind.
const RECOVERS_WITHIN: Duration = Duration::from_secs(15);

/// A worker's threads end their attempts one after the other, each within the outage limit.
const FINISH_WITHIN: Duration = Duration::from_secs(40);

/// How long the clients work before anything is cut.
const CALM: Duration = Duration::from_millis(500);

/// How much longer a cut lasts, on a loaded machine, until the clients that must be granted locks
/// were granted some.
const LATE_BY: Duration = Duration::from_secs(15);

/// How long two masters are left alone after the repair: the overlaps that it causes count.
const AFTERMATH: Duration = Duration::from_millis(1500);

/// Plays a scenario, and checks what the workers and the resource noted in this directory.
pub(crate) fn play(scenario: &Scenario, world: &World, dir: &Path, seed: u64) -> Outcome {
    fs::create_dir_all(dir).expect("a directory for the notes");
    let sockets = tempfile::tempdir().expect("a directory for a socket");
    let socket = sockets.path().join("resource");
    resource::serve(
        &socket,
        HistoryWriter::new(dir, "resource"),
        Fences::Checked,
    );
    let history = HistoryWriter::new(dir, "-");
    let over = AtomicBool::new(false);
    let played = thread::scope(|scope| {
        scope.spawn(|| history.watch_clock_until(|| over.load(Ordering::SeqCst)));
        let stage = Stage {
            scenario,
            world,
            dir,
            history: &history,
        };
        let workers = stage.start_workers(&socket, seed);
        let played = stage.cut_and_repair(workers, seed);
        over.store(true, Ordering::SeqCst);
        played
    });
    let with_queue = !matches!(world.servers, Servers::Quorum(_));
    match played {
        Ok(times) => scenario_checker::check(scenario, with_queue, dir, times),
        Err(why) => Outcome::failed(why),
    }
}

struct Stage<'a> {
    scenario: &'a Scenario,
    world: &'a World,
    dir: &'a Path,
    history: &'a HistoryWriter,
}

impl Stage<'_> {
    fn start_workers(&self, resource: &Path, seed: u64) -> Vec<Child> {
        let url = self.world.servers.url();
        let [dir, resource] = [self.dir, resource].map(|p| p.to_str().expect("paths are UTF-8"));
        let kinds = match self.world.servers {
            Servers::Quorum(_) => Kinds::Mutexes,
            _ => Kinds::All,
        };
        let load = Load {
            kinds,
            threads: 4,
            long_holds: 2,
            outage_limit: Duration::from_secs(1),
            keeps: false,
        };
        let workers: Vec<Child> = self
            .world
            .clients
            .iter()
            .enumerate()
            .map(|(at, host)| {
                let who = worker(at);
                let config = WorkerConfig {
                    url: &url,
                    ttl: scenario_checker::TIMINGS.ttl,
                    dir,
                    resource,
                    who: &who,
                    seed: seed.wrapping_add(at as u64),
                    load: Load {
                        keeps: at % 2 == 0,
                        ..load
                    },
                };
                let this = env::current_exe().expect("a running test has a binary");
                let args = config.args();
                let command = self.world.network.command(*host, this);
                Child::spawn_by(command, "work", &args.each_ref().map(String::as_str))
            })
            .collect();
        for worker in &workers {
            worker.expect("ready", READY_WITHIN);
        }
        workers
    }

    /// Cuts, repairs, and lets the workers end. An error says who did not.
    fn cut_and_repair(&self, mut workers: Vec<Child>, seed: u64) -> Result<Times, String> {
        // Time itself is under test: workers work before the cut.
        thread::sleep(CALM);
        let (victim, kind) = match self.scenario.promises {
            Promises::AllWithoutClient(at) => (worker(at), "link-cut"),
            Promises::All => ("-".to_owned(), "server-cut"),
            Promises::Failover | Promises::TwoMasters => ("-".to_owned(), "failover"),
        };
        let begun = now();
        self.history
            .log_for(&victim, begun, format_args!("begin 1 {kind}"));
        let cut = self.cut(seed);
        let repaired = now();
        self.world.network.heal_all();
        if kind == "failover" {
            // Time itself is under test: old and new masters coexist in it.
            thread::sleep(AFTERMATH);
            self.world.servers.demote_old_masters();
        }
        for node in self.world.servers.nodes() {
            node.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        }
        self.world.servers.wait_until_formed();
        self.history.log("end 1");
        self.recover(&mut workers)?;
        self.finish(workers)?;
        self.note_keys();
        Ok(Times { cut, repaired })
    }

    /// Returns when everything was cut, at the end of the fault.
    fn cut(&self, seed: u64) -> u64 {
        let begun = Instant::now();
        let mut done = now();
        let mut rng = Rng::new(seed);
        match self.scenario.fault {
            Fault::Steady(cut) => {
                cut(self.world);
                done = now();
                // Time itself is under test: the cut lasts.
                thread::sleep(self.scenario.lasts);
                while begun.elapsed() < self.scenario.lasts + LATE_BY && !self.all_granted(done) {
                    // A pause between two polls.
                    thread::sleep(Duration::from_millis(20));
                }
            }
            Fault::Flapping(cut) => {
                while begun.elapsed() < self.scenario.lasts
                    || begun.elapsed() < self.scenario.lasts + LATE_BY && !self.all_granted(done)
                {
                    cut(self.world, &mut rng);
                    // Time itself is under test: the cut lasts.
                    thread::sleep(rng.ms(100..900));
                    self.world.network.heal_all();
                    // Time itself is under test: the repair lasts.
                    thread::sleep(rng.ms(200..900));
                }
            }
        }
        done
    }

    /// Whether the clients that must be granted locks while the network is cut were granted some.
    fn all_granted(&self, cut: u64) -> bool {
        let from = cut + self.scenario.takes_effect_in.as_nanos() as u64;
        let mut clients = self.scenario.grants.iter().enumerate();
        clients.all(|(at, grants)| {
            let path = self.dir.join(format!("{}.log", worker(at)));
            *grants != Grants::Some || granted_since(&path, from)
        })
    }

    /// Waits until every client was granted a lock that it asked for after the repair.
    fn recover(&self, workers: &mut [Child]) -> Result<(), String> {
        let from = now();
        let deadline = Instant::now() + RECOVERS_WITHIN;
        for (at, process) in workers.iter_mut().enumerate() {
            let path = self.dir.join(format!("{}.log", worker(at)));
            while !granted_since(&path, from) {
                if process.has_ended() {
                    return Err(format!("client {} ended: {process}", CLIENTS[at]));
                }
                if Instant::now() > deadline {
                    return Err(format!(
                        "client {} got no lock within {RECOVERS_WITHIN:?} of the repair",
                        CLIENTS[at]
                    ));
                }
                // A pause between two polls.
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn finish(&self, mut workers: Vec<Child>) -> Result<(), String> {
        for (at, process) in workers.iter_mut().enumerate() {
            if process.has_ended() {
                return Err(format!("client {} ended: {process}", CLIENTS[at]));
            }
            process.send("finish");
        }
        let deadline = Instant::now() + FINISH_WITHIN;
        for (at, process) in workers.iter_mut().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let status = process.end_within(left);
            if !status.is_some_and(|status| status.success()) {
                return Err(format!(
                    "client {} did not end well within {FINISH_WITHIN:?}: {status:?} {process}",
                    CLIENTS[at]
                ));
            }
        }
        Ok(())
    }

    fn note_keys(&self) {
        for node in self.world.servers.nodes().iter().filter(|n| n.is_master()) {
            for key in node.query::<Vec<String>>(&["KEYS", "*"]) {
                let left: i64 = node.query(&["PTTL", &key]);
                self.history
                    .log(format_args!("key {} {left}", key.replace(' ', "_")));
            }
        }
    }
}

/// The name of a client's worker in the notes.
pub(crate) fn worker(at: usize) -> String {
    format!("{at}.0")
}

/// Whether an attempt of this worker that began after this time has a grant.
fn granted_since(path: &Path, from: u64) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut asked = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [at, _, _, "ask", id, ..] if at.parse().is_ok_and(|at: u64| at > from) => {
                asked.push(id);
            }
            [_, _, _, "granted", id, _] if asked.contains(&id) => return true,
            _ => {}
        }
    }
    false
}
