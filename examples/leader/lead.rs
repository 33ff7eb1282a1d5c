//! A candidate, and what it does when it leads. Copy this file.

use std::time::Duration;

use fairlock::crossbeam_channel::{Receiver, select, tick};
use fairlock::{Error, LockGuard, LockManager, LossReason, PreviousHolder};

use super::Table;

/// How often a leader acts. This is so long that each leader acts once. So the example shows that a
/// leader learns of the loss without another act.
const EVERY: Duration = Duration::from_secs(60);

/// The row that the leaders work on. Its id is the name of the lock.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) rounds: u64,
}

/// A report of a candidate.
pub(crate) enum Event {
    Elected(PreviousHolder),
    /// It did this round.
    Acted(u64),
    /// A newer leader has begun, so an act was refused.
    Overtaken,
    Lost(LossReason),
}

/// A candidate's work, all its life.
pub(crate) fn run_candidate(
    mgr: &LockManager,
    plans: &Table<Plan>,
    name: &str,
    stop: &Receiver<()>,
    report: &dyn Fn(Event),
) -> fairlock::Result<()> {
    loop {
        let Some(guard) = await_lead(mgr, name, stop)? else {
            return Ok(());
        };
        report(Event::Elected(guard.previous_holder()));
        match lead(&guard, plans, stop, report) {
            Ok(End::Stopped) => return guard.unlock(),
            // Another candidate leads already. All that is left is to queue again.
            Ok(End::Overtaken) => report(Event::Overtaken),
            Err(Error::Lost { loss, .. }) => report(Event::Lost(loss.reason)),
            Err(other) => return Err(other),
        }
    }
}

/// Others may lead for weeks, so the wait ends when a message comes from `stop`. Then the waiter is
/// dropped, which leaves the queue. `None`: it was stopped.
fn await_lead(
    mgr: &LockManager,
    name: &str,
    stop: &Receiver<()>,
) -> fairlock::Result<Option<LockGuard>> {
    let mut waiter = mgr.enqueue(name)?;
    loop {
        select! {
            recv(stop) -> _ => return Ok(None),
            recv(waiter.ready()) -> _ => {}
        }
        // `None`: the lock was lost before this thread took it. The waiter is queued again.
        if let Some(guard) = waiter.wait_for(Duration::ZERO)? {
            return Ok(Some(guard));
        }
    }
}

pub(crate) enum End {
    /// A message came from `stop`.
    Stopped,
    /// A newer leader has claimed the plan.
    Overtaken,
}

/// Returns [`Error::Lost`] when the lock is lost.
pub(crate) fn lead(
    guard: &LockGuard,
    plans: &Table<Plan>,
    stop: &Receiver<()>,
    report: &dyn Fn(Event),
) -> fairlock::Result<End> {
    // First claim what the leaders work on. From here on the leader before us changes nothing, so
    // what we read stays true until we write.
    let claim = (guard.name(), guard.fence());
    if !plans.claim(guard.name(), guard.fence()) {
        return Ok(End::Overtaken);
    }
    let ticks = tick(EVERY);
    loop {
        // This check reads a clock. The message on `lost` may come a moment later.
        guard.check()?;
        let round = plans.read(guard.name()).rounds + 1;
        if !plans.write([claim], |[plan]| plan.rounds = round) {
            return Ok(End::Overtaken);
        }
        report(Event::Acted(round));
        select! {
            recv(guard.lost()) -> _ => guard.check()?,
            recv(stop) -> _ => return Ok(End::Stopped),
            recv(ticks) -> _ => {}
        }
    }
}
