//! Locks that live in this process: the same scripts, over a keyspace in memory.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Memory`]: the user's handle |
//! | `session` | [`Session`]: one manager's way to the server |
//! | `memory_server` | what all handles and sessions share: clock, faults, subscribers |
//! | `movable_clock` | a clock that can be put forward, or goes forward by itself |
//! | `lapse` | how the leases of a name are ended |
//! | `server` | runs commands and scripts, one at a time |
//! | `interpreter`, `packing` | Lua, and Redis's library `struct` for it |
//! | `server_state` | what commands read and write |
//! | `keyspace` | the keys, and the commands on them |

mod interpreter;
pub(crate) mod keyspace;
mod lapse;
mod memory_server;
mod movable_clock;
mod packing;
pub(crate) mod server;
mod server_state;
mod session;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use memory_server::MemoryServer;

pub(crate) use session::Session;

/// An in-memory replacement for a Redis server.
///
/// A handle: clones share one server. Each manager that is built on it behaves like a process of
/// its own: two managers exclude each other, wait in one queue, and learn of each other's releases
/// only by messages.
///
/// Its clock runs on with the host's. [`advance`](Memory::advance) puts it forward, and in
/// [`fast_forward`](Memory::fast_forward) it goes forward by itself. Server and managers use this
/// clock alike, so leases, renewals, waits and deadlines all follow it. The clock never stops and
/// never goes back. A step of the server's clock alone is a fault, which a test can provoke.
///
/// ```
/// use fairlock::{LockManager, memory::Memory};
///
/// let memory = Memory::new();
/// let (ours, theirs) = (LockManager::connect(&memory)?, LockManager::connect(&memory)?);
/// let guard = ours.lock("invoices:42")?;
/// assert!(theirs.try_lock("invoices:42")?.is_none());
///
/// memory.lapse("invoices:42");
/// assert!(theirs.try_lock("invoices:42")?.is_some());
/// assert!(guard.renew().is_err(), "it was lost");
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Memory(Arc<MemoryServer>);

/// As the handles of a manager: see the engine.
impl UnwindSafe for Memory {}
impl RefUnwindSafe for Memory {}

/// The server's clock can be stepped to the year 2100. With a hundred years of
/// [`advance`](Memory::advance), the scripts' numbers are exact then.
const LATEST: Duration = Duration::from_secs(130 * 365 * 24 * 3600);

/// Something that goes wrong once. See [`Memory::inject`].
#[non_exhaustive]
#[derive(Debug)]
pub enum Fault {
    /// The next request does not arrive. Its caller gets no reply and waits until the command
    /// timeout.
    LoseRequest,
    /// The next request is carried out, but its caller gets no reply and waits until the command
    /// timeout.
    LoseReply,
    /// The next request is carried out at once, and its reply takes this long. If that is longer than
    /// the command timeout, it is as if the reply were lost. Requests of other callers are not
    /// delayed.
    DelayReply(Duration),
    /// The next request is carried out, and the connection ends before the reply. The manager sends
    /// it again at once, and the second reply equals the first.
    Disconnect,
    /// The next request is not carried out. The server refuses it with this error, for instance
    /// `"READONLY You can't write against a read only replica."`.
    Refuse(String),
    /// The next message that a lock was granted is lost.
    LoseMessage,
}

impl Memory {
    /// A server that holds no lock.
    pub fn new() -> Memory {
        Memory(Arc::new(MemoryServer::new()))
    }

    /// Puts the clock forward, for the server and for all managers, and wakes every thread that
    /// sleeps by it.
    ///
    /// The effect is that of suspending all hosts and the server for that long: leases that end in
    /// that time are lost, renewals that were due are late, and waits whose deadline has passed
    /// end. To let more than a TTL pass while locks are held, go in steps of a third of the TTL;
    /// otherwise the holders lose them. The clock goes a hundred years forward in all, and no
    /// further.
    ///
    /// Returns when every manager's renewal thread has done what was due by then: its renewals have
    /// replies, and its losses are reported. That takes microseconds. If a thread waits for a reply
    /// that was lost, it takes at most one second of the host's time. `advance` wakes your own
    /// threads too but does not wait for them, and it cannot know that one of them is about to ask
    /// for a lock. To see that such a thread waits in a queue, call
    /// [`inspect`](crate::LockManager::inspect) on another manager.
    pub fn advance(&self, by: Duration) {
        self.0.movable.advance(by);
    }

    /// Steps the server's clock forward, and no other: as if somebody had set the clock of its host.
    /// Leases end that much early in Redis, and fences rise by as much. Holders learn of it by their
    /// next renewal. From [`advance`](Memory::advance) it differs in that no time passes.
    /// It goes to the year 2100, and no further.
    pub fn step_server_clock_forward(&self, by: Duration) {
        let latest = micros(LATEST);
        self.0
            .step_clock(|began| began.saturating_add(micros(by)).min(latest.max(began)));
    }

    /// Steps the server's clock back, and no other, but not to before 1970. Fences still rise. The
    /// lease of a holder that is dead may last for one TTL more.
    pub fn step_server_clock_back(&self, by: Duration) {
        self.0.step_clock(|began| began.saturating_sub(micros(by)));
    }

