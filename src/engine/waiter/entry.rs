//! One waiter of the manager: its state, how it is woken, and when Redis last answered it.

use std::panic::RefUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::lease::HeldLease;
use crate::engine::request::Request;
use crate::engine::waiter::state::WaiterState;
use crate::error::Error;
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};

/// A layer above that has callers wait for one grant together. It has one waiter that asks Redis for
/// the lock, and one that asks for nothing for each caller. It calls nobody that sends.
pub(crate) trait WaiterOwner: Send + Sync + RefUnwindSafe {
    /// The waiter that asks was granted the lock, or has failed. No mutex is held.
    fn on_change(&self, asking: &Arc<WaiterEntry>);
    /// A caller does not wait any more, and has not taken the lease that it was given. No mutex is
    /// held.
    fn on_left(&self, caller: &WaiterEntry, given: Option<Arc<HeldLease>>);
    /// The waiters of the callers that wait together with this waiter, or for it.
    fn callers(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>>;
    /// The position of the waiter of a caller.
    fn position(&self, caller: &WaiterEntry) -> Option<u64>;
}

/// The channel of [`Waiter::ready`](crate::Waiter::ready). It has room for one message: a caller that
/// has not received the last one has yet to look.
struct ReadyChannel {
    sender: Sender<()>,
    receiver: Receiver<()>,
}

/// A waiter: its state, and how it is woken.
pub(crate) struct WaiterEntry {
    pub(crate) request: Arc<Request>,
    pub(crate) state: Mutex<WaiterState>,
    /// Signals a change of `state`. Notified after `state` is unlocked.
    pub(crate) changed: Condvar,
    /// Made when a caller first asks for it, because most never do.
    ready: OnceLock<Box<ReadyChannel>>,
    /// A layer above that this waiter belongs to.
    owner: Option<Arc<dyn WaiterOwner>>,
    /// It asks Redis for nothing: its owner gives it a lease.
    is_unasked: bool,
    /// R4 (lost places): the order in which this process's waiters came. They are enqueued again in
    /// it.
    order: u64,
    /// When Redis last answered about this name, in ns.
    last_reply: AtomicU64,
    /// When Redis was last asked and did not answer, in ns.
    last_unanswered: AtomicU64,
    /// The waiter wants to be woken by the next reply, or by the lack of one.
    wake_on_reply: AtomicBool,
    /// The error with which Redis refused the last sync. The next reply clears it.
    last_refusal: Mutex<Option<Error>>,
}

impl WaiterEntry {
    pub(super) fn new(
        request: Arc<Request>,
        state: WaiterState,
        owner: Option<Arc<dyn WaiterOwner>>,
        order: u64,
        now: Time,
    ) -> WaiterEntry {
        WaiterEntry {
            request,
            is_unasked: state.is_unasked(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            ready: OnceLock::new(),
            owner,
            order,
            last_reply: AtomicU64::new(now.as_nanos()),
            last_unanswered: AtomicU64::new(0),
            wake_on_reply: AtomicBool::new(false),
            last_refusal: Mutex::new(None),
        }
    }

    /// The waiters of this process came in this order.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    /// When Redis last answered. `NEVER` while this process has the lock: there is nothing to ask.
    pub(crate) fn last_reply_at(&self) -> Time {
        Time::from_nanos(self.last_reply.load(Ordering::Acquire))
    }

    pub(crate) fn on_reply(&self, at: Time) {
        self.last_reply.fetch_max(at.as_nanos(), Ordering::AcqRel);
        *self.last_refusal.lock() = None;
        self.wake_if_asked();
    }

    /// The owner, if a caller waits for others than Redis.
    pub(crate) fn owner(&self) -> Option<&Arc<dyn WaiterOwner>> {
        self.owner.as_ref()
    }

    /// Whether it asks Redis for nothing.
    pub(crate) fn is_unasked(&self) -> bool {
        self.is_unasked
    }

    /// The waiters of the callers that wait for this one's grant, or together with it. None if it has
    /// no owner.
    pub(crate) fn callers(&self) -> Vec<Arc<WaiterEntry>> {
        let owner = self.owner.as_ref();
        owner.map_or_else(Vec::new, |owner| owner.callers(self))
    }

    /// 1 is next. `None` if it is not known, or if the wait is over.
    pub(crate) fn position(&self) -> Option<u64> {
        match &self.owner {
            Some(owner) if self.is_unasked => owner.position(self),
            _ => self.state.lock().position(),
        }
    }

    /// It was granted, or has failed. Wakes its thread, or tells its owner.
    pub(crate) fn wake(self: &Arc<Self>) {
        match &self.owner {
            Some(owner) if !self.is_unasked => owner.on_change(self),
            _ => {
                self.changed.notify_one();
                self.send_ready();
            }
        }
    }

    /// The channel that says when a look at this waiter is worth it.
    pub(crate) fn ready(&self) -> &Receiver<()> {
        if let Some(channel) = self.ready.get() {
            return &channel.receiver;
        }
        let channel = self.ready.get_or_init(|| {
            let (sender, receiver) = bounded(1);
            Box::new(ReadyChannel { sender, receiver })
        });
        // A thread that changed the state before this look may have found no channel. A thread that
        // changes it after this look has this mutex later, and finds the channel.
        let is_ready = self.state.lock().is_ready();
        if is_ready {
            self.send_ready();
        }
        &channel.receiver
    }

    /// Whether a caller waits by that channel.
    pub(crate) fn is_watched(&self) -> bool {
        self.ready.get().is_some()
    }

    /// Has a caller look that waits by the channel.
    pub(crate) fn send_ready(&self) {
        if let Some(channel) = self.ready.get() {
            let _ = channel.sender.try_send(());
        }
    }

    /// This process has the lock. Until its owner asks Redis, nobody is silent.
    pub(crate) fn note_held_here(&self) {
        self.last_reply
            .store(Time::NEVER.as_nanos(), Ordering::Release);
    }

    /// The owner asks Redis now.
    pub(crate) fn note_owner_asks(&self, at: Time) {
        let (never, at) = (Time::NEVER.as_nanos(), at.as_nanos());
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self
            .last_reply
            .compare_exchange(never, at, order.0, order.1);
    }

    pub(crate) fn last_unanswered_at(&self) -> Time {
        Time::from_nanos(self.last_unanswered.load(Ordering::Acquire))
    }

    pub(crate) fn on_no_reply(&self, at: Time) {
        self.last_unanswered.store(at.as_nanos(), Ordering::Release);
        self.wake_if_asked();
    }

    /// Asks for one wake-up by the next reply, or by the lack of one. A waiter sleeps through all
    /// other replies: they come once per check period and carry nothing for it.
    pub(crate) fn wake_on_reply(&self) {
        self.wake_on_reply.store(true, Ordering::Release);
    }

    /// Whether the wake-up that was asked for has not come yet.
    pub(crate) fn awaits_reply(&self) -> bool {
        self.wake_on_reply.load(Ordering::Acquire)
    }

    fn wake_if_asked(&self) {
        if self.wake_on_reply.swap(false, Ordering::AcqRel) {
            // The waiter looks at the flag under this mutex. Without it the notification could fall
            // between that look and its sleep, and be missed.
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }

    pub(crate) fn note_refusal(&self, error: Error) {
        *self.last_refusal.lock() = Some(error);
    }

    pub(crate) fn take_last_refusal(&self) -> Option<Error> {
        self.last_refusal.lock().take()
    }
}

/// A fault of a sync, as an error for the waiter.
pub(crate) fn refusal(fault: &StoreFault, waiter: &WaiterEntry, now: Time) -> Error {
    fault
        .clone()
        .into_error(Some(&waiter.request.key), now - waiter.last_reply_at())
}
