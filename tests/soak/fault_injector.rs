//! Injects a fault every few hundred ms, and repairs it later.

use std::{
    collections::HashSet,
    fmt::Display,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    checker::Timings,
    history_writer::{HistoryWriter, now},
    rng::Rng,
    support::{Child, Proxy, Server},
    worker::{Load, WorkerConfig},
};

/// A worker's slot: the current worker process, and the link through which it reaches the server.
struct Slot {
    life: usize,
    child: Child,
    link: Proxy,
    /// It is affected by a fault right now.
    faulty: bool,
}

/// A repair that is due at some time.
struct Repair {
    due: Instant,
    fault: usize,
    active: ActiveFault,
}

#[derive(Clone, Copy)]
enum ActiveFault {
    Stopped(usize),
    Killed(usize),
    Link(usize),
    ServerStopped,
    ServerDown,
}

/// Which faults to inject.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FaultMix {
    Everything,
    /// Only pauses of workers.
    Pauses,
}

pub(crate) struct FaultInjector<'a> {
    server: &'a Server,
    history: &'a HistoryWriter,
    timings: Timings,
    dir: &'a str,
    resource: &'a str,
    rng: Rng,
    slots: Vec<Slot>,
    repairs: Vec<Repair>,
    faults: usize,
}

impl<'a> FaultInjector<'a> {
    pub(crate) fn new(
        server: &'a Server,
        history: &'a HistoryWriter,
        timings: Timings,
        [dir, resource]: [&'a str; 2],
        seed: u64,
    ) -> FaultInjector<'a> {
        let rng = Rng::new(seed);
        FaultInjector {
            server,
            history,
            timings,
            dir,
            resource,
            rng,
            slots: Vec::new(),
            repairs: Vec::new(),
            faults: 0,
        }
    }

    /// Starts workers in this many slots.
    pub(crate) fn start_workers(&mut self, slots: usize) {
        for at in 0..slots {
            let link = Proxy::to(self.server.addr());
            let child = self.launch(at, 0, &link);
            self.slots.push(Slot {
                life: 0,
                child,
                link,
                faulty: false,
            });
        }
    }

    /// THE MAIN LOOP: injects faults until the time is over, then repairs everything.
    pub(crate) fn run(&mut self, mix: FaultMix, lasting: Duration) {
        let until = Instant::now() + lasting;
        // Crashes without any other fault, so that their cost can be measured: one soon, then two a
        // minute.
        let mut crash_due = Instant::now() + Duration::from_secs(10).min(lasting / 3);
        while Instant::now() < until {
            let pause = self.rng.ms(150..450);
            self.pass(pause);
            for slot in self.slots.iter_mut().filter(|slot| !slot.faulty) {
                assert!(
                    !slot.child.has_ended(),
                    "a worker ended by itself: {}",
                    slot.child
                );
            }
            if mix == FaultMix::Everything && Instant::now() > crash_due {
                crash_due += Duration::from_secs(30);
                self.crash_while_quiet();
            } else if mix == FaultMix::Everything {
                self.inject_one();
            } else if let Some(victim) = self.healthy_slot() {
                self.stop(victim);
            }
        }
        self.repair_all();
    }

