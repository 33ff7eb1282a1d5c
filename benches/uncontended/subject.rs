//! The clients that are compared. Each runs the same cycle: it takes a lock and releases it.

use fairlock::LockManager;
use redis::Connection;
use rustix::time::ClockId;

use crate::floor::Floor;
use crate::mux::Mux;
use crate::support::{manager, read};

/// One cycle of one thread.
pub(crate) type Cycle<'a> = Box<dyn FnMut() + Send + 'a>;

pub(crate) enum Subject {
    /// A connection for each thread.
    Floor(Vec<Floor>),
    Mux(Mux),
    Drop(LockManager),
    Unlock(LockManager),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Floor,
    Mux,
    /// With this many lanes, or the default.
    Drop(Option<u32>),
    Unlock,
}

impl Kind {
    pub(crate) fn title(self) -> String {
        match self {
            Kind::Floor => "floor".to_owned(),
            Kind::Mux => "bare, multiplexed".to_owned(),
            Kind::Drop(None) => "lock + drop".to_owned(),
            Kind::Drop(Some(1)) => "lock + drop, 1 lane".to_owned(),
            Kind::Drop(Some(lanes)) => format!("lock + drop, {lanes} lanes"),
            Kind::Unlock => "lock + unlock".to_owned(),
        }
    }

    pub(crate) fn subject(self, url: &str, threads: usize) -> Subject {
        match self {
            Kind::Floor => Subject::Floor(
                (0..threads)
                    .map(|i| Floor::new(url, &format!("bench:floor:{i}")))
                    .collect(),
            ),
            Kind::Mux => Subject::Mux(Mux::new(url)),
            Kind::Drop(lanes) => Subject::Drop(manager(url, lanes)),
            Kind::Unlock => Subject::Unlock(manager(url, None)),
        }
    }
}

impl Subject {
    /// A cycle for each of `threads` threads, each on a name of its own.
    pub(crate) fn cycles(&mut self, threads: usize) -> Vec<Cycle<'_>> {
        match self {
            Subject::Floor(floors) => floors
                .iter_mut()
                .map(|floor| Box::new(move || floor.cycle()) as Cycle<'_>)
                .collect(),
            Subject::Mux(mux) => {
                let of = |i| {
                    let mut lock = mux.lock(format!("bench:mux:{i}"));
                    Box::new(move || lock.cycle()) as Cycle<'_>
                };
                (0..threads).map(of).collect()
            }
            Subject::Drop(manager) => {
                let of = |i| {
                    let lock = manager.mutex(format!("bench:drop:{i}"));
                    Box::new(move || drop(lock.lock().expect("nobody else wants it"))) as Cycle<'_>
                };
                (0..threads).map(of).collect()
            }
            Subject::Unlock(manager) => {
                let of = |i| {
                    let lock = manager.mutex(format!("bench:unlock:{i}"));
                    let cycle = move || {
                        let guard = lock.lock().expect("nobody else wants it");
                        guard.unlock().expect("it is still held");
                    };
                    Box::new(cycle) as Cycle<'_>
                };
                (0..threads).map(of).collect()
            }
        }
    }

    pub(crate) fn manager(&self) -> Option<&LockManager> {
        match self {
            Subject::Floor(_) | Subject::Mux(_) => None,
            Subject::Drop(manager) | Subject::Unlock(manager) => Some(manager),
        }
    }

    /// The connections that were opened, the renewal thread's own included.
    pub(crate) fn connections(&self) -> u64 {
        match self {
            Subject::Floor(floors) => floors.len() as u64,
            Subject::Mux(_) => 1,
            Subject::Drop(manager) | Subject::Unlock(manager) => manager.stats().connects,
        }
    }
}

/// The processor time that was used, in ns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cpu {
    /// By all threads of this process.
    pub(crate) client: u64,
    pub(crate) server: u64,
}

impl Cpu {
    /// Until now.
    pub(crate) fn read(admin: &mut Connection) -> Cpu {
        let info: String = redis::cmd("INFO")
            .arg("cpu")
            .query(admin)
            .expect("INFO is answered");
        let seconds = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        let server = seconds("used_cpu_user:") + seconds("used_cpu_sys:");
        Cpu {
            client: read(ClockId::ProcessCPUTime),
            server: (server * 1e9) as u64,
        }
    }
}

/// A subject that is measured, and what it has cost in the rounds that count.
pub(crate) struct Measured {
    pub(crate) kind: Kind,
    pub(crate) subject: Subject,
    pub(crate) cpu: Cpu,
    pub(crate) cycles: u64,
}

impl Measured {
    pub(crate) fn new(kind: Kind, url: &str, threads: usize) -> Measured {
        Measured {
            kind,
            subject: kind.subject(url, threads),
            cpu: Cpu::default(),
            cycles: 0,
        }
    }

    pub(crate) fn add(&mut self, cycles: u64, before: Cpu, after: Cpu) {
        self.cycles += cycles;
        self.cpu.client += after.client - before.client;
        self.cpu.server += after.server - before.server;
    }

    /// Takes what it has cost so far as the price of warming up.
    pub(crate) fn forget(&mut self) {
        self.cycles = 0;
        self.cpu = Cpu::default();
    }

    pub(crate) fn print_costs_of(all: &[Measured]) {
        println!(
            "  {:<22}{:>10}{:>10}{:>13}{:>10}",
            "a cycle costs", "client µs", "server µs", "connections", "requests"
        );
        for measured in all {
            measured.print_costs();
        }
    }

    fn print_costs(&self) {
        let per_cycle = |cost: u64| cost as f64 / self.cycles.max(1) as f64 / 1e3;
        let requests = self.subject.manager().map_or(2.0, |manager| {
            let stats = manager.stats();
            stats.requests as f64
                / (stats.acquisitions_at_once + stats.acquisitions_after_wait).max(1) as f64
        });
        println!(
            "  {:<22}{:>10.1}{:>10.1}{:>13}{requests:>10.3}",
            self.kind.title(),
            per_cycle(self.cpu.client),
            per_cycle(self.cpu.server),
            self.subject.connections(),
        );
    }
}
