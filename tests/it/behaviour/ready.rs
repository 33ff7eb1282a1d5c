//! A waiter in `select!`: its channel says when to look.

use crate::fixtures::DEFAULT_TTL;
use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Select, bounded, select};
use fairlock::{Error, LockGuard, LockManager, LockOptions, Misuse, Waiter};

use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::managers;
use crate::support::{SLACK, throughout, until};

const TTL: Duration = Duration::from_secs(2);
/// The command timeout that a manager derives from that ttl.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
const CHECK_PERIOD: Duration = Duration::from_millis(250);
/// A grant must be known within this time, even if its message is lost.
const GRANTED_WITHIN: Duration = CHECK_PERIOD
    .saturating_add(COMMAND_TIMEOUT)
    .saturating_add(SLACK);

on_both_stores! {
    a_release_elsewhere_makes_each_kind_of_waiter_ready,
    a_lock_granted_at_once_is_ready,
    a_grant_before_the_channel_was_asked_for_is_ready,
    a_waiter_is_not_ready_while_others_hold_the_lock,
    a_stop_signal_ends_the_wait_and_leaves_the_queue,
    a_grant_that_was_lost_untaken_is_followed_by_another_message,
    a_doubtful_grant_is_ready_again_once_it_is_confirmed,
    a_shutdown_makes_waiters_ready,
    a_refusal_makes_a_waiter_ready,
    a_local_hand_over_makes_a_member_ready,
    a_lost_turn_that_nobody_took_is_followed_by_another_message,
    a_turn_for_a_dropped_member_makes_the_next_one_ready,
    one_thread_serves_many_waiters,
    a_waiter_is_ready_after_redis_lost_its_place,
    the_channel_is_disconnected_after_the_guard_was_returned,
    an_outage_makes_a_waiter_ready_at_its_limit,
    an_outage_makes_members_of_a_line_ready_at_its_limit,
    the_channel_costs_no_request,
}

mod with_faults {
    use super::*;
    use crate::backend::on_both_stores;

    on_both_stores! { redis_with_faults:
        p4_a_watched_waiter_learns_of_a_lost_message,
        p4_a_watched_member_learns_of_a_lost_message,
    }
}

fn manager(backend: &Backend) -> LockManager {
    managers::manager(backend, TTL)
}

/// Waits for the message, and takes what it announces.
#[track_caller]
fn taken<G>(waiter: &mut Waiter<G>, within: Duration) -> G {
    let ready = waiter.ready().recv_timeout(within);
    ready.expect("a message says that it is granted");
    let guard = waiter.wait_for(Duration::ZERO).unwrap();
    guard.expect("it is granted when the message comes")
}

/// Does what the example of [`Waiter::ready`] does. `None`: it was stopped.
fn lock_unless_stopped(mut waiter: Waiter, stop: &Receiver<()>) -> Option<LockGuard> {
    loop {
        select! {
            recv(stop) -> _ => return None,
            recv(waiter.ready()) -> _ => {
                if let Some(guard) = waiter.wait_for(Duration::ZERO).unwrap() {
                    return Some(guard);
                }
            }
        }
    }
}

fn waiters(mgr: &LockManager) -> u64 {
    mgr.inspect("n").unwrap().map_or(0, |info| info.waiters)
}

fn a_release_elsewhere_makes_each_kind_of_waiter_ready(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let held = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    assert!(waiter.ready().is_empty());
    held.unlock().unwrap();
    taken(&mut waiter, GRANTED_WITHIN).unlock().unwrap();

    let held = other.semaphore("s", 3).acquire(2).unwrap();
    let mut waiter = mgr.semaphore("s", 3).enqueue(2).unwrap();
    assert!(waiter.ready().is_empty());
    held.unlock().unwrap();
    taken(&mut waiter, GRANTED_WITHIN).unlock().unwrap();

    let held = other.rw_lock("r").write().unwrap();
    let (mut reader, mut writer) = {
        let lock = mgr.rw_lock("r");
        (lock.enqueue_read().unwrap(), lock.enqueue_write().unwrap())
    };
    assert!(reader.ready().is_empty() && writer.ready().is_empty());
    held.unlock().unwrap();
    let read = taken(&mut reader, GRANTED_WITHIN);
    assert!(writer.ready().is_empty());
    read.unlock().unwrap();
    taken(&mut writer, GRANTED_WITHIN).unlock().unwrap();
}

