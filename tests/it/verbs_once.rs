//! Every verb, called once after something has happened to the connections of its manager: it
//! succeeds within its bound. For every topology; a quorum knows some of the verbs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Builder, LockManager, LockOptions, RwLock, endpoint::Endpoint};

use crate::support::{SLACK, until};

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(30);

/// The work of a verb, once all is ready for it.
type Call = Box<dyn FnOnce() + Send>;

/// A verb, and what is to be done before.
pub(crate) struct Verb {
    name: &'static str,
    /// How often the command timeout it may block.
    timeouts: u32,
    prepare: fn(&LockManager, &str) -> Call,
}

const fn verb(name: &'static str, timeouts: u32, prepare: fn(&LockManager, &str) -> Call) -> Verb {
    Verb {
        name,
        timeouts,
        prepare,
    }
}

/// Those of mutexes, which every topology has.
pub(crate) const OF_MUTEXES: &[Verb] = &[
    verb("try_lock", 2, |m, n| {
        let mutex = m.mutex(n);
        Box::new(move || drop(mutex.try_lock().unwrap().expect("it is free")))
    }),
    verb("try_lock of a taken name", 2, |m, n| {
        std::mem::forget(m.lock(n).unwrap());
        let mutex = m.mutex(n);
        Box::new(move || assert!(mutex.try_lock().unwrap().is_none()))
    }),
    verb("try_lock_for", 3, |m, n| {
        let mutex = m.mutex(n);
        Box::new(move || drop(mutex.try_lock_for(SLACK).unwrap().expect("it is free")))
    }),
    verb("lock", 2, |m, n| {
        let mutex = m.mutex(n);
        Box::new(move || drop(mutex.lock().unwrap()))
    }),
    verb("renew", 2, |m, n| {
        let guard = m.lock(n).unwrap();
        Box::new(move || guard.renew().unwrap())
    }),
    verb("unlock", 1, |m, n| {
        let guard = m.lock(n).unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    verb("abandon", 1, |m, n| {
        let guard = m.lock(n).unwrap();
        Box::new(move || guard.abandon().unwrap())
    }),
    verb("unlock behind a drop", 1, |m, n| {
        let other = m.lock(format!("{n}-other")).unwrap();
        let guard = m.lock(n).unwrap();
        Box::new(move || {
            drop(other);
            guard.unlock().unwrap();
        })
    }),
    verb("ReentrantMutex::lock and unlock", 3, |m, n| {
        let mutex = m.reentrant_mutex(n);
        Box::new(move || mutex.lock().unwrap().unlock().unwrap())
    }),
    verb("inspect", 2, |m, n| {
        std::mem::forget(m.lock(n).unwrap());
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || assert!(m.inspect(n).unwrap().is_some()))
    }),
    verb("force_release", 2, |m, n| {
        let fence = m.lock(n).map(std::mem::ManuallyDrop::new).unwrap().fence();
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || assert!(m.force_release(n, fence).unwrap()))
    }),
    verb("list", 4, |m, n| {
        std::mem::forget(m.lock(n).unwrap());
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || {
            let found = m.list(&n).map(|info| info.unwrap());
            assert_eq!(found.count(), 1);
        })
    }),
];

