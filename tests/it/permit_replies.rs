//! P7 and P4 for permits, readers and writers: requests that took effect but whose replies were
//! lost, requests that arrive too late, and wake-ups that do not arrive. On Redis alone, where a
//! proxy selects the exact request.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, PreviousHolder, RwLock, Step};

use crate::fixtures::{
    P, SOON, STEADY_T as T, STEADY_TTL as TTL, Verb, build, manager, warm_up, with_ttl,
};
use crate::lost_replies::{self, Setup, lose_two_releases, says};
use crate::permits::{AnyGuard, PermitWaiters, Permits, Want, release, request};
use crate::sums::Sums;
use crate::support::proxy::ProxyFault;
use crate::support::{Proxy, SLACK, Server, contains, throughout, until};

const ONE: Want = Want::Permits(1, 3);
const TWO: Want = Want::Permits(2, 3);
const ALL: Want = Want::Permits(3, 3);

fn setup() -> Setup {
    let setup = lost_replies::setup();
    // From here on the server knows the scripts of permits, so each request is sent once.
    for mgr in [&setup.ours, &setup.other] {
        let writer = mgr.rw_lock("warm-rw").write().unwrap();
        assert!(
            mgr.rw_lock("warm-rw")
                .try_read_for(2 * P)
                .unwrap()
                .is_none()
        );
        writer.renew().unwrap();
        writer.unlock().unwrap();
    }
    setup
}

/// Ways to lose a reply: the client notices at once (the first two), or never.
const REPLY_LOSSES: [fn(&Proxy, Verb) -> ProxyFault; 3] = [
    |proxy, verb| proxy.swallow_reply_when(request(verb, "a")),
    |proxy, verb| proxy.swallow_and_reset_when(request(verb, "a")),
    |proxy, verb| proxy.swallow_silently_when(request(verb, "a")),
];

/// A grant has its status, or it came from the short way and is packed into 25 bytes.
fn is_grant(reply: &[u8]) -> bool {
    says(reply, "granted") || reply.starts_with(b"$25\r\n")
}

#[test]
fn p7_permits_with_a_lost_grant_reply_are_taken_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for (way, lose) in REPLY_LOSSES.into_iter().enumerate() {
        for (want, used) in [(TWO, 2), (Want::Write, 1 << 30), (Want::Read, 1)] {
            let fault = lose(&s.proxy, Verb::Acquire);
            // After a silence only a call that may wait sends its request again.
            let guard = want.take(&s.ours, "a").unwrap();
            let lost = fault.wait(SOON);
            assert!(is_grant(&lost), "{way}: {}", String::from_utf8_lossy(&lost));
            assert_eq!(
                (record.used(), record.holding().len()),
                (used, 1),
                "{way}: {want:?} was granted once"
            );
            assert!(
                want == Want::Read || says(&lost, &format!(":{}\r\n", guard.fence())),
                "both replies have the same fence"
            );
            guard.renew().unwrap();
            guard.unlock().unwrap();
            record.comes_to_rest();
        }
    }
}

#[test]
fn p7_an_unanswered_try_for_permits_leaves_none_taken() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    let kept = ONE.take(&s.other, "a").unwrap();
    // The second copy goes out on another connection.
    let faults = [(); 2].map(|()| s.proxy.swallow_silently_when(request(Verb::Acquire, "a")));
    let start = Instant::now();
    let end = TWO.try_take(&s.ours, "a");
    assert!(start.elapsed() <= 2 * T + SLACK, "{:?}", start.elapsed());
    assert!(
        matches!(
            end,
            Err(Error::Unavailable {
                step: Step::Reply,
                ..
            })
        ),
        "{end:?}"
    );
    for fault in faults {
        assert!(is_grant(&fault.wait(SOON)));
    }
    until(
        T + SLACK,
        "the two permits are released, well before their lease could lapse",
        || record.used() == 1,
    );
    kept.renew().expect("no other permit was released");
    let next = TWO.try_take(&s.other, "a").unwrap().expect("they are free");
    assert_eq!(
        next.previous_holder(),
        PreviousHolder::Unknown,
        "these permits were never held"
    );
    drop((kept, next));
    record.comes_to_rest();
}

