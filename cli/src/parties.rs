//! The holders of a lock, and the waiters in its queue.

use fairlock::inspect::{Kind, LockInfo, LockState, Party};

/// Whether somebody holds it, or waits for it.
pub(crate) fn is_in_use(info: &LockInfo) -> bool {
    info.waiters > 0 || is_taken(info.state)
}

/// Whether others have to wait for it.
pub(crate) fn is_taken(state: LockState) -> bool {
    matches!(
        state,
        LockState::Held | LockState::Detached | LockState::Cooling
    )
}

/// The holders that have not lapsed, and do not only cool.
pub(crate) fn live_holders(info: &LockInfo) -> impl Iterator<Item = &Party> {
    let is_held = info.state == LockState::Held;
    info.holders.iter().filter(move |_| is_held)
}

/// The holders, and behind them those that lapsed.
pub(crate) fn all_holders(info: &LockInfo) -> impl Iterator<Item = &Party> {
    info.holders.iter().chain(&info.lapsed)
}

/// The fence of a holder. The readers of a lock share that of the lock.
pub(crate) fn fence_of(lock: &LockInfo, holder: &Party) -> u64 {
    holder.fence.unwrap_or(lock.fence)
}

/// Whether the process of each holder keeps the lock after a guard. So perhaps nobody uses it now.
pub(crate) fn is_kept(info: &LockInfo) -> bool {
    let mut holders = live_holders(info).peekable();
    holders.peek().is_some() && holders.all(|holder| holder.keeps)
}

/// The cells of a holder or a waiter in a table: label, host, process, thread, and how it holds or
/// wants the lock.
pub(crate) fn cells(kind: &Kind, party: &Party) -> [String; 5] {
    [
        party.label.clone(),
        party.host.clone(),
        party.pid.to_string(),
        // As log lines have it.
        format!("{}#{}", party.thread, party.thread_id),
        // The owner of a mutex has no other way to hold it.
        match (kind, party.permits) {
            (Kind::RwLock, _) if party.shared => "reader".to_owned(),
            (Kind::RwLock, _) => "writer".to_owned(),
            (Kind::Semaphore { .. }, 1) => "1 permit".to_owned(),
            (Kind::Semaphore { .. }, permits) => format!("{permits} permits"),
            _ => String::new(),
        },
    ]
}

/// Whether both are the same thread: surely, maybe (`false`), or not at all (`None`).
///
/// The same manager and the same number are the same thread. Another manager may be in the same
/// process. But processes in containers can have the same host name and the same numbers. A
/// process that passes the lock from guard to guard says which thread had it first, or waited
/// first. If it keeps the lock, any of its threads may have it.
pub(crate) fn is_same_thread(holder: &Party, waiter: &Party) -> Option<bool> {
    let is_same_manager = holder.manager == waiter.manager;
    let is_same_process = (&holder.host, holder.pid) == (&waiter.host, waiter.pid);
    (is_same_manager || is_same_process).then_some(())?;
    if holder.keeps {
        return Some(false);
    }
    let is_known = is_same_manager && !holder.hands_over && !waiter.hands_over;
    (holder.thread_id == waiter.thread_id).then_some(is_known)
}
