//! Requests that took effect but whose replies were lost, and requests that arrive too late. On
//! Redis alone, where a proxy selects the exact request; faults that may hit any request are in
//! `behaviour/faults.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder, Step};

use crate::fixtures::{
    P, Record, SOON, STEADY_T as T, STEADY_TTL as TTL, Verb, Waiters, build, release, request,
    steady, warm_up,
};
use crate::sums::Sums;
use crate::support::proxy::ProxyFault;
use crate::support::{Proxy, SLACK, Server, until, until_some};

/// A server, a manager whose requests pass through a proxy, and one whose requests do not.
pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    pub(crate) ours: LockManager,
    pub(crate) other: LockManager,
}

pub(crate) fn setup() -> Setup {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let ours = build(steady(proxy.url()));
    let other = build(steady(server.url()));
    warm_up(&ours);
    warm_up(&other);
    Setup {
        server,
        proxy,
        ours,
        other,
    }
}

/// Ways to lose a reply that the client notices at once.
const NOTICED_LOSSES: [fn(&Proxy, Verb) -> ProxyFault; 2] = [
    |proxy, verb| proxy.swallow_reply_when(request(verb, "a")),
    |proxy, verb| proxy.swallow_and_reset_when(request(verb, "a")),
];

/// Whether a reply to an acquire has this fence, as a number or packed.
pub(crate) fn grants(reply: &[u8], fence: u64) -> bool {
    let packed = (fence as f64).to_le_bytes();
    says(reply, &format!(":{fence}\r\n")) || reply.windows(packed.len()).any(|part| part == packed)
}

pub(crate) fn says(reply: &[u8], what: &str) -> bool {
    String::from_utf8_lossy(reply).contains(what)
}

#[test]
fn p7_try_lock_gets_the_same_grant_after_a_lost_reply() {
    let s = setup();
    for lose in NOTICED_LOSSES {
        let fault = lose(&s.proxy, Verb::Acquire);
        let guard = s.ours.try_lock("a").unwrap().expect("it is free");
        let lost = fault.wait(SOON);
        assert!(
            grants(&lost, guard.fence()),
            "both replies have the same fence"
        );
        assert_eq!(Record::of(&s.server, "a").number("f"), guard.fence());
        guard.unlock().unwrap();
        Record::of(&s.server, "a").comes_to_rest();
    }
}

#[test]
fn p7_an_unanswered_try_lock_leaves_nothing_behind() {
    let s = setup();
    // The second copy goes out on another connection.
    let faults = [(); 2].map(|()| s.proxy.swallow_silently_when(request(Verb::Acquire, "a")));
    let start = Instant::now();
    let end = s.ours.try_lock("a");
    assert!(start.elapsed() <= 2 * T + SLACK);
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
        assert!(says(&fault.wait(SOON), "granted"));
    }
    // The token is released well before its lease could lapse, so the next holder does not see
    // Lapsed.
    Record::of(&s.server, "a").comes_to_rest();
    let next = s.other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(next.previous_holder(), PreviousHolder::Unknown);
}

