//! Redis loses permits, or a part of them; or it is away, or its clock goes back, while many
//! processes hold them.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockOptions, LossReason, RwLock};

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{
    H, P, SOON, STEADY_T, STEADY_TTL, T, TTL, build, builder, manager, micros, server_time, steady,
    warm_up, with_ttl,
};
use crate::permits::{AnyGuard, PermitWaiters, Permits, Want};
use crate::sums::Sums;
use crate::support::{SLACK, until};

on_both_stores! {
    p3_a_flushall_of_permits_is_reported_and_keeps_the_order,
    p3_a_flushall_of_readers_and_writers_keeps_the_order,
    p1_readers_keep_the_lock_when_record_or_queue_is_lost,
    permits_whose_holders_are_lost_are_free_at_once,
    p10_a_wrong_key_type_refuses_permits_and_writes_nothing,
    p3_waiters_for_permits_keep_their_order_over_an_outage,
    r10_permits_that_lapse_in_an_outage_cost_no_place,
    r10_a_process_with_lapsed_permits_loses_places_after_grace,
    a_force_release_after_an_outage_gives_the_grace,
    r15_each_lease_is_cut_to_its_own_length,
    p8_ending_permits_in_silence_takes_at_most_one_command_timeout,
    p6_permit_losses_are_reported_in_a_silent_outage,
}

const OF: u32 = 4;

fn p3_a_flushall_of_permits_is_reported_and_keeps_the_order(backend: &Backend) {
    loses_all_permits(backend, || backend.flush_all());
}

fn p3_a_flushall_of_readers_and_writers_keeps_the_order(backend: &Backend) {
    loses_all_readers(backend, || backend.flush_all());
}

pub(crate) fn loses_all_permits(backend: &Backend, disaster: impl FnOnce()) {
    let [one, two, three] = [1, 2, 3].map(|many| Want::Permits(many, OF));
    loses_everything(
        backend,
        [one, three],
        &[one, two, three, one, two, three, one, two],
        disaster,
    );
}

pub(crate) fn loses_all_readers(backend: &Backend, disaster: impl FnOnce()) {
    use Want::{Read, Write};
    loses_everything(
        backend,
        [Read, Read],
        &[Write, Read, Read, Write, Read, Read, Write, Read],
        disaster,
    );
}

fn loses_everything(backend: &Backend, hold: [Want; 2], wait: &[Want], disaster: impl FnOnce()) {
    let managers = [build(steady(backend)), build(steady(backend))];
    managers.iter().for_each(warm_up);
    let record = Permits::of(backend, "a");
    let holders = [0, 1].map(|waiter| hold[waiter].take(&managers[waiter], "a").unwrap());
    let largest = holders
        .iter()
        .map(|holder| holder.fence())
        .max()
        .expect("there are two");
    let capacity = record.number("capacity") as u32;
    let mut queue = PermitWaiters::of(backend, "a");
    for (waiter, want) in wait.iter().enumerate() {
        queue.add(&managers[waiter % 2], *want);
    }
    // Redis has queued them all. Their managers have read that, too: this reply comes behind theirs.
    // A waiter whose reply is lost would ask again at once, and come before the others.
    for manager in &managers {
        assert!(manager.inspect("a").unwrap().is_some());
    }

    disaster();
    for holder in &holders {
        let loss = holder
            .lost()
            .recv_timeout(STEADY_TTL / 3 + SLACK)
            .expect("the loss is reported");
        assert_eq!(
            (loss.reason, loss.fence),
            (LossReason::NotOwner, holder.fence())
        );
        assert!(!holder.is_held());
    }

    // The order across processes depends on which one syncs first; each process keeps its own
    // order.
    let mut seen: [Vec<usize>; 2] = Default::default();
    while seen[0].len() + seen[1].len() < wait.len() {
        // This collects the waiters that are granted together. Nobody else is granted until they
        // release.
        let mut together: Vec<(usize, AnyGuard)> = Vec::new();
        let mut within = SOON;
        while let Some((waiter, end)) = queue.next_end_within(within) {
            let guard = end.unwrap();
            assert!(guard.fence() > largest, "fences rise over a loss of data");
            together.push((waiter, guard));
            let believed: u32 = together
                .iter()
                .filter(|(_, g)| g.is_held())
                .map(|(waiter, _)| wait[*waiter].weight())
                .sum();
            assert!(believed <= capacity, "{together:?} hold {believed} permits");
            within = 2 * P;
        }
        assert!(
            !together.is_empty(),
            "no waiter is granted: {}",
            record.dump()
        );
        together.sort_unstable_by_key(|(waiter, _)| *waiter);
        for (waiter, guard) in together {
            seen[waiter % 2].push(waiter);
            guard.unlock().unwrap();
        }
    }
    assert!(seen.iter().all(|order| order.is_sorted()), "{seen:?}");
    until(
        SLACK,
        "all but those that found free permits were queued again",
        || managers.iter().map(|mgr| mgr.stats().requeues).sum::<u64>() + 2 >= wait.len() as u64,
    );
    drop(holders);
    record.comes_to_rest();
}

