//! The end of a run: the lock is released, and the exit code is decided.

use fairlock::{Error, LockManager};
use rustix::process::Signal;

use super::OnLoss;
use super::foreground::Foreground;
use super::lock::Held;
use super::messages::Messages;
use super::signals::{end_by, interrupt_our_group};
use super::supervisor::{Cut, Ended};
use super::tree::End;
use crate::exit::Exit;

/// How the lock is released.
pub(super) struct Release<'a> {
    pub(super) on_loss: OnLoss,
    pub(super) manager: &'a LockManager,
    /// `--hold-at-least` does not count for a command that failed.
    pub(super) only_after_success: bool,
}

impl Release<'_> {
    /// Releases the lock of a command that has ended, and says with which code to exit.
    pub(super) fn after(&self, ended: &Ended, held: Held, messages: &Messages) -> Exit {
        let name = held.name().to_owned();
        let released = self.release(ended, held);
        exit_of(ended, &name, released, self.on_loss, messages)
    }

    fn release(&self, ended: &Ended, held: Held) -> Result<(), Error> {
        let (name, fence) = (held.name().to_owned(), held.fence());
        // A failure is an answer: the command ended by itself, in good order. A command that died,
        // or that was ended for its lock, may have left its work half done. The next holder learns
        // of it.
        let is_whole = ended.cut.is_none() && matches!(ended.end, End::Code(_));
        if is_whole {
            held.unlock()?;
        } else {
            held.abandon()?;
        }
        let is_success = ended.cut.is_none() && ended.end == End::Code(0);
        if self.only_after_success && !is_success {
            // Without an answer, the lock is kept for its time.
            let _ = self.manager.force_release(&name, fence);
        }
        Ok(())
    }
}

/// The exit code of a run, which says what went wrong with its lock.
fn exit_of(
    ended: &Ended,
    name: &str,
    released: Result<(), Error>,
    on_loss: OnLoss,
    messages: &Messages,
) -> Exit {
    let of_signal = match ended.cut {
        Some(Cut::Signal(number)) => Some(number),
        _ => None,
    };
    let mut is_lost = ended.cut.is_some() && of_signal.is_none();
    match released {
        Ok(()) => {}
        Err(Error::Lost { loss, .. }) => {
            if !is_lost {
                messages.say(format!("{name}: the lock was lost: {}", loss.reason));
            }
            is_lost = true;
        }
        Err(error) => messages.say(format!(
            "{name}: not confirmed as released, so the ttl may have to end it: {error}"
        )),
    }
    let own = match ended.end {
        End::Code(code) => of_code(code),
        End::Signal(number) => Exit::of_signal(number),
    };
    // With `--on-loss ignore`, a command that failed says more than its lock.
    // The loss may have shown only now.
    let is_ignored = on_loss == OnLoss::Ignore && matches!(ended.cut, None | Some(Cut::Ignored));
    let says_more = is_ignored && own != Exit::OK;
    if is_lost && !says_more {
        return Exit::LOST;
    }
    if let Some(number) = of_signal {
        return Exit::of_signal(number);
    }
    if ended.by_ctrl_c {
        messages.flush();
        interrupt_our_group();
        return end_by(Signal::INT.as_raw(), Foreground::find().as_ref());
    }
    own
}

fn of_code(code: i32) -> Exit {
    // The kernel passes on 8 bits.
    Exit(u8::try_from(code).unwrap_or(Exit::INTERNAL.0))
}
