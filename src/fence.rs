//! The check that makes a resource safe, whatever the clocks do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Refuses a holder that a newer holder has overtaken. This is the check of fences ("fencing
/// tokens") for a resource in this process.
///
/// Each grant but a reader's has a larger fence than all before of its name. The gate remembers the
/// largest fence that it has seen, and refuses smaller ones. Use it by this rule: **claim, then
/// read, then write.**
///
/// 1. The first step of a turn claims: it calls [`admit`](FenceGate::admit) before it reads
///    anything. If that is `false`, stop.
/// 2. Then it reads, and computes.
/// 3. Each write calls `admit` again. If that is `false`, it writes nothing, and the turn stops.
///
/// Then the resource is safe without any assumption about time. If a holder was paused past its
/// TTL, it finds that a newer turn has claimed, at its own claim or at its next write.
///
/// **A gate that is asked by writes alone does not protect a resource that is read first.** Suppose
/// that A and B each add to a total. A reads 0, and its lease ends. B reads 0. A wakes up and writes
/// 5: the gate has not seen B's fence yet, and admits it. B writes 7. The total is 7, and not 12. If
/// B claims before it reads, A's write is refused. A resource that is only overwritten, or that reads
/// and writes in one step under a mutex, needs no other claim than that step.
///
/// The gate does not hold the data, so it cannot see what is read and written past it. It does not
/// undo what an older turn wrote before it was overtaken: see
/// [`previous_holder`](crate::Lease::previous_holder). A reader of a reader/writer lock has the
/// fence of the last writer, and is admitted. Do not use a gate with the guards of a semaphore,
/// since several of them are held at the same time.
///
/// # Data outside this process
///
/// A resource outside this process makes the same check where it is. In SQL, in one transaction or
/// not:
///
/// ```sql
/// UPDATE invoices SET fence = :fence WHERE id = 42 AND fence <= :fence      -- claim
/// SELECT total FROM invoices WHERE id = 42                                  -- read
/// UPDATE invoices SET total = 7 WHERE id = 42 AND fence = :fence            -- write
/// ```
///
/// Drivers take an `i64`: bind [`fence_i64`](crate::Lease::fence_i64). If an update found no row,
/// stop. MySQL and MariaDB count the rows that changed, unless the client
/// [asks for those that were found](crate::pages::guide#mysql-and-mariadb). An error is no count:
/// begin again with the claim. In Redis the claim and each write are a script. `KEYS[1]` has the
/// fence, `KEYS[2]` the data, `ARGV[1]` is your fence. The claim:
///
/// ```lua
/// if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return 0 end
/// redis.call('SET', KEYS[1], ARGV[1]) return 1
/// ```
///
/// Then read by `GET`. The write:
///
/// ```lua
/// if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
/// redis.call('SET', KEYS[2], ARGV[2]) return 1
/// ```
///
/// If one returns 0, stop. Lua's numbers are doubles, but the comparison of the claim is exact: a
/// fence is a time in µs, which stays below 2^53 until the year 2255. The script stores `ARGV[1]`,
/// the text that it received. Do not store a number that `tostring` or `..` made into a text: that
/// has 14 digits, which are too few. If you must, use `string.format('%.0f', fence)`. The key with
/// the fence must not expire or be evicted before the data.
///
/// [The page on safety](crate::pages::safety#fencing) has other stores, several rows, and rows that
/// do not exist yet.
///
/// # Examples
///
/// ```
/// use fairlock::FenceGate;
///
/// static GATE: FenceGate = FenceGate::new();
///
/// assert!(GATE.admit(7), "the first holder claims, and reads");
/// assert!(GATE.admit(9), "the next one claims");
/// assert!(!GATE.admit(7), "the first one was overtaken, so its write is refused");
/// assert!(GATE.admit(9), "the next one may write");
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    newest: AtomicU64,
}

/// A fence for SQL, whose integers have a sign. Redis's time in µs fits; another number can only come
/// from a record or a text that somebody forged.
pub(crate) fn as_i64(fence: u64) -> i64 {
    i64::try_from(fence).unwrap_or(i64::MAX)
}

impl FenceGate {
    /// A gate that has seen no fence yet.
    pub const fn new() -> FenceGate {
        FenceGate {
            newest: AtomicU64::new(0),
        }
    }

    /// Whether a holder with this fence may act. True unless the gate has seen a larger fence. From
    /// then on all smaller fences are refused, so the first call of a turn is its claim. Never
    /// blocks.
    ///
    /// Call it before the first read, and again with every write. No newer holder may act between
    /// the check and the act. So call it while you hold the mutex that guards the resource in this
    /// process.
    pub fn admit(&self, fence: u64) -> bool {
        self.newest.fetch_max(fence, Ordering::AcqRel) <= fence
    }
}
