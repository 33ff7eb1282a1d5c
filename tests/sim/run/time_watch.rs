//! The promises about time, checked after each step: for callers that hold, that were granted the
//! lock, or that keep others waiting.
//!
//! A process counts as disturbed from each fault that hits it until that is over. While the server
//! is away, all processes count as disturbed. A bound begins at the latest of these times.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{MS, Run};
use crate::engine::HeldLease;
use crate::local::KeptLease;
use crate::script::Token;
use crate::sim::breach::Breach;
use crate::sim::model::Promise;
use crate::sim::plan::LeaseKind;
use crate::sim::process::{CallerState, SimCaller, SimProcess};
use crate::sim::record::HolderView;
use crate::stats::Traffic;

/// Conditions that break a promise if they last too long, and since when each lasts.
#[derive(Default)]
pub(super) struct TimeWatch {
    /// Holders whose token no guard and no waiter uses.
    unwanted: HashMap<Token, u64>,
    /// Holders whose waiter does not know of the grant.
    unaware: HashMap<Token, u64>,
    /// The first waiter needs no more than what is free or held by leases that are over.
    overdue: Option<u64>,
    /// The managers of dead or silent holders that keep others waiting.
    silent: HashMap<String, u64>,
    /// The manager of a dead or silent waiter that needs more than is free, and is first.
    blocked: Option<(String, u64)>,
    /// Guards whose loss nobody has reported yet.
    unreported: HashMap<Token, u64>,
    /// Tokens of processes that crashed after their guards were dropped, and since when their
    /// releases should have arrived.
    last_drops: HashMap<Token, u64>,
    /// Tokens whose release the server refused.
    refused: HashSet<Token>,
    /// A caller got an answer that does not know of an earlier drop of its process.
    pub(super) overtaken: Option<Token>,
    /// A guard has a turn that it must not have.
    pub(super) wrong_turn: Option<Breach>,
    /// A waiter took a grant with less than half its ttl left.
    pub(super) taken_late: Option<Token>,
    /// A kept lease does what it must not do.
    pub(super) kept_wrongly: Option<Breach>,
    /// When each kept lease was last seen to have ended, and not to have been lost.
    kept_ended: HashMap<Token, u64>,
    /// A caller has a lease that may be lost although nothing goes wrong.
    pub(super) may_lose: bool,
    /// Kept leases, and how many guards each has had: since when it is unused, and since when others
    /// wait for it.
    kept: HashMap<KeptLease, KeptSince>,
    /// Something has gone wrong in this run.
    fault_seen: bool,
}

/// In ns of the run.
#[derive(Clone, Copy)]
struct KeptSince {
    unused: u64,
    wanted: Option<u64>,
}

impl TimeWatch {
    /// Something goes wrong.
    pub(super) fn note_fault(&mut self) {
        self.fault_seen = true;
    }

    /// The process of this token has crashed. Its drop was written before, and should have arrived
    /// `by` then.
    pub(super) fn note_last_drop(&mut self, token: Token, by: u64) {
        if !self.refused.contains(&token) {
            self.last_drops.insert(token, by);
        }
    }

    /// The server has refused the release of this token.
    pub(super) fn note_refused(&mut self, token: Token) {
        self.refused.insert(token);
        self.last_drops.remove(&token);
    }

    /// All connections end, and what is on its way on them is lost.
    pub(super) fn forget_last_drops(&mut self) {
        self.last_drops.clear();
    }

    /// A request of this process has arrived, so it was not silent until now.
    pub(super) fn on_sign_of_life(&mut self, manager: &str) {
        self.silent.remove(manager);
        self.blocked.take_if(|(blocked, _)| blocked == manager);
    }
}

/// Begins the bounds again for those that were disturbed: each entry has its own time, and until
/// when it was disturbed.
fn since(
    now: u64,
    before: &HashMap<Token, u64>,
    seen: impl Iterator<Item = (Token, u64)>,
) -> HashMap<Token, u64> {
    seen.map(|(token, disturbed_until)| {
        let since = before.get(&token).copied().unwrap_or(now);
        (token, since.max(disturbed_until))
    })
    .collect()
}

