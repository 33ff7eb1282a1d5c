//! The report of every check of the simulator.

use super::model::Promise;

/// A promise that was broken, and what shows it.
#[derive(Debug, Clone)]
pub(super) struct Breach {
    pub(super) promise: Promise,
    pub(super) what: String,
}

impl Breach {
    pub(super) fn new(promise: Promise, what: impl Into<String>) -> Breach {
        Breach {
            promise,
            what: what.into(),
        }
    }
}
