//! An outage with the default timings. On Redis alone, since real time must pass.

use crate::fixtures::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_OUTAGE_LIMIT};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};

use crate::fixtures::{
    P, Record, SOON, T, Verb, Waiters, build, builder, manager, request, warm_up,
};
use crate::support::{Proxy, SLACK, Server, until_some};

#[test]
fn a_thirteen_second_outage_ends_only_waits_with_shorter_limits() {
    const OUTAGE: Duration = Duration::from_secs(13);
    let server = Server::start();
    let default = LockManager::connect(server.url()).unwrap();
    let longer = || {
        LockManager::builder(server.url())
            .outage_limit(Duration::from_secs(30))
            .build()
            .unwrap()
    };
    // The holder is another manager than the waiters': if its lease lapses, R10 (places of the
    // dead) removes the waiters of its own manager.
    let holding = longer();
    let patient = [longer(), longer()];
    let holder = holding.lock("a").unwrap();
    let mut queue = Waiters::of("a");
    (0..6).for_each(|who| queue.add(&patient[who % 2]));
    let mut impatient = Waiters::of("b");
    let _taken = holding.lock("b").unwrap();
    impatient.add(&default);

    server.stop();
    let start = Instant::now();
    let (_, end) = impatient.next_end(DEFAULT_OUTAGE_LIMIT + 2 * DEFAULT_COMMAND_TIMEOUT + SLACK);
    let Err(Error::Unavailable { waited, .. }) = &end else {
        panic!("{end:?}")
    };
    assert!(*waited >= DEFAULT_OUTAGE_LIMIT, "{waited:?}");
    assert!(queue.none_ended());
    // Time itself is under test: the outage lasts.
    std::thread::sleep(OUTAGE.saturating_sub(start.elapsed()));
    server.cont();
    let back = Instant::now();
    for who in 0..6 {
        queue
            .expect_grant(who, Duration::from_secs(2) + SLACK)
            .unlock()
            .unwrap();
    }
    assert!(
        back.elapsed() <= Duration::from_secs(2) + SLACK,
        "{:?}",
        back.elapsed()
    );
    assert_eq!(
        patient.each_ref().map(|manager| manager.stats().requeues),
        [0, 0]
    );
    assert!(!holder.is_held(), "its lease lapsed during the outage");
    // The manager whose waits ended is served again at once.
    default
        .try_lock_for("c", SOON)
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    Record::of(&server, "a").comes_to_rest();
}

/// Has the checks of a waiter fail from now on.
type BreakChecks = fn(&Proxy);

const BROKEN_CHECKS: [(&str, BreakChecks); 2] = [
    ("a proxy has lost its server", |proxy| {
        proxy.refuse();
        proxy.close_all();
    }),
    ("each check ends its connection", |proxy| {
        let _ = proxy.swallow_reply_when(request(Verb::Sync, "a"));
        proxy.make_faults_last();
    }),
];

#[test]
fn waiter_is_ready_at_the_limit_if_connections_are_closed() {
    let limit = 4 * T;
    for (case, break_checks) in BROKEN_CHECKS {
        let server = Server::tcp();
        let proxy = Proxy::to(server.addr());
        let ours = build(builder(proxy.url()).outage_limit(limit));
        let other = manager(server.url());
        warm_up(&ours);
        let held = other.lock("a").unwrap();
        let mut waiter = ours.enqueue("a").unwrap();
        assert!(waiter.ready().is_empty());
        break_checks(&proxy);
        let start = Instant::now();
        let ready = waiter.ready().recv_timeout(limit + P + 4 * T + SLACK);
        assert!(ready.is_ok(), "{case}: the outage limit is over");
        let took = start.elapsed();
        assert!(took + P + T >= limit, "{case}: {took:?}");
        // This look may ask once more.
        let look = Instant::now();
        let end = waiter.wait_for(Duration::ZERO);
        let is_silent = matches!(end, Err(Error::Unavailable { .. }));
        assert!(is_silent, "{case}: {end:?}");
        assert!(look.elapsed() < 2 * T + SLACK, "{:?}", look.elapsed());
        proxy.accept();
        proxy.disarm();
        // The place is kept.
        held.unlock().unwrap();
        let guard = until_some(SOON, case, || {
            let _ = waiter.ready().recv_timeout(P);
            waiter.wait_for(Duration::ZERO).ok().flatten()
        });
        guard.unlock().unwrap();
    }
}
