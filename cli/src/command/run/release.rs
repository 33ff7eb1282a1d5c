//! The end of a run: the lock is released, and the exit code is decided.

use fairlock::Error;
use rustix::process::Signal;

use super::OnLoss;
use super::foreground::Foreground;
use super::lock::Held;
use super::messages::Messages;
use super::signals::{end_by, interrupt_our_group};
use super::supervisor::{Cut, Ended};
use super::tree::End;
use crate::exit::Exit;

/// Releases the lock of a command that has ended, and says with which code to exit.
pub(super) fn after(ended: &Ended, held: Held, on_loss: OnLoss, messages: &Messages) -> Exit {
    let name = held.name().to_owned();
    // A failure is an answer: the command ended by itself, in good order. A command that died, or
    // that was ended for its lock, may have left its work half done. The next holder learns of it.
    let is_whole = ended.cut.is_none() && matches!(ended.end, End::Code(_));
    let released = if is_whole {
        held.unlock()
    } else {
        held.abandon()
    };
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
