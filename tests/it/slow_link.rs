//! Renewals over a link whose round trip takes most of a command timeout. On Redis alone, since the
//! in-memory store has no link.

use std::time::Duration;

use fairlock::{LockGuard, LockManager};

use crate::fixtures::{P, build, warm_up, with_ttl};
use crate::support::{Proxy, Server, throughout};

/// What is left of the timeout over that link is enough for a busy machine.
const T: Duration = Duration::from_secs(2);
const H: Duration = Duration::from_millis(6500);
const TTL: Duration = Duration::from_secs(12);

const ALL: usize = 12;

/// Locks for which another manager has waited in vain.
fn once_contended(ours: &LockManager, other: &LockManager) -> Vec<LockGuard> {
    let take = |i: usize| {
        let name = format!("a{i}");
        let guard = ours.lock(&*name).unwrap();
        let found = other.try_lock_for(&*name, T / 40).unwrap();
        assert!(found.is_none(), "it is taken");
        guard
    };
    (0..ALL).map(take).collect()
}

#[test]
fn locks_for_which_somebody_waited_are_renewed_over_a_slow_link() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let [ours, other] = [proxy.url(), server.url()].map(|url| {
        let builder = with_ttl(url, TTL).command_timeout(T);
        build(builder.check_period(P).horizon(H))
    });
    warm_up(&ours);
    let guards = once_contended(&ours, &other);
    proxy.delay(T * 13 / 40);
    throughout(2 * TTL, "all are held", || {
        guards.iter().all(|guard| guard.is_held())
    });
}
