//! The data that the lock protects. In a real program this is a table. The newest fence is stored
//! beside it, and every statement has a condition on it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fairlock::FenceGate;

#[derive(Default)]
pub(crate) struct Bills {
    gate: FenceGate,
    by_customer: Mutex<BTreeMap<String, State>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Draft,
    Written,
}

impl Bills {
    /// Adds a draft. `false` if the customer has a draft or a bill, or if the gate has seen a
    /// larger fence.
    pub(crate) fn begin(&self, fence: u64, customer: &str) -> bool {
        let mut bills = self.by_customer.lock().unwrap();
        let free = self.gate.admit(fence) && !bills.contains_key(customer);
        if free {
            bills.insert(customer.to_owned(), State::Draft);
        }
        free
    }

    /// Turns a draft into a bill. `false` if the gate has seen a larger fence.
    pub(crate) fn finish(&self, fence: u64, customer: &str) -> bool {
        let mut bills = self.by_customer.lock().unwrap();
        let admitted = self.gate.admit(fence);
        if admitted {
            bills.insert(customer.to_owned(), State::Written);
        }
        admitted
    }

    pub(crate) fn drop_drafts(&self, fence: u64) {
        let mut bills = self.by_customer.lock().unwrap();
        if self.gate.admit(fence) {
            bills.retain(|_, state| *state == State::Written);
        }
    }

    /// All drafts and bills, by customer.
    pub(crate) fn read(&self) -> Vec<(String, State)> {
        self.by_customer
            .lock()
            .unwrap()
            .clone()
            .into_iter()
            .collect()
    }
}
