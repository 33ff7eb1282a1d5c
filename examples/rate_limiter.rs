//! Limits how many calls begin in a second, from all processes together.
//!
//!     cargo run --features memory --example rate_limiter
//!     cargo run --example rate_limiter
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example rate_limiter
//!
//! A semaphore with `hold_at_least` is a rate limiter. A permit that is released early stays taken
//! until the window since its grant is over. So no window of that length has more grants than there
//! are permits. There is no burst at the border of two seconds, as with a counter for each second.
//! Callers wait their turn, first come, first served, instead of being refused and trying again.
//!
//! Good to know:
//!
//! - It counts grants, by the server's clock. A call begins when its grant has arrived. If another
//!   service counts calls by its own clock, make the window longer by what a grant may take to you
//!   and a call to that service.
//! - A permit that is held for longer than the window is not free sooner. If calls may be long,
//!   release the permit before the call, as here. Otherwise this also limits how many run at once.
//! - If a process dies with a permit, the permit is free when its ttl is over, if that is later.
//! - `force_release` and a loss of data in Redis end the windows.
//! - Each call costs Redis the two requests of a lock. For thousands of calls a second, let each
//!   permit stand for a batch of calls.
//!
//! Here four clients make calls as fast as they may. Each client is a thread with its own manager.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, Semaphore};
use support::{Outcome, Store, check, own_name, run};

const WINDOW: Duration = Duration::from_millis(500);
const CALLS_IN_WINDOW: usize = 5;
const CALLS: usize = 6;

/// At most `CALLS_IN_WINDOW` calls begin in any window. Copy this function and the next.
fn limiter(mgr: &LockManager, name: &str) -> Semaphore {
    let options = LockOptions::new().hold_at_least(WINDOW);
    mgr.with(options).semaphore(name, CALLS_IN_WINDOW as u32)
}

/// Waits until one more call may begin. Returns the fence of its permit.
fn await_turn(limiter: &Semaphore) -> fairlock::Result<u64> {
    let permit = limiter.acquire()?;
    let fence = permit.fence();
    permit.unlock()?;
    Ok(fence)
}

fn main() -> ExitCode {
    run(limit)
}

fn limit(store: &Store) -> Outcome {
    let name = own_name("calls");
    println!("4 clients make {CALLS} calls each, at most {CALLS_IN_WINDOW} in any {WINDOW:?}.");
    let started = Instant::now();
    let mut turns: Vec<u64> = thread::scope(|scope| {
        let client = || -> fairlock::Result<Vec<u64>> {
            let limiter = limiter(&LockManager::connect(store)?, &name);
            (0..CALLS).map(|_| await_turn(&limiter)).collect()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a client does not panic"))
            .collect::<fairlock::Result<Vec<_>>>()
    })?
    .concat();
    let took = started.elapsed();
    turns.sort_unstable();
    check(
        format!("all {} calls were made, in {took:.1?}", turns.len()),
        turns.len() == 4 * CALLS,
    )?;
    // A fence is the server's time in µs at the grant. Grants of one moment get neighbouring
    // fences.
    let least = turns
        .windows(CALLS_IN_WINDOW + 1)
        .map(|turns| Duration::from_micros(turns[CALLS_IN_WINDOW] - turns[0]))
        .min()
        .unwrap_or_default();
    check(
        format!(
            "any {} calls took at least {least:.1?}",
            CALLS_IN_WINDOW + 1
        ),
        least + Duration::from_micros(CALLS_IN_WINDOW as u64) >= WINDOW,
    )?;
    Ok(())
}
