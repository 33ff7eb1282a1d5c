//! The connection that listens for messages.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Node;
use super::connection::{Connection, fault, refusal};
use super::role::Role;
use crate::error::Step;
use crate::store::{ChannelEvent, StoreFault};

impl Node {
    /// Subscribes on a connection of its own and calls `on_event` for each event, until `on_event`
    /// breaks off or the subscription fails. See [`Store::listen`](crate::store::Store::listen).
    pub(in crate::store) fn listen(
        self: &Arc<Self>,
        channel: &str,
        check_every: Duration,
        is_awaited: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        let ended = self.listen_on(channel, check_every, is_awaited, on_event);
        self.outcome(ended)
    }

    fn listen_on(
        self: &Arc<Self>,
        channel: &str,
        check_every: Duration,
        is_awaited: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        let mut connection = self.connect(Role::Subscription)?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(channel);
        connection.request(&subscribe, self.command_timeout)?;
        connection.set_read_timeout(check_every)?;
        let mut flow = on_event(ChannelEvent::Subscribed);
        let mut awaits_pong = false;
        while flow.is_continue() {
            flow = match connection.receive() {
                Ok(value) => match refusal(value)? {
                    Value::Array(words) if is_text(words.first(), "message") => {
                        on_message(words.last(), on_event)
                    }
                    // The reply to a PING. Within a subscription it has the shape of a message.
                    _ => {
                        awaits_pong = false;
                        on_event(ChannelEvent::Quiet)
                    }
                },
                Err(error) if error.is_timeout() => {
                    self.check_subscription(&connection)?;
                    if awaits_pong {
                        return Err(fault(error, Step::Reply));
                    }
                    // A process in which nobody waits sends nothing: no message is due that could
                    // be missed.
                    awaits_pong = is_awaited();
                    if awaits_pong {
                        connection
                            .send(&[redis::cmd("PING")])
                            .map_err(|e| fault(e, Step::Send))?;
                    }
                    on_event(ChannelEvent::Quiet)
                }
                Err(error) => return Err(fault(error, Step::Reply)),
            };
        }
        Ok(())
    }

    /// R17 (subscription): once all connections of this age are retired, messages no longer come
    /// from this node.
    fn check_subscription(&self, connection: &Connection) -> Result<(), StoreFault> {
        if self.is_retired(connection) {
            return Err(StoreFault::unavailable(
                Step::Reply,
                "the connection was retired",
            ));
        }
        Ok(())
    }
}

fn on_message(
    text: Option<&Value>,
    on_event: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
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
