//! A payment through a provider that checks no fence. Copy this file.

use fairlock::LockManager;

/// The table of invoices. Each function is one statement. `false`: no row was found, so a newer
/// holder is there. MySQL and MariaDB have to be asked to count the rows that are found.
pub(crate) trait Invoices {
    /// Of the database. It is no count: the payment ends, and the next call begins with the claim.
    type Error: From<fairlock::Error>;
    /// `UPDATE invoices SET fence = :fence WHERE id = :id AND fence <= :fence`
    fn claim(&self, id: &str, fence: u64) -> Result<bool, Self::Error>;
    /// `SELECT … FROM invoices WHERE id = :id`
    fn read(&self, id: &str) -> Result<Invoice, Self::Error>;
    /// `UPDATE invoices SET … WHERE id = :id AND fence = :fence`
    fn write(&self, id: &str, fence: u64, state: State) -> Result<bool, Self::Error>;
}

/// A row. Its id is the name of the invoice's lock.
#[derive(Clone, Default)]
pub(crate) struct Invoice {
    pub(crate) amount: u32,
    pub(crate) state: State,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum State {
    #[default]
    Open,
    /// The provider may have been asked for this attempt.
    Paying(Attempt),
    /// The provider's final answer to this attempt was no.
    Declined(Attempt),
    Paid {
        receipt: u64,
    },
}

/// The request to the provider. One number always stands for one amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) number: u32,
    pub(crate) amount: u32,
}

/// The provider's answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Charged {
        receipt: u64,
    },
    /// Final: this key is never charged.
    Declined,
    /// A timeout, a closed connection, an error 500: it may have been charged.
    Unknown,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Payment {
    Paid {
        receipt: u64,
    },
    PaidBefore {
        receipt: u64,
    },
    Declined,
    /// The next call asks again, with the same key.
    Unknown,
    /// A newer holder has claimed the invoice. It does the rest.
    Overtaken,
}

/// Pays an invoice once. `charge` asks the provider with an idempotency key and an amount.
pub(crate) fn pay<I: Invoices>(
    mgr: &LockManager,
    invoices: &I,
    id: &str,
    charge: impl Fn(&str, u32) -> Answer,
) -> Result<Payment, I::Error> {
    let guard = mgr.lock(id)?;
    // 1. Claim the invoice, before it is read.
    if !invoices.claim(id, guard.fence())? {
        return Ok(Payment::Overtaken);
    }
    // 2. Read how far the payment is.
    let invoice = invoices.read(id)?;
    let next = |number| Attempt {
        number,
        amount: invoice.amount,
    };
    let (attempt, is_new) = match invoice.state {
        State::Paid { receipt } => return Ok(Payment::PaidBefore { receipt }),
        // A holder before us may have asked. So ask for the same again.
        State::Paying(attempt) => (attempt, false),
        State::Open => (next(1), true),
        // The last attempt is over for good, so this is another one.
        State::Declined(last) => (next(last.number + 1), true),
    };
    // 3. Store what the provider will be asked for, before it is asked.
    if is_new && !invoices.write(id, guard.fence(), State::Paying(attempt))? {
        return Ok(Payment::Overtaken);
    }
    // This only saves a useless call: the lock may be lost right after it.
    guard.check()?;
    // 4. Ask. The key names the attempt, not the fence: each holder uses the same.
    let key = format!("{id}/{}", attempt.number);
    let (state, payment) = match charge(&key, attempt.amount) {
        Answer::Charged { receipt } => (State::Paid { receipt }, Payment::Paid { receipt }),
        Answer::Declined => (State::Declined(attempt), Payment::Declined),
        Answer::Unknown => return Ok(Payment::Unknown),
    };
    // 5. Record the answer, under the claim. If a newer holder is here, it gets the same answer.
    if !invoices.write(id, guard.fence(), state)? {
        return Ok(Payment::Overtaken);
    }
    Ok(payment)
}
