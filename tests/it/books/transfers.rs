//! `examples/transfer`: two rows, and a fence for each.

#[path = "../../../examples/transfer/account.rs"]
mod account;

use std::sync::Arc;

use account::{Account, Transfer, transfer};
use fairlock::Result;

use super::orders::Turn;
use super::{Rule, Table, Turns, wrong_orders};

const OPENING: i64 = 100;

/// From and to one of three accounts, and how much.
type Order = (usize, usize, i64);

fn wrong_books(rule: Rule, older: Order, newer: Order) -> usize {
    wrong_orders(rule, |locks| {
        let names = ["a", "b", "c"].map(|name| locks.name(name));
        let row = |name| (name, Account { balance: OPENING });
        let accounts = Arc::new(Table::new(rule, names.each_ref().map(|name| row(&**name))));
        let turn = |(from, to, amount): Order| -> Turn<Result<Transfer>> {
            let (accounts, names) = (Arc::clone(&accounts), names.clone());
            Box::new(move |mgr| transfer(mgr, &accounts, &names[from], &names[to], amount))
        };
        Turns {
            older: turn(older),
            lost: vec![names[older.0].clone(), names[older.1].clone()],
            newer: turn(newer),
            books: Box::new(move |first, second| {
                let balances = names.each_ref().map(|name| accounts.read(name).balance);
                let booked = |result: &Result<Transfer>| matches!(result, Ok(Transfer::Booked));
                // After a crash nobody knows whether its last statement was the write.
                let maybe = match &first {
                    Some(result) => vec![booked(result)],
                    None => vec![false, true],
                };
                let is_right = maybe.into_iter().any(|first| {
                    let mut expected = [OPENING; 3];
                    let both = [(first, older), (booked(&second), newer)];
                    for (_, (from, to, amount)) in both.into_iter().filter(|(booked, _)| *booked) {
                        expected[from] -= amount;
                        expected[to] += amount;
                    }
                    expected == balances && balances.iter().all(|balance| *balance >= 0)
                });
                match is_right {
                    true => Ok(()),
                    false => Err(format!("{first:?}, {second:?}: {balances:?}")),
                }
            }),
        }
    })
}

#[test]
fn transfers_balance_with_a_pause_anywhere() {
    // The same transfer, of which only one can be paid; one in the other direction; and one that
    // shares a single account with it.
    for newer in [(0, 1, 60), (1, 0, 30), (1, 2, 30)] {
        wrong_books(Rule::ClaimFirst, (0, 1, 60), newer);
    }
}

#[test]
fn transfers_that_check_fences_only_in_writes_lose_money() {
    assert!(wrong_books(Rule::WritesAlone, (0, 1, 60), (0, 1, 60)) > 0);
    assert!(wrong_books(Rule::WritesAlone, (0, 1, 60), (1, 2, 30)) > 0);
}
