//! The channel on which a lease reports its loss.

use std::sync::OnceLock;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::loss::{Loss, LossWatcher};
use crate::sync::Mutex;

/// The channel of [`HeldLease::lost`](crate::Lease::lost). It is made when the guard's owner
/// first asks for it, because a channel costs more than the rest of a lease.
#[derive(Default)]
pub(super) struct LostSignal {
    receiver: OnceLock<Receiver<Loss>>,
    state: Mutex<SignalState>,
}

/// | state    | meaning                                            | becomes                   |
/// |----------|----------------------------------------------------|---------------------------|
/// | Open     | no loss, and nobody has asked for the channel      | Watched, Closed           |
/// | Watched  | no loss; the loss will be sent on the channel      | Reported, Closed          |
/// | Reported | the loss was found; its finder counts it and sends it | Closed                 |
/// | Closed   | the lease was released, or nobody will ever have it | –                        |
#[derive(Default)]
enum SignalState {
    #[default]
    Open,
    Watched(Sender<Loss>),
    Reported,
    Closed,
}

impl LostSignal {
    pub(super) fn receiver(&self) -> &Receiver<Loss> {
        match self.receiver.get() {
            Some(receiver) => receiver,
            None => self.watched(&mut self.state.lock()),
        }
    }

    /// Makes the channel, if it is not there. Only a caller that has locked the state does so.
    fn watched(&self, state: &mut SignalState) -> &Receiver<Loss> {
        self.receiver.get_or_init(|| {
            let (sender, receiver) = bounded(1);
            if matches!(state, SignalState::Open) {
                *state = SignalState::Watched(sender);
            }
            receiver
        })
    }

    /// Notes the loss. The one call that did so gets the watcher, which it has to tell. A thread that
    /// asks for the channel in between hears of the loss when the watcher is told, and no earlier.
    pub(super) fn report(&self) -> Option<LossWatcher> {
        let mut state = self.state.lock();
        self.watched(&mut state);
        if matches!(&*state, SignalState::Closed) {
            return None;
        }
        match std::mem::replace(&mut *state, SignalState::Reported) {
            SignalState::Watched(sender) => Some(LossWatcher::on(sender)),
            _ => None,
        }
    }

    /// Whether somebody has asked for the channel.
    pub(super) fn is_watched(&self) -> bool {
        self.receiver.get().is_some()
    }

    /// Reports nothing from now on, and disconnects the channel.
    pub(super) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), SignalState::Closed);
        // The sender is dropped here, after the mutex is unlocked.
        drop(before);
    }

    #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
    pub(super) fn is_reported(&self) -> bool {
        matches!(&*self.state.lock(), SignalState::Reported)
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::loss::LossReason;

    #[test]
    fn signal_reports_once_and_then_disconnects() {
        let loss = Loss {
            lock: "a".into(),
            fence: 1,
            reason: LossReason::NotOwner,
        };
        let early = LostSignal::default();
        let receiver = early.receiver().clone();
        let watcher = early.report().expect("it is the first");
        assert!(early.report().is_none());
        watcher.tell(&loss);
        assert_eq!(receiver.recv(), Ok(loss.clone()));
        assert!(receiver.recv().is_err());
        let late = LostSignal::default();
        let watcher = late.report().expect("it is the first");
        assert!(
            late.receiver().is_empty(),
            "it heard of a loss that nobody told"
        );
        watcher.tell(&loss);
        assert_eq!(late.receiver().recv(), Ok(loss));
        assert!(late.receiver().recv().is_err());
        let clean = LostSignal::default();
        let receiver = clean.receiver().clone();
        clean.close();
        assert!(receiver.recv().is_err());
    }
}
