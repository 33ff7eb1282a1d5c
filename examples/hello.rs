//! The smallest useful program: connect, lock, work, unlock.
//!
//!     cargo run --features memory --example hello
//!     cargo run --example hello
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example hello
//!
//! With `REDIS_URL` it uses that Redis: start it twice at the same time, and the second waits until the first is
//! done. Without, it uses an in-memory store if it is built with one, and else starts a private redis-server.

mod support;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use fairlock::{Endpoint, LockManager};

/// In life, `to` is `"redis://127.0.0.1/"`.
fn hello(to: impl Into<Endpoint>) -> fairlock::Result<()> {
    let mgr = LockManager::connect(to)?;

    println!("waiting for the lock \"invoices:42\"");
    let guard = mgr.lock("invoices:42")?;
    println!(
        "it is ours, with fence {}, and is renewed for as long as we keep it",
        guard.fence()
    );

    println!("working");
    sleep(Duration::from_secs(1));
    // Between two steps of work: an error if the lock was lost meanwhile.
    guard.check()?;

    // Dropping the guard does the same, without the answer.
    guard.unlock()?;
    println!("released while it was still ours; whoever waits has it now");
    Ok(())
}

fn main() -> ExitCode {
    support::play(|store| Ok(hello(store)?))
}