#[test]
fn p7_a_grant_with_a_lost_reply_is_released_after_reconnecting() {
    let s = setup();
    s.proxy.refuse();
    let fault = s.proxy.swallow_reply_when(request(Verb::Acquire, "a"));
    let end = s.ours.try_lock("a");
    assert!(says(&fault.wait(SOON), "granted"));
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    s.proxy.accept();
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p7_an_unanswered_lock_retries_and_gets_the_same_grant() {
    let s = setup();
    let fault = s.proxy.swallow_silently_when(request(Verb::Acquire, "a"));
    let guard = s.ours.lock("a").unwrap();
    assert!(
        says(&fault.wait(SOON), &format!(":{}\r\n", guard.fence())),
        "both replies have the same fence"
    );
    guard.unlock().unwrap();
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn a_managers_first_lock_succeeds_after_an_unanswered_request() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let manager = build(steady(proxy.url()));
    let fault = proxy.swallow_silently_when(|_| true);
    let guard = manager.lock("a").unwrap();
    fault.wait(SOON);
    guard.unlock().unwrap();
    Record::of(&server, "a").comes_to_rest();
}

#[test]
fn p7_an_enqueue_with_a_lost_reply_happens_once() {
    let s = setup();
    let silent: fn(&Proxy, Verb) -> ProxyFault =
        |proxy, verb| proxy.swallow_silently_when(request(verb, "a"));
    for lose in NOTICED_LOSSES.into_iter().chain([silent]) {
        let holder = s.other.lock("a").unwrap();
        let fault = lose(&s.proxy, Verb::Acquire);
        let mut waiter = s.ours.enqueue("a").unwrap();
        assert!(says(&fault.wait(SOON), "waiting"));
        assert_eq!(waiter.position(), Some(1));
        let record = Record::of(&s.server, "a");
        assert_eq!(record.tokens().len(), 1);
        assert_eq!((record.number("n"), record.number("r")), (1, 1));
        holder.unlock().unwrap();
        let guard = waiter.wait_for(SOON).unwrap().expect("it is the next");
        guard.unlock().unwrap();
        record.comes_to_rest();
    }
}

#[test]
fn p7_unlock_with_a_lost_reply_succeeds_and_hands_over_once() {
    let s = setup();
    for lose in NOTICED_LOSSES {
        let guard = s.ours.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&s.other);
        queue.add(&s.other);
        let fault = lose(&s.proxy, Verb::Release);
        guard.unlock().unwrap();
        assert!(says(&fault.wait(SOON), "released"));
        let first = queue.expect_grant(0, P + T + SLACK);
        s.ours.inspect("a").unwrap().expect("it is held");
        assert!(
            queue.none_ended(),
            "a release that is sent twice takes effect once"
        );
        first.unlock().unwrap();
        queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
        Record::of(&s.server, "a").comes_to_rest();
    }
}

/// Loses the replies to the first two copies of a release. Others do something before the second
/// copy, and before the third.
pub(crate) fn lose_two_releases(
    proxy: &Proxy,
    is_release: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    others: impl Fn() + Send + Sync + 'static,
) -> [ProxyFault; 2] {
    let (is_release, others) = (Arc::new(is_release), Arc::new(others));
    let later = |is_last: bool| {
        let (is_release, others) = (Arc::clone(&is_release), Arc::clone(&others));
        move |bytes: &[u8]| {
            let comes = is_release(bytes);
            if comes {
                others();
            }
            comes && !is_last
        }
    };
    let faults = [
        proxy.swallow_reply_when({
            let is_release = Arc::clone(&is_release);
            move |bytes| is_release(bytes)
        }),
        proxy.swallow_reply_when(later(false)),
    ];
    // The third copy is only noticed.
    let _ = proxy.swallow_reply_when(later(true));
    faults
}

/// The others' grants end in any way between the copies, and the last answer is about the first.
#[test]
fn p7_an_unlock_with_two_lost_replies_succeeds_whatever_others_do() {
    let s = setup();
    let cleanly = |other: &LockManager| other.lock("a").unwrap().unlock().unwrap();
    let by_force = |other: &LockManager| {
        let guard = other.lock("a").unwrap();
        assert!(other.force_release("a", guard.fence()).unwrap());
    };
    let half_done = |other: &LockManager| other.lock("a").unwrap().abandon().unwrap();
    let ways: [fn(&LockManager); 3] = [cleanly, by_force, half_done];
    for first in ways {
        for second in ways {
            let guard = s.ours.lock("a").unwrap();
            let other = s.other.clone();
            let faults = lose_two_releases(&s.proxy, release("used", "a"), move || {
                first(&other);
                second(&other);
            });
            guard.unlock().unwrap();
            assert!(says(&faults[0].wait(SOON), "released"));
            assert!(says(&faults[1].wait(SOON), "already"));
            s.proxy.disarm();
            Record::of(&s.server, "a").comes_to_rest();
        }
    }
}

