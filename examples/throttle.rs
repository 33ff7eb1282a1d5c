//! Limits how many calls at a time a service gets, from all processes together.
//!
//!     cargo run --features memory --example throttle
//!     cargo run --example throttle
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example throttle
//!
//! A semaphore has permits. Each caller takes one, and releases it after its call. A call that
//! costs more takes several, and cheap calls do not overtake it while it waits. If a process dies,
//! its permits are free again after a TTL, since each has its own lease. If a process is stopped for
//! longer than that, others get its permits, and its call may go out beside theirs when it wakes. So
//! a limit that must never be exceeded needs a service that refuses calls.
//!
//! Here four clients share three permits, and one of them makes calls that take two. Each client is
//! a thread with its own manager.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, Semaphore, inspect::Kind};
use support::{Outcome, Store, check, own_name, run};

const PERMITS: u32 = 3;
const CALLS: usize = 10;

/// One call to the service. Copy this function.
fn call(permits: &Semaphore, service: &Service, weight: u32) -> fairlock::Result<()> {
    let permit = permits.acquire(weight)?;
    service.serve(weight);
    permit.unlock()
}

fn main() -> ExitCode {
    run(throttle)
}

fn throttle(store: &Store) -> Outcome {
    let name = own_name("service");
    let clients: Vec<LockManager> = (0..4)
        .map(|_| LockManager::connect(store))
        .collect::<fairlock::Result<_>>()?;
    let service = Service::default();

    println!(
        "4 clients share {PERMITS} permits and make {CALLS} calls each. The calls of one client take two."
    );
    let served: fairlock::Result<Vec<()>> = thread::scope(|scope| {
        let work = |i: usize| {
            let permits = clients[i].semaphore(&name, PERMITS);
            (0..CALLS).try_for_each(|_| call(&permits, &service, if i == 0 { 2 } else { 1 }))
        };
        let threads: Vec<_> = (0..clients.len())
            .map(|i| scope.spawn(move || work(i)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a client does not panic"))
            .collect()
    });
    served?;
    let most = service.most.load(Ordering::SeqCst);
    let calls = service.calls.load(Ordering::SeqCst);
    check(
        format!("all {calls} calls were served"),
        calls as usize == CALLS * clients.len(),
    )?;
    check(
        format!("at most {most} permits were in use at once"),
        most <= PERMITS,
    )?;
    println!();

    println!("More about semaphores.");
    let permits = clients[0].semaphore(&name, PERMITS);
    let mut all = permits.acquire(PERMITS)?;
    check(
        "while all permits are taken, try_acquire returns None",
        clients[1]
            .semaphore(&name, PERMITS)
            .try_acquire(1)?
            .is_none(),
    )?;
    let info = clients[1]
        .inspect(&name)?
        .ok_or("nobody uses the semaphore")?;
    check(
        format!("inspect shows that the name is a {}", info.kind),
        matches!(info.kind, Kind::Semaphore { .. }),
    )?;
    // Each client goes by its own number. So the number can change while programs are replaced.
    let another = clients[2].semaphore(&name, PERMITS + 1).try_acquire(1)?;
    check(
        "a client with a larger number of permits gets one more at once",
        another.is_some(),
    )?;
    if let Some(permit) = another {
        // Unlike drop, unlock waits until Redis has released it.
        permit.unlock()?;
    }
    let too_many = permits.try_acquire(PERMITS + 1);
    check(
        "a request for more permits than there are is an error at once",
        matches!(too_many, Err(Error::Misused { .. })),
    )?;
    all.release_permits(PERMITS - 1)?;
    let rest = clients[1]
        .semaphore(&name, PERMITS)
        .try_acquire(PERMITS - 1)?;
    check(
        "a guard can release some of its permits and keep the others",
        rest.is_some() && all.is_held(),
    )?;
    drop((all, rest));
    Ok(())
}

/// In a real program this is another program, which fails under more load.
#[derive(Default)]
struct Service {
    load: AtomicU32,
    most: AtomicU32,
    calls: AtomicU32,
}

impl Service {
    fn serve(&self, weight: u32) {
        let load = self.load.fetch_add(weight, Ordering::SeqCst) + weight;
        self.most.fetch_max(load, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        self.load.fetch_sub(weight, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}
