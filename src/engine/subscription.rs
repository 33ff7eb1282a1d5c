//! The thread that receives grants: one subscription to one channel, however many waiters there
//! are.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::Base;
use crate::engine::client::Client;
use crate::engine::grants::Grants;
use crate::engine::hearing::Hearing;
use crate::engine::life::Life;
use crate::engine::upkeep::{Command, Upkeep};
use crate::engine::waiter::{GrantNotice, WaiterRegistry};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::logging::Logger;
use crate::script::{Call, CallerId, Grant, LockSpec, Verb, called_for, wanted_behind};
use crate::store::clock::Time;
use crate::store::{Channel, ChannelEvent, StoreFault};
use crate::sync::{Condvar, Mutex};

const THREAD: &str = "fairlock-listener";

/// The subscription of one manager.
pub(crate) struct Subscription {
    life: Arc<Life>,
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    registry: Arc<WaiterRegistry>,
    grants: Arc<Grants>,
    hearing: Arc<Hearing>,
    caller_id: Arc<CallerId>,
    /// | state   | meaning                               | becomes                             |
    /// |---------|---------------------------------------|-------------------------------------|
    /// | Idle    | no caller has had to wait yet         | Started                             |
    /// | Started | not confirmed yet, or interrupted     | Up, Absent, Refused                 |
    /// | Up      | confirmed                             | Started, on a fault                 |
    /// | Absent  | a proxy does not know SUBSCRIBE       | Up, Started, Refused                |
    /// | Refused | a permission is missing; no thread    | Started, by the next caller to wait |
    state: Mutex<SubscriptionState>,
    changed: Condvar,
}

enum SubscriptionState {
    Idle,
    Started,
    Up,
    Absent,
    Refused(StoreFault),
}

impl Subscription {
    pub(super) fn new(base: &Base, caller_id: Arc<CallerId>) -> Subscription {
        Subscription {
            life: Arc::clone(&base.life),
            client: Arc::clone(&base.client),
            upkeep: Arc::clone(&base.upkeep),
            registry: Arc::clone(&base.registry),
            grants: Arc::clone(&base.grants),
            hearing: Arc::clone(&base.hearing),
            caller_id,
            state: Mutex::new(SubscriptionState::Idle),
            changed: Condvar::new(),
        }
    }

    pub(super) fn is_started(&self) -> bool {
        matches!(
            *self.state.lock(),
            SubscriptionState::Started | SubscriptionState::Up | SubscriptionState::Absent
        )
    }

    /// Has the thread that receives messages look whether it is to end. Blocks until `by` at most.
    pub(super) fn poke(&self, by: Time) {
        // The thread reads from its socket while the subscription is up. A message wakes it.
        if matches!(*self.state.lock(), SubscriptionState::Up) {
            self.client.store().poke(&self.caller_id.channel(), by);
        }
    }

    /// R17 (subscription): has it proven alive for a while. If it is not heard, or not for long, a message
    /// to oneself is the first proof: without one, the thread looks only after a check period. Waits for
    /// no reply.
    pub(super) fn ask_for_proof(&self, key: &Key, now: Time) {
        let is_up = || matches!(*self.state.lock(), SubscriptionState::Up);
        if self.life.check_open().is_ok() && self.hearing.ask_for_proof(now) && is_up() {
            let channel = self.caller_id.channel();
            self.client.store().post_poke(&channel, key);
        }
    }

