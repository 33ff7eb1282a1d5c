//! The accounts, and a transfer between two of them. Copy this file.

use fairlock::LockManager;

use super::Table;

/// A row. Its id is the name of the account's lock.
#[derive(Clone, Default)]
pub(crate) struct Account {
    pub(crate) balance: i64,
}

/// The result of [`transfer`].
#[derive(Debug, PartialEq)]
pub(crate) enum Transfer {
    Booked,
    /// The account that pays has too little. Nothing was booked.
    TooLittle,
    /// The locks were lost, and a newer holder has claimed an account. Nothing was booked. You may
    /// try again.
    Overtaken,
}

/// Moves money. However late a statement comes, the books balance.
pub(crate) fn transfer(
    mgr: &LockManager,
    accounts: &Table<Account>,
    from: &str,
    to: &str,
    amount: i64,
) -> fairlock::Result<Transfer> {
    assert_ne!(from, to, "two accounts");
    let both = mgr.lock_all([from, to])?;
    let claims = [from, to].map(|name| {
        let fence = both.fence(name).expect("a name of the guard");
        (name, fence)
    });
    // First claim both accounts, each with the fence of its name. Only then read them.
    for (account, fence) in claims {
        if !accounts.claim(account, fence) {
            return Ok(Transfer::Overtaken);
        }
    }
    let (paying, receiving) = (accounts.read(from), accounts.read(to));
    if paying.balance < amount {
        return Ok(Transfer::TooLittle);
    }
    // This only saves useless work: the locks may be lost right after it.
    both.check()?;
    let booked = accounts.write(claims, |[from, to]| {
        from.balance = paying.balance - amount;
        to.balance = receiving.balance + amount;
    });
    Ok(match booked {
        true => Transfer::Booked,
        false => Transfer::Overtaken,
    })
}
