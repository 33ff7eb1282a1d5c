//! Joined writes: calls that find no free connection go along with somebody's who waits for one.
//!
//! A connection carries one exchange at a time, so check-outs alone allow no more exchanges a second than connections ÷
//! round trip. Here the first that finds no connection free waits for one, as the pool has it, and *leads*: it takes
//! along the calls of all who came meanwhile, as one pipeline, and deals out the replies as they come. While nobody
//! waits for a connection nothing of this is done.
//!
//! | turn     | when                           | becomes                                                     |
//! |----------|--------------------------------|-------------------------------------------------------------|
//! | Waiting  | in the line                    | Taken; Leads, if who led has gone without it; or it leaves  |
//! | Leads    | it is to wait for a connection | –                                                           |
//! | Taken    | in somebody's pipeline         | Answered; or its caller gives up and hears no more of it    |
//! | Answered | a reply came, or a fault       | –                                                           |

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{Connection, timed_out};
use super::{Order, Pending};
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::single::Single;
use crate::store::{CallResult, Checkout, Deadlines, StoreFault};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// What one pipeline takes along: a server is not kept from others for long, and whoever is on a connection that is
/// stuck is one of not too many.
const MOST: usize = 128;

/// Those who wait for a connection to one node.
pub(crate) struct BatchQueue {
    /// Whether somebody leads. Written while the line is locked.
    is_led: AtomicBool,
    waiting: Mutex<VecDeque<Arc<Follower>>>,
}

/// Somebody who waits while its call goes along with another's.
struct Follower {
    call: Call,
    reply: Time,
    turn: Mutex<Turn>,
    changed: Condvar,
}

enum Turn {
    Waiting,
    Leads,
    Taken { not_after: u64 },
    Answered(CallResult),
}

/// What somebody is who found no connection free.
enum Role {
    Leader,
    Follower(Arc<Follower>),
}

impl BatchQueue {
    pub(crate) fn new() -> BatchQueue {
        BatchQueue {
            is_led: AtomicBool::new(false),
            waiting: Mutex::new(VecDeque::new()),
        }
    }

    /// Whoever comes now joins, and does not take from the leader the connection that it waits for.
    pub(crate) fn is_led(&self) -> bool {
        self.is_led.load(Ordering::Acquire)
    }

    fn enter(&self, call: &Call, reply: Time) -> Role {
        let mut waiting = self.waiting.lock();
        if !self.is_led() {
            self.is_led.store(true, Ordering::Release);
            return Role::Leader;
        }
        let turn = Mutex::new(Turn::Waiting);
        let joiner = Arc::new(Follower {
            call: call.clone(),
            reply,
            turn,
            changed: Condvar::new(),
        });
        waiting.push_back(Arc::clone(&joiner));
        Role::Follower(joiner)
    }

    /// False if its turn has changed meanwhile.
    fn leave(&self, joiner: &Arc<Follower>) -> bool {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|other| Arc::ptr_eq(other, joiner));
        at.is_some_and(|at| waiting.remove(at).is_some())
    }

    /// Ends a leadership: those who go along, at most so many, each with its `not_after`. One of those who are left leads
    /// next.
    fn take(&self, most: usize, not_after: impl Fn(&Follower) -> u64) -> Vec<(Arc<Follower>, u64)> {
        let mut waiting = self.waiting.lock();
        let most = most.min(waiting.len());
        let take = |joiner: Arc<Follower>| {
            let not_after = not_after(&joiner);
            // It may give up before this is sent, and is to know even then until when it can be taken (R7).
            *joiner.turn.lock() = Turn::Taken { not_after };
            (joiner, not_after)
        };
        let taken = waiting.drain(..most).map(take).collect();
        let next = waiting.pop_front();
        self.is_led.store(next.is_some(), Ordering::Release);
        if let Some(next) = &next {
            *next.turn.lock() = Turn::Leads;
        }
        drop(waiting);
        if let Some(next) = next {
            next.changed.notify_one();
        }
        taken
    }
}

/// A leadership; dropped before its time, for instance by a panic, it goes to the next.
struct Leadership<'a>(Option<&'a BatchQueue>);

