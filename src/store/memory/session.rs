//! One manager's way to a world in memory.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Memory, Mishap, World, words_of};
use crate::error::Step;
use crate::glob::Glob;
use crate::key::Key;
use crate::script::{Call, CallerId, Form, Reply};
use crate::store::clock::{Clock, Time};
use crate::store::{Anchor, Answer, CallResult, ChannelEvent, Deadlines, Link, Store, StoreFault};

/// What a manager on a [`Memory`] has in the place of connections.
#[derive(Clone)]
pub(crate) struct Session(Arc<Shared>);

struct Shared {
    world: Arc<World>,
    caller_id: Arc<CallerId>,
    command_timeout: Duration,
    requests: AtomicU64,
}

/// The least that a request is given.
const SHORTEST: Duration = Duration::from_millis(1);

/// How often a request is put again whose connection closed, as a pool does.
const CLOSED_AT_MOST: u32 = 2;

impl Session {
    /// Refused while the world is down, as the connection would be that a manager begins with.
    pub(crate) fn open(
        memory: &Memory,
        command_timeout: Duration,
        caller_id: Arc<CallerId>,
    ) -> Result<Session, StoreFault> {
        let world = Arc::clone(&memory.0);
        if world.state.lock().is_down {
            return Err(refused());
        }
        Ok(Session(Arc::new(Shared {
            world,
            caller_id,
            command_timeout,
            requests: AtomicU64::new(0),
        })))
    }

    /// Puts a call once. What is answered is answered at once, so a long batch cannot run out of time.
    fn put(&self, call: &Call, give_up: Time) -> CallResult {
        let Shared {
            world,
            caller_id,
            command_timeout,
            requests,
        } = &*self.0;
        let sent = world.clock.now();
        let give_up = give_up.min(sent + *command_timeout).max(sent + SHORTEST);
        let not_after = self.anchor_at(sent).server_time_at_least(give_up);
        requests.fetch_add(1, Ordering::Relaxed);
        let command = call.command(caller_id, Form::default(), not_after);
        let answer = match world.request(&words_of(&command)) {
            Ok(Ok(value)) => match Reply::parse(call, &value) {
                Ok(reply) => Ok(Answer {
                    reply,
                    sent,
                    resent: false,
                }),
                Err(malformed) => Err(malformed.into()),
            },
            Ok(Err(error)) => {
                let (code, message) = error.split_once(' ').unwrap_or((&error, ""));
                Err(StoreFault::Server {
                    code: code.to_owned(),
                    message: message.to_owned(),
                })
            }
            Err(Mishap::Down) => Err(refused()),
            Err(Mishap::Closed) => Err(closed()),
            Err(Mishap::Silence) => {
                world.clock.sleep_until(give_up);
                Err(timed_out())
            }
        };
        CallResult { answer, not_after }
    }

    fn anchor_at(&self, now: Time) -> Anchor {
        Anchor {
            server: self.0.world.server_time(now),
            sent: now,
            received: now,
        }
    }
}

impl Store for Session {
    fn clock(&self) -> Clock {
        self.0.world.clock.clone()
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        if self.0.world.clock.now() >= deadlines.reply {
            return calls
                .iter()
                .map(|_| CallResult::not_sent(timed_out()))
                .collect();
        }
        let run = |call| {
            let mut result = self.put(call, deadlines.reply);
            for _ in 0..CLOSED_AT_MOST {
                if !matches!(&result.answer, Err(fault) if fault.is_closed()) {
                    break;
                }
                let next = self.put(call, deadlines.reply);
                result.not_after = result.not_after.max(next.not_after);
                result.answer = match next.answer {
                    Ok(answer) => Ok(Answer {
                        resent: true,
                        ..answer
                    }),
                    Err(fault) if fault.is_ambiguous() => Err(fault),
                    Err(fault) => Err(StoreFault::InDoubt(Box::new(fault))),
                };
            }
            result
        };
        calls.iter().map(run).collect()
    }

    fn link(&self, _ring: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        Box::new(self.clone())
    }

    fn listen(
        &self,
        channel: &str,
        ping_every: Duration,
        heard: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        let world = &self.0.world;
        let (id, messages) = world.subscribe(channel).ok_or_else(refused)?;
        let mut told = heard(ChannelEvent::Subscribed);
        while told.is_continue() {
            told = match world
                .clock
                .receive(&messages, world.clock.now() + ping_every)
            {
                Some(message) => heard(ChannelEvent::Message(&message)),
                None if world.is_subscribed(id) => heard(ChannelEvent::Quiet),
                None => return Err(closed()),
            };
        }
        world.unsubscribe(id);
        Ok(())
    }

    fn poke(&self, channel: &str) {
        let _ = self
            .0
            .world
            .run(&super::bytes_of(&["PUBLISH", channel, ""]));
    }

    /// All in one page.
    fn scan(&self, _cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let glob = Glob::new(pattern);
        let keys = self
            .0
            .world
            .scan(|key| glob.matches(key))
            .ok_or_else(refused)?;
        Ok((0, keys))
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        Some(self.anchor_at(self.0.world.clock.now()))
    }

    /// There is nothing to connect to.
    fn connects(&self) -> u64 {
        0
    }

    fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }
}

impl Link for Session {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let give_up = self.0.world.clock.now() + self.0.command_timeout;
        calls.iter().map(|call| self.put(call, give_up)).collect()
    }
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

fn timed_out() -> StoreFault {
    StoreFault::unavailable(Step::Reply, io::Error::from(io::ErrorKind::TimedOut))
}
