//! Managers of a service with short periods.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Builder, Error, LockManager, LockOptions, endpoint::Endpoint};

use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::support::{Server, until_some};

pub(super) const TTL: Duration = Duration::from_secs(3);
/// T, the command timeout.
pub(super) const T: Duration = Duration::from_millis(400);
/// P, the check period.
pub(super) const P: Duration = Duration::from_millis(250);
/// For what must happen, but whose time is not under test.
pub(super) const SOON: Duration = Duration::from_secs(10);

pub(super) fn builder(to: impl Into<Endpoint>) -> Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(P)
        .horizon(Duration::from_millis(1500))
        .outage_limit(FAILOVER_WITHIN)
}

pub(super) fn manager(set: &SentinelSet) -> LockManager {
    build(builder(set.url()))
}

/// Builds the manager, and tries again if the machine was too slow for the connect timeout.
#[track_caller]
pub(super) fn build(builder: Builder) -> LockManager {
    until_some(SOON, "the service is there", || {
        match builder.clone().build() {
            Ok(manager) => Some(manager),
            Err(Error::Unavailable { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
}

/// Waits until one of these sentinels names another master than `old`, and says when that was.
pub(super) fn moment_of_change<'a>(
    set: &'a SentinelSet,
    sentinels: &[Server],
    old: &Server,
) -> (Instant, &'a Server) {
    let old = old.addr();
    let first = thread::scope(|scope| {
        let (sender, first) = crossbeam_channel::unbounded();
        for sentinel in sentinels {
            let sender = sender.clone();
            scope.spawn(move || {
                let new = until_some(FAILOVER_WITHIN, "another master is named", || {
                    SentinelSet::named_by(sentinel).filter(|addr| *addr != old)
                });
                let _ = sender.send((Instant::now(), new));
            });
        }
        first.recv().expect("a sentinel names one")
    });
    (first.0, set.node(first.1))
}
