//! Two processes lock one name by turns, some times in a row each.

use std::env;

use fairlock::LockManager;
use redis::Connection;

use crate::child::{self, ChildProcess};
use crate::proxy::Proxy;
use crate::support::cores::Cores;
use crate::support::figure::Bound;
use crate::support::{Rounds, bare_connection, manager, micros, now, rounds, sized};
use crate::{figure, keeper, warm_up};

const IN_A_ROW: [u64; 5] = [1, 2, 4, 8, 64];
/// Turns before those that are measured. In them a process may find out that the name is not worth
/// keeping.
const WARM_UP: usize = 8;

/// Two processes of a kind.
struct Pair {
    processes: [ChildProcess; 2],
}

/// The costs of locks, per lock.
#[derive(Default)]
struct Costs {
    /// ns
    time: Rounds,
    requests: Rounds,
    messages: Rounds,
    /// The server's time in scripts, in µs.
    scripts: Rounds,
    /// Locks that needed no Redis.
    kept: Rounds,
    /// How often a process found the name not worth keeping since the round began, not per lock.
    cold: Rounds,
}

pub(crate) fn measure(url: &str) {
    println!("turns: two processes lock one name, r times in a row each; all per lock");
    println!(
        "  {:<24}{:>4}{:>12}{:>12}   {:<22}{:<18}{:<18}{:<18}{:<8}cold",
        "with keep / without",
        "r",
        "with",
        "without",
        "time",
        "requests",
        "messages",
        "scripts, µs",
        "kept"
    );
    let mut admin = bare_connection(url);
    let mut pairs = pairs(url);
    let ids: Vec<u32> = pairs.iter().flat_map(Pair::ids).collect();
    Cores::each(url, &ids, |cores| {
        let place = format!("this host, cores: {cores}");
        compare(
            &mut pairs,
            &place,
            "this host",
            sized(2, 20, 60),
            &mut admin,
        );
    });
    let proxy = Proxy::start(url);
    let mut pairs = self::pairs(&proxy.url);
    let place = "link of 1 ms";
    compare(&mut pairs, place, place, sized(1, 4, 12), &mut admin);
}

/// Without keep and with it.
fn pairs(url: &str) -> [Pair; 2] {
    ["plain", "keep"].map(|kind| Pair::new(url, kind))
}

fn compare(pairs: &mut [Pair; 2], place: &str, case: &str, turns: usize, admin: &mut Connection) {
    for r in IN_A_ROW {
        let mut costs: [Costs; 2] = Default::default();
        let mut ratio = Rounds::default();
        for round in 0..rounds(5) {
            let mut times = [0.0; 2];
            for i in 0..2 {
                // The first of the two may find the machine in another state.
                let of = (i + round) % 2;
                let name = format!("bench:turns:{}", now());
                times[of] = pairs[of].take_turns(&name, r, turns, admin, &mut costs[of]);
            }
            ratio.add(times[1] / times[0]);
        }
        show(place, case, r, &costs, &ratio);
    }
}

fn show(place: &str, case: &str, r: u64, [plain, kept]: &[Costs; 2], ratio: &Rounds) {
    let both =
        |of: fn(&Costs) -> &Rounds| format!("{:.2} / {:.2}", of(kept).median(), of(plain).median());
    let time = |costs: &Costs| micros(costs.time.median() as u64);
    println!(
        "  {place:<24}{r:>4}{:>12}{:>12}   {ratio:<22}{:<18}{:<18}{:<18}{:<8.2}{}",
        time(kept),
        time(plain),
        both(|costs| &costs.requests),
        both(|costs| &costs.messages),
        both(|costs| &costs.scripts),
        kept.kept.median(),
        kept.cold.median(),
    );
    let case = format!("{case}, {r} in a row");
    figure(
        "Two processes by turns: time with keep / without",
        &*case,
        "×",
    )
    .beside(format!("{} without", time(plain)))
    .bound(Bound::AtMost(if r < 8 { 1.1 } else { 1.0 }))
    .note(ratio);
    figure(
        "Two processes by turns: requests a lock with keep",
        &*case,
        "requests",
    )
    .beside(format!("{:.2} without", plain.requests.median()))
    .note(&kept.requests);
    figure(
        "Two processes by turns: messages a lock with keep",
        &*case,
        "messages",
    )
    .beside(format!("{:.2} without", plain.messages.median()))
    .note(&kept.messages);
}

