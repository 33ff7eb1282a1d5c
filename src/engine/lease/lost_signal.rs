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

/// | state   | meaning                                          | becomes              |
/// |---------|--------------------------------------------------|----------------------|
/// | Open    | no loss, and nobody has asked for the channel    | Watched, Lost, Closed |
/// | Watched | no loss; the loss will be sent on the channel    | Lost, Closed         |
/// | Lost    | the loss was reported                            | Closed               |
/// | Closed  | the lease was released, or nobody will ever have it | –                 |
#[derive(Default)]
enum SignalState {
    #[default]
    Open,
    Watched(Sender<Loss>),
    Lost(Loss),
    Closed,
}

impl LostSignal {
    pub(super) fn receiver(&self) -> &Receiver<Loss> {
        self.receiver.get_or_init(|| {
            let (sender, receiver) = bounded(1);
            let mut state = self.state.lock();
            match &*state {
                SignalState::Open | SignalState::Watched(_) => {
                    *state = SignalState::Watched(sender);
                }
                // The channel is new and has room for one loss, so this cannot fail.
                SignalState::Lost(loss) => drop(sender.try_send(loss.clone())),
                SignalState::Closed => {}
            }
            receiver
        })
    }

    /// Notes the loss. The one call that did so gets the watcher, which it has to tell.
    pub(super) fn report(&self, loss: &Loss) -> Option<LossWatcher> {
        let mut state = self.state.lock();
        let before = match &*state {
            SignalState::Open | SignalState::Watched(_) => {
                std::mem::replace(&mut *state, SignalState::Lost(loss.clone()))
            }
            SignalState::Lost(_) | SignalState::Closed => return None,
        };
        Some(match before {
            SignalState::Watched(sender) => LossWatcher::on(sender),
            _ => LossWatcher::default(),
        })
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
        matches!(&*self.state.lock(), SignalState::Lost(_))
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
            reason: LossReason::Taken,
        };
        let early = LostSignal::default();
        let receiver = early.receiver().clone();
        let watcher = early.report(&loss).expect("it is the first");
        assert!(early.report(&loss).is_none());
        watcher.tell(&loss);
        assert_eq!(receiver.recv(), Ok(loss.clone()));
        assert!(receiver.recv().is_err());
        let late = LostSignal::default();
        assert!(late.report(&loss).is_some());
        assert_eq!(late.receiver().recv(), Ok(loss));
        assert!(late.receiver().recv().is_err());
        let clean = LostSignal::default();
        let receiver = clean.receiver().clone();
        clean.close();
        assert!(receiver.recv().is_err());
    }
}
