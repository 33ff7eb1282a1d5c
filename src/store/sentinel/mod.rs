//! The store that is the master of a service that sentinels watch.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`SentinelStore`]: the store |
//! | `link` | the renewal thread's way to the master |
//! | `follow` | one resolution: another master is followed, or not |
//! | `resolver` | [`Resolver`]: which server is the master, and when that is asked again |
//! | `finding` | the first master, and why none is found |
//! | `configuration` | [`Known`](configuration::Known): which of their answers counts |
//! | `panel` | all sentinels, asked at once |
//! | `question` | one sentinel, asked |
//! | `master` | [`Master`]: one master and all connections to it, and how another one takes its place |
//!
//! Files name those below them; `follow`, `link` and `mod` name `resolver`.

mod configuration;
mod finding;
mod follow;
mod link;
mod master;
mod panel;
mod question;
mod resolver;

use std::ops::ControlFlow;
use std::sync::Arc;

use super::clock::{Clock, Time};
use super::{
    Anchor, CallResult, Channel, ChannelEvent, ConnectionWait, Deadlines, Leave, Link, OnEvent,
    SentinelSettings, Store, StoreFault, Troubles,
};
use crate::config::Config;
use crate::error::Result as ApiResult;
use crate::key::Key;
use crate::script::{Call, CallerId};
use crate::stats::Traffic;
use link::MasterLink;
use master::Master;
use resolver::{Resolver, Trouble};

/// The master of a service.
pub(crate) struct SentinelStore {
    resolver: Arc<Resolver>,
}

impl SentinelStore {
    /// Asks the sentinels for the master and opens one connection to it, so that a wrong name,
    /// address or password is reported at once. Blocks for at most the connect timeout, and with replica
    /// acks for one command timeout more.
    pub(crate) fn connect(
        settings: SentinelSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> ApiResult<SentinelStore> {
        let resolver = Resolver::begin(settings, config, caller_id)?;
        Ok(SentinelStore { resolver })
    }

    fn master(&self) -> Arc<Master> {
        self.resolver.master()
    }

    /// Runs calls again that had no result from a master, for as long as their time lasts: on the
    /// next master, once that is known.
    fn run_again(
        &self,
        calls: &[Call],
        mut results: Vec<CallResult>,
        mut master: Arc<Master>,
        deadlines: Deadlines,
    ) -> Vec<CallResult> {
        while let Some(next) = self.next_master(&master, &results, deadlines) {
            let failed: Vec<usize> = (0..results.len())
                .filter(|index| Trouble::of(&results[*index]).is_some())
                .collect();
            let again: Vec<Call> = failed.iter().map(|index| calls[*index].clone()).collect();
            next.node.note_retries(again.len());
            let new = next.lanes.run(&again, deadlines.of_retry());
            for (index, result) in failed.into_iter().zip(new) {
                // R7 (late copies): a bound by the clock of the old master may stay, and be compared
                // with the clock of the new one. That does no harm. Too early a bound is right: no
                // copy that the old master runs from now on reaches the new one. Too late a bound
                // makes the release be repeated for one ttl.
                results[index].take_copy(result);
            }
            master = next;
        }
        results
    }

    /// The next master, after calls on this one had these results. `None` if none is known in time,
    /// or if no result says that it is this master's fault.
    fn next_master(
        &self,
        master: &Arc<Master>,
        results: &[CallResult],
        deadlines: Deadlines,
    ) -> Option<Arc<Master>> {
        let trouble = results.iter().filter_map(Trouble::of).max()?;
        match deadlines.connection {
            // P9 (nothing starves): such a call waits for nothing.
            ConnectionWait::Never => {
                self.resolver.note_trouble(master, trouble);
                self.resolver.other_master(master)
            }
            ConnectionWait::Until(_) => {
                let until = deadlines.reply_by;
                self.resolver.await_other_master(master, trouble, until)
            }
        }
    }
}

impl Store for SentinelStore {
    fn clock(&self) -> Clock {
        self.resolver.clock()
    }

    fn troubles(&self) -> Arc<Troubles> {
        // All masters have the same.
        Arc::clone(self.master().node.troubles())
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let master = self.master();
        let results = master.lanes.run(calls, deadlines);
        if results.iter().all(|result| result.answer.is_ok()) {
            return results;
        }
        self.run_again(calls, results, master, deadlines)
    }

