//! Moves money between two accounts. Each account has its own lock, and a transfer holds both.
//!
//!     cargo run --features memory --example transfer
//!     cargo run --example transfer
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example transfer
//!
//! Suppose that each transfer locked first the account that pays and then the other. Two transfers
//! in opposite directions would deadlock: each would hold what the other waits for. `lock_all`
//! takes both locks or none, whatever the order of the names, and returns one guard. If one of the
//! two is lost, both are. Each name has its own fence, and each account remembers the newest fence
//! of its own.
//!
//! `account.rs` has the transfer, which is the part to copy. It first claims both accounts with
//! their fences, then reads them, then writes both in one transaction. `table.rs` in
//! `examples/support` stands for the database, and has each statement in SQL.
//!
//! Here four clerks move money around in a ring. Each clerk is a thread with its own manager. Then
//! somebody takes a lock away from one clerk in the middle of a transfer.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod account;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/table.rs"]
mod table;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use account::{Account, Transfer, transfer};
use fairlock::{Error, LockManager};
use support::{Outcome, Store, check, own_name, run, until};
use table::Table;

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 25;
const OPENING: i64 = 100;

fn main() -> ExitCode {
    run(transfers)
}

fn transfers(store: &Store) -> Outcome {
    let names: Vec<String> = (0..ACCOUNTS)
        .map(|i| own_name(&format!("account:{i}")))
        .collect();
    let accounts = Table::<Account>::default();
    let clerks: Vec<LockManager> = names
        .iter()
        .map(|_| LockManager::connect(store))
        .collect::<fairlock::Result<_>>()?;
    for name in &names {
        open(&clerks[0], &accounts, name)?;
    }

    println!(
        "{ACCOUNTS} clerks try {TRANSFERS} transfers each, half of them in the opposite direction."
    );
    let moved: fairlock::Result<Vec<usize>> = thread::scope(|scope| {
        let work = |clerk: usize| {
            let mut moved = 0;
            for turn in 0..TRANSFERS {
                let next = (clerk + 1) % ACCOUNTS;
                let (from, to) = if turn % 2 == 0 {
                    (clerk, next)
                } else {
                    (next, clerk)
                };
                let (from, to) = (&names[from], &names[to]);
                let result = transfer(&clerks[clerk], &accounts, from, to, 7)?;
                moved += usize::from(result == Transfer::Booked);
            }
            Ok(moved)
        };
        let threads: Vec<_> = (0..ACCOUNTS)
            .map(|clerk| scope.spawn(move || work(clerk)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a clerk does not panic"))
            .collect()
    });
    check(
        format!(
            "there was no deadlock, and {} transfers were made",
            moved?.iter().sum::<usize>()
        ),
        true,
    )?;
    check(
        "the total of all accounts is unchanged",
        total(&accounts, &names) == OPENING * ACCOUNTS as i64,
    )?;
    println!();

    println!("One of two locks is released by force.");
    let (from, to) = (&names[0], &names[1]);
    let both = clerks[0].lock_all([from, to])?;
    let fence = |name: &str| both.fence(name).ok_or("the guard has no such name");
    let claims = [(&**from, fence(from)?), (&**to, fence(to)?)];
    check(
        "the first clerk claims both accounts",
        claims
            .iter()
            .all(|(name, fence)| accounts.claim(name, *fence)),
    )?;
    check(
        "the lock of the second account is released by force",
        clerks[1].force_release(to, fence(to)?)?,
    )?;
    check(
        "another clerk moves money to the second account",
        transfer(&clerks[1], &accounts, &names[2], to, 1)? == Transfer::Booked,
    )?;
    check(
        "the first clerk's late transfer is refused completely",
        !accounts.write(claims, |[from, to]| {
            from.balance -= 1;
            to.balance += 1;
        }),
    )?;
    until("the first clerk learns of the loss", || Ok(!both.is_held()))?;
    let loss = both.lost().recv_timeout(Duration::from_secs(1))?;
    check(
        "the guard of both reports the loss of that one",
        &*loss.lock == to,
    )?;
    check(
        "the guard's next check fails",
        matches!(both.check(), Err(Error::Lost { .. })),
    )?;
    // Unlike drop, unlock waits until Redis has released what is left.
    check(
        "unlock reports the loss, and releases the other lock",
        matches!(both.unlock(), Err(Error::Lost { .. })),
    )?;
    check(
        "the total of all accounts is unchanged",
        total(&accounts, &names) == OPENING * ACCOUNTS as i64,
    )?;
    check(
        "both accounts are free again",
        clerks[2].try_lock_all([from, to])?.is_some(),
    )?;
    Ok(())
}

/// Opens an account in a turn of its own.
fn open(mgr: &LockManager, accounts: &Table<Account>, name: &str) -> Outcome {
    let guard = mgr.lock(name)?;
    let claim = (name, guard.fence());
    let opened = accounts.claim(name, guard.fence())
        && accounts.write([claim], |[account]| account.balance = OPENING);
    guard.unlock()?;
    if opened {
        Ok(())
    } else {
        Err(format!("somebody else uses {name}").into())
    }
}

fn total(accounts: &Table<Account>, names: &[String]) -> i64 {
    names.iter().map(|name| accounts.read(name).balance).sum()
}
