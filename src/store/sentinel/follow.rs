//! One resolution: asks the sentinels, and goes to the master that they name.

use super::configuration::{AGREED_FOR, Majority, majority};
use super::finding::{fault_at, no_master};
use super::master::Master;
use super::panel::{Answers, Panel};
use super::resolver::{Resolver, Trouble};
use crate::error::Step;
use crate::logging::Logger;
use crate::store::StoreFault;

/// The state of the current master.
enum Followed {
    Same,
    Another,
}

impl Resolver {
    /// Asks the sentinels. If they name another master, connects to it and puts it in place.
    pub(super) fn resolve(
        &self,
        panel: &mut Panel,
        trouble: Option<Trouble>,
    ) -> Result<(), StoreFault> {
        let answers = panel.ask_all(self.clock.now() + self.opener.config.connect_timeout);
        let failed = match self.follow_newest(&answers, panel, trouble) {
            Ok(Followed::Another) => return Ok(()),
            Ok(Followed::Same) => None,
            Err(fault) => Some(fault),
        };
        if failed.is_some() || trouble.is_some() {
            self.follow_majority(&answers, trouble, failed)
        } else {
            self.state.lock().known.forget_agreed();
            Ok(())
        }
    }

    /// Goes to the master of the newest configuration that counts, if it is another one.
    fn follow_newest(
        &self,
        answers: &Answers,
        panel: &Panel,
        trouble: Option<Trouble>,
    ) -> Result<Followed, StoreFault> {
        let mut state = self.state.lock();
        let service = &self.settings.service;
        let Some(named) = state.known.newest(answers) else {
            return Err(no_master(service, panel, answers));
        };
        let old = self.master();
        let is_in_doubt = match trouble {
            None => false,
            // The sentinels may know nothing of a master that was found behind a replica.
            Some(Trouble::Silent) => *old.node.address() != named.address,
            Some(Trouble::Demoted) => true,
        };
        if state.is_stopping {
            return Ok(Followed::Another);
        }
        if state.known.names(&named.address) && !is_in_doubt {
            if state.known.epoch() < named.config_epoch {
                state.known.follow(named);
            }
            return Ok(Followed::Same);
        }
        drop(state);
        let until = self.clock.now() + self.opener.config.connect_timeout;
        let next = self
            .opener
            .open(&named.address, until)
            .map_err(|fault| fault_at(&named.address, service, fault))?;
        // Only now: an epoch without a master must not make other answers look old.
        self.state.lock().known.follow(named);
        Ok(self.put_in_place(next))
    }

    /// The newest configuration brought no other master, and the current one is in trouble or no
    /// configuration counts: goes to the master that a majority of the sentinels names, if there is
    /// such a majority. Otherwise `failed` is the result.
    ///
    /// Must not go back to an old master while the known one is only slow. So an older configuration
    /// counts if the known master says that it is none, or has been silent for [`AGREED_FOR`] while
    /// the majority named the other one. A replica that is named is not followed to its master.
    fn follow_majority(
        &self,
        answers: &Answers,
        trouble: Option<Trouble>,
        failed: Option<StoreFault>,
    ) -> Result<(), StoreFault> {
        let old = self.master();
        let mut state = self.state.lock();
        let known_epoch = state.known.epoch();
        let service = &self.settings.service;
        let outcome = failed.map_or(Ok(()), Err);
        let Some(agreed) = majority(answers) else {
            state.known.forget_agreed();
            return outcome;
        };
        if agreed.address == *old.node.address() {
            state.known.forget_agreed();
            if agreed.epoch < known_epoch && state.known.newest(answers).is_none() {
                state.known.follow_majority(&agreed, answers);
                // With no mutex held: a logger may do anything.
                drop(state);
                log::warn!(
                    logger: Logger,
                    "{agreed} count configurations of {service:?} from {} on, and not from {known_epoch}",
                    agreed.epoch
                );
                return Ok(());
            }
            return outcome;
        }
        drop(state);
        if agreed.epoch < known_epoch {
            let is_gone = trouble.is_some() && self.is_gone(&old, &agreed)?;
            if !is_gone {
                return outcome;
            }
        }
        let until = self.clock.now() + self.opener.config.connect_timeout;
        let next = self
            .opener
            .open_master(&agreed.address, until)
            .map_err(|fault| fault_at(&agreed.address, service, fault))?;
        let mut state = self.state.lock();
        if state.is_stopping {
            return Ok(());
        }
        state.known.follow_majority(&agreed, answers);
        drop(state);
        log::warn!(
            logger: Logger,
            "{agreed} name {} the master of {service:?} and not {}, whose configuration is newer",
            agreed.address,
            old.node.address()
        );
        self.put_in_place(next);
        Ok(())
    }

    /// Whether the current master is gone, so that an older configuration counts. An error if it is
    /// silent, but not for long enough yet.
    fn is_gone(&self, current: &Master, agreed: &Majority) -> Result<bool, StoreFault> {
        let address = current.node.address();
        let until = self.clock.now() + self.opener.config.connect_timeout;
        let fault = match self.opener.open_master(address, until) {
            Ok(_) => {
                self.state.lock().known.forget_agreed();
                return Ok(false);
            }
            Err(fault) => fault,
        };
        // It answers, and is a replica.
        if fault.code() == Some("READONLY") {
            return Ok(true);
        }
        let now = self.clock.now();
        let since = self.state.lock().known.agreed_since(&agreed.address, now);
        if now >= since + AGREED_FOR {
            return Ok(true);
        }
        let why = format!(
            "{address}, the master of {:?}, does not answer: {}; {} name {} in an older \
             configuration, which counts when they have named it for {} s",
            self.settings.service,
            fault.reason(),
            agreed,
            agreed.address,
            AGREED_FOR.as_secs()
        );
        Err(StoreFault::unavailable(Step::Connect, why).at(current.node.name()))
    }

    fn put_in_place(&self, next: Master) -> Followed {
        let old = self.master();
        let (from, to) = (old.node.address(), next.node.address());
        // The same one again: whatever it was, its connections are good or are opened again.
        if from == to {
            return Followed::Same;
        }
        log::info!(
            logger: Logger,
            "the master of {:?} is {to} now, and was {from}",
            self.settings.service
        );
        self.masters.replace(next.in_place_of_another(&self.clock));
        Followed::Another
    }
}
