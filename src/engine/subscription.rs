//! The thread that receives grants: one subscription to one channel, however many waiters there
//! are.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::background::Command;
use crate::engine::waiter::GrantNotice;
use crate::error::{Error, Result};
use crate::script::{Call, Grant, LockSpec, Verb, called_for};
use crate::store::clock::Time;
use crate::store::{ChannelEvent, StoreFault};
use crate::sync::{AtomicBool, Condvar, Mutex};

pub(super) const THREAD: &str = "fairlock-listener";

/// The known state of the subscription.
pub(super) struct SubscriptionStatus {
    /// | state   | meaning                               | becomes                             |
    /// |---------|---------------------------------------|-------------------------------------|
    /// | Idle    | no caller has had to wait yet         | Started                             |
    /// | Started | not confirmed yet, or interrupted     | Up, Absent, Refused                 |
    /// | Up      | confirmed                             | Started, on a fault                 |
    /// | Absent  | a proxy does not know SUBSCRIBE       | Up, Started, Refused                |
    /// | Refused | a permission is missing; no thread    | Started, by the next caller to wait |
    state: Mutex<SubscriptionState>,
    changed: Condvar,
    /// A waiter was queued since this was last read.
    was_awaited: AtomicBool,
}

enum SubscriptionState {
    Idle,
    Started,
    Up,
    Absent,
    Refused(StoreFault),
}

impl SubscriptionStatus {
    pub(super) fn new() -> SubscriptionStatus {
        SubscriptionStatus {
            state: Mutex::new(SubscriptionState::Idle),
            changed: Condvar::new(),
            was_awaited: AtomicBool::new(false),
        }
    }

    /// A waiter is queued, so its grant may come as a message.
    pub(super) fn note_awaited(&self) {
        self.was_awaited.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_started(&self) -> bool {
        matches!(
            *self.state.lock(),
            SubscriptionState::Started | SubscriptionState::Up | SubscriptionState::Absent
        )
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.lock(), SubscriptionState::Up)
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
}

impl Engine {
    /// R17 (subscription): starts the subscription before the first enqueue, and waits until it is
    /// confirmed, for at most one command timeout. After that the caller queues without it, because
    /// syncs find its grant, too. A missing permission is an error.
    pub(super) fn await_subscription(self: &Arc<Self>, until: Time) -> Result<()> {
        self.start_subscription()?;
        let subscription = &self.subscription;
        let mut state = subscription.state.lock();
        let until = until.min(self.now() + self.config.command_timeout);
        loop {
            match &*state {
                SubscriptionState::Up | SubscriptionState::Idle | SubscriptionState::Absent => {
                    return Ok(());
                }
                SubscriptionState::Refused(fault) => {
                    return Err(missing_permission(fault, &self.config.prefix));
                }
                SubscriptionState::Started => {}
            }
            if self.now() >= until || self.is_stopping() {
                return Ok(());
            }
            self.clock.wait(&subscription.changed, &mut state, until);
        }
    }

    pub(super) fn start_subscription(self: &Arc<Self>) -> Result<()> {
        let mut state = self.subscription.state.lock();
        // A refusal is an error for the callers that wait for the subscription at that time. Later
        // callers try again: an administrator may have granted the permission.
        if matches!(
            *state,
            SubscriptionState::Idle | SubscriptionState::Refused(_)
        ) {
            let engine = Arc::clone(self);
            self.spawn(THREAD, move || run(&engine))?;
            *state = SubscriptionState::Started;
        }
        Ok(())
    }

    /// R17 (subscription): whether a message may be due, or may have been missed since this was
    /// last asked. Only then is it worth a request to find out that the subscription has died
    /// unseen.
    ///
    /// While nobody waits, nobody checks it. The next waiter is queued all the same, and does not
    /// trust it: its grant comes by sync within a check period if the message is lost. The PING
    /// goes out a check period after the waiter came at the latest, and finds the rest out.
    fn is_subscription_awaited(&self) -> bool {
        self.subscription.was_awaited.swap(false, Ordering::Relaxed)
            || self.waiters.are_any_queued()
    }

