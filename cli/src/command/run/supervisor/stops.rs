//! Stops of the command, and of this process with it: Ctrl-Z, `fg` and `bg`.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};

use super::super::OnLoss;
use super::super::foreground::Foreground;
use super::{Stage, Supervisor};
use crate::age::short;
use crate::job;

/// The longest wait at a suspension.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HadTerminal {
    Yes,
    No,
}

impl Supervisor<'_> {
    /// The command was stopped by this signal.
    pub(super) fn on_stop(&mut self, signal: Signal) {
        self.is_stopped = true;
        let Some(foreground) = &self.foreground else {
            return;
        };
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        let can_be_continued = job::can_be_continued();
        if self.stage != Stage::Running || signal == Signal::STOP && !foreground.is_away() {
            // Somebody else stopped it, and will continue it. The lock is renewed meanwhile.
        } else if wants_terminal
            && foreground.give_to_reader(self.tree.group())
            // Ctrl-Z came after that stop. CONT would undo it, as it does one that comes just now.
            && !(can_be_continued && self.tree.has_pending(Signal::TSTP))
        {
            self.continue_command();
        } else if can_be_continued {
            // Programs that draw on the terminal often handle TSTP and then stop by STOP, as an
            // inner fairlock does. While they have the terminal, nobody else can type.
            self.suspend();
        } else if wants_terminal {
            self.say("the command needs the terminal, cannot have it, and is ended");
            self.terminate();
            // A stopped process does not see TERM.
            self.continue_command();
        } else {
            // No shell is there that could continue it.
            self.continue_command();
        }
    }

    /// Stops this process, its group and all processes of the command. So the shell takes over.
    fn suspend(&mut self) {
        // It may be that only the command itself has stopped, and not all that it started. Nobody
        // renews the lock for the rest, which may be in another group.
        let sent = self.tree.stop(self.patience());
        self.check_sent(Signal::STOP, sent);
        if !self.has_warned {
            self.has_warned = true;
            let left = short(self.held.remaining());
            self.say(&format!(
                "stopped: the lock will be lost in {left} unless the command continues"
            ));
        }
        let had = self.foreground.as_ref().is_some_and(Foreground::is_given);
        if let Some(foreground) = &self.foreground {
            foreground.take_back();
        }
        self.suspended = Some(if had {
            HadTerminal::Yes
        } else {
            HadTerminal::No
        });
        self.messages.flush();
        // The whole group, as the terminal would do it: a shell takes over only when all of the job
        // is stopped. TSTP, since STOP would keep another fairlock of a pipeline from stopping its
        // own command. STOP for this process, since it receives TSTP itself.
        let _ = kill_current_process_group(Signal::TSTP);
        let _ = kill_process(getpid(), Signal::STOP);
    }

    /// How long the fairlocks below this one have to stop by themselves. No lock ends meanwhile.
    fn patience(&self) -> Duration {
        let spare = match self.on_loss {
            OnLoss::Term => self
                .held
                .remaining()
                .saturating_sub(self.left_at_next_step()),
            OnLoss::Ignore => PATIENCE,
        };
        spare.min(PATIENCE)
    }

    /// This process was continued, or somebody asks it to continue the command.
    pub(super) fn on_continue(&mut self) {
        let suspended = self.suspended.take();
        if suspended.is_some() {
            // The result shows in `check`. It blocks, but the command is stopped.
            let _ = self.held.renew();
        }
        if self.on_loss == OnLoss::Term && self.held.check().is_err() {
            // `act` kills it before it has run again.
            return;
        }
        if let Some(foreground) = &self.foreground {
            match suspended {
                Some(HadTerminal::Yes) => {
                    foreground.give(self.tree.group());
                }
                Some(HadTerminal::No) => {}
                // Only this process was stopped, and a shell may have taken the terminal.
                None => foreground.look_again(self.tree.group()),
            }
        }
        self.continue_command();
    }

    fn continue_command(&mut self) {
        self.is_stopped = false;
        let sent = self.tree.go_on();
        self.check_sent(Signal::CONT, sent);
    }
}
