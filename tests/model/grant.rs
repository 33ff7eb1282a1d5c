//! A grant, and what is known of its fence.

use std::cmp::Ordering;
use std::fmt;

use super::op::Attempt;
use super::promise::Promise;

/// A grant that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelGrant {
    /// Whose.
    pub(crate) by: Attempt,
    /// How many permits it has: what it asked for, or one, if it was downgraded.
    pub(crate) permits: u32,
    /// Under which fence.
    pub(crate) fence: FenceRange,
    /// Grants of the same turn have the same fence, and one of a later turn has a larger one.
    pub(crate) turn: u32,
    /// Its time is over, and nobody has noticed.
    pub(crate) lapsed: bool,
    /// It had its time of grace after an outage.
    pub(crate) spared: bool,
}

impl ModelGrant {
    /// The fence of another grant is seen.
    fn learn(&mut self, turn: u32, fence: u64) {
        self.fence.learn(self.turn, turn, fence);
    }
}

/// The fence of one of these is seen. Answers in which turn it was granted.
pub(crate) fn learn<'a>(
    grants: impl Iterator<Item = &'a mut ModelGrant>,
    by: Attempt,
    fence: u64,
) -> Result<u32, Promise> {
    let mut grants: Vec<&mut ModelGrant> = grants.collect();
    let held = grants
        .iter()
        .find(|held| held.by == by)
        .ok_or(Promise::OneGrant)?;
    let (known, turn) = (held.fence, held.turn);
    if !known.admits(fence) {
        return Err(if known.is_known() {
            Promise::OneGrant
        } else {
            Promise::Fencing
        });
    }
    grants.iter_mut().for_each(|held| held.learn(turn, fence));
    Ok(turn)
}

/// What is known of the fence of a grant: it lies between these, exclusively. Nobody sees the fence of a grant that
/// nobody has claimed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FenceRange {
    above: u64,
    below: u64,
}

impl Default for FenceRange {
    fn default() -> FenceRange {
        FenceRange::above(0)
    }
}

impl FenceRange {
    pub(crate) fn above(fence: u64) -> FenceRange {
        FenceRange {
            above: fence,
            below: u64::MAX,
        }
    }

    pub(crate) fn known(fence: u64) -> FenceRange {
        FenceRange {
            above: fence - 1,
            below: fence + 1,
        }
    }

    /// What is not known lies above this, too.
    pub(crate) fn or_above(self, fence: u64) -> FenceRange {
        if self.is_known() {
            self
        } else {
            FenceRange {
                above: self.above.max(fence),
                ..self
            }
        }
    }

    /// This is of one turn, and in another this fence is seen.
    pub(crate) fn learn(&mut self, own: u32, turn: u32, fence: u64) {
        match own.cmp(&turn) {
            Ordering::Less => self.below = self.below.min(fence),
            Ordering::Equal => *self = FenceRange::known(fence),
            Ordering::Greater => self.above = self.above.max(fence),
        }
    }

    pub(crate) fn is_known(self) -> bool {
        self.below - self.above == 2
    }

    pub(crate) fn is(self, fence: u64) -> bool {
        self.is_known() && self.above + 1 == fence
    }

    pub(crate) fn admits(self, fence: u64) -> bool {
        self.above < fence && fence < self.below
    }
}

impl fmt::Debug for FenceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_known(), self.below) {
            (true, _) => write!(f, "{}", self.above + 1),
            (false, u64::MAX) => write!(f, "above {}", self.above),
            (false, below) => write!(f, "above {} and below {below}", self.above),
        }
    }
}