    /// Runs `work`, and does not let it wait: whenever it waits in a call of this crate, the clock
    /// goes forward to the next moment at which something is due. So a test reaches deadlines
    /// without a second thread that calls [`advance`](Memory::advance).
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use fairlock::{LockManager, memory::Memory};
    ///
    /// let memory = Memory::new();
    /// let (ours, theirs) = (LockManager::connect(&memory)?, LockManager::connect(&memory)?);
    /// let guard = theirs.lock("invoices:42")?;
    /// let started = Instant::now();
    /// let minute = Duration::from_secs(60);
    /// let waited = memory.fast_forward(|| ours.try_lock_for("invoices:42", minute))?;
    /// assert!(waited.is_none());
    /// assert!(guard.is_held(), "it was renewed all the time");
    /// assert!(started.elapsed() < minute, "the minute passed by the clock of the store alone");
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// The clock goes forward only while all of these sleep: the thread of `work`, other threads in
    /// a `fast_forward` of this store, and the threads of all managers on it. So renewals are in
    /// time, each message arrives, and `on_lost` has returned before the clock goes on. It goes
    /// from one due time to the next: a renewal, a check of a queue, a deadline. A minute of waiting
    /// has about a hundred of them. It took 30 to 150 ms of the host's time on two cores, without
    /// optimisation.
    ///
    /// While `work` does something else, the clock runs with the host's. That includes a sleep, and a
    /// wait for the channel of [`lost`](crate::Lease::lost). It does not wait for other
    /// threads of your test: to one that works while `work` waits, hours may pass. A wait that
    /// nothing ever ends, as for a lock that this thread holds itself, does not return.
    ///
    /// Blocks for as long as `work` runs. In a call inside `work` it changes nothing.
    pub fn fast_forward<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.movable.fast_forward(work)
    }

    /// Closes all connections and refuses new ones, like a Redis server that has crashed. The
    /// server keeps its data.
    ///
    /// A `try_lock` fails at once, a `lock` after the outage limit. An `unlock` waits for one
    /// command timeout in case the server comes back. So does dropping the last handle of a manager
    /// that has something to release.
    pub fn go_down(&self) {
        let mut state = self.0.state.lock();
        state.is_down = true;
        state.server.state().listeners.clear();
        // A thread that listens finds that its sender is gone. That wakes it, so unlock first.
        let gone = std::mem::take(&mut state.subscribers);
        drop(state);
        drop(gone);
    }

    /// Accepts connections again. New calls succeed at once. Work in the background goes on after a
    /// pause of at most 500 ms, or after an [`advance`](Memory::advance) by as much.
    pub fn come_back(&self) {
        self.0.state.lock().is_down = false;
    }

    /// Deletes all keys, and with them every lock and every queue. Holders learn of it at their
    /// next renewal ([`LossReason::NotOwner`](crate::LossReason::NotOwner)). Waiters are queued again
    /// within a check period.
    pub fn flush_all(&self) {
        self.0.state.lock().server.state().keyspace = Default::default();
    }

    /// Ends a lease as if its holder had crashed, or had been stopped for its TTL, and another
    /// client had noticed. A [`hold_at_least`](crate::LockOptions::hold_at_least) ends with it, which in
    /// Redis outlasts a crash. For a semaphore or a reader/writer lock, ends all leases of the name.
    /// Then the first waiter has the lock, or the lock is free. Ends the leases of the name in all
    /// prefixes. Returns whether there was a lease to end.
    ///
    /// The holder does not know yet. Its guard's `is_held` stays true until the holder learns of
    /// the loss: at its next renewal (at most a third of the TTL later;
    /// [`advance`](Memory::advance) gets there) or by its own `renew` or `unlock`. Until then two
    /// guards can be held, like after a [`force_release`](crate::LockManager::force_release).
    /// Unless the lease was a fixed one, its manager counts as dead for this name: its waiters are
    /// passed over, and come back to the end of the queue within a check period.
    pub fn lapse(&self, name: impl AsRef<str>) -> bool {
        lapse::lapse(&self.0, name.as_ref())
    }

    /// Makes something go wrong once: at the next request of any manager, requests of its threads
    /// included, or at the next message. Several faults happen one by one, in the order in which
    /// they were injected.
    ///
    /// An `inspect` is a request as well. If a test must poll until a fault has happened, let it
    /// look at [`stats`](crate::LockManager::stats). `Debug` shows the faults that have not
    /// happened yet. A refusal that may pass by itself ([`Error::Refused`](crate::Error::Refused)) is
    /// retried, so a single one is seldom visible.
    pub fn inject(&self, fault: Fault) {
        self.0.state.lock().faults.push_back(fault);
    }

    /// Runs one Redis command, for tests that look at the stored data, or damage it. Works also
    /// while the server is [down](Memory::go_down), and no injected fault applies to it. An error is
    /// the server's, in its words.
    #[cfg(any(test, feature = "unstable-servers"))]
    #[doc(hidden)]
    pub fn run_command(&self, words: &[&str]) -> Result<redis::Value, String> {
        self.0.run(&server::bytes_of(words))
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        let keys = state.server.state().keyspace.len();
        f.debug_struct("Memory")
            .field("keys", &keys)
            .field("is_down", &state.is_down)
            .field("faults", &state.faults)
            .finish_non_exhaustive()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
