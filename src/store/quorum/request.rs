//! A request whose caller waits for the answers of several nodes, and how other threads wake it.

use super::decision::Decision;
use super::proposal::Proposal;
use crate::store::clock::{Clock, Time};
use crate::store::{CallResult, OnResult};
use crate::sync::{Condvar, Mutex};

/// Some calls that are put to all nodes for one caller. The proposals outlive its wait: answers that
/// come later still find them here.
pub(super) struct PendingRequest {
    state: Mutex<RequestState>,
    changed: Condvar,
}

struct RequestState {
    proposals: Vec<Proposal>,
    /// Something happened that the caller must look at.
    has_changed: bool,
    is_asked_to_read: bool,
    phase: Phase,
    /// The caller does not wait for the result of its one proposal: this gets it.
    on_result: Option<OnResult>,
}

/// The activity of the caller's own thread.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// It looks for changes before it waits.
    Busy,
    Asleep,
    Polling,
}

/// Why a caller stopped sleeping.
#[derive(PartialEq)]
pub(super) enum WakeReason {
    Changed,
    ToRead,
    TimedOut,
}

/// How to wake a thread that waits for sockets.
#[derive(PartialEq)]
pub(super) enum Wake {
    Nobody,
    /// The caller is the reader, so its wait for sockets must end.
    Reader,
}

impl PendingRequest {
    pub(super) fn new(proposals: Vec<Proposal>) -> PendingRequest {
        PendingRequest {
            state: Mutex::new(RequestState {
                proposals,
                has_changed: false,
                is_asked_to_read: false,
                phase: Phase::Busy,
                on_result: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Changes a proposal. If that decides it, or needs the caller, this wakes the caller.
    pub(super) fn update(&self, proposal: usize, change: impl FnOnce(&mut Proposal)) -> Wake {
        let mut state = self.state.lock();
        let proposal = &mut state.proposals[proposal];
        change(proposal);
        let is_open = proposal.decision() == Decision::Open;
        if is_open && !proposal.has_unsent() {
            return Wake::Nobody;
        }
        if let Some(on_result) = state.on_result.take_if(|_| !is_open) {
            let result = state.proposals[0].result();
            drop(state);
            on_result(result);
            return Wake::Nobody;
        }
        self.wake(&mut state)
    }

    /// A connection was opened, or could not be.
    pub(super) fn note_change(&self) -> Wake {
        self.wake(&mut self.state.lock())
    }

    fn wake(&self, state: &mut RequestState) -> Wake {
        state.has_changed = true;
        match state.phase {
            Phase::Busy => Wake::Nobody,
            Phase::Asleep => {
                self.changed.notify_one();
                Wake::Nobody
            }
            Phase::Polling => Wake::Reader,
        }
    }

    /// Lets the caller's own thread look at its proposals.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut Vec<Proposal>) -> R) -> R {
        look(&mut self.state.lock().proposals)
    }

    /// The caller leaves its one proposal. Gives the handler back if the proposal is decided.
    pub(super) fn leave(&self, on_result: OnResult) -> Option<(OnResult, CallResult)> {
        let mut state = self.state.lock();
        let proposal = &mut state.proposals[0];
        proposal.stop_sending();
        if proposal.decision() == Decision::Open {
            state.on_result = Some(on_result);
            return None;
        }
        Some((on_result, proposal.result()))
    }

    /// Takes note that it has looked. False if something has changed since it did last.
    pub(super) fn begin_polling(&self) -> bool {
        self.begin(Phase::Polling)
    }

    pub(super) fn end_polling(&self) {
        self.state.lock().phase = Phase::Busy;
    }

    pub(super) fn begin_sleep(&self) -> bool {
        self.begin(Phase::Asleep)
    }

    fn begin(&self, phase: Phase) -> bool {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.has_changed) {
            return false;
        }
        state.phase = phase;
        true
    }

    /// Sleeps after [`begin_sleep`](PendingRequest::begin_sleep).
    pub(super) fn sleep(&self, clock: &Clock, until: Time) -> WakeReason {
        let mut state = self.state.lock();
        loop {
            let woken = if std::mem::take(&mut state.is_asked_to_read) {
                WakeReason::ToRead
            } else if std::mem::take(&mut state.has_changed) {
                WakeReason::Changed
            } else if clock.now() >= until {
                WakeReason::TimedOut
            } else {
                clock.wait(&self.changed, &mut state, until);
                continue;
            };
            state.phase = Phase::Busy;
            return woken;
        }
    }

    /// Asks a caller that sleeps to be the reader. False if it does not sleep.
    pub(super) fn ask_to_read(&self) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Asleep {
            return false;
        }
        state.is_asked_to_read = true;
        self.changed.notify_one();
        true
    }
}
