//! Any number of readers, or one writer.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use fairlock::{
    Error, LockGuard, LockManager, LockOptions, LossReason, Misuse, PreviousHolder, ReadGuard,
    RwLock, Waiter, inspect::Kind,
};

use super::semaphore::{comes_to_rest, end_leases, queue_up, served};
use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{P, SOON, build, steady, with_ttl};
use crate::support::throughout;

on_both_stores! {
    readers_share_and_writers_exclude,
    every_verb_takes_the_lock_or_times_out,
    readers_and_writers_are_served_in_order_of_arrival,
    a_writer_gets_in_among_many_readers,
    readers_behind_a_writer_are_granted_together,
    writers_fences_rise_and_readers_share_the_last,
    a_writer_becomes_a_reader_without_a_gap,
    a_downgrade_lets_in_more_readers_than_one_request,
    a_lost_writer_cannot_become_a_reader,
    a_lapsed_reader_is_lost_by_itself,
    a_lapsed_writer_is_reported_until_a_writer_releases_properly,
    force_release_ends_current_readers_and_no_later_ones,
    readers_are_shown,
    a_flush_ends_readers_and_writers,
    queued_readers_and_writers_get_their_guards,
}

on_both_stores! {
    redis_with_faults:
    an_unanswered_downgrade_takes_effect,
    an_unanswered_downgrade_wakes_readers_of_its_own_manager,
    readers_get_in_although_their_messages_are_lost
}

fn manager(backend: &Backend) -> LockManager {
    build(steady(backend))
}

fn read(mgr: &LockManager) -> Receiver<ReadGuard> {
    let lock = mgr.rw_lock("n");
    queue_up(mgr, move || lock.read())
}

fn write(mgr: &LockManager) -> Receiver<LockGuard> {
    let lock = mgr.rw_lock("n");
    queue_up(mgr, move || lock.write())
}

fn queued_readers_and_writers_get_their_guards(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.rw_lock("n");
    let reading = n.enqueue_read().unwrap().wait().unwrap();
    let writer = n.enqueue_write().unwrap();
    let mut reader = n.enqueue_read().unwrap();
    assert_eq!((writer.position(), reader.position()), (Some(1), Some(2)));
    reading.unlock().unwrap();
    let writing = writer.wait().unwrap();
    assert!(reader.wait_for(Duration::ZERO).unwrap().is_none());
    let first = RwLock::downgrade(writing).unwrap();
    let second = reader.wait_for(SOON).unwrap().expect("readers share");
    assert_eq!(first.fence(), second.fence());
    drop((first, second));
    comes_to_rest(backend, &mgr, "n");
}

