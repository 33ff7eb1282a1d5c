//! The cost of holding many locks: one process holds 1,000, 10,000 and 100,000 of them for two TTLs
//! of 30 s.
//!
//!     cargo bench --bench renewal                  takes six minutes
//!     cargo bench --bench renewal -- ttl=6         the same with a TTL of 6 s, five times the load
//!     cargo bench --bench renewal -- locks=1000    only this many locks
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench renewal
//!
//! Without the variable it starts a private redis-server on a port of this host; nothing else may
//! use a server that is named. The floor is a bare connection that sends the same number of
//! PEXPIREs in pipelines. The records show when a renewal reached the server: a lease ends one ttl
//! after that. The bench reads the records of 2,000 locks, spread over all of them, often enough to
//! see every renewal. A renewal is late by the time that it came after its third of a ttl. Memory
//! is the growth of the process and of the server; the names have about 30 bytes.

#[path = "support/child.rs"]
mod child;
mod support;

use std::time::Duration;
use std::{env, process, thread};

use child::{ChildProcess, serve};
use fairlock::{LockGuard, LockManager, LockOptions};
use redis::Connection;
use rustix::time::ClockId;
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, now, read, rounds, server, sized};

/// How many times its ttl a lock is held.
const TTLS: u32 = 2;
/// Looked at, of all that are held.
const SAMPLE: usize = 2000;
/// Commands in a pipeline.
const BATCH: usize = 500;
/// Pipelines of the floor in a round.
const BARE: usize = 20_000;

fn main() {
    let args: Vec<String> = env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "holder") {
        return hold(&args[at + 1..]);
    }
    let redis = server();
    let argument = |prefix: &str| {
        args.iter()
            .find_map(|arg| arg.strip_prefix(prefix)?.parse().ok())
    };
    let (ttl, counts) = sized(
        (2, vec![200]),
        (6, vec![10_000]),
        (30, vec![1_000, 10_000, 100_000]),
    );
    let ttl = Duration::from_secs(argument("ttl=").unwrap_or(ttl));
    let counts = argument("locks=").map_or(counts, |count| vec![count as usize]);
    let rounds = rounds(sized(1, 1, 3));
    println!(
        "renewal: held for {TTLS} TTLs of {ttl:?}, {rounds} rounds, on {}",
        redis.about
    );
    println!();
    let mut seen: Vec<Seen> = counts.iter().map(|_| Seen::default()).collect();
    for round in 0..rounds {
        for (count, seen) in counts.iter().zip(&mut seen) {
            seen.add(
                &redis.url,
                &format!("bench:renewal:{}:{round}:{count}", process::id()),
                *count,
                ttl,
            );
        }
    }
    for (count, seen) in counts.iter().zip(&seen) {
        seen.show(*count, ttl);
    }
}

#[derive(Default)]
struct Seen {
    lost: Rounds,
    failures: Rounds,
    /// ms, the last in a thousand.
    late: Rounds,
    /// ms that a thread which only sleeps woke too late, at the most.
    overslept: Rounds,
    /// Renewals that were seen in the sample, per renewal that was due.
    coverage: Rounds,
    /// % of a core: of the process, of the server.
    load: Rounds,
    server: Rounds,
    /// Script calls per expected call.
    commands: Rounds,
    /// Bytes a lock.
    client_memory: Rounds,
    server_memory: Rounds,
    /// µs of the client's processor a renewal, and a bare PEXPIRE.
    each: Rounds,
    bare: Rounds,
}

