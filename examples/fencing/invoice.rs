//! The resource: it refuses writes that come too late. This is the part to copy.
//!
//! A [`FenceGate`] is for what lives in one process. Where the resource is elsewhere, so is the check, in one step
//! with the write; to read the fence first and to write then would leave room for a pause between the two.
//!
//! In SQL it is one statement. The column is a `BIGINT NOT NULL DEFAULT 0`, and the number of rows that were changed
//! is the answer: none means refused.
//!
//! ```sql
//! UPDATE invoices SET total = :total, fence = :fence WHERE id = 42 AND fence <= :fence
//! ```
//!
//! In Redis it is one script; it stands in the documentation of [`FenceGate`], with what to know about the numbers
//! of Lua.

use std::sync::Mutex;

use fairlock::FenceGate;

#[derive(Default)]
pub(crate) struct Invoice {
    gate: FenceGate,
    total: Mutex<u32>,
}

impl Invoice {
    /// `false` if one with a larger fence has written before; then nothing was changed.
    pub(crate) fn set_total(&self, total: u32, fence: u64) -> bool {
        // The gate is asked under the mutex, so that nobody can write between the answer and this write.
        let mut current = self.total.lock().unwrap();
        let admitted = self.gate.admit(fence);
        if admitted {
            *current = total;
        }
        admitted
    }

    /// What one does who knows of no fences.
    pub(crate) fn overwrite(&self, total: u32) {
        *self.total.lock().unwrap() = total;
    }

    pub(crate) fn total(&self) -> u32 {
        *self.total.lock().unwrap()
    }
}
