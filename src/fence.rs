//! The check that makes a resource safe whatever the clocks do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Refuses holders that were overtaken: the check on fences ("fencing tokens") for a resource that
/// lives in this process.
///
/// Every grant of a lock carries a larger fence than all before it. A resource that remembers the largest
/// fence it has seen and refuses smaller ones is safe with no assumption about time: a holder that was
/// paused past its TTL comes too late and is turned away. (A reader has the last writer's, and passes. It is not for the
/// guards of a semaphore, which are held at the same time.)
///
/// A resource elsewhere does the same where it is. In SQL, with the write itself:
///
/// ```sql
/// UPDATE invoices SET total = 7, fence = :fence WHERE id = 42 AND fence <= :fence
/// ```
///
/// No row changed means: refused. In Redis, in one script with the write:
///
/// ```lua
/// if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[2]) then return 0 end
/// redis.call('SET', KEYS[2], ARGV[2]) redis.call('SET', KEYS[1], ARGV[1]) return 1
/// ```
///
/// Lua's numbers are doubles, and still this comparison is exact: a fence is a time in µs, which is less than 2^53 until
/// the year 2255. What is kept is `ARGV[2]`, the text that came. Made of a number, by `tostring` or `..`, it would have
/// 14 digits, which are too few; if you must, use `string.format('%.0f', fence)`.
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
    /// A gate that has seen no fence yet. It never blocks.
    pub const fn new() -> FenceGate {
        FenceGate {
            newest: AtomicU64::new(0),
        }
    }

    /// Whether a holder with this fence may act: true unless a larger fence was seen before.
    ///
    /// The check and the act must not be separable by a newer holder's: call this while holding whatever
    /// guards the resource in this process.
    pub fn admit(&self, fence: u64) -> bool {
        self.newest.fetch_max(fence, Ordering::AcqRel) <= fence
    }
}
