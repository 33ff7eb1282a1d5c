//! What the promises say about time, looked at after each step: whoever holds, was granted the lock, or keeps others
//! waiting. A process counts as troubled from each thing that is done to it until that is over, and all of them while
//! the server is away; a bound begins at the latest of these.

use std::collections::HashMap;

use super::{MS, Run};
use crate::engine::Lease;
use crate::script::Token;
use crate::sim::judge::Broken;
use crate::sim::model::Promise;
use crate::sim::plan::Terms;
use crate::sim::process::{Caller, Doing, Process};

/// What lasts too long if it goes on for a bound, and since when it does.
#[derive(Default)]
pub(super) struct Watch {
    /// Holders that nobody has as a guard or waits for.
    unwanted: HashMap<Token, u64>,
    /// Holders that wait and do not know.
    untold: HashMap<Token, u64>,
    /// What is free, or held by leases that are over, is enough for the first of those who wait.
    overdue: Option<u64>,
    /// The managers of dead or silent holders for whom others wait.
    silent: HashMap<String, u64>,
    /// The manager of a dead or silent one who waits for more than there is, before others.
    blocked: Option<(String, u64)>,
    /// When each guard's loss was seen that is not told.
    lost: HashMap<Token, u64>,
    /// A place became a guard with less than half its ttl left.
    pub(super) claimed_late: Option<Token>,
    /// Something has gone wrong in this run.
    stormy: bool,
}

impl Watch {
    /// Something is done to somebody.
    pub(super) fn storm(&mut self) {
        self.stormy = true;
    }

    /// What a process had sent has arrived: it was not silent until now.
    pub(super) fn hear_of(&mut self, manager: &str) {
        self.silent.remove(manager);
        self.blocked.take_if(|(blocked, _)| blocked == manager);
    }
}

