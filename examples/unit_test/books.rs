//! What the lock protects: in life a table, with the newest fence beside it and a condition in every statement.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fairlock::FenceGate;

#[derive(Default)]
pub(crate) struct Books {
    gate: FenceGate,
    bills: Mutex<BTreeMap<String, State>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Draft,
    Written,
}

impl Books {
    /// Puts a draft there; `false` if there is something, or if the fence is not the newest any more.
    pub(crate) fn begin(&self, fence: u64, customer: &str) -> bool {
        let mut bills = self.bills.lock().unwrap();
        let free = self.gate.admit(fence) && !bills.contains_key(customer);
        if free {
            bills.insert(customer.to_owned(), State::Draft);
        }
        free
    }

    /// Makes a bill of a draft; `false` if the fence is not the newest any more.
    pub(crate) fn finish(&self, fence: u64, customer: &str) -> bool {
        let mut bills = self.bills.lock().unwrap();
        let admitted = self.gate.admit(fence);
        if admitted {
            bills.insert(customer.to_owned(), State::Written);
        }
        admitted
    }

    pub(crate) fn drop_drafts(&self, fence: u64) {
        let mut bills = self.bills.lock().unwrap();
        if self.gate.admit(fence) {
            bills.retain(|_, state| *state == State::Written);
        }
    }

    /// All of them, by customer.
    pub(crate) fn read(&self) -> Vec<(String, State)> {
        self.bills.lock().unwrap().clone().into_iter().collect()
    }
}
