//! Outages, losses and injected faults: each takes effect as documented, and fairlock reacts as it
//! does on Redis.

use crate::fixtures::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_TTL};
use crate::reply::{Commands, Reply};
use std::{thread, time::Duration};

use fairlock::{
    Error, LockManager, LockOptions, LossReason, PreviousHolder, Step,
    memory::{Fault, Memory},
};

use super::SOON;
use crate::backend::Backend;
use crate::fixtures::Record;
use crate::support::until;

fn two(memory: &Memory) -> [LockManager; 2] {
    [(); 2].map(|()| LockManager::connect(memory).unwrap())
}

#[test]
fn stores_are_separate_and_clones_are_one() {
    let one = Memory::new();
    let other = Memory::default();
    let guard = LockManager::connect(&one).unwrap().lock("k").unwrap();
    assert!(
        LockManager::connect(&other)
            .unwrap()
            .try_lock("k")
            .unwrap()
            .is_some()
    );
    assert!(
        LockManager::connect(&Memory::new())
            .unwrap()
            .try_lock("k")
            .unwrap()
            .is_some()
    );
    assert!(
        LockManager::connect(&one.clone())
            .unwrap()
            .try_lock("k")
            .unwrap()
            .is_none()
    );
    drop(one);
    guard.unlock().unwrap();
}

#[test]
fn two_managers_hand_over_like_two_processes() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let mut guard = ours.lock("k").unwrap();
    for turn in 0..200 {
        let next = if turn % 2 == 0 { &theirs } else { &ours };
        let mut waiter = next.enqueue("k").unwrap();
        assert!(waiter.wait_for(Duration::ZERO).unwrap().is_none());
        let fence = guard.fence();
        guard.unlock().unwrap();
        guard = waiter.wait().unwrap();
        assert!(guard.fence() > fence);
    }
    assert_eq!(ours.stats().handovers + theirs.stats().handovers, 200);
}

#[test]
fn a_lapse_is_reported_to_its_holder_and_its_successor() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    assert!(!memory.lapse("k"), "it is not held");
    let guard = ours.lock("k").unwrap();
    let mut waiter = theirs.enqueue("k").unwrap();
    assert!(memory.lapse("k"));
    let next = waiter
        .wait_for(SOON)
        .unwrap()
        .expect("it is the first in the queue");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
    assert!(guard.is_held(), "the holder does not know yet");
    memory.advance(crate::fixtures::DEFAULT_TTL / 3);
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Expired
    );
    assert!(next.is_held());
    drop(waiter);
    drop(next);
    assert!(!memory.lapse("k"), "it is not held any more");
}

#[test]
fn a_lapse_grants_the_first_waiter_past_dead_ones() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let _guard = ours.lock("k").unwrap();
    // They count as dead together with the holder.
    let _dead: Vec<_> = (0..100).map(|_| ours.enqueue("k").unwrap()).collect();
    let _live = theirs.enqueue("k").unwrap();
    assert!(memory.lapse("k"));
    assert_eq!(
        memory.command(&["HEXISTS", "fairlock:{k}", "o"]),
        Reply::Int(1),
        "it is not held"
    );
}

#[test]
fn a_lapse_after_a_silence_frees_the_lock_at_once() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let _guard = ours.lock("k").unwrap();
    let owner = memory.command(&["HGET", "fairlock:{k}", "o"]);
    let (_first, _second) = (theirs.enqueue("k").unwrap(), ours.enqueue("k").unwrap());
    memory.go_down();
    memory.advance(crate::fixtures::DEFAULT_TTL / 2);
    assert!(memory.lapse("k"));
    assert_ne!(
        memory.command(&["HGET", "fairlock:{k}", "o"]),
        owner,
        "it had a time of grace"
    );
}

#[test]
fn a_lapse_works_with_any_prefix_and_name() {
    let memory = Memory::new();
    let mgr = LockManager::builder(&memory).prefix("a:b").build().unwrap();
    for name in ["plain", "a{b}%c", "ends:{k}", "ü \n"] {
        let guard = mgr.lock(name).unwrap();
        let other = mgr.lock(format!("not {name}")).unwrap();
        assert!(memory.lapse(name), "{name:?}");
        assert!(guard.renew().is_err());
        other.unlock().unwrap();
    }
    assert!(!memory.lapse(""));
}

#[test]
fn an_outage_is_reported_at_once_and_costs_no_place() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let guard = ours.lock("k").unwrap();
    let mut first = theirs.enqueue("k").unwrap();
    let mut second = ours.enqueue("k").unwrap();
    memory.go_down();
    let refused = theirs.try_lock("other").unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Unavailable {
                step: Step::Connect,
                ..
            }
        ),
        "{refused:?}"
    );
    assert!(guard.is_held() && first.wait_for(Duration::ZERO).unwrap().is_none());
    memory.advance(Duration::from_secs(2));
    memory.come_back();
    guard.unlock().unwrap();
    let guard = first.wait_for(SOON).unwrap().expect("it came first");
    let fence = guard.fence();
    guard.unlock().unwrap();
    assert!(
        second
            .wait_for(SOON)
            .unwrap()
            .expect("it came second")
            .fence()
            > fence
    );
}

