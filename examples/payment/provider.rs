//! Stands for the provider. It remembers its answer to each idempotency key.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::pay::Answer;

#[derive(Default)]
pub(crate) struct Provider(Mutex<Books>);

#[derive(Default)]
struct Books {
    answers: BTreeMap<String, Answer>,
    /// The keys that were charged, and the amounts.
    charged: Vec<(String, u32)>,
    declines: bool,
}

impl Provider {
    pub(crate) fn charge(&self, key: &str, amount: u32) -> Answer {
        let mut books = self.0.lock().unwrap();
        if let Some(answer) = books.answers.get(key) {
            return *answer;
        }
        let answer = if books.declines {
            Answer::Declined
        } else {
            books.charged.push((key.to_owned(), amount));
            Answer::Charged {
                receipt: books.charged.len() as u64,
            }
        };
        books.answers.insert(key.to_owned(), answer);
        answer
    }

    /// Whether it declines what it is asked for from now on.
    pub(crate) fn decline(&self, declines: bool) {
        self.0.lock().unwrap().declines = declines;
    }

    /// All amounts that were charged for an invoice.
    pub(crate) fn charged(&self, invoice: &str) -> Vec<u32> {
        let books = self.0.lock().unwrap();
        let of_invoice = |key: &str| {
            key.rsplit_once('/')
                .is_some_and(|(name, _)| name == invoice)
        };
        let charged = books.charged.iter();
        charged
            .filter(|(key, _)| of_invoice(key))
            .map(|(_, amount)| *amount)
            .collect()
    }
}
