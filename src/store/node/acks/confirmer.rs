//! Renewals that callers wait for: a grant of theirs must be acknowledged, or a guard's owner renews.
//!
//! All callers share one connection. The first of them is the *leader*: it sends its renewals with
//! one `WAIT` and reads the replies. Callers that come meanwhile are *followers*. When the leader is
//! done, the first follower leads, and takes along all that have come by then.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::{Clock, Time};
use crate::store::node::batch::{Batch, LinkCall, LinkReply, run_in_rounds};
use crate::store::node::connection::Connection;
use crate::store::node::lane::SILENT;
use crate::store::node::{Node, Role};
use crate::store::{CallResult, StoreFault};
use crate::sync::{Condvar, Mutex};

/// How many renewals one write has. They fit into a socket's buffer, so writing never blocks.
const MOST_IN_ONE_WRITE: usize = 256;

pub(in crate::store::node) struct Confirmer {
    node: Arc<Node>,
    acks: ReplicaAcks,
    state: Arc<Mutex<Gathering>>,
}

#[derive(Default)]
struct Gathering {
    /// The callers whose renewals are not sent yet, in the order in which they came.
    callers: VecDeque<Arc<AckedCaller>>,
    /// A caller leads. Without a leader there are no callers.
    is_led: bool,
    /// `None` while a leader uses it.
    connection: Option<Connection>,
}

struct AckedCaller {
    renewals: Vec<LinkCall>,
    turn: Mutex<GatheringTurn>,
    changed: Condvar,
}

/// | turn     | meaning                                    | becomes                |
/// |----------|--------------------------------------------|------------------------|
/// | Waiting  | its renewals are to be sent, or are sent   | Leading, Done or Over  |
/// | Leading  | it must send what has been gathered        | Done                   |
/// | Done     | the results of its renewals                | Over                   |
/// | Over     | it does not wait any more                  |                        |
enum GatheringTurn {
    Waiting,
    Leading,
    Done(Vec<CallResult>),
    Over,
}

impl Confirmer {
    pub(in crate::store::node) fn new(node: &Arc<Node>, acks: ReplicaAcks) -> Confirmer {
        let state: Arc<Mutex<Gathering>> = Arc::default();
        let gathering = Arc::downgrade(&state);
        node.login.on_renewal(move || {
            let Some(state) = gathering.upgrade() else {
                return false;
            };
            let idle = state.lock().connection.take();
            if let Some(mut idle) = idle {
                idle.log_in_anew();
                // A leader that came meanwhile has opened another one.
                state.lock().connection.get_or_insert(idle);
            }
            true
        });
        Confirmer {
            node: Arc::clone(node),
            acks,
            state,
        }
    }

    /// The time for renewals that are to be sent now: the replicas' time for those that are under
    /// way, and one command timeout.
    pub(in crate::store::node) fn reply_by(&self) -> Time {
        self.node.clock.now() + self.acks.timeout + self.node.command_timeout
    }

    /// Runs renewals that count only when enough replicas have acknowledged them. Blocks until
    /// `reply_by` at most.
    pub(in crate::store::node) fn renew(
        &self,
        renewals: Vec<LinkCall>,
        reply_by: Time,
    ) -> Vec<CallResult> {
        let clock = &self.node.clock;
        let count = renewals.len();
        let caller = Arc::new(AckedCaller {
            renewals,
            turn: Mutex::new(GatheringTurn::Waiting),
            changed: Condvar::new(),
        });
        let leads = {
            let mut state = self.state.lock();
            state.callers.push_back(Arc::clone(&caller));
            !std::mem::replace(&mut state.is_led, true)
        };
        if leads || caller.sleep(clock, reply_by) {
            if clock.now() < reply_by {
                self.lead(reply_by);
            } else {
                self.decline(&caller);
            }
        }
        caller.end().unwrap_or_else(|| {
            let late = StoreFault::timed_out(Step::Reply);
            (0..count)
                .map(|_| CallResult::not_sent(late.clone()))
                .collect()
        })
    }

    /// The caller has no time left to lead. Nobody sends its renewals.
    fn decline(&self, caller: &Arc<AckedCaller>) {
        let mut state = self.state.lock();
        state.callers.retain(|other| !Arc::ptr_eq(other, caller));
        let next = state.next_leader();
        drop(state);
        wake(next);
    }

    /// Sends what has been gathered, and hands out the results.
    fn lead(&self, reply_by: Time) {
        let (connection, batch) = self.state.lock().take_batch();
        let mut lead = Lead {
            confirmer: self,
            connection,
        };
        let own = |caller: &Arc<AckedCaller>| caller.renewals.clone();
        let mut renewals: Vec<LinkCall> = batch.iter().flat_map(own).collect();
        for (number, renewal) in (0..).zip(&mut renewals) {
            renewal.number = number;
        }
        let results = self.exchange(&renewals, &mut lead.connection, reply_by);
        // The next leader sends while this one hands out results.
        drop(lead);
        let mut results = results.into_iter();
        for caller in batch {
            let own = results.by_ref().take(caller.renewals.len()).collect();
            caller.answer(own);
        }
    }

