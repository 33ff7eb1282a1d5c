//! The resource. It refuses statements that come too late. Copy this file.
//!
//! A [`FenceGate`] is for a resource in this process. If the resource is elsewhere, the check must
//! be there too. In SQL a turn has these statements, in one transaction or not. The column is a
//! `BIGINT NOT NULL DEFAULT 0`.
//!
//! ```sql
//! UPDATE invoices SET fence = :fence WHERE id = 42 AND fence <= :fence     -- first: claim
//! SELECT total FROM invoices WHERE id = 42                                 -- then read
//! UPDATE invoices SET total = :total WHERE id = 42 AND fence = :fence      -- then write
//! ```
//!
//! If one of the updates found no row, stop: a newer holder is there. MySQL and MariaDB count the
//! rows that changed, unless the client asks for those that were found. `sql/` has the statements
//! for several databases, with their answers. In Redis each of them is a script. The documentation
//! of [`FenceGate`] has both, with notes on the numbers of Lua.

use std::sync::Mutex;

use fairlock::FenceGate;

#[derive(Default)]
pub(crate) struct Invoice {
    gate: FenceGate,
    total: Mutex<u32>,
}

impl Invoice {
    /// The first step of a turn. From here on the statements of all older holders are refused.
    /// `false` if a holder with a larger fence has claimed the invoice before.
    pub(crate) fn claim(&self, fence: u64) -> bool {
        // Ask the gate under the mutex, so that no write of an older holder is half done.
        let _total = self.total.lock().unwrap();
        self.gate.admit(fence)
    }

    /// Read it under a claim. Then it stays as it is until the turn writes, or is overtaken.
    pub(crate) fn total(&self) -> u32 {
        *self.total.lock().unwrap()
    }

    /// `false` if a holder with a larger fence has claimed the invoice. Then nothing changes.
    pub(crate) fn set_total(&self, total: u32, fence: u64) -> bool {
        // Ask the gate under the mutex, so that nobody can write between the check and this write.
        let mut current = self.total.lock().unwrap();
        let admitted = self.gate.admit(fence);
        if admitted {
            *current = total;
        }
        admitted
    }

    /// Writes without a check of the fence.
    pub(crate) fn overwrite(&self, total: u32) {
        *self.total.lock().unwrap() = total;
    }
}