#[test]
fn p7_an_enqueue_for_permits_with_a_lost_reply_happens_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for (way, lose) in REPLY_LOSSES.into_iter().enumerate() {
        let holder = TWO.take(&s.other, "a").unwrap();
        let fault = lose(&s.proxy, Verb::Acquire);
        let mut queue = PermitWaiters::of(&s.server, "a");
        queue.add(&s.ours, ALL);
        assert!(says(&fault.wait(SOON), "waiting"));
        // Checks of the waiter begin when another copy of its request is answered.
        let check = s.proxy.hold_request_when(request(Verb::Sync, "a"));
        check.wait(SOON);
        check.release();
        queue.add(&s.other, ONE);
        assert_eq!(
            (
                record.tokens().len(),
                record.number("n"),
                record.number("r")
            ),
            (2, 2, 2),
            "{way}"
        );
        holder.unlock().unwrap();
        let heavy = queue.expect_grant(0, SOON);
        assert_eq!((record.used(), record.holding().len()), (3, 1), "{way}");
        assert!(queue.none_ended());
        heavy.unlock().unwrap();
        queue.expect_grant(1, SOON).unlock().unwrap();
        record.comes_to_rest();
    }
}

#[test]
fn p7_a_release_of_permits_with_a_lost_reply_happens_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in REPLY_LOSSES {
        let guard = ONE.take(&s.ours, "a").unwrap();
        let kept = TWO.take(&s.other, "a").unwrap();
        let mut queue = PermitWaiters::of(&s.server, "a");
        // One waiter is in the process whose reply is lost, and that reply says that it was
        // granted.
        queue.add(&s.ours, ONE);
        queue.add(&s.other, ONE);
        let background = s.ours.stats().background_releases;
        let fault = lose(&s.proxy, Verb::Release);
        match guard.unlock() {
            Ok(()) => {}
            Err(Error::Unavailable { .. }) => {
                until(SOON, "the background work is done", || {
                    s.ours.stats().background_releases > background
                });
            }
            other => panic!("{other:?}"),
        }
        assert!(says(&fault.wait(SOON), "released"));
        let first = queue.expect_grant(0, P + 2 * T + SLACK);
        assert_eq!((record.used(), record.holding().len()), (3, 2));
        assert!(
            queue.none_ended(),
            "a release that is sent twice takes effect once"
        );
        kept.renew().unwrap();
        first.unlock().unwrap();
        queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
        kept.unlock().unwrap();
        record.comes_to_rest();
    }
}

/// The others' grants end in any way between the copies, and the last answer is about the first.
#[test]
fn p7_permits_released_with_two_lost_replies_end_cleanly() {
    let s = setup();
    let cleanly = |other: &LockManager| drop(ALL.take(other, "a").unwrap());
    let by_force = |other: &LockManager| {
        let guard = ALL.take(other, "a").unwrap();
        assert!(other.force_release("a", guard.fence()).unwrap());
    };
    let half_done = |other: &LockManager| {
        let permit = other.semaphore("a", 3).acquire(1).unwrap();
        permit.abandon().unwrap();
    };
    let ways: [fn(&LockManager); 3] = [cleanly, by_force, half_done];
    for first in ways {
        for second in ways {
            let guard = ALL.take(&s.ours, "a").unwrap();
            let other = s.other.clone();
            let faults = lose_two_releases(&s.proxy, request(Verb::Release, "a"), move || {
                first(&other);
                second(&other);
            });
            guard.unlock().unwrap();
            assert!(says(&faults[0].wait(SOON), "released"));
            assert!(says(&faults[1].wait(SOON), "already"));
            s.proxy.disarm();
            Permits::of(&s.server, "a").comes_to_rest();
        }
    }
}

