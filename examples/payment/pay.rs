//! A payment through a provider that checks no fence. Copy this file.

use fairlock::LockManager;

use super::Table;

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
    /// The provider may have been asked for this attempt. Stored before the first call, and kept
    /// until the provider's final answer is known.
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
    /// The provider's answer is not known. The next call asks again, with the same key.
    Unknown,
    /// The lock was lost, and a newer holder has claimed the invoice. It does the rest.
    Overtaken,
}

/// Pays an invoice once, however late a statement or the provider's answer comes.
///
/// `charge` asks the provider with an idempotency key and an amount. If the provider knows the key,
/// it charges nothing and repeats its first answer.
pub(crate) fn pay(
    mgr: &LockManager,
    invoices: &Table<Invoice>,
    name: &str,
    charge: impl Fn(&str, u32) -> Answer,
) -> fairlock::Result<Payment> {
    let guard = mgr.lock(name)?;
    let claim = (name, guard.fence());
    // 1. Claim the invoice, before it is read.
    if !invoices.claim(name, guard.fence()) {
        return Ok(Payment::Overtaken);
    }
    // 2. Read how far the payment is.
    let invoice = invoices.read(name);
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
    if is_new && !invoices.write([claim], |[invoice]| invoice.state = State::Paying(attempt)) {
        return Ok(Payment::Overtaken);
    }
    // This only saves a useless call: the lock may be lost right after it.
    guard.check()?;
    // 4. Ask. The key names the attempt, not the fence: whoever asks for this attempt uses it.
    let key = format!("{name}/{}", attempt.number);
    let (state, payment) = match charge(&key, attempt.amount) {
        Answer::Charged { receipt } => (State::Paid { receipt }, Payment::Paid { receipt }),
        Answer::Declined => (State::Declined(attempt), Payment::Declined),
        Answer::Unknown => return Ok(Payment::Unknown),
    };
    // 5. Record the answer, under the claim. If a newer holder is here, it gets the same answer.
    if !invoices.write([claim], |[invoice]| invoice.state = state) {
        return Ok(Payment::Overtaken);
    }
    Ok(payment)
}
