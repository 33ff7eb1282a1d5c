//! A waiter's state machine, event by event.

use super::*;
use crate::key::Key;
use crate::options::LockOptions;
use crate::script::LockSpec;

/// A second copy of the request may still be under way. The grant of the first could be over
/// when it arrives.
#[test]
fn r8_notice_counts_only_once_its_request_is_over() {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let now = Time::from_nanos(1_000_000_000_000);
    let asking_with_notice = || {
        let token = Token::new();
        let previous = PreviousHolder::Unknown;
        let grant = Grant {
            token,
            fence: 7,
            granted_at: 1,
            left: request.ttl,
            previous,
            waiting: None,
        };
        let mut state = WaiterState::new(token);
        let action = state.on_notice(GrantNotice::from_reply(grant, now), now, &request);
        assert!(
            matches!(action, WaiterAction::Nothing) && state.is_asking(),
            "the notice counted while the request was in flight"
        );
        assert!(matches!(state.take_grant(now, &request), TakeGrant::NotYet));
        state
    };
    assert!(
        matches!(asking_with_notice().on_queued(now, 1, 1, 1, &request), WaiterAction::Keep(lease) if lease.fence() == 7)
    );
    assert!(
        matches!(asking_with_notice().on_no_reply(1, now, &request), WaiterAction::Keep(lease) if lease.fence() == 7)
    );
    // A waiter that was cancelled abandons the grant.
    let mut state = asking_with_notice();
    assert!(matches!(state.cancel(), WaiterAction::Nothing));
    assert!(matches!(
        state.on_no_reply(1, now, &request),
        WaiterAction::Abandon { .. }
    ));
}

/// As after a failover to data in which the token still waited: others may have held the lock
/// in between.
#[test]
fn grant_confirmed_with_another_fence_is_another_grant() {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let now = Time::from_nanos(1_000_000_000_000);
    for (fence, previous) in [(7, PreviousHolder::Released), (9, PreviousHolder::Unknown)] {
        let token = Token::new();
        let grant = Grant {
            token,
            fence: 7,
            granted_at: 1,
            left: Duration::ZERO,
            previous: PreviousHolder::Released,
            waiting: None,
        };
        let mut state = WaiterState::new(token);
        assert!(matches!(
            state.on_granted(GrantNotice::from_reply(grant, now), now, &request),
            WaiterAction::Confirm
        ));
        match state.on_confirmed(now, request.ttl, fence, false, &request) {
            WaiterAction::Keep(lease) => {
                assert_eq!((lease.fence(), lease.previous), (fence, previous))
            }
            _ => panic!("the renewal confirmed the grant"),
        }
    }
}

/// Its guard's token need not be kept: no message of its grant can come.
#[test]
fn token_is_kept_unless_its_only_request_was_granted_at_once() {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let now = Time::from_nanos(1_000_000_000_000);
    let kept_after = |event: fn(&mut WaiterState, Time, &Arc<Request>)| {
        let token = Token::new();
        let mut state = WaiterState::new(token);
        event(&mut state, now, &request);
        let grant = Grant {
            token: state.token,
            fence: 7,
            granted_at: 1,
            left: request.ttl,
            previous: PreviousHolder::Released,
            waiting: None,
        };
        match state.on_granted(GrantNotice::from_reply(grant, now), now, &request) {
            WaiterAction::Keep(lease) => lease.was_queued,
            _ => panic!("it is granted"),
        }
    };
    assert!(!kept_after(|_, _, _| {}));
    assert!(kept_after(|state, _, _| state.note_unanswered(0)));
    assert!(kept_after(|state, now, request| {
        let _ = state.on_queued(now, 1, 1, 1, request);
        assert!(state.begin_cancel());
    }));
    assert!(!kept_after(|state, _, _| {
        state.note_unanswered(0);
        assert!(state.restart(Token::new()), "another token");
    }));
}

/// The reply to the renewal shows it, however long ago the grant was made.
#[test]
fn grant_is_confirmed_after_the_troubles_before_its_renewal() {
    let key = Key::new("fairlock", "a").expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let granted = Time::from_nanos(1_000_000_000_000);
    let token = Token::new();
    let grant = Grant {
        token,
        fence: 7,
        granted_at: 1,
        left: request.ttl,
        previous: PreviousHolder::Released,
        waiting: None,
    };
    let trouble = granted + Duration::from_secs(1);
    let asked = trouble + Duration::from_secs(1);
    let mut state = WaiterState::new(token);
    let notice = GrantNotice::from_reply(grant, granted).doubtful();
    assert!(matches!(
        state.on_granted(notice, asked, &request),
        WaiterAction::Confirm
    ));
    let WaiterAction::Keep(lease) = state.on_confirmed(asked, request.ttl, 7, false, &request)
    else {
        panic!("it was not confirmed")
    };
    assert!(lease.is_confirmed(trouble.as_nanos()));
    assert!(!lease.is_confirmed(asked.as_nanos()));
}
