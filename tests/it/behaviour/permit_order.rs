//! Nobody starves among those who come and go without end: readers and writers, and requests for few permits and for many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::SOON;
use crate::managers::{EndLoops, patient};
use crate::permits::{PermitWaiters, Permits, Want};
use crate::support::until;

on_both_stores! {
    p9_a_writer_among_a_hundred_readers_that_come_and_go_is_overtaken_by_none,
    p9_a_request_for_all_permits_in_a_stream_of_light_ones_is_overtaken_by_none,
    p9_a_reader_in_a_stream_of_writers_is_overtaken_by_none,
}

fn p9_a_writer_among_a_hundred_readers_that_come_and_go_is_overtaken_by_none(backend: &Backend) {
    stream(backend, 100, Want::Read, Want::Write, Want::Read);
}

fn p9_a_request_for_all_permits_in_a_stream_of_light_ones_is_overtaken_by_none(backend: &Backend) {
    stream(
        backend,
        40,
        Want::Permits(1, 50),
        Want::Permits(50, 50),
        Want::Permits(3, 50),
    );
}

fn p9_a_reader_in_a_stream_of_writers_is_overtaken_by_none(backend: &Backend) {
    stream(backend, 20, Want::Write, Want::Read, Want::Write);
}

/// Many take and release the same without end, and `kept` holds one back who wants something else, several times over.
/// Until that one is served, nobody has a turn but those who stood before it, and they have one each.
fn stream(backend: &Backend, many: usize, theirs: Want, its: Want, kept: Want) {
    let managers = [patient(backend), patient(backend)];
    let record = Permits::of(backend, "k");
    let (turns, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let end = EndLoops(&over);
        for i in 0..many {
            let (mgr, turns, over) = (&managers[i % 2], &turns, &over);
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
            until(SOON, "all stand in the queue", || {
                record.waiters().len() == many + 1
            });
            let (before, ahead) = (turns.load(Ordering::SeqCst), record.ahead_of(its.weight()));
            kept.unlock().unwrap();
            let served = queue.expect_grant(round, 2 * SOON);
            until(SOON, "all others stand in the queue", || {
                record.waiters().len() == many
            });
            assert_eq!(
                turns.load(Ordering::SeqCst) - before,
                ahead,
                "of those who came after it some were served"
            );
            assert!(served.is_held());
            served.unlock().unwrap();
        }
        drop(end);
    });
    record.comes_to_rest();
}
