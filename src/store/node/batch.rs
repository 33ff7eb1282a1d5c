//! Joined writes: a call that finds no connection free travels in the pipeline of another caller,
//! who waits for a connection.
//!
//! A connection carries one exchange at a time. So check-outs alone allow no more exchanges a
//! second than connections ÷ round trip. With this queue, the first caller that finds no connection
//! free becomes the *leader*: it waits for a connection in the pool's way. The callers that come
//! after it are its *followers*. When the leader has its connection, it takes the calls of its
//! followers along as one batch, and hands out the replies as they come. While no caller waits for
//! a connection, this code does nothing.
//!
//! | turn of a follower | when | becomes |
//! |---|---|---|
//! | Waiting | in the queue | InBatch; or Leading, if the leader went without it; or its caller leaves |
//! | Leading | it must wait for a connection itself | – |
//! | InBatch | its call is in a leader's pipeline | Answered; or its caller stops waiting for the reply |
//! | Answered | a reply came, or a fault | – |

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Node;
use super::connection::Connection;
use super::pipeline::{Order, Pending, Pipeline};
use crate::error::Step;
use crate::script::Call;
use crate::store::clock::{Clock, Time};
use crate::store::{CallResult, StoreFault};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// The most followers in one batch. It keeps the server from other clients only briefly, and a
/// connection that hangs delays only that many callers.
pub(super) const MAX_FOLLOWERS: usize = 128;

/// The callers that wait for a connection to one node.
pub(super) struct BatchQueue {
    /// Whether there is a leader. Written only while the followers are locked.
    is_led: AtomicBool,
    pub(super) followers: Mutex<VecDeque<Arc<Follower>>>,
}

/// A caller that waits while its call travels with another's.
pub(super) struct Follower {
    pub(super) call: Call,
    pub(super) reply_by: Time,
    pub(super) turn: Mutex<Turn>,
    changed: Condvar,
}

/// The state of a follower's call. See the table at the top.
pub(super) enum Turn {
    Waiting,
    Leading,
    InBatch { not_after: u64 },
    Answered(CallResult),
}

/// The role of a caller that found no connection free.
pub(super) enum Role {
    Leader,
    Follower(Arc<Follower>),
}

/// How a follower's wait ended.
pub(super) enum FollowerOutcome {
    /// The caller is the leader now.
    Leads,
    /// No leader took the call along in time. It was not sent.
    NoConnection,
    Result(CallResult),
}

/// A follower whose call goes along, and the bound that the call is sent with.
pub(super) struct BatchMember {
    follower: Arc<Follower>,
    not_after: u64,
}

impl BatchQueue {
    pub(super) fn new() -> BatchQueue {
        BatchQueue {
            is_led: AtomicBool::new(false),
            followers: Mutex::new(VecDeque::new()),
        }
    }

    /// Whether a leader waits for a connection. A new caller must join then, or it would take the
    /// connection that the leader waits for.
    pub(super) fn is_led(&self) -> bool {
        self.is_led.load(Ordering::Acquire)
    }

    pub(super) fn join(&self, call: &Call, reply_by: Time) -> Role {
        let mut followers = self.followers.lock();
        if !self.is_led() {
            self.is_led.store(true, Ordering::Release);
            return Role::Leader;
        }
        let follower = Arc::new(Follower {
            call: call.clone(),
            reply_by,
            turn: Mutex::new(Turn::Waiting),
            changed: Condvar::new(),
        });
        followers.push_back(Arc::clone(&follower));
        Role::Follower(follower)
    }

    /// Waits until `checkout_by` to be taken along or to lead, and for the reply after that.
    pub(super) fn follow(
        &self,
        follower: &Arc<Follower>,
        clock: &Clock,
        checkout_by: Time,
    ) -> FollowerOutcome {
        let mut turn = follower.turn.lock();
        loop {
            let now = clock.now();
            let wake_at = match &mut *turn {
                Turn::Waiting if now >= checkout_by => {
                    // The queue is locked before a turn, never after it.
                    drop(turn);
                    if self.remove(follower) {
                        return FollowerOutcome::NoConnection;
                    }
                    // The turn has changed just now: this caller leads, or its call is in a batch.
                    turn = follower.turn.lock();
                    continue;
                }
                Turn::Waiting => checkout_by,
                Turn::Leading => return FollowerOutcome::Leads,
                Turn::InBatch { not_after } if now >= follower.reply_by => {
                    return FollowerOutcome::Result(CallResult {
                        answer: Err(StoreFault::timed_out(Step::Reply)),
                        not_after: *not_after,
                    });
                }
                Turn::InBatch { .. } => follower.reply_by,
                Turn::Answered(result) => {
                    let none = CallResult::not_sent(StoreFault::NotReady);
                    return FollowerOutcome::Result(std::mem::replace(result, none));
                }
            };
            clock.wait(&follower.changed, &mut turn, wake_at);
        }
    }