fn p1_readers_keep_the_lock_when_record_or_queue_is_lost(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "a");
    for lost in [
        &[&*record.key][..],
        &[&*record.queue],
        &[&*record.key, &*record.queue],
    ] {
        let readers = [&ours, &theirs].map(|mgr| Want::Read.take(mgr, "a").unwrap());
        let requeued = theirs.stats().requeues;
        let mut queue = PermitWaiters::of(backend, "a");
        queue.add(&theirs, Want::Write);
        queue.add(&theirs, Want::Read);
        let _: i64 = backend.query(&[&["DEL"], lost].concat());
        until(SOON, "both are queued again", || {
            (
                theirs.stats().requeues,
                record.waiters().len(),
                record.tokens().len(),
            ) == (requeued + 2, 2, 2)
        });
        readers.iter().for_each(|reader| reader.renew().unwrap());
        assert_eq!(record.used(), 2, "{lost:?}");
        assert!(queue.none_ended() && Want::Write.try_take(&ours, "a").unwrap().is_none());
        readers
            .into_iter()
            .for_each(|reader| reader.unlock().unwrap());
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
        queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
        record.comes_to_rest();
    }
}

/// The key with the readers is lost, and with it the count of permits. The queue is not lost, so
/// the next check serves its first waiter, with a larger fence.
fn permits_whose_holders_are_lost_are_free_at_once(backend: &Backend) {
    let (ours, theirs) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "a");
    let readers = [&ours, &theirs].map(|mgr| Want::Read.take(mgr, "a").unwrap());
    let mut queue = PermitWaiters::of(backend, "a");
    queue.add(&theirs, Want::Write);
    let requeued = theirs.stats().requeues;
    let start = Instant::now();
    let _: i64 = backend.query(&["DEL", &record.holders]);
    let writer = queue.expect_grant(0, P + T + SLACK);
    assert!(start.elapsed() < P + T + SLACK, "{:?}", start.elapsed());
    assert!(writer.fence() > readers[0].fence());
    assert_eq!(theirs.stats().requeues, requeued, "it kept its place");
    for reader in &readers {
        assert_eq!(
            reader
                .lost()
                .recv_timeout(TTL / 3 + SLACK)
                .expect("the loss is reported")
                .reason,
            LossReason::NotOwner
        );
    }
    writer.unlock().unwrap();
    record.comes_to_rest();
}

fn p10_a_wrong_key_type_refuses_permits_and_writes_nothing(backend: &Backend) {
    let mgr = manager(backend);
    for want in [Want::Read, Want::Write, Want::Permits(2, 3)] {
        let record = Permits::of(backend, "a");
        for (key, others) in [
            (&record.key, [&record.queue, &record.holders]),
            (&record.holders, [&record.key, &record.queue]),
        ] {
            let _: i64 = backend.query(&["RPUSH", key, "theirs"]);
            for end in [
                want.try_take(&mgr, "a"),
                want.take_for(&mgr, "a", SOON),
                want.take(&mgr, "a").map(Some),
            ] {
                assert!(
                    matches!(&end, Err(Error::Refused { code, .. }) if code == "WRONGTYPE"),
                    "{key}: {end:?}"
                );
            }
            assert_eq!(
                backend.query::<Vec<String>>(&["LRANGE", key, "0", "-1"]),
                ["theirs"]
            );
            for other in others {
                assert_eq!(
                    backend.query::<i64>(&["DEL", other]),
                    0,
                    "{other} was written while {key} had the wrong type"
                );
            }
            let _: i64 = backend.query(&["DEL", key]);
        }
        // The queue's key comes last, because only callers that wait touch it.
        let holder = want.take(&mgr, "a").unwrap();
        let _: i64 = backend.query(&["HSET", &record.queue, "theirs", "1"]);
        let before = record.state();
        let waits = if want == Want::Permits(2, 3) {
            want
        } else {
            Want::Write
        };
        for end in [
            waits.take_for(&mgr, "a", SOON),
            waits.take(&mgr, "a").map(Some),
        ] {
            assert!(
                matches!(&end, Err(Error::Refused { code, .. }) if code == "WRONGTYPE"),
                "{end:?}"
            );
        }
        assert_eq!((record.state(), record.waiters()), (before, Vec::new()));
        holder.renew().unwrap();
        holder.unlock().unwrap();
        let _: i64 = backend.query(&["DEL", &record.queue]);
        record.comes_to_rest();
        let _: i64 = backend.query(&["DEL", &record.key, &record.holders]);
    }
}

