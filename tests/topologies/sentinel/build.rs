//! The errors of `build` when there is no master to connect to.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, Misuse, endpoint::Endpoint};

use super::common::{SOON, T, build, builder};
use crate::sentinel_set::{SERVICE, SentinelSet, SentinelSetup};
use crate::support::SLACK;

#[track_caller]
fn refused(endpoint: Endpoint) -> Error {
    let started = Instant::now();
    let refused = builder(endpoint).build();
    let took = started.elapsed();
    assert!(took <= T + SLACK, "it took {took:?}");
    refused.expect_err("there is no master")
}

fn sentinels(set: &SentinelSet) -> Vec<(String, u16)> {
    let addrs = set.sentinels.iter().map(|s| s.addr());
    addrs
        .map(|addr| (addr.ip().to_string(), addr.port()))
        .collect()
}

#[test]
fn unknown_service_is_named() {
    let set = SentinelSet::start();
    let error = refused(Endpoint::sentinel("yourmaster", sentinels(&set)));
    let Error::Misused {
        misuse: Misuse::Setting {
            name: "service", ..
        },
        message,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert!(message.contains("\"yourmaster\""), "{message}");
}

#[test]
fn each_sentinel_that_does_not_answer_is_named() {
    // Nobody listens on the first port, and no name server knows the second name.
    let error = refused(Endpoint::sentinel(
        SERVICE,
        [("127.0.0.1", 9), ("nowhere.invalid", 26379)],
    ));
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error}");
    };
    let text = cause.to_string();
    assert!(text.contains("127.0.0.1:9: "), "{text}");
    assert!(text.contains("nowhere.invalid:26379: "), "{text}");
}

#[test]
fn sentinel_that_cannot_be_resolved_is_passed_over() {
    let set = SentinelSet::start();
    let mut all = vec![("nowhere.invalid".to_owned(), 26379)];
    all.extend(sentinels(&set));
    let mgr = build(builder(Endpoint::sentinel(SERVICE, all)));
    mgr.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn wrong_password_of_sentinels_is_reported() {
    let set = SentinelSet::start_with(&SentinelSetup {
        sentinel_lines: &["requirepass right"],
        ..SentinelSetup::default()
    });
    let to = || Endpoint::sentinel(SERVICE, sentinels(&set));
    for (endpoint, expected) in [
        (to().sentinel_password("wrong"), "WRONGPASS"),
        (to(), "NOAUTH"),
    ] {
        let error = refused(endpoint);
        let Error::Refused { code, message, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(code, expected);
        assert!(message.contains("sentinel 127.0.0.1:"), "{message}");
        assert!(message.contains("sentinelPassword"), "{message}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let mgr = build(builder(to().sentinel_password("right")));
    mgr.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn wrong_password_of_the_master_is_reported() {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: &["--requirepass", "right", "--masterauth", "right"],
        sentinel_lines: &[&format!("sentinel auth-pass {SERVICE} right")],
    });
    let to = || Endpoint::sentinel(SERVICE, sentinels(&set));
    let error = refused(to().password("wrong"));
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "WRONGPASS"),
        "{error}"
    );
    let mgr = build(builder(to().password("right")));
    mgr.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn master_that_is_down_is_named_by_its_address() {
    let set = SentinelSet::start();
    // No other one can become the master.
    set.nodes.iter().rev().for_each(|node| node.kill());
    // Its sentinels answer. On a busy machine that takes a while, and the answer is under test.
    let to = builder(Endpoint::sentinel(SERVICE, sentinels(&set))).connect_timeout(SOON);
    let error = to.build().expect_err("there is no master");
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error}");
    };
    let addr = set.nodes[0].addr().to_string();
    assert!(cause.to_string().contains(&addr), "{cause}");
}

/// A stopped sentinel accepts connections, and answers nothing.
#[test]
fn hung_sentinel_does_not_prevent_a_build() {
    let set = SentinelSet::start();
    set.sentinels[0].stop();
    let started = Instant::now();
    // It takes half of this. The rest is for the master, on a busy machine.
    let limit = Duration::from_secs(4);
    let mgr = builder(set.url()).connect_timeout(limit).build().unwrap();
    assert!(started.elapsed() <= limit + SLACK);
    mgr.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn default_timeouts_do() {
    let set = SentinelSet::start();
    let mgr = LockManager::connect(set.url()).unwrap();
    let guard = mgr.lock("a").unwrap();
    assert!(guard.is_held());
    drop(guard);
    assert!(
        mgr.try_lock_for("a", Duration::from_secs(5))
            .unwrap()
            .is_some()
    );
}
