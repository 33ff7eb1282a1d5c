//! `fairlock release`.

use std::time::Duration;

use fairlock::{LockManager, LockOptions, LossReason};

use crate::look::{fairlock, labelled, until_awaited};
use crate::process::{Ended, exits};
use crate::support::{SLACK, Server};
use crate::terminal::Terminal;

const HOUR: Duration = Duration::from_secs(3600);

/// It is released without a question, or not: by the exit code.
#[track_caller]
fn release(server: &Server, args: &[&str], code: i32) -> Ended {
    exits(fairlock(server, &[&["release"], args].concat()), code)
}

#[test]
fn yes_on_the_terminal_takes_the_lock_away() {
    let server = Server::start();
    // Short, so that the holder soon notices.
    let ttl = Duration::from_secs(6);
    let builder = LockManager::builder(server.url())
        .options(LockOptions::new().ttl(ttl).label("nightly"))
        .command_timeout(Duration::from_millis(700));
    let guard = builder.build().unwrap().lock("n").unwrap();
    let mut terminal = Terminal::start(&fairlock(&server, &["release", "n"]), 20, 100);
    terminal.shows("Release it? [y/N]");
    let (text, fence) = (terminal.text(), guard.fence().to_string());
    let pid = std::process::id().to_string();
    for part in ["\"nightly\"", &pid, &fence, "within 2.0s", "fences"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(guard.is_held());
    terminal.press("y\r");
    terminal.shows("released \"n\"");
    assert_eq!(terminal.program.wait().unwrap().code(), Some(0));
    let loss = guard.lost().recv_timeout(ttl / 3 + SLACK * 2);
    assert_eq!(loss.expect("it notices").reason, LossReason::Forced);
}

#[test]
fn any_other_answer_or_fence_leaves_the_lock_alone() {
    let server = Server::start();
    let manager = labelled(&server, "nightly");
    let guard = manager.lock("n").unwrap();
    let ask = || {
        let terminal = Terminal::start(&fairlock(&server, &["release", "n"]), 20, 100);
        terminal.shows("[y/N]");
        terminal
    };
    for answer in ["\r", "n\r", "yellow\r", "\x04"] {
        let mut terminal = ask();
        terminal.press(answer);
        let status = terminal.program.wait().unwrap();
        assert_eq!(status.code(), Some(1), "{answer:?}");
    }
    guard.renew().unwrap();
    // Its fence changes while it asks.
    let mut terminal = ask();
    guard.unlock().unwrap();
    let next = manager.lock("n").unwrap();
    terminal.press("y\r");
    assert_eq!(terminal.program.wait().unwrap().code(), Some(1));
    next.renew().unwrap();
}

#[test]
fn scripts_must_say_yes() {
    let server = Server::start();
    let guard = labelled(&server, "").lock("n").unwrap();
    let (fence, other) = (guard.fence().to_string(), (guard.fence() - 1).to_string());
    for (args, code, part) in [
        (&["n", "--yes", "--fence", &*other][..], 1, &*fence),
        (&["n", "--yes", "--fence", fence.as_str()], 0, ""),
        (&["n", "--yes"], 1, "free already"),
    ] {
        let ended = release(&server, args, code);
        ended.says(part);
        assert_eq!(
            guard.renew().is_ok(),
            ended.stdout.is_empty() && part != "free already"
        );
    }
}

#[test]
fn each_holder_of_permits_has_its_fence_and_readers_share_one() {
    let server = Server::start();
    let manager = labelled(&server, "nightly");
    let long = manager.with(LockOptions::new().fixed_lease(HOUR));
    let one = manager.semaphore("s", 3).acquire(1).unwrap();
    let two = long.semaphore("s", 3).acquire(1).unwrap();
    let refused = release(&server, &["s", "--yes"], 64);
    let fences = [one.fence(), two.fence()].map(|fence| fence.to_string());
    let is_named = |fence: &String| refused.stderr.contains(fence);
    assert!(fences.iter().all(is_named), "{refused:?}");
    let released = release(&server, &["s", "--yes", "--fence", &fences[0]], 0);
    // The lock shows only the longest lease, which is the other holder's.
    released.says("at most 59m");
    one.renew().unwrap_err();
    two.renew().unwrap();
    let managers = [&manager, &labelled(&server, "other")];
    let readers = managers.map(|manager| manager.rw_lock("r").read().unwrap());
    let ended = release(&server, &["r", "--yes"], 0);
    let labels = ["\"nightly\"", "\"other\""];
    assert!(
        labels.iter().all(|label| ended.stderr.contains(label)),
        "{ended:?}"
    );
    for reader in readers {
        reader.renew().unwrap_err();
    }
}

#[test]
fn holder_is_told_when_it_notices() {
    let server = Server::start();
    let manager = labelled(&server, "nightly");
    let least = manager.with(LockOptions::new().hold_at_least(HOUR));
    let _guard = least.lock("prolonged").unwrap();
    let fixed = manager.with(LockOptions::new().fixed_lease(HOUR));
    let _fixed = fixed.lock("fixed").unwrap();
    let waiter = manager.enqueue("fixed").unwrap();
    until_awaited(&manager, "fixed", 1);
    least.lock("cooling").unwrap().unlock().unwrap();
    for (name, part) in [
        ("prolonged", "would have ended, within at most 59m"),
        ("fixed", "The lease is fixed."),
        ("cooling", "notices nothing"),
    ] {
        let ended = release(&server, &[name, "--yes"], 0);
        ended.says(part);
    }
    drop(waiter.wait().expect("the next waiter has it"));
    assert!(manager.inspect("cooling").unwrap().is_none());
}
