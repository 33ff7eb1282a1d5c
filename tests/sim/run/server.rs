//! The life of a request at the server, and of the messages that it publishes.

use std::fmt::Debug;
use std::sync::Arc;

use super::{MS, RequestInFlight, Run, SimEvent};
use crate::script::{Grant, Outcome, ScriptReply, Token, Verb};
use crate::sim::breach::Breach;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::lane::ReplyInFlight;
use crate::sim::model::Promise;
use crate::sim::process::{CallerState, LastCheck, SimCaller, SimProcess};
use crate::store::memory::keyspace::CommandResult;

const NOSCRIPT: &str = "NOSCRIPT";

impl Run<'_> {
    /// A request reaches the server.
    pub(super) fn arrive(&mut self, request: Box<RequestInFlight>) -> Result<(), Breach> {
        let of_the_dead = self.cuts_of_the_dead.get(&request.process).copied();
        let cut_until = self
            .process(request.process)
            .map_or(of_the_dead.unwrap_or(0), |process| process.cut_until);
        let held_back_until = self.hangs_until.max(cut_until);
        if request.epoch != self.epoch || self.now < self.down_until || self.is_reset(&request) {
            return Ok(());
        }
        if held_back_until > self.now {
            self.put_arrival(held_back_until, *request);
            return Ok(());
        }
        if self.is_script_unknown(&request) {
            self.refuse_script(&request);
            return Ok(());
        }
        let own_holders = self.own_holders(&request);
        let clock = self.server_clock();
        let value = self.run_request(clock, &request);
        self.watch.on_sign_of_life(&request.manager);
        let call = &request.calls[request.index];
        let reply = match &value {
            Ok(value) => ScriptReply::parse(call, value).map_err(|malformed| malformed.to_string()),
            Err(error) => Err(error.clone()),
        };
        let reply =
            reply.map_err(|error| Breach::new(Promise::BadInput, format!("{call:?}: {error}")))?;
        self.check_request(&request, &reply)?;
        self.send_messages()?;
        self.put_reply(&request, own_holders, value);
        self.lose_key_if_due();
        Ok(())
    }

    /// Runs a request. The link renews a mutex together with others, and alone if that did nothing
    /// about it: in the same exchange, so at the same time here.
    fn run_request(&mut self, clock: u64, request: &RequestInFlight) -> CommandResult {
        let is_of_link = request.lane.is_none();
        let process = self.process(request.process).filter(|_| is_of_link);
        if let Some(caller_id) = process.map(|process| Arc::clone(&process.caller_id)) {
            let call = &request.calls[request.index];
            let not_after = request.not_after;
            let reply = self
                .server
                .renew_together(clock, call, &caller_id, not_after)?;
            if let Some(reply) = reply {
                return Ok(reply);
            }
        }
        self.server.run(clock, &request.words)
    }

    /// The process has crashed, and its kernel has reset the connection.
    fn is_reset(&self, request: &RequestInFlight) -> bool {
        let Some(lane) = request.lane else {
            return false;
        };
        let reset_at = self.resets_of_the_dead.get(&(request.process, lane));
        reset_at.is_some_and(|reset_at| *reset_at <= self.now)
    }

    /// Puts the reply to a request on its way, unless it is lost.
    fn put_reply(
        &mut self,
        request: &RequestInFlight,
        own_holders: Vec<Token>,
        value: CommandResult,
    ) {
        let arrives = match request.lane {
            Some(lane) => self.reply_arrives_at(request.process, lane, request.reply_after),
            None => {
                let is_delivered = self
                    .process(request.process)
                    .is_none_or(|process| process.inbound_lost_until <= self.now);
                let after = request.reply_after.filter(|_| is_delivered);
                after.map(|after| self.now + after)
            }
        };
        let Some(at) = arrives else { return };
        let order = self.number();
        let reply = ReplyInFlight {
            process: request.process,
            flight: request.flight,
            index: request.index,
            epoch: request.epoch,
            lane: request.lane,
            order,
            ran_at: self.now,
            clock_steps: self.checker.clock_steps(),
            own_holders,
            is_unknown_script: value
                .as_ref()
                .is_err_and(|error| error.starts_with(NOSCRIPT)),
            value,
        };
        self.put_reply_at(at, reply);
    }

    pub(super) fn put_reply_at(&mut self, at: u64, reply: ReplyInFlight) {
        let key = (at, reply.order);
        self.events.insert(key, SimEvent::Reply(Box::new(reply)));
    }

    /// Whether the server has to refuse a request of a lane. The link sends the source itself, in
    /// the same exchange.
    fn is_script_unknown(&mut self, request: &RequestInFlight) -> bool {
        let (Some(known), Some(digest)) = (&mut self.known_scripts, request.words.get(1)) else {
            return false;
        };
        if request.by_source || request.lane.is_none() {
            known.insert(digest.clone());
        }
        !known.contains(digest)
    }

    fn refuse_script(&mut self, request: &RequestInFlight) {
        if let Verb::Release { token, .. } = request.calls[request.index].verb {
            self.watch.note_refused(token);
        }
        self.record_in_transcript(request, &NOSCRIPT);
        self.put_reply(request, Vec::new(), Err(NOSCRIPT.to_owned()));
    }

    /// The holders of the process that sent a request.
    fn own_holders(&self, request: &RequestInFlight) -> Vec<Token> {
        let holders = self.checker.live_holders(self.server_clock());
        let own = holders.filter(|holder| holder.manager == request.manager);
        own.map(|holder| holder.token).collect()
    }

    /// Checks a request that the server has run.
    fn check_request(
        &mut self,
        request: &RequestInFlight,
        reply: &ScriptReply,
    ) -> Result<(), Breach> {
        let call = &request.calls[request.index];
        self.record_in_transcript(request, &reply.outcome);
        let executed = ExecutedCall {
            call,
            manager: &request.manager,
            outcome: &reply.outcome,
            grants: &reply.grants,
            more: reply.more,
            times_out_at: request.times_out_at,
            dated_after: request.dated_after,
        };
        let at = self.ran_at();
        self.checker
            .on_executed(at, &self.server.state().keyspace, &executed)?;
        self.check_passed_over()?;
        if let (Verb::Acquire { token, .. }, Outcome::Waiting { .. } | Outcome::Granted(_)) =
            (&call.verb, &reply.outcome)
        {
            self.check_order(request, *token)?;
        }
        // R6 (token lifetime): the client releases a token only for so long. A copy of a later
        // request could take the lock for good. A request that is sent again on another connection
        // has two command timeouts.
        let config = &self.setting.config;
        if request.token_age > (self.setting.ttl + config.command_timeout * 2).as_nanos() as u64 {
            return Err(Breach::new(
                Promise::OneGrant,
                format!(
                    "{call:?} was sent {} ms after its first",
                    request.token_age / MS
                ),
            ));
        }
        Ok(())
    }

    fn record_in_transcript(&mut self, request: &RequestInFlight, outcome: &dyn Debug) {
        let Some(transcript) = &mut self.transcript else {
            return;
        };
        let ms = self.now as f64 / MS as f64;
        let mut line = format!(
            "{ms:>10.3} ms  {} of {}: {:?}",
            request.index, request.manager, request.calls[request.index].verb
        );
        if let Some(at) = line.find(", params: ") {
            line.replace_range(at.., " }");
        }
        transcript.push(format!("{line} -> {outcome:?}"));
    }

    /// Puts on their way the messages that the last request published.
    fn send_messages(&mut self) -> Result<(), Breach> {
        for message in self.server.published() {
            let text = String::from_utf8_lossy(&message.text).into_owned();
            if let Some((grant, ..)) = Grant::from_message(&self.setting.config.prefix, &text) {
                self.checker.check_message(&grant)?;
            }
            let to = self
                .processes
                .iter_mut()
                .flatten()
                .find(|p| p.caller_id.channel().as_bytes() == message.channel);
            let Some(process) =
                to.filter(|process| process.subscribed && process.deaf_until <= self.now)
            else {
                continue;
            };
            let Some(late) = process.late_messages.pop_front().unwrap_or(Some(0)) else {
                continue;
            };
            let at = self.now + late + process.latency();
            let message = |text| SimEvent::Message {
                process: process.number,
                subscription: process.subscription,
                text,
            };
            let mut events = vec![(at, message(text.clone()))];
            if text.starts_with("wanted ") {
                self.recalls += 1;
                // Nothing breaks if a process is told twice, and late.
                let late = process.rng.below(6_000);
                if late < 1_500 {
                    events.push((at + late * MS, message(text)));
                }
            }
            for (at, event) in events {
                self.at(at, event);
            }
        }
        Ok(())
    }

    /// P3, R22 (tries among the dead): a try passes over no waiter of a live process, unless that
    /// process itself was out of reach within the last T. An outage of the server excuses nothing: a
    /// process is back before the try asks again.
    fn check_passed_over(&self) -> Result<(), Breach> {
        let timeout = self.setting.config.command_timeout.as_nanos() as u64;
        for token in &self.checker.passed_over {
            let waits = |process: &&SimProcess| {
                let mut callers = process.callers.values();
                callers.any(|caller| process.waits_by(caller, *token))
            };
            let process = self.processes.iter().flatten().find(waits);
            let could_come = |process: &SimProcess| {
                self.now >= process.disturbed_until() + timeout && process.subscribed
            };
            if process.is_some_and(could_come) {
                let said = format!("{token:?} was passed over, and its process is alive");
                return Err(Breach::new(Promise::Order, said));
            }
        }
        Ok(())
    }

    /// P3, R4 (lost places): a process takes its lost places again in the order in which its
    /// callers came.
    fn check_order(&mut self, request: &RequestInFlight, token: Token) -> Result<(), Breach> {
        let process = self
            .processes
            .iter_mut()
            .flatten()
            .find(|process| process.number == request.process);
        let Some(process) = process else {
            return Ok(());
        };
        let Some((id, caller)) = process.callers.iter_mut().find(|(_, caller)| {
            caller
                .waiter
                .as_ref()
                .is_some_and(|waiter| waiter.token() == token)
        }) else {
            return Ok(());
        };
        let id = *id;
        let lost_at = caller.lost_at.take();
        // The last check says nothing about a waiter that learned of its place after the check was
        // sent, nor about a loss that came after the check.
        let LastCheck { sent, ran_at } = process.last_check;
        let is_known_lost = |caller: &SimCaller| {
            caller.lost_at == lost_at
                && matches!(caller.state, CallerState::Waiting)
                && process.local(caller.since) < sent
                && Some(ran_at) > lost_at
        };
        let earlier = process
            .callers
            .range(..id)
            .find(|(_, caller)| is_known_lost(caller));
        // A copy from before the loss does not take a place again.
        let takes_again =
            request.lane.is_none() && lost_at.is_some_and(|lost| lost < request.sent_at);
        match earlier.filter(|_| takes_again) {
            Some((_, earlier)) => {
                let earlier = earlier.waiter.as_ref().map(|waiter| waiter.token());
                Err(Breach::new(
                    Promise::Order,
                    format!("{token:?} took a place again before {earlier:?}, which came first"),
                ))
            }
            None => Ok(()),
        }
    }

    pub(super) fn process_mut(&mut self, number: u64) -> Option<&mut SimProcess> {
        self.processes
            .iter_mut()
            .flatten()
            .find(|process| process.number == number)
    }

    fn process(&self, number: u64) -> Option<&SimProcess> {
        self.processes
            .iter()
            .flatten()
            .find(|process| process.number == number)
    }
}
