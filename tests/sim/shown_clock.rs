//! A clock that shows what the simulator writes into it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, never};

use crate::store::attendants::Attendants;
use crate::store::clock::{Clock, Sleepers, Time, TimeSource};

/// The time in ns.
#[derive(Debug)]
struct ShownClock(Arc<AtomicU64>);

/// A clock that shows this number of ns, whatever the host's clock says. Nobody may sleep by it.
pub(crate) fn shown_clock(ns: Arc<AtomicU64>) -> Clock {
    Clock::from_source(Arc::new(ShownClock(ns)))
}

impl TimeSource for ShownClock {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn next_jump(&self) -> Receiver<Infallible> {
        never()
    }

    fn on_jump(&self, _: Weak<dyn Sleepers>) {}

    fn attendants(&self) -> Option<&Arc<Attendants>> {
        None
    }
}
