//! Which of the configurations that the sentinels name counts. Nothing here asks a server.
//!
//! Each failover gives a configuration a higher epoch. So the newest one counts, whoever names it:
//! the first sentinel that knows of a failover is right. Epochs can be wrong, too. Sentinels that
//! are set up anew count from 0 again, and one sentinel may have a far higher epoch than the others.
//! So a majority that names another master counts as well, if the known master is gone. From then on
//! no single sentinel can bring back what the majority has overruled.

use std::fmt;
use std::time::Duration;

use super::panel::Answers;
use super::question::{MasterAnswer, Named};
use crate::store::Address;
use crate::store::clock::Time;

/// How long a majority must name a master of an older configuration before it is followed. Sentinels
/// tell each other every two seconds what they know: one that was just started names the master of
/// its file until then.
pub(super) const AGREED_FOR: Duration = Duration::from_secs(5);

/// The configuration that the current master belongs to.
pub(super) struct Known {
    /// The server that the sentinels named for the current master. It is another one than that
    /// master if it was a replica, and its master was taken.
    named: Address,
    /// An older configuration is stale.
    epoch: u64,
    /// A configuration up to this epoch may have been overruled. It counts only if a majority names
    /// its server.
    overruled: Option<u64>,
    /// A majority names the master of an older configuration: which one, and since when.
    agreed: Option<(Address, Time)>,
}

/// The server that a majority of all sentinels names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Majority {
    pub(super) address: Address,
    sentinels: usize,
    of: usize,
    /// The lowest epoch that they name it with.
    pub(super) epoch: u64,
}

impl fmt::Display for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} sentinels", self.sentinels, self.of)
    }
}

impl Known {
    pub(super) fn new(named: &Named) -> Known {
        Known {
            named: named.address.clone(),
            epoch: named.config_epoch,
            overruled: None,
            agreed: None,
        }
    }

    pub(super) fn names(&self, address: &Address) -> bool {
        self.named == *address
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The newest configuration that is named and that counts.
    pub(super) fn newest<'a>(&self, answers: &'a Answers) -> Option<&'a Named> {
        let majority = majority(answers);
        newest_of(answers, |named| {
            let is_agreed = || {
                majority
                    .as_ref()
                    .is_some_and(|m| m.address == named.address)
            };
            let may_be_overruled = self
                .overruled
                .is_some_and(|upto| named.config_epoch <= upto);
            named.config_epoch >= self.epoch
                && (!may_be_overruled || self.names(&named.address) || is_agreed())
        })
    }

    /// The master of this configuration is the current one.
    pub(super) fn follow(&mut self, named: &Named) {
        self.agreed = None;
        // One sentinel of the old count must not make the new count look old.
        let is_old_count = self
            .overruled
            .is_some_and(|upto| named.config_epoch <= upto);
        if self.names(&named.address) && is_old_count {
            return;
        }
        self.named = named.address.clone();
        self.epoch = named.config_epoch;
    }

    /// The master that a majority names is the current one. Other answers with an epoch up to the
    /// highest that is known or named count no more.
    pub(super) fn follow_majority(&mut self, majority: &Majority, answers: &Answers) {
        let highest = newest_of(answers, |_| true).map_or(0, |named| named.config_epoch);
        self.overruled = self.overruled.max(Some(highest.max(self.epoch)));
        self.named = majority.address.clone();
        self.epoch = majority.epoch;
        self.agreed = None;
    }

    /// A majority names the master of an older configuration, and the known master is silent. Returns
    /// since when.
    pub(super) fn agreed_since(&mut self, address: &Address, now: Time) -> Time {
        match &self.agreed {
            Some((agreed, since)) if agreed == address => *since,
            _ => {
                self.agreed = Some((address.clone(), now));
                now
            }
        }
    }

    /// There is no such majority, or the known master answers.
    pub(super) fn forget_agreed(&mut self) {
        self.agreed = None;
    }
}

/// The newest configuration among the answers.
pub(super) fn newest(answers: &Answers) -> Option<&Named> {
    newest_of(answers, |_| true)
}

fn newest_of(answers: &Answers, counts: impl Fn(&Named) -> bool) -> Option<&Named> {
    // Among equal ones the first counts, in the order of the settings.
    named_by(answers)
        .filter(|named| counts(named))
        .reduce(|first, next| {
            if next.config_epoch > first.config_epoch {
                next
            } else {
                first
            }
        })
}

/// The server that a majority names. Sentinels that do not answer count, too: so no two majorities
/// name two servers at a time.
pub(super) fn majority(answers: &Answers) -> Option<Majority> {
    named_by(answers).find_map(|candidate| {
        let of = named_by(answers).filter(|named| named.address == candidate.address);
        let sentinels = of.clone().count();
        (sentinels > answers.len() / 2).then(|| Majority {
            address: candidate.address.clone(),
            sentinels,
            of: answers.len(),
            epoch: of.map(|named| named.config_epoch).min().unwrap_or(0),
        })
    })
}

