//! The measurements.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use fairlock::{LockManager, Result};
use hdrhistogram::Histogram;

use super::interrupt::Interrupt;
use super::names::Names;

/// The first rounds open connections and load scripts. They do not count.
const WARM_UP: u32 = 16;
const LONGEST: Duration = Duration::from_secs(60);

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measurement {
    RoundTrip,
    LockUnlock,
    LockDrop,
    /// Between two threads of one process.
    HandOverWithin,
    /// Between two managers, as between two processes.
    HandOverBetween,
    Threads(u32),
}

/// The times of one measurement, in nanoseconds.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) measurement: Measurement,
    pub(super) times: Histogram<u64>,
    /// How long all parts of it took.
    pub(super) elapsed: Duration,
}

/// How long a measurement goes on.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    time: Duration,
    interrupt: Interrupt,
}

impl Budget {
    pub(super) fn new(time: Duration, interrupt: &Interrupt) -> Budget {
        Budget {
            time,
            interrupt: interrupt.clone(),
        }
    }

    fn lasts(&self, since: Instant) -> bool {
        since.elapsed() < self.time && !self.interrupt.has_come()
    }

    /// Repeats a round until the time is over, at least once if nothing interrupts. A round returns
    /// its time.
    fn spend(
        &self,
        mut round: impl FnMut() -> Result<Duration>,
    ) -> Result<(Histogram<u64>, Duration)> {
        let mut times = histogram();
        for _ in 0..WARM_UP {
            if !self.interrupt.has_come() {
                round()?;
            }
        }
        let began = Instant::now();
        loop {
            record(&mut times, round()?);
            if !self.lasts(began) {
                return Ok((times, began.elapsed()));
            }
        }
    }
}

impl Measurement {
    pub(super) fn all(threads: u32) -> Vec<Measurement> {
        let mut all = vec![
            Measurement::RoundTrip,
            Measurement::LockUnlock,
            Measurement::LockDrop,
            Measurement::HandOverWithin,
            Measurement::HandOverBetween,
        ];
        all.push(Measurement::Threads(threads));
        all
    }

    pub(super) fn title(self) -> String {
        match self {
            Measurement::RoundTrip => "round trip".to_owned(),
            Measurement::LockUnlock => "lock + unlock".to_owned(),
            Measurement::LockDrop => "lock + drop".to_owned(),
            Measurement::HandOverWithin => "hand-over, one process".to_owned(),
            Measurement::HandOverBetween => "hand-over, two managers".to_owned(),
            Measurement::Threads(1) => "lock + unlock, 1 thread".to_owned(),
            Measurement::Threads(threads) => format!("lock + unlock, {threads} threads"),
        }
    }

    /// Its name for programs.
    pub(super) fn id(self) -> &'static str {
        match self {
            Measurement::RoundTrip => "round_trip",
            Measurement::LockUnlock => "lock_unlock",
            Measurement::LockDrop => "lock_drop",
            Measurement::HandOverWithin => "hand_over_one_process",
            Measurement::HandOverBetween => "hand_over_two_managers",
            Measurement::Threads(_) => "lock_unlock_threads",
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self {
            Measurement::HandOverWithin | Measurement::HandOverBetween => 2,
            Measurement::Threads(threads) => threads,
            _ => 1,
        }
    }

    /// Blocks for the budget and a few round trips. `None` if an interrupt came.
    pub(super) fn run(
        self,
        managers: &[LockManager; 2],
        names: &Names,
        budget: &Budget,
    ) -> Result<Option<Measured>> {
        let [manager, other] = managers;
        let (times, elapsed) = match self {
            Measurement::RoundTrip => {
                budget.spend(|| timed(|| manager.inspect(names.first()).map(|_| ())))?
            }
            Measurement::LockUnlock => budget.spend(|| lock_unlock(manager, names.first()))?,
            Measurement::LockDrop => {
                budget.spend(|| timed(|| manager.lock(names.first()).map(drop)))?
            }
            Measurement::HandOverWithin => hand_over([manager, manager], names.first(), budget)?,
            Measurement::HandOverBetween => hand_over([manager, other], names.first(), budget)?,
            Measurement::Threads(_) => threads(manager, names, budget)?,
        };
        let is_whole = !budget.interrupt.has_come();
        Ok(is_whole.then_some(Measured {
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

fn timed(call: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    call()?;
    Ok(began.elapsed())
}

fn lock_unlock(manager: &LockManager, name: &str) -> Result<Duration> {
    timed(|| manager.lock(name)?.unlock())
}

/// All threads lock names of their own through one manager.
fn threads(
    manager: &LockManager,
    names: &Names,
    budget: &Budget,
) -> Result<(Histogram<u64>, Duration)> {
    thread::scope(|scope| {
        let thread = |name| scope.spawn(move || budget.spend(|| lock_unlock(manager, name)));
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
    [releaser, waiter]: [&LockManager; 2],
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

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("bounds that fit")
}

fn record(times: &mut Histogram<u64>, time: Duration) {
    // A longer time counts as the longest.
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}
