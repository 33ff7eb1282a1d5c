//! The measurements.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use fairlock::{LockManager, Result};
use hdrhistogram::Histogram;

use super::budget::{Budget, histogram};
use super::names::Names;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measurement {
    RoundTrip,
    /// By this many threads.
    LockUnlock(u32),
    /// Between two managers, as between two processes.
    HandOver,
}

/// The times of one measurement, in nanoseconds.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) measurement: Measurement,
    pub(super) times: Histogram<u64>,
    /// How long all parts of it took.
    pub(super) elapsed: Duration,
}

impl Measurement {
    pub(super) fn all(threads: u32) -> [Measurement; 3] {
        [
            Measurement::RoundTrip,
            Measurement::LockUnlock(threads),
            Measurement::HandOver,
        ]
    }

    pub(super) fn title(self) -> String {
        match self {
            Measurement::RoundTrip => "round trip".to_owned(),
            Measurement::LockUnlock(1) => "lock + unlock".to_owned(),
            Measurement::LockUnlock(threads) => format!("lock + unlock, {threads} threads"),
            Measurement::HandOver => "hand-over".to_owned(),
        }
    }

    /// Its name for programs.
    pub(super) fn id(self) -> &'static str {
        match self {
            Measurement::RoundTrip => "round_trip",
            Measurement::LockUnlock(_) => "lock_unlock",
            Measurement::HandOver => "hand_over",
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self {
            Measurement::RoundTrip => 1,
            Measurement::LockUnlock(threads) => threads,
            Measurement::HandOver => 2,
        }
    }

    /// Blocks for the budget and a few round trips. `None` if an interrupt came.
    pub(super) fn run(
        self,
        managers: &[LockManager; 2],
        names: &Names,
        budget: &Budget,
    ) -> Result<Option<Measured>> {
        let manager = &managers[0];
        let (times, elapsed) = match self {
            Measurement::RoundTrip => budget.spend(|| {
                let began = Instant::now();
                manager.inspect(names.first())?;
                Ok(began.elapsed())
            })?,
            Measurement::LockUnlock(_) => lock_unlock(manager, names, budget)?,
            Measurement::HandOver => hand_over(managers, names.first(), budget)?,
        };
        Ok((!budget.is_interrupted()).then_some(Measured {
            measurement: self,
            times,
            elapsed,
        }))
    }
}

impl Measured {
    /// Adds a later part.
    pub(super) fn add(&mut self, part: &Measured) {
        self.times.add(&part.times).expect("the same bounds");
        self.elapsed += part.elapsed;
    }
}

/// All threads lock names of their own through one manager.
fn lock_unlock(
    manager: &LockManager,
    names: &Names,
    budget: &Budget,
) -> Result<(Histogram<u64>, Duration)> {
    let round = |name: &str| {
        let began = Instant::now();
        manager.lock(name)?.unlock()?;
        Ok(began.elapsed())
    };
    thread::scope(|scope| {
        let thread = |name| scope.spawn(move || budget.spend(|| round(name)));
        let all: Vec<_> = names.all().map(thread).collect();
        let (mut times, mut longest) = (histogram(), Duration::ZERO);
        for thread in all {
            let (of_thread, elapsed) = thread.join().expect("a measurement does not panic")?;
            times.add(&of_thread).expect("the same bounds");
            longest = longest.max(elapsed);
        }
        Ok((times, longest))
    })
}

/// From the call of `unlock` here to the return of `wait` there. The waiter is in the queue before.
fn hand_over(
    [releaser, waiter]: &[LockManager; 2],
    name: &str,
    budget: &Budget,
) -> Result<(Histogram<u64>, Duration)> {
    thread::scope(|scope| {
        // One message each: to enqueue, that it is queued, and when it had the lock.
        let (go, goes) = bounded::<()>(1);
        let (queued, is_queued) = bounded::<()>(1);
        let (granted, is_granted) = bounded::<Instant>(1);
        let waiting = scope.spawn(move || wait_in_turns(waiter, name, &goes, &queued, &granted));
        let spent = budget.spend(|| {
            let guard = releaser.lock(name)?;
            // The channels are gone if the waiter failed. Its own error says why.
            let failed = |_| fairlock::Error::Closed;
            go.send(()).map_err(|_| fairlock::Error::Closed)?;
            is_queued.recv().map_err(failed)?;
            let released = Instant::now();
            guard.unlock()?;
            let granted = is_granted.recv().map_err(failed)?;
            Ok(granted.saturating_duration_since(released))
        });
        drop(go);
        waiting.join().expect("a measurement does not panic")?;
        spent
    })
}

fn wait_in_turns(
    manager: &LockManager,
    name: &str,
    goes: &Receiver<()>,
    queued: &Sender<()>,
    granted: &Sender<Instant>,
) -> Result<()> {
    for () in goes {
        let waiter = manager.enqueue(name)?;
        if queued.send(()).is_err() {
            return Ok(());
        }
        let guard = waiter.wait()?;
        let now = Instant::now();
        guard.unlock()?;
        if granted.send(now).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
