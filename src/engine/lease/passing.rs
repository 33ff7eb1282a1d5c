//! Whether a lease goes to another token, as far as this process knows.

use crate::script::Token;
use crate::store::clock::Time;
use crate::sync::Mutex;

/// A guard detaches its lock: the request is under way, or it had no answer.
#[derive(Default)]
pub(super) struct Passing(Mutex<Pass>);

/// | state    | meaning                                         | becomes           |
/// |----------|-------------------------------------------------|-------------------|
/// | Never    | nobody has asked for it, or it was refused      | UnderWay          |
/// | UnderWay | a request is sent, and its answer is due        | Never, InDoubt    |
/// | InDoubt  | there was no answer, so either token may own it | Never             |
#[derive(Default)]
enum Pass {
    #[default]
    Never,
    UnderWay,
    InDoubt(DoubtfulPass),
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
        *self.0.lock() = Pass::UnderWay;
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(*self.0.lock(), Pass::UnderWay)
    }

    /// The lock was not passed.
    pub(super) fn end(&self) {
        *self.0.lock() = Pass::Never;
    }

    pub(super) fn doubt(&self, pass: DoubtfulPass) {
        *self.0.lock() = Pass::InDoubt(pass);
    }

    /// R7 (late copies): until this server time, a pass can still run. 0: none can.
    pub(super) fn not_after(&self) -> u64 {
        match &*self.0.lock() {
            Pass::InDoubt(pass) => pass.not_after,
            Pass::Never | Pass::UnderWay => 0,
        }
    }

    /// For the one caller that releases the other token.
    pub(super) fn take_doubtful(&self) -> Option<DoubtfulPass> {
        let mut pass = self.0.lock();
        match std::mem::take(&mut *pass) {
            Pass::InDoubt(doubtful) => Some(doubtful),
            other => {
                *pass = other;
                None
            }
        }
    }
}
