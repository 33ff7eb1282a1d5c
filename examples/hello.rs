//! The smallest useful program: connect, lock, work, unlock.
//!
//!     cargo run --example hello
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example hello
//!
//! Without `REDIS_URL` it starts a private redis-server for itself. With one, start it twice at the same
//! time: the second waits until the first is done.

#[path = "support/private_redis.rs"]
mod private_redis;

use std::error::Error;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use fairlock::LockManager;
use private_redis::{Over, redis_or_exit};

fn hello(url: &str) -> fairlock::Result<()> {
    let mgr = LockManager::connect(url)?;

    println!("waiting for the lock \"invoices:42\"");
    let guard = mgr.lock("invoices:42")?;
    println!("it is ours, with fence {}, and is renewed for as long as we keep it", guard.fence());

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
    let redis = redis_or_exit("REDIS_URL", Over::UnixSocket, None);
    println!("using {}", redis.about);
    match hello(&redis.url) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            if let Some(cause) = error.source() {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}