impl Run<'_> {
    pub(super) fn check_times(&mut self) -> Result<(), Breach> {
        self.check_guards()?;
        self.check_losses()?;
        self.check_drops()?;
        self.check_kept()?;
        self.check_unwanted()?;
        self.check_unaware()?;
        self.check_silent()
    }

    fn process_of(&self, manager: &str) -> Option<&SimProcess> {
        self.processes
            .iter()
            .flatten()
            .find(|process| process.caller_id.manager == manager)
    }

    /// P4: a dropped lock is free once its release has arrived, also if its process crashes first.
    /// Nothing that the process sends later overtakes the release.
    fn check_drops(&mut self) -> Result<(), Breach> {
        if let Some(token) = self.watch.overtaken {
            let said = format!("{token:?} was dropped before a call that still found it");
            return Err(Breach::new(Promise::Order, said));
        }
        let held_back_until = self.down_until.max(self.hangs_until);
        let is_late = |since: u64| self.now > since.max(held_back_until) + 3 * MS;
        for HolderView { token, .. } in self.checker.live_holders(self.server_clock()) {
            let last_drop = self.watch.last_drops.get(token);
            if last_drop.is_some_and(|since| is_late(*since)) {
                let said = format!("{token:?} was dropped before a crash, and is not released");
                return Err(Breach::new(Promise::Service, said));
            }
            let mut dropped = self.processes.iter().flatten().flat_map(|p| p.lane.left());
            if !self.watch.fault_seen && dropped.any(|(left, at)| left == *token && is_late(at)) {
                let said = format!("{token:?} was dropped and is not released");
                return Err(Breach::new(Promise::Service, said));
            }
        }
        Ok(())
    }

    /// How long it takes at most until a process that hears of waiters knows of one: it is told, or
    /// knows that it may not have been told. In ns.
    pub(super) fn told_within(&self) -> u64 {
        if !self.watch.fault_seen {
            return 3 * MS;
        }
        let config = &self.setting.config;
        let deaf_after = config.check_period * 2 + config.command_timeout;
        let look = self.setting.keep.unwrap_or_default() / 2;
        (deaf_after + look).as_nanos() as u64 + self.renewal_lateness()
    }

    /// The answer to an acquire that a process sent `at` then knows these holders of it. It must not be
    /// one that the process had let go before. After trouble with the server that may be so.
    pub(super) fn check_let_go(&mut self, process: &SimProcess, at: u64, holders: &[Token]) {
        let undisturbed_since = process
            .disturbed_until()
            .max(process.trouble_seen_at)
            .max(self.server_disturbed_until());
        let is_over = |token: &&Token| {
            let ended = self.watch.kept_ended.get(*token);
            ended.is_some_and(|ended| *ended + MS / 100 < at && undisturbed_since < *ended)
        };
        if self.known_scripts.is_none()
            && let Some(token) = holders.iter().find(is_over)
        {
            let said = format!("{token:?} was let go before a call that still found it");
            self.watch.kept_wrongly = Some(Breach::new(Promise::Order, said));
        }
    }

    /// A process that has heard nothing for too long lends nothing that it keeps.
    pub(super) fn check_hears(&mut self, process: &SimProcess) {
        let config = &self.setting.config;
        let deaf_after = config.check_period * 2 + config.command_timeout;
        let is_deaf = process.deaf_until > self.now
            && self.now > process.deaf_since + deaf_after.as_nanos() as u64 + 2 * MS;
        if is_deaf {
            let said = format!("{} hears nothing, and lends what it keeps", process.number);
            self.watch.kept_wrongly = Some(Breach::new(Promise::Order, said));
        }
    }

    /// Nothing has gone wrong, so nothing counts as lost.
    pub(super) fn check_losses_counted(&self) -> Result<(), Breach> {
        let lost = |process: &SimProcess| {
            let meter = process.engine.engine().client().meter();
            meter.read(Traffic::default()).losses()
        };
        let lost: u64 = self.processes.iter().flatten().map(lost).sum();
        if lost > 0 && !self.watch.fault_seen && !self.watch.may_lose {
            let said = format!("{lost} leases count as lost though nothing went wrong");
            return Err(Breach::new(Promise::Service, said));
        }
        Ok(())
    }

    /// P3: a kept lease ends once somebody waits for it. And it ends if it is unused.
    fn check_kept(&mut self) -> Result<(), Breach> {
        if let Some(breach) = &self.watch.kept_wrongly {
            return Err(breach.clone());
        }
        let server = self.server_disturbed_until();
        let told_within = self.told_within();
        let record = self.checker.record();
        let are_others_waiting = record.queue.iter().any(|entry| entry.waits);
        let mut seen = HashMap::new();
        for process in self.processes.iter().flatten() {
            let disturbed_until = process.disturbed_until().max(server);
            for kept in process.engine.kept(&self.setting.key) {
                let before = self.watch.kept.get(&kept).copied();
                let before = before.unwrap_or(KeptSince {
                    unused: self.now,
                    wanted: None,
                });
                let is_wanted = are_others_waiting && record.holder(kept.token).is_some();
                let wanted = before.wanted.unwrap_or(self.now).max(disturbed_until);
                let unused = before.unused.max(disturbed_until);
                if is_wanted && self.now > wanted + told_within {
                    let said = format!("{kept:?} is kept although others wait for it");
                    return Err(Breach::new(Promise::Order, said));
                }
                let keep = kept.keep.as_nanos() as u64;
                if self.now > unused + keep + 2 * self.renewal_lateness() {
                    let said = format!("{kept:?} is unused and still kept");
                    return Err(Breach::new(Promise::Leftovers, said));
                }
                let wanted = is_wanted.then_some(wanted);
                seen.insert(kept, KeptSince { unused, wanted });
            }
        }
        let holding: HashSet<Token> = self
            .processes
            .iter()
            .flatten()
            .flat_map(SimProcess::guards)
            .map(|lease| lease.token)
            .collect();
        for kept in self.watch.kept.keys() {
            let is_kept = seen.keys().any(|other| other.token == kept.token);
            if !is_kept && !holding.contains(&kept.token) {
                self.watch.kept_ended.insert(kept.token, self.now);
            }
        }
        self.watch.kept = seen;
        Ok(())
    }

    /// P4, P7: an unwanted grant is released within a check period and three requests.
    fn check_unwanted(&mut self) -> Result<(), Breach> {
        let server = self.down_until.max(self.hangs_until);
        let unwanted = self
            .checker
            .live_holders(self.server_clock())
            .filter_map(|holder| {
                let process = self.process_of(&holder.manager)?;
                let disturbed_until = process
                    .troubled_until
                    .max(process.paused_until)
                    .max(process.cut_until)
                    .max(process.outage.excepted_until);
                (!self.is_wanted(process, holder))
                    .then_some((holder.token, disturbed_until.max(server)))
            });
        self.watch.unwanted = since(self.now, &self.watch.unwanted, unwanted);
        let bound = if self.watch.fault_seen {
            self.setting.per_waiter()
        } else {
            5 * MS
        };
        let mut unwanted = self.watch.unwanted.iter();
        match unwanted.find(|(_, since)| self.now > **since + bound) {
            Some((token, _)) => Err(Breach::new(
                Promise::OneGrant,
                format!("{token:?} still holds the lock, and no caller wants that any more"),
            )),
            None => Ok(()),
        }
    }

    /// Whether a caller uses the grant, or an exception allows it.
    fn is_wanted(&self, process: &SimProcess, holder: &HolderView) -> bool {
        let token = holder.token;
        let wants = |caller: &SimCaller| match &caller.state {
            CallerState::Holding(lease) => {
                lease.token == token && !lease.remaining(process.local(self.now)).is_zero()
            }
            CallerState::Releasing(lease, _) => lease.token == token,
            CallerState::Trying { token: own, .. } => *own == token,
            _ => process.waits_by(caller, token),
        };
        self.checker.excepted_since(token, holder.fence).is_some()
            || self.checker.may_have_come_back(token)
            || process.callers.values().any(wants)
            || self.is_kept(process, token)
            || process.lane.left().any(|(left, _)| left == token)
    }

    fn is_kept(&self, process: &SimProcess, token: Token) -> bool {
        let kept = process.engine.kept(&self.setting.key);
        kept.iter().any(|kept| kept.token == token)
    }

    /// P4: a waiter that was granted the lock learns it at once, or, if a message or a request was
    /// lost, within a check period and three requests.
    fn check_unaware(&mut self) -> Result<(), Breach> {
        let server = self.server_disturbed_until();
        let unaware = self
            .checker
            .live_holders(self.server_clock())
            .filter_map(|holder| {
                let process = self.process_of(&holder.manager)?;
                let waits = |caller: &SimCaller| {
                    caller.is_waiting() && process.waits_by(caller, holder.token)
                };
                let disturbed_until = process.disturbed_until().max(server);
                process
                    .callers
                    .values()
                    .any(waits)
                    .then_some((holder.token, disturbed_until))
            });
        self.watch.unaware = since(self.now, &self.watch.unaware, unaware);
        let bound = if self.watch.fault_seen {
            self.setting.per_waiter()
        } else {
            3 * MS
        };
        let mut unaware = self.watch.unaware.iter();
        match unaware.find(|(_, since)| self.now > **since + bound) {
            Some((token, since)) => {
                let ms = (self.now - since) / MS;
                let said = format!("{token:?} was granted the lock {ms} ms ago and does not know");
                Err(Breach::new(Promise::WakeUp, said))
            }
            None => Ok(()),
        }
    }

    /// P5: bounds on how long the dead and the silent keep an undisturbed waiter waiting.
    ///
    /// The lock passes on from a dead or silent holder in a ttl, a check period and two requests,
    /// and in a step more if the holder had its grace. That bound also covers a dead waiter that
    /// is granted the lock because its place still counts: a place counts for the horizon, which
    /// is half a ttl here. A free lock passes on in a check period and two requests.
    fn check_silent(&mut self) -> Result<(), Breach> {
        let disturbed_until = self.waiters_disturbed_until();
        let capacity = self.setting.kind.permits();
        let taken = self.checker.record().taken(self.server_clock());
        let left = capacity.saturating_sub(taken);
        let overdue = self.overdue_since(disturbed_until, left);
        let silent = self.silent_since(disturbed_until);
        let blocked = self.blocked_since(disturbed_until, left);
        let config = &self.setting.config;
        let look = (config.check_period + config.command_timeout * 2).as_nanos() as u64;
        let ttl = self.setting.ttl.as_nanos() as u64;
        let horizon = config.horizon.as_nanos() as u64;
        let late =
            |since: u64, bound: u64| (self.now > since + bound).then(|| (self.now - since) / MS);
        let breach = |said: String| Err(Breach::new(Promise::Service, said));
        if let Some(ms) = overdue.and_then(|since| late(since, look)) {
            return breach(format!(
                "a lease that was over kept others waiting for {ms} ms"
            ));
        }
        for (manager, since) in &silent {
            if let Some(ms) = late(*since, ttl + look + self.setting.step()) {
                return breach(format!(
                    "{manager}, which is dead or silent, kept others waiting for {ms} ms"
                ));
            }
        }
        if let Some((manager, since)) = &blocked
            && let Some(ms) = late(*since, horizon + look)
        {
            return breach(format!(
                "{manager}, which is dead or silent, was first in the queue for {ms} ms"
            ));
        }
        self.watch.overdue = overdue;
        self.watch.silent = silent;
        self.watch.blocked = blocked;
        Ok(())
    }

    /// Until when every process with a waiter was disturbed. `None`: no process has a waiter.
    fn waiters_disturbed_until(&self) -> Option<u64> {
        let record = self.checker.record();
        let is_queued = |process: &&SimProcess| {
            let queue = record.queue.iter().filter(|entry| entry.waits);
            let mut waiting = process
                .callers
                .values()
                .filter(|caller| caller.is_waiting());
            let tokens: Vec<Token> = queue.map(|entry| entry.token).collect();
            waiting.any(|caller| tokens.iter().any(|token| process.waits_by(caller, *token)))
        };
        self.processes
            .iter()
            .flatten()
            .filter(is_queued)
            .map(SimProcess::disturbed_until)
            .min()
            .map(|disturbed_until| disturbed_until.max(self.server_disturbed_until()))
    }

    fn is_silent(&self, manager: &str) -> bool {
        self.process_of(manager)
            .is_none_or(|process| process.paused_until.max(process.cut_until) > self.now)
    }

    /// Since when the first waiter could have what it needs.
    fn overdue_since(&self, disturbed_until: Option<u64>, left: u32) -> Option<u64> {
        let head = self.checker.record().head();
        let is_enough = head.is_some_and(|head| head.permits <= left);
        disturbed_until
            .filter(|_| is_enough)
            .map(|until| self.watch.overdue.unwrap_or(self.now).max(until))
    }

    /// Since when each dead or silent holder keeps others waiting.
    fn silent_since(&self, disturbed_until: Option<u64>) -> HashMap<String, u64> {
        let mut silent: HashMap<String, u64> = HashMap::new();
        let Some(disturbed_until) = disturbed_until else {
            return silent;
        };
        let clock = self.server_clock();
        let holders = self.checker.record().holders.iter();
        for holder in holders.filter(|holder| self.is_silent(&holder.manager)) {
            // The clock went back, and no script looks at this lease before another one is over.
            // `accounting` checks that it then does.
            let is_unseen =
                self.setting.kind.permits() > 1 && holder.end > clock + holder.ttl.max(holder.hold);
            let not_before = if is_unseen { self.now } else { disturbed_until };
            let since = silent
                .get(&holder.manager)
                .or_else(|| self.watch.silent.get(&holder.manager))
                .map_or(self.now, |since| *since)
                .max(disturbed_until)
                .max(not_before);
            silent.insert(holder.manager.clone(), since);
        }
        silent
    }

    /// The dead or silent waiter that is first while some permits are free, and since when.
    fn blocked_since(&self, disturbed_until: Option<u64>, left: u32) -> Option<(String, u64)> {
        let head = self.checker.record().head()?;
        let disturbed_until = disturbed_until?;
        if left == 0 || !self.is_silent(&head.manager) {
            return None;
        }
        let since = match &self.watch.blocked {
            Some((manager, since)) if *manager == head.manager => *since,
            _ => self.now,
        };
        Some((head.manager.clone(), since.max(disturbed_until)))
    }

    /// How late the renewal thread may be: it may be waiting for a reply.
    fn renewal_lateness(&self) -> u64 {
        self.setting.config.command_timeout.as_nanos() as u64 + MS
    }

    /// P1: what a guard believes is true. A guard with a `max_hold` ends in time. P6: no guard
    /// believes in more time than a lease has, whatever the server's clock did.
    fn check_guards(&self) -> Result<(), Breach> {
        for process in self.processes.iter().flatten() {
            let local = process.local(self.now);
            for caller in process.callers.values() {
                let CallerState::Holding(lease) = &caller.state else {
                    continue;
                };
                if lease.remaining(local).is_zero() {
                    continue;
                }
                let full = self.setting.full_lease(caller.lease_kind);
                if lease.remaining(local) > full {
                    let said = format!("{:?} is believed for longer than {full:?}", lease.token);
                    return Err(Breach::new(Promise::Exclusion, said));
                }
                // The renewal thread ends the hold when it runs.
                let ends_by = caller.must_end_by.max(process.paused_until);
                if self.now > ends_by.saturating_add(self.renewal_lateness()) {
                    return Err(Breach::new(
                        Promise::Service,
                        format!("{:?} is held past its max_hold", lease.token),
                    ));
                }
                if !self.is_excepted(process, caller.since, lease)
                    && !process.misdated.contains(&lease.token)
                {
                    let clock = self.server_clock();
                    self.checker
                        .check_held(clock, lease.token, lease.renewed_lease().fence())?;
                }
            }
        }
        Ok(())
    }

    /// P6: a loss is reported when the renewal thread runs. P9: no lease is lost before something
    /// goes wrong. R12 (doubtful grants): a waiter takes a grant with at least half its ttl left.
    fn check_losses(&mut self) -> Result<(), Breach> {
        if let Some(token) = self.watch.taken_late {
            return Err(Breach::new(
                Promise::Service,
                format!("{token:?} became a guard with less than half its ttl left"),
            ));
        }
        if let Some(breach) = &self.watch.wrong_turn {
            return Err(breach.clone());
        }
        let lateness = self.renewal_lateness();
        for process in self.processes.iter().flatten() {
            let local = process.local(self.now);
            for caller in process.callers.values() {
                let CallerState::Holding(lease) = &caller.state else {
                    continue;
                };
                if !lease.remaining(local).is_zero() {
                    continue;
                }
                let may_end = lease.request.fixed || caller.lease_kind == LeaseKind::MaxHold;
                if !self.watch.fault_seen && !may_end {
                    return Err(Breach::new(
                        Promise::Service,
                        format!("{:?} was lost though nothing went wrong", lease.token),
                    ));
                }
                if lease.is_loss_reported() {
                    continue;
                }
                let since = *self.watch.unreported.entry(lease.token).or_insert(self.now);
                if self.now > since.max(process.paused_until) + lateness {
                    return Err(Breach::new(
                        Promise::Service,
                        format!("the loss of {:?} is not reported", lease.token),
                    ));
                }
            }
        }
        Ok(())
    }

    /// P1, P6: a guard may still believe that it is held if only the server knows better. The next
    /// answered renewal ends that. A lease without renewals ends at its own
    /// end, which is at most one lease later.
    fn is_excepted(&self, process: &SimProcess, held_since: u64, lease: &Arc<HeldLease>) -> bool {
        let is_turn = lease.lender().is_some();
        let lease = lease.renewed_lease();
        // A grant about which nobody tells the process is handed over a few times, in trouble or not.
        let is_lent = is_turn && lease.request.hears;
        let Some(since) = self.checker.excepted_since(lease.token, lease.fence()) else {
            return false;
        };
        // A process that had trouble with its server since then lends no lease before a renewal says
        // that the server still has it.
        let trouble = process.trouble_seen_at;
        if is_lent && trouble > since * 1000 && held_since > trouble {
            return false;
        }
        let config = &self.setting.config;
        let Some(period) = lease.request.renewal_period() else {
            // Answers from before give it at most one lease from then. Later ones agree with the
            // server.
            return self.now <= since * 1000 + lease.request.longest().as_nanos() as u64;
        };
        let bound = period + config.command_timeout * 2 + config.back_off;
        let since = (since * 1000)
            .max(held_since)
            .max(process.disturbed_until())
            .max(self.server_disturbed_until());
        self.now <= since + bound.as_nanos() as u64
    }

    /// Until when the server could not be reached, or had just lost data or stepped its clock.
    pub(super) fn server_disturbed_until(&self) -> u64 {
        self.down_until
            .max(self.hangs_until)
            .max(self.checker.disturbed_at() * 1000)
    }
}
