//! All sentinels of a service, asked at once.

use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::question::{MasterAnswer, SentinelConnection, ask};
use crate::error::Step;
use crate::logging::Logger;
use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::{Address, SentinelSettings, ServerSettings, StoreFault};

/// The sentinels. One resolution at a time uses them.
pub(super) struct Panel {
    service: Arc<str>,
    caller_id: Arc<CallerId>,
    clock: Clock,
    sentinels: Vec<SentinelState>,
    outcomes: (Sender<QuestionEnd>, Receiver<QuestionEnd>),
    round: u64,
}

struct SentinelState {
    settings: Arc<ServerSettings>,
    /// Kept from one question to the next.
    connection: Option<SentinelConnection>,
    /// The last answer, so that it counts once however many addresses it has. `None`: nobody
    /// knows.
    id: Option<Arc<str>>,
    /// The first one before it that is the same sentinel.
    twin: Option<usize>,
    /// A thread asks it. Resolving its name may take that thread forever, so there is no second one.
    is_asked: bool,
    /// It did not answer in time when it was asked last. It is asked again, but nobody waits for it
    /// alone.
    is_silent: bool,
}

/// The outcome of a question to one sentinel.
struct QuestionEnd {
    round: u64,
    index: usize,
    connection: Option<SentinelConnection>,
    answer: Result<MasterAnswer, StoreFault>,
}

/// The answers of the sentinels, one of each, whatever addresses it has. Those that did not answer
/// have a fault.
pub(super) type Answers = Vec<Result<MasterAnswer, StoreFault>>;

impl Panel {
    pub(super) fn new(
        settings: &SentinelSettings,
        caller_id: &Arc<CallerId>,
        clock: &Clock,
    ) -> Panel {
        let sentinel = |address: &Address| SentinelState {
            settings: Arc::new(ServerSettings {
                address: address.clone(),
                login: settings.sentinel_login.clone(),
            }),
            connection: None,
            id: None,
            twin: None,
            is_asked: false,
            is_silent: false,
        };
        Panel {
            service: settings.service.as_str().into(),
            caller_id: Arc::clone(caller_id),
            clock: clock.clone(),
            sentinels: each_once(&settings.sentinels).map(sentinel).collect(),
            outcomes: unbounded(),
            round: 0,
        }
    }

    /// Asks all sentinels, and waits for each that answered the last time. Blocks until `until` at
    /// most.
    ///
    /// The first answer may be stale: a sentinel that was stopped for a while names an old master.
    /// So the answers of all count, each on a thread of its own, since a stopped sentinel still
    /// accepts connections.
    pub(super) fn ask_all(&mut self, until: Time) -> Answers {
        self.round += 1;
        while let Ok(late) = self.outcomes.1.try_recv() {
            self.take_back(late);
        }
        let mut answers: Vec<Option<Result<MasterAnswer, StoreFault>>> = Vec::new();
        for index in 0..self.sentinels.len() {
            answers.push(self.begin(index, until).err().map(Err));
        }
        while self.is_worth_waiting(&answers)
            && let Some(outcome) = self.clock.receive(&self.outcomes.1, until)
        {
            if let Some((index, answer)) = self.take_back(outcome) {
                answers[index] = Some(answer);
            }
        }
        for (sentinel, answer) in self.sentinels.iter_mut().zip(&answers) {
            sentinel.is_silent = !matches!(answer, Some(Ok(_)));
        }
        let late = || Err(StoreFault::timed_out(Step::Reply));
        let answers = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(late))
            .collect();
        self.find_twins();
        one_of_each(answers, self.sentinels.iter().map(|s| s.twin))
    }

    /// Two addresses may lead to one sentinel: `localhost` and `127.0.0.1`, an alias, a virtual
    /// address.
    fn find_twins(&mut self) {
        for index in 0..self.sentinels.len() {
            let (before, rest) = self.sentinels.split_at_mut(index);
            let sentinel = &mut rest[0];
            let is_same = |one: &SentinelState| one.id.is_some() && one.id == sentinel.id;
            let twin = before.iter().position(is_same);
            if let (Some(first), None) = (twin, sentinel.twin) {
                log::warn!(
                    logger: Logger,
                    "{} and {} are the same sentinel, which counts once",
                    before[first].settings.address,
                    sentinel.settings.address
                );
            }
            sentinel.twin = twin;
        }
    }

    /// The sentinels that did not answer, and why.
    pub(super) fn faults<'a>(&'a self, answers: &'a Answers) -> Vec<(&'a Address, &'a StoreFault)> {
        let each = self.sentinels.iter().filter(|one| one.twin.is_none());
        each.zip(answers)
            .filter_map(|(sentinel, answer)| {
                let fault = answer.as_ref().err()?;
                Some((&sentinel.settings.address, fault))
            })
            .collect()
    }

    /// All sentinels, for an error that is about none of them alone.
    pub(super) fn addresses(&self) -> Arc<str> {
        let all = self
            .sentinels
            .iter()
            .map(|s| s.settings.address.to_string());
        all.collect::<Vec<_>>().join(", ").into()
    }

    /// Has a thread ask a sentinel, unless one still does.
    fn begin(&mut self, index: usize, until: Time) -> Result<(), StoreFault> {
        let sentinel = &mut self.sentinels[index];
        if sentinel.is_asked {
            return Err(StoreFault::timed_out(Step::Connect));
        }
        let settings = Arc::clone(&sentinel.settings);
        let open = sentinel.connection.take();
        let service = Arc::clone(&self.service);
        let caller_id = Arc::clone(&self.caller_id);
        let clock = self.clock.clone();
        let outcomes = self.outcomes.0.clone();
        let round = self.round;
        thread::Builder::new()
            .name("fairlock-sentinel".to_owned())
            .spawn(move || {
                let (connection, answer) =
                    ask(open, &settings, &service, (&caller_id, &clock), until);
                // The panel may be gone.
                let _ = outcomes.send(QuestionEnd {
                    round,
                    index,
                    connection,
                    answer,
                });
            })
            .map_err(StoreFault::no_thread)?;
        sentinel.is_asked = true;
        Ok(())
    }

    /// Takes the connection back. Returns the answer if it is to the question of this round: an
    /// older one may be stale.
    fn take_back(
        &mut self,
        outcome: QuestionEnd,
    ) -> Option<(usize, Result<MasterAnswer, StoreFault>)> {
        let sentinel = &mut self.sentinels[outcome.index];
        sentinel.is_asked = false;
        if let Some(open) = &outcome.connection {
            sentinel.id = open.id().cloned();
        }
        sentinel.connection = outcome.connection;
        // It is awaited again, although others may have answered sooner.
        sentinel.is_silent &= outcome.answer.is_err();
        (outcome.round == self.round).then_some((outcome.index, outcome.answer))
    }

    fn is_worth_waiting(&self, answers: &[Option<Result<MasterAnswer, StoreFault>>]) -> bool {
        let has_answer = answers.iter().flatten().any(Result::is_ok);
        let mut awaited = self.sentinels.iter().zip(answers);
        awaited.any(|(sentinel, answer)| answer.is_none() && !(sentinel.is_silent && has_answer))
    }
}

