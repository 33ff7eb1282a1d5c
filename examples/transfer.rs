//! Money between two accounts, each with a lock of its own: whoever moves some holds both.
//!
//!     cargo run --features memory --example transfer
//!     cargo run --example transfer
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example transfer
//!
//! Who locks the account that pays, and then the one that is paid, meets somebody who moves money the other way: each
//! holds what the other waits for, for ever. `lock_all` takes both or none, in whatever order they are named, and gives
//! one guard. If one of the two is lost, so is the whole; and since each name has a fence of its own, each account checks
//! its own.
//!
//! Here four clerks, which are threads with a manager each, move money around in a ring, and then a lock is taken away
//! from one of them in the middle. With `REDIS_URL` it uses that Redis; without, an in-memory store if it is built with
//! one, and else a private redis-server. It ends with 0 if all was as it should be, with 1 if not, with 2 without a store.

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, MultiGuard};
use support::{Outcome, Store, check, own_name, play, until};

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 25;
const OPENING: i64 = 100;

/// Moves money; false if there is not enough. This is the part to copy.
fn transfer(
    mgr: &LockManager,
    bank: &Bank,
    from: &str,
    to: &str,
    amount: i64,
) -> fairlock::Result<bool> {
    let both = mgr.lock_all([from, to])?;
    let balance = bank.balance(from);
    if balance < amount {
        return Ok(false);
    }
    // Between two steps: a loss of either is a loss of both.
    both.check()?;
    Ok(bank.book(&both, from, to, amount))
}

fn main() -> ExitCode {
    play(transfers)
}

fn transfers(store: &Store) -> Outcome {
    let names: Vec<String> = (0..ACCOUNTS)
        .map(|i| own_name(&format!("account:{i}")))
        .collect();
    let bank = Bank::new(&names);
    let clerks: Vec<LockManager> = names
        .iter()
        .map(|_| LockManager::connect(store))
        .collect::<fairlock::Result<_>>()?;

    println!(
        "{ACCOUNTS} clerks make {TRANSFERS} transfers each, half of them against the others' direction."
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
                moved += usize::from(transfer(
                    &clerks[clerk],
                    &bank,
                    &names[from],
                    &names[to],
                    7,
                )?);
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
            "nobody waited for ever, and {} were made",
            moved?.iter().sum::<usize>()
        ),
        true,
    )?;
    check(
        "no money came or went",
        bank.total() == OPENING * ACCOUNTS as i64,
    )?;
    println!();

    println!("One lock of two is taken away by force.");
    let (from, to) = (&names[0], &names[1]);
    let both = clerks[0].lock_all([from, to])?;
    let fence = both.fence(to).ok_or("it is one of the two")?;
    check(
        "the second account's lock is released by force",
        clerks[1].force_release(to, fence)?,
    )?;
    check(
        "another clerk moves money to it meanwhile",
        transfer(&clerks[1], &bank, &names[2], to, 1)?,
    )?;
    check(
        "the first clerk's late booking is refused as a whole",
        !bank.book(&both, from, to, 1),
    )?;
    until("the first clerk is told", || Ok(!both.is_held()))?;
    let told = both.lost().recv_timeout(Duration::from_secs(1))?;
    check(
        "the loss of the one is told as the loss of both",
        &*told.name == to,
    )?;
    check(
        "and the next step is refused",
        matches!(both.check(), Err(Error::Lost { .. })),
    )?;
    drop(both);
    check(
        "no money came or went",
        bank.total() == OPENING * ACCOUNTS as i64,
    )?;
    check(
        "both accounts are free again",
        clerks[2].try_lock_all([from, to])?.is_some(),
    )?;
    Ok(())
}

/// In life a database. Each account remembers the largest fence that it has seen.
struct Bank(Mutex<Vec<Account>>);

struct Account {
    name: String,
    balance: i64,
    fence: u64,
}

impl Bank {
    fn new(names: &[String]) -> Bank {
        let account = |name: &String| Account {
            name: name.clone(),
            balance: OPENING,
            fence: 0,
        };
        Bank(Mutex::new(names.iter().map(account).collect()))
    }

    fn balance(&self, name: &str) -> i64 {
        let accounts = self.0.lock().unwrap();
        accounts
            .iter()
            .find(|account| account.name == name)
            .expect("an account of this bank")
            .balance
    }

    /// One transaction: all of it, or nothing if a newer holder of either account was here.
    fn book(&self, both: &MultiGuard, from: &str, to: &str, amount: i64) -> bool {
        let mut accounts = self.0.lock().unwrap();
        let fence = |name: &str| both.fence(name).expect("a name of the guard");
        let is_late = |account: &&Account| {
            [from, to].contains(&&*account.name) && fence(&account.name) < account.fence
        };
        if accounts.iter().any(|account| is_late(&account)) {
            return false;
        }
        for (name, change) in [(from, -amount), (to, amount)] {
            let account = accounts
                .iter_mut()
                .find(|account| account.name == name)
                .expect("an account of this bank");
            account.balance += change;
            account.fence = fence(name);
        }
        true
    }

    fn total(&self) -> i64 {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|account| account.balance)
            .sum()
    }
}