/// Those that need a queue, or keep more than a mutex.
pub(crate) const OF_QUEUES: &[Verb] = &[
    verb("unlock of a local hand-over", 1, |m, n| {
        let m = m.with(LockOptions::new().local_handovers(4));
        let guard = m.lock(n).unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    verb("enqueue", 5, |m, n| {
        let mutex = m.mutex(n);
        Box::new(move || drop(mutex.enqueue().unwrap().wait().unwrap()))
    }),
    verb("delete", 6, |m, n| {
        m.lock(n).unwrap().unlock().unwrap();
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || assert!(m.delete(n).unwrap()))
    }),
    verb("try_lock_all", 3, |m, n| {
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || {
            let names = (0..4).map(|i| format!("{n}-{i}"));
            drop(m.try_lock_all(names).unwrap().expect("they are free"));
        })
    }),
    verb("MultiGuard::renew", 2, |m, n| {
        let names: Vec<String> = (0..4).map(|i| format!("{n}-{i}")).collect();
        let guard = m.lock_all(names).unwrap();
        Box::new(move || guard.renew().unwrap())
    }),
    verb("MultiGuard::unlock", 1, |m, n| {
        let names: Vec<String> = (0..4).map(|i| format!("{n}-{i}")).collect();
        let guard = m.lock_all(names).unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    verb("Semaphore::try_acquire", 2, |m, n| {
        let semaphore = m.semaphore(n, 3);
        Box::new(move || drop(semaphore.try_acquire(1).unwrap().expect("permits are left")))
    }),
    verb("SemaphoreGuard::unlock", 1, |m, n| {
        let guard = m.semaphore(n, 3).acquire(1).unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    verb("release_permits", 1, |m, n| {
        let mut guard = m.semaphore(n, 3).acquire(3).unwrap();
        Box::new(move || guard.release_permits(2).unwrap())
    }),
    verb("inspect of permits", 4, |m, n| {
        std::mem::forget(m.semaphore(n, 3).acquire(1).unwrap());
        let (m, n) = (m.clone(), n.to_owned());
        Box::new(move || assert!(m.inspect(n).unwrap().is_some()))
    }),
    verb("RwLock::try_read", 2, |m, n| {
        let lock = m.rw_lock(n);
        Box::new(move || drop(lock.try_read().unwrap().expect("it is free")))
    }),
    verb("RwLock::write, unlock", 1, |m, n| {
        let guard = m.rw_lock(n).write().unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    verb("downgrade", 1, |m, n| {
        let guard = m.rw_lock(n).write().unwrap();
        Box::new(move || drop(RwLock::downgrade(guard).unwrap()))
    }),
];

/// A call that has one timeout in all goes out again after half. The other half is for a connection, the
/// request, and a renewal that replicas acknowledge, and the slack may go into two of these.
pub(crate) const T: Duration = Duration::from_millis(6400);

/// A manager with that timeout.
pub(crate) fn builder(to: impl Into<Endpoint>) -> Builder {
    let period = Duration::from_millis(250);
    LockManager::builder(to)
        .options(LockOptions::new().ttl(Duration::from_secs(40)))
        .command_timeout(T)
        .check_period(period)
        .horizon(period + 3 * T)
}

/// Calls each verb once, all at the same time, on names of a manager of its own, which has this many
/// connections. `disturb` is called before, when all connections of all managers are open.
#[track_caller]
pub(crate) fn check(builder: &Builder, connections: u64, verbs: &[&[Verb]], disturb: impl Fn()) {
    let all: Vec<&Verb> = verbs.iter().copied().flatten().collect();
    let ready = Barrier::new(all.len() + 1);
    let disturbed = Barrier::new(all.len() + 1);
    thread::scope(|scope| {
        for (number, verb) in all.iter().enumerate() {
            let (ready, disturbed) = (&ready, &disturbed);
            let builder = builder.clone();
            scope.spawn(move || {
                let prepared = catch_unwind(AssertUnwindSafe(|| {
                    let manager = builder.build().unwrap();
                    open_all(&manager, connections, number);
                    // So many names are on all lanes.
                    let calls = (0..4).map(|n| (verb.prepare)(&manager, &format!("n{number}-{n}")));
                    (calls.collect::<Vec<Call>>(), manager)
                }));
                ready.wait();
                disturbed.wait();
                let (calls, _manager) = prepared.unwrap_or_else(|_| panic!("{}", verb.name));
                for call in calls {
                    let started = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(call));
                    let took = started.elapsed();
                    let is_in_time = took <= T * verb.timeouts + SLACK;
                    assert!(outcome.is_ok() && is_in_time, "{} took {took:?}", verb.name);
                }
            });
        }
        ready.wait();
        disturb();
        disturbed.wait();
    });
}

/// Opens the lanes, the renewal thread's connections and the subscription.
fn open_all(manager: &LockManager, connections: u64, number: usize) {
    let held = manager.lock(format!("open{number}")).unwrap();
    let waiter = manager.enqueue(format!("open{number}")).unwrap();
    for n in 0..16 {
        manager.inspect(format!("open{number}-{n}")).unwrap();
    }
    until(SOON, "all connections are open", || {
        manager.stats().connects >= connections
    });
    drop(waiter);
    held.unlock().unwrap();
}
