//! Nodes whose clocks differ.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use fairlock::Error;
use fairlock_tests::ROOT;
use tempfile::TempDir;

use super::set::{Set, now};
use crate::support::Server;

const HOUR: i64 = 3600 * 1_000_000;

/// Servers whose clocks are off by these numbers of µs.
pub(crate) fn start(offsets: &[i64]) -> (Set, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().join("clock.so");
    let source = Path::new(ROOT).join("tests/it/support/shifted_clock.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(built.expect("a C compiler").success());
    let start = |(at, offset): (usize, &i64)| {
        let by = dir.path().join(format!("by{at}"));
        fs::write(&by, offset.to_ne_bytes()).expect("our own directory is writable");
        let library = library.clone();
        thread::spawn(move || {
            let text = |path: &PathBuf| path.to_str().expect("it is UTF-8").to_owned();
            let preload = [
                ("LD_PRELOAD", &*text(&library)),
                ("SHIFTED_CLOCK", &*text(&by)),
            ];
            Server::start_with_env(&preload)
        })
    };
    (Set::of(offsets.iter().enumerate().map(start)), dir)
}

#[test]
fn node_with_another_clock_does_not_vote() {
    let (set, _dir) = start(&[0, 0, HOUR]);
    let manager = set.manager();
    let guard = manager
        .try_lock("x")
        .expect("two agree")
        .expect("it is free");
    // Its clock does not drive up the fences either.
    assert!(guard.fence() < now() + HOUR as u64 / 2);
    assert_eq!(set.owners("x"), 2);
    set.servers[0].kill();
    let error = manager.try_lock("y").expect_err("one is no majority");
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(cause.to_string().contains("its clock differs"), "{cause}");
}

/// The fence is at least the largest clock, so that it is above what any majority granted.
#[test]
fn fence_is_at_least_the_largest_clock() {
    let ahead = 2_000_000;
    let (set, _dir) = start(&[0, ahead, 0]);
    let manager = set.manager();
    let before = now();
    let guard = manager
        .try_lock("x")
        .expect("all agree")
        .expect("it is free");
    assert!(guard.fence() >= before + ahead as u64);
    let fence = guard.fence();
    drop(guard);
    set.servers[1].kill();
    let guard = super::set::take(&manager, "x", super::set::TIMEOUT);
    assert!(guard.fence() > fence);
}
