//! An outage with the default timings. On Redis alone, since real time must pass.

use std::time::{Duration, Instant};

use fairlock::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_OUTAGE_LIMIT, Error, LockManager};

use crate::fixtures::{Record, SOON, Waiters};
use crate::support::{SLACK, Server};

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
        patient.each_ref().map(|manager| manager.stats().requeued),
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
