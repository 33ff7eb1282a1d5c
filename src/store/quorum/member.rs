//! One node of a quorum, and how its lanes are opened without anybody's waiting for it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::request::{PendingRequest, Wake};
use crate::error::Step;
use crate::script::Call;
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::store::node::{Lanes, Node, Readiness, connecting};

pub(super) type Interrupt = Box<dyn Fn() + Send + Sync>;

/// One node, by some lanes of its own.
pub(super) struct Member {
    pub(super) node: Arc<Node>,
    pub(super) lanes: Lanes,
    /// Lets a reader that waits look at the sockets again.
    interrupt: Interrupt,
    /// For each lane.
    openings: Mutex<Vec<LaneOpening>>,
    /// Called when a lane was opened, or could not be.
    on_ready: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

/// How a lane is opened. A thread does it, since to open a connection may take a command timeout.
#[derive(Default)]
struct LaneOpening {
    /// When the attempt that is under way began.
    running_since: Option<Time>,
    failed: Option<FailedConnection>,
    /// They want to know when it is over.
    waiting: Vec<Arc<PendingRequest>>,
}

/// The last connection of a lane, which failed.
struct FailedConnection {
    fault: StoreFault,
    /// It was open and hung.
    hung: bool,
    /// When the attempt to open it began, or when it was seen to hang. Back-offs count from here, so
    /// a node that is away is tried once per back-off, however long an attempt takes.
    since: Time,
}

impl LaneOpening {
    /// Why no attempt may begin now, and when one may.
    fn refused(&self, now: Time, back_off: Duration) -> Option<Reach> {
        let failed = self.failed.as_ref()?;
        let again_at = failed.since + back_off;
        (now < again_at).then(|| Reach::Suspect(failed.fault.clone(), again_at))
    }

    /// Ends the attempt that is under way.
    fn end(&mut self, opened: Result<(), StoreFault>, now: Time) {
        let since = self.running_since.take().unwrap_or(now);
        let failed = |fault| FailedConnection {
            fault,
            hung: false,
            since,
        };
        self.failed = opened.err().map(failed);
    }
}

/// Whether a call can go out now.
pub(super) enum Reach {
    Open,
    NeedsRights,
    /// The first connection is being opened.
    Opening,
    /// The last connection failed. Another is being opened, or will be at that time.
    Suspect(StoreFault, Time),
}

impl Member {
    pub(super) fn new(
        node: &Arc<Node>,
        lanes: Lanes,
        count: u32,
        interrupt: Interrupt,
    ) -> Arc<Member> {
        Arc::new(Member {
            node: Arc::clone(node),
            lanes,
            interrupt,
            openings: Mutex::new((0..count).map(|_| LaneOpening::default()).collect()),
            on_ready: OnceLock::new(),
        })
    }

    pub(super) fn call_when_ready(&self, on_ready: &Arc<dyn Fn() + Send + Sync>) {
        // There is one link.
        let _ = self.on_ready.set(Arc::clone(on_ready));
    }

    /// Whether a call can go out. If its lane is closed, a thread opens it, and wakes the caller.
    pub(super) fn reach(
        self: &Arc<Self>,
        call: &Call,
        request: Option<&Arc<PendingRequest>>,
    ) -> Reach {
        let lane = self.lanes.number_of(&call.key);
        self.reach_now(lane, call)
            .unwrap_or_else(|| self.begin_opening(lane, request))
    }

    /// The same over a lane that is open.
    fn reach_now(&self, lane: usize, call: &Call) -> Option<Reach> {
        self.end_overdue(lane);
        match self.lanes.readiness(lane, call) {
            Readiness::Ready => Some(Reach::Open),
            Readiness::NeedsRights => Some(Reach::NeedsRights),
            Readiness::Closed => None,
        }
    }

    /// Whether the call's lane is closed, and no connection can be opened for it, or not soon. A lane
    /// that hung says nothing of that: the others may hang, too, and a new one helps.
    pub(super) fn cannot_open(&self, call: &Call) -> bool {
        let opening = &self.openings.lock()[self.lanes.number_of(&call.key)];
        let is_slow = |since| self.node.clock.now() >= since + self.node.config.command_timeout;
        opening.running_since.is_some_and(is_slow)
            || opening.failed.as_ref().is_some_and(|failed| !failed.hung)
    }

