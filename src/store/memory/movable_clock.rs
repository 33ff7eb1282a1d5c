//! A clock that runs on with the host's, and can be put forward or go forward by itself.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::store::attendants::{Attendants, Left, Snapshot};
use crate::store::clock::{Sleepers, Time, TimeSource, host_time, nanos};

/// How far a clock can be put forward in all: the scripts' numbers are exact for two hundred years
/// from now.
const FURTHEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

/// The longest that [`MovableClock::advance`] waits, in the host's time: a background thread that
/// waits for a reply is idle only when that wait is over.
const LONGEST_UNTIL_IDLE: Duration = Duration::from_secs(1);

/// How long a thread that puts the clock forward waits, in the host's time, if it has nothing to
/// do.
const IDLE: Duration = Duration::from_millis(1);

/// When something is due for an attendant of the clock.
enum NextDue {
    At(Time),
    /// A thread was at work.
    Unknown,
    /// Never, or another thread puts the clock forward.
    Idle,
}

/// The host's clock, put forward.
pub(super) struct MovableClock {
    /// How far it was put forward, in ns.
    shift: AtomicU64,
    /// A sleeping thread holds a clone of the receiver, and wakes when the sender is dropped.
    next_jump: Mutex<(Sender<Infallible>, Receiver<Infallible>)>,
    sleepers: Mutex<Vec<Weak<dyn Sleepers>>>,
    attendants: Arc<Attendants>,
    /// Held by the one thread that may put the clock forward for the attendants.
    driving: Mutex<()>,
}

impl MovableClock {
    pub(super) fn new() -> MovableClock {
        MovableClock {
            shift: AtomicU64::new(0),
            next_jump: Mutex::new(bounded(0)),
            sleepers: Mutex::new(Vec::new()),
            attendants: Arc::default(),
            driving: Mutex::new(()),
        }
    }

    /// Puts the clock forward and wakes every thread that sleeps by it. Then waits until everything
    /// that is due is done, but no longer than [`LONGEST_UNTIL_IDLE`].
    pub(super) fn advance(&self, by: Duration) {
        let sleepers = self.jump(by);
        let idle: Vec<_> = sleepers
            .iter()
            .map(|sleepers| sleepers.until_idle())
            .collect();
        let deadline = Instant::now() + LONGEST_UNTIL_IDLE;
        for idle in idle {
            let _ = idle.recv_deadline(deadline);
        }
    }

    /// Runs `work`. While this thread and all threads of the managers sleep, the clock goes forward
    /// to the next moment at which one of them is due.
    pub(super) fn fast_forward<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.attendants.has_this_thread() {
            // The clock goes forward for this thread already.
            return work();
        }
        thread::scope(|scope| {
            let attendance = self.attendants.join();
            let id = attendance.id();
            scope.spawn(move || self.drive(id));
            let _here = attendance.here();
            work()
        })
    }

    /// Puts the clock forward, as long as this attendant is there.
    fn drive(&self, id: u64) {
        while let Ok(next) = self.next_due(id) {
            match next {
                NextDue::At(due) => drop(self.jump(due - self.now())),
                NextDue::Unknown => {}
                NextDue::Idle => thread::sleep(IDLE),
            }
        }
    }

    /// When something is due next, once all attendants sleep.
    ///
    /// A thread that sleeps may have been woken already. So each round wakes all attendants and
    /// waits until they sleep again. In the first round they do what is due and what they have
    /// messages for, which may send messages to others. The second shows whether there were any.
    fn next_due(&self, id: u64) -> Result<NextDue, Left> {
        self.attendants.next_end(id, &Snapshot::default())?;
        let Some(_alone) = self.driving.try_lock() else {
            return Ok(NextDue::Idle);
        };
        let mut due = None;
        for _ in 0..2 {
            let before = self.attendants.snapshot();
            self.jump(Duration::ZERO);
            due = self.attendants.next_end(id, &before)?;
        }
        Ok(match due.map(Time::from_nanos) {
            None => NextDue::Unknown,
            Some(Time::NEVER) => NextDue::Idle,
            Some(due) => NextDue::At(due),
        })
    }

    /// Puts the clock forward and wakes every thread that sleeps by it.
    fn jump(&self, by: Duration) -> Vec<Arc<dyn Sleepers>> {
        let further = |ns: u64| Some(ns.saturating_add(nanos(by)).min(FURTHEST));
        let _ = self
            .shift
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, further);
        // The time is changed first, so a thread that takes the next receiver sees it.
        let over = std::mem::replace(&mut *self.next_jump.lock(), bounded(0));
        drop(over);
        let sleepers = self.sleepers.lock().clone();
        let sleepers: Vec<_> = sleepers.iter().filter_map(Weak::upgrade).collect();
        sleepers.iter().for_each(|sleepers| sleepers.wake_all());
        sleepers
    }

    fn shift(&self) -> Duration {
        Duration::from_nanos(self.shift.load(Ordering::SeqCst))
    }
}

impl TimeSource for MovableClock {
    fn now(&self) -> Time {
        host_time() + self.shift()
    }

    fn next_jump(&self) -> Receiver<Infallible> {
        self.next_jump.lock().1.clone()
    }

    fn on_jump(&self, sleepers: Weak<dyn Sleepers>) {
        let mut all = self.sleepers.lock();
        all.retain(|sleepers| sleepers.strong_count() > 0);
        all.push(sleepers);
    }

    fn attendants(&self) -> Option<&Arc<Attendants>> {
        Some(&self.attendants)
    }
}

impl fmt::Debug for MovableClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MovableClock({:?})", self.shift())
    }
}
