//! The connection that listens for messages.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use redis::Value;

use super::Node;
use super::connection::{Connection, fault, refusal};
use super::hello::Role;
use super::login::ConnectionLogin;
use crate::error::Step;
use crate::logging::Logger;
use crate::store::clock::Time;
use crate::store::{Channel, ChannelEvent, OnEvent, StoreFault};

impl Node {
    /// Subscribes on a connection of its own and calls `on_event` for each event, until `on_event`
    /// breaks off or the subscription fails. See [`Store::listen`](crate::store::Store::listen).
    pub(in crate::store) fn listen(
        self: &Arc<Self>,
        channel: Channel<'_>,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), StoreFault> {
        let ended = self.listen_on(channel, on_event);
        self.outcome(ended)
    }

    fn listen_on(
        self: &Arc<Self>,
        channel: Channel<'_>,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), StoreFault> {
        let mut connection = self.connect(Role::Subscription)?;
        let (mut login, sent) = self.subscribe(&mut connection, channel.name)?;
        connection.set_read_timeout(channel.check_every)?;
        let mut flow = on_event(ChannelEvent::Subscribed { sent });
        let mut pings = Pings::new(channel.check_every, sent);
        let mut next = None;
        while flow.is_continue() {
            flow = match connection.receive() {
                Ok(value) => match refusal(value)? {
                    Value::Array(words) if is_text(words.first(), "message") => {
                        on_message(words.last(), on_event)
                    }
                    // The reply to a PING. Within a subscription it has the shape of a message.
                    _ => {
                        self.check_subscription(&connection)?;
                        let sent = pings.unanswered.take();
                        on_event(
                            sent.map_or(ChannelEvent::Quiet, |sent| ChannelEvent::Proven { sent }),
                        )
                    }
                },
                Err(error) if error.is_timeout() => {
                    self.check_subscription(&connection)?;
                    if pings.unanswered.is_some() {
                        return Err(fault(error, Step::Reply));
                    }
                    // A process in which nobody waits sends nothing: no message is due that could
                    // be missed.
                    if (channel.is_awaited)() {
                        pings.send(&mut connection, self.clock.now())?;
                    }
                    on_event(ChannelEvent::Quiet)
                }
                Err(error) => return Err(fault(error, Step::Reply)),
            };
            // While messages come all the time, there is no timeout.
            if flow.is_continue() && (channel.is_proof_needed)() {
                pings.send_if_due(&mut connection, self.clock.now())?;
            }
            if flow.is_break() || !login.as_ref().is_some_and(ConnectionLogin::is_outdated) {
                continue;
            }
            if let Some(opened) = self.next_subscription(&mut next) {
                let mut old = std::mem::replace(&mut connection, opened);
                let (new_login, sent) = self.subscribe(&mut connection, channel.name)?;
                login = new_login;
                connection.set_read_timeout(channel.check_every)?;
                let had_ping = pings.unanswered.is_some();
                pings = Pings::new(channel.check_every, sent);
                flow = self.read_to_end(&mut old, (had_ping, sent), on_event);
            }
        }
        Ok(())
    }

    /// A connection for the next subscription. It is opened while the one before it listens on. `None`
    /// if it is not open yet, or could not be opened: then the next call tries again.
    fn next_subscription(
        self: &Arc<Self>,
        opening: &mut Option<Receiver<Result<Connection, StoreFault>>>,
    ) -> Option<Connection> {
        let receiver = match opening.take() {
            Some(receiver) => Ok(receiver),
            None => self.connect_in_background(Role::Subscription, || {}),
        };
        let opened = receiver.and_then(|receiver| match receiver.try_recv() {
            Ok(opened) => opened.map(Some),
            Err(TryRecvError::Empty) => {
                *opening = Some(receiver);
                Ok(None)
            }
            Err(TryRecvError::Disconnected) => Ok(None),
        });
        opened.unwrap_or_else(|fault| {
            log::debug!(logger: Logger, "no next subscription: {fault}");
            None
        })
    }

    /// Subscribes. Returns when it sent that, and the login of the connection, which cannot log in anew
    /// from now on: within a subscription there is no AUTH. So another connection takes its place.
    fn subscribe(
        &self,
        connection: &mut Connection,
        channel: &str,
    ) -> Result<(Option<ConnectionLogin>, Time), StoreFault> {
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(channel);
        let login = connection.login.take();
        let sent = self.clock.now();
        connection.request(&subscribe, self.config.command_timeout)?;
        Ok((login, sent))
    }

    /// Another connection has subscribed, at `since`. Reads what the server has sent over the one before it: the
    /// reply to a PING comes behind all that. A message that both have brings the same grant twice,
    /// which is harmless. If the end does not come, messages may be missed: R17 (subscription).
    fn read_to_end(
        &self,
        old: &mut Connection,
        (awaits_pong, since): (bool, Time),
        on_event: &mut OnEvent<'_>,
    ) -> ControlFlow<()> {
        let until = self.clock.now() + self.config.command_timeout;
        let sent = old.send(&[redis::cmd("PING")]);
        let mut pongs = 1 + u32::from(awaits_pong);
        while sent.is_ok() && self.clock.now() < until {
            let limited = old.limit_reads(until - self.clock.now());
            match limited.map(|()| old.receive()) {
                Ok(Ok(Value::Array(words))) if is_text(words.first(), "message") => {
                    on_message(words.last(), on_event)?;
                }
                Ok(Ok(_)) if pongs > 1 => pongs -= 1,
                Ok(Ok(_)) => return on_event(ChannelEvent::Proven { sent: since }),
                _ => break,
            }
        }
        on_event(ChannelEvent::Subscribed { sent: since })
    }

    /// R17 (subscription): once all connections of this age are retired, messages no longer come
    /// from this node.
    fn check_subscription(&self, connection: &Connection) -> Result<(), StoreFault> {
        if self.ages.is_retired(connection.age) {
            return Err(StoreFault::unavailable(
                Step::Reply,
                "the connection was retired",
            ));
        }
        Ok(())
    }
}

/// The PINGs on one connection.
struct Pings {
    check_every: Duration,
    /// When the one was sent that has no reply yet.
    unanswered: Option<Time>,
    /// When the last one was sent, or the subscription.
    last: Time,
}

impl Pings {
    fn new(check_every: Duration, subscribed: Time) -> Pings {
        Pings {
            check_every,
            unanswered: None,
            last: subscribed,
        }
    }

    fn send(&mut self, connection: &mut Connection, now: Time) -> Result<(), StoreFault> {
        self.last = now;
        self.unanswered = Some(now);
        connection
            .send(&[redis::cmd("PING")])
            .map_err(|e| fault(e, Step::Send))
    }

    /// Sends one, unless one was sent lately.
    fn send_if_due(&mut self, connection: &mut Connection, now: Time) -> Result<(), StoreFault> {
        if self.unanswered.is_some() || now < self.last + self.check_every {
            return Ok(());
        }
        self.send(connection, now)
    }
}

fn on_message(text: Option<&Value>, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
    match text {
        Some(Value::BulkString(text)) => {
            on_event(ChannelEvent::Message(&String::from_utf8_lossy(text)))
        }
        _ => ControlFlow::Continue(()),
    }
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    matches!(value, Some(Value::BulkString(bytes)) if bytes == text.as_bytes())
}
