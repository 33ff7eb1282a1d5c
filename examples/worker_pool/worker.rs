//! What each worker does. This is how the lock is used.

use std::thread;

use fairlock::{LockManager, Mutex};

use crate::THREADS;
use crate::ledger::Ledger;
use crate::support::Outcome;
use crate::turn::{Turn, now};

/// Who says when to begin, and writes down what was done.
pub(crate) trait Director: Sync {
    /// Blocks until all are ready; answers when to stop.
    fn ready(&self) -> Outcome<u64>;
    fn done(&self, turn: Turn) -> Outcome;
}

/// A process of workers: one manager, whose connections and renewal thread all its threads share.
pub(crate) fn work(
    process: &str,
    mgr: &LockManager,
    lock: &str,
    ledger: &Ledger,
    director: &dyn Director,
) -> Outcome {
    let mutex = mgr.mutex(lock);
    let until = director.ready()?;

    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 1..=THREADS {
            let who = format!("{process}.{number}");
            let mutex = &mutex;
            // The thread's name is what `inspect` shows of a holder.
            let named = thread::Builder::new().name(format!("worker {who}"));
            threads.push(named.spawn_scoped(scope, move || {
                take_turns(&who, mutex, ledger, until, director)
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
    until: u64,
    director: &dyn Director,
) -> Outcome {
    while now() < until {
        // `mutex.lock()` is these two in one; apart, they show when the place in the queue was taken.
        let asked = now();
        let waiter = mutex.enqueue()?;
        let queued = now();
        let guard = waiter.wait()?;

        let entered = now();
        let alone = ledger.add_entry()?;
        let left = now();

        let fence = guard.fence();
        // An error here would mean that the lock was lost during the turn.
        guard.unlock()?;
        director.done(Turn {
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
