//! The end of a run: the lock is released, and the exit code is decided.

use std::os::unix::process::ExitStatusExt as _;

use fairlock::{Error, LockManager};

use super::lock::Held;
use super::signals::end_by_ctrl_c;
use super::supervisor::{Cut, Ended};
use super::{OnLoss, Run};
use crate::exit::Exit;

/// Releases the lock of a command that has ended, and says with which code to exit.
pub(super) fn after(run: &Run, ended: &Ended, held: Held, manager: &LockManager) -> Exit {
    let fence = held.fence();
    // A failure is an answer: the command ended by itself, in good order. A command that died, or
    // that was ended for its lock, may have left its work half done. The next holder learns of it.
    let is_whole = ended.cut.is_none() && ended.end.code().is_some();
    let released = held.release(!is_whole);
    let is_success = ended.cut.is_none() && ended.end.success();
    if released.is_ok() && run.only_after_success && !is_success {
        // Without an answer, the lock is kept for its time.
        let _ = manager.force_release(&run.name, fence);
    }
    let mut is_lost = matches!(ended.cut, Some(Cut::Lock | Cut::Ignored));
    match released {
        Ok(()) => {}
        Err(Error::Lost { loss, .. }) => {
            if !is_lost {
                run.say(&format!("the lock was lost: {}", loss.reason));
            }
            is_lost = true;
        }
        Err(error) => run.say(&format!(
            "not confirmed as released, so the ttl may have to end it: {error}"
        )),
    }
    let own = match ended.end.code() {
        // The kernel passes on 8 bits.
        Some(code) => Exit(u8::try_from(code).unwrap_or(Exit::INTERNAL.0)),
        None => Exit::of_signal(ended.end.signal().unwrap_or_default()),
    };
    // With `--on-loss ignore`, a command that failed says more than its lock. The loss may have
    // shown only now.
    let is_ignored =
        run.on_loss == OnLoss::Ignore && matches!(ended.cut, None | Some(Cut::Ignored));
    if is_lost && !(is_ignored && own != Exit::OK) {
        return Exit::LOST;
    }
    if let Some(Cut::Signal(number)) = ended.cut {
        return Exit::of_signal(number);
    }
    if ended.by_ctrl_c {
        end_by_ctrl_c();
    }
    own
}