#[test]
fn p7_a_readers_release_sent_twice_ends_no_other_reader() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in REPLY_LOSSES {
        // Both readers have the same fence.
        let guard = Want::Read.take(&s.ours, "a").unwrap();
        let stays = Want::Read.take(&s.ours, "a").unwrap();
        let mut queue = PermitWaiters::of(&s.server, "a");
        queue.add(&s.other, Want::Write);
        let background = s.ours.stats().background_releases;
        let fault = lose(&s.proxy, Verb::Release);
        if guard.unlock().is_err() {
            until(SOON, "the background work is done", || {
                s.ours.stats().background_releases > background
            });
        }
        assert!(says(&fault.wait(SOON), "released"));
        assert_eq!((record.used(), record.holding().len()), (1, 1));
        stays.renew().unwrap();
        assert!(queue.none_ended());
        stays.unlock().unwrap();
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
        record.comes_to_rest();
    }
}

#[test]
fn p7_a_force_release_with_a_lost_reply_happens_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in &REPLY_LOSSES[..2] {
        let readers = [
            Want::Read.take(&s.other, "a").unwrap(),
            Want::Read.take(&s.other, "a").unwrap(),
        ];
        let fault = lose(&s.proxy, Verb::Release);
        assert!(s.ours.force_release("a", readers[0].fence()).unwrap());
        assert!(says(&fault.wait(SOON), "released"));
        assert_eq!(record.used(), 0);
        drop(readers);
        record.comes_to_rest();
    }
}

#[test]
fn p7_a_permit_renewal_with_a_lost_reply_is_sent_again() {
    let s = setup();
    for want in [TWO, Want::Read] {
        let guard = want.take(&s.ours, "a").unwrap();
        for lose in &REPLY_LOSSES[..2] {
            let fault = lose(&s.proxy, Verb::Renew);
            guard.renew().unwrap();
            assert!(says(&fault.wait(SOON), "renewed"));
        }
        guard.check().unwrap();
        guard.unlock().unwrap();
        Permits::of(&s.server, "a").comes_to_rest();
        let _: i64 = s.server.query(&["DEL", "fairlock:{a}"]);
    }
    assert_eq!(s.ours.stats().losses(), 0);
}

#[test]
fn p7_a_downgrade_with_a_lost_reply_keeps_exactly_one_permit() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in REPLY_LOSSES {
        let writer = s.ours.rw_lock("a").write().unwrap();
        let mut queue = PermitWaiters::of(&s.server, "a");
        for (mgr, want) in [
            (&s.ours, Want::Read),
            (&s.other, Want::Read),
            (&s.other, Want::Write),
        ] {
            queue.add(mgr, want);
        }
        let fault = lose(&s.proxy, Verb::Release);
        let reader = AnyGuard::Reader(RwLock::downgrade(writer).unwrap());
        assert!(says(&fault.wait(SOON), "released"));
        let others = queue.expect_grants(0..2, P + 2 * T + SLACK);
        assert!(others.iter().all(|other| other.fence() == reader.fence()));
        assert_eq!((record.used(), record.holding().len()), (3, 3));
        others.into_iter().for_each(|other| other.unlock().unwrap());
        reader.renew().unwrap();
        assert!(
            queue.none_ended() && record.used() == 1,
            "it still holds as a reader"
        );
        reader.unlock().unwrap();
        queue.expect_grant(2, P + T + SLACK).unlock().unwrap();
        record.comes_to_rest();
    }
}

#[test]
fn p7_a_release_of_some_permits_with_a_lost_reply_counts_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in REPLY_LOSSES {
        let mut guard = s.ours.semaphore("a", 4).acquire(4).unwrap();
        let mut queue = PermitWaiters::of(&s.server, "a");
        for mgr in [&s.ours, &s.other, &s.other] {
            queue.add(mgr, Want::Permits(1, 4));
        }
        let fault = lose(&s.proxy, Verb::Release);
        guard.release_permits(1).unwrap();
        assert!(says(&fault.wait(SOON), "released"));
        let first = queue.expect_grant(0, P + 2 * T + SLACK);
        // The renewal thread may send the first request again after this one.
        guard.release_permits(1).unwrap();
        let second = queue.expect_grant(1, P + 2 * T + SLACK);
        throughout(2 * T, "the first release counts once", || {
            (record.used(), record.holding().len()) == (4, 3) && queue.none_ended()
        });
        guard.renew().unwrap();
        assert_eq!(guard.permits(), 2);
        guard.unlock().unwrap();
        let third = queue.expect_grant(2, P + T + SLACK);
        for other in [first, second, third] {
            other.unlock().unwrap();
        }
        record.comes_to_rest();
    }
}

