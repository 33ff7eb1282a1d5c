//! A loom model of a group: a lease is lost while its guard is made.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::LockGroup;
use crate::engine::{HeldLease, Request};
use crate::key::Key;
use crate::loss::{LossReason, PreviousHolder};
use crate::options::LockOptions;
use crate::script::{Grant, LockSpec, Token};
use crate::store::clock::Time;

#[test]
fn loss_before_the_guard_of_a_group_is_seen_by_one_side() {
    loom::model(|| {
        let group = LockGroup::new();
        let lease = Arc::new(lease());
        let renewal = thread::spawn({
            let (group, lease) = (Arc::clone(&group), Arc::clone(&lease));
            move || {
                lease.lose(LossReason::NotOwner);
                group.is_guarded()
            }
        });
        group.mark_guarded();
        let caller_sees_it = !lease.is_held(Time::from_nanos(50));
        assert!(
            caller_sees_it || renewal.join().unwrap(),
            "nobody reports it"
        );
    });
}

fn lease() -> HeldLease {
    let key = Key::new("fairlock", "k").expect("a valid name");
    let request = Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1);
    let grant = Grant {
        token: Token::new(),
        fence: 1,
        granted_at: 1,
        left: Duration::from_secs(10),
        previous: PreviousHolder::Unknown,
        waiting: None,
    };
    let (granted, deadline) = (Time::from_nanos(50), Time::from_nanos(100));
    HeldLease::new(Arc::new(request), &grant, granted, deadline)
}
