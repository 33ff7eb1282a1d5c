//! The limiter. Copy this file.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, Semaphore};

const TTL: Duration = Duration::from_secs(10);

/// At most `calls` calls reach a service in any `window`, by the service's own clock.
pub(crate) struct Limiter {
    permits: Semaphore,
    window: Duration,
    margin: Duration,
}

impl Limiter {
    /// A permit serves one call, and no other for `window` and `margin`. The margin is the longest
    /// usual time from a grant to the end of its call, and 1 % of the ttl and 2 ms, by which the lease
    /// ends early here. All processes must use the same numbers.
    pub(crate) fn new(
        mgr: &LockManager,
        name: &str,
        calls: u32,
        window: Duration,
        margin: Duration,
    ) -> Limiter {
        let options = LockOptions::new().ttl(TTL).hold_at_least(window + margin);
        Limiter {
            permits: mgr.with(options).semaphore(name, calls),
            window,
            margin,
        }
    }

    /// Waits until one more call may begin, and makes it with the permit in hand.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> T) -> fairlock::Result<T> {
        let permit = self.permits.acquire(1)?;
        permit.check()?; // lost, if this process was stopped for longer than the ttl
        let now = Instant::now();
        // How old the grant is, or less: the lease began with it.
        let age = TTL.saturating_sub(permit.remaining());
        // A call that panics has perhaps been made, too.
        let answer = catch_unwind(AssertUnwindSafe(call));
        // The service got the call before it answered. If that was within the margin, the window
        // that the grant began is long enough. If not, another window begins here.
        if age + now.elapsed() > self.margin {
            thread::sleep(self.window + self.margin);
        }
        drop(permit);
        Ok(answer.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}
