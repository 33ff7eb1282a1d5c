//! Times as people read them. All of them are the server's: this machine's clock may be off.

use crate::defaults::DEFAULT_HORIZON;
use std::time::{Duration, SystemTime};

use fairlock::inspect::{LockInfo, Party};

use crate::age;
use crate::parties::all_holders;

/// `2026-11-23T03:20:11.123Z`.
pub(crate) fn moment(at: SystemTime) -> String {
    // Years that this format has no digits for come only from a broken clock.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(at.min(last)).to_string()
}

/// As the JSON has it: in seconds since the Unix epoch.
pub(crate) fn seconds(at: SystemTime) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// For how long this holder has held the lock, or had held it when its lease ended.
pub(crate) fn held(info: &LockInfo, holder: &Party) -> Duration {
    since(info, holder).saturating_sub(holder.lapsed_for.unwrap_or_default())
}

/// For how long this waiter has waited.
pub(crate) fn waited(info: &LockInfo, waiter: &Party) -> Duration {
    since(info, waiter)
}

/// The holder that has held the lock for the longest time. A lapsed one only if there is no other.
pub(crate) fn oldest_holder(info: &LockInfo) -> Option<&Party> {
    let by_age = |holder: &&Party| (holder.lapsed_for.is_some(), holder.since);
    all_holders(info).min_by_key(by_age)
}

/// The longest wait in the queue. `None` if nobody waits.
pub(crate) fn oldest_wait(info: &LockInfo) -> Option<Duration> {
    info.queue.iter().map(|waiter| waited(info, waiter)).max()
}

/// Whether Redis no longer hears of this waiter's process. No setting lets a process keep its
/// places for longer than two thirds of its ttl.
pub(crate) fn is_silent(waiter: &Party) -> bool {
    let longest = DEFAULT_HORIZON.max(waiter.ttl * 2 / 3);
    waiter.last_heard.is_none_or(|ago| ago > longest)
}

/// When a waiter's process was last heard of: `0.4s ago`, `12m ago, silent`, or `silent`.
pub(crate) fn heard(waiter: &Party) -> String {
    let ago = waiter
        .last_heard
        .map(|ago| format!("{} ago", age::short(ago)));
    match (ago, is_silent(waiter)) {
        (Some(ago), false) => ago,
        (Some(ago), true) => format!("{ago}, silent"),
        (None, _) => "silent".to_owned(),
    }
}

/// The waiter whose process was heard of last.
pub(crate) fn last_heard(info: &LockInfo) -> Option<&Party> {
    let ago = |waiter: &&Party| waiter.last_heard.unwrap_or(Duration::MAX);
    info.queue.iter().min_by_key(ago)
}

/// Whether anybody waits who may be alive. Of a very long queue only the first part is known.
pub(crate) fn is_awaited(info: &LockInfo) -> bool {
    info.waiters > info.queue.len() as u64 || info.queue.iter().any(|waiter| !is_silent(waiter))
}

/// How many of the waiters are silent.
pub(crate) fn silent(info: &LockInfo) -> usize {
    info.queue.iter().filter(|waiter| is_silent(waiter)).count()
}

fn since(info: &LockInfo, party: &Party) -> Duration {
    // After a step of the server's clock, `since` can be in the future.
    info.seen_at.duration_since(party.since).unwrap_or_default()
}
