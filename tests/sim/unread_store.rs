//! The in-memory store as one lane: a call whose caller has left is carried out, and its result
//! stays unread until somebody reads the lane.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Result, Step};
use crate::key::Key;
use crate::script::{Call, CallerId};
use crate::store::clock::{Clock, Time};
use crate::store::memory::{Memory, Session};
use crate::store::{
    Anchor, CallResult, Channel, Deadlines, Leave, Link, OnEvent, OnResult, Store, StoreFault,
};

#[derive(Clone)]
pub(super) struct UnreadStore(Arc<Inner>);

struct Inner {
    session: Session,
    command_timeout: Duration,
    lane: Mutex<Lane>,
}

/// How the lane behaves from now on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Traffic {
    /// The next call reads what is unread. So does the renewal thread when it looks.
    Flows,
    /// Nothing is read before it is overdue.
    Hangs,
}

struct Lane {
    unread: VecDeque<Unread>,
    traffic: Traffic,
    /// Calls sent by [`Store::send`] do not arrive, and fail like this.
    loses: Option<StoreFault>,
    /// Runs once, when a call was written and before its caller is asked whether it leaves.
    after_write: Option<Box<dyn FnOnce() + Send>>,
    looks: usize,
}

struct Unread {
    due: Time,
    result: CallResult,
    on_result: OnResult,
}

impl UnreadStore {
    pub(super) fn open(
        memory: &Memory,
        command_timeout: Duration,
        caller_id: Arc<CallerId>,
    ) -> Result<UnreadStore> {
        let lane = Lane {
            unread: VecDeque::new(),
            traffic: Traffic::Flows,
            loses: None,
            after_write: None,
            looks: 0,
        };
        Ok(UnreadStore(Arc::new(Inner {
            session: Session::open(memory, command_timeout, caller_id)?,
            command_timeout,
            lane: Mutex::new(lane),
        })))
    }

    pub(super) fn unread(&self) -> usize {
        self.0.lane.lock().unread.len()
    }

    pub(super) fn traffic(&self, traffic: Traffic) {
        self.0.lane.lock().traffic = traffic;
    }

    pub(super) fn lose_calls(&self, fault: StoreFault) {
        self.0.lane.lock().loses = Some(fault);
    }

    pub(super) fn after_next_write(&self, run: impl FnOnce() + Send + 'static) {
        self.0.lane.lock().after_write = Some(Box::new(run));
    }

    /// How often the renewal thread has asked what is unread.
    pub(super) fn looks(&self) -> usize {
        self.0.lane.lock().looks
    }

    /// Whether an engine still has the store.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Reads the lane from its beginning, as far as `may_read` goes.
    fn read_while(&self, may_read: impl Fn(Traffic, &Unread) -> bool) {
        loop {
            let mut lane = self.0.lane.lock();
            let traffic = lane.traffic;
            if !lane
                .unread
                .front()
                .is_some_and(|first| may_read(traffic, first))
            {
                return;
            }
            let Some(first) = lane.unread.pop_front() else {
                return;
            };
            drop(lane);
            (first.on_result)(first.result);
        }
    }

    fn send_one(&self, call: &Call, deadlines: Deadlines) -> CallResult {
        match self.0.lane.lock().loses.clone() {
            Some(fault) => CallResult::not_sent(fault),
            None => {
                let results = self.0.session.run(std::slice::from_ref(call), deadlines);
                results.into_iter().next().expect("a result for each call")
            }
        }
    }
}

impl Store for UnreadStore {
    fn clock(&self) -> Clock {
        self.0.session.clock()
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        self.read_while(|traffic, _| traffic == Traffic::Flows);
        self.0.session.run(calls, deadlines)
    }

    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        let sent = self.clock().now();
        let deadlines = Deadlines::at_once(reply_by);
        let results: Vec<_> = calls
            .iter()
            .map(|call| self.send_one(call, deadlines))
            .collect();
        let after_write = self.0.lane.lock().after_write.take();
        if let Some(run) = after_write {
            run();
        }
        let end = |(index, result)| match leave(index) {
            None => Some(result),
            Some(on_result) => {
                self.0.lane.lock().unread.push_back(Unread {
                    due: sent + self.0.command_timeout,
                    result,
                    on_result,
                });
                None
            }
        };
        results.into_iter().enumerate().map(end).collect()
    }

    fn unread_due(&self) -> Time {
        let mut lane = self.0.lane.lock();
        lane.looks += 1;
        lane.unread.front().map_or(Time::NEVER, |first| first.due)
    }

    fn read_unread(&self) {
        let now = self.clock().now();
        self.read_while(|traffic, first| traffic == Traffic::Flows || first.due <= now);
    }

    fn read_all_unread(&self, until: Time) {
        self.read_while(|traffic, _| traffic == Traffic::Flows);
        if self.unread() > 0 {
            self.clock().sleep_until(until);
        }
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        self.0.session.link(on_ready)
    }

    fn listen(
        &self,
        channel: Channel<'_>,
        on_event: &mut OnEvent<'_>,
    ) -> std::result::Result<(), StoreFault> {
        let session = &self.0.session;
        session.listen(channel, on_event)
    }

    fn poke(&self, channel: &str, by: Time) {
        self.0.session.poke(channel, by);
    }

    fn scan(
        &self,
        cursor: u64,
        pattern: &str,
    ) -> std::result::Result<(u64, Vec<String>), StoreFault> {
        self.0.session.scan(cursor, pattern)
    }

    fn anchor(&self, key: &Key) -> Option<Anchor> {
        self.0.session.anchor(key)
    }

    fn traffic(&self) -> crate::stats::Traffic {
        self.0.session.traffic()
    }
}

/// The connection was closed, or silent for the time of a command.
pub(super) fn closed() -> StoreFault {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    StoreFault::unavailable(Step::Reply, error)
}
