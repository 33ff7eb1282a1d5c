//! The shell's job that this process belongs to.

use rustix::process::{Pid, getpid, getppid};

use crate::processes::Stat;

/// Whether a shell is there that could continue our group if it stopped.
///
/// The kernel stops a group for Ctrl-Z only if one of its processes has a parent in the same
/// session, but in another group. This looks for that parent at this process and at its ancestors
/// in the group, and at no other process of the group. Where a container begins with a program or
/// with a script, there is none. A process that stops there is never continued.
pub(crate) fn can_be_continued() -> bool {
    let parent = getppid().map_or(OUTSIDE, |parent| parent.as_raw_nonzero().get());
    let own = Ids::of(getpid().as_raw_nonzero().get());
    own.is_some_and(|own| has_shell(&own, parent, Ancestor::of))
}

/// The group of this process. `None` if it is outside this container, as with the group of a shell
/// that has started the container's first process.
#[allow(
    unsafe_code,
    reason = "rustix makes an invalid `Pid` where the kernel answers 0: outside"
)]
pub(crate) fn own_group() -> Option<Pid> {
    // SAFETY: the call reads and writes no memory of ours.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Whether this process is alive, and in the session of this one.
#[allow(
    unsafe_code,
    reason = "rustix panics where the kernel answers 0: outside"
)]
pub(crate) fn is_in_our_session(pid: i32) -> bool {
    // SAFETY: the calls read and write no memory of ours.
    let (own, other) = unsafe { (libc::getsid(0), libc::getsid(pid)) };
    pid > 0 && own >= 0 && own == other
}

/// The kernel's number for a parent outside this container. The first process of a container has
/// such a parent, and that of the host has none.
const OUTSIDE: i32 = 0;

/// Goes up from `parent` while the ancestors are of the own group. Whether it comes to another
/// group of the session.
fn has_shell(own: &Ids, mut parent: i32, look_at: impl Fn(i32) -> Ancestor) -> bool {
    while parent != OUTSIDE {
        match look_at(parent) {
            Ancestor { ids: None, .. } => return false,
            Ancestor { ids: Some(ids), .. } if ids.session != own.session => return false,
            Ancestor { ids: Some(ids), .. } if ids.group != own.group => return true,
            // Without `/proc`, a script that runs this program has a shell.
            Ancestor { parent: None, .. } => return true,
            // A script that runs this program, in the same job.
            Ancestor {
                parent: Some(next), ..
            } => parent = next,
        }
    }
    false
}

/// A process between this one and the first of its container.
struct Ancestor {
    /// `None` if the process is gone or outside.
    ids: Option<Ids>,
    /// `None` if `/proc` does not say.
    parent: Option<i32>,
}

impl Ancestor {
    fn of(pid: i32) -> Ancestor {
        Ancestor {
            ids: Ids::of(pid),
            parent: Stat::of(pid).map(|stat| stat.parent),
        }
    }
}

/// The group and the session of a process.
#[derive(Clone, Copy)]
struct Ids {
    group: i32,
    session: i32,
}

impl Ids {
    /// `None` if the process is gone, or if its group or session is outside this container.
    #[allow(
        unsafe_code,
        reason = "rustix panics where the kernel answers 0: outside"
    )]
    fn of(pid: i32) -> Option<Ids> {
        // The kernel would answer for the caller.
        if pid == OUTSIDE {
            return None;
        }
        // SAFETY: the calls read and write no memory of ours.
        let (group, session) = unsafe { (libc::getpgid(pid), libc::getsid(pid)) };
        (group > 0 && session > 0).then_some(Ids { group, session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ids = Ids {
        group: 20,
        session: 10,
    };

    /// Whether a program with this parent has a shell. The table has the group, the session and the
    /// parent of each process.
    fn has_shell_above(parent: i32, table: &[(i32, (i32, i32), Option<i32>)]) -> bool {
        has_shell(&OWN, parent, |pid| {
            let found = table.iter().find(|(number, ..)| *number == pid);
            Ancestor {
                ids: found.map(|(_, (group, session), _)| Ids {
                    group: *group,
                    session: *session,
                }),
                parent: found.and_then(|(.., parent)| *parent),
            }
        })
    }

    #[test]
    fn shell_is_found_above_the_scripts_of_the_job() {
        let shell = (10, (10, 10), Some(1));
        assert!(has_shell_above(10, &[shell]));
        let scripts = [(21, (20, 10), Some(20)), (20, (20, 10), Some(10)), shell];
        assert!(has_shell_above(21, &scripts));
    }

    /// For 0, the kernel answers with the ids of the caller, and `/proc` with nothing.
    #[test]
    fn script_that_a_container_begins_with_has_no_shell() {
        let script = (20, (20, 10), Some(0));
        assert!(!has_shell_above(20, &[script, (0, (20, 10), None)]));
        assert!(!has_shell_above(0, &[(0, (20, 10), None)]));
    }

    #[test]
    fn parent_in_another_session_or_gone_is_no_shell() {
        assert!(!has_shell_above(9, &[(9, (9, 9), Some(1))]));
        assert!(!has_shell_above(9, &[]));
    }

    #[test]
    fn script_whose_parent_is_unknown_has_a_shell() {
        assert!(has_shell_above(20, &[(20, (20, 10), None)]));
    }

    #[test]
    fn no_process_has_the_number_0() {
        assert!(Ids::of(OUTSIDE).is_none());
    }
}
