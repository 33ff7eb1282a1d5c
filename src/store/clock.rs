//! Time as the engine sees it: the only place that asks this host's clock.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Add, Sub};
#[cfg(feature = "memory")]
use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use crossbeam_channel::Receiver;
#[cfg(feature = "memory")]
use crossbeam_channel::{TryRecvError, select};
use rustix::time::ClockId;

#[cfg(feature = "memory")]
use crate::store::attendants::{Attendance, Attendants};
use crate::sync::{Condvar, MutexGuard};

/// A moment on this host's clock, in ns since some start. Arithmetic saturates: [`Time::NEVER`] is
/// the deadline of a caller that waits forever.
#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of a store. The host's clock runs on while the host is suspended, where the system has
/// such a clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    /// The source of the time, unless that is the host's clock.
    #[cfg(feature = "memory")]
    source: Option<Arc<dyn TimeSource>>,
}

/// A clock other than the host's.
#[cfg(feature = "memory")]
pub(crate) trait TimeSource: fmt::Debug + Send + Sync {
    fn now(&self) -> Time;

    /// A receiver that is disconnected at the next jump. Ask for it before the time: then a jump
    /// between the two questions ends the sleep at once.
    fn next_jump(&self) -> Receiver<Infallible>;

    /// Wakes these after each jump.
    fn on_jump(&self, sleepers: Weak<dyn Sleepers>);

    /// The threads that the clock waits for, if it can jump by itself.
    fn attendants(&self) -> Option<&Arc<Attendants>>;
}

impl Clock {
    #[cfg(feature = "memory")]
    pub(crate) fn from_source(source: Arc<dyn TimeSource>) -> Clock {
        Clock {
            source: Some(source),
        }
    }

    pub(crate) fn now(&self) -> Time {
        #[cfg(feature = "memory")]
        if let Some(source) = &self.source {
            return source.now();
        }
        host_time()
    }

    /// Blocks until notified or until `until`, whichever is first; may also wake for no reason. If
    /// the clock can jump, a [`Sleepers`] must notify after each jump.
    pub(crate) fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Time) {
        self.asleep(until, || {
            if until == Time::NEVER {
                condvar.wait(guard);
            } else {
                condvar.wait_for(guard, until - self.now());
            }
        });
    }

    pub(crate) fn sleep_until(&self, until: Time) {
        #[cfg(feature = "memory")]
        if let Some(source) = &self.source {
            loop {
                let jump = source.next_jump();
                let left = until - source.now();
                if left.is_zero() {
                    return;
                }
                let _ = self.asleep(until, || jump.recv_timeout(left));
            }
        }
        std::thread::sleep(until - self.now());
    }

    /// Blocks until a message comes or until `until`; `None` means that no message came.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>, until: Time) -> Option<T> {
        #[cfg(feature = "memory")]
        if let Some(source) = &self.source {
            loop {
                let jump = source.next_jump();
                let left = until - source.now();
                // Looks before it counts as asleep: `select!` may choose the jump although there is
                // a message.
                let received = match from.try_recv() {
                    Ok(message) => Some(Some(message)),
                    Err(TryRecvError::Disconnected) => Some(None),
                    Err(TryRecvError::Empty) => self.asleep(until, || {
                        select! {
                            recv(from) -> message => Some(message.ok()),
                            recv(jump) -> _ => None,
                            default(left) => Some(None),
                        }
                    }),
                };
                if let Some(message) = received {
                    if message.is_some() {
                        source.attendants().inspect(|all| all.note_message());
                    }
                    return message;
                }
            }
        }
        if until == Time::NEVER {
            return from.recv().ok();
        }
        from.recv_timeout(until - self.now()).ok()
    }

    /// The body of a thread that sleeps by this clock alone. A clock that jumps by itself waits for
    /// the thread, from now on until it ends.
    pub(crate) fn attended(
        &self,
        body: impl FnOnce() + Send + 'static,
    ) -> impl FnOnce() + Send + 'static {
        #[cfg(feature = "memory")]
        let body = {
            let source = self.source.as_ref();
            let attendance = source.and_then(|source| source.attendants().map(Attendants::join));
            move || {
                let _here = attendance.as_ref().map(Attendance::here);
                body();
            }
        };
        body
    }

    /// Runs `sleep`, which blocks until this time or until the thread is woken.
    fn asleep<T>(&self, until: Time, sleep: impl FnOnce() -> T) -> T {
        #[cfg(feature = "memory")]
        if let Some(attendants) = self.source.as_ref().and_then(|source| source.attendants()) {
            return attendants.asleep(until.as_nanos(), sleep);
        }
        #[cfg(not(feature = "memory"))]
        let _ = until;
        sleep()
    }

    /// Wakes these after each jump of a clock that can jump.
    pub(crate) fn on_jump(&self, sleepers: Weak<dyn Sleepers>) {
        #[cfg(feature = "memory")]
        if let Some(source) = &self.source {
            return source.on_jump(sleepers);
        }
        drop(sleepers);
    }
}

/// The threads that sleep in [`Clock::wait`], where a clock cannot find them.
#[cfg_attr(
    not(feature = "memory"),
    expect(dead_code, reason = "the host's clock does not jump")
)]
pub(crate) trait Sleepers: Send + Sync {
    /// Makes each of them look at the clock again. Takes the mutex of each for a moment: otherwise
    /// a thread that is between its look at the clock and its sleep would be missed.
    fn wake_all(&self);

    /// A receiver that is disconnected as soon as everything that is due in the background has been
    /// done.
    fn until_idle(&self) -> Receiver<Infallible>;
}

/// The clock by which leases are believed: nobody sets it, and it runs on while the host is
/// suspended.
#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    not(fairlock_monotonic_clock)
))]
const HOST_CLOCK: ClockId = ClockId::Boottime;

/// The best clock of other systems. On macOS and OpenBSD it runs on during a suspend; on others it
/// may stop, and then a lease looks longer by that time than it is. The cfg has this built and
/// tested on Linux.
#[cfg(not(all(
    any(target_os = "linux", target_os = "android"),
    not(fairlock_monotonic_clock)
)))]
const HOST_CLOCK: ClockId = ClockId::Monotonic;

#[cfg(not(unix))]
compile_error!("fairlock is for Unix: on other systems it knows no clock to believe a lease by");

pub(super) fn host_time() -> Time {
    let t = rustix::time::clock_gettime(HOST_CLOCK);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// One reading of a server's clock: it read `server` at some moment between `sent` and `received`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchor {
    /// In µs.
    pub(crate) server: u64,
    pub(crate) sent: Time,
    pub(crate) received: Time,
}

impl Anchor {
    /// R5 (dated requests): the lower estimate of the server's time at a local moment. It holds for
    /// clocks whose rates differ by at most 500 ppm.
    pub(crate) fn server_time_at_least(&self, at: Time) -> u64 {
        let age = (at - self.received).as_micros() as u64;
        self.server + age - age / 2000
    }

    /// R12 (doubtful grants): the earliest local time at which the server's clock can have read
    /// `server`.
    pub(crate) fn local_time_at_least(&self, server: u64) -> Time {
        if server >= self.server {
            self.sent + Duration::from_micros(server - self.server)
        } else {
            self.sent - Duration::from_micros(self.server - server)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn clock_keeps_pace_with_instants() {
        // The two clocks need not tick together.
        let slack = Duration::from_millis(1);
        let clock = Clock::default();
        let outer = Instant::now();
        let from = clock.now();
        let inner = Instant::now();
        // Time itself is under test: both clocks see this much of it.
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
