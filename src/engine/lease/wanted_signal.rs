//! The flag and the channel on which a lease says that somebody waits for its lock.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::sync::{AtomicBool, fence};

/// The state behind [`Lease::wanted`](crate::Lease::wanted). The channel is made when the
/// guard's owner first asks for it.
#[derive(Default)]
pub(super) struct WantedSignal {
    is_set: AtomicBool,
    is_sent: AtomicBool,
    channel: OnceLock<Box<(Sender<()>, Receiver<()>)>>,
}

impl WantedSignal {
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Somebody waits. It stays so.
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        // Pairs with the fence in `receiver`. At least one of the two threads sees the other.
        fence(Ordering::SeqCst);
        self.send();
    }

    pub(super) fn receiver(&self) -> &Receiver<()> {
        let (_, receiver) = &**self.channel.get_or_init(|| Box::new(bounded(1)));
        fence(Ordering::SeqCst);
        if self.is_set() {
            self.send();
        }
        receiver
    }

    fn send(&self) {
        if let Some(channel) = self.channel.get()
            && !self.is_sent.swap(true, Ordering::Relaxed)
        {
            // The one message of this channel, which has room for it.
            let _ = channel.0.try_send(());
        }
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    #[test]
    fn channel_has_a_message_whichever_came_first() {
        let early = WantedSignal::default();
        let receiver = early.receiver().clone();
        assert!(receiver.try_recv().is_err());
        early.set();
        assert!(receiver.try_recv().is_ok());
        early.set();
        assert!(early.receiver().try_recv().is_err(), "it is sent once");
        let late = WantedSignal::default();
        late.set();
        assert!(late.is_set() && late.receiver().try_recv().is_ok());
    }
}
