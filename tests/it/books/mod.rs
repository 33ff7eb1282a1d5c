//! The code that the examples show for resources that check fences, under a pause between any two of
//! its statements.
//!
//! Each test takes the function that an example tells users to copy, and runs two turns of it. The
//! older holder gets the lock, and loses it before its first statement without knowing it. Then the
//! statements of both turns run in every possible order: see [`orders`]. After each order the books
//! must balance. The same tests then show that they find the rule that is wrong: a fence that is
//! checked by writes alone.
//!
//! On this store alone, the in-memory one: the code is the same on every store, and there are
//! thousands of turns.

mod billed;
mod gate;
mod jobs;
mod orders;
mod payments;
mod plans;
mod transfers;

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../../../examples/support/table.rs"]
mod real;

use std::sync::atomic::{AtomicU64, Ordering};

use fairlock::{LockManager, memory::Memory};

use orders::{Turns, in_all_orders, step};

/// When the newest fence of a row is stored and compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// By a claim before the first read, and by every write. What the documentation says.
    ClaimFirst,
    /// By writes alone, which is too late.
    WritesAlone,
    /// Never.
    None,
}

/// The table of the examples, with a place for a pause before each statement.
struct Table<Row> {
    real: real::Table<Row>,
    rule: Rule,
}

impl<Row: Clone + Default> Table<Row> {
    /// With rows that no holder has claimed yet.
    fn new<const N: usize>(rule: Rule, rows: [(&str, Row); N]) -> Table<Row> {
        let real = real::Table::default();
        for (id, row) in rows {
            assert!(real.claim(id, 0) && real.write([(id, 0)], |[stored]| *stored = row));
        }
        Table { real, rule }
    }

    fn claim(&self, id: &str, fence: u64) -> bool {
        if self.rule != Rule::ClaimFirst {
            return true;
        }
        step();
        self.real.claim(id, fence)
    }

    fn read(&self, id: &str) -> Row {
        step();
        self.real.read(id)
    }

    fn write<const N: usize>(
        &self,
        claims: [(&str, u64); N],
        change: impl FnOnce(&mut [Row; N]),
    ) -> bool {
        step();
        // One statement, whatever it consists of, since no other turn runs until the next step.
        match self.rule {
            Rule::ClaimFirst => self.real.write(claims, change),
            Rule::WritesAlone => {
                claims.iter().all(|(id, fence)| self.real.claim(id, *fence))
                    && self.real.write(claims, change)
            }
            // Nobody has claimed anything.
            Rule::None => self.real.write(claims.map(|(id, _)| (id, 0)), change),
        }
    }
}

/// Two processes, and names that nobody has used.
struct Locks {
    memory: Memory,
    older: LockManager,
    newer: LockManager,
    used: AtomicU64,
}

impl Locks {
    fn new() -> Locks {
        let memory = Memory::new();
        let [older, newer] = [(); 2].map(|()| LockManager::connect(&memory).expect("it is up"));
        Locks {
            memory,
            older,
            newer,
            used: AtomicU64::new(0),
        }
    }

    fn name(&self, what: &str) -> String {
        format!("{what}:{}", self.used.fetch_add(1, Ordering::Relaxed))
    }
}

/// Runs the turns in all orders. Returns in how many of them the books were wrong, which must be
/// none if the rule is right.
fn wrong_orders<T: Send + 'static>(rule: Rule, turns: impl Fn(&Locks) -> Turns<T>) -> usize {
    let (runs, wrong) = in_all_orders(turns);
    assert!(runs > 5, "only {runs} orders");
    if rule == Rule::ClaimFirst {
        assert!(wrong.is_empty(), "{} of {runs}: {}", wrong.len(), wrong[0]);
    }
    wrong.len()
}
