//! The renewal thread's own connection to a node. It is opened in the background, so that the
//! thread never waits for one.

use std::sync::Arc;

use crossbeam_channel::{Receiver, TryRecvError};

use super::Node;
use super::batch::{Batch, LinkCall, LinkReply, not_sent, run_in_rounds};
use super::connection::Connection;
use super::detour::{Detour, LaneProbe};
use super::hello::Role;
use super::lane::SILENT;
use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::logging::Logger;
use crate::script::Call;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// The renewal thread's connection.
pub(super) struct NodeLink {
    node: Arc<Node>,
    role: Role,
    on_ready: Arc<dyn Fn() + Send + Sync>,
    state: LinkState,
    /// The connections that were found closed in a row, without a reply in between.
    attempts: Attempts,
    /// R18 (replica acks): it is for renewals alone, and a `WAIT` goes behind them.
    acks: Option<ReplicaAcks>,
    /// The calls that were sent, and that have no reply yet.
    batch: Option<Batch>,
    /// The same, for calls that went over a lane.
    detour: Option<Detour>,
    /// From then on its calls go over a lane, since it cannot have a connection, or not soon.
    cut_off_at: Time,
    /// The lane that its calls go over then.
    probe: Option<LaneProbe>,
    /// The log says that calls go over a lane.
    is_detour_logged: bool,
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
    pub(super) fn new(
        node: &Arc<Node>,
        role: Role,
        on_ready: Arc<dyn Fn() + Send + Sync>,
    ) -> NodeLink {
        NodeLink {
            node: Arc::clone(node),
            role,
            on_ready,
            state: LinkState::down_for_now(None),
            attempts: Attempts::default(),
            acks: None,
            batch: None,
            detour: None,
            cut_off_at: Time::NEVER,
            probe: None,
            is_detour_logged: false,
        }
    }

    /// A link for renewals alone, which replicas must acknowledge. `None` if the node needs no
    /// acknowledgements.
    pub(super) fn with_acks(
        node: &Arc<Node>,
        on_ready: Arc<dyn Fn() + Send + Sync>,
    ) -> Option<NodeLink> {
        let acks = Some(node.config.replica_acks?);
        let link = NodeLink::new(node, Role::Acks, on_ready);
        Some(NodeLink { acks, ..link })
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
            && self.node.ages.is_retired(connection.age)
        {
            self.state = LinkState::down_for_now(None);
        }
        if let LinkState::Down { since, .. } = &self.state
            && now >= *since + self.node.config.back_off / 4
        {
            let on_ready = Arc::clone(&self.on_ready);
            self.cut_off_at = self.cut_off_at.min(now + self.node.config.command_timeout);
            self.state = match self
                .node
                .connect_in_background(self.role, move || on_ready())
            {
                Ok(receiver) => LinkState::Opening(receiver),
                Err(fault) => self.not_opened(now, Some(fault)),
            };
        }
        if let LinkState::Opening(receiver) = &self.state {
            self.state = match receiver.try_recv() {
                Ok(Ok(connection)) => {
                    self.cut_off_at = Time::NEVER;
                    self.probe = None;
                    if std::mem::take(&mut self.is_detour_logged) {
                        let server = self.node.name();
                        log::info!(logger: Logger, "renewals to {server} have a connection again");
                    }
                    LinkState::Up(Box::new(connection))
                }
                Ok(Err(fault)) => self.not_opened(now, Some(fault)),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.not_opened(now, None),
            };
        }
    }

    fn not_opened(&mut self, now: Time, why: Option<StoreFault>) -> LinkState {
        self.cut_off_at = self.cut_off_at.min(now);
        LinkState::Down { since: now, why }
    }
}

impl Link for NodeLink {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let may_join = self
            .connection()
            .is_ok_and(|connection| !connection.refuses_several_slots);
        let mut calls = LinkCall::numbered(calls);
        if may_join {
            LinkCall::join_renewals(&mut calls);
        }
        let timeout = self.node.config.command_timeout;
        let mut reply_by = self.node.clock.now() + timeout;
        // When the last round began, if renewals went together in it.
        let mut together_since = None;
        run_in_rounds(calls, |calls| {
            let now = self.node.clock.now();
            let is_joined = calls.iter().any(|call| call.together);
            // The renewals that were left out go alone now. If the time that is left is less than the
            // last round trip took, they get the time of a lone renewal. Otherwise a slow link could
            // never answer them, since they meet again each time.
            if let (Some(since), false) = (together_since, is_joined)
                && reply_by - now < now - since
            {
                reply_by = now + timeout;
            }
            together_since = is_joined.then_some(now);
            let mut replies = self.send_until(calls, reply_by);
            replies.extend(self.receive_all(reply_by));
            replies
        })
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
        let was_idle = connection.opened + self.node.config.back_off < started;
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
        self.node.troubles.note();
        let now = self.node.clock.now();
        let why = results
            .iter()
            .find_map(|result| result.answer.as_ref().err().cloned());
        let slept = now > reply_by + self.node.config.command_timeout;
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
                logger: Logger,
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
    pub(super) fn owes_replies(&self) -> bool {
        self.batch.is_some() || self.detour.is_some()
    }

