//! What the log says of a wait: that its own thread has the lock, and that it lasts. A logger that
//! blocks must not keep the thread from its turn, so both are queued, and name the thread.

use std::thread;
use std::time::Duration;

use crate::engine::lease::{EngineId, first_wait_for_own};
use crate::engine::request::Request;
use crate::engine::waiter::WaiterEntry;
use crate::logging::{self, Logger};
use crate::script::Family;
use crate::store::clock::Time;
use crate::time_text::measured;

/// This thread begins to wait. If it took the lock itself, nobody can give it the lock, unless the
/// guard has gone to another thread.
pub(super) fn warn_of_own_lock(engine: EngineId, request: &Request, now: Time) {
    let waits_for = |permits| request.spec.may_wait_for(permits);
    let Some(own) = first_wait_for_own(engine, &request.key.name, now, waits_for) else {
        return;
    };
    let instead = match request.spec.family {
        Family::Permit => "",
        Family::Mutex | Family::Quorum => ", or use reentrant_mutex",
    };
    let _queues = logging::queue_here();
    log::warn!(
        logger: Logger,
        "a thread waits for {:?}{}, which it took itself{}: drop that guard first{instead}, unless another thread has it by now",
        request.key.name,
        details([thread(), label(request.label()), None]),
        details([
            None,
            label(own.request.label()),
            Some(format!("fence {}", own.fence()))
        ])
    );
}

/// Called without a mutex: the owner of a waiter knows its position.
pub(super) fn warn_of_long_wait(waiter: &WaiterEntry, waited: Duration) {
    let position = waiter
        .position()
        .map(|position| format!("position {position}"));
    let _queues = logging::queue_here();
    log::warn!(
        logger: Logger,
        "waited {} for {:?}{}",
        measured(waited),
        waiter.request.key.name,
        details([thread(), label(waiter.request.label()), position])
    );
}

fn thread() -> Option<String> {
    let name = thread::current().name()?.to_owned();
    Some(format!("thread {name:?}"))
}

fn label(label: &str) -> Option<String> {
    (!label.is_empty()).then(|| format!("label {label:?}"))
}

/// ` (label "nightly", fence 7)`, or nothing if there is none of them.
fn details(parts: [Option<String>; 3]) -> String {
    let present: Vec<String> = parts.into_iter().flatten().collect();
    if present.is_empty() {
        return String::new();
    }
    format!(" ({})", present.join(", "))
}
