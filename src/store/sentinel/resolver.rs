//! Finds out which server is the master, and when to ask the sentinels again.
//!
//! A resolution asks all sentinels and, if they name another server than before, connects to it. It
//! runs on a thread of its own, which ends with it. One runs at a time. A caller that needs another
//! master notes the trouble and waits, within its own time.

use std::sync::Arc;
use std::thread;

use super::configuration::Known;
use super::finding::first_master;
use super::master::{Master, MasterOpener, Masters};
use super::panel::Panel;
use crate::config::Config;
use crate::error::Result as ApiResult;
use crate::logging::Logger;
use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::{Anchor, CallResult, SentinelSettings, StoreFault};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Resolver {
    pub(super) settings: SentinelSettings,
    pub(super) clock: Clock,
    pub(super) opener: MasterOpener,
    pub(super) masters: Masters,
    pub(super) state: Mutex<ResolverState>,
    /// A resolution has ended, or the resolver stops.
    changed: Condvar,
}

pub(super) struct ResolverState {
    /// `None` while a resolution uses it.
    panel: Option<Panel>,
    pub(super) known: Known,
    /// The worst trouble since the last resolution began.
    trouble: Option<Trouble>,
    /// A thread resolves, or pauses before it does.
    is_running: bool,
    /// A resolution is to begin.
    is_wanted: bool,
    begun: u64,
    begun_at: Time,
    ended: u64,
    /// The last one found no answer. The log says when that begins and when it ends.
    is_failing: bool,
    pub(super) is_stopping: bool,
}

/// Why the current master may be none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// It did not answer, or closed a connection, or could not be reached. Another server counts if
    /// the sentinels name it.
    Silent,
    /// It says that it is a replica. It is asked for its master if the sentinels still name it.
    Demoted,
}

impl Trouble {
    pub(super) fn of(result: &CallResult) -> Option<Trouble> {
        result.answer.as_ref().err().and_then(Trouble::of_fault)
    }

    pub(super) fn of_fault(fault: &StoreFault) -> Option<Trouble> {
        match fault {
            StoreFault::Unavailable { .. } | StoreFault::Tls { .. } => Some(Trouble::Silent),
            StoreFault::InDoubt(fault) => Trouble::of_fault(fault),
            StoreFault::Server { code, .. } => {
                let is_replica = matches!(code.as_str(), "READONLY" | "MASTERDOWN" | "UNBLOCKED");
                is_replica.then_some(Trouble::Demoted)
            }
            StoreFault::NotReady | StoreFault::Unfit { .. } | StoreFault::NotReplicated { .. } => {
                None
            }
        }
    }
}

