//! A process that keeps locks is stopped, killed or forked, or exits. On Redis alone.

use std::fs::{self, File};
use std::process;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, PreviousHolder};
use rustix::fs::{FlockOperation, flock};

use crate::behaviour::kept::{KEEP, gets, keeper, patient, plain};
use crate::fixtures::{build, with_ttl};
use crate::fork::in_child;
use crate::keeping::{costs_nothing, keep};
use crate::sums::Sums;
use crate::support::child::{Role, receive, report};
use crate::support::{Child, SLACK, Server, until};
use crate::worker::SOON;

pub(crate) const KEEPS: (&str, Role) = ("keeps", keeps);
pub(crate) const EXCLUDES: (&str, Role) = ("excludes", excludes);

const TTL: Duration = Duration::from_secs(3);

/// A process that keeps these names.
fn keeping_process(server: &Server, names: &[&str]) -> Child {
    let mut child = Child::spawn(KEEPS.0, &[&server.url()]);
    for name in names {
        child.send(&format!("keep {name}"));
        child.expect("kept", SOON);
    }
    child
}

/// The role of a process that keeps locks. It reads commands and reports their results.
///
/// | command     | action                                          | report          |
/// |-------------|-------------------------------------------------|-----------------|
/// | `keep NAME` | locks and drops it until it is kept             | `kept`          |
/// | `lock NAME` | locks and drops it once                         | `fence previous`|
/// | `fork NAME` | forks; parent and child look at what they have  | `child n`       |
/// | `end HOW`   | exits                                           |                 |
fn keeps(args: &[String]) {
    static LEFT: OnceLock<LockManager> = OnceLock::new();
    let options = LockOptions::new().keep_idle(TTL / 3);
    let mgr = build(with_ttl(args[0].as_str(), TTL)).with(options);
    while let Some(line) = receive() {
        let (verb, what) = line.split_once(' ').unwrap();
        match (verb, what) {
            ("keep", name) => {
                keep(&mgr, name);
                report("kept");
            }
            ("lock", name) => {
                let guard = mgr.lock(name).unwrap();
                report(format_args!(
                    "{} {:?}",
                    guard.fence(),
                    guard.previous_holder()
                ));
            }
            ("fork", name) => report(format_args!("child {}", fork(&mgr, name))),
            ("end", "shutdown") => {
                let ended = mgr.shutdown(Duration::ZERO).unwrap();
                assert!(ended.is_empty(), "{ended:?}");
                process::exit(0);
            }
            ("end", "drop") => {
                drop(mgr);
                process::exit(0);
            }
            ("end", "return") => return,
            ("end", _) => {
                let _ = LEFT.set(mgr);
                process::exit(0);
            }
            other => panic!("no such verb: {other:?}"),
        }
    }
}

