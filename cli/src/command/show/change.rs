//! The changes between two looks at a name.

use std::cmp::Ordering;

use fairlock::{
    PreviousHolder,
    inspect::{Kind, LockInfo, LockState, Party},
};
use serde::Serialize;

use crate::parties::all_holders;
use crate::times;

/// A change, and what the look that found it saw. docs/COMMAND_LINE.md has every field.
#[derive(Debug, Default, Serialize)]
pub(super) struct Change {
    pub(super) event: Event,
    /// The one that got, lost or changed it. At the first look: the oldest holder.
    party: Option<Party>,
    state: Option<LockState>,
    previous_holder: Option<PreviousHolder>,
    waiters: Option<u64>,
    served: Option<u64>,
    error: Option<String>,
    #[serde(skip)]
    pub(super) text: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    #[default]
    FirstLook,
    Granted,
    Regained,
    Changed,
    Released,
    Forced,
    Lapsed,
    Freed,
    Detached,
    Cooling,
    QueueGrew,
    QueueShrank,
    Unreachable,
    Reachable,
}

impl Change {
    /// The begin of an outage, with its reason, or its end. Nobody knows the state of the name.
    pub(super) fn outage(error: Option<String>) -> Change {
        let event = error
            .as_ref()
            .map_or(Event::Reachable, |_| Event::Unreachable);
        Change {
            event,
            text: error.clone().unwrap_or_default(),
            error,
            ..Change::default()
        }
    }

    fn at(look: Option<&LockInfo>, event: Event, party: Option<&Party>, text: String) -> Change {
        Change {
            event,
            party: party.cloned(),
            state: Some(look.map_or(LockState::Free, |look| look.state)),
            previous_holder: look.map(|look| look.previous_holder),
            waiters: Some(look.map_or(0, |look| look.waiters)),
            served: look.map(|look| look.served),
            text,
            ..Change::default()
        }
    }
}

pub(super) fn first_look(look: Option<&LockInfo>) -> Change {
    let text = look.map_or("free".to_owned(), LockInfo::to_string);
    let oldest = look.and_then(times::oldest_holder);
    Change::at(look, Event::FirstLook, oldest, text)
}

/// Ends first, then grants, then the queue.
pub(super) fn changes(before: Option<&LockInfo>, after: Option<&LockInfo>) -> Vec<Change> {
    let (old, new) = (holders(before), holders(after));
    let of = |event: Event, party: &Party| {
        let text = format!("{party}, fence {}", party.fence.unwrap_or_default());
        Change::at(after, event, Some(party), text)
    };
    let mut changes = Vec::new();
    for party in &old {
        if !new.iter().any(|other| is_same(party, other)) {
            changes.extend(end(before, after, party).map(|event| of(event, party)));
        }
    }
    for party in &new {
        let was = old.iter().find(|other| is_same(party, other));
        let hold = |look, party: &Party| (state_of(look, party), party.shared, party.permits);
        let event = step(was.map(|was| hold(before, was)), hold(after, party));
        changes.extend(event.map(|event| of(event, party)));
    }
    let waiters = |look: Option<&LockInfo>| look.map_or(0, |look| look.waiters);
    let queue = match waiters(before).cmp(&waiters(after)) {
        Ordering::Equal => None,
        Ordering::Less => Some(Event::QueueGrew),
        Ordering::Greater => Some(Event::QueueShrank),
    };
    changes.extend(queue.map(|event| {
        let text = format!("from {} to {}", waiters(before), waiters(after));
        Change::at(after, event, None, text)
    }));
    changes
}

fn holders(look: Option<&LockInfo>) -> Vec<&Party> {
    look.into_iter().flat_map(all_holders).collect()
}

/// Whether this is the same grant. Readers share a fence, but not the time of the grant.
fn is_same(a: &Party, b: &Party) -> bool {
    let grant = |party: &Party| (party.fence, party.since, party.pid);
    grant(a) == grant(b) && a.manager == b.manager && a.thread == b.thread
}

/// The words of a look about one of the holders that it shows.
fn state_of(look: Option<&LockInfo>, party: &Party) -> LockState {
    match (party.lapsed_for, look) {
        (Some(_), _) => LockState::Lapsed,
        (None, look) => look.map_or(LockState::Free, |look| look.state),
    }
}

/// The end of a holder that is not shown any more.
fn end(before: Option<&LockInfo>, after: Option<&LockInfo>, party: &Party) -> Option<Event> {
    let was = state_of(before, party);
    // Its end was a line already, or the line about the next holder says it.
    let is_said = after.is_some_and(|after| match was {
        LockState::Lapsed => true,
        LockState::Detached => after.state == LockState::Held,
        _ => after.state == LockState::Detached,
    });
    // The end of a reader leaves no trace, and that of permits may be another holder's.
    let is_permits = before.is_some_and(|look| matches!(look.kind, Kind::Semaphore { .. }));
    let is_alone = !party.shared && !is_permits;
    let how = after.filter(|_| is_alone && was == LockState::Held);
    let event = match how.map(|look| look.previous_holder) {
        Some(PreviousHolder::Released) => Event::Released,
        Some(PreviousHolder::Lapsed) => Event::Lapsed,
        Some(PreviousHolder::Forced) => Event::Forced,
        // Redis keeps no trace of how it ended where nobody asks.
        _ => Event::Freed,
    };
    (!is_said).then_some(event)
}

/// The state of a holder, whether it is a reader, and its permits.
type Hold = (LockState, bool, u32);

/// The change of a holder that is shown, from what it was in the look before, if it was shown
/// there.
fn step(was: Option<Hold>, is: Hold) -> Option<Event> {
    match (was, is.0) {
        (Some(was), _) if was == is => None,
        (Some((old, ..)), new) if old == new => Some(Event::Changed),
        (_, LockState::Lapsed) => Some(Event::Lapsed),
        (_, LockState::Cooling) => Some(Event::Cooling),
        (_, LockState::Detached) => Some(Event::Detached),
        (Some((LockState::Lapsed, ..)), _) => Some(Event::Regained),
        _ => Some(Event::Granted),
    }
}
