//! Pays each invoice once, through a provider that knows nothing of locks and fences.
//!
//!     cargo run --features memory --example payment
//!     cargo run --example payment
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example payment
//!
//! The database can refuse a holder that lost its lock. The provider cannot: a call that was about
//! to go out still goes out. So the call is made harmless to repeat. Before the call, the holder
//! stores in its claimed row which attempt it will ask for. The number of the attempt is the
//! idempotency key, and the next holder asks for the same attempt. There is another attempt only
//! after the provider's final no.
//!
//! One limit is left. Providers forget a key after some time, often a day. A holder that is stopped
//! for longer than that, just before the call, can charge twice.
//!
//! `pay.rs` has the payment, which is the part to copy. `table.rs` in `examples/support` stands for
//! the database, and has each statement in SQL.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod pay;
mod provider;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/table.rs"]
mod table;

use std::process::ExitCode;

use fairlock::LockManager;
use pay::{Answer, Invoice, Invoices, Payment, State, pay};
use provider::Provider;
use support::{Outcome, Store, check, own_name, run};
use table::Table;

const AMOUNT: u32 = 42;

impl Invoices for Table<Invoice> {
    type Error = fairlock::Error;

    fn claim(&self, id: &str, fence: u64) -> fairlock::Result<bool> {
        Ok(self.claim(id, fence))
    }

    fn read(&self, id: &str) -> fairlock::Result<Invoice> {
        Ok(self.read(id))
    }

    fn write(&self, id: &str, fence: u64, state: State) -> fairlock::Result<bool> {
        Ok(self.write([(id, fence)], |[invoice]| invoice.state = state))
    }
}

fn main() -> ExitCode {
    run(payment)
}

fn payment(store: &Store) -> Outcome {
    let provider = Provider::default();
    let invoices = Table::<Invoice>::default();
    let (ours, theirs) = (LockManager::connect(store)?, LockManager::connect(store)?);

    println!("An invoice is paid.");
    let name = write_invoice(&ours, &invoices)?;
    let charge = |key: &str, amount| provider.charge(key, amount);
    let first = pay(&ours, &invoices, &name, charge)?;
    check("it is paid", matches!(first, Payment::Paid { .. }))?;
    let second = pay(&theirs, &invoices, &name, charge)?;
    check(
        "a second try finds it paid",
        matches!(second, Payment::PaidBefore { .. }),
    )?;
    check("it was charged once", provider.charged(&name) == [AMOUNT])?;
    println!();

    println!("The provider's answer is lost.");
    let name = write_invoice(&ours, &invoices)?;
    let lost = pay(&ours, &invoices, &name, |key, amount| {
        provider.charge(key, amount);
        Answer::Unknown
    })?;
    check("nobody knows whether it is paid", lost == Payment::Unknown)?;
    let again = pay(&theirs, &invoices, &name, charge)?;
    check(
        "the next holder asks with the same key, and has the receipt",
        matches!(again, Payment::Paid { .. }),
    )?;
    check("it was charged once", provider.charged(&name) == [AMOUNT])?;
    println!();

    println!("The provider declines, and later does not.");
    let name = write_invoice(&ours, &invoices)?;
    provider.decline(true);
    let declined = pay(&ours, &invoices, &name, charge)?;
    provider.decline(false);
    let paid = pay(&theirs, &invoices, &name, charge)?;
    check(
        "the second attempt has another key, and is paid",
        declined == Payment::Declined && matches!(paid, Payment::Paid { .. }),
    )?;
    check("it was charged once", provider.charged(&name) == [AMOUNT])?;
    println!();

    println!("A holder is paused just before its call, and loses the lock.");
    let name = write_invoice(&ours, &invoices)?;
    let late = pay(&ours, &invoices, &name, |key, amount| {
        if let Err(error) = pay_in_between(&theirs, &invoices, &name, &provider) {
            println!("  {error}");
        }
        provider.charge(key, amount)
    })?;
    check(
        "its late call was made, and its record was refused",
        late == Payment::Overtaken,
    )?;
    check(
        "the newer holder has paid",
        matches!(invoices.read(&name).state, State::Paid { .. }),
    )?;
    check("it was charged once", provider.charged(&name) == [AMOUNT])
}

/// Takes the lock away from its holder, and pays.
fn pay_in_between(
    mgr: &LockManager,
    invoices: &Table<Invoice>,
    name: &str,
    provider: &Provider,
) -> Outcome {
    let seen = mgr.inspect(name)?.ok_or("nobody holds the lock")?;
    mgr.force_release(name, seen.fence)?;
    pay(mgr, invoices, name, |key, amount| {
        provider.charge(key, amount)
    })?;
    Ok(())
}

/// Writes an invoice, in a turn of its own. Returns its name.
fn write_invoice(mgr: &LockManager, invoices: &Table<Invoice>) -> Outcome<String> {
    let name = own_name("invoices");
    let guard = mgr.lock(&name)?;
    let claim = (&*name, guard.fence());
    let written = invoices.claim(&name, guard.fence())
        && invoices.write([claim], |[invoice]| invoice.amount = AMOUNT);
    guard.unlock()?;
    check("an invoice is written", written)?;
    Ok(name)
}
