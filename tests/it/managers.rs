//! Managers with a given TTL, and a lock's record as Redis has it.

use crate::fixtures::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_HORIZON};
use std::{collections::BTreeMap, time::Duration};

use fairlock::{Builder, LockManager, endpoint::Endpoint};

use crate::backend::Keyspace;
use crate::fixtures::{build, with_ttl};
use crate::support::packed;

/// A manager with this TTL and all timings derived from it.
pub(crate) fn manager(to: impl Into<Endpoint>, ttl: Duration) -> LockManager {
    build(with_ttl(to, ttl))
}

/// A manager for tests of order alone: it tolerates a machine that is too busy to answer for
/// seconds.
pub(crate) fn patient(to: impl Into<Endpoint>) -> LockManager {
    build(patient_builder(to))
}

/// Its settings.
pub(crate) fn patient_builder(to: impl Into<Endpoint>) -> Builder {
    with_ttl(to, Duration::from_secs(60))
        .command_timeout(Duration::from_secs(5))
        .check_period(DEFAULT_CHECK_PERIOD)
        .horizon(Duration::from_secs(20))
}

/// T, the command timeout, of a manager with this TTL.
pub(crate) fn command_timeout(ttl: Duration) -> Duration {
    DEFAULT_COMMAND_TIMEOUT.min(ttl / 10)
}

/// How long the keys of a name outlast all leases in them: at least and at most.
pub(crate) const RETENTION: (Duration, Duration) =
    (Duration::from_secs(3600), Duration::from_secs(3661));

/// P, the check period, of a manager with this TTL.
pub(crate) fn check_period(ttl: Duration) -> Duration {
    DEFAULT_CHECK_PERIOD.min(ttl / 8)
}

/// H, the horizon, of a manager with this TTL.
pub(crate) fn horizon(ttl: Duration) -> Duration {
    DEFAULT_HORIZON.min(ttl / 2)
}

/// All fields of a name's record.
pub(crate) fn record(keys: &dyn Keyspace, name: &str) -> BTreeMap<String, String> {
    keys.query(&["EVAL", packed::LOOK, "1", &format!("fairlock:{{{name}}}")])
}

/// How many fields of a name's record have this prefix: `w:` for waiters, `m:` for managers'
/// stamps.
pub(crate) fn fields(keys: &dyn Keyspace, name: &str, prefix: &str) -> usize {
    record(keys, name)
        .keys()
        .filter(|field| field.starts_with(prefix))
        .count()
}

/// The owner's token in a name's record.
pub(crate) fn owner(keys: &dyn Keyspace, name: &str) -> Option<String> {
    keys.query(&["HGET", &format!("fairlock:{{{name}}}"), "o"])
}

/// The tokens in a name's queue, including those of dead waiters.
pub(crate) fn queue(keys: &dyn Keyspace, name: &str) -> Vec<String> {
    keys.query(&["LRANGE", &format!("fairlock:{{{name}}}:q"), "0", "-1"])
}

/// Asserts that the name has no owner and no waiter, and that every key that is left expires.
#[track_caller]
pub(crate) fn assert_nothing_left(keys: &dyn Keyspace, name: &str) {
    let record = record(keys, name);
    let waiters: Vec<_> = record
        .keys()
        .filter(|field| field.starts_with("w:"))
        .collect();
    assert!(waiters.is_empty(), "waiters are left: {record:?}");
    assert_eq!(record.get("o"), None, "an owner is left: {record:?}");
    for count in ["n", "r"] {
        assert!(
            record.get(count).is_none_or(|n| n == "0"),
            "{count} is not 0: {record:?}"
        );
    }
    assert_eq!(queue(keys, name), [""; 0], "the queue has entries");
    assert_eq!(keys.keys_without_ttl(), [""; 0], "keys would stay forever");
}