impl Seen {
    fn add(&mut self, url: &str, prefix: &str, count: usize, ttl: Duration) {
        let mut admin = bare_connection(url);
        self.bare.add(bare(&mut admin, prefix));
        let ttl_ms = ttl.as_millis().to_string();
        let mut child = ChildProcess::spawn(url, &["holder", prefix, &ttl_ms]);
        // Opens the connections and fills the buffers of both.
        let [_] = child.ask("10");
        let rss = child.usage().rss;
        let memory = info(&mut admin, "memory", "used_memory:");
        let [_] = child.ask(&count.to_string());
        self.client_memory
            .add(child.usage().rss.saturating_sub(rss) as f64 / count as f64);
        self.server_memory
            .add((info(&mut admin, "memory", "used_memory:") - memory) / count as f64);

        let step = count.div_ceil(SAMPLE);
        let mut sample = Sample::new(
            (0..count)
                .step_by(step)
                .map(|i| key(prefix, 10 + i))
                .collect(),
            ttl,
        );
        sample.look(&mut admin);
        let calls = calls(&mut admin);
        let cpu = server_cpu(&mut admin);
        let used = child.usage();
        let [renewed, ..] = child.ask::<3>("end");
        let until = now() + (ttl * TTLS).as_nanos() as u64;
        let sleeper = thread::spawn(move || overslept(until));
        while now() < until {
            thread::sleep((ttl / 6).min(Duration::from_nanos(until.saturating_sub(now()))));
            sample.look(&mut admin);
        }
        self.overslept.add(sleeper.join().expect("it only sleeps"));
        let used = child.usage() - used;
        self.server
            .add(100.0 * (server_cpu(&mut admin) - cpu) / used.seconds());
        let [renewed_after, failures, lost] = child.ask("end");
        let expected = (count + 10) as f64 * used.seconds() / (ttl / 3).as_secs_f64();
        self.commands
            .add((self::calls(&mut admin) - calls) / expected);
        self.load.add(used.load());
        self.each
            .add(used.cpu as f64 / 1e3 / (renewed_after - renewed).max(1) as f64);
        self.failures.add(failures as f64);
        self.lost.add(lost as f64);
        let seen = sample.late.len() as f64;
        self.coverage
            .add(seen / (sample.keys.len() as f64 * used.seconds() / (ttl / 3).as_secs_f64()));
        self.late.add(sample.last_in_a_thousand());
        drop(child);
        clear(&mut admin, prefix, count + 10);
    }

    fn show(&self, count: usize, ttl: Duration) {
        let Seen {
            lost,
            failures,
            late,
            overslept,
            coverage,
            load,
            server,
            commands,
            ..
        } = self;
        let Seen {
            client_memory,
            server_memory,
            each,
            bare,
            ..
        } = self;
        println!("  {count} locks");
        println!(
            "    lost                          {lost:.0}, renewals that failed and were repeated {failures:.0}"
        );
        println!(
            "    late, p99.9                   {late:.1} ms; of the renewals of the sample, seen {coverage}"
        );
        println!("    a thread that sleeps, late    {overslept:.1} ms at the most");
        println!(
            "    processor, % of a core        {load:.1} of the process, {server:.1} of the server"
        );
        println!("    processor a renewal           {each:.1} µs; a bare PEXPIRE {bare:.2} µs");
        println!("    script calls / expected       {commands:.3}");
        println!(
            "    memory a lock                 {client_memory:.0} bytes here, {server_memory:.0} bytes in Redis"
        );
        let figure = |title: &str, unit: &str| {
            Figure::new(6, title, format!("{count} locks, ttl {ttl:?}"), unit)
        };
        let floor = format!("{:.2} µs a bare PEXPIRE", bare.median());
        let late_at_most = ttl.as_secs_f64() * 100.0;
        figure("Holding: lost", "locks")
            .bound(Bound::AtMost(0.0))
            .note(lost);
        figure("Holding: renewals late, p99.9", "ms")
            .beside(format!(
                "{:.1} ms a thread that only sleeps, at the most",
                overslept.median()
            ))
            .bound(Bound::AtMost(late_at_most))
            .note(late);
        figure("Holding: processor of the process", "% of a core")
            .bound(Bound::AtMost(5.0))
            .note(load);
        figure("Holding: processor a renewal", "µs")
            .beside(floor)
            .note(each);
        figure("Holding: processor of the server", "% of a core")
            .bound(Bound::AtMost(6.0))
            .note(server);
        figure("Holding: script calls", "× 3 a lock and ttl").note(commands);
        figure("Holding: memory in the client", "bytes a lock")
            .bound(Bound::AtMost(1024.0))
            .note(client_memory);
        figure("Holding: memory in Redis", "bytes a lock")
            .bound(Bound::AtMost(400.0))
            .note(server_memory);
    }
}

/// Some of the locks, looked at from outside.
struct Sample {
    keys: Vec<String>,
    /// The end of the lease when it was last looked at, in µs of the server's clock, and which
    /// renewal made it.
    last: Vec<Option<(f64, f64)>>,
    /// How long after its time each renewal came that was seen, in ms; below zero if it went along
    /// with others.
    late: Vec<f64>,
    /// µs
    ttl: f64,
}

impl Sample {
    fn new(keys: Vec<String>, ttl: Duration) -> Sample {
        Sample {
            last: vec![None; keys.len()],
            keys,
            late: Vec::new(),
            ttl: ttl.as_secs_f64() * 1e6,
        }
    }

