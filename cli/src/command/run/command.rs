//! The command as it is started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::ancestors;
use crate::connection::Variables;

/// What the environment of a command says about its lock, and about Redis.
pub(super) struct Environment {
    pub(super) name: String,
    pub(super) fence: u64,
    pub(super) previous: String,
    /// The locks of all runs around the command. `None`: as they are.
    pub(super) ancestors: Option<String>,
    pub(super) connection: Variables,
}

impl Environment {
    pub(super) fn give_to(&self, command: &mut Command) {
        self.connection.give_to(command);
        command
            .env("FAIRLOCK_NAME", &self.name)
            .env("FAIRLOCK_FENCE", self.fence.to_string())
            .env("FAIRLOCK_PREVIOUS", &self.previous);
        if let Some(ancestors) = &self.ancestors {
            command.env(ancestors::VARIABLE, ancestors);
        }
    }
}

/// The command with its environment, in a process group of its own. It dies with this process.
/// Standard input and output are ours.
pub(super) fn of(words: &[OsString], environment: &Environment) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).process_group(0);
    environment.give_to(&mut command);
    die_with_us(&mut command);
    command
}

/// Has the kernel send KILL to the command when this process dies: nobody is left then that could
/// end it before others have the lock. TERM would let it go on for as long as it likes.
///
/// The kernel watches the thread that starts the command, which must be the main one.
#[allow(unsafe_code, reason = "only the child itself can ask for this")]
fn die_with_us(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
        let this = getpid();
        let ask = move || {
            // A sandbox may refuse it. Then the command runs all the same.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            // The process may have died before: then no signal comes.
            if getppid() == Some(this) {
                Ok(())
            } else {
                Err(Errno::SRCH.into())
            }
        };
        // SAFETY: after the fork, the closure only makes system calls.
        unsafe { command.pre_exec(ask) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}
