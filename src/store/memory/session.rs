//! One manager's way to an in-memory server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use super::Memory;
use super::memory_server::{MemoryServer, NoReply};
use super::server::{bytes_of, words_of};
use crate::error::Step;
use crate::glob::Glob;
use crate::key::Key;
use crate::script::{
    Call, CallerId, Form, RENEWALS_LIMIT, ScriptReply, renewals_command, split_renewals,
};
use crate::stats::Traffic;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::{Clock, Time};
use crate::store::{
    Anchor, Answer, CallResult, Channel, ChannelEvent, Deadlines, Link, OnEvent, Service, Store,
    StoreFault, Troubles,
};

/// A manager on a [`Memory`] has this instead of connections.
#[derive(Clone)]
pub(crate) struct Session(Arc<SessionInner>);

struct SessionInner {
    server: Arc<MemoryServer>,
    caller_id: Arc<CallerId>,
    command_timeout: Duration,
    requests: AtomicU64,
    retries: AtomicU64,
    service: Service,
    troubles: Arc<Troubles>,
}

/// The least time that a request has.
const SHORTEST: Duration = Duration::from_millis(1);

impl Session {
    /// Fails while the server is down, just as a manager's first connection would.
    pub(crate) fn open(
        memory: &Memory,
        command_timeout: Duration,
        caller_id: Arc<CallerId>,
    ) -> Result<Session, StoreFault> {
        let server = Arc::clone(&memory.0);
        if server.state.lock().is_down {
            return Err(refused());
        }
        let troubles = Arc::new(Troubles::new(server.clock.clone()));
        Ok(Session(Arc::new(SessionInner {
            troubles,
            server,
            caller_id,
            command_timeout,
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            service: Service::QUEUES,
        })))
    }

    /// As a quorum is for the engine: it keeps no queues.
    #[cfg(test)]
    pub(crate) fn without_queue(self) -> Session {
        let inner = Arc::into_inner(self.0).expect("nobody else has this session");
        Session(Arc::new(SessionInner {
            service: Service::MUTEXES,
            ..inner
        }))
    }

    /// Sends a call once. The server replies at once, so many calls cannot run out of time.
    fn send_once(&self, call: &Call, reply_by: Time) -> CallResult {
        let sent = self.0.server.clock.now();
        let reply_by = self.reply_by(sent, reply_by);
        let not_after = self.anchor_at(sent).server_time_at_least(reply_by);
        let command = call.command(&self.0.caller_id, Form::default(), not_after);
        let answer = self.request(&command, reply_by);
        let answer = answer.and_then(|value| answer_of(call, &value, sent));
        CallResult { answer, not_after }
    }

    /// Renews several mutexes by one request, as a node's link does. Those that need a request of
    /// their own get it then.
    fn renew_together(&self, calls: &[Call], reply_by: Time) -> Vec<CallResult> {
        let sent = self.0.server.clock.now();
        let by = self.reply_by(sent, reply_by);
        let not_after = self.anchor_at(sent).server_time_at_least(by);
        let command = renewals_command(calls.iter(), &self.0.caller_id, false, not_after);
        let replies = replies_of_renewals(calls.len(), self.request(&command, by));
        let result = |(index, call): (usize, &Call)| {
            let answer = match &replies {
                Ok(replies) => match &replies[index] {
                    Some(value) => answer_of(call, value, sent),
                    None => return self.send_once(call, reply_by),
                },
                Err(fault) => Err(fault.clone()),
            };
            CallResult { answer, not_after }
        };
        calls.iter().enumerate().map(result).collect()
    }

    fn reply_by(&self, sent: Time, reply_by: Time) -> Time {
        let latest = sent + self.0.command_timeout;
        reply_by.min(latest).max(sent + SHORTEST)
    }

    /// Sends a request once.
    fn request(&self, command: &Cmd, reply_by: Time) -> Result<Value, StoreFault> {
        let SessionInner {
            server,
            requests,
            troubles,
            ..
        } = &*self.0;
        requests.fetch_add(1, Ordering::Relaxed);
        let sent = server.clock.now();
        let reply = server.request(&words_of(command));
        if reply.is_err() {
            // Over a network, the connection would have ended.
            troubles.note();
        }
        match reply {
            Ok((_, delay)) if !delay.is_zero() && sent + delay >= reply_by => {
                server.clock.sleep_until(reply_by);
                troubles.note();
                Err(StoreFault::timed_out(Step::Reply))
            }
            Ok((result, delay)) => {
                if !delay.is_zero() {
                    server.clock.sleep_until(sent + delay);
                }
                let error = match result {
                    Ok(value) => return Ok(value),
                    Err(error) => error,
                };
                let (code, message) = error.split_once(' ').unwrap_or((&error, ""));
                Err(StoreFault::refused(code, message))
            }
            Err(NoReply::Refused) => Err(refused()),
            Err(NoReply::Closed) => Err(closed()),
            Err(NoReply::Lost) => {
                server.clock.sleep_until(reply_by);
                Err(StoreFault::timed_out(Step::Reply))
            }
        }
    }

