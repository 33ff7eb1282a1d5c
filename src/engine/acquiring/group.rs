//! Several locks at once, one after the other: those that are held so far must not be lost meanwhile.

use std::sync::Arc;

use super::Acquiring;
use crate::engine::lease::{HeldLease, first_lost};
use crate::engine::releasing::Releasing;
use crate::engine::request::Request;
use crate::error::{Error, Result};
use crate::store::clock::Time;

impl Acquiring {
    /// Takes all locks, one after the other. `None` if some were not free until `until`. If one
    /// that is held already is lost, the result is that loss. After `None` and after an error none
    /// is kept.
    ///
    /// The requests must be in the same order for all callers. Otherwise two callers could each
    /// hold a lock that the other waits for. Blocks for at most two command timeouts longer than
    /// `until`, the second to release those it got.
    pub(crate) fn acquire_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        until: Time,
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        self.take_each(requests, |request, so_far| {
            self.acquire(request, so_far, until)
        })
    }

    /// Takes all locks, one after the other, as [`Acquiring::acquire_soon`] does one. After `None` and
    /// after an error none is kept.
    pub(crate) fn acquire_all_soon(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        let until = self.soon();
        self.take_each(requests, |request, _| self.acquire_soon(request, until))
    }

    /// Takes each of these locks. If one is not taken, the others are released.
    fn take_each(
        &self,
        requests: &[Arc<Request>],
        take: impl Fn(&Arc<Request>, &[Arc<HeldLease>]) -> Result<Option<Arc<HeldLease>>>,
    ) -> Result<Option<Vec<Arc<HeldLease>>>> {
        let mut taken = PartOfGroup {
            releasing: &self.releasing,
            leases: Vec::with_capacity(requests.len()),
        };
        for request in requests {
            let Some(lease) = take(request, &taken.leases)? else {
                return Ok(None);
            };
            taken.leases.push(lease);
            check_group_held(&taken.leases, self.client.now())?;
        }
        Ok(Some(std::mem::take(&mut taken.leases)))
    }
}

/// The members of a group that are held so far. Dropping it releases them.
struct PartOfGroup<'a> {
    releasing: &'a Arc<Releasing>,
    leases: Vec<Arc<HeldLease>>,
}

impl Drop for PartOfGroup<'_> {
    fn drop(&mut self) {
        self.releasing.abandon_all(&self.leases);
    }
}

/// When the first of these leases ends if none of them is renewed any more.
pub(super) fn earliest_deadline(leases: &[Arc<HeldLease>], now: Time) -> Time {
    let ends = leases.iter().map(|lease| now + lease.remaining(now));
    ends.min().unwrap_or(Time::NEVER)
}

pub(super) fn check_group_held(leases: &[Arc<HeldLease>], now: Time) -> Result<()> {
    first_lost(leases, now).map_or(Ok(()), |loss| Err(Error::Lost { loss }))
}