    /// Ends a pause between two attempts early.
    pub(super) fn wake(&self) {
        // A thread that is about to sleep holds the mutex. After this it sleeps, and is woken
        // below.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    fn set(&self, state: SubscriptionState) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// R17 (subscription): starts the subscription before the first enqueue, and waits until it is
    /// confirmed, for at most one command timeout. After that the caller queues without it, because
    /// syncs find its grant, too. A missing permission is an error.
    pub(super) fn await_up(self: &Arc<Self>, until: Time) -> Result<()> {
        self.start();
        let mut state = self.state.lock();
        let until = until.min(self.client.now() + self.client.config().command_timeout);
        loop {
            match &*state {
                SubscriptionState::Up | SubscriptionState::Idle | SubscriptionState::Absent => {
                    return Ok(());
                }
                SubscriptionState::Refused(fault) => {
                    return Err(missing_permission(fault, &self.client.config().prefix));
                }
                SubscriptionState::Started => {}
            }
            if self.client.now() >= until || self.life.is_stopping() {
                return Ok(());
            }
            self.client.clock().wait(&self.changed, &mut state, until);
        }
    }

    /// Starts it, unless it is started. If the system gives no thread, callers queue without it, as they do
    /// without a connection, and the next caller that waits tries again.
    pub(super) fn start(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // A refusal is an error for the callers that wait for the subscription at that time. Later
        // callers try again: an administrator may have granted the permission.
        if matches!(
            *state,
            SubscriptionState::Idle | SubscriptionState::Refused(_)
        ) {
            let subscription = Arc::clone(self);
            match self.life.spawn(THREAD, move || subscription.run()) {
                Ok(()) => *state = SubscriptionState::Started,
                Err(error) => {
                    log::debug!(logger: Logger, "no thread for the subscription: {error}")
                }
            }
        }
    }

    /// Starts the subscription if nothing has started it before. Never waits. After a refusal, the next
    /// caller that waits starts it again.
    pub(super) fn start_first(self: &Arc<Self>) {
        let is_idle = matches!(*self.state.lock(), SubscriptionState::Idle);
        if is_idle {
            self.start();
        }
    }

    /// R17 (subscription): whether a message may be due, or may have been missed since this was
    /// last asked. Only then is it worth a request to find out that the subscription has died
    /// unseen.
    ///
    /// While nobody waits, nobody checks it, unless a layer above needs the proof that it is alive. The next waiter is queued all the same, and does not
    /// trust it: its grant comes by sync within a check period if the message is lost. The PING
    /// goes out a check period after the waiter came at the latest, and finds the rest out.
    fn is_awaited(&self) -> bool {
        self.registry.take_was_queued() || self.registry.are_any_queued() || self.needs_proof()
    }

    fn needs_proof(&self) -> bool {
        self.hearing.needs_proof(self.client.now())
    }

    fn on_channel_event(&self, event: ChannelEvent<'_>, progress: &mut Progress) {
        match event {
            ChannelEvent::Subscribed { sent } => {
                self.hearing.note_proof(sent);
                if progress.up_since.is_some() {
                    // The connection before this one did not show its end.
                    self.hearing.note_trouble();
                }
                // Messages may have been missed while there was no subscription. This is sent
                // before the state is set: a caller that waits for the state has missed no message,
                // and queues after the check.
                self.upkeep.send(Command::Subscribed);
                self.set(SubscriptionState::Up);
                progress.on_up(self.client.now());
            }
            ChannelEvent::Message(message) => {
                // It may have come while this process was stopped. It did not come before the thread
                // looked last.
                if let Some(looked) = progress.looked_at {
                    self.hearing.note_proof(looked);
                }
                self.on_message(message);
            }
            ChannelEvent::Proven { sent } => self.hearing.note_proof(sent),
            ChannelEvent::Quiet => {}
        }
        progress.looked_at = Some(self.client.now());
    }

    /// The thread's loop: subscribe, receive messages until the connection fails, pause, and subscribe
    /// again.
    fn run(&self) {
        let channel = self.caller_id.channel();
        let is_awaited = || self.is_awaited();
        let is_proof_needed = || self.needs_proof();
        let mut progress = Progress::default();
        while !self.life.is_stopping() {
            let channel = Channel {
                name: &channel,
                check_every: self.client.config().check_period,
                is_awaited: &is_awaited,
                is_proof_needed: &is_proof_needed,
            };
            let ended = self.client.store().listen(channel, &mut |event| {
                self.on_channel_event(event, &mut progress);
                if self.life.is_stopping() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            // Before any caller learns of the next state.
            self.hearing.note_end();
            let Err(fault) = ended else { return };
            let now = self.client.now();
            let at_once = progress.on_end(&fault, now, self.client.config().back_off);
            if matches!(&fault, StoreFault::Server { code, .. } if code == "NOPERM") {
                self.set(SubscriptionState::Refused(fault));
                return;
            }
            let is_absent = fault.refuses_command() || fault.is_closed() && !progress.was_ever_up;
            self.set(if is_absent {
                SubscriptionState::Absent
            } else {
                SubscriptionState::Started
            });
            if at_once {
                continue;
            }
            let retry_at = now + self.client.config().back_off;
            let mut state = self.state.lock();
            while self.client.now() < retry_at && !self.life.is_stopping() {
                self.client
                    .clock()
                    .wait(&self.changed, &mut state, retry_at);
            }
        }
    }

    pub(super) fn on_message(&self, message: &str) {
        let arrived = self.client.now();
        let prefix = &self.client.config().prefix;
        let Some((grant, key, family)) = Grant::from_message(prefix, message) else {
            if let Some(key) = called_for(prefix, message) {
                // R22 (tries among the dead): a sync is the answer.
                self.grants.sync_now(&key);
            } else if let Some((key, fence)) = wanted_behind(prefix, message) {
                self.hearing.tell_wanted(&key, fence);
            } else if !message.is_empty() {
                log::warn!(
                    logger: Logger,
                    "a message that is not a grant on {:?}",
                    self.caller_id.channel()
                );
            }
            return;
        };
        let notice = GrantNotice::from_message(grant, arrived, self.client.store().anchor(&key));
        let about = Call {
            spec: LockSpec::any(family),
            key,
            verb: Verb::Renew {
                token: grant.token,
                fence: grant.fence,
                params: "".into(),
            },
        };
        self.grants.deliver(&about, notice);
    }
}

/// The subscription's past, as far as the log and the pauses need it.
#[derive(Default)]
struct Progress {
    was_ever_up: bool,
    up_since: Option<Time>,
    /// When the thread began to wait for the next event.
    looked_at: Option<Time>,
    /// The log says that it ended, and not yet that it is up again.
    is_missing: bool,
}

impl Progress {
    fn on_up(&mut self, now: Time) {
        self.was_ever_up = true;
        self.up_since = Some(now);
        if std::mem::take(&mut self.is_missing) {
            log::info!(logger: Logger, "the subscription is up again");
        }
    }

    /// Returns whether to subscribe again at once. That is so if the connection was closed after it
    /// was up for longer than a pause: the server restarted, or somebody closed it. Only if it then
    /// fails again, there is something to report.
    fn on_end(&mut self, fault: &StoreFault, now: Time, pause: Duration) -> bool {
        let was_up = self.up_since.take();
        self.looked_at = None;
        if fault.is_closed() && was_up.is_some_and(|since| now >= since + pause) {
            log::debug!(logger: Logger, "the subscription was closed and is opened again: {fault}");
            return true;
        }
        let is_first = !std::mem::replace(&mut self.is_missing, true);
        if !self.was_ever_up && is_first && fault.refuses_command() {
            log::warn!(
                logger: Logger,
                "subscribing is refused, so grants arrive once per check period: {fault}"
            );
        } else if self.was_ever_up && is_first {
            log::info!(logger: Logger, "the subscription ended: {fault}");
        } else {
            log::debug!(logger: Logger, "subscribing failed: {fault}");
        }
        false
    }
}

fn missing_permission(fault: &StoreFault, prefix: &str) -> Error {
    match fault {
        StoreFault::Server {
            code,
            message,
            server,
        } => {
            let needed = format!(
                "to wait, the user needs +subscribe +ping +publish and the channels &{prefix}:grants:*"
            );
            StoreFault::Server {
                code: code.clone(),
                message: format!("{message}; {needed}"),
                server: server.clone(),
            }
            .into()
        }
        other => other.clone().into(),
    }
}
