//! The resource. It refuses writes that come too late. Copy this file.
//!
//! A [`FenceGate`] is for a resource in this process. If the resource is elsewhere, the check must
//! be there too, in one step with the write. If you read the fence first and write after that, a
//! pause can come in between.
//!
//! In SQL it is one statement. The column is a `BIGINT NOT NULL DEFAULT 0`. If no row was changed,
//! the write was refused.
//!
//! ```sql
//! UPDATE invoices SET total = :total, fence = :fence WHERE id = 42 AND fence <= :fence
//! ```
//!
//! In Redis it is one script. The documentation of [`FenceGate`] has it, with notes on the numbers
//! of Lua.

use std::sync::Mutex;

use fairlock::FenceGate;

#[derive(Default)]
pub(crate) struct Invoice {
    gate: FenceGate,
    total: Mutex<u32>,
}

impl Invoice {
    /// `false` if a holder with a larger fence has written before. Then nothing changes.
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

    pub(crate) fn total(&self) -> u32 {
        *self.total.lock().unwrap()
    }
}