#[test]
fn killed_keeper_costs_others_its_ttl() {
    let server = Server::start();
    let mut child = keeping_process(&server, &["a"]);
    child.kill();
    let guard = plain(server.url()).try_lock_for("a", TTL + SLACK).unwrap();
    let guard = guard.expect("its lease is over");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn frozen_keeper_costs_others_its_ttl_and_takes_nothing_back() {
    let server = Server::start();
    let other = plain(server.url());
    let mut child = keeping_process(&server, &["a"]);
    child.stop();
    let guard = other.try_lock_for("a", TTL + SLACK).unwrap();
    let guard = guard.expect("its lease is over");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    child.cont();
    child.send("lock a");
    // It does not get the lock before this guard is dropped.
    until(SOON, "it waits", || {
        guard.check().unwrap();
        other
            .inspect("a")
            .unwrap()
            .is_some_and(|info| info.waiters == 1)
    });
    assert!(child.pending_lines().is_empty());
    let fence = guard.fence();
    guard.unlock().unwrap();
    let got = child.expect("", SOON);
    let (theirs, previous) = got.split_once(' ').unwrap();
    assert!(theirs.parse::<u64>().unwrap() > fence);
    assert_eq!(previous, "Released");
}

/// Nobody can release it: Rust drops no statics.
#[test]
fn exit_with_the_manager_in_a_static_costs_others_the_ttl() {
    let server = Server::start();
    let mut child = keeping_process(&server, &["a"]);
    child.send("end static");
    child.join();
    let guard = plain(server.url()).try_lock_for("a", TTL + SLACK).unwrap();
    let guard = guard.expect("its lease is over");
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn exit_after_shutdown_or_the_last_handle_leaves_no_kept_lock() {
    let server = Server::start();
    let other = plain(server.url());
    for how in ["shutdown", "drop", "return"] {
        let names = ["a", "b", "c", "d"];
        let mut child = keeping_process(&server, &names);
        child.send(&format!("end {how}"));
        child.join();
        for name in names {
            let guard = other.try_lock(name).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("{name} is taken after {how}"));
            assert_eq!(guard.previous_holder(), PreviousHolder::Released, "{how}");
        }
    }
}

#[test]
fn manager_of_another_process_gets_a_kept_lock_in_a_message_time() {
    let server = Server::start();
    let names = ["a", "b", "c"];
    let child = keeping_process(&server, &names);
    let other = patient(server.url());
    for name in names {
        drop(gets(&other, name, SLACK));
    }
    drop(child);
}

#[test]
fn forked_child_leaves_kept_locks_alone() {
    let server = Server::start();
    let mut child = keeping_process(&server, &["a"]);
    for _ in 0..5 {
        child.send("fork a");
        assert_eq!(child.expect("child", SOON), "0");
    }
    drop(gets(&patient(server.url()), "a", SLACK));
}

/// The child's calls fail, with a kept lock as with a guard of one. The parent notices nothing.
fn fork(mgr: &LockManager, name: &str) -> i32 {
    let closed = |error: Error| matches!(error, Error::Closed);
    let in_a_child = |guard: Option<&fairlock::LockGuard>| {
        in_child(|| {
            let wrong = [
                !mgr.lock(name).is_err_and(closed),
                !mgr.try_lock(name).is_err_and(closed),
                !mgr.enqueue(name).is_err_and(closed),
                !mgr.mutex(name).lock().is_err_and(closed),
                !mgr.reentrant_mutex(name).try_lock().is_err_and(closed),
                !mgr.lock_all([name]).is_err_and(closed),
                !mgr.delete(name).is_err_and(closed),
                !mgr.shutdown(Duration::ZERO).is_err_and(closed),
                guard.is_some_and(|guard| guard.is_held() || guard.is_wanted()),
                guard.is_some_and(|guard| guard.wanted().try_recv().is_ok()),
            ];
            // SAFETY: this copy is the child's own, and it never returns to the code that drops it.
            drop(unsafe { std::ptr::read(mgr) });
            wrong.into_iter().map(i32::from).sum()
        })
    };
    keep(mgr, name);
    let mut wrong = in_a_child(None);
    assert!(costs_nothing(mgr, || drop(mgr.lock(name).unwrap())));
    let guard = mgr.lock(name).unwrap();
    wrong += in_a_child(Some(&guard));
    guard.check().unwrap();
    guard.renew().unwrap();
    drop(guard);
    assert!(costs_nothing(mgr, || drop(mgr.lock(name).unwrap())));
    wrong
}

/// Processes that keep, and some that do not, on the same names. A lock of the file system says
/// whether two of them are inside at once.
#[test]
fn processes_with_and_without_keep_exclude_each_other() {
    let server = Server::start();
    let dir = server.dir().to_str().unwrap();
    let mut children: Vec<Child> = ["1000", "50", "0"]
        .iter()
        .map(|keep| Child::spawn(EXCLUDES.0, &[&server.url(), dir, keep]))
        .collect();
    for child in &children {
        child.expect("ready", SOON);
    }
    for child in &mut children {
        child.send("go");
    }
    for child in &children {
        assert_eq!(child.expect("overlaps", 6 * SOON), "0");
    }
    children.iter_mut().for_each(Child::join);
    let dir = fs::read_dir(server.dir()).unwrap();
    assert!(dir.count() > NAMES, "each name was locked");
}

const NAMES: usize = 3;

/// Two threads lock the names, a few times in a row each.
fn excludes(args: &[String]) {
    let keep: u64 = args[2].parse().unwrap();
    let options = match keep {
        0 => LockOptions::new(),
        ms => LockOptions::new().keep_idle(Duration::from_millis(ms)),
    };
    let mgr = build(with_ttl(args[0].as_str(), TTL)).with(options);
    report("ready");
    receive();
    let overlaps: i32 = thread::scope(|scope| {
        let loops = [0, 1].map(|thread| {
            let (mgr, dir) = (&mgr, &args[1]);
            scope.spawn(move || {
                let inside = |i: usize| {
                    let name = format!("n{}", (i / 25 + thread) % NAMES);
                    let guard = mgr.lock(&name).unwrap();
                    let file = File::create(format!("{dir}/{name}")).unwrap();
                    let is_alone = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
                    guard.check().unwrap();
                    drop((file, guard));
                    i32::from(!is_alone)
                };
                (0..600).map(inside).sum::<i32>()
            })
        });
        loops.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(mgr.stats().losses(), 0);
    report(format_args!("overlaps {overlaps}"));
}

/// A keeper that died is passed by its own machine's next process, as by any other.
#[test]
fn restarted_keeper_waits_for_its_old_self() {
    let server = Server::start();
    let mut child = keeping_process(&server, &["a"]);
    child.kill();
    let mgr = keeper(server.url()).with(LockOptions::new().keep_idle(KEEP));
    let guard = mgr.try_lock_for("a", TTL + SLACK).unwrap();
    drop(guard.expect("its lease is over"));
    keep(&mgr, "a");
}
