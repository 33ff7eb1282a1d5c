//! The command as it is started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::lock::Held;

/// The command with its environment, in a process group of its own. Standard input and output are
/// ours.
pub(super) fn of(words: &[OsString], held: &Held) -> Command {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env("FAIRLOCK_NAME", held.name())
        .env("FAIRLOCK_FENCE", held.fence().to_string())
        .env("FAIRLOCK_PREVIOUS", held.previous_holder().to_string())
        .process_group(0);
    command
}
