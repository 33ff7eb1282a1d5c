//! Your own code. It bills all customers, and runs on several hosts, but only one host bills at a
//! time. It knows nothing of tests: its manager may be on a Redis or on a `Memory`.

use std::time::Duration;

use fairlock::{Error, LockManager, PreviousHolder};

use crate::bills::Bills;

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
    if guard.previous_holder() != PreviousHolder::Released {
        // The holder before did not finish, so its drafts must be done again.
        bills.drop_drafts(guard.fence());
    }
    for customer in customers {
        if !bills.begin(guard.fence(), customer) {
            continue;
        }
        print(customer);
        // The check only saves useless work. The lock may be lost right after it, so the fence
        // decides.
        if guard.check().is_err() || !bills.finish(guard.fence(), customer) {
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
