//! Renewals that callers wait for: a grant of theirs must be acknowledged, or a guard's owner renews.
//!
//! All callers share one connection. The first of them is the *leader*: it sends its renewals with
//! one `WAIT` and reads the replies. Callers that come meanwhile are *followers*. When the leader is
//! done, it asks the first follower to lead, which takes along all that have come by then.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::config::ReplicaAcks;
use crate::error::Step;
use crate::store::again::{Attempts, Ending, Next};
use crate::store::clock::Time;
use crate::store::node::batch::{Batch, LinkCall, LinkReply, not_sent, run_in_rounds};
use crate::store::node::connection::Connection;
use crate::store::node::detour::Detour;
use crate::store::node::lane::SILENT;
use crate::store::node::slot::{Slot, Woken};
use crate::store::node::{Node, Role};
use crate::store::{CallResult, StoreFault};
use crate::sync::Mutex;

/// How many renewals one write has. They fit into a socket's buffer, so writing never blocks.
const MOST_IN_ONE_WRITE: usize = 256;

pub(in crate::store::node) struct Confirmer {
    node: Arc<Node>,
    acks: ReplicaAcks,
    state: Arc<Mutex<Gathering>>,
    /// The last attempt to open a connection, if it failed. For a moment none other begins: calls go
    /// over a lane. The leader alone has it.
    failed: Mutex<Option<(Time, StoreFault)>>,
}

#[derive(Default)]
struct Gathering {
    /// The callers whose renewals are not sent yet, in the order in which they came.
    callers: VecDeque<Arc<AckedCaller>>,
    /// A caller leads. Otherwise one of the callers has been asked to, if there are any.
    is_led: bool,
    /// `None` while a leader uses it.
    connection: Option<Connection>,
}

struct AckedCaller {
    renewals: Vec<LinkCall>,
    slot: Slot<Vec<CallResult>>,
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
            failed: Mutex::new(None),
        }
    }

    /// The time for renewals that are to be sent now: the replicas' time for those that are under
    /// way, and one command timeout.
    pub(in crate::store::node) fn reply_by(&self) -> Time {
        self.node.clock.now() + self.acks.timeout + self.node.config.command_timeout
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
            slot: Slot::new(),
        });
        caller.slot.begin_wait();
        self.state.lock().callers.push_back(Arc::clone(&caller));
        loop {
            self.lead(&caller, reply_by);
            match caller.slot.sleep(clock, reply_by) {
                Woken::Asked => {}
                Woken::Answered(results) => return results,
                Woken::TimedOut => break,
            }
        }
        self.stop_waiting(&caller).unwrap_or_else(|| {
            let late = StoreFault::timed_out(Step::Reply);
            (0..count)
                .map(|_| CallResult::not_sent(late.clone()))
                .collect()
        })
    }

    /// The caller has no time left. If its renewals are not sent yet, nobody sends them.
    fn stop_waiting(&self, caller: &Arc<AckedCaller>) -> Option<Vec<CallResult>> {
        let results = caller.slot.end();
        let mut state = self.state.lock();
        state.callers.retain(|other| !Arc::ptr_eq(other, caller));
        let next = state.ask_next();
        drop(state);
        wake(next);
        results
    }

    /// If nobody leads, and the caller's renewals are not sent yet: sends what has been gathered, and
    /// hands out the results.
    fn lead(&self, caller: &Arc<AckedCaller>, reply_by: Time) {
        let mut state = self.state.lock();
        let is_one = |other: &Arc<AckedCaller>| Arc::ptr_eq(other, caller);
        if state.is_led || !state.callers.iter().any(is_one) || self.node.clock.now() >= reply_by {
            return;
        }
        state.is_led = true;
        let batch = state.take_batch();
        let connection = state.connection.take();
        drop(state);
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
            caller.slot.answer(own);
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
                Err(fault) => run_in_rounds(renewals.to_vec(), |calls| {
                    self.round_over_lane(calls, &fault, reply_by)
                }),
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
        let patience = self.node.config.command_timeout / 2;
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

    /// The same over a lane, since no connection can be opened. Its callers wait for the replicas, too.
    fn round_over_lane(
        &self,
        calls: Vec<LinkCall>,
        why: &StoreFault,
        reply_by: Time,
    ) -> Vec<LinkReply> {
        let Some(lane) = self.node.any_open_lane() else {
            return not_sent(&calls, why);
        };
        match Detour::send(&self.node, lane, calls, (Some(self.acks), reply_by)) {
            Err(calls) => not_sent(&calls, why),
            Ok((mut detour, mut replies)) => {
                replies.extend(detour.receive(&self.node, Time::NEVER));
                replies
            }
        }
    }

    fn open<'c>(
        &self,
        connection: &'c mut Option<Connection>,
        reply_by: Time,
    ) -> Result<&'c mut Connection, StoreFault> {
        let open = match connection.take() {
            Some(open) if !self.node.ages.is_retired(open.age) => open,
            _ => {
                let (now, config) = (self.node.clock.now(), &self.node.config);
                let failed = self.failed.lock().clone();
                let is_new = |(at, _): &&(Time, StoreFault)| now < *at + config.back_off;
                if let Some((_, fault)) = failed.as_ref().filter(is_new) {
                    return Err(fault.clone());
                }
                // The other half of the time is for a lane.
                let connect_by = now + config.connect_timeout.min((reply_by - now) / 2);
                let opened = self.node.connect_until(Role::Acks, connect_by);
                *self.failed.lock() = opened.as_ref().err().map(|fault| (now, fault.clone()));
                opened?
            }
        };
        Ok(connection.insert(open))
    }
}

impl Gathering {
    /// The callers whose renewals go over the connection together.
    fn take_batch(&mut self) -> Vec<Arc<AckedCaller>> {
        let mut size = 0;
        let fitting = self.callers.iter().take_while(|caller| {
            // At least one of them, or the leader would have none.
            let is_first = size == 0;
            size += caller.renewals.len();
            is_first || size <= MOST_IN_ONE_WRITE
        });
        let count = fitting.count();
        self.callers.drain(..count).collect()
    }

    /// Asks the first caller that waits to lead, if nobody leads. It must be woken once the mutex is
    /// free: earlier, it would only wait for that.
    #[must_use]
    fn ask_next(&self) -> Option<Arc<AckedCaller>> {
        let mut callers = self.callers.iter().filter(|_| !self.is_led);
        callers.find(|caller| caller.slot.ask()).cloned()
    }
}

/// A caller leads, with the connection. The next one is asked to when this is dropped, even by a
/// panic: otherwise nobody would lead any more.
struct Lead<'a> {
    confirmer: &'a Confirmer,
    connection: Option<Connection>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = self.confirmer.state.lock();
        state.connection = self.connection.take();
        state.is_led = false;
        let next = state.ask_next();
        drop(state);
        wake(next);
    }
}

fn wake(next: Option<Arc<AckedCaller>>) {
    if let Some(next) = next {
        next.slot.wake();
    }
}
