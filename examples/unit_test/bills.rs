//! The data that the lock protects. In a real program this is a table. The newest fence is stored
//! beside it. A turn first claims the table with its fence, and every statement after that has a
//! condition on it.

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

/// The gate has seen a larger fence: a newer holder is at work, and nothing was changed.
#[derive(Debug, PartialEq)]
pub(crate) struct Overtaken;

impl Bills {
    /// The first statement of a turn, before it reads anything.
    pub(crate) fn claim(&self, fence: u64) -> Result<(), Overtaken> {
        self.under(fence, |_| ())
    }

    /// Adds a draft. `false` if the customer has a draft or a bill.
    pub(crate) fn begin(&self, fence: u64, customer: &str) -> Result<bool, Overtaken> {
        self.under(fence, |bills| {
            let free = !bills.contains_key(customer);
            if free {
                bills.insert(customer.to_owned(), State::Draft);
            }
            free
        })
    }

    /// Turns a draft into a bill.
    pub(crate) fn finish(&self, fence: u64, customer: &str) -> Result<(), Overtaken> {
        self.under(fence, |bills| {
            bills.insert(customer.to_owned(), State::Written);
        })
    }

    pub(crate) fn drop_drafts(&self, fence: u64) -> Result<(), Overtaken> {
        self.under(fence, |bills| {
            bills.retain(|_, state| *state == State::Written);
        })
    }

    /// One statement, on the condition that no larger fence was here.
    fn under<T>(
        &self,
        fence: u64,
        statement: impl FnOnce(&mut BTreeMap<String, State>) -> T,
    ) -> Result<T, Overtaken> {
        // Ask the gate under the mutex, so that nobody can write between the check and this.
        let mut bills = self.by_customer.lock().unwrap();
        if self.gate.admit(fence) {
            Ok(statement(&mut bills))
        } else {
            Err(Overtaken)
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
