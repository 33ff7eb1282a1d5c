//! R11 and R19: a queue that lost its entries, and a queue whose entries are mostly dead.

use std::thread;

use fairlock::{LockManager, Waiter};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{P, Record, SOON, T, Waiters, manager};
use crate::support::{SLACK, until};

on_both_stores! {
    r11_waiters_return_to_a_deleted_or_shortened_queue,
    r11_waiters_return_to_a_queue_lost_before_others_leave,
    r11_a_list_without_a_record_is_no_queue,
    r19_waiters_leaving_mid_queue_leave_no_trace,
    r19_the_last_waiter_to_leave_removes_dead_entries,
    r19_a_long_run_of_dead_heads_is_passed,
}

fn r11_waiters_return_to_a_deleted_or_shortened_queue(backend: &Backend) {
    let managers = [manager(backend), manager(backend)];
    let record = Record::of(backend, "a");
    let damages: [&[&str]; 4] = [
        &["DEL", &record.queue],
        &["LPOP", &record.queue],
        &["RPOP", &record.queue, "2"],
        &["DEL", &record.key],
    ];
    for damage in damages {
        let holder = managers[0].lock("a").unwrap();
        let mut queue = Waiters::of("a");
        for waiter in 0..6 {
            queue.add(&managers[waiter % 2]);
        }
        let requeued = || managers.iter().map(|m| m.stats().requeues).sum::<u64>();
        let before = requeued();
        let _: redis::Value = backend.query(damage);
        if damage[1] == record.queue {
            // The waiters' syncs notice the damage long before the queue is needed.
            until(SOON, "all are queued again", || requeued() == before + 6);
            holder.check().unwrap();
        }
        drop(holder);
        let mut seen: [Vec<usize>; 2] = Default::default();
        for _ in 0..6 {
            let (waiter, guard) = queue.next_end(SOON);
            seen[waiter % 2].push(waiter);
            guard.unwrap().unlock().unwrap();
        }
        for order in &mut seen {
            assert_eq!(order.len(), 3, "{damage:?}");
        }
        if damage[0] == "DEL" {
            assert_eq!(seen, [vec![0, 2, 4], vec![1, 3, 5]], "{damage:?}");
        }
        record.comes_to_rest();
    }
}

fn r11_waiters_return_to_a_queue_lost_before_others_leave(backend: &Backend) {
    loses_its_queue(backend, "a", |manager| manager.enqueue("a").unwrap());
    loses_its_queue(backend, "b", |manager| {
        manager.semaphore("b", 1).enqueue(1).unwrap()
    });
    loses_its_queue(backend, "c", |manager| {
        manager.rw_lock("c").enqueue_write().unwrap()
    });
}

/// The list is lost just before a waiter leaves that would have it rewritten.
fn loses_its_queue<G: Send>(
    backend: &Backend,
    name: &str,
    enqueue: impl Fn(&LockManager) -> Waiter<G>,
) {
    let record = Record::of(backend, name);
    let [a, b, c, d] = [(); 4].map(|()| manager(backend));
    let holder = enqueue(&a).wait().unwrap();
    let first = enqueue(&b);
    let mut others: Vec<_> = (0..70).map(|_| enqueue(&c)).collect();
    let last = enqueue(&d);
    // One more that leaves makes the list longer than twice the records and 64.
    others.truncate(2);
    until(SOON, "most have left", || {
        let fields: Vec<String> = backend.query(&["HKEYS", &record.key]);
        fields
            .iter()
            .filter(|field| field.starts_with("w:"))
            .count()
            == 4
    });
    let _: i64 = backend.query(&["DEL", &record.queue]);
    others.truncate(1);
    drop((others, holder));
    thread::scope(|scope| {
        for mut waiter in [first, last] {
            scope.spawn(move || {
                let guard = waiter.wait_for(SOON).unwrap();
                assert!(guard.is_some(), "{name} is never given to it");
            });
        }
    });
}

fn r11_a_list_without_a_record_is_no_queue(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    let record = Record::of(backend, "a");
    let holder = other.lock("a").unwrap();
    let stale: Vec<String> = (0..70).map(|i| format!("{i:032x}")).collect();
    for token in &stale {
        let _: i64 = backend.query(&["RPUSH", &record.queue, token]);
    }
    let mut queue = Waiters::of("a");
    queue.add(&ours);
    queue.add(&ours);
    assert_eq!(record.tokens().len(), 2, "only the live waiters");
    assert_eq!((record.number("n"), record.number("r")), (2, 2));
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    record.comes_to_rest();
}

fn r19_waiters_leaving_mid_queue_leave_no_trace(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<Option<fairlock::Waiter>> = (0..300)
        .map(|_| Some(manager.enqueue("a").unwrap()))
        .collect();
    let all = record.tokens();
    assert_eq!(all.len(), 300);
    let stays = |i: usize| i % 30 == 7;
    for (i, waiter) in waiters.iter_mut().enumerate() {
        if !stays(i) {
            *waiter = None;
        }
    }
    let live: Vec<&String> = all
        .iter()
        .enumerate()
        .filter(|(i, _)| stays(*i))
        .map(|(_, token)| token)
        .collect();
    until(SOON, "all have left", || {
        record.starting("w:").len() == live.len()
    });
    let tokens = record.tokens();
    let n = record.number("n");
    let r = record.number("r");
    assert_eq!(r as usize, live.len());
    assert_eq!(n as usize, tokens.len());
    assert!(
        tokens.len() <= 2 * live.len() + 64,
        "{} for {}",
        tokens.len(),
        live.len()
    );
    let kept: Vec<&String> = tokens.iter().filter(|token| live.contains(token)).collect();
    assert_eq!(kept, live, "in their original order");

    holder.unlock().unwrap();
    let mut fence = 0;
    for waiter in waiters.into_iter().flatten() {
        let guard = waiter.wait().unwrap();
        assert!(guard.fence() > fence);
        fence = guard.fence();
        guard.unlock().unwrap();
    }
    record.comes_to_rest();
}

fn r19_the_last_waiter_to_leave_removes_dead_entries(backend: &Backend) {
    let manager = manager(backend);
    let record = Record::of(backend, "a");
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<_> = (0..20).map(|_| manager.enqueue("a").unwrap()).collect();
    // Waiters 2 to 19 leave first, and the last one at the end. Each leaves a dead entry until the
    // tail is free.
    waiters.drain(1..19);
    until(SOON, "two are left", || record.number("r") == 2);
    assert_eq!(record.tokens().len(), 20);
    waiters.pop();
    until(SOON, "the tail is gone", || record.tokens().len() == 1);
    assert_eq!((record.number("n"), record.number("r")), (1, 1));
    holder.unlock().unwrap();
    waiters.pop().unwrap().wait().unwrap().unlock().unwrap();
    record.comes_to_rest();
}

fn r19_a_long_run_of_dead_heads_is_passed(backend: &Backend) {
    let manager = manager(backend);
    let holder = manager.lock("a").unwrap();
    let mut waiters: Vec<_> = (0..200).map(|_| manager.enqueue("a").unwrap()).collect();
    // The record keeps as many dead entries as live ones, and 64 more.
    waiters.drain(0..130);
    let mut queue = Waiters::of("a");
    queue.add(&manager);
    drop(holder);
    for waiter in waiters {
        waiter.wait().unwrap().unlock().unwrap();
    }
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    Record::of(backend, "a").comes_to_rest();
}