/// The first copy of a release took effect. Before the second arrives, the name becomes another
/// kind of lock.
#[test]
fn p7_a_kind_change_between_two_releases_is_no_loss() {
    let s = setup();
    for becomes_mutex in [false, true] {
        let guard = if becomes_mutex {
            ONE.take(&s.ours, "a").unwrap()
        } else {
            AnyGuard::Guard(s.ours.lock("a").unwrap())
        };
        let released = move |bytes: &[u8]| contains("used")(bytes) && contains("{a}")(bytes);
        let lost = s.proxy.swallow_and_reset_when(released);
        let second = s.proxy.hold_request_when(released);
        thread::scope(|scope| {
            let end = scope.spawn(|| guard.unlock());
            assert!(says(&lost.wait(SOON), "released"));
            second.wait(SOON);
            let next = if becomes_mutex {
                AnyGuard::Guard(s.other.try_lock("a").unwrap().unwrap())
            } else {
                ONE.try_take(&s.other, "a").unwrap().unwrap()
            };
            assert!(says(&second.release(), "already"));
            let end = end.join().unwrap();
            assert!(!matches!(end, Err(Error::Lost { .. })), "{end:?}");
            next.renew().unwrap();
            next.unlock().unwrap();
        });
    }
    assert_eq!(s.ours.stats().losses(), 0);
}

/// A vacate and the acquire after it are sent twice, or have no reply.
#[test]
fn p7_a_change_of_kind_with_lost_replies_takes_the_lock_once() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lost in [Verb::Vacate, Verb::Acquire] {
        for lose in REPLY_LOSSES {
            s.other.lock("a").unwrap().unlock().unwrap();
            let fault = lose(&s.proxy, lost);
            let guard = TWO.take(&s.ours, "a").unwrap();
            fault.wait(SOON);
            assert_eq!((record.used(), record.holding().len()), (2, 1));
            assert!(ALL.try_take(&s.other, "a").unwrap().is_none());
            guard.unlock().unwrap();
            record.comes_to_rest();
        }
    }
}

/// A waiter's check hands the lapsed permits on, and only the reply to that check reports the
/// grants.
#[test]
fn p4_a_permit_grant_in_a_lost_reply_costs_one_check() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for lose in REPLY_LOSSES {
        // The fault may hit an ordinary check first. Then the attempt is repeated.
        until(
            4 * SOON,
            "the lost reply is that of the check that grants",
            || {
                let lapses = s.other.with(LockOptions::new().fixed_lease(10 * TTL));
                let lapses = ALL.take(&lapses, "a").unwrap();
                let mut queue = PermitWaiters::of(&s.server, "a");
                queue.add(&s.ours, ONE);
                queue.add(&s.ours, TWO);
                // The last waiter keeps waiting, so that only the tickets show that the others were
                // served.
                queue.add(&s.ours, ALL);
                let fault = lose(&s.proxy, Verb::Sync);
                record.was_away(P);
                let lost = fault.wait(P + SLACK);
                let both = queue.expect_grants(0..2, P + 2 * T + SLACK);
                assert_eq!((record.used(), record.holding().len()), (3, 2));
                let grants_lost = record.holding().iter().all(|token| says(&lost, token));
                both.into_iter().for_each(|guard| guard.unlock().unwrap());
                queue.expect_grant(2, P + T + SLACK).unlock().unwrap();
                drop(lapses);
                record.comes_to_rest();
                grants_lost
            },
        );
    }
    assert_eq!(s.ours.stats().requeues, 0);
}

