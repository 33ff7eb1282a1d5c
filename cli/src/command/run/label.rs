//! The label that others see for a command.

use std::ffi::OsStr;
use std::path::Path;

use fairlock::MAX_LABEL;

/// The name of a program, without its folders, as a label that the library takes.
pub(super) fn of_program(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    let name = name.to_string_lossy().replace(char::is_control, "?");
    let end = (0..=MAX_LABEL.min(name.len()))
        .rev()
        .find(|at| name.is_char_boundary(*at));
    name[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_the_last_part_of_a_path() {
        assert_eq!(of_program(OsStr::new("/usr/bin/make")), "make");
        assert_eq!(of_program(OsStr::new("make")), "make");
        assert_eq!(of_program(OsStr::new("..")), "..");
    }

    #[test]
    fn odd_programs_have_allowed_labels() {
        assert_eq!(of_program(OsStr::new("a\nb\u{1b}c")), "a?b?c");
        let long = of_program(OsStr::new(&"ü".repeat(300)));
        assert_eq!(long, "ü".repeat(MAX_LABEL / 2));
    }
}
