//! Renewals of several mutexes by one script call.

use redis::{Cmd, Value};

use super::registry::{self, VerbName};
use super::{Call, CallerId, Family, Verb};

/// The most names of one call. A name takes 4 to 7 µs of the server's time, most of it in the two
/// commands that read and write its record. No script call should take a millisecond.
pub(crate) const RENEWALS_LIMIT: usize = 64;

impl Call {
    /// Whether this and the other call are renewals that one script call can do together.
    pub(crate) fn is_renewed_with(&self, other: &Call) -> bool {
        let is_one = |call: &Call| call.spec.family == Family::Mutex && call.is_renewal();
        is_one(self) && is_one(other)
    }
}

/// The number of the script that renews several mutexes.
pub(crate) fn renewals_script_id() -> usize {
    registry::script_id(Family::Mutex, VerbName::RenewMany).expect("a row of the table")
}

/// The command that does these renewals of mutexes, until `not_after`: R5 (dated requests).
/// `by_source`: R20 (write order).
pub(crate) fn renewals_command<'a>(
    calls: impl ExactSizeIterator<Item = &'a Call> + Clone,
    caller_id: &CallerId,
    by_source: bool,
    not_after: u64,
) -> Cmd {
    let script = registry::script(renewals_script_id());
    let mut cmd = Cmd::with_capacity(2 * calls.len() + 8, 128 * calls.len());
    if by_source {
        cmd.arg("EVAL").arg(&script.source);
    } else {
        cmd.arg("EVALSHA").arg(&script.sha);
    }
    cmd.arg(calls.len());
    for call in calls.clone() {
        cmd.arg(call.key.record());
    }
    caller_id.append_to(&mut cmd);
    cmd.arg(not_after);
    for call in calls {
        if let Verb::Renew { token, .. } = &call.verb {
            token.append_to(&mut cmd);
        }
    }
    cmd
}

/// The reply to each of this many renewals, as if its call had been sent alone. An inner `None`:
/// the script did nothing about that name, or its record is damaged, and its call must be sent
/// alone. `None` if this is no reply to this many renewals.
pub(crate) fn split_renewals(calls: usize, reply: &Value) -> Option<Vec<Option<Value>>> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [status, now, more, fields @ ..] = &parts[..] else {
        return None;
    };
    // Each call came too late.
    if fields.is_empty() {
        return Some(vec![Some(reply.clone()); calls]);
    }
    let (pairs, wanted) = fields.split_at_checked(2 * calls)?;
    // The numbers of the records for which somebody waits, counted from 1.
    let mut is_wanted = vec![false; calls];
    for number in wanted {
        let Value::Int(number) = number else {
            return None;
        };
        let at = usize::try_from(*number).ok()?.checked_sub(1)?;
        *is_wanted.get_mut(at)? = true;
    }
    let alone = |(fields, is_wanted): (&[Value], bool)| {
        let is_done = matches!(fields, [Value::Int(1..), Value::Int(1..)]);
        is_done.then(|| {
            let parts = [status, now, more].into_iter().chain(fields).cloned();
            Value::Array(parts.chain([Value::Int(is_wanted.into())]).collect())
        })
    };
    Some(pairs.chunks(2).zip(is_wanted).map(alone).collect())
}
