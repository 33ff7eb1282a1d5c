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

/// Runs `f` with SIGTTOU blocked for this thread: for calls that a process in the background of its
/// terminal may make only so.
///
/// While the command has the terminal, this process is in its background. There, writing may stop
/// it (`stty tostop`), and taking the terminal back would stop it always. A stopped process renews
/// no lock.
#[allow(unsafe_code, reason = "no safe call of a crate here blocks a signal")]
pub(crate) fn without_ttou<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are plain memory, which `sigemptyset` and the first `pthread_sigmask`
    // initialize. Both calls change the mask of this thread only, and cannot fail with valid
    // arguments.
    let before = unsafe {
        let mut ttou = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigemptyset(&mut ttou);
        libc::sigaddset(&mut ttou, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &ttou, &mut before);
        before
    };
    let result = f();
    // SAFETY: `before` is the mask that the kernel wrote above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
    result
}