fn readers_share_and_writers_exclude(backend: &Backend) {
    let managers = [manager(backend), manager(backend), manager(backend)];
    // Readers count up; a writer makes the count negative.
    let inside = AtomicI64::new(0);
    thread::scope(|scope| {
        for i in 0..9 {
            let lock = managers[i % 3].rw_lock("n");
            let inside = &inside;
            scope.spawn(move || {
                for round in 0..20 {
                    if (i + round) % 4 == 0 {
                        let guard = lock.write().unwrap();
                        assert_eq!(inside.fetch_sub(1000, Ordering::SeqCst), 0);
                        thread::yield_now();
                        assert!(guard.is_held());
                        inside.fetch_add(1000, Ordering::SeqCst);
                    } else {
                        let guard = lock.read().unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                        thread::yield_now();
                        assert!(guard.is_held());
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    comes_to_rest(backend, &managers[0], "n");
}

fn every_verb_takes_the_lock_or_times_out(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.rw_lock("n");
    let soon = Duration::from_millis(50);
    assert!(n.name() == "n" && format!("{n:?}").contains("\"n\""));
    let readers = [
        n.read().unwrap(),
        n.try_read().unwrap().unwrap(),
        n.try_read_for(soon).unwrap().unwrap(),
    ];
    assert!(n.try_write().unwrap().is_none());
    assert!(n.try_write_for(soon).unwrap().is_none());
    assert!(format!("{:?}", readers[0]).starts_with("ReadGuard"));
    drop(readers);
    type Verb = fn(&RwLock) -> fairlock::Result<Option<LockGuard>>;
    let verbs: [Verb; 3] = [
        |n| n.write().map(Some),
        RwLock::try_write,
        |n| n.try_write_for(SOON),
    ];
    for write in verbs {
        let guard = write(&n).unwrap().unwrap();
        assert!(format!("{guard:?}").starts_with("LockGuard"));
        assert!(n.try_read().unwrap().is_none() && n.try_write().unwrap().is_none());
        assert!(n.try_read_for(soon).unwrap().is_none());
        guard.unlock().unwrap();
    }
    assert!(matches!(mgr.rw_lock("").read(), Err(Error::Misused { .. })));
    comes_to_rest(backend, &mgr, "n");
}

fn readers_and_writers_are_served_in_order_of_arrival(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let first = ours.rw_lock("n").read().unwrap();
    let writer = write(&theirs);
    let reader = read(&ours);
    assert!(
        ours.rw_lock("n").try_read().unwrap().is_none(),
        "a reader does not overtake a writer"
    );
    throughout(P, "both wait", || writer.is_empty() && reader.is_empty());
    drop(first);
    let writer = served(&writer);
    assert!(reader.is_empty());
    drop(writer);
    served(&reader).unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn a_writer_gets_in_among_many_readers(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let readers: Vec<_> = (0..100)
        .map(|_| ours.rw_lock("n").read().unwrap())
        .collect();
    let writer = write(&theirs);
    // For each reader that goes, another one comes.
    let late: Vec<_> = (0..5).map(|_| read(&ours)).collect();
    drop(readers);
    let writer = served(&writer);
    assert!(late.iter().all(Receiver::is_empty));
    drop(writer);
    late.iter().for_each(|reader| drop(served(reader)));
    comes_to_rest(backend, &ours, "n");
}

fn readers_behind_a_writer_are_granted_together(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let writer = ours.rw_lock("n").write().unwrap();
    let readers: Vec<_> = (0..6)
        .map(|i| read(if i % 2 == 0 { &ours } else { &theirs }))
        .collect();
    let last = write(&theirs);
    let fence = writer.fence();
    writer.unlock().unwrap();
    let readers: Vec<ReadGuard> = readers.iter().map(served).collect();
    assert!(
        readers
            .iter()
            .all(|reader| reader.is_held() && reader.fence() == fence)
    );
    assert!(last.is_empty());
    drop(readers);
    drop(served(&last));
    comes_to_rest(backend, &ours, "n");
}

fn writers_fences_rise_and_readers_share_the_last(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.rw_lock("n");
    let mut last = n.read().unwrap().fence();
    for _ in 0..5 {
        let fence = n.write().unwrap().fence();
        assert!(fence > last);
        let readers = [n.read().unwrap(), n.read().unwrap()];
        assert!(readers.iter().all(|reader| reader.fence() == fence));
        last = fence;
    }
    backend.flush_all();
    assert!(n.read().unwrap().fence() > last);
    assert!(n.write().unwrap().fence() > last);
}

fn a_writer_becomes_a_reader_without_a_gap(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let writer = ours.rw_lock("n").write().unwrap();
    let reader = read(&theirs);
    let next = write(&theirs);
    let behind = read(&ours);
    let fence = writer.fence();
    let downgraded = RwLock::downgrade(writer).unwrap();
    let reader = served(&reader);
    assert_eq!((downgraded.fence(), reader.fence()), (fence, fence));
    assert!(downgraded.is_held() && next.is_empty() && behind.is_empty());
    downgraded.renew().unwrap();
    drop(reader);
    throughout(P, "it still reads", || next.is_empty());
    downgraded.unlock().unwrap();
    let next = served(&next);
    assert!(next.fence() > fence);
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    drop(next);
    drop(served(&behind));
    comes_to_rest(backend, &ours, "n");
}

fn a_lost_writer_cannot_become_a_reader(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let writer = ours.rw_lock("n").write().unwrap();
    end_leases(backend, "n", "rw/1");
    let next = theirs.rw_lock("n").write().unwrap();
    let error = RwLock::downgrade(writer).unwrap_err();
    assert!(
        matches!(&error, Error::Lost { loss, .. } if loss.reason == LossReason::Expired),
        "{error:?}"
    );
    assert!(next.is_held());
    next.unlock().unwrap();
    comes_to_rest(backend, &ours, "n");
}

fn an_unanswered_downgrade_takes_effect(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    for fault in [
        InjectedFault::ReplyLost,
        InjectedFault::RequestLost,
        InjectedFault::Disconnect,
    ] {
        let writer = ours.rw_lock("n").write().unwrap();
        let reader = read(&theirs);
        backend.inject(fault);
        let downgraded = RwLock::downgrade(writer).unwrap();
        let reader = served(&reader);
        assert!(downgraded.is_held() && reader.is_held(), "{fault:?}");
        drop(reader);
        assert!(downgraded.is_held() && theirs.rw_lock("n").try_write().unwrap().is_none());
        downgraded.unlock().unwrap();
        comes_to_rest(backend, &theirs, "n");
    }
}

/// A manager whose waiters check so seldom that no check helps them within a test.
fn that_hardly_checks(backend: &Backend) -> LockManager {
    build(
        with_ttl(backend, Duration::from_secs(600))
            .check_period(Duration::from_secs(60))
            .horizon(Duration::from_secs(100)),
    )
}

/// One request serves 32 waiters.
fn a_downgrade_lets_in_more_readers_than_one_request(backend: &Backend) {
    let (ours, theirs) = (that_hardly_checks(backend), that_hardly_checks(backend));
    let writer = ours.rw_lock("n").write().unwrap();
    let waiters: Vec<_> = (0..70)
        .map(|_| theirs.rw_lock("n").enqueue_read().unwrap())
        .collect();
    let downgraded = RwLock::downgrade(writer).unwrap();
    let enter = |mut waiter: Waiter<ReadGuard>| waiter.wait_for(SOON).unwrap().expect("it enters");
    let readers: Vec<ReadGuard> = waiters.into_iter().map(enter).collect();
    assert!(downgraded.is_held() && readers.iter().all(|reader| reader.is_held()));
    drop((downgraded, readers));
    comes_to_rest(backend, &ours, "n");
}

/// The grant of a waiter of this manager was in the reply that was lost.
fn an_unanswered_downgrade_wakes_readers_of_its_own_manager(backend: &Backend) {
    let ours = that_hardly_checks(backend);
    // The server must know the scripts: the lost reply is that of the downgrade.
    drop(RwLock::downgrade(ours.rw_lock("warm").write().unwrap()).unwrap());
    let writer = ours.rw_lock("n").write().unwrap();
    let mut waiter = ours.rw_lock("n").enqueue_read().unwrap();
    backend.inject(InjectedFault::ReplyLost);
    let downgraded = RwLock::downgrade(writer).unwrap();
    let reader = waiter.wait_for(SOON).unwrap().expect("it enters");
    assert!(downgraded.is_held() && reader.is_held());
    drop((downgraded, reader));
    comes_to_rest(backend, &ours, "n");
}

fn readers_get_in_although_their_messages_are_lost(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let writer = ours.rw_lock("n").write().unwrap();
    let readers = [read(&theirs), read(&theirs), read(&theirs)];
    for _ in if backend.server().is_none() {
        0..3
    } else {
        0..1
    } {
        backend.inject(InjectedFault::MessageLost);
    }
    drop(writer);
    let readers = readers.each_ref().map(served);
    assert!(readers.iter().all(|reader| reader.is_held()));
    drop(readers);
    comes_to_rest(backend, &ours, "n");
}

fn a_lapsed_reader_is_lost_by_itself(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let stays = ours.rw_lock("n").read().unwrap();
    let goes = theirs
        .with(LockOptions::new().label("goes"))
        .rw_lock("n")
        .read()
        .unwrap();
    let writer = write(&ours);
    assert_eq!(end_leases(backend, "n", "\tgoes"), 1);
    assert_eq!(
        goes.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::Expired
    );
    assert!(stays.is_held() && writer.is_empty());
    drop(stays);
    let writer = served(&writer);
    assert_ne!(
        writer.previous_holder(),
        PreviousHolder::Lapsed,
        "a reader leaves no half-done change"
    );
    drop((goes, writer));
    comes_to_rest(backend, &ours, "n");
}

fn a_lapsed_writer_is_reported_until_a_writer_releases_properly(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.rw_lock("n");
    let writer = n.write().unwrap();
    end_leases(backend, "n", "rw/1");
    for _ in 0..2 {
        assert_eq!(n.read().unwrap().previous_holder(), PreviousHolder::Lapsed);
    }
    assert!(writer.renew().is_err());
    assert_eq!(n.write().unwrap().previous_holder(), PreviousHolder::Lapsed);
    assert_eq!(
        n.read().unwrap().previous_holder(),
        PreviousHolder::Released
    );
}

fn force_release_ends_current_readers_and_no_later_ones(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let readers = [
        ours.rw_lock("n").read().unwrap(),
        theirs.rw_lock("n").read().unwrap(),
    ];
    let fence = readers[0].fence();
    assert!(ours.force_release("n", fence).unwrap());
    let next = theirs.rw_lock("n").read().unwrap();
    for reader in &readers {
        assert_eq!(
            reader.lost().recv_timeout(SOON).unwrap().reason,
            LossReason::Forced
        );
    }
    next.renew().unwrap();
    drop((readers, next));
    comes_to_rest(backend, &ours, "n");
}

fn readers_are_shown(backend: &Backend) {
    let mgr = manager(backend);
    let n = mgr.with(LockOptions::new().label("reader")).rw_lock("n");
    let readers = [n.read().unwrap(), n.read().unwrap()];
    let writer = write(&mgr);
    let info = mgr.inspect("n").unwrap().unwrap();
    assert_eq!(
        (&info.kind, info.fence, info.waiters),
        (&Kind::RwLock, readers[0].fence(), 1)
    );
    assert_eq!(info.kind.to_string(), "reader/writer lock");
    assert_eq!(info.holders.len(), 2);
    assert!(
        info.holders
            .iter()
            .all(|party| party.permits == 1 && party.label == "reader")
    );
    let error = mgr.try_lock("n").unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Misused {
                misuse: Misuse::Kind {
                    is: Kind::RwLock,
                    asked: Kind::Mutex,
                    ..
                },
                ..
            }
        ),
        "{error:?}"
    );
    drop(readers);
    drop(served(&writer));
    comes_to_rest(backend, &mgr, "n");
}

fn a_flush_ends_readers_and_writers(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let reader = ours.rw_lock("n").read().unwrap();
    let writer = write(&theirs);
    let behind = read(&theirs);
    backend.flush_all();
    let writer = served(&writer);
    assert_eq!(
        reader.lost().recv_timeout(SOON).unwrap().reason,
        LossReason::NotOwner
    );
    assert!(writer.fence() > reader.fence());
    drop(writer);
    drop(served(&behind));
    comes_to_rest(backend, &ours, "n");
}
