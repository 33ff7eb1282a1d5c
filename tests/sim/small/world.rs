//! A whole world as a value, and all that can happen next in it.

use super::client::{AcquireDoubt, Client, ClientStage, DueAction, InFlight};
use super::event::{MessageFate, RequestFate, SmallAction, SmallEvent};
use super::record_state::{
    Arrival, CLIENTS, PERIOD, RecordState, ReleaseMode, SmallAnswer, SmallGrant, SmallReply,
    SmallRequest, SmallToken, SmallWanted, TTL,
};
use super::script_runner::ScriptRunner;
use super::setting::SmallSetting;

/// How often each fault may happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Budget {
    /// The message of a grant is lost.
    pub(crate) messages: u8,
    /// A request is lost.
    pub(crate) requests: u8,
    /// A reply is lost.
    pub(crate) replies: u8,
    /// A request arrives twice in a row, and the client sees the second answer.
    pub(crate) resends: u8,
    /// A request, a reply or a message is delayed. A request can arrive at any time, even after its
    /// connection was closed. A client waits for a reply for one tick.
    pub(crate) delays: u8,
    /// A waiter is dropped or cancels at a deadline.
    pub(crate) cancels: u8,
    /// A process ends without cleaning up.
    pub(crate) crashes: u8,
    /// The lock is released by force.
    pub(crate) forces: u8,
    /// The list is lost, and the record is not.
    pub(crate) losses: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SmallWorld {
    pub(super) record: RecordState,
    pub(super) clients: [Client; CLIENTS as usize],
    /// Delayed messages.
    pub(super) messages: Vec<SmallGrant>,
    /// The same for messages that others wait.
    pub(super) wanted: Vec<SmallWanted>,
    /// Something has gone wrong, so a process may not know that others wait.
    pub(super) is_disturbed: bool,
    /// With turns: the largest fence that a guard had, or can have of a grant that ended by force.
    pub(super) last_used: u32,
    /// The token whose grant ended by force, while its client may not know that.
    pub(super) forced: Option<SmallToken>,
    pub(super) budget: Budget,
    pub(super) setting: SmallSetting,
}

/// An event with the world that it leads to. The error says what is broken there.
pub(super) type NextWorld = (SmallEvent, Result<SmallWorld, String>);

impl SmallWorld {
    pub(super) fn new(setting: SmallSetting, budget: Budget) -> SmallWorld {
        // With fences ahead of the clock, somebody had the lock before.
        let record = RecordState {
            fence: u32::from(setting.fences_ahead),
            ..RecordState::default()
        };
        SmallWorld {
            record,
            setting,
            budget,
            ..SmallWorld::default()
        }
    }

    /// The first action that must happen before time goes on.
    pub(super) fn due(&self) -> Option<SmallAction> {
        let due = |c: u8| Some(SmallAction::Due(c, self.clients[usize::from(c)].due()?));
        (0..CLIENTS).find_map(due)
    }

    /// All that can happen.
    pub(super) fn actions(&self) -> Vec<SmallAction> {
        let mut actions = Vec::new();
        for c in 0..CLIENTS {
            let client = &self.clients[usize::from(c)];
            actions.extend(client.due().map(|due| SmallAction::Due(c, due)));
            match client.stage {
                ClientStage::Idle => actions.push(SmallAction::Start(c)),
                ClientStage::Holding => {
                    actions.push(SmallAction::Unlock(c));
                    // As in the line of the engine: the lease must have half its time left.
                    let has_spare = u32::from(client.turn) < self.setting.spare_of(c);
                    let may_pass = has_spare && 2 * client.left >= TTL && !self.setting.keeps(c);
                    actions.extend(may_pass.then_some(SmallAction::TakeTurn(c)));
                    let may_keep = self.setting.keeps(c) && client.may_go_on();
                    actions.extend(may_keep.then_some(SmallAction::Keep(c)));
                    actions.extend(
                        (self.setting.writes(c) && !client.downgraded)
                            .then_some(SmallAction::Downgrade(c)),
                    );
                }
                ClientStage::Kept => {
                    actions.push(SmallAction::LetGo(c));
                    let has_spare = u32::from(client.turn) < self.setting.spare_of(c);
                    let may_lend = has_spare && client.may_go_on();
                    actions.extend(may_lend.then_some(SmallAction::Relock(c)));
                }
                ClientStage::Queued if self.budget.cancels > 0 => {
                    actions.extend([SmallAction::DropWaiter(c), SmallAction::Cancel(c)])
                }
                ClientStage::Confirming if self.budget.cancels > 0 => {
                    actions.push(SmallAction::DropWaiter(c))
                }
                ClientStage::Acquiring if self.budget.cancels > 0 && client.due_in == 0 => {
                    actions.push(SmallAction::DropWaiter(c))
                }
                _ => {}
            }
            if self.budget.crashes > 0 && client.stage != ClientStage::Crashed {
                actions.push(SmallAction::Crash(c));
            }
            if self.budget.forces > 0 && client.stage != ClientStage::Crashed {
                // The last of these is no fence of the grant.
                let behind = 0..=self.setting.spare as u8 + 1;
                actions.extend(behind.map(|behind| SmallAction::Force(c, behind)));
            }
            actions.extend((0..client.in_flight.len()).map(|at| SmallAction::Arrive(c, at)));
        }
        actions.extend((0..self.messages.len()).map(SmallAction::Deliver));
        actions.extend((0..self.wanted.len()).map(SmallAction::DeliverWanted));
        if self.budget.losses > 0 && !self.record.queue.is_empty() {
            actions.push(SmallAction::LoseQueue);
        }
        if self.due().is_none() {
            actions.push(SmallAction::Tick);
        }
        actions
    }

