//! A process forks while it holds locks: the child has a copy of everything, and must not use any
//! of it. On Redis alone, which outlives the fork.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use fairlock::{
    Error, LockGuard, LockManager, LockOptions, MultiGuard, ReentrantGuard, RwLock, SemaphoreGuard,
    Waiter,
};

use crate::sums::Sums;
use crate::{
    managers::{assert_nothing_left, owner, patient, queue},
    permits::{Permits, Want},
    support::{Child, EndLoops, SLACK, Server, child::report, until},
    worker::SOON,
};

/// So many that some forks happen while other threads hold the library's internal mutexes.
const FORKS: u32 = 20;

#[test]
fn p1_a_forked_child_gets_closed_and_leaves_parent_locks_alone() {
    let server = Server::start();
    forks_leave_alone(&server, "0");
}

#[test]
fn forked_child_leaves_local_handovers_alone() {
    let server = Server::start();
    forks_leave_alone(&server, "9");
}

fn forks_leave_alone(server: &Server, local_handovers: &str) {
    let mut child = Child::spawn("forks", &[&server.url(), local_handovers]);
    for _ in 0..FORKS {
        assert_eq!(child.expect("child", SOON), "0");
    }
    child.expect("unlocked", SOON);
    child.join();
    until(SLACK, "all is released", || {
        owner(server, "busy").is_none() && queue(server, "busy").is_empty()
    });
    assert_nothing_left(server, "k");
}

#[test]
fn p1_a_forked_child_leaves_parent_permits_readers_and_writers_alone() {
    let server = Server::start();
    let mut child = Child::spawn("forks_with_permits", &[&server.url()]);
    for _ in 0..FORKS {
        assert_eq!(child.expect("child", SOON), "0");
    }
    child.expect("unlocked", SOON);
    child.join();
    for name in ["n", "r", "busy"] {
        Permits::of(&server, name).comes_to_rest();
    }
    for name in ["a", "b"] {
        assert_nothing_left(&server, name);
    }
}

pub(crate) fn forks_with_permits(args: &[String]) {
    let mgr = patient(args[0].as_str());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        for want in [Want::Read, Want::Write, Want::Read] {
            let (mgr, over) = (&mgr, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drop(want.take(mgr, "busy").unwrap());
                }
            });
        }
        for _ in 0..FORKS {
            let permits = [
                mgr.semaphore("n", 3).acquire(2).unwrap(),
                mgr.semaphore("n", 3).acquire(1).unwrap(),
            ];
            let again = mgr.reentrant_mutex("e").lock().unwrap();
            let held = (
                permits,
                mgr.rw_lock("r").write().unwrap(),
                mgr.lock_all(["a", "b"]).unwrap(),
                again,
            );
            let failures = in_child(|| inherit_permits(&mgr, &held));
            report(format_args!("child {failures}"));
            let (permits, writer, both, again) = held;
            permits.iter().for_each(|guard| guard.renew().unwrap());
            writer.renew().unwrap();
            assert!(mgr.rw_lock("r").try_read().unwrap().is_none());
            both.unlock().unwrap();
            assert_eq!(mgr.reentrant_mutex("e").lock().unwrap().depth(), 2);
            again.unlock().unwrap();
            permits
                .into_iter()
                .for_each(|guard| guard.unlock().unwrap());
            RwLock::downgrade(writer).unwrap().unlock().unwrap();
        }
    });
    report("unlocked");
}

pub(crate) fn forks(args: &[String]) {
    let local_handovers = args[1].parse().unwrap();
    let mgr = patient(args[0].as_str());
    let mgr = mgr.with(LockOptions::new().local_handovers(local_handovers));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndLoops(&over);
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(mgr.lock("busy").unwrap());
                }
            });
        }
        for _ in 0..FORKS {
            let held = [mgr.lock("k").unwrap(), mgr.lock("l").unwrap()];
            let waiter = mgr.enqueue("k").unwrap();
            assert!(waiter.ready().is_empty());
            let queue = || {
                let mut queue = mgr.inspect("k").unwrap().unwrap().queue;
                // Time goes on.
                queue.iter_mut().for_each(|waiter| waiter.last_heard = None);
                queue
            };
            let before = queue();
            let failures = in_child(|| inherit(&mgr, &held, &waiter));
            report(format_args!("child {failures}"));
            assert_eq!(queue(), before);
            held.iter().for_each(|guard| guard.renew().unwrap());
            for guard in held {
                guard.unlock().unwrap();
            }
            waiter.wait().unwrap().unlock().unwrap();
        }
    });
    report("unlocked");
}

/// A thread of the parent may have held a mutex of the store at the fork.
#[test]
fn forked_child_reads_its_stats_without_the_store() {
    let server = Server::start();
    let mut child = Child::spawn("forks_for_stats", &[&server.url()]);
    assert_eq!(child.expect("child", SOON), "0");
    child.join();
}

pub(crate) fn forks_for_stats(args: &[String]) {
    let mgr = patient(args[0].as_str());
    mgr.lock("k").unwrap().unlock().unwrap();
    assert!(mgr.stats().requests > 0);
    let wrong = in_child(|| {
        let stats = mgr.stats();
        i32::from((stats.granted(), stats.requests, stats.connects) != (1, 0, 0))
    });
    report(format_args!("child {wrong}"));
}

