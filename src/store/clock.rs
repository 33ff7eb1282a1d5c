//! Time as the engine sees it: the only place that asks this host's clock.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Add, Sub};
#[cfg(feature = "memory")]
use std::sync::Arc;
use std::sync::Weak;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use rustix::time::ClockId;

use crate::sync::{Condvar, MutexGuard};

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
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    /// For a clock that can be put forward, how far it was.
    #[cfg(feature = "memory")]
    shift: Option<Arc<shift::Shift>>,
    /// For a clock that shows what it is told to.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    told: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// A clock that shows so many ns, whatever the host's says.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn told(ns: Arc<AtomicU64>) -> Clock {
        Clock {
            shift: None,
            told: Some(ns),
        }
    }

    pub(crate) fn now(&self) -> Time {
        #[cfg(any(all(test, feature = "memory"), fuzzing))]
        if let Some(ns) = &self.told {
            return Time(ns.load(Ordering::Relaxed));
        }
        let now = host_time();
        #[cfg(feature = "memory")]
        if let Some(shift) = &self.shift {
            return now + shift.so_far();
        }
        now
    }

    /// The moment of an instant.
    pub(crate) fn at(&self, instant: Instant) -> Time {
        let now = Instant::now();
        if instant > now {
            self.now() + (instant - now)
        } else {
            self.now() - (now - instant)
        }
    }

    /// Blocks until notified or until `until`, whichever is first; may wake for no reason. If the clock can
    /// jump, somebody has to notify then: see [`Sleepers`].
    pub(crate) fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Time) {
        if until == Time::NEVER {
            condvar.wait(guard);
        } else {
            condvar.wait_for(guard, until - self.now());
        }
    }

    pub(crate) fn sleep_until(&self, until: Time) {
        #[cfg(feature = "memory")]
        if let Some(shift) = &self.shift {
            return shift.sleep_while(|| until - self.now());
        }
        std::thread::sleep(until - self.now());
    }

    /// Blocks until something comes or until `until`; `None` means that nothing came.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>, until: Time) -> Option<T> {
        if until == Time::NEVER {
            return from.recv().ok();
        }
        #[cfg(feature = "memory")]
        if let Some(shift) = &self.shift {
            return shift.receive_while(from, || until - self.now());
        }
        from.recv_timeout(until - self.now()).ok()
    }

    /// Wakes these after each jump.
    pub(crate) fn on_jump(&self, sleepers: Weak<dyn Sleepers>) {
        #[cfg(feature = "memory")]
        if let Some(shift) = &self.shift {
            return shift.on_jump(sleepers);
        }
        drop(sleepers);
    }
}

/// Those who sleep in [`Clock::wait`], where a clock cannot find them.
pub(crate) trait Sleepers: Send + Sync {
    /// Has each of them look at the clock again. Takes the mutex of each for a moment, so that nobody is
    /// missed between his look at the clock and his sleep. What it answers is disconnected as soon as all that
    /// was due in the background has been done.
    #[cfg_attr(
        not(feature = "memory"),
        expect(dead_code, reason = "the host's clock does not jump")
    )]
    fn wake_all(&self) -> Receiver<Infallible>;
}

/// What leases are believed by: a clock that nobody sets, and that runs on while the host is suspended.
#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    not(fairlock_monotonic_clock)
))]
const HOST_CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere the monotonic clock has to do. On macOS and OpenBSD it runs on during a suspend, on others it may stop;
/// a lease then looks longer by that time than it is. The cfg has this built and tested on Linux.
#[cfg(not(all(
    any(target_os = "linux", target_os = "android"),
    not(fairlock_monotonic_clock)
)))]
const HOST_CLOCK: ClockId = ClockId::Monotonic;

#[cfg(not(unix))]
compile_error!("fairlock is for Unix: elsewhere it knows of no clock to believe a lease by");