/// The lease had ended before the first copy came.
#[test]
fn p7_an_unlock_with_two_lost_replies_still_reports_a_loss() {
    let s = setup();
    let guard = s.ours.lock("a").unwrap();
    assert!(s.other.force_release("a", guard.fence()).unwrap());
    let other = s.other.clone();
    let faults = lose_two_releases(&s.proxy, release("used", "a"), move || {
        other.lock("a").unwrap().abandon().unwrap();
        other.lock("a").unwrap().unlock().unwrap();
    });
    let end = guard.unlock();
    let is_forced =
        matches!(&end, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Forced);
    assert!(is_forced, "{end:?}");
    for fault in faults {
        assert!(says(&fault.wait(SOON), "forced"));
    }
}

#[test]
fn p7_an_unanswered_unlock_is_unavailable_but_frees_the_lock() {
    let s = setup();
    let guard = s.ours.lock("a").unwrap();
    // The second copy goes out on another connection.
    let faults = [(); 2].map(|()| s.proxy.swallow_silently_when(release("used", "a")));
    let start = Instant::now();
    let end = guard.unlock();
    assert!(start.elapsed() <= T + SLACK);
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
    let [first, second] = faults.map(|fault| fault.wait(SOON));
    assert!(says(&first, "released"));
    assert!(says(&second, "already"));
    let next = s.other.try_lock("a").unwrap().expect("it is free");
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
    // The release that the background sends again must not end the successor's lease.
    until(SOON, "the background work is done", || {
        s.ours.stats().background_releases > 0
    });
    next.renew().unwrap();
    next.unlock().unwrap();
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p8_an_unanswered_drop_ends_in_time_and_hands_over() {
    let s = setup();
    let silent: fn(&Proxy, Verb) -> ProxyFault =
        |proxy, verb| proxy.swallow_silently_when(request(verb, "a"));
    for lose in NOTICED_LOSSES.into_iter().chain([silent]) {
        let guard = s.ours.lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&s.other);
        let fault = lose(&s.proxy, Verb::Release);
        let start = Instant::now();
        drop(guard);
        assert!(start.elapsed() <= T + SLACK);
        fault.wait(SOON);
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
        Record::of(&s.server, "a").comes_to_rest();
    }
}

#[test]
fn p7_a_renewal_with_a_lost_reply_is_sent_again() {
    let s = setup();
    let guard = s.ours.lock("a").unwrap();
    for lose in NOTICED_LOSSES {
        let fault = lose(&s.proxy, Verb::Renew);
        guard.renew().unwrap();
        assert!(says(&fault.wait(SOON), "renewed"));
    }
    // The renewal thread's own renewals.
    let fault = s.proxy.swallow_silently_when(request(Verb::Renew, "a"));
    assert!(says(&fault.wait(TTL / 3 + SLACK), "renewed"));
    let renewed = s.ours.stats().renewals_confirmed;
    until(TTL, "the next renewal succeeds", || {
        s.ours.stats().renewals_confirmed > renewed
    });
    guard.check().unwrap();
    assert_eq!(s.ours.stats().losses(), 0);
    guard.unlock().unwrap();
    Record::of(&s.server, "a").comes_to_rest();
}

type SetFault = Box<dyn Fn(&Proxy) -> ProxyFault>;

/// Faults of the request that cancels a waiter: its reply is lost, with or without the client
/// noticing, or the request never arrives.
fn cancel_faults(mode: &'static str) -> [(bool, SetFault); 3] {
    [
        (
            false,
            Box::new(move |proxy| proxy.swallow_reply_when(release(mode, "a"))),
        ),
        (
            true,
            Box::new(move |proxy| proxy.swallow_silently_when(release(mode, "a"))),
        ),
        (
            false,
            Box::new(move |proxy| proxy.reset_request_when(release(mode, "a"))),
        ),
    ]
}