    /// Lets all workers finish their attempts. Workers that do not end in time are killed. The
    /// history does not mention that kill, so the checker finds that their attempts never ended.
    pub(crate) fn finish(&mut self, within: Duration) -> Result<(), String> {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.child.send("finish"));
        let deadline = Instant::now() + within;
        let mut stuck = Vec::new();
        for slot in &mut self.slots {
            let left = deadline.saturating_duration_since(Instant::now());
            match slot.child.end_within(left) {
                Some(status) if status.success() => {}
                other => stuck.push(format!("{other:?} of {}", slot.child)),
            }
        }
        self.slots.clear();
        if stuck.is_empty() {
            Ok(())
        } else {
            Err(stuck.join("\n"))
        }
    }

    fn inject_one(&mut self) {
        let server_is_up = !self.repairs.iter().any(|r| {
            matches!(
                r.active,
                ActiveFault::ServerStopped | ActiveFault::ServerDown
            )
        });
        match (self.rng.below(100), self.healthy_slot()) {
            (0..=14, Some(victim)) => self.stop(victim),
            (15..=24, Some(victim)) => self.pause_briefly(victim),
            (25..=39, Some(victim)) => self.kill(victim),
            (40..=69, Some(victim)) => self.disturb_link(victim),
            (70..=77, _) if server_is_up => {
                let fault = self.begin("-", "server-killed");
                self.server.kill();
                let down = self.rng.ms(10..400);
                self.repair_after(down, fault, ActiveFault::ServerDown);
            }
            (78..=82, _) if server_is_up => {
                let fault = self.begin("-", "server-emptied");
                self.server.kill();
                let _ = fs::remove_dir_all(self.server.dir().join("appendonlydir"));
                let down = self.rng.ms(10..400);
                self.repair_after(down, fault, ActiveFault::ServerDown);
            }
            (83..=84, _) if server_is_up => {
                let fault = self.begin("-", "flushall");
                self.server.query::<()>(&["FLUSHALL"]);
                self.end(fault);
            }
            (85..=91, _) if server_is_up => {
                let fault = self.begin("-", "server-stopped");
                self.server.stop();
                let long = if self.rng.percent(20) {
                    2000..3000
                } else {
                    50..400
                };
                let away = self.rng.ms(long);
                self.repair_after(away, fault, ActiveFault::ServerStopped);
            }
            (92..=99, _) if server_is_up => {
                let fault = self.begin("-", "script-flush");
                self.server.query::<()>(&["SCRIPT", "FLUSH"]);
                self.end(fault);
            }
            _ => {}
        }
    }

    /// Stops a worker for longer than its leases last.
    fn stop(&mut self, victim: usize) {
        let fault = self.begin(self.who(victim), "stop");
        self.slots[victim].child.stop();
        let ttl = self.timings.ttl.as_millis() as usize;
        let away = self.rng.ms(ttl * 11 / 10..ttl * 16 / 10);
        self.repair_after(away, fault, ActiveFault::Stopped(victim));
    }

    /// Stops a worker so briefly that it loses nothing.
    fn pause_briefly(&mut self, victim: usize) {
        let fault = self.begin(self.who(victim), "brief-stop");
        self.slots[victim].child.stop();
        let away = self.rng.ms(20..120);
        self.repair_after(away, fault, ActiveFault::Stopped(victim));
    }

    fn kill(&mut self, victim: usize) {
        let fault = self.begin(self.who(victim), "kill");
        self.slots[victim].child.kill();
        self.end(fault);
        let down = self.rng.ms(0..1000);
        self.repair_after(down, fault, ActiveFault::Killed(victim));
    }

    fn disturb_link(&mut self, victim: usize) {
        let kind = *self.rng.pick(&[
            "close",
            "reset",
            "refuse",
            "delay",
            "no-requests",
            "no-replies",
        ]);
        let fault = self.begin(self.who(victim), format_args!("link-{kind}"));
        let link = &self.slots[victim].link;
        let long = match kind {
            "close" => {
                link.close_all();
                0..1
            }
            "reset" => {
                link.reset_all();
                0..1
            }
            "refuse" => {
                link.refuse();
                link.close_all();
                50..1500
            }
            "delay" => {
                link.delay(self.rng.ms(5..150));
                300..1500
            }
            "no-requests" => {
                link.pause_requests();
                50..3000
            }
            _ => {
                link.pause_replies();
                50..3000
            }
        };
        let long = self.rng.ms(long);
        self.repair_after(long, fault, ActiveFault::Link(victim));
    }

    fn crash_while_quiet(&mut self) {
        self.repair_all();
        let quiet = self.timings.ttl + self.timings.check_period + self.timings.command_timeout;
        // Wait until the effects of repaired faults are over, or they would count as costs of the
        // crash.
        self.pass(quiet);
        let victim = self.stop_a_holder();
        let fault = self.begin(self.who(victim), "kill");
        self.slots[victim].child.kill();
        self.end(fault);
        self.slots[victim].faulty = true;
        self.pass(quiet + self.timings.slack);
        self.repair(ActiveFault::Killed(victim));
    }

    /// Stops a worker that holds a lock right now: the death of any other would delay no process.
    /// After many tries it takes any worker.
    fn stop_a_holder(&mut self) -> usize {
        let mut tries = 0;
        loop {
            let at = self.rng.below(self.slots.len());
            let fault = self.begin(self.who(at), "brief-stop");
            self.slots[at].child.stop();
            tries += 1;
            let found = tries == 100 || self.holds(at);
            if !found {
                self.slots[at].child.cont();
            }
            self.end(fault);
            if found {
                return at;
            }
            self.pass(Duration::from_millis(20));
        }
    }

    /// Whether the history shows that a thread of this worker has a guard that it has not begun to
    /// release.
    fn holds(&self, at: usize) -> bool {
        let path = Path::new(self.dir).join(format!("{}.log", self.who(at)));
        let text = fs::read_to_string(path).expect("a history");
        let mut guards = HashSet::new();
        for line in text.lines() {
            match line.split(' ').skip(3).collect::<Vec<_>>()[..] {
                ["granted", id, _] => drop(guards.insert(id)),
                ["release" | "lost" | "ended", id, ..] => drop(guards.remove(id)),
                _ => {}
            }
        }
        !guards.is_empty()
    }

    fn repair_after(&mut self, after: Duration, fault: usize, active: ActiveFault) {
        if let ActiveFault::Stopped(slot) | ActiveFault::Killed(slot) | ActiveFault::Link(slot) =
            active
        {
            self.slots[slot].faulty = true;
        }
        self.repairs.push(Repair {
            due: Instant::now() + after,
            fault,
            active,
        });
    }

    /// Lets time pass, and makes the repairs that become due.
    fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            self.repairs.sort_by_key(|repair| repair.due);
            let next = self
                .repairs
                .first()
                .map_or(until, |repair| repair.due.min(until));
            // Time itself is under test: faults last.
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if self
                .repairs
                .first()
                .is_some_and(|repair| repair.due <= Instant::now())
            {
                let repair = self.repairs.remove(0);
                self.repair(repair.active);
                if !matches!(repair.active, ActiveFault::Killed(_)) {
                    self.end(repair.fault);
                }
            } else if Instant::now() >= until {
                return;
            }
        }
    }

    fn repair_all(&mut self) {
        let last = self.repairs.iter().map(|repair| repair.due).max();
        self.pass(last.map_or(Duration::ZERO, |last| {
            last.saturating_duration_since(Instant::now())
        }));
        while !self.repairs.is_empty() {
            self.pass(Duration::from_millis(10));
        }
    }

    fn repair(&mut self, fault: ActiveFault) {
        match fault {
            ActiveFault::Stopped(at) => self.slots[at].child.cont(),
            ActiveFault::Killed(at) => {
                let life = self.slots[at].life + 1;
                let child = self.launch(at, life, &self.slots[at].link);
                self.slots[at].child = child;
                self.slots[at].life = life;
            }
            ActiveFault::Link(at) => {
                let link = &self.slots[at].link;
                link.delay(Duration::ZERO);
                link.accept();
                link.resume_requests();
                link.resume_replies();
            }
            ActiveFault::ServerStopped => self.server.cont(),
            ActiveFault::ServerDown => self.server.restart(),
        }
        if let ActiveFault::Stopped(slot) | ActiveFault::Killed(slot) | ActiveFault::Link(slot) =
            fault
        {
            self.slots[slot].faulty = false;
        }
    }

    fn launch(&self, at: usize, life: usize, link: &Proxy) -> Child {
        let url = link.url();
        let who = format!("{at}.{life}");
        let seed = (at * 1_000_003 + life) as u64;
        let config = WorkerConfig {
            url: &url,
            ttl: self.timings.ttl,
            dir: self.dir,
            resource: self.resource,
            who: &who,
            seed,
            load: Load {
                keeps: at.is_multiple_of(2),
                ..Load::FULL
            },
        };
        Child::spawn("work", &config.args().each_ref().map(String::as_str))
    }

    /// A worker without a fault; at most half are faulty at a time, so that the others make
    /// progress.
    fn healthy_slot(&mut self) -> Option<usize> {
        let well: Vec<usize> = (0..self.slots.len())
            .filter(|at| !self.slots[*at].faulty)
            .collect();
        (well.len() * 2 > self.slots.len()).then(|| *self.rng.pick(&well))
    }

    fn who(&self, at: usize) -> String {
        format!("{at}.{}", self.slots[at].life)
    }

    fn begin(&mut self, victim: impl Display, kind: impl Display) -> usize {
        self.faults += 1;
        self.history.log_for(
            &victim.to_string(),
            now(),
            format_args!("begin {} {kind}", self.faults),
        );
        self.faults
    }

    fn end(&self, fault: usize) {
        self.history.log(format_args!("end {fault}"));
    }
}
