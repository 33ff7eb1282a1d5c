//! `examples/fencing`: a resource in this process, with a [`FenceGate`](fairlock::FenceGate).

#[path = "../../../examples/fencing/invoice.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod invoice;

use std::sync::Arc;

use invoice::Invoice;

use super::orders::{Turn, step};
use super::{Rule, Turns, wrong_orders};

/// Each turn adds to the total. The total must be the sum of what was accepted.
fn wrong_books(rule: Rule) -> usize {
    wrong_orders(rule, |locks| {
        let name = locks.name("invoices");
        let invoice = Arc::new(Invoice::default());
        let turn = |more: u32| -> Turn<u32> {
            let (invoice, name) = (Arc::clone(&invoice), name.clone());
            Box::new(move |mgr| {
                let guard = mgr.lock(&name).expect("the older holder has lost it");
                if rule == Rule::ClaimFirst {
                    step();
                    if !invoice.claim(guard.fence()) {
                        return 0;
                    }
                }
                step();
                let total = invoice.total() + more;
                step();
                match invoice.set_total(total, guard.fence()) {
                    true => more,
                    false => 0,
                }
            })
        };
        let (older, newer) = (turn(100), turn(200));
        Turns {
            older,
            lost: vec![name],
            newer,
            books: Box::new(move |first, second| {
                let total = invoice.total();
                // After a crash nobody knows whether its last statement was the write.
                let maybe = first.map_or(vec![0, 100], |accepted| vec![accepted]);
                match maybe.iter().any(|first| first + second == total) {
                    true => Ok(()),
                    false => Err(format!("{first:?} + {second} were accepted, not {total}")),
                }
            }),
        }
    })
}

#[test]
fn total_behind_a_gate_is_right_with_a_pause_anywhere() {
    wrong_books(Rule::ClaimFirst);
}

#[test]
fn gate_that_only_writes_ask_loses_updates() {
    assert!(wrong_books(Rule::WritesAlone) > 0);
}
