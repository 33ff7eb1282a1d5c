//! Whether messages from other processes reach this one, and who is told when one of them waits for a
//! lease of this process.

use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::lease::HeldLease;
use crate::key::Key;
use crate::script::Outcome;
use crate::store::clock::Time;
use crate::store::{Answer, Troubles};
use crate::sync::Mutex;

/// A layer above that is told when somebody waits for a lease of this process. No mutex is held when
/// it is called. It sends nothing and does not block.
pub(crate) trait WantedListener: Send + Sync + RefUnwindSafe {
    /// Somebody waits behind the grant with this fence, or behind an older one. This may come often, late,
    /// and before the grant itself is known here.
    fn on_wanted(&self, key: &Key, fence: u64);

    /// The subscription has ended: until the next one, no such message comes.
    fn on_unheard(&self);

    /// Whether this process has leases about which such a message may come.
    fn is_listening(&self) -> bool;
}

/// The manager's knowledge of its subscription, and of troubles with its servers.
///
/// R17 (subscription): a subscription can die unseen. It is *heard* for a while after it was proven
/// alive, and not any longer. A process that is not heard must not count on messages.
pub(crate) struct Hearing {
    /// 2 P + T: a PING goes out within P after the last one, and has its reply within T, or fails
    /// within P. So a subscription that is alive is proven again before that.
    lasts: Duration,
    /// P: how long the thread that receives messages waits before it looks around.
    period: Duration,
    troubles: Arc<Troubles>,
    listener: Mutex<Option<Weak<dyn WantedListener>>>,
    /// In ns. 0: there is no subscription.
    heard_until: AtomicU64,
    /// Until when somebody wants the subscription proven, in ns.
    proof_until: AtomicU64,
}

impl Hearing {
    pub(super) fn new(client: &Client) -> Hearing {
        let config = client.config();
        Hearing {
            lasts: config.check_period * 2 + config.command_timeout,
            period: config.check_period,
            troubles: client.store().troubles(),
            listener: Mutex::new(None),
            heard_until: AtomicU64::new(0),
            proof_until: AtomicU64::new(0),
        }
    }

    /// Sets the listener, in place of the one before.
    pub(crate) fn set_listener(&self, listener: Weak<dyn WantedListener>) {
        *self.listener.lock() = Some(listener);
    }

    /// Whether the subscription was proven alive lately.
    pub(crate) fn is_heard(&self, now: Time) -> bool {
        now < self.heard_until()
    }

    /// When the last proof is too old.
    pub(crate) fn heard_until(&self) -> Time {
        Time::from_nanos(self.heard_until.load(Ordering::Acquire))
    }

    /// Has the subscription proven alive for a while, as if the listener listened. The first proof comes
    /// within P and a round trip, if there is a subscription. True: that may be too late, unless the
    /// thread that receives messages is woken. While callers go on asking, only the first is told so.
    #[must_use]
    pub(super) fn ask_for_proof(&self, now: Time) -> bool {
        let until = (now + self.lasts).as_nanos();
        let was_until = self.proof_until.fetch_max(until, Ordering::Relaxed);
        was_until <= now.as_nanos() && !self.is_heard(now + self.period)
    }

    /// The mark of the last trouble. It gets larger whenever something may have been missed or moved:
    /// the subscription ended, a connection failed, or other servers serve from now on. See
    /// [`HeldLease::is_confirmed`].
    pub(crate) fn troubles(&self) -> u64 {
        self.troubles.last()
    }

    pub(crate) fn note_trouble(&self) {
        self.troubles.note();
    }

    /// A message says that somebody waits behind the grant with this fence.
    pub(super) fn tell_wanted(&self, key: &Key, fence: u64) {
        if let Some(listener) = self.listener() {
            listener.on_wanted(key, fence);
        }
    }

    /// The reply to a renewal says whether somebody waits. A message that said so may have been lost.
    pub(super) fn on_renewed(&self, lease: &HeldLease, answer: &Answer) {
        let is_wanted = matches!(answer.reply.outcome, Outcome::Renewed { waiting: true, .. });
        if is_wanted && lease.request.hears {
            self.tell_wanted(&lease.request.key, lease.fence());
        }
    }

    /// Whether a PING goes out although nobody here waits for a grant.
    pub(super) fn needs_proof(&self, now: Time) -> bool {
        now.as_nanos() < self.proof_until.load(Ordering::Relaxed)
            || self
                .listener()
                .is_some_and(|listener| listener.is_listening())
    }

    /// No message was missed until this moment.
    pub(super) fn note_proof(&self, alive_at: Time) {
        let until = (alive_at + self.lasts).as_nanos();
        self.heard_until.fetch_max(until, Ordering::AcqRel);
    }

    /// The subscription has ended, or never began.
    pub(super) fn note_end(&self) {
        if self.heard_until.load(Ordering::Acquire) != 0 {
            self.note_trouble();
            self.heard_until.store(0, Ordering::Release);
            if let Some(listener) = self.listener() {
                listener.on_unheard();
            }
        }
    }

    fn listener(&self) -> Option<Arc<dyn WantedListener>> {
        self.listener.lock().as_ref()?.upgrade()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
