//! A lock on a master, taken and handed over as any other.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::servers::{Deployment::Quorum, Server};
use fairlock::{Error, LockGuard, LockManager, LockOptions, Result};

use super::facts::Facts;
use super::remedy;

/// The rights that a lock of a quorum needs. One with a queue needs more.
const OF_QUORUM: &str = "+eval +evalsha +scan +time +hmget +hset +hdel +llen +pexpireat";

/// Takes a lock of a name that nobody else has, hands it over, releases it, and deletes the name.
/// Its TTL ends it if this process dies.
///
/// Blocks for some command timeouts and a check period.
pub(super) fn run(f: &mut Facts, server: Server, [holder, waiter]: &[LockManager; 2]) {
    let tried = match f.deployment {
        // Each server of a quorum must do its part. Nobody waits there.
        Quorum => alone(f, server).and_then(|holder| {
            let tried = try_to_lock(f, &holder, None);
            let _ = holder.shutdown(Duration::ZERO);
            tried
        }),
        _ => try_to_lock(f, holder, Some(waiter)),
    };
    if let Err(error) = tried {
        refused(f, "lock", &error);
    }
}

/// A manager of this server of a quorum alone.
fn alone(f: &Facts, server: Server) -> Result<LockManager> {
    let options = LockOptions::new().ttl(f.time("ttl_ms"));
    let manager = LockManager::builder(server).options(options);
    let manager = manager.prefix(f.text("prefix"));
    manager.command_timeout(f.time("timeout_ms")).build()
}

fn try_to_lock(f: &mut Facts, holder: &LockManager, waiter: Option<&LockManager>) -> Result<()> {
    let (name, began) = (f.text("lock_name").to_owned(), Instant::now());
    let Some(guard) = holder.try_lock(&name)? else {
        return Ok(());
    };
    f.set_time("lock_ms", began.elapsed());
    let end = match waiter {
        Some(waiter) => hand_over(f, guard, waiter, &name),
        None => guard.unlock(),
    };
    if let Err(error) = end {
        refused(f, "hand_over", &error);
    }
    // Otherwise Redis remembers the name for an hour.
    if let Ok(false) = holder.delete(&name) {
        // A release is on its way.
        thread::sleep(f.time("timeout_ms") / 4);
        let _ = holder.delete(&name);
    }
    Ok(())
}

fn hand_over(f: &mut Facts, guard: LockGuard, waiter: &LockManager, name: &str) -> Result<()> {
    // An error releases the lock.
    let mut place = waiter.enqueue(name)?;
    let began = Instant::now();
    guard.unlock()?;
    let guard = place.wait_for(f.time("check_period_ms") + f.time("timeout_ms") * 2)?;
    f.set_time("hand_over_ms", began.elapsed());
    guard.map_or(Ok(()), LockGuard::unlock)
}

/// Why a step failed, and the rights that the user lacks, as the library names them.
fn refused(f: &mut Facts, step: &str, error: &Error) {
    let (message, remedy) = remedy::of(error);
    let is_quorum = f.deployment == Quorum;
    // The library names the keys of this name alone.
    let rules = message.replace(&format!("{{{}}}", f.text("lock_name")), "");
    let rules = rules
        .split([' ', ';'])
        .filter(|word| word.starts_with(['+', '~', '&']));
    let is_needed = |rule: &&str| rule.starts_with('~') || OF_QUORUM.contains(*rule);
    for rule in rules.filter(|rule| !is_quorum || is_needed(rule)) {
        f.add("lacking", rule);
    }
    let is_lack = matches!(error, Error::Refused { code, .. } if code == "NOPERM");
    if !is_quorum || !is_lack || f.has("lacking") {
        f.set_error(step, (message, remedy));
    }
}
