//! The work of each worker. This is how the lock is used.

use std::thread;

use fairlock::{LockManager, Mutex};

use crate::THREADS;
use crate::ledger::Ledger;
use crate::support::Outcome;
use crate::turn::{Turn, now};

/// Says when to begin and when to stop, and collects the turns.
pub(crate) trait Coordinator: Sync {
    /// Reports that this process is ready, and waits until all are. Returns when to stop.
    fn ready(&self) -> Outcome<u64>;
    fn done(&self, turn: Turn) -> Outcome;
}

/// The work of one process. It has one manager. All its threads share the connections and the
/// renewal thread of that manager.
pub(crate) fn work(
    process: &str,
    mgr: &LockManager,
    lock: &str,
    ledger: &Ledger,
    coordinator: &dyn Coordinator,
) -> Outcome {
    let mutex = mgr.mutex(lock);
    let stop_at = coordinator.ready()?;

    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 1..=THREADS {
            let who = format!("{process}.{number}");
            let mutex = &mutex;
            // `inspect` shows the name of the holder's thread.
            let named = thread::Builder::new().name(format!("worker {who}"));
            threads.push(named.spawn_scoped(scope, move || {
                take_turns(&who, mutex, ledger, stop_at, coordinator)
            })?);
        }
        for thread in threads {
            thread.join().map_err(|_| "a worker panicked")??;
        }
        Ok(())
    })
}

fn take_turns(
    who: &str,
    mutex: &Mutex,
    ledger: &Ledger,
    stop_at: u64,
    coordinator: &dyn Coordinator,
) -> Outcome {
    while now() < stop_at {
        // `mutex.lock()` does both steps in one. Two steps show when the worker was queued.
        let asked = now();
        let waiter = mutex.enqueue()?;
        let queued = now();
        let guard = waiter.wait()?;

        let entered = now();
        let alone = ledger.add_entry()?;
        let left = now();

        let fence = guard.fence();
        // An error here means that the lock was lost during the turn.
        guard.unlock()?;
        coordinator.done(Turn {
            who: who.to_owned(),
            asked,
            queued,
            entered,
            left,
            fence,
            alone,
        })?;
    }
    Ok(())
}
