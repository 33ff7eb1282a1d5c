//! R18 (replica acks) for kept locks: the grant is confirmed by the replicas, the turns need none, and
//! a lease that no replica confirms any more is not lent.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, PreviousHolder, Step};

use super::{ACK, P, ReplicaSet, SOON, T, TTL, acked, becomes_free, owner, patient, plain};
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::{SLACK, until};

fn keeping(mgr: &LockManager, unused: Duration) -> LockManager {
    mgr.with(LockOptions::new().keep_idle(unused))
}

#[test]
fn r18_kept_lock_is_on_all_replicas_and_its_turns_ask_none() {
    let set = ReplicaSet::start(2);
    let mgr = keeping(&patient(&set, 2), Duration::from_secs(8));
    let other = plain(&set);
    for name in ["a", "b"] {
        keep(&mgr, name);
        let token = owner(&set.master, name);
        assert!(token.is_some());
        for replica in &set.replicas {
            assert_eq!(owner(&replica.server, name), token, "{name}");
        }
        assert!(costs_nothing(&mgr, || drop(mgr.lock(name).unwrap())));
        let guard = other
            .try_lock_for(name, SOON)
            .unwrap()
            .expect("the keeper is told");
        assert_eq!(guard.previous_holder(), PreviousHolder::Released);
    }
    assert_eq!(mgr.stats().losses(), 0);
}

/// The master still answers, so the lease in Redis goes on. Its owner must not count on that.
#[test]
fn r18_kept_lock_is_not_lent_without_its_replicas() {
    let set = ReplicaSet::start(1);
    let mgr = keeping(&acked(&set, 1), TTL / 4);
    until(SOON, "acknowledgements come", || mgr.lock("first").is_ok());
    let before = mgr.stats().kept_turns;
    until(SOON, "it is kept", || {
        let _ = mgr.lock("a");
        mgr.stats().kept_turns >= before + 10
    });
    set.replicas[0].cable.cut();
    let bound = TTL + ACK + T + SLACK;
    until(bound, "it is not lent any more", || match mgr.lock("a") {
        Err(Error::Unavailable {
            step: Step::Replicas,
            ..
        }) => true,
        Err(other) => panic!("{other}"),
        Ok(guard) => {
            assert!(guard.is_held() || guard.remaining().is_zero());
            false
        }
    });
    becomes_free(&plain(&set), "a");
    assert!(P < TTL);
}
