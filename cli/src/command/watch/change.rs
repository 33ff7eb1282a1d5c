//! The changes between two looks at a name.

use std::fmt;
use std::time::Duration;

use fairlock::{
    PreviousHolder,
    inspect::{Access, LockInfo, LockState, Party},
};
use serde::Serialize;

use crate::age;
use crate::output::name_in_json;
use crate::parties::all_holders;
use crate::times;

/// A change, and what the look that found it saw. docs/COMMAND_LINE.md has every field.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    event: Event,
    /// The one that got, lost or changed it. At the first look: the oldest holder.
    party: Option<Party>,
    state: Option<LockState>,
    previous_holder: Option<PreviousHolder>,
    waiters: Option<u64>,
    served: Option<u64>,
    error: Option<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Event {
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
    pub(super) fn unreachable(why: String) -> Change {
        Change {
            text: why.clone(),
            error: Some(why),
            ..Change::at(Event::Unreachable, None, "")
        }
    }

    pub(super) fn reachable(silent_for: Duration) -> Change {
        let text = format!("after {}", age::short(silent_for));
        Change {
            // The name may be free, but this line does not say so: the next ones do.
            state: None,
            waiters: None,
            ..Change::at(Event::Reachable, None, text)
        }
    }

    fn at(event: Event, look: Option<&LockInfo>, text: impl Into<String>) -> Change {
        let is_known = !matches!(event, Event::Unreachable | Event::Reachable);
        Change {
            event,
            party: None,
            state: is_known.then(|| look.map_or(LockState::Free, |look| look.state)),
            previous_holder: look.map(|look| look.previous_holder),
            waiters: is_known.then(|| look.map_or(0, |look| look.waiters)),
            served: look.map(|look| look.served),
            error: None,
            text: text.into(),
        }
    }

    fn of(event: Event, look: Option<&LockInfo>, party: &Party, more: &str) -> Change {
        Change {
            party: Some(party.clone()),
            ..Change::at(event, look, format!("{party}{more}"))
        }
    }

    /// One word for the line.
    pub(super) fn event(&self) -> String {
        match self.event {
            Event::FirstLook => "now".to_owned(),
            Event::QueueGrew | Event::QueueShrank => "queue".to_owned(),
            event => name_in_json(&event),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(super) fn first_look(look: Option<&LockInfo>) -> Change {
    let text = look.map_or("free".to_owned(), LockInfo::to_string);
    Change {
        party: look.and_then(times::oldest_holder).cloned(),
        ..Change::at(Event::FirstLook, look, text)
    }
}

/// Ends first, then grants, then the queue.
pub(super) fn changes(before: Option<&LockInfo>, after: Option<&LockInfo>) -> Vec<Change> {
    let (old, new) = (holders(before), holders(after));
    let mut changes = Vec::new();
    for party in &old {
        match new.iter().find(|other| is_same(party, other)) {
            None => changes.extend(end(before, after, party)),
            Some(now) => changes.extend(change(before, after, party, now)),
        }
    }
    for party in new {
        if !old.iter().any(|other| is_same(party, other)) {
            changes.push(start(before, after, party));
        }
    }
    changes.extend(queue_change(before, after));
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

/// A holder that is not shown any more.
fn end(before: Option<&LockInfo>, after: Option<&LockInfo>, party: &Party) -> Option<Change> {
    if party.lapsed_for.is_some() {
        // Its end was a line already. Only the name that it leaves free is a change.
        return after
            .is_none()
            .then(|| Change::at(Event::Freed, after, "its lapse is forgotten"));
    }
    // The line about the new holder says what became of it.
    if is_detached(before) && after.is_some_and(|look| look.state == LockState::Held)
        || is_detached(after)
    {
        return None;
    }
    if before.is_some_and(|look| look.state == LockState::Cooling) {
        return Some(Change::at(Event::Freed, after, "it no longer cools"));
    }
    let how = after.map_or(PreviousHolder::Unknown, |look| look.previous_holder);
    let was = before.map(|look| look.previous_holder);
    let event = match (party.access, how) {
        // The end of a reader leaves no trace.
        (Access::Reader, _) | (_, PreviousHolder::Unknown) => Event::Freed,
        // The permits of another holder may have left this trace, or an earlier look saw it.
        (Access::Permits { .. }, PreviousHolder::Lapsed) => Event::Freed,
        (Access::Permits { .. }, how) if Some(how) == was && how == PreviousHolder::Forced => {
            Event::Freed
        }
        (_, PreviousHolder::Released) => Event::Released,
        (_, PreviousHolder::Lapsed) => Event::Lapsed,
        (_, PreviousHolder::Forced) => Event::Forced,
        _ => Event::Freed,
    };
    let more = match event {
        // Redis keeps no trace of how it ended where nobody asks.
        Event::Freed => ", no longer holds it",
        _ => "",
    };
    Some(Change::of(event, after, party, more))
}

/// A holder that both looks show.
fn change(
    before: Option<&LockInfo>,
    after: Option<&LockInfo>,
    old: &Party,
    new: &Party,
) -> Option<Change> {
    let cools = |look: Option<&LockInfo>| look.is_some_and(|look| look.state == LockState::Cooling);
    match (old.lapsed_for, new.lapsed_for) {
        (None, Some(_)) => return Some(Change::of(Event::Lapsed, after, new, "")),
        (Some(_), None) => return Some(Change::of(Event::Regained, after, new, "")),
        _ => {}
    }
    if cools(after) && !cools(before) {
        return Some(cooling(after, new));
    }
    (old.access != new.access).then(|| {
        let more = format!(", until now {}", old.access);
        Change::of(Event::Changed, after, new, &more)
    })
}

/// A holder that the look before did not show.
fn start(before: Option<&LockInfo>, after: Option<&LockInfo>, party: &Party) -> Change {
    if party.lapsed_for.is_some() {
        return Change::of(Event::Lapsed, after, party, "");
    }
    if after.is_some_and(|look| look.state == LockState::Cooling) {
        return cooling(after, party);
    }
    if is_detached(after) {
        let left = after.map_or(Duration::ZERO, |look| look.time_left);
        let more = format!(", which has detached it, for {}", age::short(left));
        return Change::of(Event::Detached, after, party, &more);
    }
    let mut more = format!(", fence {}", party.fence.unwrap_or_default());
    if let (Some(before), Some(after)) = (before, after) {
        let served = after.served.saturating_sub(before.served);
        if served > 1 && after.holders.len() == 1 {
            more.push_str(&format!(", after {served} hand-overs since the last look"));
        }
    }
    Change::of(Event::Granted, after, party, &more)
}

fn is_detached(look: Option<&LockInfo>) -> bool {
    look.is_some_and(|look| look.state == LockState::Detached)
}

fn cooling(after: Option<&LockInfo>, party: &Party) -> Change {
    let left = after.map_or(Duration::ZERO, |look| look.time_left);
    let more = format!(": released, but kept from others for {}", age::short(left));
    Change::of(Event::Cooling, after, party, &more)
}

fn queue_change(before: Option<&LockInfo>, after: Option<&LockInfo>) -> Option<Change> {
    let waiters = |look: Option<&LockInfo>| look.map_or(0, |look| look.waiters);
    let (old, new) = (waiters(before), waiters(after));
    let (event, verb) = match new.cmp(&old) {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Greater => (Event::QueueGrew, "grew"),
        std::cmp::Ordering::Less => (Event::QueueShrank, "shrank"),
    };
    Some(Change::at(
        event,
        after,
        format!("{verb} from {old} to {new}"),
    ))
}