    fn look(&mut self, admin: &mut Connection) {
        let mut states: Vec<Option<Vec<u8>>> = Vec::new();
        for keys in self.keys.chunks(BATCH) {
            let mut pipe = redis::pipe();
            for key in keys {
                pipe.hget(key, "s");
            }
            states.extend(
                pipe.query::<Vec<Option<Vec<u8>>>>(admin)
                    .expect("HGET is answered"),
            );
        }
        let period = self.ttl / 3.0;
        for (state, last) in states.iter().zip(&mut self.last) {
            // docs/PROTOCOL.md: the end comes first, then when it was granted.
            let Some([end, granted]) = state.as_deref().and_then(two_doubles) else {
                continue;
            };
            let after = end - self.ttl - granted;
            match *last {
                // Which renewal this was can only be guessed; from then on they are counted.
                None => *last = Some((end, (after / period).round())),
                Some((seen, number)) if seen < end => {
                    self.late.push((after - (number + 1.0) * period) / 1e3);
                    *last = Some((end, number + 1.0));
                }
                Some(_) => {}
            }
        }
    }

    fn last_in_a_thousand(&mut self) -> f64 {
        self.late.sort_unstable_by(f64::total_cmp);
        self.late
            .get(self.late.len() * 999 / 1000)
            .copied()
            .unwrap_or(f64::NAN)
    }
}

/// ms
fn overslept(until: u64) -> f64 {
    const STEP: Duration = Duration::from_millis(5);
    let mut longest = 0;
    while now() < until {
        let started = now();
        thread::sleep(STEP);
        longest = longest.max(now() - started);
    }
    longest as f64 / 1e6 - STEP.as_secs_f64() * 1e3
}

fn two_doubles(bytes: &[u8]) -> Option<[f64; 2]> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some([
        f64::from_le_bytes(*first),
        f64::from_le_bytes(*rest.first_chunk()?),
    ])
}

/// µs of this thread's processor that a PEXPIRE takes at the least.
fn bare(admin: &mut Connection, prefix: &str) -> f64 {
    let key = format!("{prefix}:bare");
    let _: () = redis::cmd("SET")
        .arg(&key)
        .arg("x")
        .query(admin)
        .expect("SET is answered");
    let before = read(ClockId::ThreadCPUTime);
    for _ in 0..BARE / BATCH {
        let mut pipe = redis::pipe();
        for _ in 0..BATCH {
            pipe.pexpire(&key, 30_000);
        }
        let _: Vec<bool> = pipe.query(admin).expect("PEXPIRE is answered");
    }
    let took = read(ClockId::ThreadCPUTime) - before;
    let _: () = redis::cmd("DEL")
        .arg(&key)
        .query(admin)
        .expect("DEL is answered");
    took as f64 / 1e3 / BARE as f64
}

fn key(prefix: &str, i: usize) -> String {
    format!("fairlock:{{{prefix}:{i}}}")
}

/// The records of locks whose process has ended.
fn clear(admin: &mut Connection, prefix: &str, count: usize) {
    for from in (0..count).step_by(BATCH) {
        let mut pipe = redis::pipe();
        for i in from..count.min(from + BATCH) {
            pipe.del(key(prefix, i));
        }
        let _: Vec<u64> = pipe.query(admin).expect("DEL is answered");
    }
}

fn info(admin: &mut Connection, section: &str, name: &str) -> f64 {
    let info: String = redis::cmd("INFO")
        .arg(section)
        .query(admin)
        .expect("INFO is answered");
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split(',').next()?.parse().ok())
        .unwrap_or(0.0)
}

fn calls(admin: &mut Connection) -> f64 {
    info(admin, "commandstats", "cmdstat_evalsha:calls=")
        + info(admin, "commandstats", "cmdstat_eval:calls=")
}

/// Seconds.
fn server_cpu(admin: &mut Connection) -> f64 {
    info(admin, "cpu", "used_cpu_user:") + info(admin, "cpu", "used_cpu_sys:")
}

/// The holding process: for each number it reads, it takes that many more locks. It ends without
/// releasing them.
fn hold(args: &[String]) {
    let [prefix, ttl_ms] = args else {
        panic!("not the arguments of a child")
    };
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let ttl = Duration::from_millis(ttl_ms.parse().expect("a number"));
    let manager = LockManager::builder(url)
        .options(LockOptions::new().ttl(ttl))
        .build()
        .expect("a Redis that answers");
    let mut locks: Vec<LockGuard> = Vec::new();
    serve(|line| {
        if line == "end" {
            let stats = manager.stats();
            return vec![
                stats.renewals_confirmed,
                stats.renewals_failed,
                locks.iter().filter(|lock| !lock.is_held()).count() as u64,
            ];
        }
        let more: usize = line.parse().expect("a number of locks");
        locks.reserve(more);
        for _ in 0..more {
            locks.push(
                manager
                    .lock(format!("{prefix}:{}", locks.len()))
                    .expect("nobody else wants it"),
            );
        }
        vec![locks.len() as u64]
    });
    process::exit(0);
}
