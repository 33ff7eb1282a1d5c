//! A lock on a master, taken and handed over as any other.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::servers::Deployment::Quorum;
use fairlock::{Error, LockGuard, LockManager, LockOptions, Result, servers::Server};

use super::facts::Facts;
use super::remedy;

/// The rights that a lock of a quorum needs. One with a queue needs more.
const OF_QUORUM: &str = "+eval +evalsha +scan +time +hmget +hset +hdel +llen +pexpireat";

/// Takes a lock of a name that nobody else has, hands it over, releases it, and deletes the name.
/// Its TTL ends it if this process dies.
///
/// Blocks for some command timeouts and a check period.
pub(super) fn run(f: &mut Facts, server: Server, managers: &[LockManager; 2]) {
    if let Err(error) = try_to_lock(f, server, managers) {
        refused(f, "lock", &error);
    }
}

fn try_to_lock(f: &mut Facts, server: Server, managers: &[LockManager; 2]) -> Result<()> {
    let ([holder, waiter], name) = (managers, &f.text("lock_name").to_owned());
    // Each server of a quorum must do its part. Nobody waits there.
    let is_alone = f.deployment == Quorum;
    let holder = if is_alone {
        let options = LockOptions::new().ttl(f.time("ttl_ms"));
        let alone = LockManager::builder(server).options(options);
        let alone = alone.prefix(f.text("prefix"));
        alone.command_timeout(f.time("timeout_ms")).build()?
    } else {
        holder.clone()
    };
    let began = Instant::now();
    let Some(guard) = holder.try_lock(name)? else {
        return Ok(());
    };
    let took = began.elapsed();
    f.set("lock", format_args!("a lock was taken in {took:.1?}"));
    let end = match is_alone {
        true => guard.unlock(),
        false => hand_over(f, guard, waiter, name),
    };
    if let Err(error) = end {
        refused(f, "hand_over", &error);
    }
    // Otherwise Redis remembers the name for an hour.
    if let Ok(false) = holder.delete(name) {
        // A release is on its way.
        thread::sleep(f.time("timeout_ms") / 4);
        let _ = holder.delete(name);
    }
    if is_alone {
        let _ = holder.shutdown(Duration::ZERO);
    }
    Ok(())
}

fn hand_over(f: &mut Facts, guard: LockGuard, waiter: &LockManager, name: &str) -> Result<()> {
    let mut place = match waiter.enqueue(name) {
        Ok(place) => place,
        Err(error) => {
            guard.unlock()?;
            return Err(error);
        }
    };
    let began = Instant::now();
    guard.unlock()?;
    let guard = place.wait_for(f.time("check_period_ms") + f.time("timeout_ms") * 2)?;
    let took = began.elapsed();
    f.set_time("hand_over_ms", took);
    f.set(
        "hand_over",
        format_args!("a waiter had the lock after {took:.1?}"),
    );
    guard.map_or(Ok(()), LockGuard::unlock)
}

/// Why a step failed, and the rights that the user lacks, as the library names them.
fn refused(f: &mut Facts, step: &str, error: &Error) {
    let (message, remedy) = remedy::of(error);
    let is_quorum = f.deployment == Quorum;
    let is_needed = |rule: &str| {
        !is_quorum || rule.starts_with('~') || OF_QUORUM.split(' ').any(|needed| needed == rule)
    };
    // The library names the keys of this name alone.
    let rules = message.replace(&format!("{{{}}}", f.text("lock_name")), "");
    let words = rules.split([' ', ';']).filter(|word| is_needed(word));
    for rule in words.filter(|word| word.starts_with(['+', '~', '&'])) {
        f.add("lacking", rule);
    }
    let is_lack = matches!(error, Error::Refused { code, .. } if code == "NOPERM");
    if !is_quorum || !is_lack || f.has("lacking") {
        f.set(step, message);
        f.set(&format!("{step}_remedy"), remedy);
    }
}
