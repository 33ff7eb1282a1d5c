//! The threads that a clock waits for before it jumps by itself.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// The threads that sleep by one clock, and until when, in ns by that clock.
#[derive(Default)]
pub(crate) struct Attendants {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    threads: HashMap<u64, Attendant>,
    /// How many messages have ended a sleep.
    messages: u64,
}

#[derive(Default)]
struct Attendant {
    /// `None` while it is awake.
    asleep_until: Option<u64>,
    /// How many times it has gone to sleep.
    sleeps: u64,
}

/// A thread among the attendants, until this is dropped.
pub(crate) struct Attendance {
    attendants: Arc<Attendants>,
    id: u64,
}

/// The thread on which this was made has the attendance, until this is dropped.
pub(crate) struct Attending {
    before: u64,
}

/// How often the attendants had gone to sleep at one moment. The default: before all.
#[derive(Default)]
pub(crate) struct Snapshot {
    sleeps: HashMap<u64, u64>,
    messages: u64,
}

static LAST_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The id of this thread's attendance. 0 if it has none.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

impl Attendants {
    /// A new attendant, which counts as awake.
    pub(crate) fn join(self: &Arc<Self>) -> Attendance {
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.lock().threads.insert(id, Attendant::default());
        Attendance {
            attendants: Arc::clone(self),
            id,
        }
    }

    /// Whether the calling thread is one of them.
    pub(crate) fn has_this_thread(&self) -> bool {
        self.state.lock().threads.contains_key(&HERE.get())
    }

    /// Runs `sleep`, which blocks until this time or until the thread is woken.
    pub(crate) fn asleep<T>(&self, until: u64, sleep: impl FnOnce() -> T) -> T {
        self.note(Some(until));
        let woken_by = sleep();
        self.note(None);
        woken_by
    }

    fn note(&self, asleep_until: Option<u64>) {
        if let Some(attendant) = self.state.lock().threads.get_mut(&HERE.get()) {
            attendant.asleep_until = asleep_until;
            attendant.sleeps += u64::from(asleep_until.is_some());
            self.changed.notify_all();
        }
    }

    /// A message ended a sleep.
    pub(crate) fn note_message(&self) {
        self.state.lock().messages += 1;
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let sleeps = |(id, attendant): (&u64, &Attendant)| (*id, attendant.sleeps);
        Snapshot {
            sleeps: state.threads.iter().map(sleeps).collect(),
            messages: state.messages,
        }
    }

    /// Waits until every attendant sleeps, and has gone to sleep since the snapshot. Returns the
    /// earliest end of these sleeps, or `None` if a message ended one of them. An error if this
    /// attendant has left.
    pub(crate) fn next_end(&self, id: u64, since: &Snapshot) -> Result<Option<u64>, Left> {
        let slept_since = |(id, attendant): (&u64, &Attendant)| {
            let before = since.sleeps.get(id);
            let again = before.is_none_or(|before| attendant.sleeps > *before);
            attendant.asleep_until.filter(|_| again)
        };
        let mut state = self.state.lock();
        loop {
            if !state.threads.contains_key(&id) {
                return Err(Left);
            }
            let ends: Option<Vec<u64>> = state.threads.iter().map(slept_since).collect();
            if let Some(ends) = ends {
                let is_quiet = state.messages == since.messages;
                return Ok(ends.into_iter().min().filter(|_| is_quiet));
            }
            self.changed.wait(&mut state);
        }
    }
}

/// The attendant has left.
pub(crate) struct Left;

impl Attendance {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The calling thread has this attendance from now on.
    pub(crate) fn here(&self) -> Attending {
        Attending {
            before: HERE.replace(self.id),
        }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.attendants.state.lock().threads.remove(&self.id);
        self.attendants.changed.notify_all();
    }
}
