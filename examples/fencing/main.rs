//! What no lock can prevent, and how a fence does: a holder that is paused past its TTL, wakes up and writes.
//!
//!     cargo run --features memory --example fencing
//!     cargo run --example fencing
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example fencing
//!
//! One who holds the lock makes sure of it, and is paused right after: in life by a suspended virtual machine, by
//! swapping, by the lid of a laptop. Its lease ends, the lock goes to the next in the queue, who writes. Then it
//! wakes up in the middle of its own write. However late it had looked, the pause could have come later still, so
//! it is the resource that must refuse: every grant has a larger fence than all before it, and every write carries
//! the fence that it was made under.
//!
//! `invoice.rs` has the resource, which is the part to copy, and how the same is done in SQL and in Redis.
//! `holder.rs` has the one that is paused. On a Redis that is this program, started again, which stops itself with
//! SIGSTOP. In memory, where there is one process only, it is a thread whose lease is ended by `Memory::lapse`.
//! With `REDIS_URL` it uses that Redis; without, an in-memory store if it is built with one, and else a private
//! redis-server. It ends with 0 if all was as it should be, with 1 if not, with 2 without a store.

mod holder;
mod invoice;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;

use fairlock::PreviousHolder;
use holder::{Holder, LATE, manager};
use invoice::Invoice;
use support::{Outcome, PATIENCE, Store, check, ended, own_name, play};

/// What we write; the one who is paused writes [`LATE`].
const NEWER: u32 = 200;

fn main() -> ExitCode {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, name] if role == "holder" => ended(holder::be_a_process(name)),
        _ => play(fencing),
    }
}

fn fencing(store: &Store) -> Outcome {
    let name = own_name("invoices:42");
    let mgr = manager(store)?;
    let invoice = Invoice::default();
    // One that is written to by whoever comes, to show what would become of it.
    let careless = Invoice::default();

    let mut other = Holder::start(store, &name)?;
    let old: u64 = other.says("holds")?;
    println!(
        "Another holds the lock, with fence {old}. It has made sure of that, wants to write a total of {LATE},"
    );
    println!("and is paused.");
    println!();

    // The other does not renew its lease, so this takes one TTL.
    let guard = mgr
        .try_lock_for(&name, PATIENCE)?
        .ok_or("the lock of one that is paused never came")?;
    let new = guard.fence();
    println!(
        "Its lease has ended, and we have the lock, with fence {new}. We write a total of {NEWER}."
    );
    check(
        "we are told that the one before us did not finish",
        guard.previous_holder() == PreviousHolder::Lapsed,
    )?;
    check("our fence is larger", new > old)?;
    check("our write is let in", invoice.set_total(NEWER, new))?;
    careless.overwrite(NEWER);
    println!();

    other.go_on()?;
    let total: u32 = other.says("writes")?;
    let fence: u64 = other.says("under")?;
    println!("The other goes on where it was: it writes a total of {total}, with fence {fence}.");
    check("its write is refused", !invoice.set_total(total, fence))?;
    check(
        format!("the invoice says {NEWER}"),
        invoice.total() == NEWER,
    )?;
    println!();

    careless.overwrite(total);
    println!("Without a gate, the late write would have gone through.");
    check(
        format!("an invoice that takes every write says {LATE}"),
        careless.total() == LATE,
    )?;
    println!();

    let held: bool = other.says("is_held")?;
    println!(
        "Had it looked once more, it would have known. But the next pause can come right after that look."
    );
    check("when it woke up, is_held() was false", !held)?;
    other.end()?;
    // Its end has done nothing to our lock.
    guard.unlock()?;
    Ok(())
}
