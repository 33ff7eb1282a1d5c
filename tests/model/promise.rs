//! The promises that the tests hold fairlock to.

use std::fmt;

/// A promise that the model can find broken. docs/SAFETY.md defines P1 to P10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// P1: no more holders than permits.
    Exclusion,
    /// P2: fences rise.
    Fencing,
    /// P3: first come, first served.
    Order,
    /// P4: a free lock is granted to the next waiter.
    WakeUp,
    /// P7: one grant per request, with one fence.
    OneGrant,
    /// P10: bad input changes nothing.
    BadInput,
    /// P4, P5: a live waiter is served in time, even if another process crashed.
    Service,
    /// Nothing is left behind.
    Leftovers,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Exclusion => "P1 (no more holders than permits)",
            Promise::Fencing => "P2 (fences rise)",
            Promise::Order => "P3 (first come, first served)",
            Promise::WakeUp => "P4 (a free lock is granted)",
            Promise::OneGrant => "P7 (one grant per request, with one fence)",
            Promise::BadInput => "P10 (bad input changes nothing)",
            Promise::Service => "P5 (a waiter is served in time)",
            Promise::Leftovers => "nothing is left behind",
        })
    }
}