fn named_by(answers: &Answers) -> impl Iterator<Item = &Named> + Clone {
    answers.iter().flatten().filter_map(|answer| match answer {
        MasterAnswer::Named(named) => Some(named),
        MasterAnswer::UnknownService => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;
    use crate::store::StoreFault;

    type OneAnswer = Result<MasterAnswer, StoreFault>;

    fn at(host: &str) -> Address {
        Address::Tcp(host.to_owned(), 6379)
    }

    fn config(config_epoch: u64, host: &str) -> Named {
        Named {
            config_epoch,
            address: at(host),
        }
    }

    fn named(config_epoch: u64, host: &str) -> OneAnswer {
        Ok(MasterAnswer::Named(config(config_epoch, host)))
    }

    fn silent() -> OneAnswer {
        Err(StoreFault::timed_out(Step::Reply))
    }

    fn newest_known(known: &Known, answers: &Answers) -> Option<Address> {
        Some(known.newest(answers)?.address.clone())
    }

    #[test]
    fn newest_configuration_counts_whoever_answers_first() {
        let answers = vec![
            named(3, "old"),
            silent(),
            named(4, "new"),
            Ok(MasterAnswer::UnknownService),
            named(3, "old"),
        ];
        assert_eq!(
            newest(&answers).map(|named| &named.address),
            Some(&at("new"))
        );
        for epoch in [3, 4] {
            let known = Known::new(&config(epoch, "old"));
            assert_eq!(newest_known(&known, &answers), Some(at("new")));
        }
    }

    #[test]
    fn older_configuration_than_one_known_does_not_count() {
        let answers = vec![named(3, "old"), named(4, "less old")];
        let known = Known::new(&config(5, "newest"));
        assert_eq!(newest_known(&known, &answers), None);
    }

    #[test]
    fn majority_is_of_all_sentinels_also_of_silent_ones() {
        let is_agreed = |answers: Answers| majority(&answers).map(|m| (m.address, m.epoch));
        let new = Some((at("new"), 0));
        assert_eq!(is_agreed(vec![named(0, "new")]), new);
        assert_eq!(is_agreed(vec![named(0, "new"), silent()]), None);
        assert_eq!(is_agreed(vec![named(0, "new"), silent(), silent()]), None);
        let two = vec![named(9, "old"), named(0, "new"), named(1, "new")];
        assert_eq!(is_agreed(two), new);
        let two_of_five = vec![
            silent(),
            silent(),
            named(0, "new"),
            named(0, "new"),
            silent(),
        ];
        assert_eq!(is_agreed(two_of_five), None);
        let three_of_five = vec![
            named(9, "old"),
            silent(),
            named(0, "new"),
            named(0, "new"),
            named(0, "new"),
        ];
        assert_eq!(is_agreed(three_of_five), new);
    }

    /// The sentinels were set up anew. One of the old ones comes back, and goes.
    #[test]
    fn overruled_configuration_does_not_come_back_by_one_sentinel() {
        let mut known = Known::new(&config(7, "old"));
        let anew = vec![named(7, "old"), named(0, "new"), named(0, "new")];
        let agreed = majority(&anew).expect("two of three");
        known.follow_majority(&agreed, &anew);
        assert_eq!(newest_known(&known, &anew), Some(at("new")));
        for stale in [named(7, "old"), named(6, "older"), named(1, "old")] {
            let answers = vec![stale.clone(), named(0, "new"), silent()];
            assert_eq!(newest_known(&known, &answers), Some(at("new")));
            let answers = vec![stale, silent(), silent()];
            assert_eq!(newest_known(&known, &answers), None);
        }
        // The next failover in the new count: a majority is awaited.
        let begun = vec![named(7, "old"), named(1, "next"), named(0, "new")];
        assert_eq!(newest_known(&known, &begun), Some(at("new")));
        let done = vec![named(7, "old"), named(1, "next"), named(1, "next")];
        assert_eq!(newest_known(&known, &done), Some(at("next")));
        // A majority that comes to agree with the overruled one is right.
        let healed = vec![named(7, "old"), named(7, "old"), named(0, "new")];
        assert_eq!(newest_known(&known, &healed), Some(at("old")));
        // Beyond what was overruled, one sentinel is enough again.
        let beyond = vec![named(8, "next"), named(0, "new"), named(0, "new")];
        assert_eq!(newest_known(&known, &beyond), Some(at("next")));
    }

    #[test]
    fn time_of_an_agreement_begins_anew_with_another_server() {
        let mut known = Known::new(&config(7, "old"));
        let begin = Time::from_nanos(0);
        let later = begin + Duration::from_secs(1);
        assert_eq!(known.agreed_since(&at("a"), begin), begin);
        assert_eq!(known.agreed_since(&at("a"), later), begin);
        assert_eq!(known.agreed_since(&at("b"), later), later);
        known.forget_agreed();
        assert_eq!(known.agreed_since(&at("b"), begin), begin);
    }
}
