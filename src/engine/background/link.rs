//! The renewal thread's own way to the servers. A node that is slower than others owes replies, and
//! nobody waits for it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::schedule::{CONNECTING, PIPELINE};
use crate::engine::client::Client;
use crate::engine::lease::HeldLease;
use crate::engine::upkeep::{Intake, Task, TokenRelease};
use crate::script::{Call, Token};
use crate::store::clock::Time;
use crate::store::{CallResult, Link};

/// A task whose call has a result.
pub(super) type Replied = (Task, Call, CallResult);

pub(super) struct RenewalLink {
    client: Arc<Client>,
    link: Box<dyn Link>,
    /// The calls that a slow node owes replies, by their numbers.
    owed: BTreeMap<u64, (Task, Call)>,
    /// How many calls were sent.
    sent: u64,
    /// When to ask the link for late results.
    late_results_at: Time,
}

impl RenewalLink {
    pub(super) fn new(client: &Arc<Client>, intake: &Intake) -> RenewalLink {
        let waker = Arc::clone(&intake.waker);
        RenewalLink {
            client: Arc::clone(client),
            link: client.store().link(Arc::new(move || waker.wake())),
            owed: BTreeMap::new(),
            sent: 0,
            late_results_at: Time::NEVER,
        }
    }

    /// Sends one pipeline. Returns the results that have come, and keeps the calls whose replies a
    /// slow node owes. Nothing to send opens no connection.
    pub(super) fn send(&mut self, batch: Vec<(Task, Call)>) -> Vec<Replied> {
        if batch.is_empty() {
            return Vec::new();
        }
        let (tasks, calls): (Vec<Task>, Vec<Call>) = batch.into_iter().unzip();
        let first = self.sent;
        self.sent += calls.len() as u64;
        let results = self.link.begin(&calls, first);
        let mut replied = Vec::with_capacity(calls.len());
        for (((number, task), call), result) in (first..).zip(tasks).zip(calls).zip(results) {
            if let Some(result) = result {
                replied.push((task, call, result));
            } else {
                self.owed.insert(number, (task, call));
                self.late_results_at = self.client.now() + CONNECTING;
            }
        }
        replied
    }

    /// The results of slow nodes that have come by now.
    pub(super) fn late_results(&mut self) -> Vec<Replied> {
        if self.owed.is_empty() {
            return Vec::new();
        }
        let mut replied = Vec::new();
        for (number, result) in self.link.late_results() {
            // A shutdown may have taken it out.
            if let Some((task, call)) = self.owed.remove(&number) {
                replied.push((task, call, result));
            }
        }
        self.late_results_at = if self.owed.is_empty() {
            Time::NEVER
        } else {
            self.client.now() + CONNECTING
        };
        replied
    }

    /// Sends calls, and waits for all replies for a command timeout at most.
    pub(super) fn send_and_wait(&mut self, mut batch: Vec<(Task, Call)>) -> Vec<Replied> {
        let mut replied = Vec::new();
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(PIPELINE));
            let (tasks, calls): (Vec<Task>, Vec<Call>) = batch.into_iter().unzip();
            let results = self.link.run(&calls);
            let calls = calls.into_iter().zip(results);
            replied.extend(tasks.into_iter().zip(calls).map(|(t, (c, r))| (t, c, r)));
            batch = rest;
        }
        replied
    }

    /// The tasks to which a slow node owes replies.
    pub(super) fn owed(&self) -> impl Iterator<Item = &Task> {
        self.owed.values().map(|(task, _)| task)
    }

    /// Takes out the leases whose renewals a slow node owes replies.
    pub(super) fn take_renewals(&mut self) -> Vec<Arc<HeldLease>> {
        let mut leases = Vec::new();
        self.owed.retain(|_, (task, _)| {
            let Task::Renew(scheduled) = task else {
                return true;
            };
            leases.push(Arc::clone(&scheduled.lease));
            false
        });
        leases
    }

    /// Takes out the releases to which a slow node owes replies, and drops the other calls.
    pub(super) fn take_releases(&mut self) -> Vec<TokenRelease> {
        let owed = std::mem::take(&mut self.owed).into_values();
        owed.filter_map(|(task, _)| task.into_release()).collect()
    }

    /// When to look after the link, if nothing is sent before. `is_idle`: this process neither
    /// holds nor awaits anything. Then the state of the servers does not matter, and an idle manager
    /// sends nothing.
    pub(super) fn next_due(&self, is_idle: bool) -> Time {
        // A new connection may have got credentials that end sooner, and the link has to learn of
        // newer ones. So while credentials end at all, it looks once per check period.
        let logins_due = match self.client.store().logins_due() {
            Time::NEVER => Time::NEVER,
            due => due.min(self.client.now() + self.client.config().check_period),
        };
        let check_due = if is_idle {
            Time::NEVER
        } else {
            self.link.check_due()
        };
        self.late_results_at.min(logins_due).min(check_due)
    }

    /// Logs in anew before credentials end, and has [`Link::check`] look at the servers.
    pub(super) fn look_after(&mut self, now: Time, is_idle: bool) {
        let logins_due = self.client.store().logins_due();
        if logins_due <= now {
            self.client.store().renew_logins();
        }
        if logins_due != Time::NEVER {
            self.link.log_in_anew();
        }
        if !is_idle && self.link.check_due() <= now {
            self.link.check();
        }
    }

    /// See [`Link::has_moved`].
    pub(super) fn has_moved(&mut self) -> bool {
        self.link.has_moved()
    }

    /// The tokens of leases that are to be renewed at once. Most of the leases have ended by now.
    pub(super) fn due_again(&mut self) -> HashSet<Token> {
        self.link.due_again().into_iter().collect()
    }
}
