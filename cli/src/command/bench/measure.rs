//! The measurements and their figures.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockManager, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::stop::Stop;

/// The first rounds open connections and load scripts. They do not count.
const WARM_UP: u32 = 16;
const LONGEST: Duration = Duration::from_secs(60);

/// One round of a measurement. Returns what it took. A hand-over is between two managers, as
/// between two processes.
type Round = fn(&[LockManager; 2], &str) -> Result<Duration>;

/// One measurement.
pub(super) struct Measured {
    pub(super) id: &'static str,
    pub(super) threads: u32,
    round: Round,
    /// In nanoseconds.
    pub(super) times: Histogram<u64>,
    /// How long all parts of it took.
    elapsed: Duration,
}

impl Measured {
    pub(super) fn all(threads: u32) -> [Measured; 3] {
        let all: [(&str, u32, Round); 3] = [
            ("round_trip", 1, round_trip),
            ("lock_unlock", threads, lock_unlock),
            ("hand_over", 1, hand_over),
        ];
        all.map(|(id, threads, round)| Measured {
            id,
            threads,
            round,
            times: histogram(),
            elapsed: Duration::ZERO,
        })
    }

    /// Repeats rounds until the time is over or a stop comes, each thread on a name of its own.
    pub(super) fn add_part(
        &mut self,
        managers: &[LockManager; 2],
        names: &[String],
        time: Duration,
        stop: &Stop,
    ) -> Result<()> {
        if stop.has_come() {
            return Ok(());
        }
        let round = self.round;
        let rounds = |name: &str| -> Result<(Histogram<u64>, Duration)> {
            let mut times = histogram();
            for _ in 0..WARM_UP {
                round(managers, name)?;
            }
            let began = Instant::now();
            while (times.is_empty() || began.elapsed() < time) && !stop.has_come() {
                // A longer time counts as the longest.
                times.saturating_record(round(managers, name)?.as_nanos() as u64);
            }
            Ok((times, began.elapsed()))
        };
        let names = names.iter().take(self.threads as usize);
        thread::scope(|scope| {
            let threads: Vec<_> = names.map(|name| scope.spawn(|| rounds(name))).collect();
            let mut longest = Duration::ZERO;
            for thread in threads {
                let (times, elapsed) = thread.join().expect("a measurement does not panic")?;
                self.times.add(&times).expect("the same bounds");
                longest = longest.max(elapsed);
            }
            self.elapsed += longest;
            Ok(())
        })
    }

    /// The figures as JSON. Times are in seconds. `round_trips` is the median as a multiple of the
    /// bare round trip's.
    pub(super) fn figures(&self, bare: &Measured) -> Value {
        let seconds = |nanos| Duration::from_nanos(nanos).as_secs_f64();
        let median = |of: &Measured| seconds(of.times.value_at_quantile(0.5));
        let quantile = |quantile| seconds(self.times.value_at_quantile(quantile));
        let (p50, bare) = (median(self), median(bare));
        json!({
            "measurement": self.id,
            "threads": self.threads,
            "count": self.times.len(),
            "per_second": self.times.len() as f64 / self.elapsed.as_secs_f64().max(1e-9),
            "p50": p50,
            "p90": quantile(0.9),
            "p99": quantile(0.99),
            "max": seconds(self.times.max()),
            "mean": self.times.mean() / 1e9,
            "round_trips": (bare > 0.0).then(|| p50 / bare),
        })
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("bounds that fit")
}

/// A request that is no lock.
fn round_trip([manager, _]: &[LockManager; 2], name: &str) -> Result<Duration> {
    let began = Instant::now();
    manager.inspect(name)?;
    Ok(began.elapsed())
}

fn lock_unlock([manager, _]: &[LockManager; 2], name: &str) -> Result<Duration> {
    let began = Instant::now();
    manager.lock(name)?.unlock()?;
    Ok(began.elapsed())
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
