//! A try whose lock is taken, by an owner that was told and may let go at once. It waits for a moment.

use std::sync::Arc;
use std::time::Duration;

use super::{Acquiring, AtDeadline, Caller, Entered};
use crate::engine::lease::HeldLease;
use crate::engine::request::Request;
use crate::error::{Error, Result, Step};
use crate::logging::Logger;
use crate::store::clock::Time;

/// A message to the owner and its release take about two round trips, and some wake-ups.
const A_MOMENT: Duration = Duration::from_millis(50);

impl Acquiring {
    /// Until when such a try waits.
    pub(crate) fn soon(&self) -> Time {
        let config = self.client.config();
        self.client.now() + config.command_timeout.min(A_MOMENT)
    }

    /// Waits for the lock until `until`. `None`: its owner did not let go of it. Blocks for at most one
    /// command timeout longer.
    ///
    /// The caller has its answer already: others have the lock. So it does not fail if nobody can
    /// queue. Unlike [`Acquiring::acquire`], this does not say that the thread waits for itself: none lasts longer.
    pub(crate) fn acquire_soon(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        if !self.client.config().may_wait(request.fixed, request.ttl) {
            return Ok(None);
        }
        match self.wait_until(request, until) {
            // The caller learns of a grant that was not acknowledged.
            Err(
                error @ Error::Unavailable {
                    step: Step::Replicas,
                    ..
                },
            ) => Err(error),
            Err(error @ (Error::Unavailable { .. } | Error::Refused { .. })) => {
                let name = &request.key.name;
                log::debug!(
                    logger: Logger,
                    "{name:?} is taken, and a try could not wait for a moment: {error}"
                );
                Ok(None)
            }
            end => end,
        }
    }

    fn wait_until(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Time,
    ) -> Result<Option<Arc<HeldLease>>> {
        let queued = match self.enter(request, until, Caller::Waits)? {
            Entered::Granted(lease) => return Ok(Some(lease)),
            Entered::NotYet => return Ok(None),
            Entered::Queued(queued) => queued,
        };
        match queued.wait_on(until, AtDeadline::Cancel) {
            Ok(None) => queued.cancel(until),
            Ok(lease) => Ok(lease),
            Err(error) => {
                queued.cancel_in_background();
                Err(error)
            }
        }
    }
}
