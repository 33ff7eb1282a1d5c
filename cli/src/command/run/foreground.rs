//! The foreground of the terminal, which the command's group has while it runs.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::process::Child;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::job::own_group;
use crate::signal_mask::without_ttou;

/// The terminal that controls this process.
pub(super) struct Foreground {
    terminal: File,
    /// How the terminal was when the command started.
    modes: Option<Termios>,
    /// Whether the command's group has the foreground, because we gave it.
    is_given: Cell<bool>,
}

impl Foreground {
    /// `None` if this process has no terminal.
    pub(super) fn find() -> Option<Foreground> {
        let terminal = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Foreground {
            modes: tcgetattr(&terminal).ok(),
            terminal,
            is_given: Cell::new(false),
        })
    }

    /// Whether our own group has the foreground. False if our group is outside this container:
    /// then nobody in the container could give the foreground back to it.
    pub(super) fn is_ours(&self) -> bool {
        own_group().is_some_and(|own| self.group() == Some(own))
    }

    pub(super) fn is_given(&self) -> bool {
        self.is_given.get()
    }

    /// Whether the command has the foreground, or a group that the command gave it to.
    pub(super) fn is_away(&self) -> bool {
        self.is_given() && !self.is_ours()
    }

    /// The taking of the foreground by a child's own group, before its program begins. `None` if
    /// it is not ours to give.
    ///
    /// In a pipeline, other processes of our group may want to read from the terminal. There, the
    /// group gets the foreground only when it needs it, see
    /// [`give_to_reader`](Self::give_to_reader).
    pub(super) fn taking_by_a_child(&self) -> Option<Taking> {
        Some(Taking {
            terminal: self.terminal.try_clone().ok()?,
            from: own_group().filter(|_| self.is_ours() && !is_pipeline())?,
        })
    }

    /// Starts a child that may take the foreground. `passed_on_to` says whether the child gave it
    /// to this group already.
    pub(super) fn lend(
        &self,
        start: impl FnOnce() -> io::Result<Child>,
        passed_on_to: impl FnOnce(Pid) -> bool,
    ) -> io::Result<Child> {
        let was_ours = self.is_ours();
        let started = start();
        // Another fairlock of our group may have given it to its own command meanwhile.
        if was_ours
            && !self.is_ours()
            && let Some(group) = self.group()
        {
            match &started {
                Ok(child) => {
                    let is_given = group == Pid::from_child(child) || passed_on_to(group);
                    self.is_given.set(is_given);
                }
                // The child took it and then died, since it found no program.
                Err(_) if test_kill_process_group(group) == Err(Errno::SRCH) => self.set_to_ours(),
                Err(_) => {}
            }
        }
        started
    }

    /// Gives the foreground to a group that was stopped because it used the terminal without
    /// having it. False if it is not ours to give.
    pub(super) fn give_to_reader(&self, group: Pid) -> bool {
        self.group() == Some(group) || self.give(group)
    }

    /// False if the foreground is not ours to give.
    pub(super) fn give(&self, group: Pid) -> bool {
        let given = self.is_ours() && self.set(group);
        self.is_given.set(given || self.group() == Some(group));
        given
    }

    /// Asks the terminal whether this group still has the foreground.
    pub(super) fn look_again(&self, group: Pid) {
        if self.is_ours() {
            if !is_pipeline() {
                self.give(group);
            }
        } else {
            self.is_given.set(self.group() == Some(group));
        }
    }

    /// Takes the foreground back from the command, or from a group that the command gave it to.
    pub(super) fn take_back(&self) {
        if self.is_given.replace(false) {
            self.set_to_ours();
        }
    }

    /// Sets the terminal's modes to those at the start: a command that was killed could not do it.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            let _ = without_ttou(|| tcsetattr(&self.terminal, OptionalActions::Now, modes));
        }
    }

    fn group(&self) -> Option<Pid> {
        tcgetpgrp(&self.terminal).ok()
    }

    fn set_to_ours(&self) {
        if let Some(own) = own_group() {
            self.set(own);
        }
    }

    fn set(&self, group: Pid) -> bool {
        without_ttou(|| tcsetpgrp(&self.terminal, group)).is_ok()
    }
}

/// How a child takes the foreground.
pub(super) struct Taking {
    terminal: File,
    /// The group that has it.
    from: Pid,
}

impl Taking {
    /// For a child that leads its own group. It only makes system calls.
    pub(super) fn take(&self) {
        if tcgetpgrp(&self.terminal) == Ok(self.from) {
            let _ = without_ttou(|| tcsetpgrp(&self.terminal, getpid()));
        }
    }
}

fn is_pipeline() -> bool {
    !io::stdin().is_terminal() || !io::stdout().is_terminal()
}
