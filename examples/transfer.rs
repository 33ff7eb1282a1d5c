//! Moves money between two accounts. Each account has its own lock, and a transfer holds both.
//!
//!     cargo run --features memory --example transfer
//!     cargo run --example transfer
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example transfer
//!
//! Suppose that each transfer locked first the account that pays and then the other. Two transfers
//! in opposite directions would deadlock: each would hold what the other waits for. `lock_all`
//! takes both locks or none, whatever the order of the names, and returns one guard. If one of the
//! two is lost, both are. Each name has its own fence, so each account checks its own.
//!
//! Here four clerks move money around in a ring. Each clerk is a thread with its own manager. Then
//! somebody takes a lock away from one clerk in the middle of a transfer.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, MultiGuard};
use support::{Outcome, Store, check, own_name, run, until};

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 25;
const OPENING: i64 = 100;

/// Moves money. `false` if there is not enough. Copy this function.
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
    // Check between two steps. The loss of one lock is the loss of both.
    both.check()?;
    Ok(bank.book(&both, from, to, amount))
}

fn main() -> ExitCode {
    run(transfers)
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
            "there was no deadlock, and {} transfers were made",
            moved?.iter().sum::<usize>()
        ),
        true,
    )?;
    check(
        "the total of all accounts is unchanged",
        bank.total() == OPENING * ACCOUNTS as i64,
    )?;
    println!();

    println!("One of two locks is released by force.");
    let (from, to) = (&names[0], &names[1]);
    let both = clerks[0].lock_all([from, to])?;
    let fence = both.fence(to).ok_or("the guard has no such name")?;
    check(
        "the lock of the second account is released by force",
        clerks[1].force_release(to, fence)?,
    )?;
    check(
        "another clerk moves money to the second account",
        transfer(&clerks[1], &bank, &names[2], to, 1)?,
    )?;
    check(
        "the first clerk's late transfer is refused completely",
        !bank.book(&both, from, to, 1),
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
        bank.total() == OPENING * ACCOUNTS as i64,
    )?;
    check(
        "both accounts are free again",
        clerks[2].try_lock_all([from, to])?.is_some(),
    )?;
    Ok(())
}

/// In a real program this is a database. Each account stores the largest fence that it has seen.
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

    /// One transaction. Changes nothing if a newer holder of either account has written already.
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
