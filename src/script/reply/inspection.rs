//! Reads what an inspect saw: who holds a lock, and who waits for it.

use std::time::Duration;

use redis::Value;

use super::fields::{ParseResult, flag, malformed, number, plain, previous, text, time_left};
use crate::loss::PreviousHolder;
use crate::script::{Family, params};

/// The result of an `inspect`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inspection {
    /// The server's time in µs when it looked. For a quorum: of the node whose holder this is.
    pub(crate) seen_at: u64,
    /// As the record has it.
    pub(crate) kind: String,
    pub(crate) fence: u64,
    pub(crate) holders: Vec<InspectedHolder>,
    pub(crate) waiters: u64,
    pub(crate) queue: Vec<InspectedWaiter>,
    /// How the last holder ended whose end the server has seen.
    pub(crate) previous: PreviousHolder,
    /// The fence of that holder. Only a node of a quorum says it.
    pub(crate) ended: u64,
    /// The ticket that was served last; 0 without a queue.
    pub(crate) served: u64,
}

impl Inspection {
    /// Adds the holders of the next page, unless they were on an earlier one. Returns how many
    /// there are now.
    pub(crate) fn add_page(&mut self, next: Inspection) -> usize {
        for holder in next.holders {
            if !self
                .holders
                .iter()
                .any(|seen| seen.request == holder.request)
            {
                self.holders.push(holder);
            }
        }
        self.holders.len()
    }
}

/// A holder, a lease that cools, or one that lapsed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InspectedHolder {
    pub(crate) cools: bool,
    pub(crate) fence: u64,
    pub(crate) granted_at: u64,
    pub(crate) left: Duration,
    /// If its time is over: for how long.
    pub(crate) lapsed_for: Option<Duration>,
    /// How many permits it has: 1 for a mutex.
    pub(crate) permits: u32,
    pub(crate) request: String,
}

/// A waiter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InspectedWaiter {
    pub(crate) request: String,
    /// How long ago its process last showed that it is alive, if that is known.
    pub(crate) last_heard: Option<Duration>,
}

pub(super) fn seen(
    family: Family,
    seen_at: u64,
    fields: &[Value],
    value: &Value,
) -> ParseResult<Inspection> {
    let seen = match family {
        // Users know both as a mutex.
        Family::Mutex | Family::Quorum => seen_of_mutex(family, fields, value),
        Family::Permit => seen_of_permits(fields, value),
    }?;
    Ok(Inspection { seen_at, ..seen })
}

fn seen_of_mutex(family: Family, fields: &[Value], value: &Value) -> ParseResult<Inspection> {
    let [
        owner,
        fence,
        at,
        left,
        how,
        request,
        label,
        waiters,
        last,
        queue @ ..,
    ] = fields
    else {
        return Err(malformed("seen with the fields of a mutex", value));
    };
    let last = number(last)?;
    let (served, ended) = match family {
        Family::Quorum => (0, last),
        Family::Mutex | Family::Permit => (last, 0),
    };
    let fence = number(fence)?;
    let (left, lapsed_for) = time_left(left)?;
    let cools = text(owner)?.is_empty();
    let holder = InspectedHolder {
        cools,
        fence,
        granted_at: number(at)?,
        left,
        lapsed_for,
        permits: 1,
        request: format!("{} {}", text(request)?, text(label)?),
    };
    // A lock that is free still has the request of its last owner.
    let is_free = cools && lapsed_for.is_some();
    Ok(Inspection {
        seen_at: 0,
        kind: "mutex/1".to_owned(),
        fence,
        holders: if is_free { Vec::new() } else { vec![holder] },
        waiters: number(waiters)?,
        queue: all_waiters(queue, |waiter| text(waiter).map(str::to_owned))?,
        previous: previous(how)?,
        ended,
        served,
    })
}

fn seen_of_permits(fields: &[Value], value: &Value) -> ParseResult<Inspection> {
    let wrong = || malformed("seen with the fields of permits", value);
    let [kind, fence, waiters, count, rest @ ..] = fields else {
        return Err(wrong());
    };
    let count = usize::try_from(number(count)?).ok();
    let length = count.and_then(|count| count.checked_mul(4));
    let (holders, rest) = length
        .and_then(|length| rest.split_at_checked(length))
        .ok_or_else(wrong)?;
    let [how, served, queue @ ..] = rest else {
        return Err(wrong());
    };
    let holders = holders.chunks(4).map(|holder| match holder {
        [left, cools, permits, text] => holder_of_permits(left, cools, permits, text),
        _ => Err(wrong()),
    });
    Ok(Inspection {
        seen_at: 0,
        kind: text(kind)?.to_owned(),
        fence: number(fence)?,
        holders: holders.collect::<ParseResult<_>>()?,
        waiters: number(waiters)?,
        queue: all_waiters(queue, |waiter| text(waiter).map(params::without_capacity))?,
        previous: previous(how)?,
        ended: 0,
        served: number(served)?,
    })
}

/// Each waiter's record, and then for how long nobody has heard of its process, or -1.
fn all_waiters(
    values: &[Value],
    request: impl Fn(&Value) -> ParseResult<String>,
) -> ParseResult<Vec<InspectedWaiter>> {
    let one = |pair: &[Value]| match pair {
        [record, Value::Int(micros)] => Ok(InspectedWaiter {
            request: request(record)?,
            last_heard: u64::try_from(*micros).ok().map(Duration::from_micros),
        }),
        _ => Err(malformed(
            "a waiter's record and a time",
            &Value::Array(pair.to_vec()),
        )),
    };
    values.chunks(2).map(one).collect()
}

/// The text is `kind capacity fence`, and then a request as a waiter's record has it.
fn holder_of_permits(
    left: &Value,
    cools: &Value,
    permits: &Value,
    holder: &Value,
) -> ParseResult<InspectedHolder> {
    let wrong = || malformed("a holder's kind, capacity, fence and request", holder);
    let mut parts = text(holder)?.splitn(4, ' ').skip(2);
    let fence = parts.next().and_then(plain).ok_or_else(wrong)?;
    let request = parts.next().ok_or_else(wrong)?;
    let granted_at = params::since_of(request);
    let (left, lapsed_for) = time_left(left)?;
    Ok(InspectedHolder {
        cools: flag(cools)?,
        fence,
        granted_at: granted_at.ok_or_else(wrong)?,
        left,
        lapsed_for,
        permits: u32::try_from(number(permits)?)
            .map_err(|_| malformed("a number of permits", permits))?,
        request: request.to_owned(),
    })
}