impl Run<'_> {
    pub(super) fn watch(&mut self) -> Result<(), Broken> {
        self.look_at_guards()?;
        self.look_at_losses()?;
        self.look_at_unwanted()?;
        self.look_at_untold()?;
        self.look_at_silent()
    }

    /// P4, P7: what nobody wants is given back, in the time that a check period and two requests take.
    fn look_at_unwanted(&mut self) -> Result<(), Broken> {
        let unwanted = self
            .judge
            .live_holders(self.server_clock())
            .filter_map(|holder| {
                let process = self
                    .processes
                    .iter()
                    .flatten()
                    .find(|process| process.caller_id.manager == holder.manager)?;
                let token = holder.token;
                let wants = |caller: &Caller| match &caller.doing {
                    Doing::Holding(lease) => {
                        lease.token == token && !lease.remaining(process.local(self.now)).is_zero()
                    }
                    Doing::Releasing(lease, _) => lease.token == token,
                    Doing::Trying { token: own, .. } => *own == token,
                    _ => caller
                        .place
                        .as_ref()
                        .is_some_and(|place| place.token() == token),
                };
                let since = process
                    .troubled_until
                    .max(process.paused_until)
                    .max(process.cut_until);
                let is_of_before = self.judge.excepted_since(token, holder.fence).is_some();
                let excepted = is_of_before || self.judge.may_have_come_back(token);
                let wanted = excepted || process.callers.values().any(wants);
                (!wanted).then_some((token, since.max(process.away.excused_until)))
            });
        let server = self.down_until.max(self.hangs_until);
        let before = &self.watch.unwanted;
        let unwanted = unwanted.map(|(token, trouble)| {
            let since = before.get(&token).copied().unwrap_or(self.now);
            (token, since.max(trouble).max(server))
        });
        self.watch.unwanted = unwanted.collect();
        match self
            .watch
            .unwanted
            .iter()
            .find(|(_, since)| self.now > **since + self.per_turn())
        {
            Some((token, _)) => Err((
                Promise::OneGrant,
                format!("{token:?} holds the lock, which nobody wants by it any more"),
            )),
            None => Ok(()),
        }
    }

    /// P4: who was granted the lock knows of it at once, and in the time that a check period and its request take, if
    /// something was lost.
    fn look_at_untold(&mut self) -> Result<(), Broken> {
        let untold = self
            .judge
            .live_holders(self.server_clock())
            .filter_map(|holder| {
                let process = self
                    .processes
                    .iter()
                    .flatten()
                    .find(|process| process.caller_id.manager == holder.manager)?;
                let waits = |caller: &Caller| {
                    matches!(caller.doing, Doing::Waiting | Doing::Asking)
                        && caller
                            .place
                            .as_ref()
                            .is_some_and(|place| place.token() == holder.token)
                };
                process
                    .callers
                    .values()
                    .any(waits)
                    .then(|| (holder.token, process.trouble()))
            });
        let (before, server) = (&self.watch.untold, self.server_trouble());
        let untold = untold.map(|(token, trouble)| {
            let since = before.get(&token).copied().unwrap_or(self.now);
            (token, since.max(trouble).max(server))
        });
        self.watch.untold = untold.collect();
        let bound = if self.watch.stormy {
            self.per_turn()
        } else {
            3 * MS
        };
        match self
            .watch
            .untold
            .iter()
            .find(|(_, since)| self.now > **since + bound)
        {
            Some((token, since)) => {
                let said = format!(
                    "{token:?} was granted the lock {} ms ago and does not know",
                    (self.now - since) / MS
                );
                Err((Promise::WakeUp, said))
            }
            None => Ok(()),
        }
    }

    /// P5: while a process waits that nothing troubles, the lock passes on from one that crashed or is silent in a ttl,
    /// a check period and its request; in a step more if it was spared. That is enough for one whose places count for
    /// the horizon and that is granted the lock by them meanwhile, since the horizon is half a ttl here, and less than
    /// these. What is free passes on in a check period and its request.
    fn look_at_silent(&mut self) -> Result<(), Broken> {
        let (now, clock, server) = (self.now, self.server_clock(), self.server_trouble());
        let record = self.judge.record();
        let waits = |process: &Process| {
            let stands = |caller: &Caller| {
                matches!(caller.doing, Doing::Waiting | Doing::Asking)
                    && caller
                        .place
                        .as_ref()
                        .is_some_and(|place| record.stands(place.token()))
            };
            process.callers.values().any(stands)
        };
        let waiting = self
            .processes
            .iter()
            .flatten()
            .filter(|process| waits(process));
        let trouble = waiting
            .map(Process::trouble)
            .min()
            .map(|trouble| trouble.max(server));
        let capacity = self.setting.kind.permits();
        let left = capacity.saturating_sub(record.taken(clock) + self.judge.missing());
        let is_over = record.head().is_some_and(|head| head.permits <= left);
        let overdue = trouble
            .filter(|_| is_over)
            .map(|trouble| self.watch.overdue.unwrap_or(now).max(trouble));
        let is_silent = |manager: &str| {
            let process = self
                .processes
                .iter()
                .flatten()
                .find(|process| process.caller_id.manager == manager);
            process.is_none_or(|process| process.paused_until.max(process.cut_until) > now)
        };
        let mut silent: HashMap<String, u64> = HashMap::new();
        for holder in record
            .holders
            .iter()
            .filter(|holder| is_silent(&holder.manager))
        {
            let Some(trouble) = trouble else { break };
            // The clock went back, and nobody looks at its lease before another's is over; `books` sees to that.
            let is_unseen = capacity > 1 && holder.end > clock + holder.ttl.max(holder.hold);
            let since = silent
                .get(&holder.manager)
                .or_else(|| self.watch.silent.get(&holder.manager));
            let since = since
                .map_or(now, |since| *since)
                .max(trouble)
                .max(if is_unseen { now } else { 0 });
            silent.insert(holder.manager.clone(), since);
        }
        let blocked = record
            .head()
            .filter(|head| is_silent(&head.manager) && left > 0)
            .zip(trouble);
        let blocked = blocked.map(|(head, trouble)| {
            let before = self
                .watch
                .blocked
                .as_ref()
                .filter(|(manager, _)| *manager == head.manager);
            (
                head.manager.clone(),
                before.map_or(now, |(_, since)| *since).max(trouble),
            )
        });
        let config = &self.setting.config;
        let look = (config.check_period + config.command_timeout * 2).as_nanos() as u64;
        let step = (config.check_period + config.command_timeout).as_nanos() as u64;
        let (ttl, horizon) = (
            self.setting.ttl.as_nanos() as u64,
            config.horizon.as_nanos() as u64,
        );
        if let Some(since) = overdue.filter(|since| now > since + look) {
            return Err((
                Promise::Service,
                format!(
                    "a lease that was over kept others waiting for {} ms",
                    (now - since) / MS
                ),
            ));
        }
        for (manager, since) in &silent {
            if now > since + ttl + look + step {
                let ms = (now - since) / MS;
                let said =
                    format!("{manager}, which is dead or silent, kept others waiting for {ms} ms");
                return Err((Promise::Service, said));
            }
        }
        if let Some((manager, since)) = &blocked
            && now > since + horizon + look
        {
            let said = format!(
                "{manager}, which is dead or silent, stood before others for {} ms",
                (now - since) / MS
            );
            return Err((Promise::Service, said));
        }
        (self.watch.overdue, self.watch.silent, self.watch.blocked) = (overdue, silent, blocked);
        Ok(())
    }

    fn look_at_guards(&self) -> Result<(), Broken> {
        // The renewal thread ends a hold when it gets to run, and it may wait for an answer.
        let patience = self.setting.config.command_timeout.as_nanos() as u64 + MS;
        for process in self.processes.iter().flatten() {
            let local = process.local(self.now);
            for caller in process.callers.values() {
                if let Doing::Holding(lease) = &caller.doing
                    && !lease.remaining(local).is_zero()
                    && self.now
                        > caller
                            .ends_at
                            .max(process.paused_until)
                            .saturating_add(patience)
                {
                    return Err((
                        Promise::Service,
                        format!("{:?} is held past its max_hold", lease.token),
                    ));
                }
                if let Doing::Holding(lease) = &caller.doing
                    && !lease.remaining(local).is_zero()
                    && !self.is_excepted(process, caller.since, lease)
                    && !process.misdated.contains(&lease.token)
                {
                    self.judge
                        .held(self.server_clock(), lease.token, lease.fence)?;
                }
            }
        }
        Ok(())
    }

    /// P6: a loss is told when the renewal thread gets to run, which may wait for an answer. P9, R12: none comes before
    /// something goes wrong, and what had to wait becomes a guard with at least half its ttl left.
    fn look_at_losses(&mut self) -> Result<(), Broken> {
        let patience = self.setting.config.command_timeout.as_nanos() as u64 + MS;
        if let Some(token) = self.watch.claimed_late {
            return Err((
                Promise::Service,
                format!("{token:?} became a guard with less than half its ttl left"),
            ));
        }
        for process in self.processes.iter().flatten() {
            let local = process.local(self.now);
            for caller in process.callers.values() {
                let Doing::Holding(lease) = &caller.doing else {
                    continue;
                };
                if !lease.remaining(local).is_zero() {
                    continue;
                }
                if !self.watch.stormy && !lease.request.fixed && caller.terms != Terms::MaxHold {
                    return Err((
                        Promise::Service,
                        format!("{:?} was lost though nothing went wrong", lease.token),
                    ));
                }
                if !lease.is_loss_reported() {
                    let since = *self.watch.lost.entry(lease.token).or_insert(self.now);
                    if self.now > since.max(process.paused_until) + patience {
                        return Err((
                            Promise::Service,
                            format!("the loss of {:?} is not told", lease.token),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// P1, P6: what only the server knows is told by the next renewal that is answered; to those whose leases are not
    /// renewed, by their end.
    fn is_excepted(&self, process: &Process, held_since: u64, lease: &Lease) -> bool {
        let Some(since) = self.judge.excepted_since(lease.token, lease.fence) else {
            return false;
        };
        let config = &self.setting.config;
        let told_in = lease
            .request
            .renewal_period()
            .map(|period| period + config.command_timeout * 2 + config.back_off);
        let since = (since * 1000)
            .max(held_since)
            .max(process.trouble())
            .max(self.server_trouble());
        told_in.is_none_or(|told_in| self.now <= since + told_in.as_nanos() as u64)
    }

    /// Until when the server could not be reached, or was another than before.
    fn server_trouble(&self) -> u64 {
        self.down_until
            .max(self.hangs_until)
            .max(self.judge.disturbed_at() * 1000)
    }
}
