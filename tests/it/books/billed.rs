//! `examples/unit_test`: bills that one process writes, with a [`FenceGate`](fairlock::FenceGate).

#[path = "../../../examples/unit_test/billing.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod billing;
#[path = "../../../examples/unit_test/bills.rs"]
mod real;

use std::sync::Arc;

use billing::{BILLING, Billed, bill};
use parking_lot::Mutex;

use super::orders::Turn;
use super::{Rule, Turns, wrong_orders};

const CUSTOMERS: [&str; 2] = ["ann", "bob"];

/// The bills of the example, with a place for a pause before each statement.
mod bills {
    use super::super::orders::step;
    use super::real::{self, Overtaken, State};

    #[derive(Default)]
    pub(crate) struct Bills(real::Bills);

    impl Bills {
        pub(crate) fn claim(&self, fence: u64) -> Result<(), Overtaken> {
            step();
            self.0.claim(fence)
        }

        pub(crate) fn begin(&self, fence: u64, customer: &str) -> Result<bool, Overtaken> {
            step();
            self.0.begin(fence, customer)
        }

        pub(crate) fn finish(&self, fence: u64, customer: &str) -> Result<(), Overtaken> {
            step();
            self.0.finish(fence, customer)
        }

        pub(crate) fn drop_drafts(&self, fence: u64) -> Result<(), Overtaken> {
            step();
            self.0.drop_drafts(fence)
        }

        pub(crate) fn read(&self) -> Vec<(String, State)> {
            self.0.read()
        }
    }
}

#[test]
fn bills_are_whole_with_a_pause_anywhere() {
    wrong_orders(Rule::ClaimFirst, |_| {
        let bills = Arc::new(bills::Bills::default());
        let printed = Arc::new(Mutex::new(Vec::new()));
        let turn = || -> Turn<Billed> {
            let (bills, printed) = (Arc::clone(&bills), Arc::clone(&printed));
            Box::new(move |mgr| {
                let print = |customer: &str| printed.lock().push(customer.to_owned());
                let billed = bill(mgr, &bills, &CUSTOMERS, print).expect("it is in memory");
                let all_written = || {
                    let written = |(_, state)| state == real::State::Written;
                    let bills = bills.read();
                    bills.len() == CUSTOMERS.len() && bills.into_iter().all(written)
                };
                assert!(
                    billed != Billed::All || all_written(),
                    "it said that every customer has a bill: {:?}",
                    bills.read()
                );
                billed
            })
        };
        let (older, newer) = (turn(), turn());
        Turns {
            older,
            lost: vec![BILLING.to_owned()],
            newer,
            books: Box::new(move |first, second| {
                let printed = printed.lock();
                let is_printed = |customer: &&str| printed.iter().any(|name| name == customer);
                match second == Billed::All && CUSTOMERS.iter().all(is_printed) {
                    true => Ok(()),
                    false => Err(format!("{first:?}, {second:?}, printed {printed:?}")),
                }
            }),
        }
    });
}
