//! The lines of one manager, under one mutex.

use std::collections::HashMap;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::state::LineState;
use crate::engine::{
    Acquiring, Engine, Lease, LeaseOwner, LostBy, Releasing, Request, WaiterEntry, WaiterOwner,
};
use crate::loss::Loss;
use crate::script::{Mode, Token};
use crate::sync::{Mutex, MutexGuard};

pub(super) type Line = LineState<Arc<WaiterEntry>, Arc<Lease>>;

/// Requests with the same key wait in the same line.
#[derive(PartialEq, Eq, Hash)]
struct LineKey {
    name: Arc<str>,
    ttl: Duration,
    max: u32,
}

impl LineKey {
    fn of(request: &Request) -> LineKey {
        LineKey {
            name: Arc::clone(&request.key.name),
            ttl: request.ttl,
            max: request.spare_fences,
        }
    }
}

/// All lines that have members, a place or a turn.
///
/// Order of mutexes: this one, then the registry's, then a waiter's state. It is never held over
/// I/O, a notification or a callback.
pub(crate) struct Lines {
    pub(super) acquiring: Arc<Acquiring>,
    pub(super) releasing: Arc<Releasing>,
    pub(super) owner: Arc<LinesOwner>,
    lines: Mutex<HashMap<LineKey, Line>>,
}

impl RefUnwindSafe for Lines {}

impl Lines {
    pub(super) fn new(engine: &Engine) -> Arc<Lines> {
        Arc::new_cyclic(|lines| Lines {
            acquiring: Arc::clone(engine.acquiring()),
            releasing: Arc::clone(engine.releasing()),
            owner: Arc::new(LinesOwner(Weak::clone(lines))),
            lines: Mutex::new(HashMap::new()),
        })
    }

    pub(super) fn lock(&self) -> LockedLines<'_> {
        LockedLines(self.lines.lock())
    }
}

/// The owner of the waiters and leases of all lines, as the engine calls it. They do not keep the
/// lines, because the lines keep them.
pub(super) struct LinesOwner(Weak<Lines>);

impl WaiterOwner for LinesOwner {
    fn on_change(&self, asking: &Arc<WaiterEntry>) {
        if let Some(lines) = self.0.upgrade() {
            lines.on_place_changed(asking);
        }
    }

    fn on_left(&self, caller: &WaiterEntry, given: Option<Arc<Lease>>) {
        let Some(lines) = self.0.upgrade() else {
            return;
        };
        match given {
            Some(turn) => lines.pass_on(&turn),
            None => lines.leave(caller),
        }
    }

    fn callers(&self, waiter: &WaiterEntry) -> Vec<Arc<WaiterEntry>> {
        let lines = self.0.upgrade();
        lines.map_or_else(Vec::new, |lines| lines.members_with(waiter))
    }

    fn position(&self, caller: &WaiterEntry) -> Option<u64> {
        self.0.upgrade()?.position_of(caller)
    }
}

impl LeaseOwner for LinesOwner {
    fn on_lost(&self, request: &Request, token: Token, loss: &Loss) -> LostBy {
        let lines = self.0.upgrade();
        let (mode, place) = lines.map_or((Mode::Unused, None), |lines| {
            lines.on_tenure_lost(request, token, loss.reason)
        });
        LostBy::Owner {
            mode,
            queue_first: place.map(|place| place.state.lock().token),
        }
    }
}

/// The lines, while this thread has their mutex.
pub(super) struct LockedLines<'a>(MutexGuard<'a, HashMap<LineKey, Line>>);

impl LockedLines<'_> {
    /// The line of a request, which may be new.
    pub(super) fn line(&mut self, request: &Request) -> &mut Line {
        let max = request.spare_fences;
        let line = self.0.entry(LineKey::of(request));
        line.or_insert_with(|| LineState::new(max))
    }

    /// The line of a request, if there is one.
    pub(super) fn known(&mut self, request: &Request) -> Option<&mut Line> {
        self.0.get_mut(&LineKey::of(request))
    }

    /// The line whose place this is.
    pub(super) fn line_of_place(&mut self, place: &WaiterEntry) -> Option<&mut Line> {
        let line = self.known(&place.request)?;
        let number = line.place().map(|(number, _)| number);
        (number == Some(place.order())).then_some(line)
    }

    /// The line that has the grant which this request got by this token.
    pub(super) fn line_of_tenure(&mut self, request: &Request, token: Token) -> Option<&mut Line> {
        let line = self.known(request)?;
        let held = line.tenure()?;
        (held.lease.token == token).then_some(line)
    }

    pub(super) fn forget_if_idle(&mut self, request: &Request) {
        let key = LineKey::of(request);
        if self.0.get(&key).is_some_and(LineState::is_idle) {
            self.0.remove(&key);
        }
    }
}