    /// A call that fails here goes to the renewal thread, which asks the next master.
    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        let master = self.master();
        let results = master.lanes.send(calls, reply_by, leave);
        let awaited = results.iter().flatten();
        if let Some(trouble) = awaited.filter_map(Trouble::of).max() {
            self.resolver.note_trouble(&master, trouble);
        }
        results
    }

    fn unread_due(&self) -> Time {
        let masters = self.resolver.masters().all();
        let due = masters.iter().map(|master| master.lanes.unread_due());
        due.min().unwrap_or(Time::NEVER)
    }

    fn read_unread(&self) {
        for master in self.resolver.masters().all() {
            master.lanes.read_unread();
        }
        self.resolver.masters().forget_retired();
    }

    fn read_all_unread(&self, until: Time) {
        for master in self.resolver.masters().all() {
            master.lanes.read_all_unread(until);
        }
        self.resolver.masters().forget_retired();
    }

    fn logins_due(&self) -> Time {
        self.master().node.login_due()
    }

    fn renew_logins(&self) {
        self.master().node.renew_login();
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(MasterLink::new(&self.resolver, on_ready))
    }

    /// The subscription ends with its master. If no master can be reached, this waits for the next
    /// one, for a back-off at most.
    fn listen(&self, channel: Channel<'_>, on_event: &mut OnEvent<'_>) -> Result<(), StoreFault> {
        let until = self.clock().now() + self.resolver.config().back_off;
        loop {
            let master = self.master();
            let mut was_up = false;
            let ended = master.node.listen(channel, &mut |event| {
                was_up = true;
                match event {
                    // R12 (doubtful grants): the clock of the next master must not date it.
                    // A sync finds the grant, if the next master knows of it. And the next master's
                    // messages do not come from this one.
                    ChannelEvent::Message(_) | ChannelEvent::Proven { .. }
                        if self.resolver.other_master(&master).is_some() =>
                    {
                        ControlFlow::Continue(())
                    }
                    event => on_event(event),
                }
            });
            let Err(fault) = ended else { return Ok(()) };
            let Some(trouble) = Trouble::of_fault(&fault) else {
                return Err(fault);
            };
            if was_up {
                self.resolver.note_trouble(&master, trouble);
                return Err(fault);
            }
            let next = self.resolver.await_other_master(&master, trouble, until);
            if next.is_none() {
                return Err(fault);
            }
        }
    }

    fn poke(&self, channel: &str, by: Time) {
        self.master().lanes.poke(channel, by);
    }

    fn post_poke(&self, channel: &str, key: &Key) {
        self.master().lanes.post_poke(channel, key);
    }

    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        let master = self.master();
        let page = master.lanes.scan(cursor, pattern);
        let Err(fault) = &page else { return page };
        let Some(trouble) = Trouble::of_fault(fault) else {
            return page;
        };
        let until = self.clock().now() + self.resolver.config().command_timeout;
        match self.resolver.await_other_master(&master, trouble, until) {
            Some(next) => next.lanes.scan(cursor, pattern),
            None => page,
        }
    }

    fn confirms_grants(&self) -> bool {
        self.master().node.has_replica_acks()
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        self.resolver.anchor()
    }

    fn server_of(&self, _: &Key) -> Option<Arc<str>> {
        Some(Arc::clone(self.master().node.name()))
    }

    fn traffic(&self) -> Traffic {
        self.master().node.traffic()
    }
}

impl Drop for SentinelStore {
    fn drop(&mut self) {
        self.resolver.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;

    #[test]
    fn only_faults_of_the_master_are_trouble() {
        let server = |code| Trouble::of_fault(&StoreFault::refused(code, "why"));
        assert_eq!(server("OOM"), None);
        assert_eq!(server("NOPERM"), None);
        assert_eq!(server("MASTERDOWN"), Some(Trouble::Demoted));
        assert_eq!(Trouble::of_fault(&StoreFault::NotReady), None);
        let silent = StoreFault::timed_out(Step::Connect);
        assert_eq!(Trouble::of_fault(&silent), Some(Trouble::Silent));
        let in_doubt = StoreFault::InDoubt(Box::new(StoreFault::refused("READONLY", "why")));
        assert_eq!(Trouble::of_fault(&in_doubt), Some(Trouble::Demoted));
    }
}
