//! `examples/payment`: a row, and a call to a provider that checks no fence.

#[path = "../../../examples/payment/pay.rs"]
mod pay;
#[path = "../../../examples/payment/provider.rs"]
mod provider;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlock::Result;
use pay::{Answer, Invoice, Invoices, Payment, State, pay};
use provider::Provider;

use super::orders::{Turn, step};
use super::{Locks, Rule, Table, Turns, in_all_orders, wrong_orders};

const AMOUNT: u32 = 42;

impl Invoices for Table<Invoice> {
    type Error = fairlock::Error;

    fn claim(&self, id: &str, fence: u64) -> Result<bool> {
        Ok(self.claim(id, fence))
    }

    fn read(&self, id: &str) -> Result<Invoice> {
        Ok(self.read(id))
    }

    fn write(&self, id: &str, fence: u64, state: State) -> Result<bool> {
        Ok(self.write([(id, fence)], |[invoice]| invoice.state = state))
    }
}

/// The provider's treatment of its first call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Answers,
    /// It charges, and its answer is lost.
    IsNotHeard,
    Declines,
}

/// The idempotency key that the calls are made with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    OfTheAttempt,
    /// Another one for each turn: a key with the fence in it, say.
    OfTheTurn,
}

fn wrong_books(first_call: First, key: Key) -> usize {
    let turns = |locks: &Locks| {
        let name = locks.name("invoices");
        let invoice = Invoice {
            amount: AMOUNT,
            state: State::Open,
        };
        let invoices = Arc::new(Table::new(Rule::ClaimFirst, [(&*name, invoice)]));
        let provider = Arc::new(Provider::default());
        provider.decline(first_call == First::Declines);
        let is_first = Arc::new(AtomicBool::new(true));
        let turn = |turn: &'static str| -> Turn<Result<Payment>> {
            let (invoices, provider) = (Arc::clone(&invoices), Arc::clone(&provider));
            let (name, is_first) = (name.clone(), Arc::clone(&is_first));
            Box::new(move |mgr| {
                pay(mgr, &*invoices, &name, |attempt, amount| {
                    let key = match key {
                        Key::OfTheAttempt => attempt.to_owned(),
                        Key::OfTheTurn => format!("{name}/{turn}"),
                    };
                    step();
                    let is_first = is_first.swap(false, Ordering::Relaxed);
                    let answer = provider.charge(&key, amount);
                    provider.decline(false);
                    match first_call {
                        First::IsNotHeard if is_first => Answer::Unknown,
                        _ => answer,
                    }
                })
            })
        };
        let (older, newer, third) = (turn("older"), turn("newer"), turn("third"));
        let mgr = locks.newer.clone();
        Turns {
            older,
            lost: vec![name.clone()],
            newer,
            books: Box::new(move |first, second| {
                let state = invoices.read(&name).state;
                let charged = provider.charged(&name);
                let said_paid = |result: &Result<Payment>| {
                    matches!(
                        result,
                        Ok(Payment::Paid { .. } | Payment::PaidBefore { .. })
                    )
                };
                let is_paid = matches!(state, State::Paid { .. });
                let any_paid = said_paid(&second) || first.as_ref().is_some_and(said_paid);
                // Whatever is left, the next holder pays.
                let third = third(&mgr);
                let at_last = provider.charged(&name);
                let is_done = said_paid(&third)
                    && at_last == [AMOUNT]
                    && matches!(invoices.read(&name).state, State::Paid { .. });
                let is_right = is_done
                    && match state {
                        State::Paid { .. } => charged == [AMOUNT],
                        // The provider may have been asked.
                        State::Paying(_) => {
                            charged.len() <= 1 && matches!(second, Ok(Payment::Unknown))
                        }
                        State::Declined(_) | State::Open => charged.is_empty(),
                    }
                    && (!any_paid || is_paid);
                match is_right {
                    true => Ok(()),
                    false => Err(format!(
                        "{first:?}, {second:?}, {third:?}: {state:?}, {charged:?}, {at_last:?}"
                    )),
                }
            }),
        }
    };
    match key {
        Key::OfTheAttempt => wrong_orders(Rule::ClaimFirst, turns),
        Key::OfTheTurn => in_all_orders(turns).1.len(),
    }
}

#[test]
fn invoice_is_charged_once_with_a_pause_anywhere() {
    for first_call in [First::Answers, First::IsNotHeard, First::Declines] {
        wrong_books(first_call, Key::OfTheAttempt);
    }
}

#[test]
fn key_of_each_turn_charges_an_invoice_twice() {
    assert!(wrong_books(First::Answers, Key::OfTheTurn) > 0);
}
