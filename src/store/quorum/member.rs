//! One node of a quorum, and how its lanes are opened without anybody's waiting for it.

use std::sync::{Arc, OnceLock};

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
    is_running: bool,
    /// Why the last connection failed, and when.
    failed: Option<(Time, StoreFault)>,
    /// They want to know when it is over.
    waiting: Vec<Arc<PendingRequest>>,
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
        self.end_overdue(lane);
        match self.lanes.readiness(call) {
            Readiness::Ready => Reach::Open,
            Readiness::NeedsRights => Reach::NeedsRights,
            Readiness::Closed => self.begin_opening(lane, request),
        }
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
        self.openings.lock()[lane].failed = Some((self.node.clock.now(), hung));
    }

    /// Has a thread open a lane, unless one does or the last attempt has just failed.
    pub(super) fn begin_opening(
        self: &Arc<Self>,
        lane: usize,
        request: Option<&Arc<PendingRequest>>,
    ) -> Reach {
        let mut openings = self.openings.lock();
        let opening = &mut openings[lane];
        let now = self.node.clock.now();
        if !opening.is_running {
            if let Some((at, fault)) = &opening.failed
                && now < *at + self.node.config.back_off
            {
                return Reach::Suspect(fault.clone(), *at + self.node.config.back_off);
            }
            let member = Arc::clone(self);
            if let Err(fault) = connecting(move || member.open(lane)) {
                opening.failed = Some((now, fault.clone()));
                return Reach::Suspect(fault, now + self.node.config.back_off);
            }
            opening.is_running = true;
        }
        opening.waiting.extend(request.cloned());
        match &opening.failed {
            None => Reach::Opening,
            Some((_, fault)) => Reach::Suspect(fault.clone(), Time::NEVER),
        }
    }

    /// Opens a lane, on a thread that nobody joins.
    fn open(&self, lane: usize) {
        let opened = self.lanes.open_number(lane);
        let mut openings = self.openings.lock();
        let opening = &mut openings[lane];
        opening.is_running = false;
        opening.failed = opened.err().map(|fault| (self.node.clock.now(), fault));
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
        (!opening.is_running).then(|| match &opening.failed {
            None => Ok(()),
            Some((_, fault)) => Err(fault.clone()),
        })
    }
}
