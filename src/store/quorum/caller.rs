//! A caller that waits for the answers of several nodes, and how other threads wake it.

use super::ballot::Ballot;
use super::decision::Decision;
use crate::store::clock::{Clock, Time};
use crate::store::{CallResult, OnResult, StoreFault};
use crate::sync::{Condvar, Mutex};

/// The caller of some calls that are put to all nodes. Its ballots outlive its wait: answers that
/// come later still find them here.
pub(super) struct Caller {
    state: Mutex<CallerState>,
    changed: Condvar,
}

struct CallerState {
    ballots: Vec<Ballot>,
    /// Something happened that the caller must look at.
    has_changed: bool,
    is_asked_to_read: bool,
    phase: Phase,
    /// The caller does not wait for the result of its one ballot: this gets it.
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
pub(super) enum Woken {
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

impl Caller {
    pub(super) fn new(ballots: Vec<Ballot>) -> Caller {
        Caller {
            state: Mutex::new(CallerState {
                ballots,
                has_changed: false,
                is_asked_to_read: false,
                phase: Phase::Busy,
                on_result: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Changes a ballot. If that decides it, or needs the caller, this wakes the caller.
    pub(super) fn update(&self, ballot: usize, change: impl FnOnce(&mut Ballot)) -> Wake {
        let mut state = self.state.lock();
        let ballot = &mut state.ballots[ballot];
        change(ballot);
        let is_open = ballot.decision() == Decision::Open;
        if is_open && !ballot.has_unsent() {
            return Wake::Nobody;
        }
        if let Some(on_result) = state.on_result.take_if(|_| !is_open) {
            let result = state.ballots[0].result(StoreFault::NotReady);
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

    fn wake(&self, state: &mut CallerState) -> Wake {
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

    /// Lets the caller's own thread look at its ballots.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut Vec<Ballot>) -> R) -> R {
        look(&mut self.state.lock().ballots)
    }

    /// The caller leaves its one ballot. Gives the handler back if the ballot is decided.
    pub(super) fn leave(&self, on_result: OnResult) -> Option<(OnResult, CallResult)> {
        let mut state = self.state.lock();
        let ballot = &mut state.ballots[0];
        ballot.stop_sending();
        if ballot.decision() == Decision::Open {
            state.on_result = Some(on_result);
            return None;
        }
        Some((on_result, ballot.result(StoreFault::NotReady)))
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

    /// Sleeps after [`Caller::begin_sleep`].
    pub(super) fn sleep(&self, clock: &Clock, until: Time) -> Woken {
        let mut state = self.state.lock();
        loop {
            let woken = if std::mem::take(&mut state.is_asked_to_read) {
                Woken::ToRead
            } else if std::mem::take(&mut state.has_changed) {
                Woken::Changed
            } else if clock.now() >= until {
                Woken::TimedOut
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
