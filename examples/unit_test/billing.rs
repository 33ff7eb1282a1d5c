//! Your own code. It bills all customers, and runs on several hosts, but only one host bills at a
//! time. It knows nothing of tests: its manager may be on a Redis or on a `Memory`.

use std::time::Duration;

use fairlock::{Error, LockManager, PreviousHolder};

use super::bills::Bills;

/// The name of the lock.
pub(crate) const BILLING: &str = "billing";

/// How long to wait for another process that bills.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The result of [`bill`].
#[derive(Debug, PartialEq)]
pub(crate) enum Billed {
    /// Every customer has a bill.
    All,
    /// Another process had the lock all the time.
    ByAnother,
    /// Redis did not answer. Nothing was done. Try later.
    RedisDown,
    /// The lock was lost before this customer's bill was written. Its next holder does the rest.
    StoppedAt(String),
    /// The lock was lost, and its next holder is at work. It does the rest.
    Overtaken,
}

/// Bills all customers that have no bill yet. `print` may take long.
pub(crate) fn bill(
    mgr: &LockManager,
    bills: &Bills,
    customers: &[&str],
    mut print: impl FnMut(&str),
) -> fairlock::Result<Billed> {
    let guard = match mgr.try_lock_for(BILLING, MAX_WAIT) {
        Ok(Some(guard)) => guard,
        Ok(None) => return Ok(Billed::ByAnother),
        Err(Error::Unavailable { .. }) => return Ok(Billed::RedisDown),
        Err(other) => return Err(other),
    };
    let fence = guard.fence();
    // First claim the bills. From here on a holder that was overtaken changes nothing.
    if bills.claim(fence).is_err() {
        return Ok(Billed::Overtaken);
    }
    // The holder before may not have finished. Then its drafts must be done again.
    if guard.previous_holder() != PreviousHolder::Released && bills.drop_drafts(fence).is_err() {
        return Ok(Billed::Overtaken);
    }
    for customer in customers {
        match bills.begin(fence, customer) {
            Ok(true) => print(customer),
            Ok(false) => continue,
            Err(_) => return Ok(Billed::Overtaken),
        }
        // The check only saves useless work. The lock may be lost right after it, so the fence
        // decides.
        if guard.check().is_err() || bills.finish(fence, customer).is_err() {
            return Ok(Billed::StoppedAt((*customer).to_owned()));
        }
    }
    match guard.unlock() {
        // All bills were written under our fence. It does not matter if the lock was lost after
        // that.
        Ok(()) | Err(Error::Lost { .. } | Error::Unavailable { .. }) => Ok(Billed::All),
        Err(other) => Err(other),
    }
}
