//! Limits how many calls begin in a second, from all processes together.
//!
//!     cargo run --features memory --example rate_limiter
//!     cargo run --example rate_limiter
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example rate_limiter
//!
//! A semaphore with `hold_at_least` is a rate limiter. A permit that is released early stays taken
//! until the time since its grant is over. There is no burst at the border of two seconds, as with
//! a counter for each second. Callers wait their turn, first come, first served, instead of being
//! refused and trying again.
//!
//! `limiter.rs` has the limiter, which is the part to copy. Its limit is what the service sees: no
//! window has more calls than the limit, wherever it begins, by the service's own clock. For that
//! it does three things:
//!
//! - **It adds a margin.** The window of a permit begins with the grant, but the call comes to the
//!   service later. A late call and a quick one would be closer together than their grants. So a
//!   permit stays taken for the window and a margin.
//! - **It makes the call while it holds the permit.** So a permit never has two calls under way.
//! - **It begins another window if a call took longer than the margin.** Nobody knows when such a
//!   call came to the service, only that it was before its answer.
//!
//! Good to know:
//!
//! - The rate is `calls` for each window and margin. Make the margin a little longer than a call
//!   usually takes, from its grant to its answer. 1 % of the ttl and 2 ms of it go to the lease, which
//!   ends early here by that.
//! - The limit assumes that no permit is lost before its call has come to the service. A process
//!   that is stopped for longer than the ttl loses its permits, and its calls go out when it wakes:
//!   one too many for each permit. `force_release` and a loss of data in Redis do the same.
//! - It also assumes that a grant takes less than half a ttl to its caller, and that a call is over
//!   when it returns. A call that was given up may still be on its way.
//! - If a process dies with a permit, the permit is free when its ttl is over.
//! - Each call costs Redis the two requests of a lock. For thousands of calls a second, let each
//!   permit stand for a batch of calls.
//!
//! Here four clients make calls as fast as they may. Each client is a thread with its own manager.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod limiter;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::LockManager;
use limiter::Limiter;
use support::{Outcome, Store, check, own_name, run};

/// The limit of the service: at most this many calls in any window.
const LIMIT: usize = 5;
const WINDOW: Duration = Duration::from_millis(500);
const MARGIN: Duration = Duration::from_millis(250);
/// How many calls each client makes.
const CALLS: usize = 6;

fn main() -> ExitCode {
    run(limit)
}

fn limit(store: &Store) -> Outcome {
    let name = own_name("calls");
    let service = Service::default();
    println!("4 clients make {CALLS} calls each. The service allows {LIMIT} in any {WINDOW:?}.");
    let started = Instant::now();
    thread::scope(|scope| {
        let client = || -> fairlock::Result<()> {
            let mgr = LockManager::connect(store)?;
            let limiter = Limiter::new(&mgr, &name, LIMIT as u32, WINDOW, MARGIN);
            (0..CALLS).try_for_each(|_| limiter.call(|| service.serve()))
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a client does not panic"))
    })?;
    let took = started.elapsed();
    let calls = service.calls.into_inner()?;
    check(
        format!("all {} calls were made, in {took:.1?}", calls.len()),
        calls.len() == 4 * CALLS,
    )?;
    let least = calls
        .windows(LIMIT + 1)
        .map(|calls| calls[LIMIT] - calls[0])
        .min()
        .unwrap_or_default();
    check(
        format!(
            "the service saw any {} calls in no less than {least:.1?}",
            LIMIT + 1
        ),
        least >= WINDOW,
    )
}

/// In a real program this is another program, with a clock of its own.
#[derive(Default)]
struct Service {
    /// When each call came, in order.
    calls: Mutex<Vec<Instant>>,
}

impl Service {
    fn serve(&self) {
        let mut calls = self.calls.lock().unwrap();
        calls.push(Instant::now());
    }
}
