//! Local hand-overs: the waiters of a line have the lock one after the other, without Redis.
//!
//! A member of a line is a waiter like any other, but its token is never sent. The line's place is
//! one more waiter, and the only one that Redis and the renewal thread's syncs know. No thread waits
//! for the place: when it is granted, the first member gets a turn, and is woken.
//!
//! `state` is the machine that decides. `turns` changes who has the lock, `places` changes what waits
//! in Redis's queue. Both return what is to be sent, and who is to be woken, since neither may happen
//! under the mutex of the lines.

mod places;
mod state;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::lease::Lease;
use crate::engine::request::Request;
use crate::engine::waiter::{WaiterEntry, WaiterRegistry};
use crate::sync::{Mutex, MutexGuard};

use state::LineState;
pub(crate) use turns::{Ended, GrantedPlace, Leaving};

type Line = LineState<Arc<WaiterEntry>, Arc<Lease>>;

/// Requests with the same key wait in the same line.
#[derive(PartialEq, Eq, Hash)]
struct LineKey {
    name: Arc<str>,
    ttl: Duration,
    local_handovers: u32,
}

impl LineKey {
    fn of(request: &Request) -> LineKey {
        LineKey {
            name: Arc::clone(&request.key.name),
            ttl: request.ttl,
            local_handovers: request.local_handovers,
        }
    }
}

/// All lines that have members, a place or a turn.
///
/// Order of mutexes: this one, then the registry's, then a waiter's state. It is never held over
/// I/O, a notification or a callback.
pub(crate) struct Lines {
    registry: Arc<WaiterRegistry>,
    lines: Mutex<HashMap<LineKey, Line>>,
}

impl Lines {
    pub(crate) fn new(registry: &Arc<WaiterRegistry>) -> Lines {
        Lines {
            registry: Arc::clone(registry),
            lines: Mutex::new(HashMap::new()),
        }
    }

    fn lock(&self) -> LockedLines<'_> {
        LockedLines(self.lines.lock())
    }
}

/// The lines, while this thread has their mutex.
struct LockedLines<'a>(MutexGuard<'a, HashMap<LineKey, Line>>);

impl LockedLines<'_> {
    /// The line of a request, which may be new.
    fn line(&mut self, request: &Request) -> &mut Line {
        let max = request.local_handovers;
        let line = self.0.entry(LineKey::of(request));
        line.or_insert_with(|| LineState::new(max))
    }

    /// The line of a request, if there is one.
    fn known(&mut self, request: &Request) -> Option<&mut Line> {
        self.0.get_mut(&LineKey::of(request))
    }

    /// The line whose place this is.
    fn line_of_place(&mut self, place: &WaiterEntry) -> Option<&mut Line> {
        let line = self.known(&place.request)?;
        let number = line.place().map(|(number, _)| number);
        (number == Some(place.order())).then_some(line)
    }

    /// The line that has this grant.
    fn line_of_tenure(&mut self, tenure: &Arc<Lease>) -> Option<&mut Line> {
        let line = self.known(&tenure.request)?;
        let held = line.tenure()?;
        Arc::ptr_eq(&held.lease, tenure).then_some(line)
    }

    fn forget_if_idle(&mut self, request: &Request) {
        let key = LineKey::of(request);
        if self.0.get(&key).is_some_and(LineState::is_idle) {
            self.0.remove(&key);
        }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
