//! A grant, and what is known of its fence.

use std::fmt;

use super::op::Attempt;

/// A grant that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Held {
    /// Whose.
    pub(super) by: Attempt,
    /// Under which fence.
    pub(super) fence: Fence,
    /// It is a guard's, and no longer a place's.
    pub(super) claimed: bool,
    /// Its time is over, and nobody has noticed.
    pub(super) lapsed: bool,
}

/// What is known of the fence of a grant: it lies between these, exclusively. Nobody sees the fence of a grant that
/// nobody has claimed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Fence {
    above: u64,
    below: u64,
}

impl Fence {
    pub(super) fn above(fence: u64) -> Fence {
        Fence { above: fence, below: u64::MAX }
    }

    pub(super) fn known(fence: u64) -> Fence {
        Fence { above: fence - 1, below: fence + 1 }
    }

    pub(super) fn keep_above(&mut self, fence: u64) {
        self.above = self.above.max(fence);
    }

    pub(super) fn keep_below(&mut self, fence: u64) {
        self.below = self.below.min(fence);
    }

    pub(super) fn is_known(self) -> bool {
        self.below - self.above == 2
    }

    pub(super) fn is(self, fence: u64) -> bool {
        self.is_known() && self.above + 1 == fence
    }

    pub(super) fn admits(self, fence: u64) -> bool {
        self.above < fence && fence < self.below
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_known(), self.below) {
            (true, _) => write!(f, "{}", self.above + 1),
            (false, u64::MAX) => write!(f, "above {}", self.above),
            (false, below) => write!(f, "above {} and below {below}", self.above),
        }
    }
}
