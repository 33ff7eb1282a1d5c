//! Whether a lease goes to another token, as far as this process knows.

use crate::script::Token;
use crate::store::clock::Time;
use crate::sync::Mutex;

/// A guard detaches its lock: a request is under way, or requests had no answer. After such a request
/// either token may own the lock, whatever becomes of the next one.
#[derive(Default)]
pub(super) struct Passing(Mutex<Passes>);

#[derive(Default)]
struct Passes {
    is_under_way: bool,
    in_doubt: Vec<DoubtfulPass>,
}

/// A pass without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoubtfulPass {
    /// The token that may own the lock.
    pub(crate) to: Token,
    /// R7 (late copies): until this server time, a copy of the pass can still run.
    pub(crate) not_after: u64,
    /// After this, a lease that the token got has lapsed by itself.
    pub(crate) expires: Time,
}

impl Passing {
    pub(super) fn begin(&self) {
        self.0.lock().is_under_way = true;
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.0.lock().is_under_way
    }

    /// The request that was under way has not passed the lock.
    pub(super) fn end(&self) {
        self.0.lock().is_under_way = false;
    }

    /// The request that was under way had no answer.
    pub(super) fn doubt(&self, pass: DoubtfulPass) {
        let mut passes = self.0.lock();
        passes.is_under_way = false;
        passes.in_doubt.push(pass);
    }

    /// R7 (late copies): until this server time, a pass can still run. 0: none can.
    pub(super) fn not_after(&self) -> u64 {
        let passes = self.0.lock();
        let times = passes.in_doubt.iter().map(|pass| pass.not_after);
        times.max().unwrap_or(0)
    }

    /// For the one caller that releases the other tokens.
    pub(super) fn take_doubtful(&self) -> Vec<DoubtfulPass> {
        std::mem::take(&mut self.0.lock().in_doubt)
    }
}