    fn on_channel_event(&self, event: ChannelEvent<'_>, progress: &mut Progress) {
        match event {
            ChannelEvent::Subscribed => {
                // Messages may have been missed while there was no subscription. This is sent
                // before the state is set: a caller that waits for the state has missed no message,
                // and queues after the check.
                self.send_to_background(Command::Subscribed);
                self.subscription.set(SubscriptionState::Up);
                progress.on_up(self.now());
            }
            ChannelEvent::Message(message) => on_message(self, message),
            ChannelEvent::Quiet => {}
        }
    }
}

/// The subscription's past, as far as the log and the pauses need it.
#[derive(Default)]
struct Progress {
    was_ever_up: bool,
    up_since: Option<Time>,
    /// The log says that it ended, and not yet that it is up again.
    is_missing: bool,
}

impl Progress {
    fn on_up(&mut self, now: Time) {
        self.was_ever_up = true;
        self.up_since = Some(now);
        if std::mem::take(&mut self.is_missing) {
            log::info!("the subscription is up again");
        }
    }

    /// Returns whether to subscribe again at once. That is so if the connection was closed after it
    /// was up for longer than a pause: the server restarted, or somebody closed it. Only if it then
    /// fails again, there is something to report.
    fn on_end(&mut self, fault: &StoreFault, now: Time, pause: Duration) -> bool {
        let was_up = self.up_since.take();
        if fault.is_closed() && was_up.is_some_and(|since| now >= since + pause) {
            log::debug!("the subscription was closed and is opened again: {fault}");
            return true;
        }
        let is_first = !std::mem::replace(&mut self.is_missing, true);
        if !self.was_ever_up && is_first && fault.refuses_command() {
            log::warn!("subscribing is refused, so grants arrive once per check period: {fault}");
        } else if self.was_ever_up && is_first {
            log::info!("the subscription ended: {fault}");
        } else {
            log::debug!("subscribing failed: {fault}");
        }
        false
    }
}

/// The thread's loop: subscribe, receive messages until the connection fails, pause, and subscribe
/// again.
fn run(engine: &Arc<Engine>) {
    let channel = engine.caller_id.channel();
    let is_awaited = || engine.is_subscription_awaited();
    let mut progress = Progress::default();
    while !engine.is_stopping() {
        let ended = engine.store.listen(
            &channel,
            engine.config.check_period,
            &is_awaited,
            &mut |event| {
                engine.on_channel_event(event, &mut progress);
                if engine.is_stopping() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        let Err(fault) = ended else { return };
        let now = engine.now();
        let at_once = progress.on_end(&fault, now, engine.config.back_off);
        if matches!(&fault, StoreFault::Server { code, .. } if code == "NOPERM") {
            engine.subscription.set(SubscriptionState::Refused(fault));
            return;
        }
        let is_absent = fault.refuses_command() || fault.is_closed() && !progress.was_ever_up;
        engine.subscription.set(if is_absent {
            SubscriptionState::Absent
        } else {
            SubscriptionState::Started
        });
        if at_once {
            continue;
        }
        let retry_at = now + engine.config.back_off;
        let mut state = engine.subscription.state.lock();
        while engine.now() < retry_at && !engine.is_stopping() {
            engine
                .clock
                .wait(&engine.subscription.changed, &mut state, retry_at);
        }
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

pub(super) fn on_message(engine: &Engine, message: &str) {
    let arrived = engine.now();
    let Some((grant, key, family)) = Grant::from_message(&engine.config.prefix, message) else {
        if let Some(key) = called_for(&engine.config.prefix, message) {
            // R22 (tries among the dead): a sync is the answer.
            engine.sync_now(&key);
        } else if !message.is_empty() {
            log::warn!(
                "a message that is not a grant on {:?}",
                engine.caller_id.channel()
            );
        }
        return;
    };
    let notice = GrantNotice::from_message(grant, arrived, engine.store.anchor(&key));
    let about = Call {
        spec: LockSpec::any(family),
        key,
        verb: Verb::Renew {
            token: grant.token,
            fence: grant.fence,
            params: "".into(),
        },
    };
    engine.deliver(&about, notice);
}