    /// Sends calls in one write, and reads no reply. Returns the calls that were not sent. A link
    /// that owes replies takes no more calls.
    ///
    /// Never blocks, with one exception: before an acquire it asks for the rights if they are not
    /// known.
    pub(super) fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        let reply_by = self.node.clock.now() + self.node.config.command_timeout;
        self.send_until(calls, reply_by)
    }

    /// The same. The replies are awaited until `reply_by` at most.
    pub(super) fn send_until(&mut self, calls: Vec<LinkCall>, reply_by: Time) -> Vec<LinkReply> {
        if calls.is_empty() {
            return Vec::new();
        }
        if self.owes_replies() {
            return not_sent(&calls, &StoreFault::NotReady);
        }
        let (node, acks) = (Arc::clone(&self.node), self.acks);
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(fault) => return self.send_over_lane(calls, &fault, reply_by),
        };
        let (batch, replies) = Batch::send(&node, connection, calls, (acks, reply_by));
        let sent = batch.sent;
        self.batch = Some(batch).filter(Batch::is_open);
        self.after_replies(replies, sent, reply_by)
    }

    /// The link has no connection, for this reason. If it cannot have one soon, its calls go over a lane: no
    /// lock may be lost while any connection works.
    fn send_over_lane(
        &mut self,
        calls: Vec<LinkCall>,
        why: &StoreFault,
        reply_by: Time,
    ) -> Vec<LinkReply> {
        let now = self.node.clock.now();
        if now < self.cut_off_at {
            return not_sent(&calls, why);
        }
        let has_answer = |probe: &mut LaneProbe| probe.has_answer(&self.node);
        let has_answer = match self.probe.as_mut().and_then(has_answer) {
            Some(has_answer) => has_answer,
            None => {
                self.probe = LaneProbe::send(&self.node);
                false
            }
        };
        let Some(LaneProbe { lane, sent, .. }) = self.probe else {
            return not_sent(&calls, why);
        };
        if !has_answer {
            let is_new = now < sent + self.node.config.command_timeout / 16;
            return not_sent(&calls, if is_new { &StoreFault::NotReady } else { why });
        }
        match Detour::send(&self.node, lane, calls, (self.acks, reply_by)) {
            Err(calls) => not_sent(&calls, why),
            Ok((detour, replies)) => {
                if !std::mem::replace(&mut self.is_detour_logged, true) {
                    let (server, why) = (self.node.name(), why.reason());
                    log::warn!(
                        logger: Logger,
                        "renewals to {server} go over a shared connection: {why}"
                    );
                }
                self.detour = Some(detour).filter(Detour::is_open);
                replies
            }
        }
    }

    /// If the lane has failed as well, the next must show first that it works. The server may be silent, and
    /// the thread must not wait for one lane after the other.
    fn after_detour(&mut self, replies: &mut [LinkReply]) {
        for result in replies.iter_mut().filter_map(LinkReply::result) {
            if result.is_closed() || result.answer.as_ref().is_err_and(StoreFault::is_late_reply) {
                self.probe = None;
            }
            result.note_closed_again();
        }
    }

    /// Reads the replies that come until `until`. After the command timeout the connection ends, and
    /// all calls without a reply fail.
    pub(super) fn receive(&mut self, until: Time) -> Vec<LinkReply> {
        if let Some(mut detour) = self.detour.take() {
            let mut replies = detour.receive(&self.node, until);
            self.detour = Some(detour).filter(Detour::is_open);
            self.after_detour(&mut replies);
            return replies;
        }
        let Some(mut batch) = self.batch.take() else {
            return Vec::new();
        };
        let replies = match &mut self.state {
            LinkState::Up(connection) => batch.receive(&self.node, connection, until),
            _ => batch.fail(&StoreFault::NotReady),
        };
        let (sent, reply_by) = (batch.sent, batch.reply_by);
        self.batch = Some(batch).filter(Batch::is_open);
        self.after_replies(replies, sent, reply_by)
    }

    /// Reads all replies. They are awaited until `reply_by` at least.
    pub(super) fn receive_all(&mut self, reply_by: Time) -> Vec<LinkReply> {
        if let Some(batch) = &mut self.batch {
            batch.reply_by = batch.reply_by.max(reply_by);
        }
        if let Some(detour) = &mut self.detour {
            detour.extend(reply_by);
        }
        let mut replies = Vec::new();
        while self.owes_replies() {
            replies.extend(self.receive(Time::NEVER));
        }
        replies
    }

    /// These replies came over the connection, to calls that were sent at `started`.
    fn after_replies(
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
}