    /// The first lane that is open, whatever name it is for.
    pub(super) fn any_open(&self, call: &Call) -> Option<(Reach, usize)> {
        let lanes = 0..self.openings.lock().len();
        lanes
            .filter_map(|lane| Some((self.reach_now(lane, call)?, lane)))
            .next()
    }

    /// A node that owes a reply for a command timeout hangs. Its lane is closed.
    fn end_overdue(&self, lane: usize) {
        if self.lanes.end_overdue(lane) {
            self.note_hung(lane);
        }
    }

    /// Reads what nobody has read, and closes lanes whose replies are overdue.
    pub(super) fn read_unread(&self) {
        for lane in self.lanes.read_or_end_overdue() {
            self.note_hung(lane);
        }
    }

    fn note_hung(&self, lane: usize) {
        let hung = StoreFault::timed_out(Step::Reply);
        self.openings.lock()[lane].failed = Some(FailedConnection {
            fault: hung,
            hung: true,
            since: self.node.clock.now(),
        });
    }

    /// Has a thread open a lane, unless one does or the last attempt has just failed.
    pub(super) fn begin_opening(
        self: &Arc<Self>,
        lane: usize,
        request: Option<&Arc<PendingRequest>>,
    ) -> Reach {
        let mut openings = self.openings.lock();
        let opening = &mut openings[lane];
        if opening.running_since.is_none() {
            let (now, back_off) = (self.node.clock.now(), self.node.config.back_off);
            if let Some(suspect) = opening.refused(now, back_off) {
                return suspect;
            }
            let member = Arc::clone(self);
            opening.running_since = Some(now);
            if let Err(fault) = connecting(move || member.open(lane)) {
                opening.end(Err(fault.clone()), now);
                return Reach::Suspect(fault, now + back_off);
            }
        }
        opening.waiting.extend(request.cloned());
        let is_slow = |since| self.node.clock.now() >= since + self.node.config.command_timeout;
        match &opening.failed {
            Some(failed) => Reach::Suspect(failed.fault.clone(), Time::NEVER),
            None if opening.running_since.is_some_and(is_slow) => {
                Reach::Suspect(StoreFault::timed_out(Step::Connect), Time::NEVER)
            }
            None => Reach::Opening,
        }
    }

    /// Opens a lane, on a thread that nobody joins.
    fn open(&self, lane: usize) {
        let opened = self.lanes.open_number(lane);
        let mut openings = self.openings.lock();
        let opening = &mut openings[lane];
        opening.end(opened, self.node.clock.now());
        let waiting = std::mem::take(&mut opening.waiting);
        drop(openings);
        for request in waiting {
            let _: Wake = request.note_change();
        }
        // A reader that waits must watch the new socket too.
        (self.interrupt)();
        if let Some(on_ready) = self.on_ready.get() {
            on_ready();
        }
    }

    pub(super) fn all_lanes(self: &Arc<Self>) -> impl Iterator<Item = (&Arc<Member>, usize)> {
        let count = self.openings.lock().len();
        (0..count).map(move |lane| (self, lane))
    }

    /// How the attempts to open all lanes ended; `None` while some of them go on.
    pub(super) fn all_opened(&self) -> Option<Result<(), StoreFault>> {
        let count = self.openings.lock().len();
        (0..count).try_fold(Ok(()), |all: Result<(), StoreFault>, lane| {
            let opened = self.opened(lane)?;
            Some(all.and(opened))
        })
    }

    /// How the attempt to open a lane ended; `None` while it goes on.
    pub(super) fn opened(&self, lane: usize) -> Option<Result<(), StoreFault>> {
        let openings = self.openings.lock();
        let opening = &openings[lane];
        opening
            .running_since
            .is_none()
            .then(|| match &opening.failed {
                None => Ok(()),
                Some(failed) => Err(failed.fault.clone()),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;

    #[test]
    fn slow_attempt_delays_the_next_by_no_more_than_a_back_off() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let back_off = Duration::from_millis(500);
        let mut opening = LaneOpening {
            running_since: Some(at(1_000)),
            ..LaneOpening::default()
        };
        opening.end(Err(StoreFault::timed_out(Step::Connect)), at(1_400));
        let next = opening.refused(at(1_499), back_off);
        assert!(matches!(next, Some(Reach::Suspect(_, again)) if again == at(1_500)));
        assert!(opening.refused(at(1_500), back_off).is_none());
    }
}
