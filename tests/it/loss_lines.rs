//! Each loss is logged once, whether its guard is dropped before or after the loss is noticed. On
//! both stores. A logger belongs to a whole process, so the cases run in a process of their own.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions};

use crate::fixtures::{P, build, with_ttl};
use crate::keeping::keep;
use crate::log_capture;
use crate::sums::Sums;
use crate::support::{Child, child::Role, until, until_some};
use crate::worker::SOON;

pub(crate) const LOSSES: (&str, Role) = ("losses", losses);

/// Times that a busy machine keeps: the locks are lost on purpose alone.
const TTL: Duration = Duration::from_secs(12);
const T: Duration = Duration::from_secs(2);
const H: Duration = Duration::from_millis(6500);
/// How many locks are lost in each way.
const ALL: usize = 20;

#[test]
fn each_loss_is_logged_once() {
    log_capture::on_each_store(|store| {
        let mut child = Child::spawn(LOSSES.0, &[store]);
        let lines = log_capture::receive_lines(&mut child);
        child.join();
        for way in ["noticed", "unnoticed", "group", "kept alone"] {
            for number in 0..ALL {
                let name = format!("{:?}", format!("{way} {number}"));
                let about: Vec<_> = lines.iter().filter(|line| line.contains(&name)).collect();
                assert_eq!(about.len(), 1, "{name} in {about:?}");
                assert!(about[0].starts_with("WARN lost "), "{about:?}");
            }
        }
    });
}

/// A child role: loses locks, and reports what was logged.
fn losses(args: &[String]) {
    log_capture::start();
    let store = log_capture::store(&args[0]);
    let manager = || {
        let builder = with_ttl(store.clone(), TTL).command_timeout(T);
        build(builder.check_period(P).horizon(H))
    };
    let other = manager();
    for number in 0..ALL {
        noticed(&manager(), &other, &format!("noticed {number}"));
        unnoticed(manager(), &format!("unnoticed {number}"));
        group(&manager(), &other, number);
    }
    kept_alone(&manager(), &other);
    log_capture::report_lines();
}

/// The guard is dropped after the report of the loss.
fn noticed(manager: &LockManager, other: &LockManager, name: &str) {
    let guard = manager.lock(name).unwrap();
    assert!(other.force_release(name, guard.fence()).unwrap());
    guard.renew().unwrap_err();
    guard.lost().recv_timeout(SOON).unwrap();
}

/// The guard is dropped before that, and the manager with it.
fn unnoticed(manager: LockManager, name: &str) {
    let short = LockOptions::new().fixed_lease(Duration::from_millis(10));
    // On a busy machine the lease may be over before its guard is there.
    let guard = until_some(SOON, "a guard", || {
        match manager.with(short.clone()).try_lock(name) {
            Err(Error::Lost { .. }) => None,
            end => end.unwrap(),
        }
    });
    drop(manager);
    while guard.is_held() {
        std::hint::spin_loop();
    }
}

/// No guard has the lock: its manager keeps it.
fn kept_alone(manager: &LockManager, other: &LockManager) {
    let manager = manager.with(LockOptions::new().keep_idle(TTL / 5));
    for number in 0..ALL {
        let name = format!("kept alone {number}");
        keep(&manager, &name);
        let fence = other.inspect(&name).unwrap().unwrap().fence;
        assert!(other.force_release(&name, fence).unwrap());
    }
    until(SOON, "all are logged", || {
        log_capture::logged("kept alone") == ALL
    });
    assert_eq!(manager.stats().losses(), ALL as u64);
}

/// One lock of several is lost, and the guard of all is dropped.
fn group(manager: &LockManager, other: &LockManager, number: usize) {
    let (lost, kept) = (format!("group {number}"), format!("kept {number}"));
    let guard = manager.lock_all([&lost, &kept]).unwrap();
    let fence = guard.fence(&lost).unwrap();
    assert!(other.force_release(&lost, fence).unwrap());
    guard.renew().unwrap_err();
    guard.lost().recv_timeout(SOON).unwrap();
}
