//! The terminal that controls this process, if one does.
//!
//! The command is in our own process group there. So the kernel sends Ctrl-C and Ctrl-Z to both,
//! as to any two programs of a job, and a shell continues both.

use std::fs::File;
use std::io::{self, IsTerminal as _};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::processes::Process;
use crate::signal_mask::without_ttou;

pub(super) struct Terminal {
    file: File,
    /// How it was when the command started, if it is the command's alone. In a pipeline, the other
    /// commands set it, too.
    modes: Option<Termios>,
    group: Option<Pid>,
}

impl Terminal {
    pub(super) fn find() -> Option<Terminal> {
        let mut options = File::options();
        let file = options.read(true).write(true).open("/dev/tty").ok()?;
        let is_alone = io::stdin().is_terminal() && io::stdout().is_terminal();
        let modes = tcgetattr(&file).ok().filter(|_| is_alone);
        let own = Process::own().filter(Process::is_in_foreground);
        Some(Terminal {
            file,
            modes,
            group: own.and_then(|own| Pid::from_raw(own.group)),
        })
    }

    /// Sets the modes to those at the start: a command that was killed could not do it.
    pub(super) fn restore_modes(&self) {
        // A shell in the command may have given the terminal to a group that is dead by now.
        if let Some(group) = self.group
            && let Ok(present) = tcgetpgrp(&self.file)
            && test_kill_process_group(present) == Err(Errno::SRCH)
        {
            without_ttou(|| _ = tcsetpgrp(&self.file, group));
        }
        if let Some(modes) = &self.modes
            && Process::own().is_some_and(|own| own.is_in_foreground())
        {
            let _ = tcsetattr(&self.file, OptionalActions::Now, modes);
        }
    }
}