impl Pair {
    fn new(url: &str, kind: &str) -> Pair {
        let spawn = |i: usize| {
            let own_name = format!("bench:turns:warm-up:{i}");
            ChildProcess::spawn(url, &["turns-child", kind, &own_name])
        };
        Pair {
            processes: [spawn(0), spawn(1)],
        }
    }

    fn ids(&self) -> [u32; 2] {
        self.processes.each_ref().map(ChildProcess::id)
    }

    /// Returns the time per lock, in ns.
    fn take_turns(
        &mut self,
        name: &str,
        r: u64,
        turns: usize,
        admin: &mut Connection,
        costs: &mut Costs,
    ) -> f64 {
        let order = format!("lock {name} {r}");
        let [_, cold_before] = self.counts();
        for i in 0..WARM_UP {
            let [_] = self.processes[i % 2].ask(&order);
        }
        let [kept_before, _] = self.counts();
        let before = Counts::read(admin);
        let mut took = 0;
        for i in 0..turns * 2 {
            let [time] = self.processes[i % 2].ask(&order);
            took += time;
        }
        let locks = (r * turns as u64 * 2) as f64;
        let counts = Counts::read(admin) - before;
        costs.time.add(took as f64 / locks);
        costs.requests.add(counts.scripts as f64 / locks);
        costs.messages.add(counts.messages as f64 / locks);
        costs.scripts.add(counts.script_time as f64 / locks);
        let [kept, cold] = self.counts();
        costs.kept.add((kept - kept_before) as f64 / locks);
        costs.cold.add((cold - cold_before) as f64);
        took as f64 / locks
    }

    /// Of both processes: the turns on a kept name, and the names that are not worth it.
    fn counts(&mut self) -> [u64; 2] {
        let of_each = self
            .processes
            .each_mut()
            .map(|process| process.ask("counts"));
        let [[kept, cold], [more_kept, more_cold]] = of_each;
        [kept + more_kept, cold + more_cold]
    }
}

/// In the child.
pub(crate) fn run_child(args: &[String]) {
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let [kind, own_name] = args else {
        panic!("not the arguments of a child")
    };
    let manager = if kind == "keep" {
        let manager = keeper(&url);
        warm_up(&manager, own_name);
        manager
    } else {
        manager(&url, None)
    };
    child::serve(|order| {
        if order == "counts" {
            let stats = manager.stats();
            return vec![stats.kept_turns, stats.cold_names];
        }
        let words: Vec<&str> = order.split(' ').collect();
        let ["lock", name, r] = words[..] else {
            panic!("not an order: {order}")
        };
        vec![lock(&manager, name, r.parse().expect("a number"))]
    });
}

fn lock(manager: &LockManager, name: &str, times: u64) -> u64 {
    let began = now();
    for _ in 0..times {
        drop(manager.lock(name).expect("a lock"));
    }
    now() - began
}

/// The server's counts so far.
struct Counts {
    scripts: u64,
    /// µs
    script_time: u64,
    messages: u64,
}

impl Counts {
    fn read(admin: &mut Connection) -> Counts {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(admin)
            .expect("INFO is answered");
        let of = |command: &str, field: &str| -> u64 {
            let line = info.lines().find_map(|line| line.strip_prefix(command));
            let value = line.and_then(|line| line.split_once(field)?.1.split(',').next());
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Counts {
            scripts: of("cmdstat_evalsha:", "calls="),
            script_time: of("cmdstat_evalsha:", "usec="),
            messages: of("cmdstat_publish:", "calls="),
        }
    }
}

impl std::ops::Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            scripts: self.scripts - before.scripts,
            script_time: self.script_time - before.script_time,
            messages: self.messages - before.messages,
        }
    }
}