    /// Renewals may run twice, so they are sent again if the connection was closed or is dead.
    fn exchange(
        &self,
        renewals: &[LinkCall],
        connection: &mut Option<Connection>,
        reply_by: Time,
    ) -> Vec<CallResult> {
        let mut attempts = Attempts::default();
        loop {
            let results = match self.open(connection, reply_by) {
                Err(fault) => renewals
                    .iter()
                    .map(|_| CallResult::not_sent(fault.clone()))
                    .collect(),
                Ok(open) => {
                    let mut may_be_dead = attempts.was_never_closed();
                    run_in_rounds(renewals.to_vec(), |calls| {
                        let may_be_dead = std::mem::take(&mut may_be_dead);
                        self.round(open, calls, may_be_dead, reply_by)
                    })
                }
            };
            connection.take_if(|connection| connection.broken);
            let is_closed = results.iter().any(CallResult::is_closed);
            if !is_closed || attempts.after(Ending::Closed) == Next::Done {
                return results;
            }
        }
    }

    /// Sends renewals over a connection, and reads their replies.
    fn round(
        &self,
        open: &mut Connection,
        calls: Vec<LinkCall>,
        may_be_dead: bool,
        reply_by: Time,
    ) -> Vec<LinkReply> {
        let to_acks = (Some(self.acks), reply_by);
        let (mut batch, mut replies) = Batch::send(&self.node, open, calls, to_acks);
        // The renewals run before the WAIT behind them. So their replies come soon, and a connection
        // that says nothing may be dead.
        let patience = self.node.command_timeout / 2;
        let may_be_dead = may_be_dead && batch.is_open() && open.round_trip() <= patience / 8;
        if may_be_dead && open.is_silent(patience) {
            open.broken = true;
            replies.extend(batch.fail(&StoreFault::connection_ended(SILENT)));
        }
        while batch.is_open() {
            replies.extend(batch.receive(&self.node, open, reply_by));
        }
        replies
    }

    fn open<'c>(
        &self,
        connection: &'c mut Option<Connection>,
        reply_by: Time,
    ) -> Result<&'c mut Connection, StoreFault> {
        let open = match connection.take() {
            Some(open) if !self.node.is_retired(&open) => open,
            _ => {
                let connect_by = self.node.clock.now() + self.node.connect_timeout;
                self.node
                    .connect_until(Role::Acks, reply_by.min(connect_by))?
            }
        };
        Ok(connection.insert(open))
    }
}

impl Gathering {
    /// The connection, and the callers whose renewals go over it together.
    fn take_batch(&mut self) -> (Option<Connection>, Vec<Arc<AckedCaller>>) {
        let mut batch = Vec::new();
        let mut size = 0;
        // At least one of them, or the leader would have none.
        while let Some(caller) = self
            .callers
            .pop_front_if(|caller| size == 0 || size + caller.renewals.len() <= MOST_IN_ONE_WRITE)
        {
            size += caller.renewals.len();
            batch.push(caller);
        }
        (self.connection.take(), batch)
    }

    /// The next caller leads, if there is one. It is to be woken without the mutex.
    fn next_leader(&mut self) -> Option<Arc<AckedCaller>> {
        while let Some(next) = self.callers.front() {
            if next.must_lead() {
                return Some(Arc::clone(next));
            }
            // It does not wait any more.
            self.callers.pop_front();
        }
        self.is_led = false;
        None
    }
}

fn wake(next: Option<Arc<AckedCaller>>) {
    if let Some(next) = next {
        next.changed.notify_one();
    }
}

/// A caller leads, with the connection. The next one leads when this is dropped, even by a panic:
/// otherwise nobody would lead any more.
struct Lead<'a> {
    confirmer: &'a Confirmer,
    connection: Option<Connection>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = self.confirmer.state.lock();
        state.connection = self.connection.take();
        let next = state.next_leader();
        drop(state);
        wake(next);
    }
}

impl AckedCaller {
    /// Sleeps until it has its results, but not past `until`. True if it must lead.
    fn sleep(&self, clock: &Clock, until: Time) -> bool {
        let mut turn = self.turn.lock();
        loop {
            match *turn {
                GatheringTurn::Waiting if clock.now() < until => {
                    clock.wait(&self.changed, &mut turn, until);
                }
                GatheringTurn::Waiting => {
                    *turn = GatheringTurn::Over;
                    return false;
                }
                GatheringTurn::Leading => return true,
                GatheringTurn::Done(_) | GatheringTurn::Over => return false,
            }
        }
    }

    fn end(&self) -> Option<Vec<CallResult>> {
        match std::mem::replace(&mut *self.turn.lock(), GatheringTurn::Over) {
            GatheringTurn::Done(results) => Some(results),
            _ => None,
        }
    }

    fn answer(&self, results: Vec<CallResult>) {
        let mut turn = self.turn.lock();
        if !matches!(*turn, GatheringTurn::Over) {
            *turn = GatheringTurn::Done(results);
            drop(turn);
            self.changed.notify_one();
        }
    }

    /// Makes it the leader, if it still waits. It is to be woken then.
    fn must_lead(&self) -> bool {
        let mut turn = self.turn.lock();
        let waits = matches!(*turn, GatheringTurn::Waiting);
        if waits {
            *turn = GatheringTurn::Leading;
        }
        waits
    }
}