#[test]
fn a_lease_survives_an_outage_until_its_deadline() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    memory.go_down();
    memory.advance(crate::fixtures::DEFAULT_TTL / 2);
    assert!(guard.is_held());
    let error = guard.renewal_error().expect("its renewal has failed");
    assert_eq!(error.lock(), Some("k"), "{error}");
    memory.advance(crate::fixtures::DEFAULT_TTL / 2);
    assert!(!guard.is_held());
    assert_eq!(
        guard.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Expired
    );
    memory.come_back();
    until(SOON, "the next holder", || {
        matches!(mgr.try_lock("k"), Ok(Some(_)))
    });
    assert!(!guard.is_held());
}

#[test]
fn renewal_error_ends_with_the_next_renewal() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    let guard = mgr.lock("k").unwrap();
    let all = mgr.lock_all(["a", "b"]).unwrap();
    let errors = || [guard.renewal_error(), all.renewal_error()];
    assert!(errors().iter().all(Option::is_none), "none was due");
    memory.go_down();
    memory.advance(DEFAULT_TTL / 3);
    until(SOON, "they have failed", || {
        errors().iter().all(Option::is_some)
    });
    memory.come_back();
    until(SOON, "they are confirmed", || {
        // Small steps: the thread may be slow to run, and the lease must not lapse meanwhile.
        memory.advance(DEFAULT_COMMAND_TIMEOUT / 50);
        errors().iter().all(Option::is_none)
    });
    guard.unlock().unwrap();
    all.unlock().unwrap();
}

#[test]
fn a_flush_loses_locks_and_fences_keep_rising() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let guard = ours.lock("k").unwrap();
    memory.flush_all();
    let next = theirs
        .try_lock("k")
        .unwrap()
        .expect("the record has no owner");
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.renew(), Err(Error::Lost { .. })));
}

/// A limit that docs/PROTOCOL.md names: a group learns of a loss of data by the next renewal.
#[test]
fn a_flushed_group_may_return_a_name_used_meanwhile() {
    let memory = Memory::new();
    let ttl = Duration::from_secs(3600);
    let ours = LockManager::builder(&memory)
        .options(LockOptions::new().ttl(ttl))
        .build()
        .unwrap();
    let theirs = LockManager::connect(&memory).unwrap();
    let _b = theirs.lock("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ours.lock_all(["a", "b"]).unwrap());
        until(SOON, "they wait for b", || {
            theirs
                .inspect("b")
                .unwrap()
                .is_some_and(|info| info.waiters == 1)
        });
        memory.flush_all();
        let used = theirs.lock("a").unwrap();
        let fence = used.fence();
        used.unlock().unwrap();
        memory.advance(DEFAULT_CHECK_PERIOD);
        let both = waiting.join().unwrap();
        assert!(both.is_held(), "no renewal was due yet");
        assert!(both.fence("a").unwrap() < fence);
        memory.advance(ttl / 3);
        assert!(!both.is_held());
        let error = both.unlock().unwrap_err();
        assert!(
            matches!(&error, Error::Lost { loss, .. } if &*loss.lock == "a"),
            "{error:?}"
        );
    });
}

#[test]
fn a_request_with_a_closed_connection_is_granted_once() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    for _ in 0..3 {
        memory.inject(Fault::Disconnect);
        let guard = ours.try_lock("k").unwrap().expect("it is free");
        assert_eq!(
            Record::of(&Backend::Memory(memory.clone()), "k").number("f"),
            guard.fence()
        );
        assert!(theirs.try_lock("k").unwrap().is_none());
        memory.inject(Fault::Disconnect);
        guard.unlock().unwrap();
        assert!(ours.inspect("k").unwrap().is_none());
    }
}

#[test]
fn a_request_with_a_closed_connection_was_carried_out() {
    let memory = Memory::new();
    let mgr = LockManager::builder(&memory)
        .options(LockOptions::new().ttl(Duration::from_secs(1)))
        .build()
        .unwrap();
    memory.inject(Fault::Disconnect);
    // Its retry does not arrive.
    memory.inject(Fault::LoseRequest);
    assert!(mgr.try_lock("k").is_err());
    assert_eq!(
        memory.command(&["HEXISTS", "fairlock:{k}", "s"]),
        Reply::Int(1)
    );
}

#[test]
fn a_lost_reply_is_an_error_and_releases_its_grant() {
    let memory = Memory::new();
    let mgr = LockManager::builder(&memory)
        .options(LockOptions::new().ttl(Duration::from_secs(1)))
        .build()
        .unwrap();
    for arrives in [true, false] {
        memory.inject(match arrives {
            true => Fault::LoseReply,
            false => Fault::LoseRequest,
        });
        let error = mgr.try_lock("k").unwrap_err();
        assert!(
            matches!(
                error,
                Error::Unavailable {
                    step: Step::Reply,
                    ..
                }
            ),
            "{arrives}: {error:?}"
        );
        until(SOON, "it is free again", || {
            mgr.try_lock("k").unwrap().is_some()
        });
    }
}