    /// Every way in which an action can go, and the worlds that it leads to.
    pub(super) fn after(&self, runner: &mut ScriptRunner, action: SmallAction) -> Vec<NextWorld> {
        let mut worlds = Vec::new();
        for request in self.request_fates(action) {
            let mut step = |message| {
                let event = SmallEvent {
                    action,
                    request,
                    message,
                };
                let (world, published) = self.step(runner, event);
                worlds.push((event, world));
                published
            };
            if step(MessageFate::Delivered) {
                if self.budget.messages > 0 {
                    step(MessageFate::Lost);
                }
                let delays_request = matches!(
                    request,
                    RequestFate::RequestDelayed
                        | RequestFate::RequestCutOff
                        | RequestFate::ReplyDelayed
                );
                if self.budget.delays > u8::from(delays_request) {
                    step(MessageFate::Delayed);
                    if self.setting.keepers > 0 {
                        step(MessageFate::Doubled);
                    }
                }
            }
        }
        worlds
    }

    fn request_fates(&self, action: SmallAction) -> Vec<RequestFate> {
        let budget = &self.budget;
        let mut fates = vec![RequestFate::Answered];
        if !action.sends_request() {
            return fates;
        }
        let possible = [
            (RequestFate::RequestLost, budget.requests > 0),
            (RequestFate::ReplyLost, budget.replies > 0),
            (RequestFate::SentTwice, budget.resends > 0),
            (RequestFate::RequestDelayed, budget.delays > 0),
            (
                RequestFate::RequestCutOff,
                action.sends_acquire() && budget.delays > 0,
            ),
            (RequestFate::ReplyDelayed, budget.delays > 0),
        ];
        fates.extend(
            possible
                .into_iter()
                .filter_map(|(fate, may_happen)| may_happen.then_some(fate)),
        );
        fates
    }

    /// The world after an event, and whether a script published a grant.
    pub(super) fn step(
        &self,
        runner: &mut ScriptRunner,
        event: SmallEvent,
    ) -> (Result<SmallWorld, String>, bool) {
        let mut step = WorldStep {
            world: self.clone(),
            runner,
            event,
            published: false,
        };
        let result = step.act().and_then(|()| step.note_guards(&self.clients));
        let WorldStep {
            world, published, ..
        } = step;
        (result.map(|()| world), published)
    }
}

/// A step that is being made: the world as it changes, and the event that changes it.
struct WorldStep<'a> {
    world: SmallWorld,
    runner: &'a mut ScriptRunner,
    event: SmallEvent,
    published: bool,
}