fn p3_waiters_for_permits_keep_their_order_over_an_outage(backend: &Backend) {
    let patient = || build(builder(backend).outage_limit(Duration::MAX));
    let managers = [patient(), patient()];
    // The holders are other processes: their own waiters would lose their places with a lease (R10:
    // places of the dead).
    let holding = [patient(), patient()];
    let holders = holding
        .each_ref()
        .map(|mgr| Want::Permits(2, OF).take(mgr, "a").unwrap());
    let mut queue = PermitWaiters::of(backend, "a");
    for (waiter, many) in [1, 3, 2, 4, 1, 3].into_iter().enumerate() {
        queue.add(&managers[waiter % 2], Want::Permits(many, OF));
    }
    backend.go_away();
    // Past the leases and past the horizon: an outage makes no waiter look dead (R2: served time).
    backend.pass(TTL + H / 2);
    assert!(holders.iter().all(|holder| !holder.is_held()) && queue.none_ended());
    backend.come_back();
    let back = Instant::now();
    for together in [0..2, 2..3, 3..4, 4..6] {
        let guards = queue.expect_grants(together, Duration::from_secs(2) + SLACK);
        assert!(queue.none_ended());
        guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    }
    assert!(
        back.elapsed() <= Duration::from_secs(2) + SLACK,
        "{:?}",
        back.elapsed()
    );
    assert_eq!(managers.each_ref().map(|mgr| mgr.stats().requeues), [0, 0]);
    Permits::of(backend, "a").comes_to_rest();
}

fn r10_permits_that_lapse_in_an_outage_cost_no_place(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    warm_up(&ours);
    warm_up(&other);
    let record = Permits::of(backend, "a");
    for _ in 0..2 {
        let holders = [(&ours, 1), (&other, 3)]
            .map(|(mgr, many)| Want::Permits(many, OF).take(mgr, "a").unwrap());
        let mut queue = PermitWaiters::of(backend, "a");
        for (mgr, many) in [(&ours, 2), (&other, 2), (&ours, 4)] {
            queue.add(mgr, Want::Permits(many, OF));
        }
        record.was_away(2 * (P + T));
        // One of the holders is the first to come back, and it sees the other's lapse.
        assert!(
            Want::Permits(1, OF)
                .try_take(&other, "a")
                .unwrap()
                .is_none()
        );
        for holder in holders {
            // The process of this holder may have handed the permits on already.
            let _ = holder.unlock();
        }
        let both = queue.expect_grants(0..2, 2 * (P + T) + SLACK);
        both.into_iter().for_each(|guard| guard.unlock().unwrap());
        queue.expect_grant(2, 2 * (P + T) + SLACK).unlock().unwrap();
    }
    assert_eq!(ours.stats().requeues + other.stats().requeues, 0);
    record.comes_to_rest();
}

/// The grace lasts for one step. A process that sends nothing in that time is dead, and so are its
/// waiters.
fn r10_a_process_with_lapsed_permits_loses_places_after_grace(backend: &Backend) {
    // Its renewals and its checks are so far off that it looks dead.
    let silent = {
        let (ttl, period) = (Duration::from_secs(60), Duration::from_secs(30));
        build(
            with_ttl(backend, ttl)
                .command_timeout(T)
                .check_period(period)
                .horizon(period + 3 * T),
        )
    };
    let other = manager(backend);
    warm_up(&silent);
    warm_up(&other);
    let record = Permits::of(backend, "a");
    let holder = Want::Permits(OF, OF).take(&silent, "a").unwrap();
    let mut dead = PermitWaiters::of(backend, "a");
    dead.add(&silent, Want::Permits(1, OF));
    let mut queue = PermitWaiters::of(backend, "a");
    queue.add(&other, Want::Permits(OF, OF));
    record.was_away(2 * (P + T));
    assert!(
        Want::Permits(1, OF)
            .try_take(&other, "a")
            .unwrap()
            .is_none(),
        "the grace protects it"
    );
    let next = queue.expect_grant(0, 2 * (P + T) + SLACK);
    assert!(dead.none_ended());
    next.unlock().unwrap();
    drop(holder);
}

/// The server was away, and the first request after that is a release by force of another fence.
fn a_force_release_after_an_outage_gives_the_grace(backend: &Backend) {
    let (ours, other) = (build(steady(backend)), build(steady(backend)));
    warm_up(&ours);
    let record = Permits::of(backend, "a");
    let holder = Want::Permits(OF, OF).take(&ours, "a").unwrap();
    let mut queue = PermitWaiters::of(backend, "a");
    queue.add(&ours, Want::Permits(1, OF));
    record.was_away(2 * (P + STEADY_T));
    assert!(!other.force_release("a", holder.fence() - 1).unwrap());
    holder.renew().expect("the grace protects it");
    assert!(queue.none_ended());
    holder.unlock().unwrap();
    queue
        .expect_grant(0, P + STEADY_T + SLACK)
        .unlock()
        .unwrap();
    record.comes_to_rest();
}

