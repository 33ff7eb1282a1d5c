//! `fairlock release`.

use fairlock::LossReason;

use crate::*;

const HOUR: Duration = Duration::from_secs(3600);

/// It is released without a question, or not: by the exit code.
#[track_caller]
fn release(server: &Server, args: &str, code: i32) -> Ended {
    exits(fairlock(server, &format!("release {args}")), code)
}

/// A terminal in which the command asks whether to release `n`.
fn asked(server: &Server) -> Terminal {
    let terminal = Terminal::start(&fairlock(server, "release n"));
    terminal.shows("Release it? [y/N]");
    terminal
}

#[test]
fn yes_on_the_terminal_takes_the_lock_away() {
    let server = Server::start();
    // Short, so that the holder soon notices.
    let ttl = Duration::from_secs(6);
    let builder = LockManager::builder(server.url()).command_timeout(Duration::from_millis(700));
    let builder = builder.options(LockOptions::new().ttl(ttl).label("nightly"));
    let guard = builder.build().unwrap().lock("n").unwrap();
    let mut terminal = asked(&server);
    let (fence, pid) = (guard.fence(), std::process::id());
    let parts = format!("fence {fence}|{pid}|\"nightly\"|within 2.0s|fences");
    has_parts(&terminal.text(), &parts);
    assert!(guard.is_held());
    terminal.press("y\r");
    terminal.shows("released \"n\"");
    assert_eq!(terminal.ends(), Some(0));
    let loss = guard.lost().recv_timeout(ttl / 3 + SLACK * 2);
    assert_eq!(loss.expect("it notices").reason, LossReason::Forced);
}

#[test]
fn any_other_answer_or_fence_leaves_the_lock_alone() {
    let server = Server::start();
    let manager = manager(&server);
    let guard = manager.lock("n").unwrap();
    for answer in ["\r", "n\r", "yellow\r", "\x04"] {
        let mut terminal = asked(&server);
        terminal.press(answer);
        assert_eq!(terminal.ends(), Some(1), "{answer:?}");
    }
    guard.renew().unwrap();
    // Its fence changes while it asks.
    let mut terminal = asked(&server);
    guard.unlock().unwrap();
    let next = manager.lock("n").unwrap();
    terminal.press("y\r");
    assert_eq!(terminal.ends(), Some(1));
    // A script must say yes, and may name the fence that it has seen.
    let fence = next.fence();
    release(&server, &format!("n --yes --fence {}", fence - 1), 1).says(&fence.to_string());
    next.renew().unwrap();
    release(&server, &format!("n --yes --fence {fence}"), 0);
    next.renew().unwrap_err();
    release(&server, "n --yes", 1).says("free already");
}

#[test]
fn each_holder_of_permits_has_its_fence_and_readers_share_one() {
    let server = Server::start();
    let manager = labelled(&server, "nightly");
    let long = manager.with(LockOptions::new().fixed_lease(HOUR));
    let one = manager.semaphore("s", 3).acquire(1).unwrap();
    let two = long.semaphore("s", 3).acquire(1).unwrap();
    let refused = release(&server, "s --yes", 64);
    let fences = [one.fence(), two.fence()].map(|fence| fence.to_string());
    fences.iter().for_each(|fence| refused.says(fence));
    let released = release(&server, &format!("s --yes --fence {}", fences[0]), 0);
    // The lock shows only the longest lease, which is the other holder's.
    released.says("at most 59m");
    one.renew().unwrap_err();
    two.renew().unwrap();
    let managers = [&manager, &labelled(&server, "other")];
    let readers = managers.map(|manager| manager.rw_lock("r").read().unwrap());
    let ended = release(&server, "r --yes", 0);
    ended.says("\"nightly\"");
    ended.says("\"other\"");
    for reader in readers {
        reader.renew().unwrap_err();
    }
}

#[test]
fn holder_is_told_when_it_notices() {
    let server = Server::start();
    let manager = manager(&server);
    let least = manager.with(LockOptions::new().hold_at_least(HOUR));
    let _guard = least.lock("prolonged").unwrap();
    let fixed = manager.with(LockOptions::new().fixed_lease(HOUR));
    let _fixed = fixed.lock("fixed").unwrap();
    let waiter = manager.enqueue("fixed").unwrap();
    until_queued(&server, "fixed", 1);
    least.lock("cooling").unwrap().unlock().unwrap();
    for (name, part) in [
        ("prolonged", "would have ended, within at most 59m"),
        ("fixed", "The lease is fixed."),
        ("cooling", "notices nothing"),
    ] {
        release(&server, &format!("{name} --yes"), 0).says(part);
    }
    drop(waiter.wait().expect("the next waiter has it"));
    assert!(info(&server, "cooling").is_none());
}