fn host_time() -> Time {
    let t = rustix::time::clock_gettime(HOST_CLOCK);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Clocks that can be put forward.
#[cfg(feature = "memory")]
mod shift {
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Weak};
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, Sender, bounded, select};
    use parking_lot::Mutex;

    use super::{Clock, Infallible, Sleepers, nanos};

    /// As far as a clock goes forward in all: the scripts' numbers are exact for two hundred years from now.
    const FURTHEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

    /// In the host's time: a background that waits for a reply settles only when that is over.
    const SETTLING: Duration = Duration::from_secs(1);

    pub(super) struct Shift {
        ns: AtomicU64,
        /// Whoever sleeps holds the receiver as well, and is woken when the sender is dropped.
        next_jump: Mutex<(Sender<Infallible>, Receiver<Infallible>)>,
        sleepers: Mutex<Vec<Weak<dyn Sleepers>>>,
    }

    impl Clock {
        /// A clock that runs on from the host's time, and that [`Clock::advance`] puts forward.
        pub(crate) fn movable() -> Clock {
            let shift = Shift {
                ns: AtomicU64::new(0),
                next_jump: Mutex::new(bounded(0)),
                sleepers: Mutex::new(Vec::new()),
            };
            Clock {
                shift: Some(Arc::new(shift)),
                #[cfg(any(all(test, feature = "memory"), fuzzing))]
                told: None,
            }
        }

        /// Puts the clock forward and wakes all who sleep by it. Waits for what is due then to be done, but no
        /// longer than [`SETTLING`].
        pub(crate) fn advance(&self, by: Duration) {
            let Some(shift) = &self.shift else { return };
            let further = |ns: u64| Some(ns.saturating_add(nanos(by)).min(FURTHEST));
            let _ = shift
                .ns
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, further);
            // The time is changed first: who takes the next receiver sees it.
            let over = std::mem::replace(&mut *shift.next_jump.lock(), bounded(0));
            drop(over);
            let sleepers = shift.sleepers.lock().clone();
            let settled: Vec<_> = sleepers
                .iter()
                .filter_map(Weak::upgrade)
                .map(|s| s.wake_all())
                .collect();
            let deadlines = Instant::now() + SETTLING;
            for settled in settled {
                let _ = settled.recv_deadline(deadlines);
            }
        }
    }

    impl Shift {
        pub(super) fn so_far(&self) -> Duration {
            Duration::from_nanos(self.ns.load(Ordering::SeqCst))
        }

        pub(super) fn on_jump(&self, sleepers: Weak<dyn Sleepers>) {
            let mut all = self.sleepers.lock();
            all.retain(|sleepers| sleepers.strong_count() > 0);
            all.push(sleepers);
        }

        pub(super) fn sleep_while(&self, left: impl Fn() -> Duration) {
            loop {
                let jump = self.next_jump.lock().1.clone();
                let left = left();
                if left.is_zero() {
                    return;
                }
                let _ = jump.recv_timeout(left);
            }
        }

        pub(super) fn receive_while<T>(
            &self,
            from: &Receiver<T>,
            left: impl Fn() -> Duration,
        ) -> Option<T> {
            loop {
                let jump = self.next_jump.lock().1.clone();
                let left = left();
                select! {
                    recv(from) -> message => return message.ok(),
                    recv(jump) -> _ => {}
                    default(left) => return None,
                }
            }
        }
    }

    impl fmt::Debug for Shift {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Shift({:?})", self.so_far())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_keeps_pace_with_instants() {
        // Two clocks need not tick together.
        let slack = Duration::from_millis(1);
        let clock = Clock::default();
        let (outer, from) = (Instant::now(), clock.now());
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let least = inner.elapsed();
        let passed = clock.now() - from;
        assert!(
            least <= passed + slack && passed <= outer.elapsed() + slack,
            "{passed:?}, by instants {least:?}"
        );
    }

    #[cfg(fairlock_monotonic_clock)]
    #[test]
    fn the_clock_is_the_fallback() {
        assert!(matches!(HOST_CLOCK, ClockId::Monotonic));
    }
}
