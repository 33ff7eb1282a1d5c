//! Nobody starves among callers that come and go endlessly: readers and writers, and requests for
//! few permits and for many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::SOON;
use crate::managers::patient;
use crate::permits::{PermitWaiters, Permits, Want};
use crate::support::{EndLoops, until};

on_both_stores! {
    p9_no_reader_overtakes_a_queued_writer,
    p9_no_light_request_overtakes_a_queued_heavy_one,
    p9_no_writer_overtakes_a_queued_reader,
}

fn p9_no_reader_overtakes_a_queued_writer(backend: &Backend) {
    stream(backend, 100, Want::Read, Want::Write, Want::Read);
}

fn p9_no_light_request_overtakes_a_queued_heavy_one(backend: &Backend) {
    stream(
        backend,
        40,
        Want::Permits(1, 50),
        Want::Permits(50, 50),
        Want::Permits(3, 50),
    );
}

fn p9_no_writer_overtakes_a_queued_reader(backend: &Backend) {
    stream(backend, 20, Want::Write, Want::Read, Want::Write);
}

/// Many threads take and release the same kind of guard endlessly. Several times over, a guard of
/// `kept` blocks the name while a waiter of another kind queues. Until that waiter is served, only
/// the waiters ahead of it get a turn, and each gets one.
fn stream(backend: &Backend, many: usize, theirs: Want, its: Want, kept: Want) {
    let managers = [patient(backend), patient(backend)];
    let record = Permits::of(backend, "k");
    let turns = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = EndLoops(&over);
        for i in 0..many {
            let mgr = &managers[i % 2];
            let turns = &turns;
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let guard = theirs.take(mgr, "k").unwrap();
                    turns.fetch_add(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
        let mut queue = PermitWaiters::of(backend, "k");
        for round in 0..3 {
            let before = turns.load(Ordering::SeqCst);
            until(SOON, "the others come and go", || {
                turns.load(Ordering::SeqCst) >= before + many
            });
            let kept = kept.take(&managers[0], "k").unwrap();
            queue.add(&managers[round % 2], its);
            until(SOON, "all are queued", || {
                record.waiters().len() == many + 1
            });
            let before = turns.load(Ordering::SeqCst);
            let ahead = record.ahead_of(its.weight());
            kept.unlock().unwrap();
            let served = queue.expect_grant(round, 2 * SOON);
            until(SOON, "all others are queued", || {
                record.waiters().len() == many
            });
            assert_eq!(
                turns.load(Ordering::SeqCst) - before,
                ahead,
                "a later waiter was served before it"
            );
            assert!(served.is_held());
            served.unlock().unwrap();
        }
        drop(end);
    });
    record.comes_to_rest();
}
