//! The renewal thread's own connection to a node. It is opened in the background, so that the
//! thread never waits for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use super::Node;
use super::connection::Connection;
use super::lane::SILENT;
use super::owed::{LinkCall, LinkReply, OwedCall, fail_owed, not_sent};
use super::pipeline::{Hop, Pending, Pipeline};
use super::role::Role;
use crate::error::Step;
use crate::script::Call;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// The renewal thread's connection.
pub(crate) struct NodeLink {
    pub(super) node: Arc<Node>,
    role: Role,
    on_ready: Arc<dyn Fn() + Send + Sync>,
    back_off: Duration,
    state: LinkState,
    /// The connections that were found closed in a row, without a reply in between.
    attempts: Attempts,
    /// The calls that were sent, and that have no reply yet. Empty unless the link is one of several.
    owed: VecDeque<OwedCall>,
}

/// | state   | when                         | becomes                                          |
/// |---------|------------------------------|--------------------------------------------------|
/// | Down    | at the start, after a fault  | Opening, by the first run a quarter of the back-off later |
/// | Opening | a thread connects            | Up or Down, by the first run after it has ended  |
/// | Up      | connected                    | Down, on a fault or when retired                 |
///
/// A connection that the server closed while it was idle is no fault, nor is one that died in
/// silence: the next run opens another at once.
enum LinkState {
    Down {
        since: Time,
        why: Option<StoreFault>,
    },
    Opening(Receiver<Result<Connection, StoreFault>>),
    Up(Box<Connection>),
}

impl LinkState {
    /// Down, without a back-off: the next run opens a connection.
    fn down_for_now(why: Option<StoreFault>) -> LinkState {
        LinkState::Down {
            since: Time::from_nanos(0),
            why,
        }
    }
}

impl NodeLink {
    /// The link calls `on_ready` when it can be used again after it could not.
    pub(in crate::store) fn new(
        node: &Arc<Node>,
        role: Role,
        on_ready: Arc<dyn Fn() + Send + Sync>,
        back_off: Duration,
    ) -> NodeLink {
        NodeLink {
            node: Arc::clone(node),
            role,
            on_ready,
            back_off,
            state: LinkState::down_for_now(None),
            attempts: Attempts::default(),
            owed: VecDeque::new(),
        }
    }

    /// The connection, if calls can be sent now, or why they cannot. Never waits.
    pub(super) fn connection(&mut self) -> Result<&mut Connection, StoreFault> {
        self.advance();
        match &mut self.state {
            LinkState::Up(connection) => Ok(connection),
            LinkState::Down { why: Some(why), .. } => {
                Err(reason_not_sent(why).at(self.node.name()))
            }
            LinkState::Down { why: None, .. } | LinkState::Opening(_) => Err(StoreFault::NotReady),
        }
    }