/// One call grants to 32 waiters at most. The copy of an acquire that finds its own waiter among them
/// says nothing of the others, so their checks must serve them.
#[test]
fn p4_an_acquire_sent_twice_leaves_others_to_their_next_check() {
    const T: Duration = Duration::from_secs(5);
    let patient = |url: String| {
        let builder = with_ttl(url, 10 * T).command_timeout(T).check_period(P);
        build(builder.horizon(P + 3 * T))
    };
    let server = Server::tcp();
    let (ours_proxy, theirs_proxy) = (Proxy::to(server.addr()), Proxy::to(server.addr()));
    let (ours, theirs) = (patient(ours_proxy.url()), patient(theirs_proxy.url()));
    let record = Permits::of(&server, "a");
    for mgr in [&ours, &theirs] {
        warm_up(mgr);
        Want::Write.take(mgr, "a").unwrap().unlock().unwrap();
    }
    let lapses = theirs.with(LockOptions::new().fixed_lease(10 * T));
    let lapses = Want::Write.take(&lapses, "a").unwrap();
    let mut queue = PermitWaiters::of(&server, "a");
    let first = ours_proxy.swallow_and_reset_when(request(Verb::Acquire, "a"));
    let second = ours_proxy.hold_request_when(request(Verb::Acquire, "a"));
    queue.add(&ours, Want::Read);
    assert!(says(&first.wait(SOON), "waiting"));
    second.wait(SOON);
    for _ in 1..40 {
        queue.add(&theirs, Want::Read);
    }
    theirs_proxy.pause_requests();
    record.was_away(P);
    assert!(says(&second.release(), "granted"));
    let mut readers = queue.expect_grants(0..32, SOON);
    assert_eq!(record.used(), 32);
    theirs_proxy.resume_requests();
    readers.extend(queue.expect_grants(32..40, P + SLACK));
    assert!(readers.iter().all(|reader| reader.is_held()));
    drop((readers, lapses));
    assert_eq!(ours.stats().requeues + theirs.stats().requeues, 0);
    record.comes_to_rest();
}

type SetFault = Box<dyn Fn(&Proxy) -> ProxyFault>;

#[test]
fn p7_an_unanswered_wait_for_permits_leaves_no_waiter_behind() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    let holder = TWO.take(&s.other, "a").unwrap();
    let mode = "keep_if_owner";
    let ways: [SetFault; 3] = [
        Box::new(move |proxy| proxy.swallow_reply_when(release(mode, "a"))),
        Box::new(move |proxy| proxy.swallow_silently_when(release(mode, "a"))),
        Box::new(move |proxy| proxy.reset_request_when(release(mode, "a"))),
    ];
    for lose in ways {
        let fault = lose(&s.proxy);
        let start = Instant::now();
        let end = ALL.take_for(&s.ours, "a", T);
        assert!(start.elapsed() <= 2 * T + SLACK, "{:?}", start.elapsed());
        fault.wait(SOON);
        assert!(
            matches!(end, Ok(None) | Err(Error::Unavailable { .. })),
            "{end:?}"
        );
        // A heavy waiter that is gone delays no other caller.
        ONE.take_for(&s.other, "a", SOON)
            .unwrap()
            .expect("one permit is free")
            .unlock()
            .unwrap();
        until(SOON, "the waiter has left the queue", || {
            record.waiters().is_empty()
        });
    }
    holder.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn p7_permits_granted_before_the_deadline_are_kept() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for want in [TWO, Want::Read] {
        let holder = if want == TWO { ALL } else { Want::Write }
            .take(&s.other, "a")
            .unwrap();
        let leaving = s.proxy.hold_request_when(release("keep_if_owner", "a"));
        thread::scope(|scope| {
            let trying = scope.spawn(|| {
                want.take_for(&s.ours, "a", Duration::from_millis(50))
                    .unwrap()
            });
            leaving.wait(SLACK);
            holder.unlock().unwrap();
            leaving.release();
            let guard = trying
                .join()
                .unwrap()
                .expect("it was granted before it left the queue");
            assert_eq!(record.holding().len(), 1);
            guard.renew().unwrap();
            guard.unlock().unwrap();
        });
        record.comes_to_rest();
    }
    assert_eq!(s.ours.stats().waiting, 0);
}

