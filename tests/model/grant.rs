//! A grant, and what is known about its fence.

use std::cmp::Ordering;
use std::fmt;

use super::op::Attempt;
use super::promise::Promise;

/// A grant that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelGrant {
    /// The attempt that was granted the lock.
    pub(crate) attempt: Attempt,
    /// How many permits it has: the number that it asked for, or one after a downgrade.
    pub(crate) permits: u32,
    /// The known range of its fence.
    pub(crate) fence: FenceRange,
    /// Counts the fences that were given out. Grants of one turn share a fence, and a later turn
    /// has a larger one.
    pub(crate) turn: u32,
    /// The lease has expired, and nobody has noticed.
    pub(crate) lapsed: bool,
    /// The lease had its one step of grace after an outage.
    pub(crate) spared: bool,
    /// When it was granted, by the server's clock.
    pub(crate) granted_at: u64,
}

/// No reserved fence is further ahead of the time of its grant, in µs.
const MOST_AHEAD: u64 = 65_535;

impl ModelGrant {
    /// P2: how many fences the grant has reserved behind its first.
    pub(crate) fn reserved(&self) -> u64 {
        let most = self.granted_at.saturating_add(MOST_AHEAD);
        u64::from(self.attempt.spare).min(most.saturating_sub(self.fence.least()))
    }

    /// A grant of this turn turned out to have this fence.
    fn learn(&mut self, turn: u32, fence: u64) {
        self.fence.learn(self.turn, turn, fence);
    }
}

/// The fence of this attempt's grant becomes known. That bounds the fences of all other grants too.
/// Returns the turn of the grant.
pub(crate) fn learn_fence<'a>(
    grants: impl Iterator<Item = &'a mut ModelGrant>,
    attempt: Attempt,
    fence: u64,
) -> Result<u32, Promise> {
    let mut grants: Vec<&mut ModelGrant> = grants.collect();
    let grant = grants
        .iter()
        .find(|grant| grant.attempt == attempt)
        .ok_or(Promise::OneGrant)?;
    let known = grant.fence;
    let turn = grant.turn;
    if !known.admits(fence) {
        return Err(if known.is_known() {
            Promise::OneGrant
        } else {
            Promise::Fencing
        });
    }
    grants.iter_mut().for_each(|grant| grant.learn(turn, fence));
    Ok(turn)
}

/// The known range of a fence: it lies between two numbers and equals neither of them. Nobody sees
/// the fence of a grant before a guard takes it.
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

    /// The same fence, and larger than this unless it is known already.
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

    /// This fence belongs to the turn `own`. The fence of the turn `turn` becomes known.
    pub(crate) fn learn(&mut self, own: u32, turn: u32, fence: u64) {
        match own.cmp(&turn) {
            Ordering::Less => self.below = self.below.min(fence),
            Ordering::Equal => *self = FenceRange::known(fence),
            Ordering::Greater => self.above = self.above.max(fence),
        }
    }

    /// The least fence that it can be.
    pub(crate) fn least(self) -> u64 {
        self.above + 1
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