impl WorldStep<'_> {
    /// Does what the event says, and spends the budget for its faults.
    fn act(&mut self) -> Result<(), String> {
        let number = self.unused_number();
        self.spend_budget();
        match self.event.action {
            SmallAction::Start(client) => {
                let token = SmallToken { client, number };
                let request = self.client(client).begin_attempt(token);
                self.send(client, request)
            }
            SmallAction::Due(client, due) => {
                let token = SmallToken { client, number };
                let request = next_request(self.client(client), due, token);
                self.send(client, request)
            }
            SmallAction::TakeTurn(c) => {
                self.client(c).turn += 1;
                Ok(())
            }
            SmallAction::Keep(c) => {
                self.client(c).stage = ClientStage::Kept;
                Ok(())
            }
            SmallAction::Relock(c) => {
                self.client(c).turn += 1;
                self.client(c).stage = ClientStage::Holding;
                Ok(())
            }
            SmallAction::Force(client, behind) => {
                let fence = self.world.record.fence + u32::from(behind);
                self.send(
                    client,
                    SmallRequest::Force(SmallToken { client, number }, fence),
                )
            }
            SmallAction::Unlock(c) | SmallAction::LetGo(c) => {
                let request = self.client(c).unlock();
                self.send(c, request)
            }
            SmallAction::Downgrade(c) => {
                let request = self.client(c).downgrade();
                self.send(c, request)
            }
            SmallAction::DropWaiter(c) => {
                let request = self.client(c).drop_waiter();
                self.send(c, request)
            }
            SmallAction::Cancel(c) => {
                let request = self.client(c).cancel();
                self.send(c, request)
            }
            SmallAction::Crash(c) => {
                self.client(c).crash();
                Ok(())
            }
            SmallAction::Arrive(c, at) => self.arrive(c, at),
            SmallAction::Deliver(at) => {
                let grant = self.world.messages.remove(at);
                self.client(grant.to.client).on_grant(grant);
                Ok(())
            }
            SmallAction::DeliverWanted(at) => {
                let SmallWanted { client, fence } = self.world.wanted.remove(at);
                self.client(client).on_wanted(fence);
                Ok(())
            }
            SmallAction::LoseQueue => {
                self.world.record.lose_queue();
                Ok(())
            }
            SmallAction::Tick => {
                self.world.record.tick();
                self.world.clients.iter_mut().for_each(Client::tick);
                self.world
                    .messages
                    .iter_mut()
                    .for_each(|grant| grant.left = grant.left.saturating_sub(1));
                Ok(())
            }
        }
    }

    fn spend_budget(&mut self) {
        let is_fault = |action| {
            matches!(
                action,
                SmallAction::Crash(_) | SmallAction::Force(..) | SmallAction::LoseQueue
            )
        };
        self.world.is_disturbed |= self.world.setting.keepers > 0
            && (is_fault(self.event.action)
                || self.event.request != RequestFate::Answered
                || matches!(self.event.message, MessageFate::Lost | MessageFate::Delayed));
        let budget = &mut self.world.budget;
        match self.event.request {
            RequestFate::Answered => {}
            RequestFate::RequestLost => budget.requests -= 1,
            RequestFate::ReplyLost => budget.replies -= 1,
            RequestFate::SentTwice => budget.resends -= 1,
            RequestFate::RequestDelayed
            | RequestFate::RequestCutOff
            | RequestFate::ReplyDelayed => budget.delays -= 1,
        }
        match self.event.action {
            SmallAction::DropWaiter(_) | SmallAction::Cancel(_) => budget.cancels -= 1,
            SmallAction::Crash(_) => budget.crashes -= 1,
            SmallAction::Force(..) => budget.forces -= 1,
            SmallAction::LoseQueue => budget.losses -= 1,
            _ => {}
        }
    }

    /// The lock is released by force. Its process may not know that for a while, and use all fences
    /// that are reserved for it.
    fn note_forced(&mut self) {
        let world = &mut self.world;
        if let Some(holder) = world.record.holding().next() {
            world.forced = Some(holder.token);
            world.last_used = world.last_used.max(holder.fence + holder.spare);
        }
    }

    /// P2: each guard has a larger fence than all guards before it.
    fn note_guards(&mut self, before: &[Client]) -> Result<(), String> {
        let world = &mut self.world;
        if world.setting.spare == 0 {
            return Ok(());
        }
        for (client, before) in world.clients.iter().zip(before) {
            let Some((token, fence)) = client.guard().filter(|_| client.guard() != before.guard())
            else {
                continue;
            };
            // Those of a grant that ended by force count already.
            if world.forced == Some(token) {
                continue;
            }
            if fence <= world.last_used {
                return Err(format!(
                    "P2: a guard of {token:?} has the fence {fence}, and a guard before it had {}",
                    world.last_used
                ));
            }
            world.last_used = fence;
        }
        Ok(())
    }

    fn client(&mut self, c: u8) -> &mut Client {
        &mut self.world.clients[usize::from(c)]
    }

    /// Larger than the number of any token that anything refers to.
    fn unused_number(&mut self) -> u8 {
        let mut largest = 0;
        self.world
            .each_token(&mut |token| largest = largest.max(token.number));
        largest + 1
    }

    /// A client sends a request, and the event says what becomes of it.
    fn send(&mut self, c: u8, request: SmallRequest) -> Result<(), String> {
        match self.event.request {
            RequestFate::Answered => {
                let answer = self.run_script(request, Arrival::InTime)?;
                self.client(c).on_answer(request, &answer)
            }
            RequestFate::SentTwice => {
                let answer = self.run_script_twice(request)?;
                self.client(c).on_answer(request, &answer)
            }
            RequestFate::RequestLost => Ok(()),
            RequestFate::ReplyLost => self.run_script(request, Arrival::InTime).map(|_| ()),
            RequestFate::RequestDelayed => {
                self.client(c).in_flight.push(InFlight {
                    request,
                    answer: None,
                    late: false,
                    ignored: false,
                });
                Ok(())
            }
            RequestFate::RequestCutOff => {
                self.client(c).in_flight.push(InFlight {
                    request,
                    answer: None,
                    late: false,
                    ignored: true,
                });
                self.client(c).on_connection_lost();
                Ok(())
            }
            RequestFate::ReplyDelayed => {
                let answer = self.run_script(request, Arrival::InTime)?;
                self.client(c).in_flight.push(InFlight {
                    request,
                    answer: Some(answer),
                    late: false,
                    ignored: false,
                });
                Ok(())
            }
        }
    }

    /// Something in flight arrives: a request at the server, or an answer at its client.
    fn arrive(&mut self, c: u8, at: usize) -> Result<(), String> {
        let flight = self.client(c).in_flight.remove(at);
        let answer = match flight.answer {
            Some(answer) => answer,
            None if flight.late => self.run_script(flight.request, Arrival::Late)?,
            None => self.run_script(flight.request, Arrival::InTime)?,
        };
        if flight.ignored {
            Ok(())
        } else {
            self.client(c).on_answer(flight.request, &answer)
        }
    }

    /// P7: both copies of a request must have the same effect. Returns the second answer.
    fn run_script_twice(&mut self, request: SmallRequest) -> Result<SmallAnswer, String> {
        let first = self.run_script(request, Arrival::InTime)?;
        let second = self.run_script(request, Arrival::InTime)?;
        let agree = match (request, &first.reply) {
            (
                SmallRequest::Release(_, _, ReleaseMode::Used(_)) | SmallRequest::Force(..),
                SmallReply::Released,
            ) => second.reply == SmallReply::Already,
            (SmallRequest::Release(_, _, ReleaseMode::Unused | ReleaseMode::Lost(_)), _) => true,
            (_, reply) => *reply == second.reply,
        };
        if agree {
            Ok(second)
        } else {
            Err(format!(
                "P7: {request:?} was answered {:?} and then {:?}",
                first.reply, second.reply
            ))
        }
    }

    /// The server runs the script of a request. The event says what becomes of its messages.
    fn run_script(
        &mut self,
        request: SmallRequest,
        arrival: Arrival,
    ) -> Result<SmallAnswer, String> {
        let execution = self.runner.run(&self.world.record, request, arrival)?;
        if matches!(request, SmallRequest::Force(..))
            && execution.answer.reply == SmallReply::Released
        {
            self.note_forced();
        }
        self.world.record = execution.record.clone();
        for grant in &execution.published {
            self.published = true;
            match self.event.message {
                MessageFate::Delivered => self.client(grant.to.client).on_grant(*grant),
                MessageFate::Lost => {
                    self.world.budget.messages = self.world.budget.messages.saturating_sub(1)
                }
                MessageFate::Delayed => {
                    self.world.budget.delays = self.world.budget.delays.saturating_sub(1);
                    self.world.messages.push(*grant);
                }
                MessageFate::Doubled => {
                    self.world.budget.delays = self.world.budget.delays.saturating_sub(1);
                    self.world.messages.push(*grant);
                    self.client(grant.to.client).on_grant(*grant);
                }
            }
        }
        for wanted in &execution.wanted {
            self.published = true;
            let SmallWanted { client, fence } = *wanted;
            let is_late = matches!(
                self.event.message,
                MessageFate::Delayed | MessageFate::Doubled
            );
            if is_late {
                self.world.budget.delays = self.world.budget.delays.saturating_sub(1);
                self.world.wanted.push(*wanted);
            }
            match self.event.message {
                MessageFate::Delivered | MessageFate::Doubled => {
                    self.client(client).on_wanted(fence)
                }
                MessageFate::Lost => {
                    self.world.budget.messages = self.world.budget.messages.saturating_sub(1)
                }
                MessageFate::Delayed => {}
            }
        }
        Ok(execution.answer.clone())
    }
}

/// The request that is due. If it is a new attempt, it has `unused_token`.
fn next_request(client: &mut Client, due: DueAction, unused_token: SmallToken) -> SmallRequest {
    match due {
        // R6 (token lifetime): no acquire carries a token that is older than one ttl.
        DueAction::Acquire if client.age >= TTL => {
            client.abandon_own_token();
            client.begin_attempt(unused_token)
        }
        DueAction::Acquire => client.send_acquire(),
        DueAction::Requeue => {
            if client.doubt != AcquireDoubt::None {
                client.abandon_own_token();
            }
            client.begin_attempt(unused_token)
        }
        DueAction::Sync => {
            client.due_in = PERIOD;
            SmallRequest::Sync(client.own_token())
        }
        DueAction::LookUp => {
            // If this request is lost, the next sync finds the same doubt again.
            client.must_look_up = false;
            SmallRequest::Lookup(client.own_token())
        }
        DueAction::Confirm | DueAction::Renew => {
            client.due_in = PERIOD;
            SmallRequest::Renew(client.own_token())
        }
        DueAction::LetGo => client.unlock(),
        DueAction::Release(at) => client.send_release(at),
    }
}
