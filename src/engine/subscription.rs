//! The thread that hears of grants: one subscription to one channel, whatever the number of waiters.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::background::Command;
use crate::engine::waiter::GrantNotice;
use crate::error::{Error, Result};
use crate::script::{Call, Grant, LockSpec, Verb};
use crate::store::clock::Time;
use crate::store::{ChannelEvent, StoreFault};
use crate::sync::{Condvar, Mutex};

pub(super) const THREAD: &str = "fairlock-listener";

/// What is known of the subscription.
pub(super) struct SubscriptionStatus {
    state: Mutex<State>,
    changed: Condvar,
}

/// | state   | meaning                           | becomes                                     |
/// |---------|-----------------------------------|---------------------------------------------|
/// | Idle    | nobody has had to wait yet, or it was refused | Started                          |
/// | Started | not confirmed, or interrupted     | Up, Refused                                 |
/// | Up      | confirmed once                    | Started, on a fault                         |
/// | Refused | the user has not the right        | Started, by the next who has to wait        |
enum State {
    Idle,
    Started,
    Up,
    Refused(StoreFault),
}

impl SubscriptionStatus {
    pub(super) fn new() -> SubscriptionStatus {
        SubscriptionStatus {
            state: Mutex::new(State::Idle),
            changed: Condvar::new(),
        }
    }

    pub(super) fn is_started(&self) -> bool {
        matches!(*self.state.lock(), State::Started | State::Up)
    }

    /// Cuts a pause between two attempts short.
    pub(super) fn wake(&self) {
        drop(self.state.lock());
        self.changed.notify_all();
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }
}

impl Engine {
    /// R17: starts the subscription before the first enqueue. One that cannot be had within a command timeout
    /// does not fail a wait, since sync carries it; a missing right does.
    pub(super) fn listen(self: &Arc<Self>, until: Time) -> Result<()> {
        self.start_listening()?;
        let subscription = &self.subscription;
        let mut state = subscription.state.lock();
        let until = until.min(self.now() + self.config.command_timeout);
        loop {
            match &*state {
                State::Up | State::Idle => return Ok(()),
                State::Refused(fault) => return Err(missing_right(fault, &self.config.prefix)),
                State::Started => {}
            }
            if self.now() >= until || self.is_stopping() {
                return Ok(());
            }
            self.clock.wait(&subscription.changed, &mut state, until);
        }
    }

    pub(super) fn start_listening(self: &Arc<Self>) -> Result<()> {
        let mut state = self.subscription.state.lock();
        // A refusal is told to those who wait for it; whoever comes later asks anew.
        if matches!(*state, State::Idle | State::Refused(_)) {
            let engine = Arc::clone(self);
            self.spawn(THREAD, move || run(&engine))?;
            *state = State::Started;
        }
        Ok(())
    }
}

/// The listener's main loop: subscribe, hear, and again after a pause.
fn run(engine: &Arc<Engine>) {
    let channel = engine.caller_id.channel();
    let (mut stands, mut was_queued) = (false, false);
    while !engine.is_stopping() {
        let ended = engine
            .store
            .listen(&channel, engine.config.check_period, &mut |heard| {
                match heard {
                    ChannelEvent::Subscribed => {
                        // Messages may have been missed while there was no subscription. Whoever waits for it to stand has
                        // missed none, and comes after this.
                        engine.send_to_background(Command::Resync);
                        engine.subscription.set(State::Up);
                        if was_queued {
                            log::info!("the subscription stands again");
                        }
                        (stands, was_queued) = (true, true);
                    }
                    ChannelEvent::Message(message) => hear(engine, message),
                    ChannelEvent::Quiet => {}
                }
                if engine.is_stopping() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        let Err(fault) = ended else { return };
        if std::mem::take(&mut stands) {
            log::info!("the subscription ended: {fault}");
        } else {
            log::debug!("subscribing failed: {fault}");
        }
        if matches!(&fault, StoreFault::Server { code, .. } if code == "NOPERM") {
            engine.subscription.set(State::Refused(fault));
            return;
        }
        engine.subscription.set(State::Started);
        let again = engine.now() + engine.config.back_off;
        let mut state = engine.subscription.state.lock();
        while engine.now() < again && !engine.is_stopping() {
            engine
                .clock
                .wait(&engine.subscription.changed, &mut state, again);
        }
    }
}

fn missing_right(fault: &StoreFault, prefix: &str) -> Error {
    match fault {
        StoreFault::Server { code, message } => {
            let needed = format!(
                "to wait, the user needs +subscribe +ping +publish and the channels &{prefix}:grants:*"
            );
            StoreFault::Server {
                code: code.clone(),
                message: format!("{message}; {needed}"),
            }
            .into()
        }
        other => other.repeat().into(),
    }
}

pub(super) fn hear(engine: &Engine, message: &str) {
    let arrived = engine.now();
    let Some((grant, key, family)) = Grant::from_message(&engine.config.prefix, message) else {
        if !message.is_empty() {
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
        verb: Verb::Renew { token: grant.token },
    };
    engine.deliver(&about, notice);
}
