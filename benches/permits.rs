//! Permits out of a capacity: the cost of a permit beside many other holders, the cost of finding a
//! holder that lapsed among them, and readers, which are handed a lock together.
//!
//!     cargo bench --bench permits
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench permits
//!
//! Without the variable it starts a private redis-server on a port of this host. The cases take
//! turns every few milliseconds; ratios are the median of all rounds (least..most). The other
//! holders have fixed leases, so that no renewal disturbs the measurement. The first call after a
//! holder lapsed looks at all holders and finds it; no other call does.

mod support;
#[path = "support/throughput.rs"]
mod throughput;

use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, ReadGuard, SemaphoreGuard, Waiter};
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, is_bench, median, micros, now, rounds, server};
use throughput::throughput;

/// Cycles for each crowd in a round, and how many before the next crowd's turn.
const TURNS: usize = 20;
const AT_ONCE: usize = 25;
/// How often a holder lapses among each crowd in a round.
const LAPSES: usize = 3;
const LEASE: Duration = Duration::from_millis(20);
const HOLD: Duration = Duration::from_millis(1);
const HANDOVERS: usize = 100;
const READERS: usize = 8;
const READ_FOR: Duration = Duration::from_millis(1000);

fn main() {
    let redis = server();
    let sizes: &[u32] = if is_bench() {
        &[10, 100, 1_000, 10_000]
    } else {
        &[10, 100]
    };
    let waiting: &[usize] = if is_bench() { &[1, 8, 64] } else { &[1, 8] };
    println!("permits: {} rounds, on {}", rounds(7), redis.about);
    println!();
    let mgr = LockManager::connect(&*redis.url).expect("a Redis");
    let mut crowds: Vec<_> = sizes.iter().map(|size| Crowd::new(&mgr, *size)).collect();
    beside_a_mutex(&mgr);
    println!();
    taking(&redis.url, &mgr, &mut crowds);
    println!();
    finding(&mut crowds);
    // Else they would be looked at now and then.
    drop(crowds);
    println!();
    handing_over(&mgr, waiting);
    println!();
    reading(&mgr);
}

/// A semaphore of which all permits but one are held.
struct Crowd<'a> {
    size: u32,
    name: String,
    mgr: &'a LockManager,
    _others: Vec<SemaphoreGuard>,
}