fn a_lock_granted_at_once_is_ready(backend: &Backend) {
    let mgr = manager(backend);
    let mut waiter = mgr.enqueue("n").unwrap();
    taken(&mut waiter, Duration::ZERO).unlock().unwrap();
}

fn a_grant_before_the_channel_was_asked_for_is_ready(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let held = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    held.unlock().unwrap();
    until(GRANTED_WITHIN, "it is granted", || {
        waiter.position().is_none()
    });
    taken(&mut waiter, SLACK).unlock().unwrap();
}

fn a_waiter_is_not_ready_while_others_hold_the_lock(backend: &Backend) {
    let (mgr, other) = (managers::patient(backend), managers::patient(backend));
    let held = other.lock("n").unwrap();
    let first = mgr.enqueue("n").unwrap();
    let second = mgr.enqueue("n").unwrap();
    throughout(CHECK_PERIOD * 4, "nothing is to be seen", || {
        first.ready().is_empty() && second.ready().is_empty()
    });
    held.unlock().unwrap();
    first.ready().recv_timeout(SLACK).unwrap();
    throughout(CHECK_PERIOD, "it is not the second's turn", || {
        second.ready().is_empty()
    });
}

fn a_stop_signal_ends_the_wait_and_leaves_the_queue(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let held = other.lock("n").unwrap();
    let waiter = mgr.enqueue("n").unwrap();
    let behind = other.enqueue("n").unwrap();
    let ready = waiter.ready().clone();
    let (stop, stopped) = bounded(1);
    let candidate = thread::spawn(move || lock_unless_stopped(waiter, &stopped).is_some());
    until(SLACK, "it waits", || waiters(&other) == 2);
    stop.send(()).unwrap();
    assert!(!candidate.join().unwrap());
    until(GRANTED_WITHIN, "it has left", || waiters(&other) == 1);
    assert!(ready.recv_timeout(SLACK).unwrap_err().is_disconnected());
    held.unlock().unwrap();
    behind.wait().unwrap().unlock().unwrap();
}

fn a_grant_that_was_lost_untaken_is_followed_by_another_message(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let mut waiter = mgr.enqueue("n").unwrap();
    waiter.ready().recv_timeout(SLACK).unwrap();
    let fence = mgr.inspect("n").unwrap().unwrap().fence;
    let mut next = other.enqueue("n").unwrap();
    assert!(other.force_release("n", fence).unwrap());
    let held = taken(&mut next, GRANTED_WITHIN);
    until(TTL + SLACK, "it is queued again", || waiters(&other) == 1);
    assert!(waiter.wait_for(Duration::ZERO).unwrap().is_none());
    assert!(waiter.ready().is_empty());
    let fence = held.fence();
    held.unlock().unwrap();
    let guard = taken(&mut waiter, GRANTED_WITHIN);
    assert!(guard.fence() > fence);
    guard.unlock().unwrap();
}

fn a_doubtful_grant_is_ready_again_once_it_is_confirmed(backend: &Backend) {
    let lease = SLACK * 3;
    let mgr = managers::manager(backend, DEFAULT_TTL);
    let mgr = mgr.with(LockOptions::new().fixed_lease(lease));
    let mut waiter = mgr.enqueue("n").unwrap();
    waiter.ready().recv_timeout(SLACK).unwrap();
    // Time itself is under test: more than half of the lease passes.
    thread::sleep(lease * 2 / 3);
    // R12 (doubtful grants): this look has the grant confirmed, and does not wait for that. In memory,
    // the answer may be there before the look is over.
    let looked = waiter.wait_for(Duration::ZERO).unwrap();
    let guard = looked.unwrap_or_else(|| taken(&mut waiter, SLACK));
    assert!(guard.remaining() > lease / 2, "{:?}", guard.remaining());
    guard.unlock().unwrap();
}

fn a_shutdown_makes_waiters_ready(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let local = mgr.with(LockOptions::new().local_handovers(9));
    let _held = [other.lock("n").unwrap(), other.lock("l").unwrap()];
    let permits = other.semaphore("s", 1).acquire(1).unwrap();
    let mut waiting = [mgr.enqueue("n").unwrap(), local.enqueue("l").unwrap()];
    let permit = mgr.semaphore("s", 1).enqueue(1).unwrap();
    assert!(waiting.iter().all(|waiter| waiter.ready().is_empty()));
    assert!(permit.ready().is_empty());
    mgr.shutdown(Duration::ZERO).unwrap();
    permit.ready().recv_timeout(SLACK).unwrap();
    for waiter in &mut waiting {
        waiter.ready().recv_timeout(SLACK).unwrap();
        let error = waiter.wait_for(Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::Closed), "{error:?}");
    }
    drop(permits);
}

