//! Libraries that are loaded before the C library of a process, to change what it sees of the
//! machine: its clock, or the addresses of hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a library from this source, in this directory.
pub(crate) fn library(dir: &Path, name: &str, source: &str) -> PathBuf {
    let library = dir.join(name).with_extension("so");
    let file = dir.join(name).with_extension("c");
    fs::write(&file, source).expect("our own directory is writable");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(file)
        .output();
    let built = built.expect("a C compiler, which the in-memory store needs too");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    library
}