#[test]
fn a_delayed_reply_takes_as_long_as_it_says() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let delay = DEFAULT_COMMAND_TIMEOUT / 2;
    memory.inject(Fault::DelayReply(delay));
    let guard = memory.fast_forward(|| ours.lock("k")).unwrap();
    assert!(ours.stats().longest_wait >= delay, "{}", ours.stats());
    guard.unlock().unwrap();

    memory.inject(Fault::DelayReply(DEFAULT_COMMAND_TIMEOUT));
    let late = memory.fast_forward(|| theirs.try_lock("k"));
    assert!(matches!(&late, Err(Error::Unavailable { .. })), "{late:?}");
    until(SOON, "the grant is released", || {
        memory.advance(DEFAULT_COMMAND_TIMEOUT);
        ours.try_lock("k").unwrap().is_some()
    });
}

#[test]
fn a_forward_step_of_the_servers_clock_ends_leases() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let guard = ours.lock("k").unwrap();
    memory.step_server_clock_forward(DEFAULT_TTL);
    assert!(guard.is_held(), "no time has passed here");
    let next = theirs.try_lock("k").unwrap().expect("it has lapsed");
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.renew(), Err(Error::Lost { .. })));
    // At the end of its time, the clock stays.
    memory.step_server_clock_forward(Duration::MAX);
    memory.step_server_clock_forward(Duration::MAX);
    drop(next);
    assert!(ours.lock("k").unwrap().fence() > guard.fence());
}

#[test]
fn fences_rise_though_the_servers_clock_steps_back() {
    let memory = Memory::new();
    let [ours, theirs] = two(&memory);
    let mut last = 0;
    for by in [
        Duration::from_secs(1),
        Duration::from_secs(24 * 3600),
        Duration::MAX,
    ] {
        let guard = ours.lock("k").unwrap();
        memory.step_server_clock_back(by);
        assert!(theirs.try_lock("k").unwrap().is_none(), "it is held");
        guard.renew().unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.unlock().unwrap();
    }
    assert!(theirs.lock("k").unwrap().fence() > last);
}

#[test]
fn a_refusal_keeps_its_own_words_and_happens_once() {
    let memory = Memory::new();
    let mgr = LockManager::connect(&memory).unwrap();
    memory.inject(Fault::Refuse(
        "OOM command not allowed when used memory > 'maxmemory'.".to_owned(),
    ));
    match mgr.try_lock("k") {
        Err(Error::Refused { code, message, .. }) => {
            assert_eq!(
                (code.as_str(), message.as_str()),
                ("OOM", "command not allowed when used memory > 'maxmemory'.")
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(mgr.try_lock("k").unwrap().is_some());
}

#[test]
fn a_lost_message_is_replaced_by_the_next_check() {
    const HOUR: Duration = Duration::from_secs(3600);
    let memory = Memory::new();
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = LockManager::builder(&memory).options(LockOptions::new().ttl(24 * HOUR));
        builder
            .check_period(HOUR)
            .horizon(2 * HOUR)
            .outage_limit(24 * HOUR)
            .build()
            .unwrap()
    });
    // Both have subscribed by now, and they check the queue at most once an hour.
    drop(ours.enqueue("warm").unwrap());
    drop(theirs.enqueue("warm").unwrap());
    let guard = ours.lock("k").unwrap();
    let mut waiter = theirs.enqueue("k").unwrap();
    memory.inject(Fault::LoseMessage);
    guard.unlock().unwrap();
    assert!(
        format!("{memory:?}").contains("faults: []"),
        "it took effect: {memory:?}"
    );
    memory.advance(HOUR + SOON);
    let guard = waiter.wait_for(SOON).unwrap().expect("the check finds it");

    let mut next = ours.enqueue("k").unwrap();
    guard.unlock().unwrap();
    assert!(
        next.wait_for(SOON).unwrap().is_some(),
        "the next message arrives"
    );
}

#[test]
fn messages_reach_all_subscribers() {
    let memory = Memory::new();
    assert_eq!(
        memory.command(&["PUBLISH", "fairlock:grants:x", "hello"]),
        Reply::Int(0)
    );
    let [ours, theirs] = two(&memory);
    let _guard = ours.lock("k").unwrap();
    let waiter = theirs.enqueue("k").unwrap();
    let manager = theirs.inspect("k").unwrap().unwrap().queue[0]
        .manager
        .to_string();
    let channel = format!("fairlock:grants:{manager}");
    assert_eq!(memory.command(&["PUBLISH", &channel, ""]), Reply::Int(1));
    memory.go_down();
    assert_eq!(memory.command(&["PUBLISH", &channel, ""]), Reply::Int(0));
    memory.come_back();
    until(SOON, "it has subscribed again", || {
        memory.command(&["PUBLISH", &channel, ""]) == Reply::Int(1)
    });
    drop(waiter);
    drop(theirs);
    assert_eq!(
        memory.command(&["PUBLISH", &channel, ""]),
        Reply::Int(0),
        "nobody is subscribed any more"
    );
}
