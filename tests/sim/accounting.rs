//! The invariants of a record after any request: each lease has its time, and the counts are right.

use super::breach::Breach;
use super::executed_call::ExecutedCall;
use super::model::Promise;
use super::record::{Accounting, Cooling, HolderView, RecordView};
use crate::script::{Grant, Mode, Outcome, Verb};

/// P1, P5: a grant and a renewal give a lease its full time and no more. No request shortens it.
///
/// R15 (clock went back): a request that looks at the holders shortens a lease from before the
/// step, so that it ends in its time.
pub(super) fn check_lease_times(
    clock: u64,
    before: &RecordView,
    after: &RecordView,
    executed: &ExecutedCall<'_>,
) -> Result<(), Breach> {
    // A look of several calls cuts each lease when it comes to its page.
    let is_looking = |record: &RecordView| record.accounting.as_ref().is_some_and(|a| a.is_looking);
    let looks = looks_at_holders(before, executed)
        && before.looks(clock)
        && !is_looking(before)
        && !is_looking(after);
    for holder in &after.holders {
        let full = clock + holder.ttl.max(holder.hold);
        let is_renewed = matches!(executed.outcome, Outcome::Renewed { .. })
            && matches!(executed.call.verb, Verb::Renew { token, .. } if token == holder.token);
        let (least, most) = match before.same(holder) {
            None => (full, full),
            Some(_) if is_renewed => (clock + holder.ttl, full),
            Some(before) if looks => (before.end.min(full), full),
            Some(before) => (before.end.min(full), before.end.max(full)),
        };
        if !(least..=most).contains(&holder.end) {
            let promise = if holder.end < least {
                Promise::Exclusion
            } else {
                Promise::Service
            };
            let said = format!(
                "the lease of {:?} ends at {}, and should end between {least} and {most}",
                holder.token, holder.end
            );
            return Err(Breach::new(promise, said));
        }
    }
    Ok(())
}

/// Whether the request looks at the holders when their next look is due. A request that only
/// repeats a grant does not.
fn looks_at_holders(before: &RecordView, executed: &ExecutedCall<'_>) -> bool {
    match (&executed.call.verb, executed.outcome) {
        (Verb::Release { .. }, Outcome::Granted(_)) => false,
        (Verb::Release { .. }, _) => true,
        (_, Outcome::Granted(grant)) => before.holder(grant.token).is_none(),
        (_, outcome) => matches!(
            outcome,
            Outcome::Waiting { .. } | Outcome::Synced { .. } | Outcome::Busy { .. } | Outcome::More
        ),
    }
}

/// R16 (hold_at_least): what cools is taken until its least time is over, and no longer.
///
/// R15 (clock went back): that time counts from the release at the latest.
pub(super) fn check_cooling(
    clock: u64,
    before: &RecordView,
    after: &RecordView,
    executed: &ExecutedCall<'_>,
) -> Result<(), Breach> {
    let Verb::Release {
        token, fence, mode, ..
    } = executed.call.verb
    else {
        return Ok(());
    };
    // Another mode leaves what cools from an earlier grant of the token.
    let may_cool =
        matches!(mode, Mode::Used | Mode::Lost | Mode::Unfinished) && after.holder(token).is_none();
    // A lease that the caller does not know does not cool.
    let is_known = |own: &&HolderView| fence == 0 || own.fence == fence;
    let own = before.holder(token).filter(is_known);
    let Some(own) = own.filter(|_| may_cool) else {
        return Ok(());
    };
    let rested = own.granted_at.min(clock) + own.hold;
    let is_its = |cooling: &&Cooling| cooling.token.is_none_or(|of| of == token);
    match after.cooling.iter().find(is_its) {
        Some(cooling) if cooling.end > rested => {
            let said = format!("{cooling:?} should end by {rested}");
            Err(Breach::new(Promise::Service, said))
        }
        _ => Ok(()),
    }
}

