//! A pool of threads does many small jobs. Each job needs the lock of its tenant.
//!
//!     cargo run --features memory --example per_tenant_worker
//!     cargo run --release --example per_tenant_worker
//!     REDIS_URL=redis://127.0.0.1/ cargo run --release --example per_tenant_worker
//!
//! Mostly the same process has the next job of a tenant, and no other process wants its lock. With
//! `LockOptions::keep` the pool keeps the lock between the jobs, and the next job has it without a
//! request. If another process wants the lock, Redis tells the pool, which releases it at once, or at
//! the end of the job that is running.
//!
//! Here the pool does jobs for half a second without `keep_idle`, and for half a second with it. Then
//! another process takes the lock of each tenant. Last, the pool shuts down, which releases all that
//! it keeps. A process that ends without that leaves its kept locks taken until their ttl is over.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{FenceGate, LockManager, LockOptions, PreviousHolder, stats::Stats};
use support::{Outcome, Store, check, own_name, run, until};

const THREADS: usize = 4;
const TENANTS: usize = 16;
/// How long the pool works in each of the two ways.
const RUN_FOR: Duration = Duration::from_millis(500);
/// A lock that no job used for this time is released.
const UNUSED: Duration = Duration::from_secs(2);

/// Somebody that the pool works for.
struct Tenant {
    lock: String,
    /// Refuses a job whose lock was lost. In a real program the database does that: see the example
    /// `fencing`.
    newest: FenceGate,
    done: AtomicU64,
}

/// One small job of a tenant. Copy this function.
fn do_job(locks: &LockManager, tenant: &Tenant) -> fairlock::Result<()> {
    let guard = locks.lock(&tenant.lock)?;
    if tenant.newest.admit(guard.fence()) {
        tenant.done.fetch_add(1, Ordering::Relaxed);
    }
    // The drop keeps the lock, if the options say so. `unlock` would release it.
    Ok(())
}

fn main() -> ExitCode {
    run(per_tenant_worker)
}

fn per_tenant_worker(store: &Store) -> Outcome {
    let pool = LockManager::connect(store)?;
    let prefix = own_name("tenant");
    let tenant = |number| Tenant {
        lock: format!("{prefix}:{number}"),
        newest: FenceGate::new(),
        done: AtomicU64::new(0),
    };
    let tenants: Vec<Tenant> = (0..TENANTS).map(tenant).collect();

    println!("{THREADS} threads do jobs for {TENANTS} tenants.");
    let plain = work(&pool, &tenants)?;
    plain.print("without keep");
    let keeping = pool.with(LockOptions::new().keep_idle(UNUSED));
    // The first lock of a name is a plain one. And nothing is kept before the pool knows that it will
    // hear of others, which takes up to a check period.
    until("a lock is kept", || {
        tenants
            .iter()
            .try_for_each(|tenant| do_job(&keeping, tenant))?;
        Ok(pool.stats().kept_turns > 0)
    })?;
    let kept = work(&keeping, &tenants)?;
    kept.print("with keep");
    let done: u64 = tenants.iter().map(|t| t.done.load(Ordering::Relaxed)).sum();
    check(
        format!("all {done} jobs were done by the newest holder"),
        done == granted(&pool.stats()),
    )?;
    check(
        format!(
            "with keep the rate is {:.0} times as high",
            kept.rate / plain.rate
        ),
        kept.rate > plain.rate,
    )?;
    let local = kept.kept_turns + kept.local_handovers;
    check(
        format!("{local} of {} locks needed no Redis", kept.jobs),
        local > kept.jobs / 2,
    )?;

    println!();
    println!("Another process wants the lock of each tenant.");
    let other = LockManager::connect(store)?;
    let mut longest = Duration::ZERO;
    for tenant in &tenants {
        let asked = Instant::now();
        let guard = other.lock(&tenant.lock)?;
        longest = longest.max(asked.elapsed());
        if guard.previous_holder() != PreviousHolder::Released {
            return Err(format!("the pool did not release {}", tenant.lock).into());
        }
        guard.unlock()?;
    }
    check(
        format!(
            "it had each after {:.1} ms or less",
            longest.as_secs_f64() * 1e3
        ),
        longest < UNUSED,
    )?;
    until("the pool was told", || Ok(pool.stats().recalls > 0))?;
    println!("  the pool was asked for {} locks", pool.stats().recalls);

    println!();
    println!("The pool shuts down.");
    let tenant = &tenants[0];
    let before = pool.stats().kept_turns;
    until("a lock is kept again", || {
        do_job(&keeping, tenant)?;
        Ok(pool.stats().kept_turns > before)
    })?;
    pool.shutdown(Duration::from_secs(1))?;
    let guard = other.lock(&tenant.lock)?;
    check(
        "the next process gets the lock at once",
        guard.previous_holder() == PreviousHolder::Released,
    )?;
    Ok(guard.unlock()?)
}

/// The pool's work in one of the two ways.
struct Done {
    /// A second.
    rate: f64,
    jobs: u64,
    requests: u64,
    kept_turns: u64,
    local_handovers: u64,
}

/// All threads do jobs, of one tenant after the other.
fn work(locks: &LockManager, tenants: &[Tenant]) -> fairlock::Result<Done> {
    let before = locks.stats();
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let one_thread = || {
        while began.elapsed() < RUN_FOR {
            let tenant = next.fetch_add(1, Ordering::Relaxed) % tenants.len();
            do_job(locks, &tenants[tenant])?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(one_thread));
        let ends = threads.map(|thread| thread.join().expect("a worker does not panic"));
        ends.into_iter().collect::<fairlock::Result<()>>()
    })?;
    let took = began.elapsed();
    let after = locks.stats();
    let count = |of: fn(&Stats) -> u64| of(&after) - of(&before);
    let jobs = count(granted);
    Ok(Done {
        rate: jobs as f64 / took.as_secs_f64(),
        jobs,
        requests: count(|stats| stats.requests),
        kept_turns: count(|stats| stats.kept_turns),
        local_handovers: count(|stats| stats.local_handovers),
    })
}

/// The locks that the workers got.
fn granted(stats: &Stats) -> u64 {
    stats.acquisitions_at_once + stats.acquisitions_after_wait
}

impl Done {
    fn print(&self, how: &str) {
        let Done {
            rate,
            jobs,
            requests,
            kept_turns,
            local_handovers,
        } = self;
        println!("  {how}: {rate:.0} jobs a second");
        println!(
            "    {jobs} jobs, {requests} requests, {kept_turns} kept turns, {local_handovers} local hand-overs"
        );
    }
}