impl Leadership<'_> {
    fn take(
        mut self,
        most: usize,
        not_after: impl Fn(&Follower) -> u64,
    ) -> Vec<(Arc<Follower>, u64)> {
        self.0
            .take()
            .map_or_else(Vec::new, |line| line.take(most, not_after))
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.0 {
            line.take(0, |_| 0);
        }
    }
}

impl Follower {
    fn turns_to(&self, turn: Turn) {
        *self.turn.lock() = turn;
        self.changed.notify_one();
    }
}

impl Single {
    /// Runs one call, with others' or along with others', after no connection was free.
    pub(crate) fn join(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        let Checkout::Until(until) = deadlines.checkout else {
            return CallResult::not_sent(StoreFault::NotReady);
        };
        let started = self.node.clock.now();
        let Role::Follower(joiner) = self.line.enter(call, deadlines.reply) else {
            return self.lead(call, deadlines);
        };
        let checkout = until.min(started + self.node.command_timeout);
        let mut turn = joiner.turn.lock();
        loop {
            let now = self.node.clock.now();
            let wake = match &mut *turn {
                Turn::Waiting if now >= checkout => {
                    drop(turn);
                    if self.line.leave(&joiner) {
                        let fault = self.no_connection(started, "no connection came free");
                        return CallResult::not_sent(fault);
                    }
                    turn = joiner.turn.lock();
                    continue;
                }
                Turn::Waiting => checkout,
                Turn::Leads => {
                    drop(turn);
                    return self.lead(call, deadlines);
                }
                Turn::Taken { not_after } if now >= deadlines.reply => {
                    return CallResult {
                        answer: Err(timed_out(Step::Reply)),
                        not_after: *not_after,
                    };
                }
                Turn::Taken { .. } => deadlines.reply,
                Turn::Answered(result) => {
                    return std::mem::replace(result, CallResult::not_sent(StoreFault::NotReady));
                }
            };
            self.node.clock.wait(&joiner.changed, &mut turn, wake);
        }
    }

    /// Waits for a connection as the pool has it, and takes along who has come meanwhile.
    fn lead(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        let leading = Leadership(Some(&self.line));
        let connection = match self.wait_for_connection(deadlines.checkout) {
            Ok(connection) => connection,
            Err(fault) => return CallResult::not_sent(fault),
        };
        // The pipeline ends in the leader's time, which is half a timeout at least unless this is sent again: those who go
        // along shall have that, too.
        let in_time = self.node.clock.now() + self.node.command_timeout / 2 <= deadlines.reply;
        let give_up = |joiner: &Follower| joiner.reply.min(deadlines.reply);
        let date = |joiner: &Follower| {
            self.node
                .date(&connection, &joiner.call, give_up(joiner))
                .not_after
        };
        let joiners = leading.take(if in_time { MOST } else { 0 }, date);
        self.lent(connection, |connection| {
            self.run_joined(connection, call, &joiners, deadlines.reply)
        })
    }

    /// Runs the leader's call and those that go along.
    fn run_joined(
        &self,
        connection: &mut Connection,
        call: &Call,
        joiners: &[(Arc<Follower>, u64)],
        give_up: Time,
    ) -> CallResult {
        let mut puts = Vec::with_capacity(joiners.len() + 1);
        puts.push(self.node.date(connection, call, give_up));
        puts.extend(
            joiners
                .iter()
                .map(|(joiner, not_after)| Pending::new(&joiner.call, *not_after)),
        );
        let own_not_after = puts[0].not_after;
        let mut own = None;
        let pool_generation = connection.pool_generation;
        self.node.pipeline(
            connection,
            &mut puts,
            give_up,
            Order::Any,
            &mut |i, answer| {
                if matches!(&answer, Err(fault) if fault.is_closed()) {
                    // Before any of them tries another.
                    self.node.retire_from_pool(pool_generation);
                }
                match i.checked_sub(1) {
                    None => own = Some(answer),
                    Some(i) => {
                        let (joiner, not_after) = &joiners[i];
                        let not_after = *not_after;
                        joiner.turns_to(Turn::Answered(CallResult { answer, not_after }));
                    }
                }
            },
        );
        let answer = own.unwrap_or_else(|| Err(timed_out(Step::Reply)));
        CallResult {
            answer,
            not_after: own_not_after,
        }
    }
}
