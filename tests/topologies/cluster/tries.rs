//! R22 (tries among the dead) in a cluster: a try decides in one call whether a live process holds
//! the lock or waits for it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, LockOptions, Result, inspect::Party};

use super::manager_with;
use crate::cluster_set::ClusterSet;
use crate::support::child::{Role, receive, report};
use crate::support::{Child, EndLoops, SLACK, until};

pub(crate) const WANTS: (&str, Role) = ("cluster_wants", wants);

const TTL: Duration = Duration::from_secs(3);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

/// The ways to want a lock.
type Try = fn(&LockManager, &str) -> Result<bool>;

const TRIES: [(&str, Try); 6] = [
    ("mutex", |m, name| Ok(m.try_lock(name)?.is_some())),
    ("mutex, for no time", |m, name| {
        Ok(m.try_lock_for(name, Duration::ZERO)?.is_some())
    }),
    ("mutexes", |m, name| {
        let other = format!("{name}-other");
        Ok(m.try_lock_all([name, other.as_str()])?.is_some())
    }),
    ("permits", |m, name| {
        Ok(m.semaphore(name, 3).try_acquire(3)?.is_some())
    }),
    ("reader", |m, name| {
        Ok(m.rw_lock(name).try_read()?.is_some())
    }),
    ("writer", |m, name| {
        Ok(m.rw_lock(name).try_write()?.is_some())
    }),
];

/// One name for each try, on all masters.
fn names(set: &ClusterSet) -> [String; TRIES.len()] {
    std::array::from_fn(|n| set.name_on(n % set.masters(), n))
}

/// Holds each name if it is free, waits for it twice, and goes on so until it is killed.
fn wants(args: &[String]) {
    let options = LockOptions::new().ttl(TTL);
    let manager = LockManager::builder(args[0].as_str())
        .options(options)
        .build()
        .unwrap();
    let mut kept: Vec<Box<dyn Any>> = Vec::new();
    for (name, (kind, _)) in args[1..].iter().zip(TRIES) {
        match kind {
            "permits" => {
                let permits = manager.semaphore(name, 3);
                kept.push(Box::new(permits.try_acquire(3).unwrap()));
                kept.push(Box::new(permits.enqueue(2).unwrap()));
                kept.push(Box::new(permits.enqueue(3).unwrap()));
            }
            "reader" => {
                let books = manager.rw_lock(name);
                kept.push(Box::new(books.try_write().unwrap()));
                kept.push(Box::new(books.enqueue_write().unwrap()));
                kept.push(Box::new(books.enqueue_read().unwrap()));
            }
            "writer" => {
                let books = manager.rw_lock(name);
                kept.push(Box::new(books.try_read().unwrap()));
                kept.push(Box::new(books.enqueue_write().unwrap()));
                kept.push(Box::new(books.enqueue_read().unwrap()));
            }
            _ => {
                kept.push(Box::new(manager.try_lock(name).unwrap()));
                kept.push(Box::new(manager.enqueue(name).unwrap()));
                kept.push(Box::new(manager.enqueue(name).unwrap()));
            }
        }
    }
    report("ready");
    while receive().is_some() {}
}

/// Processes that hold and want all of these names.
fn processes(set: &ClusterSet, names: &[String]) -> Vec<Child> {
    let url = set.url();
    let mut args = vec![url.as_str()];
    args.extend(names.iter().map(String::as_str));
    let start = |_| {
        let child = Child::spawn(WANTS.0, &args);
        child.expect("ready", SOON);
        child
    };
    (0..3).map(start).collect()
}

/// How many of the leases of a name are not over.
fn leases(manager: &LockManager, name: &str) -> usize {
    let seen = manager.inspect(name).expect("redis answers");
    let holders = seen.map(|seen| seen.holders).unwrap_or_default();
    let holds = |holder: &&Party| holder.lapsed_for.is_none();
    holders.iter().filter(holds).count()
}

#[test]
fn first_try_in_a_cluster_takes_what_only_the_dead_want() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let names = names(&set);
    let mut dead = processes(&set, &names);
    dead.iter_mut().for_each(Child::kill);
    let looks = manager_with(&set, TTL);
    for name in &names {
        until(TTL + SLACK, "its lease is over", || {
            leases(&looks, name) == 0
        });
    }
    for (name, (kind, attempt)) in names.iter().zip(TRIES) {
        let manager = manager_with(&set, TTL);
        let started = Instant::now();
        let taken = attempt(&manager, name).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert!(taken, "{kind}");
        // P8: two command timeouts, each a tenth of the ttl.
        let took = started.elapsed();
        assert!(took <= TTL / 5 + SLACK, "{kind}: {took:?}");
    }
}

/// A live process waits behind the dead. Tries go on all the time.
#[test]
fn tries_in_a_cluster_pass_over_no_live_waiter() {
    let set = ClusterSet::start_with(3, 0, &[]);
    let names = names(&set);
    let mut dead = processes(&set, &names);
    let live = manager_with(&set, TTL);
    let other = manager_with(&set, TTL);
    let mut mutex = live.enqueue(&names[0]).expect("redis answers");
    let mut permits = live
        .semaphore(&names[3], 3)
        .enqueue(3)
        .expect("redis answers");
    let mut writer = live
        .rw_lock(&names[4])
        .enqueue_write()
        .expect("redis answers");
    dead.iter_mut().for_each(Child::kill);
    let is_over = AtomicBool::new(false);
    // The guards live for longer than the last try.
    let (mutex, permits, writer) = thread::scope(|scope| {
        for at in [0, 3, 4] {
            let (kind, attempt) = TRIES[at];
            let (other, name, is_over) = (&other, &names[at], &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    // A try that a busy machine delays for too long fails, and takes nothing.
                    let tried = attempt(other, name);
                    assert!(!matches!(tried, Ok(true)), "{kind}: the try came first");
                }
            });
        }
        let _end = EndLoops(&is_over);
        let mutex = scope.spawn(move || mutex.wait_for(SOON));
        let permits = scope.spawn(move || permits.wait_for(SOON));
        let writer = scope.spawn(move || writer.wait_for(SOON));
        (mutex.join(), permits.join(), writer.join())
    });
    assert!(matches!(mutex, Ok(Ok(Some(_)))), "the mutex");
    assert!(matches!(permits, Ok(Ok(Some(_)))), "the permits");
    assert!(matches!(writer, Ok(Ok(Some(_)))), "the writer");
}
