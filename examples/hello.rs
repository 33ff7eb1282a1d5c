//! The smallest useful program: connect, lock, work, unlock.
//!
//!     cargo run --features memory --example hello
//!     cargo run --example hello
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example hello
//!
//! The program uses the Redis of `REDIS_URL`. Start it twice at the same time, and the second one
//! waits until the first is done. Without `REDIS_URL` it uses an in-memory store, if it is built
//! with one, or else it starts a private redis-server.

mod support;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use fairlock::{LockManager, endpoint::Endpoint};

/// In a real program `to` is `"redis://127.0.0.1/"`.
fn hello(to: impl Into<Endpoint>) -> fairlock::Result<()> {
    let mgr = LockManager::connect(to)?;

    println!("waiting for the lock \"invoices:42\"");
    let guard = mgr.lock("invoices:42")?;
    println!(
        "we hold it, with fence {}; it is renewed until we release it",
        guard.fence()
    );

    println!("working");
    sleep(Duration::from_secs(1));
    // Check between two steps of work: returns an error if the lock was lost.
    guard.check()?;

    // Dropping the guard releases the lock too, but reports nothing.
    guard.unlock()?;
    println!("released while we still held it; the next waiter has it now");
    Ok(())
}

fn main() -> ExitCode {
    support::run(|store| Ok(hello(store)?))
}
