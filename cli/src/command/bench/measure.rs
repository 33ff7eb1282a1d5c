//! The measurements.

use std::thread;
use std::time::{Duration, Instant};

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
            Measurement::LockUnlock(threads) => threads,
            Measurement::RoundTrip | Measurement::HandOver => 1,
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
            Measurement::HandOver => budget.spend(|| hand_over(managers, names.first()))?,
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

/// From the drop of a guard here to the return of `wait` there. The waiter is in the queue before.
fn hand_over([releaser, waiter]: &[LockManager; 2], name: &str) -> Result<Duration> {
    let guard = releaser.lock(name)?;
    let place = waiter.enqueue(name)?;
    let released = Instant::now();
    // It does not wait for the reply to its request.
    drop(guard);
    let guard = place.wait()?;
    let elapsed = released.elapsed();
    guard.unlock()?;
    Ok(elapsed)
}
