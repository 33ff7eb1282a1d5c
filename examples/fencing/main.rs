//! A holder is paused past its TTL, wakes up and writes. No lock can prevent that, but a fence can.
//!
//!     cargo run --features memory --example fencing
//!     cargo run --example fencing
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example fencing
//!
//! A holder checks its lock, and is paused right after the check. The cause may be a suspended
//! virtual machine, swapping, or a closed laptop. Its lease ends, and the next caller in the queue
//! gets the lock and goes to work. Then the paused holder wakes up in the middle of its own work.
//! However late it checks, the pause can come even later. So the resource must refuse the write:
//! every grant has a larger fence than all grants before it, and the resource remembers the newest.
//!
//! It must learn of the new holder before that one reads. So a turn claims, reads, writes. If it
//! only checked the fence in the write, a late write could come between the read and the write of
//! the new holder, as here. It would be accepted, and then overwritten.
//!
//! `invoice.rs` has the resource, which is the part to copy. It also shows the same in SQL and in
//! Redis, and `sql/` has what databases answer. `holder.rs` has the holder that is paused. On a Redis it is a second process of this
//! program, which stops itself with SIGSTOP. On the in-memory store there is only one process.
//! There it is a thread whose lease is ended by `Memory::lapse`.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod holder;
mod invoice;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;

use fairlock::PreviousHolder;
use holder::{Holder, LATE, manager};
use invoice::Invoice;
use support::{MAX_WAIT, Outcome, Store, check, exit_code, own_name, run};

/// The sum that we add to the total. The paused holder adds [`LATE`].
const NEWER: u32 = 200;

fn main() -> ExitCode {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, name] if role == "holder" => exit_code(holder::be_a_process(name)),
        _ => run(fencing),
    }
}

fn fencing(store: &Store) -> Outcome {
    let name = own_name("invoices:42");
    let mgr = manager(store)?;
    let invoice = Invoice::default();
    // For comparison: one whose turns begin without a claim, and one that accepts every write.
    let unclaimed = Invoice::default();
    let unprotected = Invoice::default();
    let all = [&invoice, &unclaimed, &unprotected];

    let mut other = Holder::start(store, &name)?;
    let old: u64 = other.reads("claims and reads with")?;
    check(
        "another process holds the lock, and claims the invoice",
        invoice.claim(old),
    )?;
    let its_totals = all.map(Invoice::total);
    println!("Its fence is {old}. It has read the total, wants to add {LATE}, checks the lock,");
    println!("and is paused.");
    println!();

    // The paused holder does not renew its lease, so this takes one TTL.
    let guard = mgr
        .try_lock_for(&name, MAX_WAIT)?
        .ok_or("the lock of the paused holder never came free")?;
    let new = guard.fence();
    println!("Its lease has ended, and we have the lock, with fence {new}.");
    check(
        "we learn that the holder before us did not finish",
        guard.previous_holder() == PreviousHolder::Lapsed,
    )?;
    check("our fence is larger", new > old)?;
    check("we claim the invoice", invoice.claim(new))?;
    let our_totals = all.map(Invoice::total);
    println!("We have read the total, and want to add {NEWER}.");
    println!();

    other.go_on()?;
    let late: u32 = other.reads("adds")?;
    let fence: u64 = other.reads("under")?;
    println!("The other process wakes up and adds {late}, with fence {fence}.");
    let [total, without_claim, without_gate] = its_totals.map(|total| total + late);
    check(
        "its write is refused: it learns that it must begin again",
        !invoice.set_total(total, fence),
    )?;
    check(
        "without our claim, the write is accepted",
        unclaimed.set_total(without_claim, fence),
    )?;
    unprotected.overwrite(without_gate);
    println!();

    println!("We write.");
    let [total, without_claim, without_gate] = our_totals.map(|total| total + NEWER);
    check(
        format!("our write is accepted, and the invoice says {NEWER}"),
        invoice.set_total(total, new) && invoice.total() == NEWER,
    )?;
    check(
        format!("without our claim, {late} that were accepted are lost"),
        unclaimed.set_total(without_claim, new) && unclaimed.total() == NEWER,
    )?;
    unprotected.overwrite(without_gate);
    check(
        "so they are in an invoice that accepts every write",
        unprotected.total() == NEWER,
    )?;
    println!();

    let held: bool = other.reads("is_held")?;
    println!(
        "With one more check it would have known. But another pause can come right after that check."
    );
    check("when it woke up, is_held() was false", !held)?;
    other.end()?;
    // The end of the other process has not affected our lock.
    guard.unlock()?;
    Ok(())
}
