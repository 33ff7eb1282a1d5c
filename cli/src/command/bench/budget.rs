//! For how long to measure: until the time is over, a signal comes, or nobody can read the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::Result;
use hdrhistogram::Histogram;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Failure};
use crate::output;

/// The first rounds open connections and load scripts. They do not count.
const WARM_UP: u32 = 16;
const LONGEST: Duration = Duration::from_secs(60);

/// The early end of the measurements. Locks that are held are still released.
#[derive(Debug, Clone)]
pub(super) struct Interrupt {
    /// The signal that came.
    signal: Arc<AtomicUsize>,
    is_unread: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes HUP, INT and TERM from now on. A second one ends the process at once. Also notices
    /// that the reader of the output is gone.
    pub(super) fn listen() -> std::result::Result<Interrupt, Failure> {
        let interrupt = Interrupt {
            signal: Arc::default(),
            is_unread: Arc::default(),
        };
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let exit = i32::from(Exit::of_signal(signal).0);
            let number = Arc::clone(&interrupt.signal);
            // In this order: the first signal sets the flag that the second one finds.
            flag::register_conditional_shutdown(signal, exit, Arc::clone(&came))
                .and_then(|_| flag::register(signal, Arc::clone(&came)))
                .and_then(|_| flag::register_usize(signal, number, signal as usize))
                .map_err(|error| Failure::internal(format!("no signal handlers: {error}")))?;
        }
        let is_unread = Arc::clone(&interrupt.is_unread);
        thread::spawn(move || {
            output::wait_until_unread();
            is_unread.store(true, Ordering::Relaxed);
        });
        Ok(interrupt)
    }

    pub(super) fn came(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0 || self.is_unread.load(Ordering::Relaxed)
    }

    /// The exit code of measurements that no error ended.
    pub(super) fn exit(&self) -> Exit {
        match i32::try_from(self.signal.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => Exit::OK,
            Ok(number) => Exit::of_signal(number),
        }
    }
}

/// How long a part of a measurement goes on.
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

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.came()
    }

    /// Repeats a round until the time is over, at least once if nothing interrupts. A round returns
    /// its time. Returns these in nanoseconds, and how long all of it took.
    pub(super) fn spend(
        &self,
        mut round: impl FnMut() -> Result<Duration>,
    ) -> Result<(Histogram<u64>, Duration)> {
        let mut times = histogram();
        for _ in 0..WARM_UP {
            if !self.is_interrupted() {
                round()?;
            }
        }
        let began = Instant::now();
        loop {
            let nanos = u64::try_from(round()?.as_nanos());
            // A longer time counts as the longest.
            times.saturating_record(nanos.unwrap_or(u64::MAX));
            if began.elapsed() >= self.time || self.is_interrupted() {
                return Ok((times, began.elapsed()));
            }
        }
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("bounds that fit")
}
