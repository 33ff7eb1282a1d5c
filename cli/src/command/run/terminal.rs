//! The terminal that controls this process, if one does.
//!
//! The command is in our own process group there. So the kernel sends Ctrl-C and Ctrl-Z to both,
//! as to any two programs of a job, and a shell continues both.

use std::fs::File;
use std::io::{self, IsTerminal as _};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::processes::Process;

pub(super) struct Terminal {
    file: File,
    /// How it was when the command started, if it is the command's alone. In a pipeline, the other
    /// commands set it, too.
    modes: Option<Termios>,
}

impl Terminal {
    pub(super) fn find() -> Option<Terminal> {
        let mut options = File::options();
        let file = options.read(true).write(true).open("/dev/tty").ok()?;
        let is_alone = io::stdin().is_terminal() && io::stdout().is_terminal();
        let modes = tcgetattr(&file).ok().filter(|_| is_alone);
        Some(Terminal { file, modes })
    }

    /// Sets the modes to those at the start: a command that was killed could not do it.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && Process::own().is_some_and(|own| own.is_in_foreground())
        {
            let _ = tcsetattr(&self.file, OptionalActions::Now, modes);
        }
    }
}