/// After the clock went back, each dead holder delays the others by one lease of its own, and not
/// by the size of the step. It does not matter which other leases exist.
fn r15_each_lease_is_cut_to_its_own_length(backend: &Backend) {
    let (ours, dead) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "a");
    let long = 20 * TTL;
    let fixed = |lease: Duration| {
        let mgr = dead.with(LockOptions::new().fixed_lease(lease));
        Want::Permits(1, 3).take(&mgr, "a").unwrap()
    };
    let shorter = fixed(TTL);
    record.is_orphaned(record.holding().first().expect("it holds"));
    let longer = fixed(long);
    let live = Want::Permits(1, 3).take(&ours, "a").unwrap();
    // The clock goes back by less than the longer lease and by more than the shorter one.
    record.clock_went_back(5 * TTL);
    let mut queue = PermitWaiters::of(backend, "a");
    queue.add(&ours, Want::Permits(1, 3));
    queue.add(&ours, Want::Permits(1, 3));
    let next = queue.expect_grant(0, TTL + P + T + SLACK);
    live.renew()
        .expect("a step back takes nothing from a live holder");
    assert!(queue.none_ended() && longer.is_held() && !shorter.is_held());
    let now = server_time(backend);
    let ends: Vec<u64> = record
        .holders()
        .iter()
        .filter(|holder| holder.state < 2)
        .map(|h| h.ends - now)
        .collect();
    assert!(
        ends.len() == 3 && ends.iter().all(|left| *left <= micros(long)),
        "{ends:?}"
    );
    drop(longer);
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    drop((next, live, shorter));
    record.comes_to_rest();
}

fn p8_ending_permits_in_silence_takes_at_most_one_command_timeout(backend: &Backend) {
    // Longer than the slack, so a call that waited twice would show.
    const T: Duration = Duration::from_secs(2);
    let mgr = build(
        with_ttl(backend, 8 * T)
            .command_timeout(T)
            .check_period(P)
            .horizon(P + 3 * T),
    );
    warm_up(&mgr);
    let [dropped, unlocked] = [(); 2].map(|()| Want::Permits(1, 2).take(&mgr, "permits").unwrap());
    let [reads, also] = [(); 2].map(|()| Want::Read.take(&mgr, "read").unwrap());
    let writer = mgr.rw_lock("written").write().unwrap();
    backend.go_away();
    type Call = Box<dyn FnOnce() + Send>;
    let unavailable = |end: fairlock::Result<()>| {
        assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}")
    };
    let calls: [(&str, Call); 5] = [
        ("drop of permits", Box::new(|| drop(dropped))),
        (
            "unlock of permits",
            Box::new(move || unavailable(unlocked.unlock())),
        ),
        ("drop of a reader", Box::new(|| drop(reads))),
        (
            "unlock of a reader",
            Box::new(move || unavailable(also.unlock())),
        ),
        // The guard of the resulting reader is dropped after the measured time.
        (
            "downgrade",
            Box::new(|| {
                std::mem::forget(
                    RwLock::downgrade(writer).expect("the release continues in the background"),
                )
            }),
        ),
    ];
    thread::scope(|scope| {
        for (what, call) in calls {
            scope.spawn(move || {
                let start = Instant::now();
                call();
                assert!(
                    start.elapsed() <= T + SLACK,
                    "{what} took {:?}",
                    start.elapsed()
                );
            });
        }
    });
    backend.come_back();
    for name in ["permits", "read"] {
        Permits::of(backend, name).comes_to_rest();
    }
    until(SOON, "one reader is left of the writer", || {
        Permits::of(backend, "written").used() == 1
    });
    assert_eq!(mgr.stats().losses(), 0);
}

fn p6_permit_losses_are_reported_in_a_silent_outage(backend: &Backend) {
    let mgr = manager(backend);
    let held = [Want::Read, Want::Write, Want::Permits(2, 3)];
    let held = held.map(|want| want.take(&mgr, &format!("{want:?}")).unwrap());
    backend.go_away();
    let start = Instant::now();
    for guard in &held {
        let loss = guard
            .lost()
            .recv_timeout(TTL + T + SLACK)
            .expect("the loss is reported");
        assert_eq!(
            (loss.reason, loss.fence),
            (LossReason::Expired, guard.fence())
        );
        assert!(!guard.is_held());
    }
    assert!(start.elapsed() < TTL + T + SLACK, "{:?}", start.elapsed());
    backend.come_back();
    for guard in held {
        Permits::of(backend, guard.name()).comes_to_rest();
        assert!(!guard.is_held() && matches!(guard.unlock(), Err(Error::Lost { .. })));
    }
}