#[test]
fn p7_an_unanswered_wait_that_times_out_leaves_no_waiter_behind() {
    let s = setup();
    let holder = s.other.lock("a").unwrap();
    for (silent, lose) in cancel_faults("keep_if_owner") {
        let fault = lose(&s.proxy);
        let start = Instant::now();
        let end = s.ours.try_lock_for("a", T);
        assert!(start.elapsed() <= 2 * T + SLACK);
        fault.wait(SOON);
        match end {
            Ok(None) => {}
            Err(Error::Unavailable { .. }) if silent => {}
            other => panic!("{other:?}"),
        }
        until(SOON, "the waiter has left the queue", || {
            Record::of(&s.server, "a").number("r") == 0
        });
    }
    // The same if no request to cancel arrives in time.
    let held = s.proxy.hold_request_when(release("keep_if_owner", "a"));
    let end = s.ours.try_lock_for("a", T);
    assert!(
        matches!(end, Ok(None) | Err(Error::Unavailable { .. })),
        "{end:?}"
    );
    until(SOON, "the waiter has left the queue", || {
        Record::of(&s.server, "a").number("r") == 0
    });
    held.release();
    holder.unlock().unwrap();
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p7_a_grant_before_the_deadline_survives_a_lost_reply() {
    let s = setup();
    let holder = s.other.lock("a").unwrap();
    // The lock is handed over while the request to cancel is in flight. Neither the grant's message
    // nor the first reply arrives.
    let deaf = s
        .proxy
        .swallow_silently_when(crate::support::contains("PING"));
    // The subscription is checked only while somebody waits.
    drop(s.ours.enqueue("a").unwrap());
    deaf.wait(SOON);
    let held = s.proxy.hold_request_when(release("keep_if_owner", "a"));
    let ours = s.ours.clone();
    let call = thread::spawn(move || ours.try_lock_for("a", T));
    held.wait(SOON);
    holder.unlock().unwrap();
    let answer = held.release();
    assert!(
        says(&answer, "granted"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    match call.join().unwrap() {
        Ok(Some(guard)) => guard.unlock().unwrap(),
        // On a slow machine the reply may come too late for the caller.
        Ok(None) | Err(Error::Unavailable { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p7_an_unanswered_drop_of_a_waiter_leaves_nothing_queued() {
    let s = setup();
    let holder = s.other.lock("a").unwrap();
    for (_, lose) in cancel_faults("unused") {
        let waiter = s.ours.enqueue("a").unwrap();
        let fault = lose(&s.proxy);
        let start = Instant::now();
        drop(waiter);
        assert!(start.elapsed() <= T + SLACK);
        fault.wait(SOON);
        until(SOON, "the waiter has left the queue", || {
            Record::of(&s.server, "a").number("r") == 0
        });
    }
    holder.unlock().unwrap();
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p4_a_lost_sync_reply_delays_nobody_past_the_next_sync() {
    let s = setup();
    let holder = s.other.lock("a").unwrap();
    // After this call the server knows the script.
    assert!(s.ours.try_lock_for("a", 2 * P).unwrap().is_none());
    let mut queue = Waiters::of("a");
    queue.add(&s.ours);
    queue.add(&s.other);
    for lose in NOTICED_LOSSES {
        let fault = lose(&s.proxy, Verb::Sync);
        assert!(says(&fault.wait(P + SLACK), "synced"));
    }
    let fault = s.proxy.swallow_silently_when(request(Verb::Sync, "a"));
    fault.wait(P + SLACK);
    holder.unlock().unwrap();
    queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    queue.expect_grant(1, P + T + SLACK).unlock().unwrap();
    assert_eq!(s.ours.stats().requeues, 0);
    Record::of(&s.server, "a").comes_to_rest();
}

#[test]
fn p7_a_request_arriving_after_its_timeout_takes_nothing() {
    let s = setup();
    let record = Record::of(&s.server, "a");
    // The second copy goes out on another connection.
    let held = [(); 2].map(|()| s.proxy.hold_request_when(request(Verb::Acquire, "a")));
    let end = s.ours.try_lock("a");
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    for held in held {
        assert!(says(&held.release(), "late"));
    }
    record.comes_to_rest();
    assert_eq!(record.field("o"), None);
    assert_eq!(record.field("f"), None, "it was granted, if only briefly");

    // The same for an enqueue: the first copy of the request arrives after the whole wait is over.
    let holder = s.other.lock("a").unwrap();
    let held = s.proxy.hold_request_when(request(Verb::Acquire, "a"));
    assert!(s.ours.try_lock_for("a", 3 * T).unwrap().is_none());
    assert_eq!(record.number("r"), 0);
    assert!(says(&held.release(), "late"));
    assert_eq!(record.number("r"), 0);
    assert!(record.tokens().is_empty());
    holder.unlock().unwrap();
    record.comes_to_rest();
}

#[test]
fn p7_a_renewal_arriving_after_the_release_extends_no_lease() {
    let s = setup();
    let lost = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&lost);
    let options = LockOptions::new().ttl(TTL).on_lost(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let ours = s.ours.with(options);
    let record = Record::of(&s.server, "a");
    for successor in [false, true] {
        let guard = ours.lock("a").unwrap();
        let lost_signal = guard.lost().clone();
        let held = s.proxy.hold_request_when(request(Verb::Renew, "a"));
        held.wait(TTL / 3 + SLACK);
        guard.unlock().unwrap();
        let next = successor.then(|| {
            s.other
                .with(LockOptions::new().fixed_lease(TTL))
                .lock("a")
                .unwrap()
        });
        let before = record.dump();
        assert!(says(&held.release(), "gone"));
        assert_eq!(record.dump(), before, "it wrote nothing");
        if let Some(next) = next {
            next.unlock().unwrap();
        }
        // R14 (release first, then send): it is no loss either.
        assert!(
            lost_signal
                .recv_timeout(SLACK)
                .is_err_and(|e| e.is_disconnected())
        );
        record.comes_to_rest();
    }
    assert_eq!(
        (lost.load(Ordering::SeqCst), s.ours.stats().losses()),
        (0, 0)
    );
}

#[test]
fn p6_a_renewal_confirmed_after_the_deadline_revives_no_lease() {
    let s = setup();
    let record = Record::of(&s.server, "a");
    let fixed = s.ours.with(LockOptions::new().fixed_lease(TTL / 3));
    // If the machine is too slow for the deadline or for the timeout, the attempt is repeated.
    let guard = until_some(
        5 * TTL,
        "a confirmation comes after the deadline, and within the timeout",
        || {
            let guard = fixed.try_lock("a").unwrap().expect("it is free");
            until(TTL / 3 + SLACK, "the deadline is near", || {
                guard.remaining() < T / 2
            });
            let end = record.number("e");
            let is_renewed = || {
                record
                    .field("e")
                    .is_some_and(|now| now.parse::<u64>().unwrap() > end)
            };
            s.proxy.pause_replies();
            let (renewed, result) = thread::scope(|scope| {
                let renewal = scope.spawn(|| guard.renew());
                let renewed = until_some(SOON, "the server renews it", || {
                    if is_renewed() {
                        Some(true)
                    } else {
                        (!guard.is_held()).then_some(false)
                    }
                });
                until(SOON, "the deadline has passed", || !guard.is_held());
                s.proxy.resume_replies();
                (renewed, renewal.join().unwrap())
            });
            match result {
                Err(Error::Lost { loss, .. }) if renewed => {
                    assert_eq!(loss.reason, LossReason::Expired);
                    Some(guard)
                }
                Err(Error::Lost { .. } | Error::Unavailable { .. }) => {
                    record.comes_to_rest();
                    None
                }
                other => panic!("{other:?}"),
            }
        },
    );
    record.comes_to_rest();
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert_eq!(
        guard
            .lost()
            .recv_timeout(T + SLACK)
            .expect("the loss is reported")
            .reason,
        LossReason::Expired
    );
}

#[test]
fn p7_a_grant_before_the_deadline_is_kept_and_counted_once() {
    let s = setup();
    let before = s.ours.stats();
    let guard = s.other.lock("a").unwrap();
    let cancel = s.proxy.hold_request_when(release("keep_if_owner", "a"));
    thread::scope(|scope| {
        let trying = scope.spawn(|| s.ours.try_lock_for("a", Duration::from_millis(50)).unwrap());
        cancel.wait(SLACK);
        guard.unlock().unwrap();
        cancel.release();
        let guard = trying
            .join()
            .unwrap()
            .expect("it was granted before it left the queue");
        guard.renew().unwrap();
        guard.unlock().unwrap();
    });
    let stats = s.ours.stats();
    assert_eq!(
        (
            stats.granted() - before.granted(),
            stats.acquisitions_timed_out - before.acquisitions_timed_out,
            stats.waiting
        ),
        (1, 0, 0)
    );
}
