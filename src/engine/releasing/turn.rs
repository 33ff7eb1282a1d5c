//! How a guard's turn ends: the lock passes to the next member of the line, or the line's grant is
//! released.

use std::slice;
use std::sync::Arc;

use super::{Releasing, WantResult, release_call};
use crate::engine::client::single_result;
use crate::engine::lease::Lease;
use crate::engine::line::{Ended, Leaving};
use crate::engine::waiter::WaiterEntry;
use crate::engine::waiting::EnqueueOutcome;
use crate::error::{Error, Result};
use crate::script::{Call, Mode, Wait};
use crate::store::clock::Time;
use crate::store::{CallResult, StoreFault};

impl Releasing {
    /// Ends the turn of a guard. Passes the lock on if it may, without any I/O. Else it is released,
    /// and the line's new place goes out in the same write before the release. Blocks as
    /// [`Releasing::release`].
    pub(super) fn release_turn(
        self: &Arc<Self>,
        turn: &Arc<Lease>,
        mode: Mode,
        want: WantResult,
    ) -> Result<()> {
        let started = self.client.now();
        let ended = self.lines.end_turn(turn, mode, started)?;
        if mode != Mode::Unused {
            self.client.meter().on_released(turn.held_for(started));
        }
        self.finish_turn(turn, ended, started, want)
    }

    /// Does what is left to do after a turn: wakes the next member, or sends the release.
    pub(in crate::engine) fn finish_turn(
        self: &Arc<Self>,
        turn: &Arc<Lease>,
        ended: Ended,
        started: Time,
        want: WantResult,
    ) -> Result<()> {
        match ended {
            Ended::PassedTo(member, next) => {
                self.grants.on_passed(&member, &next);
                Ok(())
            }
            Ended::Left(leaving) => self
                .leave(&leaving, started, want)
                .map_err(|error| for_turn(error, turn)),
            Ended::Lost(reason) => {
                // The renewal thread finds no turn with the tenure. So the loss is counted here, like
                // one that the reply to a release reports.
                self.client.meter().on_found_lost(reason);
                let loss = turn.loss_for(reason);
                Err(Error::Lost { loss })
            }
        }
    }

    fn leave(self: &Arc<Self>, leaving: &Leaving, started: Time, want: WantResult) -> Result<()> {
        let Leaving {
            tenure,
            mode,
            place,
        } = leaving;
        let release = release_call(tenure, *mode);
        let result = match place {
            Some(place) => Some(self.send_place_and_release(place, &release, started)),
            None => self
                .send_releases(&[tenure], slice::from_ref(&release), started, want)
                .pop()
                .flatten(),
        };
        let Some(result) = result else {
            return Ok(());
        };
        self.finish_release(tenure, &release, started, result.answer, want)()
    }

    /// Sends both in one write, in this order, and waits for both replies. So waiters that were
    /// queued before come first, and no try can come between. There is one exception: if the server
    /// has forgotten the script of the acquire, but knows that of the release, the acquire comes
    /// behind. Then the line only loses its order. To send the source each time would cost more
    /// than that.
    pub(super) fn send_place_and_release(
        &self,
        place: &Arc<WaiterEntry>,
        release: &Call,
        started: Time,
    ) -> CallResult {
        let deadlines = self.client.at_once(started);
        // Without a token, nobody wants the place any more.
        let Some(token) = self.waiting.token_to_send(place, started) else {
            return single_result(self.client.store().run(slice::from_ref(release), deadlines));
        };
        let acquire = place.request.acquire(token, Wait::Yes);
        let calls = [acquire, release.clone()];
        let mut results = self.names.acquire_or_vacate(&calls, deadlines);
        let released = results.pop();
        let queued = single_result(results);
        match self.waiting.on_acquire_reply(place, &calls[0], queued) {
            EnqueueOutcome::Done => {}
            EnqueueOutcome::More | EnqueueOutcome::Again | EnqueueOutcome::RetryLater(_) => {
                self.grants.send_place_in_background(place);
            }
            EnqueueOutcome::Rejected(error) => {
                self.waiting.on_waiter_failed(place, &error);
            }
        }
        released.unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
    }
}

/// The release of a grant failed, and its last turn was this one.
fn for_turn(error: Error, turn: &Lease) -> Error {
    match error {
        Error::Lost { loss } => Error::Lost {
            loss: turn.loss_for(loss.reason),
        },
        other => other,
    }
}