    /// Removes a follower that still waits. False if its turn has changed: then it must not leave,
    /// for it may be the leader now.
    pub(super) fn remove(&self, follower: &Arc<Follower>) -> bool {
        let mut followers = self.followers.lock();
        let at = followers
            .iter()
            .position(|other| Arc::ptr_eq(other, follower));
        at.is_some_and(|at| followers.remove(at).is_some())
    }

    /// Ends a leadership: takes at most `most` followers along, each with its `not_after`. The
    /// first of those that are left leads next.
    fn end_leadership(
        &self,
        most: usize,
        not_after: impl Fn(&Follower) -> u64,
    ) -> Vec<BatchMember> {
        let mut followers = self.followers.lock();
        let most = most.min(followers.len());
        let take = |follower: Arc<Follower>| {
            let not_after = not_after(&follower);
            // R7 (late copies): the caller may stop waiting before the batch is sent. Even then it
            // must know until when its call can take effect.
            *follower.turn.lock() = Turn::InBatch { not_after };
            BatchMember {
                follower,
                not_after,
            }
        };
        let members = followers.drain(..most).map(take).collect();
        let next = followers.pop_front();
        self.is_led.store(next.is_some(), Ordering::Release);
        if let Some(next) = &next {
            *next.turn.lock() = Turn::Leading;
        }
        drop(followers);
        if let Some(next) = next {
            next.changed.notify_one();
        }
        members
    }
}

/// The leader's duty to end its leadership. If it is dropped before that, for instance by a panic
/// or because no connection came, the next follower leads.
pub(super) struct Leadership<'a>(Option<&'a BatchQueue>);

impl<'a> Leadership<'a> {
    /// For a caller that [`BatchQueue::join`] or [`BatchQueue::follow`] made the leader.
    pub(super) fn of(queue: &'a BatchQueue) -> Leadership<'a> {
        Leadership(Some(queue))
    }

    /// Takes followers along and makes the next one leader.
    pub(super) fn take_followers(
        mut self,
        most: usize,
        not_after: impl Fn(&Follower) -> u64,
    ) -> Vec<BatchMember> {
        self.0
            .take()
            .map_or_else(Vec::new, |queue| queue.end_leadership(most, not_after))
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0 {
            queue.end_leadership(0, |_| 0);
        }
    }
}

impl BatchMember {
    fn hand_out(&self, answer: Result<crate::store::Answer, StoreFault>) {
        *self.follower.turn.lock() = Turn::Answered(CallResult {
            answer,
            not_after: self.not_after,
        });
        self.follower.changed.notify_one();
    }
}

impl Node {
    /// Runs the leader's call and those of its followers as one pipeline. Each follower has its
    /// answer as soon as it comes; the leader's is returned.
    pub(super) fn run_batch(
        &self,
        connection: &mut Connection,
        call: &Call,
        members: &[BatchMember],
        reply_by: Time,
    ) -> CallResult {
        let mut pending = Vec::with_capacity(members.len() + 1);
        let own = self.date(connection, call, reply_by);
        let not_after = own.not_after;
        pending.push(own);
        let followers = members.iter();
        pending.extend(followers.map(|m| Pending::new(&m.follower.call, m.not_after)));
        let mut pipeline = Pipeline {
            pending,
            reply_by,
            order: Order::Any,
        };
        let pool_generation = connection.pool_generation;
        let mut own_answer = None;
        while pipeline.has_unanswered() {
            self.round_trip(connection, &mut pipeline, &mut |index, answer| {
                if answer.as_ref().is_err_and(StoreFault::is_closed) {
                    // Before any of these callers tries another connection.
                    self.retire_from_pool(pool_generation);
                }
                match index.checked_sub(1) {
                    None => own_answer = Some(answer),
                    Some(follower) => members[follower].hand_out(answer),
                }
            });
        }
        CallResult {
            answer: own_answer.unwrap_or_else(|| Err(StoreFault::timed_out(Step::Reply))),
            not_after,
        }
    }
}