    /// Sends a call, and again if its connection closes, as a lane does.
    fn send(&self, call: &Call, reply_by: Time) -> CallResult {
        let mut attempts = Attempts::default();
        let mut before = None;
        loop {
            let result = self.send_once(call, reply_by);
            let next = attempts.after(Ending::of(&result.answer, false));
            let result = result.after(before);
            if next == Next::Done {
                return result;
            }
            self.0.retries.fetch_add(1, Ordering::Relaxed);
            before = Some(result);
        }
    }

    fn anchor_at(&self, now: Time) -> Anchor {
        Anchor {
            server: self.0.server.server_time(now),
            sent: now,
            received: now,
        }
    }
}

impl Store for Session {
    fn clock(&self) -> Clock {
        self.0.server.clock.clone()
    }

    fn service(&self) -> Service {
        self.0.service
    }

    fn troubles(&self) -> Arc<Troubles> {
        Arc::clone(&self.0.troubles)
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        if self.0.server.clock.now() >= deadlines.reply_by {
            return CallResult::none_sent(calls, &StoreFault::timed_out(Step::Reply));
        }
        calls
            .iter()
            .map(|call| self.send(call, deadlines.reply_by))
            .collect()
    }

    fn link(&self, _on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(self.clone())
    }

    fn listen(&self, channel: Channel<'_>, on_event: &mut OnEvent<'_>) -> Result<(), StoreFault> {
        let server = &self.0.server;
        let sent = server.clock.now();
        let (id, messages) = server.subscribe(channel.name).ok_or_else(refused)?;
        let mut flow = on_event(ChannelEvent::Subscribed { sent });
        while flow.is_continue() {
            let wake_at = server.clock.now() + channel.check_every;
            flow = match server.clock.receive(&messages, wake_at) {
                Some(message) => on_event(ChannelEvent::Message(&message)),
                // A PING would have its reply at once.
                None if server.is_subscribed(id) && (channel.is_awaited)() => {
                    let sent = server.clock.now();
                    on_event(ChannelEvent::Proven { sent })
                }
                None if server.is_subscribed(id) => on_event(ChannelEvent::Quiet),
                None => return Err(closed()),
            };
        }
        server.unsubscribe(id);
        Ok(())
    }

    fn poke(&self, channel: &str, _by: Time) {
        let _ = self.0.server.run(&bytes_of(&["PUBLISH", channel, ""]));
    }

    fn post_poke(&self, channel: &str, _key: &Key) {
        let _ = self.0.server.run(&bytes_of(&["PUBLISH", channel, ""]));
    }

    /// All keys are in one page.
    fn scan(&self, _cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let glob = Glob::new(pattern);
        let keys = self
            .0
            .server
            .scan(|key| glob.matches(key))
            .ok_or_else(refused)?;
        Ok((0, keys))
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        Some(self.anchor_at(self.0.server.clock.now()))
    }

    /// There is nothing to connect to.
    fn traffic(&self) -> Traffic {
        Traffic {
            requests: self.0.requests.load(Ordering::Relaxed),
            retries: self.0.retries.load(Ordering::Relaxed),
            ..Traffic::default()
        }
    }
}

impl Link for Session {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let reply_by = self.0.server.clock.now() + self.0.command_timeout;
        let mut results = Vec::with_capacity(calls.len());
        for run in calls.chunk_by(Call::is_renewed_with) {
            match run {
                [call] => results.push(self.send_once(call, reply_by)),
                renewals => results.extend(
                    renewals
                        .chunks(RENEWALS_LIMIT)
                        .flat_map(|some| self.renew_together(some, reply_by)),
                ),
            }
        }
        results
    }
}

/// The reply to each of several renewals. An inner `None`: its call must be sent alone. That is so
/// for all if the reply is a refusal or malformed.
fn replies_of_renewals(
    calls: usize,
    reply: Result<Value, StoreFault>,
) -> Result<Vec<Option<Value>>, StoreFault> {
    match reply {
        Ok(value) => Ok(split_renewals(calls, &value).unwrap_or_else(|| vec![None; calls])),
        Err(refused) if refused.code().is_some() => Ok(vec![None; calls]),
        Err(fault) => Err(fault),
    }
}

fn answer_of(call: &Call, value: &Value, sent: Time) -> Result<Answer, StoreFault> {
    Ok(Answer {
        reply: ScriptReply::parse(call, value)?,
        sent,
        resent: false,
    })
}

fn refused() -> StoreFault {
    StoreFault::unavailable(
        Step::Connect,
        io::Error::from(io::ErrorKind::ConnectionRefused),
    )
}

fn closed() -> StoreFault {
    StoreFault::unavailable(Step::Reply, io::Error::from(io::ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_whose_common_reply_is_malformed_are_sent_alone() {
        let replies = replies_of_renewals(2, Ok(Value::Nil)).expect("a reply came");
        assert_eq!(replies, [None, None]);
    }
}
