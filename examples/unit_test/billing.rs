//! Your own code: it bills all customers, on several hosts but on one at a time. It knows nothing of tests; the
//! manager that it is given may be on a Redis or on a `Memory`.

use std::time::Duration;

use fairlock::{Error, LockManager, PreviousHolder};

use crate::books::Books;

/// The name of the lock.
pub(crate) const BILLING: &str = "billing";

/// How long to wait for another process that is at it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug, PartialEq)]
pub(crate) enum Billed {
    /// Every customer has a bill.
    All,
    /// Another process has been at it all the time.
    Elsewhere,
    /// Redis does not answer. Nothing was done; try later.
    Later,
    /// The lock was lost before this customer's bill was written. Whoever has it now does the rest.
    UpTo(String),
}

/// Bills those who have no bill yet. `print` takes long.
pub(crate) fn bill(
    mgr: &LockManager,
    books: &Books,
    customers: &[&str],
    mut print: impl FnMut(&str),
) -> fairlock::Result<Billed> {
    let guard = match mgr.try_lock_for(BILLING, PATIENCE) {
        Ok(Some(guard)) => guard,
        Ok(None) => return Ok(Billed::Elsewhere),
        Err(Error::Unavailable { .. }) => return Ok(Billed::Later),
        Err(other) => return Err(other),
    };
    if guard.previous_holder() == PreviousHolder::Lapsed {
        // Who had it before did not come to its end, so what it had begun is begun anew.
        books.drop_drafts(guard.fence());
    }
    for customer in customers {
        if !books.begin(guard.fence(), customer) {
            continue;
        }
        print(customer);
        // The check saves futile work; what decides is the fence, since the lock may be lost right after.
        if guard.check().is_err() || !books.finish(guard.fence(), customer) {
            return Ok(Billed::UpTo((*customer).to_owned()));
        }
    }
    match guard.unlock() {
        // All was written under our fence, so what became of the lock after that is of no account.
        Ok(()) | Err(Error::Lost { .. } | Error::Unavailable { .. }) => Ok(Billed::All),
        Err(other) => Err(other),
    }
}
