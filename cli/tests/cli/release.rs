//! `fairlock release`.

use std::time::Duration;

use fairlock::{LockManager, LockOptions, LossReason};

use crate::look::{fairlock, labelled, until_awaited};
use crate::process::end;
use crate::support::{SLACK, Server};
use crate::terminal::Terminal;

fn manager(server: &Server) -> LockManager {
    labelled(server, "nightly")
}

#[test]
fn a_yes_on_the_terminal_takes_the_lock_away() {
    let server = Server::start();
    // Short, so that the holder soon notices.
    let ttl = Duration::from_secs(6);
    let builder = LockManager::builder(server.url())
        .options(LockOptions::new().ttl(ttl).label("nightly"))
        .command_timeout(Duration::from_millis(700));
    let guard = builder.build().unwrap().lock("n").unwrap();
    let mut terminal = Terminal::start(&fairlock(&server, &["release", "n"]), 20, 100);
    terminal.shows("Release it? [y/N]");
    let text = terminal.text();
    let pid = std::process::id().to_string();
    for part in [
        "\"nightly\"",
        &pid,
        &guard.fence().to_string(),
        "within 2.0s",
        "fences",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(guard.is_held());
    terminal.press("y\r");
    terminal.shows("released \"n\"");
    assert_eq!(terminal.program.wait().unwrap().code(), Some(0));
    let loss = guard
        .lost()
        .recv_timeout(ttl / 3 + SLACK * 2)
        .expect("it notices");
    assert_eq!(loss.reason, LossReason::Forced);
}

#[test]
fn any_other_answer_leaves_the_lock_alone() {
    let server = Server::start();
    let guard = manager(&server).lock("n").unwrap();
    for answer in ["\r", "n\r", "yellow\r", "\x04"] {
        let mut terminal = Terminal::start(&fairlock(&server, &["release", "n"]), 20, 100);
        terminal.shows("[y/N]");
        terminal.press(answer);
        assert_eq!(
            terminal.program.wait().unwrap().code(),
            Some(1),
            "{answer:?}"
        );
        terminal.shows("not released");
    }
    guard.renew().unwrap();
}

#[test]
fn a_fence_that_changed_while_asking_is_refused() {
    let server = Server::start();
    let manager = manager(&server);
    let guard = manager.lock("n").unwrap();
    let mut terminal = Terminal::start(&fairlock(&server, &["release", "n"]), 20, 100);
    terminal.shows("[y/N]");
    guard.unlock().unwrap();
    let next = manager.lock("n").unwrap();
    terminal.press("y\r");
    terminal.shows("not released");
    assert_eq!(terminal.program.wait().unwrap().code(), Some(1));
    next.renew().unwrap();
}

#[test]
fn scripts_must_say_yes() {
    let server = Server::start();
    let guard = manager(&server).lock("n").unwrap();
    let ended = end(&mut fairlock(&server, &["release", "n"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("--yes"), "{ended:?}");
    guard.renew().unwrap();
    let other = (guard.fence() - 1).to_string();
    let ended = end(&mut fairlock(
        &server,
        &["release", "n", "--yes", "--fence", &other],
    ));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains(&guard.fence().to_string()),
        "{ended:?}"
    );
    guard.renew().unwrap();
    let fence = guard.fence().to_string();
    let ended = end(&mut fairlock(
        &server,
        &["release", "n", "--yes", "--fence", &fence],
    ));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    guard.renew().unwrap_err();
    let again = end(&mut fairlock(&server, &["release", "n", "--yes"]));
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("free already"), "{again:?}");
}

#[test]
fn a_holder_of_permits_is_named_by_its_fence() {
    let server = Server::start();
    let manager = manager(&server);
    let semaphore = manager.semaphore("s", 3);
    let (one, two) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let ended = end(&mut fairlock(&server, &["release", "s", "--yes"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    let fences = [one.fence(), two.fence()].map(|fence| fence.to_string());
    assert!(
        fences.iter().all(|fence| ended.stderr.contains(fence)),
        "{ended:?}"
    );
    let ended = end(&mut fairlock(
        &server,
        &["release", "s", "--yes", "--fence", &fences[0]],
    ));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    one.renew().unwrap_err();
    two.renew().unwrap();
}

#[test]
fn all_readers_lose_their_lock_and_are_named() {
    let server = Server::start();
    let (manager, other) = (manager(&server), labelled(&server, "other"));
    let readers = [
        manager.rw_lock("r").read().unwrap(),
        other.rw_lock("r").read().unwrap(),
    ];
    let ended = end(&mut fairlock(&server, &["release", "r", "--yes"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in ["\"nightly\"", "\"other\"", "all 2 lose the lock"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
    for reader in readers {
        reader.renew().unwrap_err();
    }
}

#[test]
fn a_fixed_lease_and_a_cooling_have_words_of_their_own() {
    let server = Server::start();
    let manager = manager(&server);
    let fixed = manager.with(LockOptions::new().fixed_lease(Duration::from_secs(3600)));
    let _guard = fixed.lock("fixed").unwrap();
    let waiter = manager.enqueue("fixed").unwrap();
    until_awaited(&manager, "fixed", 1);
    let ended = end(&mut fairlock(&server, &["release", "fixed", "--yes"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("only when it unlocks"), "{ended:?}");
    assert!(!ended.stderr.contains("next renewal"), "{ended:?}");
    drop(waiter.wait().expect("the next waiter has it"));
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    let ended = end(&mut fairlock(&server, &["release", "cooling", "--yes"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("notices nothing"), "{ended:?}");
    assert!(manager.inspect("cooling").unwrap().is_none());
}

#[test]
fn a_holder_of_permits_notices_by_the_end_of_its_own_lease() {
    let server = Server::start();
    let renewed = manager(&server);
    let short = renewed.semaphore("s", 2).acquire().unwrap();
    let hour = LockOptions::new().fixed_lease(Duration::from_secs(3600));
    let _long = renewed.with(hour).semaphore("s", 2).acquire().unwrap();
    let fence = short.fence().to_string();
    let args = ["release", "s", "--yes", "--fence", &fence];
    let ended = end(&mut fairlock(&server, &args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The lock shows only the longest lease, which is the other holder's.
    for part in ["at most 59m", "would have ended, within 50s, or within 59m"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
    let ended = end(&mut fairlock(&server, &["release", "s", "--yes"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in [", 59m", "have ended, within 59m"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
}

#[test]
fn hold_at_least_prolongs_the_lease_that_a_holder_believes_in() {
    let server = Server::start();
    let hour = LockOptions::new().hold_at_least(Duration::from_secs(3600));
    let guard = manager(&server).with(hour).lock("n").unwrap();
    assert!(guard.remaining() > Duration::from_secs(3000));
    let ended = end(&mut fairlock(&server, &["release", "n", "--yes"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let part = "would have ended, within 59m";
    assert!(ended.stderr.contains(part), "{ended:?}");
}
