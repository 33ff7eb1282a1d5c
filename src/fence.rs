//! The check that makes a resource safe, whatever the clocks do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Refuses a holder that a newer holder has overtaken. This is the check of fences ("fencing
/// tokens") for a resource in this process.
///
/// Every grant of a lock has a larger fence than all grants before it. The resource remembers the
/// largest fence that it has seen, and refuses smaller ones. So it is safe without any assumption
/// about time: if a holder was paused past its TTL, its write comes too late and is refused. A
/// reader has the fence of the last writer, and is admitted. Do not use a gate with the guards of a
/// semaphore, since several of them are held at the same time.
///
/// A resource outside this process makes the same check where it is. In SQL, as part of the write:
///
/// ```sql
/// UPDATE invoices SET total = 7, fence = :fence WHERE id = 42 AND fence <= :fence
/// ```
///
/// If no row changed, the write was refused. In Redis, in one script with the write:
///
/// ```lua
/// if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[2]) then return 0 end
/// redis.call('SET', KEYS[2], ARGV[2]) redis.call('SET', KEYS[1], ARGV[1]) return 1
/// ```
///
/// Lua's numbers are doubles, but this comparison is exact: a fence is a time in µs, which stays
/// below 2^53 until the year 2255. The script stores `ARGV[2]`, the text that it received. Do not
/// store a number that `tostring` or `..` made into a text: that has 14 digits, which are too few.
/// If you must, use `string.format('%.0f', fence)`.
///
/// # Examples
///
/// ```
/// use fairlock::FenceGate;
///
/// static GATE: FenceGate = FenceGate::new();
///
/// assert!(GATE.admit(7));
/// assert!(GATE.admit(7), "the same holder may write again");
/// assert!(GATE.admit(9));
/// assert!(!GATE.admit(7), "a holder that was overtaken is refused");
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    newest: AtomicU64,
}

impl FenceGate {
    /// A gate that has seen no fence yet.
    pub const fn new() -> FenceGate {
        FenceGate {
            newest: AtomicU64::new(0),
        }
    }

    /// Whether a holder with this fence may act. True unless the gate has seen a larger fence.
    /// Never blocks.
    ///
    /// No newer holder may act between the check and the act. So call this while you hold the mutex
    /// that guards the resource in this process.
    pub fn admit(&self, fence: u64) -> bool {
        self.newest.fetch_max(fence, Ordering::AcqRel) <= fence
    }
}