/// P6, R15 (clock went back): no answer says that more is left of a lease than its full time. Where
/// the answer is not about one lease, no lease is longer than `longest`.
pub(super) fn check_times_left(
    after: &RecordView,
    longest: u64,
    executed: &ExecutedCall<'_>,
) -> Result<(), Breach> {
    let mut own = None;
    let left = match executed.outcome {
        Outcome::Granted(grant) => {
            own = Some(grant);
            None
        }
        Outcome::Synced { owner, left, .. } => {
            own = owner.as_ref();
            Some(*left)
        }
        Outcome::Renewed { left, .. }
        | Outcome::Waiting { left, .. }
        | Outcome::Busy { left, .. } => Some(*left),
        _ => None,
    };
    for grant in own.into_iter().chain(executed.grants) {
        check_grant_left(after, grant)?;
    }
    match left.filter(|left| left.as_micros() > u128::from(longest)) {
        Some(left) => {
            let said = format!(
                "{:?} was answered that {left:?} are left",
                executed.call.verb
            );
            Err(Breach::new(Promise::Exclusion, said))
        }
        None => Ok(()),
    }
}

/// The same for one grant, as an answer or a message has it.
pub(super) fn check_grant_left(record: &RecordView, grant: &Grant) -> Result<(), Breach> {
    let full = record
        .holder(grant.token)
        .map_or(0, |holder| holder.ttl.max(holder.hold));
    if grant.left.as_micros() > u128::from(full) {
        let said = format!("{grant:?} has more time left than its {full} µs");
        return Err(Breach::new(Promise::Exclusion, said));
    }
    Ok(())
}

/// The counts by which scripts avoid looking at every holder and waiter are right.
pub(super) fn check_counts(record: &RecordView) -> Result<(), Breach> {
    if record.counted_waiters != record.waiter_records {
        let said = format!(
            "the record counts {} waiters' records, and there are {}",
            record.counted_waiters, record.waiter_records
        );
        return Err(Breach::new(Promise::Leftovers, said));
    }
    let Some(accounting) = &record.accounting else {
        return Ok(());
    };
    check_taken(record, accounting)?;
    check_shortest(record, accounting)?;
    check_next_look(record, accounting)
}

/// The holders have no more permits than there are, and as many as count as taken.
fn check_taken(record: &RecordView, accounting: &Accounting) -> Result<(), Breach> {
    let held = record.taken(0);
    let Accounting {
        capacity, taken, ..
    } = *accounting;
    if held > capacity {
        return Err(Breach::new(
            Promise::Exclusion,
            format!("{held} permits are held of {capacity}"),
        ));
    }
    if taken != held {
        let promise = if taken < held {
            Promise::Exclusion
        } else {
            Promise::Service
        };
        let said = format!("{taken} permits count as taken, and {held} are held");
        return Err(Breach::new(promise, said));
    }
    Ok(())
}

/// R15 (clock went back): scripts see it by the shortest lease.
fn check_shortest(record: &RecordView, accounting: &Accounting) -> Result<(), Breach> {
    let shortest = accounting.shortest;
    let is_shorter = |holder: &HolderView| holder.ttl.max(holder.hold) < shortest;
    // During a look it is about those that the look has seen.
    if !accounting.is_looking && record.holders.iter().any(is_shorter) {
        let said = format!(
            "the record notes {shortest} µs as the shortest lease of {:?}",
            record.holders
        );
        return Err(Breach::new(Promise::Service, said));
    }
    Ok(())
}

/// No holder lapses before scripts next look at the holders.
fn check_next_look(record: &RecordView, accounting: &Accounting) -> Result<(), Breach> {
    let look_from = accounting.look_from;
    let holders = record.holders.iter().map(|holder| holder.end);
    let cooling = record.cooling.iter().map(|cooling| cooling.end);
    match holders.chain(cooling).min() {
        Some(first) if !accounting.is_looking && (look_from == 0 || look_from > first) => {
            let said = format!(
                "a holder lapses at {first}, and scripts look only at {look_from}: {record:?}"
            );
            Err(Breach::new(Promise::Service, said))
        }
        _ => Ok(()),
    }
}