/// The addresses, each once.
fn each_once(addresses: &[Address]) -> impl Iterator<Item = &Address> {
    let is_first = |(index, one): &(usize, &Address)| !addresses[..*index].contains(one);
    let all = addresses.iter().enumerate();
    all.filter(is_first).map(|(_, address)| address)
}

/// The answers without those of twins. If the answers of one sentinel differ, the newest counts.
fn one_of_each(all: Answers, twins: impl Iterator<Item = Option<usize>>) -> Answers {
    let mut of: Vec<Option<Result<MasterAnswer, StoreFault>>> = Vec::new();
    for (answer, twin) in all.into_iter().zip(twins) {
        match twin.and_then(|first| of[first].as_mut()) {
            Some(first) if newness(&answer) > newness(first) => *first = answer,
            Some(_) => {}
            None => {
                of.push(Some(answer));
                continue;
            }
        }
        of.push(None);
    }
    of.into_iter().flatten().collect()
}

/// A fault is less than an answer.
fn newness(answer: &Result<MasterAnswer, StoreFault>) -> Option<Option<u64>> {
    answer.as_ref().ok().map(|answer| match answer {
        MasterAnswer::Named(named) => Some(named.config_epoch),
        MasterAnswer::UnknownService => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::question::Named;
    use super::*;

    fn at(host: &str) -> Address {
        Address::Tcp(host.to_owned(), 26379)
    }

    fn named(config_epoch: u64) -> Result<MasterAnswer, StoreFault> {
        Ok(MasterAnswer::Named(Named {
            config_epoch,
            address: at("master"),
        }))
    }

    fn silent() -> Result<MasterAnswer, StoreFault> {
        Err(StoreFault::timed_out(Step::Reply))
    }

    fn counted(all: Answers, twins: &[Option<usize>]) -> Vec<Option<Option<u64>>> {
        let counted = one_of_each(all, twins.iter().copied());
        counted.iter().map(newness).collect()
    }

    #[test]
    fn sentinel_at_several_addresses_has_its_newest_answer_alone() {
        let twins = [None, None, Some(0), Some(0), Some(1)];
        let unknown = || Ok(MasterAnswer::UnknownService);
        let all = vec![named(3), unknown(), silent(), named(4), named(0)];
        assert_eq!(counted(all, &twins), [Some(Some(4)), Some(Some(0))]);
        let all = vec![silent(), silent(), silent(), silent(), unknown()];
        assert_eq!(counted(all, &twins), [None, Some(None)]);
        let all = vec![named(1), silent(), named(1)];
        assert_eq!(
            counted(all, &[None; 3]),
            [Some(Some(1)), None, Some(Some(1))]
        );
    }

    #[test]
    fn address_that_is_listed_twice_is_asked_once() {
        let all = [at("a"), at("b"), at("a"), at("a"), at("c"), at("b")];
        let each: Vec<&Address> = each_once(&all).collect();
        assert_eq!(each, [&at("a"), &at("b"), &at("c")]);
    }
}
