//! The foreground of the terminal, which the command's group has while it runs.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal as _};

use rustix::process::{Pid, getpid};
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

    /// Starts a child that may take the foreground.
    pub(super) fn lend<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let was_ours = self.is_ours();
        let started = start();
        self.is_given.set(was_ours && !self.is_ours());
        if started.is_err() {
            self.take_back();
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
        if self.is_given.replace(false)
            && let Some(own) = own_group()
        {
            self.set(own);
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
