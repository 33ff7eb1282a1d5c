//! The parts of a run that others see: its label, and the name of the thread that takes its lock.

use std::ffi::OsStr;
use std::path::Path;

use crate::defaults::MAX_LABEL;

/// The thread that takes the lock. It lives for as long as the run does.
pub(in crate::command) const THREAD: &str = "fairlock-run";

/// The label of a run inside another one, which holds this name. Left as it is if it would be too
/// long.
pub(super) fn inside(label: String, name: &str, fence: u64) -> String {
    let long = format!("{label} (in {name}, fence {fence})");
    let is_allowed = long.len() <= MAX_LABEL && !long.contains(char::is_control);
    if is_allowed { long } else { label }
}

/// The name and the fence of the run around the one with this label.
pub(in crate::command) fn around(label: &str) -> Option<(&str, u64)> {
    let inside = label.strip_suffix(')')?;
    let (inside, fence) = inside.rsplit_once(", fence ")?;
    let fence = fence.parse().ok()?;
    // The label of a person may have this in it, too.
    inside.rsplit_once(" (in ").map(|(_, name)| (name, fence))
}

/// The name of a program, without its folders, as a label that the library takes.
pub(super) fn of_program(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    let mut name = name.to_string_lossy().replace(char::is_control, "?");
    while name.len() > MAX_LABEL {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_the_last_part_of_a_path_as_the_library_takes_it() {
        for (program, label) in [
            ("/usr/bin/make", "make"),
            ("make", "make"),
            ("..", ".."),
            ("a\nb\u{1b}c", "a?b?c"),
            (&"ü".repeat(300), &"ü".repeat(MAX_LABEL / 2)),
        ] {
            assert_eq!(of_program(OsStr::new(program)), label);
        }
    }

    #[test]
    fn label_says_which_run_is_around_it() {
        let label = inside("make".to_owned(), "a, b", 7);
        assert_eq!(label, "make (in a, b, fence 7)");
        assert_eq!(around(&label), Some(("a, b", 7)));
        for label in ["make", "make (in a)", "make (in a, fence x)"] {
            assert_eq!(around(label), None);
        }
        let long = "x".repeat(MAX_LABEL);
        assert_eq!(inside(long.clone(), "a", 7), long);
    }
}