impl Resolver {
    /// Asks the sentinels and opens the first connection to the master. While a failover runs, or no
    /// server answers yet, it asks again. Blocks for at most the connect timeout.
    pub(super) fn begin(
        settings: SentinelSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> ApiResult<Arc<Resolver>> {
        let clock = Clock::default();
        let started = clock.now();
        let mut panel = Panel::new(&settings, &caller_id, &clock);
        let opener = MasterOpener::new(&settings, config, caller_id, &clock);
        let until = started + config.connect_timeout;
        let mut before = None;
        let (known, first) = loop {
            match first_master(&settings.service, &mut panel, &opener, until) {
                Ok(found) => break found,
                Err(fault) => {
                    let pause_ends = clock.now() + config.back_off / 10;
                    // A failover, or a server that is about to start, takes a while.
                    let passes = fault.is_transient()
                        && !matches!(fault, StoreFault::Tls { .. })
                        && !fault.lacks_credentials();
                    // The last attempt has little time, and its fault tells less.
                    let fault = match before {
                        Some(before) if clock.now() >= until => before,
                        _ => fault,
                    };
                    if !passes || pause_ends >= until {
                        return Err(fault.into_error(None, clock.now() - started));
                    }
                    before = Some(fault);
                    clock.sleep_until(pause_ends);
                }
            }
        };
        let state = ResolverState {
            panel: Some(panel),
            known,
            trouble: None,
            is_running: false,
            is_wanted: false,
            begun: 0,
            begun_at: started,
            ended: 0,
            is_failing: false,
            is_stopping: false,
        };
        Ok(Arc::new(Resolver {
            settings,
            clock,
            opener,
            masters: Masters::new(first),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub(super) fn config(&self) -> &Config {
        &self.opener.config
    }

    pub(super) fn masters(&self) -> &Masters {
        &self.masters
    }

    /// The current master, as far as it is known.
    pub(super) fn master(&self) -> Arc<Master> {
        self.masters.current()
    }

    /// The current master if it is another one than this.
    pub(super) fn other_master(&self, old: &Arc<Master>) -> Option<Arc<Master>> {
        let current = self.master();
        (!Arc::ptr_eq(&current, old)).then_some(current)
    }

    /// The clock of the current master. A new master may have another clock, and messages from the
    /// old one may still be under way. So nothing is known of the clock for T + P after a change.
    pub(super) fn anchor(&self) -> Option<Anchor> {
        let master = self.master();
        let is_known = master.replaced_at.is_none_or(|at| {
            self.clock.now() >= at + self.config().command_timeout + self.config().check_period
        });
        master.node.anchor().filter(|_| is_known)
    }

    /// When the last resolution began.
    pub(super) fn last_begun(&self) -> Time {
        self.state.lock().begun_at
    }

    /// Asks the sentinels again, on another thread.
    pub(super) fn check(self: &Arc<Self>) {
        self.want(self.state.lock());
    }

    /// Somebody had trouble with this master, so the sentinels are asked again, on another thread.
    pub(super) fn note_trouble(self: &Arc<Self>, master: &Arc<Master>, trouble: Trouble) {
        if self.other_master(master).is_none() {
            let mut state = self.state.lock();
            state.trouble = state.trouble.max(Some(trouble));
            self.want(state);
        }
    }

    /// Somebody had trouble with this master, and waits for the one that takes its place, until
    /// `until` at most. If the master answers and the sentinels know no other, it waits for one
    /// resolution only: the master may be about to come back.
    pub(super) fn await_other_master(
        self: &Arc<Self>,
        master: &Arc<Master>,
        trouble: Trouble,
        until: Time,
    ) -> Option<Arc<Master>> {
        loop {
            let mut state = self.state.lock();
            state.trouble = state.trouble.max(Some(trouble));
            // One that runs now may have asked before the trouble began.
            let wanted = state.begun + 1;
            self.want(state);
            let mut state = self.state.lock();
            while state.ended < wanted
                && !state.is_stopping
                && self.other_master(master).is_none()
                && self.clock.now() < until
            {
                self.clock.wait(&self.changed, &mut state, until);
            }
            let is_over =
                trouble == Trouble::Demoted || state.is_stopping || self.clock.now() >= until;
            drop(state);
            let other = self.other_master(master);
            if other.is_some() || is_over {
                return other;
            }
        }
    }

    /// Has a resolution begin soon. Never waits.
    fn want(self: &Arc<Self>, mut state: MutexGuard<'_, ResolverState>) {
        if state.is_stopping {
            return;
        }
        state.is_wanted = true;
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        drop(state);
        let resolver = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name("fairlock-master".to_owned())
            .spawn(move || while resolver.resolve_once() {});
        if let Err(error) = spawned {
            // Otherwise the next caller would take a resolution to be under way.
            self.state.lock().is_wanted = false;
            self.end_resolution(None);
            log::debug!(logger: Logger, "no thread can ask the sentinels: {error}");
        }
    }

    /// Runs one resolution, after a pause since the last one. Returns whether to run another one.
    fn resolve_once(&self) -> bool {
        let mut state = self.state.lock();
        let pause_ends = state.begun_at + self.config().back_off / 4;
        while self.clock.now() < pause_ends && !state.is_stopping {
            self.clock.wait(&self.changed, &mut state, pause_ends);
        }
        state.is_wanted = false;
        state.begun += 1;
        state.begun_at = self.clock.now();
        let trouble = state.trouble.take();
        let panel = state.panel.take();
        drop(state);
        let mut panel = panel
            .unwrap_or_else(|| Panel::new(&self.settings, &self.opener.caller_id, &self.clock));
        let is_over = EndOnPanic(self);
        let outcome = self.resolve(&mut panel, trouble);
        self.report(outcome);
        std::mem::forget(is_over);
        self.end_resolution(Some(panel))
    }

    fn report(&self, outcome: Result<(), StoreFault>) {
        let is_failing = outcome.is_err();
        let was_failing = {
            let mut state = self.state.lock();
            std::mem::replace(&mut state.is_failing, is_failing)
        };
        match outcome {
            Err(fault) if !was_failing => {
                log::info!(logger: Logger, "no other master is known: {fault}")
            }
            Err(fault) => log::debug!(logger: Logger, "no other master is known still: {fault}"),
            Ok(()) if was_failing => {
                log::info!(
                    logger: Logger,
                    "the sentinels name the master of {:?} again",
                    self.settings.service
                );
            }
            Ok(()) => {}
        }
    }

    /// Returns whether another one is to begin.
    fn end_resolution(&self, panel: Option<Panel>) -> bool {
        let mut state = self.state.lock();
        if panel.is_some() {
            state.panel = panel;
        }
        state.ended = state.begun;
        state.is_running = state.is_wanted && !state.is_stopping;
        let is_again = state.is_running;
        drop(state);
        self.changed.notify_all();
        is_again
    }

    /// Ends the waits, the threads and the connections.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_all();
        self.master().lanes.end();
    }
}

/// A logger may panic. Then the next resolution begins with a new panel.
struct EndOnPanic<'a>(&'a Resolver);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_wanted = false;
        self.0.end_resolution(None);
    }
}
