//! What the tests hold fairlock to.

use std::fmt;

/// What the model holds a store to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// P1
    Exclusion,
    /// P2
    Fencing,
    /// P3
    Order,
    /// P4
    WakeUp,
    /// P7
    OneGrant,
    /// P10
    BadInput,
    /// P4, P5: a live waiter is served in time, whoever crashed
    Service,
    /// Nothing is left behind
    Leftovers,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Exclusion => "P1 (no more hold it than may)",
            Promise::Fencing => "P2 (fences rise)",
            Promise::Order => "P3 (first come, first served)",
            Promise::WakeUp => "P4 (a free lock is granted)",
            Promise::OneGrant => "P7 (one grant per request, with one fence)",
            Promise::BadInput => "P10 (bad input changes nothing)",
            Promise::Service => "P5 (whoever waits is served in time)",
            Promise::Leftovers => "nothing is left behind",
        })
    }
}