fn a_refusal_makes_a_waiter_ready(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let _held = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    assert!(waiter.ready().is_empty());
    // The name is of another kind when its place is to be taken again.
    let mut permit = None;
    until(TTL + SLACK, "the name becomes a semaphore", || {
        backend.flush_all();
        permit = other.semaphore("n", 1).try_acquire(1).ok().flatten();
        permit.is_some()
    });
    waiter.ready().recv_timeout(TTL + SLACK).unwrap();
    let error = waiter.wait_for(Duration::ZERO).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Misused {
                misuse: Misuse::Kind { .. },
                ..
            }
        ),
        "{error:?}"
    );
}

fn a_local_hand_over_makes_a_member_ready(backend: &Backend) {
    let mgr = managers::patient(backend).with(LockOptions::new().local_handovers(9));
    let mut guard = mgr.lock("n").unwrap();
    let mut members = [(); 3].map(|()| mgr.enqueue("n").unwrap());
    for at in 0..members.len() {
        assert!(members[at..].iter().all(|member| member.ready().is_empty()));
        guard.unlock().unwrap();
        guard = taken(&mut members[at], SLACK);
    }
    assert_eq!(mgr.stats().local_handovers, 3);
    guard.unlock().unwrap();
}

fn a_lost_turn_that_nobody_took_is_followed_by_another_message(backend: &Backend) {
    let mgr = manager(backend).with(LockOptions::new().local_handovers(9));
    let guard = mgr.lock("n").unwrap();
    let mut member = mgr.enqueue("n").unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    member.ready().recv_timeout(SLACK).unwrap();
    assert!(mgr.force_release("n", fence).unwrap());
    let again = member.ready().recv_timeout(TTL * 2 + SLACK);
    again.expect("its line is granted the lock again");
    let guard = member.wait_for(Duration::ZERO).unwrap().expect("granted");
    assert!(guard.fence() > fence + 1);
    guard.unlock().unwrap();
}

fn a_turn_for_a_dropped_member_makes_the_next_one_ready(backend: &Backend) {
    let mgr = managers::patient(backend).with(LockOptions::new().local_handovers(9));
    let guard = mgr.lock("n").unwrap();
    let [first, mut second] = [(); 2].map(|()| mgr.enqueue("n").unwrap());
    guard.unlock().unwrap();
    first.ready().recv_timeout(SLACK).unwrap();
    assert!(second.ready().is_empty());
    drop(first);
    taken(&mut second, SLACK).unlock().unwrap();
}

fn one_thread_serves_many_waiters(backend: &Backend) {
    const MANY: usize = 40;
    let (mgr, other) = (managers::patient(backend), managers::patient(backend));
    let held: Vec<LockGuard> = (0..MANY / 4)
        .map(|name| other.lock(format!("n{name}")).unwrap())
        .collect();
    let name = |at: usize| format!("n{}", at % held.len());
    let mut waiting: Vec<Waiter> = (0..MANY).map(|at| mgr.enqueue(name(at)).unwrap()).collect();
    let ready: Vec<Receiver<()>> = waiting.iter().map(|w| w.ready().clone()).collect();
    for guard in held {
        guard.unlock().unwrap();
    }
    let mut select = Select::new();
    for ready in &ready {
        select.recv(ready);
    }
    let mut order = Vec::new();
    for _ in 0..MANY {
        let message = select.select_timeout(SLACK * 2).expect("another is served");
        let at = message.index();
        message.recv(&ready[at]).expect("each has its own message");
        let guard = waiting[at].wait_for(Duration::ZERO).unwrap();
        guard.expect("it is granted").unlock().unwrap();
        select.remove(at);
        order.push(at);
    }
    for first in 0..MANY / 4 {
        let of_name = order.iter().filter(|at| *at % (MANY / 4) == first);
        assert!(of_name.is_sorted(), "first come, first served: {order:?}");
    }
}

