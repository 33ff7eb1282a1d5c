//! Time as the engine sees it: the only place that asks this host's clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, MutexGuard};

/// A moment on this host's clock, in ns since some start. Arithmetic saturates: [`Time::NEVER`] is the
/// deadline of those who wait for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(u64);

impl Time {
    pub(crate) const NEVER: Time = Time(u64::MAX);

    pub(crate) const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(nanos(d)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(d)))
    }
}

/// Zero if the other is later.
impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of a store. It also runs while the host is suspended, where the system has such a clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock;

impl Clock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn now(&self) -> Time {
        clock_gettime(rustix::time::ClockId::Boottime)
    }

    /// Elsewhere the monotonic clock has to do; some systems stop it during a suspend.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn now(&self) -> Time {
        clock_gettime(rustix::time::ClockId::Monotonic)
    }

    /// The moment of an instant.
    pub(crate) fn at(&self, instant: Instant) -> Time {
        let now = Instant::now();
        if instant > now { self.now() + (instant - now) } else { self.now() - (now - instant) }
    }

    /// Blocks until notified or until `until`, whichever is first; may wake for no reason.
    pub(crate) fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Time) {
        if until == Time::NEVER {
            condvar.wait(guard);
        } else {
            condvar.wait_for(guard, until - self.now());
        }
    }

    pub(crate) fn sleep_until(&self, until: Time) {
        std::thread::sleep(until - self.now());
    }

    /// Blocks until something comes or until `until`; `None` means that nothing came.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>, until: Time) -> Option<T> {
        if until == Time::NEVER {
            return from.recv().ok();
        }
        from.recv_timeout(until - self.now()).ok()
    }
}

fn clock_gettime(id: rustix::time::ClockId) -> Time {
    let t = rustix::time::clock_gettime(id);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
