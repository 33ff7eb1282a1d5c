//! The holders of a lock, and the waiters in its queue.

use fairlock::{LockInfo, LockState, Party};

/// Whether somebody holds it, or waits for it.
pub(super) fn is_in_use(info: &LockInfo) -> bool {
    info.waiters > 0 || matches!(info.state, LockState::Held | LockState::Cooling)
}

/// The holders that have not lapsed, and do not only cool.
pub(super) fn live_holders(info: &LockInfo) -> impl Iterator<Item = &Party> {
    let is_held = info.state == LockState::Held;
    let holders = info.holders.iter();
    holders.filter(move |holder| is_held && holder.lapsed_for.is_none())
}

/// A place in a queue. The position counts from 1.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) lock: &'a LockInfo,
    pub(super) position: usize,
    pub(super) waiter: &'a Party,
}

/// All places in the queue of a lock.
pub(super) fn places(lock: &LockInfo) -> impl Iterator<Item = Place<'_>> {
    lock.queue
        .iter()
        .zip(1..)
        .map(move |(waiter, position)| Place {
            lock,
            position,
            waiter,
        })
}

/// Whether both are the same thread: surely, maybe (`false`), or not at all (`None`).
///
/// The same manager and the same number are the same thread. Another manager may be in the same
/// process. But processes in containers can have the same host name and the same numbers. A version
/// that writes no numbers leaves the name of the thread, which others may have, too.
pub(super) fn is_same_thread(holder: &Party, waiter: &Party) -> Option<bool> {
    let is_same_manager = holder.manager == waiter.manager;
    match (holder.thread_id, waiter.thread_id) {
        (Some(one), Some(other)) => (one == other).then_some(is_same_manager),
        _ => (is_same_manager && holder.thread == waiter.thread).then_some(false),
    }
}
