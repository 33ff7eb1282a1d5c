//! The renewal thread's own connection to a node. It is opened in the background, so that the thread never waits for one.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use super::Node;
use super::connection::Connection;
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// The renewal thread's connection.
pub(crate) struct NodeLink {
    node: Arc<Node>,
    ring: Arc<dyn Fn() + Send + Sync>,
    back_off: Duration,
    state: LinkState,
}

/// | state   | when                         | becomes                                         |
/// |---------|------------------------------|-------------------------------------------------|
/// | Down    | at the start, after a fault  | Opening, by the next run after the back-off      |
/// | Opening | a thread connects            | Up or Down, by the first run after it is through |
/// | Up      | connected                    | Down, on a fault or when retired                 |
enum LinkState {
    Down {
        since: Time,
        why: Option<StoreFault>,
    },
    Opening(Receiver<Result<Connection, StoreFault>>),
    Up(Box<Connection>),
}

impl NodeLink {
    /// `ring` is called when it can be used again after it could not.
    pub(crate) fn new(
        node: &Arc<Node>,
        ring: Arc<dyn Fn() + Send + Sync>,
        back_off: Duration,
    ) -> NodeLink {
        let state = LinkState::Down {
            since: Time::from_nanos(0),
            why: None,
        };
        NodeLink {
            node: Arc::clone(node),
            ring,
            back_off,
            state,
        }
    }

    fn advance(&mut self) {
        let now = self.node.clock.now();
        if let LinkState::Up(connection) = &self.state
            && self.node.is_retired(connection)
        {
            self.state = LinkState::Down {
                since: Time::from_nanos(0),
                why: None,
            };
        }
        if let LinkState::Down { since, .. } = &self.state
            && now >= *since + self.back_off
        {
            let ring = Arc::clone(&self.ring);
            self.state = match self.node.connect_in_background(move || ring()) {
                Ok(receiver) => LinkState::Opening(receiver),
                Err(f) => LinkState::Down {
                    since: now,
                    why: Some(f),
                },
            };
        }
        if let LinkState::Opening(receiver) = &self.state {
            self.state = match receiver.try_recv() {
                Ok(Ok(connection)) => LinkState::Up(Box::new(connection)),
                Ok(Err(f)) => LinkState::Down {
                    since: now,
                    why: Some(f),
                },
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => LinkState::Down {
                    since: now,
                    why: None,
                },
            };
        }
    }
}

impl Link for NodeLink {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        self.advance();
        let connection = match &mut self.state {
            LinkState::Up(connection) => connection,
            LinkState::Down { why: Some(why), .. } => {
                return calls
                    .iter()
                    .map(|_| CallResult::not_sent(not_sent(why)))
                    .collect();
            }
            _ => {
                return calls
                    .iter()
                    .map(|_| CallResult::not_sent(StoreFault::NotReady))
                    .collect();
            }
        };
        let give_up = self.node.clock.now() + self.node.command_timeout;
        let answers = self.node.exchange(connection, calls, give_up);
        if connection.broken {
            let now = self.node.clock.now();
            let why = answers
                .iter()
                .find_map(|a| a.answer.as_ref().err().map(StoreFault::repeat));
            // A connection that was closed while idle is no sign of an outage: open another at once.
            let aged = connection.opened + self.back_off < now;
            let closed = aged && why.as_ref().is_some_and(StoreFault::is_closed);
            // Nor is one that this process slept through.
            let slept = now > give_up + self.node.command_timeout;
            self.state = if closed || slept {
                LinkState::Down {
                    since: Time::from_nanos(0),
                    why: why.filter(|_| !slept),
                }
            } else {
                LinkState::Down { since: now, why }
            };
        }
        answers
    }
}

/// Why there is no connection. What ended the last one is no reply to a call that was never sent.
fn not_sent(why: &StoreFault) -> StoreFault {
    if why.is_ambiguous() {
        StoreFault::unavailable(Step::Connect, why.to_string())
    } else {
        why.repeat()
    }
}
