//! At most so many calls at a time to something that bears no more, in all processes together.
//!
//!     cargo run --features memory --example throttle
//!     cargo run --example throttle
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example throttle
//!
//! A semaphore has permits, of which each caller takes one and gives it back when its call is over. A call that costs more
//! takes several, and is not overtaken by cheap ones while it waits for them. A process that dies gives its permits back
//! after a TTL, since each has a lease of its own.
//!
//! Here four clients, which are threads with a manager each, share three permits, and one of them makes calls that take
//! two. With `REDIS_URL` it uses that Redis; without, an in-memory store if it is built with one, and else a private
//! redis-server. It ends with 0 if all was as it should be, with 1 if not, with 2 without a store.

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::{Error, Kind, LockManager, Semaphore};
use support::{Outcome, Store, check, own_name, play};

const PERMITS: u32 = 3;
const CALLS: usize = 10;

/// One call to what bears no more than its permits. This is the part to copy.
fn call(permits: &Semaphore, service: &Service, weight: u32) -> fairlock::Result<()> {
    let permit = permits.acquire_many(weight)?;
    service.serve(weight);
    permit.unlock()
}

fn main() -> ExitCode {
    play(throttle)
}

fn throttle(store: &Store) -> Outcome {
    let name = own_name("service");
    let clients: Vec<LockManager> = (0..4)
        .map(|_| LockManager::connect(store))
        .collect::<fairlock::Result<_>>()?;
    let service = Service::default();

    println!(
        "4 clients make {CALLS} calls each with {PERMITS} permits; the calls of one of them take two."
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
    let (most, calls) = (
        service.most.load(Ordering::SeqCst),
        service.calls.load(Ordering::SeqCst),
    );
    check(
        format!("all {calls} calls were served"),
        calls as usize == CALLS * clients.len(),
    )?;
    check(
        format!("never more than {most} permits were in use"),
        most <= PERMITS,
    )?;
    println!();

    println!("What else there is to know.");
    let permits = clients[0].semaphore(&name, PERMITS);
    let all = permits.acquire_many(PERMITS)?;
    check(
        "while all are taken, a try gets none",
        clients[1]
            .semaphore(&name, PERMITS)
            .try_acquire()?
            .is_none(),
    )?;
    let info = clients[1].inspect(&name)?.ok_or("it is in use")?;
    check(
        format!("inspect says that it is a {}", info.kind),
        matches!(info.kind, Kind::Semaphore { .. }),
    )?;
    let other = clients[2].semaphore(&name, PERMITS + 1).try_acquire();
    check(
        "a client that believes in another number of permits is refused",
        matches!(other, Err(Error::WrongKind { .. })),
    )?;
    let too_many = permits.try_acquire_many(PERMITS + 1);
    check(
        "asking for more than there are is an error, and no hang",
        matches!(too_many, Err(Error::Config { .. })),
    )?;
    drop(all);
    Ok(())
}

/// In life another program, which breaks down under more.
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
