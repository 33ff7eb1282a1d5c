//! Texts that are kept in files, so that each change of them shows.

use std::{env, fs};

/// The text is as its golden file has it. If a change is meant, `FAIRLOCK_GOLDEN=1` has the test
/// write the new file.
#[track_caller]
pub(crate) fn is_golden(path: &str, text: &str) {
    if env::var_os("FAIRLOCK_GOLDEN").is_some() {
        fs::write(path, text).expect("the repository is writable");
    }
    let golden = fs::read_to_string(path).expect("the file is in the repository");
    for (number, (line, kept)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(line, kept, "line {} of {path}", number + 1);
    }
    assert_eq!(text.len(), golden.len(), "{path} goes on");
}