impl<'a> Crowd<'a> {
    fn new(mgr: &'a LockManager, size: u32) -> Crowd<'a> {
        let name = format!("bench:permits:{size}:{}", process::id());
        let others = mgr
            .with(LockOptions::new().fixed_lease(Duration::from_secs(3600)))
            .semaphore(&name, size + 1);
        let others = (0..size)
            .map(|_| others.acquire(1).expect("it is free"))
            .collect();
        Crowd {
            size,
            name,
            mgr,
            _others: others,
        }
    }

    /// ns
    fn cycle(&self) -> u64 {
        let last = self.mgr.semaphore(&self.name, self.size + 1);
        let started = now();
        drop(last.acquire(1).expect("one is left"));
        now() - started
    }

    /// The duration of the call that took the permit of a lapsed holder.
    fn lapse(&self) -> u64 {
        let fixed = self
            .mgr
            .with(LockOptions::new().fixed_lease(LEASE))
            .semaphore(&self.name, self.size + 1);
        let lapses = fixed
            .try_acquire(1)
            .expect("it is answered")
            .expect("one is left");
        thread::sleep(LEASE);
        let last = self.mgr.semaphore(&self.name, self.size + 1);
        loop {
            let started = now();
            let found = last.try_acquire(1).expect("it is answered");
            let took = now() - started;
            if found.is_some() {
                drop(lapses);
                return took;
            }
            thread::sleep(HOLD);
        }
    }
}

/// Takes a lock and releases it.
type Cycle<'a> = &'a dyn Fn() -> fairlock::Result<()>;

/// A permit that nobody else wants, and the same as a reader and a writer.
fn beside_a_mutex(mgr: &LockManager) {
    let name = |kind| format!("bench:kinds:{kind}:{}", process::id());
    let (mutex, rw_lock, permits) = (name("mutex"), name("rw_lock"), name("semaphore"));
    let kinds: [(&str, f64, Cycle<'_>); 4] = [
        ("a mutex", 1.0, &|| mgr.lock(&mutex)?.unlock()),
        ("a read lock", 1.05, &|| {
            mgr.rw_lock(&rw_lock).read()?.unlock()
        }),
        ("a write lock", 1.08, &|| {
            mgr.rw_lock(&rw_lock).write()?.unlock()
        }),
        ("a semaphore of five", 1.08, &|| {
            mgr.semaphore(&permits, 5).acquire(1)?.unlock()
        }),
    ];
    let mut ratios = kinds.map(|_| Rounds::default());
    let mut medians = kinds.map(|_| Vec::new());
    for _ in 0..rounds(7) {
        let mut times = kinds.map(|_| Vec::new());
        for _ in 0..TURNS {
            for ((_, _, cycle), times) in kinds.iter().zip(&mut times) {
                for _ in 0..AT_ONCE {
                    let started = now();
                    cycle().expect("nobody else wants it");
                    times.push(now() - started);
                }
            }
        }
        let times = times.map(median);
        for (i, time) in times.into_iter().enumerate() {
            ratios[i].add(time as f64 / times[0] as f64);
            medians[i].push(time);
        }
    }
    println!("  lock + unlock        p50          / a mutex");
    for (((kind, most, _), ratio), times) in kinds.iter().zip(&ratios).zip(medians) {
        let time = micros(median(times));
        println!("  {kind:<20}{time:>10}   {ratio}");
        if *most > 1.0 {
            Figure::new(8, "Lock + unlock, p50, beside a mutex", *kind, "× a mutex")
                .beside(format!("{time} here"))
                .bound(Bound::AtMost(*most))
                .note(ratio);
        }
    }
}

fn taking(url: &str, mgr: &LockManager, crowds: &mut [Crowd]) {
    let mut floor = bare_connection(url);
    let name = format!("bench:mutex:{}", process::id());
    let mut trips = Vec::new();
    let mut mutex = Vec::new();
    let mut times: Vec<Vec<u64>> = crowds.iter().map(|_| Vec::new()).collect();
    let mut ratios: Vec<[Rounds; 2]> = crowds.iter().map(|_| Default::default()).collect();
    for _ in 0..rounds(7) {
        let mut of_mutex = Vec::new();
        let mut of_crowds: Vec<Vec<u64>> = crowds.iter().map(|_| Vec::new()).collect();
        for _ in 0..TURNS {
            for (crowd, times) in crowds.iter().zip(&mut of_crowds) {
                times.extend((0..AT_ONCE).map(|_| crowd.cycle()));
            }
            for _ in 0..AT_ONCE {
                let started = now();
                drop(mgr.lock(&name).expect("nobody else wants it"));
                of_mutex.push(now() - started);
                let started = now();
                let _: String = redis::cmd("PING")
                    .query(&mut floor)
                    .expect("PING is answered");
                trips.push(now() - started);
            }
        }
        let of_mutex = median(of_mutex);
        let of_crowds: Vec<u64> = of_crowds.into_iter().map(median).collect();
        for ((time, ratio), times) in of_crowds.iter().zip(&mut ratios).zip(&mut times) {
            ratio[0].add(*time as f64 / of_crowds[0] as f64);
            ratio[1].add(*time as f64 / of_mutex as f64);
            times.push(*time);
        }
        mutex.push(of_mutex);
    }
    let (mutex, trip) = (micros(median(mutex)), micros(median(trips)));
    println!(
        "  {:<18}{:>12}   {:<20}   {:<20}",
        "acquire + drop", "", "/ fewest", "/ a mutex"
    );
    let fewest = crowds[0].size;
    for ((crowd, times), ratio) in crowds.iter().zip(times).zip(&ratios) {
        let time = micros(median(times));
        println!(
            "  {:<18}{time:>12}   {:<20}   {:<20}",
            format!("{} others", crowd.size),
            ratio[0],
            ratio[1]
        );
        let beside = format!("{time} here; {mutex} a mutex; {trip} round trip");
        let bound = if crowd.size > fewest {
            Bound::AtMost(1.5)
        } else {
            Bound::None
        };
        let case = format!("{} others hold some", crowd.size);
        Figure::new(
            8,
            "Acquire + drop of a permit, p50",
            case,
            &format!("× with {fewest}"),
        )
        .beside(&beside)
        .bound(bound)
        .note(&ratio[0]);
        if crowd.size == fewest {
            let case = format!("{fewest} others hold some");
            Figure::new(
                8,
                "Acquire + drop of a permit, p50, beside a mutex",
                case,
                "× a mutex",
            )
            .beside(&beside)
            .note(&ratio[1]);
        }
    }
}

fn finding(crowds: &mut [Crowd]) {
    let mut found: Vec<Rounds> = crowds.iter().map(|_| Rounds::default()).collect();
    for _ in 0..rounds(7) {
        for (crowd, found) in crowds.iter().zip(&mut found) {
            found.add(median((0..LAPSES).map(|_| crowd.lapse())) as f64 / 1e3);
        }
    }
    println!("  the call that finds a lapsed holder");
    for (crowd, found) in crowds.iter().zip(&found) {
        println!("  {:<18}{found:>12.1} µs", format!("{} others", crowd.size));
        Figure::new(
            8,
            "The call that finds a lapsed holder, p50",
            format!("among {}", crowd.size),
            "µs",
        )
        .note(found);
    }
}

/// Threads that wait for the locks they get, and report when they had them.
struct Waiters {
    queue: Vec<Sender<Waiter<ReadGuard>>>,
    served: Receiver<(u64, ReadGuard)>,
}

impl Waiters {
    fn new(count: usize) -> Waiters {
        let (serve, served) = channel();
        let queue = (0..count).map(|_| {
            let serve = serve.clone();
            let (sender, queued) = channel::<Waiter<ReadGuard>>();
            thread::spawn(move || {
                for waiter in queued {
                    let guard = waiter.wait().expect("a lock in its turn");
                    if serve.send((now(), guard)).is_err() {
                        break;
                    }
                }
            });
            sender
        });
        Waiters {
            queue: queue.collect(),
            served,
        }
    }

    /// From the writer's release until the last reader runs, in ns.
    fn hand_over(&self, mgr: &LockManager, name: &str) -> u64 {
        let lock = mgr.rw_lock(name);
        let writer = lock.write().expect("nobody reads");
        for sender in &self.queue {
            sender
                .send(lock.enqueue_read().expect("a place in the queue"))
                .expect("the thread waits");
        }
        thread::sleep(HOLD);
        let released = now();
        drop(writer);
        let served: Vec<_> = self
            .queue
            .iter()
            .map(|_| self.served.recv().expect("all are served"))
            .collect();
        served
            .iter()
            .map(|(granted, _)| granted.saturating_sub(released))
            .max()
            .unwrap_or(0)
    }
}

fn handing_over(mgr: &LockManager, waiting: &[usize]) {
    let name = format!("bench:readers:{}", process::id());
    let crowds: Vec<Waiters> = waiting.iter().map(|count| Waiters::new(*count)).collect();
    let mut times: Vec<Rounds> = waiting.iter().map(|_| Rounds::default()).collect();
    for _ in 0..rounds(7) {
        let mut of_round: Vec<Vec<u64>> = waiting.iter().map(|_| Vec::new()).collect();
        for _ in 0..if is_bench() { HANDOVERS } else { 3 } {
            for (crowd, times) in crowds.iter().zip(&mut of_round) {
                times.push(crowd.hand_over(mgr, &name));
            }
        }
        for (times, of_round) in times.iter_mut().zip(of_round) {
            times.add(median(of_round) as f64 / 1e3);
        }
    }
    println!("  from a writer's release until the last reader runs");
    for (count, times) in waiting.iter().zip(&times) {
        println!("  {:<18}{times:>12.1} µs", format!("{count} readers"));
        let case = format!("{count} who wait in one manager");
        Figure::new(
            8,
            "From a writer's release until the last reader runs, p50",
            case,
            "µs",
        )
        .note(times);
    }
}

fn reading(mgr: &LockManager) {
    let name = format!("bench:read:{}", process::id());
    let mut ratio = Rounds::default();
    let mut shared = Vec::new();
    let mut own = Vec::new();
    for _ in 0..rounds(7) {
        let readers: Vec<_> = (0..READERS)
            .map(|_| || drop(mgr.rw_lock(&name).read().expect("nobody writes")))
            .collect();
        let read = throughput(READ_FOR, readers);
        let mutexes = (0..READERS).map(|i| {
            let name = format!("{name}:{i}");
            move || drop(mgr.lock(&name).expect("nobody else wants it"))
        });
        let locked = throughput(READ_FOR, mutexes.collect());
        ratio.add(read as f64 / locked as f64);
        shared.push(read);
        own.push(locked);
    }
    let (shared, own) = (median(shared), median(own));
    println!(
        "  {READERS} threads read one name: {shared}/s, and lock as many mutexes: {own}/s; ratio {ratio}"
    );
    Figure::new(
        8,
        "Read + drop, throughput",
        format!("{READERS} threads on one name"),
        "× mutexes",
    )
    .beside(format!("{own}/s with as many mutexes"))
    .note(&ratio);
}
