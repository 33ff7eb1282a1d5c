//! `examples/leader`: a row that a leader reads and writes in each round.

#[path = "../../../examples/leader/lead.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod lead;

use std::sync::Arc;

use fairlock::crossbeam_channel::bounded;
use lead::{Event, Plan, lead};
use parking_lot::Mutex;

use super::orders::Turn;
use super::{Rule, Table, Turns, wrong_orders};

/// Each leader does one round. The plan must count as many as were done.
fn wrong_books(rule: Rule) -> usize {
    wrong_orders(rule, |locks| {
        let name = locks.name("leader");
        let plans = Arc::new(Table::new(rule, [(&*name, Plan::default())]));
        let done = Arc::new(Mutex::new(Vec::new()));
        let turn = || -> Turn<()> {
            let (plans, name, done) = (Arc::clone(&plans), name.clone(), Arc::clone(&done));
            Box::new(move |mgr| {
                let guard = mgr.lock(&name).expect("the older leader has lost it");
                let (stop, stopped) = bounded(1);
                stop.send(()).expect("there is room for one");
                let report = |event| {
                    if let Event::Acted(round) = event {
                        done.lock().push(round);
                    }
                };
                let _ = lead(&guard, &plans, &stopped, &report);
            })
        };
        let (older, newer) = (turn(), turn());
        Turns {
            older,
            lost: vec![name.clone()],
            newer,
            books: Box::new(move |first, ()| {
                let rounds = plans.read(&name).rounds;
                let mut done = done.lock().clone();
                done.sort_unstable();
                let all: Vec<u64> = (1..=rounds).collect();
                // A leader that crashed right after its write has reported nothing.
                let is_right = done == all
                    || first.is_none() && done.len() + 1 == all.len() && done.last() == all.last();
                match is_right {
                    true => Ok(()),
                    false => Err(format!("{first:?}: {done:?}, and the plan says {rounds}")),
                }
            }),
        }
    })
}

#[test]
fn plan_counts_each_round_with_a_pause_anywhere() {
    wrong_books(Rule::ClaimFirst);
}

#[test]
fn leaders_that_check_fences_only_in_writes_lose_rounds() {
    assert!(wrong_books(Rule::WritesAlone) > 0);
}