    /// Brings the state up to date, without waiting.
    fn advance(&mut self) {
        let now = self.node.clock.now();
        if let LinkState::Up(connection) = &self.state
            && self.node.is_retired(connection)
        {
            self.state = LinkState::down_for_now(None);
        }
        if let LinkState::Down { since, .. } = &self.state
            && now >= *since + self.back_off / 4
        {
            let on_ready = Arc::clone(&self.on_ready);
            self.state = match self
                .node
                .connect_in_background(self.role, move || on_ready())
            {
                Ok(receiver) => LinkState::Opening(receiver),
                Err(fault) => LinkState::Down {
                    since: now,
                    why: Some(fault),
                },
            };
        }
        if let LinkState::Opening(receiver) = &self.state {
            self.state = match receiver.try_recv() {
                Ok(Ok(connection)) => LinkState::Up(Box::new(connection)),
                Ok(Err(fault)) => LinkState::Down {
                    since: now,
                    why: Some(fault),
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
        let node = Arc::clone(&self.node);
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(fault) => return CallResult::none_sent(calls, &fault),
        };
        let started = node.clock.now();
        let reply_by = started + node.command_timeout;
        let mut results = node.exchange(connection, calls, reply_by);
        self.after_exchange(
            &mut results.iter_mut().collect::<Vec<_>>(),
            started,
            reply_by,
        );
        results
    }

    fn log_in_anew(&mut self) {
        // A link that idles does not see by itself that its connection was opened.
        if matches!(self.state, LinkState::Opening(_)) {
            self.advance();
        }
        if let LinkState::Up(connection) = &mut self.state {
            connection.log_in_anew();
        }
    }
}

impl NodeLink {
    /// These results came over the connection, since calls were sent at `started`.
    fn after_exchange(&mut self, results: &mut [&mut CallResult], started: Time, reply_by: Time) {
        for result in results.iter_mut() {
            result.name_server(self.node.name());
        }
        let LinkState::Up(connection) = &self.state else {
            return;
        };
        // A connection that idled for long says nothing about those before it.
        let was_idle = connection.opened + self.back_off < started;
        let is_broken = connection.broken;
        if was_idle || results.iter().any(|result| result.answer.is_ok()) {
            self.attempts = Attempts::default();
        }
        if is_broken {
            self.on_broken(results, reply_by);
        }
    }

    /// The connection failed in an exchange that was to end at `reply_by`.
    fn on_broken(&mut self, results: &mut [&mut CallResult], reply_by: Time) {
        let now = self.node.clock.now();
        let why = results
            .iter()
            .find_map(|result| result.answer.as_ref().err().cloned());
        let slept = now > reply_by + self.node.command_timeout;
        // A connection can die in silence. Only the next one shows whether the server answers.
        let may_be_dead = self.attempts.was_never_closed() && !slept;
        let why = why.map(|why| {
            if may_be_dead && why.is_late_reply() {
                let ended = StoreFault::connection_ended(SILENT).at(self.node.name());
                for result in results.iter_mut() {
                    if result.answer.as_ref().is_err_and(StoreFault::is_late_reply) {
                        result.answer = Err(ended.clone());
                    }
                }
                return ended;
            }
            why
        });
        let was_closed = why.as_ref().is_some_and(StoreFault::is_closed);
        let is_no_fault = was_closed && self.attempts.after(Ending::Closed) == Next::Again;
        // A failure of a process that slept through the timeout is no sign of an outage.
        self.state = if slept {
            LinkState::down_for_now(None)
        } else if is_no_fault {
            let server = self.node.name();
            log::debug!(
                "the renewal thread's connection to {server} was closed and is opened again"
            );
            LinkState::down_for_now(why)
        } else {
            LinkState::Down { since: now, why }
        };
        // The next connection is opened while the caller pauses before it sends the calls again.
        self.advance();
        if !is_no_fault {
            results
                .iter_mut()
                .for_each(|result| result.note_closed_again());
        }
    }
}

/// Why a call was not sent, given what ended the last connection. A fault that leaves it open
/// whether a call was carried out is about the calls before, not about this one.
fn reason_not_sent(why: &StoreFault) -> StoreFault {
    if why.is_ambiguous() {
        StoreFault::unavailable(Step::Connect, why.reason())
    } else {
        why.clone()
    }
}

impl NodeLink {
    /// Whether replies are still to come.
    pub(in crate::store) fn owes_replies(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends calls in one write, and reads no reply. Returns the calls that were not sent. A link
    /// that owes replies takes no more calls.
    ///
    /// Never blocks, with one exception: before an acquire it asks for the rights if they are not
    /// known.
    pub(in crate::store) fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        if self.owes_replies() {
            return not_sent(&calls, &StoreFault::NotReady);
        }
        let node = self.node.clone();
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(fault) => return not_sent(&calls, &fault),
        };
        let started = node.clock.now();
        let reply_by = started + node.command_timeout;
        let date = |_: &LinkCall| connection.anchor.server_time_at_least(reply_by);
        let dates: Vec<u64> = calls.iter().map(date).collect();
        let mut results: Vec<Option<CallResult>> = calls.iter().map(|_| None).collect();
        let pending = calls.iter().zip(&dates);
        let mut pipeline = Pipeline {
            pending: pending
                .map(|(sent, date)| Pending::in_form(&sent.call, *date, sent.form, sent.hop))
                .collect(),
            reply_by,
        };
        node.write_calls(connection, &mut pipeline, &mut |index, answer| {
            results[index] = Some(CallResult {
                answer,
                not_after: dates[index],
            });
        });
        drop(pipeline);
        let mut replies = Vec::new();
        for ((sent_call, not_after), result) in calls.into_iter().zip(dates).zip(results) {
            match result {
                Some(result) => replies.push(LinkReply::Result(sent_call.number, result)),
                None => self.owed.push_back(OwedCall {
                    owes_asking: sent_call.hop == Hop::AskTarget,
                    sent_call,
                    not_after,
                    sent: started,
                    reply_by,
                }),
            }
        }
        self.after_replies(replies, started, reply_by)
    }

    /// Reads the replies that come until `until`. After the command timeout the connection ends, and
    /// all calls without a reply fail.
    pub(in crate::store) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        let mut replies = Vec::new();
        let Some((started, reply_by)) = self.owed.front().map(|owed| (owed.sent, owed.reply_by))
        else {
            return Vec::new();
        };
        let node = self.node.clone();
        while !self.owed.is_empty() {
            let LinkState::Up(connection) = &mut self.state else {
                let fault = StoreFault::NotReady;
                replies.extend(fail_owed(self.owed.drain(..), &fault));
                break;
            };
            let now = node.clock.now();
            let received = connection.receive_within(until.min(reply_by) - now);
            let outcome = match received {
                Ok(Some(value)) => {
                    let Some(owed) = self.owed.front_mut() else {
                        break;
                    };
                    if std::mem::take(&mut owed.owes_asking) {
                        continue;
                    }
                    let Some(owed) = self.owed.pop_front() else {
                        break;
                    };
                    Ok(owed.read(&node, connection, (value, node.clock.now())))
                }
                Ok(None) if node.clock.now() < reply_by => break,
                Ok(None) => Err(StoreFault::timed_out(Step::Reply)),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(reply) => replies.push(reply),
                Err(fault) => {
                    connection.broken = true;
                    replies.extend(fail_owed(self.owed.drain(..), &fault));
                }
            }
        }
        self.after_replies(replies, started, reply_by)
    }

    /// These replies came over the connection, to calls that were sent at `started`.
    pub(super) fn after_replies(
        &mut self,
        mut replies: Vec<LinkReply>,
        started: Time,
        reply_by: Time,
    ) -> Vec<LinkReply> {
        let mut results: Vec<&mut CallResult> =
            replies.iter_mut().filter_map(LinkReply::result).collect();
        self.after_exchange(&mut results, started, reply_by);
        replies
    }

    /// The connection over which calls were sent, if it is still the link's.
    pub(super) fn open_connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            LinkState::Up(connection) => Some(connection),
            _ => None,
        }
    }
}
