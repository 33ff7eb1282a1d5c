//! A grant, and what is known of its fence.

use std::fmt;

use super::model::Promise;
use super::op::Attempt;

/// A grant that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Held {
    /// Whose.
    pub(super) by: Attempt,
    /// Under which fence.
    pub(super) fence: Fence,
    /// Its time is over, and nobody has noticed.
    pub(super) lapsed: bool,
    /// It had its time of grace after an outage.
    pub(super) spared: bool,
}

/// The fence of one of these is seen, which come in the order of their fences.
pub(super) fn learn(mut grants: Vec<&mut Held>, by: Attempt, fence: u64) -> Result<(), Promise> {
    let at = grants.iter().position(|held| held.by == by).ok_or(Promise::OneGrant)?;
    let known = grants[at].fence;
    if !known.admits(fence) {
        return Err(if known.is_known() { Promise::OneGrant } else { Promise::Fencing });
    }
    grants[at].fence = Fence::known(fence);
    grants[..at].iter_mut().for_each(|earlier| earlier.fence.keep_below(fence));
    grants[at + 1..].iter_mut().for_each(|later| later.fence.keep_above(fence));
    Ok(())
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
