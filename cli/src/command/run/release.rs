//! The end of a run: the lock is released, and the exit code is decided.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use fairlock::{Error, LockManager};

use super::Run;
use super::lock::Held;
use super::signals::end_by_ctrl_c;
use crate::exit::Exit;

/// Releases the lock of a command that has ended, and says with which code to exit.
pub(super) fn after(
    run: &Run,
    (end, is_cut): (ExitStatus, bool),
    has_terminal: bool,
    held: Held,
    manager: &LockManager,
) -> Exit {
    let fence = held.fence();
    // A failure is an answer: the command ended by itself, in good order. A command that died, or
    // that was ended for its lock, may have left its work half done. The next holder learns of it.
    let is_whole = !is_cut && end.code().is_some();
    let released = held.release(!is_whole);
    let is_success = !is_cut && end.success();
    if released.is_ok() && run.only_after_success && !is_success {
        // Without an answer, the lock is kept for its time.
        let _ = manager.force_release(&run.name, fence);
    }
    let is_lost = matches!(released, Err(Error::Lost { .. }));
    if let Err(error) = released
        && !(is_lost && is_cut)
    {
        run.say(&format!("at the release: {error}"));
    }
    if is_cut || is_lost {
        return Exit::LOST;
    }
    if has_terminal && end.signal() == Some(libc::SIGINT) {
        end_by_ctrl_c();
    }
    match end.code() {
        // The kernel passes on 8 bits.
        Some(code) => Exit(u8::try_from(code).unwrap_or(Exit::INTERNAL.0)),
        None => Exit::of_signal(end.signal().unwrap_or_default()),
    }
}
