//! What must hold of a record whatever was asked: that each lease has its time, and that what is counted is right.

use super::judge::{Broken, Ran};
use super::model::Promise;
use super::record::{Books, Record};
use crate::script::{Outcome, Verb};

/// P1, P5: a grant and a renewal give a lease its full time and no more, nothing takes any of it, and whoever waits
/// sees to it that one from before the clock went back ends in its time (R15).
pub(super) fn has_its_time(
    clock: u64,
    before: &Record,
    after: &Record,
    ran: &Ran<'_>,
) -> Result<(), Broken> {
    let waits = matches!(
        ran.outcome,
        Outcome::Waiting { .. } | Outcome::Synced { .. }
    );
    let looks = waits && before.looks(clock);
    for holder in &after.holders {
        let full = clock + holder.ttl.max(holder.hold);
        let is_renewed = matches!(ran.call.verb, Verb::Renew { token } if token == holder.token);
        let (least, most) = match before.same(holder) {
            None => (full, full),
            Some(_) if is_renewed => (clock + holder.ttl, full),
            Some(before) => (
                before.end.min(full),
                if looks { full } else { before.end.max(full) },
            ),
        };
        if !(least..=most).contains(&holder.end) {
            let said = format!(
                "the lease of {:?} ends at {}, and not from {least} to {most}",
                holder.token, holder.end
            );
            return Err((
                if holder.end < least {
                    Promise::Exclusion
                } else {
                    Promise::Service
                },
                said,
            ));
        }
    }
    Ok(())
}

/// What is counted of holders, so that hardly any request has to look at them: no more permits are taken than there are,
/// none is counted that nobody has, but for those of holders that were lost, and nobody lapses unseen.
pub(super) fn are_right(record: &Record, missing: u32) -> Result<(), Broken> {
    let (counted, waiters) = record.waiters;
    if counted != waiters {
        return Err((
            Promise::Leftovers,
            format!("{counted} waiters' records are counted of {waiters}"),
        ));
    }
    let Some(Books {
        capacity,
        taken,
        look_from,
        shortest,
    }) = record.books
    else {
        return Ok(());
    };
    let held = record.taken(0);
    if held > capacity {
        return Err((
            Promise::Exclusion,
            format!("{held} permits are held of {capacity}"),
        ));
    }
    if taken != held + missing {
        let promise = if taken < held {
            Promise::Exclusion
        } else {
            Promise::Service
        };
        return Err((
            promise,
            format!("{taken} permits are counted as taken, of {held} and {missing} that were lost"),
        ));
    }
    // By it whoever looks sees that the clock went back.
    if record
        .holders
        .iter()
        .any(|holder| holder.ttl.max(holder.hold) < shortest)
    {
        return Err((
            Promise::Service,
            format!(
                "{shortest} µs are noted as the shortest lease of {:?}",
                record.holders
            ),
        ));
    }
    let ends = record
        .holders
        .iter()
        .map(|holder| holder.end)
        .chain(record.cooling.iter().map(|cooling| cooling.end));
    match ends.min() {
        Some(first) if look_from == 0 || look_from > first => {
            let said = format!("nobody looks for who lapses at {first} before {look_from}");
            Err((Promise::Service, said))
        }
        _ => Ok(()),
    }
}