#[test]
fn p7_a_request_for_permits_arriving_after_its_timeout_takes_none() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    // The second copy goes out on another connection.
    let held = [(); 2].map(|()| s.proxy.hold_request_when(request(Verb::Acquire, "a")));
    let end = TWO.try_take(&s.ours, "a");
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    for held in held {
        assert!(says(&held.release(), "late"));
    }
    assert!(record.holders().is_empty() && record.used() == 0);
    // The same for an enqueue: the first copy of the request arrives after the whole wait is over.
    let holder = TWO.take(&s.other, "a").unwrap();
    let held = s.proxy.hold_request_when(request(Verb::Acquire, "a"));
    assert!(ALL.take_for(&s.ours, "a", 3 * T).unwrap().is_none());
    assert!(says(&held.release(), "late"));
    assert!(record.waiters().is_empty() && record.tokens().is_empty());
    holder.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn p7_a_permit_renewal_arriving_after_the_release_extends_no_lease() {
    let s = setup();
    let record = Permits::of(&s.server, "a");
    for want in [TWO, Want::Read] {
        let guard = want.take(&s.ours, "a").unwrap();
        let losses = guard.lost().clone();
        let held = s.proxy.hold_request_when(request(Verb::Renew, "a"));
        held.wait(TTL / 3 + SLACK);
        guard.unlock().unwrap();
        let next = s.other.with(LockOptions::new().fixed_lease(TTL));
        let next = want.take(&next, "a").unwrap();
        let before = record.dump();
        assert!(says(&held.release(), "gone"));
        assert_eq!(record.dump(), before, "it wrote nothing");
        assert!(
            losses
                .recv_timeout(SLACK)
                .is_err_and(|e| e.is_disconnected()),
            "it is no loss either"
        );
        next.unlock().unwrap();
        record.comes_to_rest();
    }
    assert_eq!(s.ours.stats().losses(), 0);
}

#[test]
fn p4_readers_and_writers_are_served_while_subscriptions_keep_dying() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&ours);
    let kills = server.repeat(
        &["CLIENT", "KILL", "TYPE", "pubsub"],
        Duration::from_millis(10),
    );
    for _ in 0..4 {
        let holder = Want::Write.take(&other, "a").unwrap();
        let mut queue = PermitWaiters::of(&server, "a");
        for want in [Want::Read, Want::Read, Want::Write, Want::Read] {
            queue.add(&ours, want);
        }
        holder.unlock().unwrap();
        let readers = queue.expect_grants(0..2, P + 2 * crate::fixtures::T + SLACK);
        readers
            .into_iter()
            .for_each(|reader| reader.unlock().unwrap());
        queue
            .expect_grant(2, P + 2 * crate::fixtures::T + SLACK)
            .unlock()
            .unwrap();
        queue
            .expect_grant(3, P + 2 * crate::fixtures::T + SLACK)
            .unlock()
            .unwrap();
    }
    drop(kills);
    assert_eq!(ours.stats().requeues, 0);
    Permits::of(&server, "a").comes_to_rest();
}

#[test]
fn p4_permit_grants_lost_on_half_open_subscriptions_cost_one_check() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ttl = Duration::from_secs(20);
    let checking = |url: String| build(with_ttl(url, ttl).check_period(P).command_timeout(T));
    let (ours, other) = (checking(proxy.url()), checking(server.url()));
    warm_up(&ours);
    let holder = ALL.take(&other, "a").unwrap();
    let mut queue = PermitWaiters::of(&server, "a");
    for want in [ONE, TWO, ALL] {
        queue.add(&ours, want);
    }
    let deaf = proxy.swallow_silently_when(contains("PING"));
    deaf.wait(P + SLACK);
    holder.unlock().unwrap();
    let both = queue.expect_grants(0..2, P + T + SLACK);
    assert!(queue.none_ended());
    both.into_iter().for_each(|guard| guard.unlock().unwrap());
    queue.expect_grant(2, P + T + SLACK).unlock().unwrap();
    assert_eq!(ours.stats().requeues, 0);
    Permits::of(&server, "a").comes_to_rest();
}