fn a_waiter_is_ready_after_redis_lost_its_place(backend: &Backend) {
    let (mgr, other) = (manager(backend), manager(backend));
    let held = other.lock("n").unwrap();
    let mut waiter = mgr.enqueue("n").unwrap();
    assert!(waiter.ready().is_empty());
    backend.flush_all();
    taken(&mut waiter, TTL + SLACK).unlock().unwrap();
    until(SLACK, "that counts", || mgr.stats().requeues == 1);
    drop(held);
}

fn the_channel_is_disconnected_after_the_guard_was_returned(backend: &Backend) {
    let mgr = manager(backend);
    let mut waiter = mgr.enqueue("n").unwrap();
    let ready = waiter.ready().clone();
    let guard = waiter.wait_for(Duration::MAX).unwrap().unwrap();
    assert!(waiter.ready().try_recv().unwrap_err().is_disconnected());
    // A message for a look that has happened may still be in it.
    let _ = ready.recv_timeout(SLACK);
    assert!(ready.recv_timeout(SLACK).unwrap_err().is_disconnected());
    guard.unlock().unwrap();
}

fn an_outage_makes_a_waiter_ready_at_its_limit(backend: &Backend) {
    outage(backend, LockOptions::new());
}

fn an_outage_makes_members_of_a_line_ready_at_its_limit(backend: &Backend) {
    outage(backend, LockOptions::new().local_handovers(9));
}

fn outage(backend: &Backend, options: LockOptions) {
    let limit = COMMAND_TIMEOUT * 6;
    let other = manager(backend);
    let mgr = LockManager::builder(backend)
        .options(options.ttl(TTL))
        .outage_limit(limit)
        .build()
        .unwrap();
    let held = other.lock("n").unwrap();
    let mut waiting = [mgr.enqueue("n").unwrap(), mgr.enqueue("n").unwrap()];
    let early = waiting[0].ready().recv_timeout(limit + CHECK_PERIOD);
    assert!(early.unwrap_err().is_timeout(), "redis answers");
    backend.go_away();
    let start = Instant::now();
    for waiter in &mut waiting {
        // Again after each check: the place is kept, and so is the wait.
        for _ in 0..2 {
            let bound = limit + CHECK_PERIOD + COMMAND_TIMEOUT * 2 + SLACK;
            waiter.ready().recv_timeout(bound).expect("a message");
            let took = start.elapsed();
            let least = limit.saturating_sub(CHECK_PERIOD + COMMAND_TIMEOUT);
            assert!(took >= least, "not before its time: {took:?}");
            let error = waiter.wait_for(Duration::ZERO).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        }
    }
    backend.come_back();
    drop(held);
    for waiter in &mut waiting {
        until(TTL * 2 + SLACK, "it is still served", || {
            let _ = waiter.ready().recv_timeout(CHECK_PERIOD);
            matches!(waiter.wait_for(Duration::ZERO), Ok(Some(_)))
        });
    }
}

fn the_channel_costs_no_request(backend: &Backend) {
    let (mgr, other) = (managers::patient(backend), managers::patient(backend));
    let requests = |is_watched: bool| {
        let held = other.lock("n").unwrap();
        let before = mgr.stats().requests;
        let waiter = mgr.enqueue("n").unwrap();
        if is_watched {
            assert!(waiter.ready().is_empty());
        }
        held.unlock().unwrap();
        let guard = if is_watched {
            let mut waiter = waiter;
            taken(&mut waiter, SLACK)
        } else {
            waiter.wait().unwrap()
        };
        guard.unlock().unwrap();
        mgr.stats().requests - before
    };
    let _ = requests(false);
    // A check may fall between.
    until(SLACK, "as many requests as without it", || {
        requests(true) == requests(false)
    });
}

fn p4_a_watched_waiter_learns_of_a_lost_message(backend: &Backend) {
    lost_message(backend, LockOptions::new());
}

fn p4_a_watched_member_learns_of_a_lost_message(backend: &Backend) {
    lost_message(backend, LockOptions::new().local_handovers(9));
}

fn lost_message(backend: &Backend, options: LockOptions) {
    let (mgr, other) = (manager(backend).with(options), manager(backend));
    for _ in 0..3 {
        let held = other.lock("n").unwrap();
        let mut waiter = mgr.enqueue("n").unwrap();
        assert!(waiter.ready().is_empty());
        backend.inject(InjectedFault::MessageLost);
        held.unlock().unwrap();
        taken(&mut waiter, GRANTED_WITHIN).unlock().unwrap();
    }
}