/// In the child: calls every method on the inherited copies and drops them. Returns how many calls
/// behaved wrongly.
fn inherit(mgr: &LockManager, held: &[LockGuard; 2], waiter: &Waiter) -> i32 {
    // SAFETY: the child has its own copy of the parent's memory and never returns to the code that
    // would drop these values, so each is moved out once.
    let (mgr, [first, second], mut waiter) = unsafe {
        (
            std::ptr::read(mgr),
            std::ptr::read(held),
            std::ptr::read(waiter),
        )
    };
    let closed = |e: Error| matches!(e, Error::Closed);
    let wrong = [
        !mgr.lock("x").is_err_and(closed),
        !mgr.try_lock("x").is_err_and(closed),
        !mgr.try_lock_for("x", Duration::from_secs(1))
            .is_err_and(closed),
        !mgr.enqueue("x").is_err_and(closed),
        !mgr.mutex("x").lock().is_err_and(closed),
        !mgr.inspect("k").is_err_and(closed),
        !mgr.list("*")
            .next()
            .is_some_and(|first| first.is_err_and(closed)),
        !mgr.force_release("k", first.fence()).is_err_and(closed),
        !mgr.delete("k").is_err_and(closed),
        !mgr.shutdown(Duration::ZERO).is_err_and(closed),
        first.is_held() || !first.remaining().is_zero(),
        !first.lost().try_recv().is_err_and(|e| e.is_disconnected()),
        waiter.position().is_some(),
        !waiter
            .ready()
            .try_recv()
            .is_err_and(|e| e.is_disconnected()),
        !first.check().is_err_and(closed),
        !first.renew().is_err_and(closed),
        !waiter.wait_for(Duration::from_secs(1)).is_err_and(closed),
        !first.unlock().is_err_and(closed),
    ];
    for (verb, _) in wrong.iter().enumerate().filter(|(_, wrong)| **wrong) {
        eprintln!("check {verb} of the child failed");
    }
    drop((second, waiter, mgr));
    wrong.iter().filter(|wrong| **wrong).count() as i32
}

/// The same with guards of permits, of a writer, of several names and of a reentrant mutex.
fn inherit_permits(
    mgr: &LockManager,
    held: &([SemaphoreGuard; 2], LockGuard, MultiGuard, ReentrantGuard),
) -> i32 {
    // SAFETY: as in `inherit`.
    let (mgr, ([mut first, second], writer, both, again)) =
        unsafe { (std::ptr::read(mgr), std::ptr::read(held)) };
    let closed = |e: Error| matches!(e, Error::Closed);
    let wrong = [
        !mgr.semaphore("x", 3).acquire(1).is_err_and(closed),
        !mgr.semaphore("n", 3).try_acquire(2).is_err_and(closed),
        !mgr.rw_lock("x").read().is_err_and(closed),
        !mgr.rw_lock("x").try_write().is_err_and(closed),
        !mgr.rw_lock("x").enqueue_read().is_err_and(closed),
        !mgr.semaphore("n", 3).enqueue(1).is_err_and(closed),
        !mgr.rw_lock("r")
            .try_read_for(Duration::from_secs(1))
            .is_err_and(closed),
        !mgr.lock_all(["x", "y"]).is_err_and(closed),
        !mgr.try_lock_all(["x", "y"]).is_err_and(closed),
        !mgr.reentrant_mutex("x").lock().is_err_and(closed),
        !mgr.reentrant_mutex("e").lock().is_err_and(closed),
        first.is_held() || writer.is_held() || both.is_held() || again.is_held(),
        !first.renew().is_err_and(closed),
        !both.check().is_err_and(closed),
        !both.lost().try_recv().is_err_and(|e| e.is_disconnected()),
        !first.release_permits(1).is_err_and(closed),
        !first.unlock().is_err_and(closed),
        !RwLock::downgrade(writer).is_err_and(closed),
        !both.unlock().is_err_and(closed),
        !again.unlock().is_err_and(closed),
    ];
    for (verb, _) in wrong.iter().enumerate().filter(|(_, wrong)| **wrong) {
        eprintln!("check {verb} of the child failed");
    }
    drop((second, mgr));
    wrong.iter().filter(|wrong| **wrong).count() as i32
}

/// Runs `body` in a forked child. Returns its exit status, or the negated number of the signal that
/// ended it.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child of a process with threads must not depend on other threads. It runs `body`,
    // and the code under test promises exactly that; glibc keeps malloc usable. Then the child ends
    // by _exit, which runs no destructors. If the child waits for a thread that does not exist
    // there, the alarm ends it.
    let child = unsafe { libc::fork() };
    match child {
        -1 => panic!("cannot fork: {}", std::io::Error::last_os_error()),
        // SAFETY: both are async-signal-safe.
        0 => unsafe {
            libc::alarm(SOON.as_secs() as u32 / 2);
            libc::_exit(body())
        },
        _ => {
            let mut status = 0;
            // SAFETY: the pointer is valid for the call, and the child is ours and is waited for
            // once.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(ended, child);
            if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -libc::WTERMSIG(status)
            }
        }
    }
}
