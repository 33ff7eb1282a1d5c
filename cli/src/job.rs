//! The shell's job that this process belongs to.

use crate::processes::{Process, above};

/// Whether a shell is there that could continue our group if it stopped. True where `/proc` does
/// not say.
///
/// The kernel stops a group for Ctrl-Z only if one of its processes has a parent in the same
/// session, but in another group. This looks for that parent above this process, past a script in
/// the same job. Where a container begins with a program or with a script, there is none. A process
/// that stops there is never continued.
pub(crate) fn can_be_continued() -> bool {
    Process::own().is_none_or(|own| {
        above(own.pid)
            .take_while(|process| process.session == own.session)
            .any(|process| process.group != own.group)
    })
}
