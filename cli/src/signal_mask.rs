//! The signals that are blocked for a thread.

/// Unblocks all signals. Threads that start later inherit that.
///
/// Whatever starts this process may have blocked some, often by mistake: a signal that is blocked
/// would never arrive.
#[allow(unsafe_code, reason = "no safe call of a crate here unblocks a signal")]
pub(crate) fn unblock_all() {
    // SAFETY: the set is plain memory, which `sigemptyset` initializes. The second call changes the
    // mask of this thread only, and cannot fail with valid arguments.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Blocks SIGTTOU for this thread.
///
/// While the command has the terminal, this process is in its background. There, writing may stop
/// it (`stty tostop`). A stopped process renews no lock.
#[allow(unsafe_code, reason = "no safe call of a crate here blocks a signal")]
pub(crate) fn block_ttou() {
    // SAFETY: the set is plain memory, which `sigemptyset` initializes. The last call changes the
    // mask of this thread only, and cannot fail with valid arguments.
    unsafe {
        let mut ttou = std::mem::zeroed();
        libc::sigemptyset(&mut ttou);
        libc::sigaddset(&mut ttou, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &ttou, std::ptr::null_mut());
    }
}
