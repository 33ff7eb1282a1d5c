//! Waiters and holders that died: how the commands show them, and a run that does not wait.

use std::time::{Duration, Instant};

use fairlock::inspect::LockState;
use rustix::process::Signal;

use crate::look::{fairlock, labelled, objects, until_awaited};
use crate::process::{exits, fairlock as fairlock_as_installed, printed};
use crate::run::{LONG, Run};
use crate::support::{SLACK, Server, until};

/// A run in the background, with a short ttl.
fn run_in_background(server: &Server, name: &str) -> Run {
    let args = ["run", "--ttl", "2s", name, "--", "sleep", "60"];
    Run::start(&mut fairlock_as_installed(server, &args))
}

fn shown(server: &Server, args: &[&str]) -> String {
    printed(fairlock(server, args))
}

/// A holder and two waiters die: first all show them as silent, then the first run without waiting
/// gets the lock.
#[test]
fn no_wait_takes_a_lock_that_only_the_dead_want() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let mut dead = vec![run_in_background(&server, "k")];
    until(LONG, "it holds the lock", || {
        let info = manager.inspect("k").expect("Redis answers");
        info.is_some_and(|info| info.state == LockState::Held)
    });
    for waiters in 1..=2 {
        dead.push(run_in_background(&server, "k"));
        until_awaited(&manager, "k", waiters);
    }
    assert!(shown(&server, &["ls", "--awaited"]).contains("k "));
    for run in &mut dead {
        run.signal(Signal::KILL);
        run.ended();
    }
    until(LONG, "nobody alive waits", || {
        !shown(&server, &["ls", "--awaited"]).contains("k ")
    });
    let row = shown(&server, &["ls"]);
    assert!(
        row.contains("lapsed") && row.contains(" ago, silent"),
        "{row}"
    );
    let queue = shown(&server, &["show", "k"]);
    assert_eq!(queue.matches(" ago, silent").count(), 2, "{queue}");
    let why = shown(&server, &["why-waiting", "k"]);
    assert!(why.contains("2 waiting, 2 of them not heard of"), "{why}");
    let json = shown(&server, &["show", "k", "--json"]);
    let heard = objects(&json).remove(0).queue.remove(0).last_heard;
    assert!(
        heard.is_some_and(|ago| ago > Duration::from_secs(5)),
        "{json}"
    );

    let started = Instant::now();
    let run = ["run", "--no-wait", "k", "--", "true"];
    exits(fairlock_as_installed(&server, &run), 0);
    assert!(started.elapsed() < Duration::from_secs(1) + SLACK);
    assert_eq!(manager.inspect("k").unwrap(), None);
}

#[test]
fn waiters_that_live_are_not_marked() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let _guard = manager.lock("k").unwrap();
    let _waiter = labelled(&server, "").enqueue("k").unwrap();
    until_awaited(&manager, "k", 1);
    // Time itself is under test: for so long a process that died would still count as alive.
    std::thread::sleep(Duration::from_secs(6));
    for args in [
        &["ls", "--awaited"][..],
        &["show", "k"],
        &["why-waiting", "k"],
    ] {
        let text = shown(&server, args);
        assert!(text.contains('k') && !text.contains("silent"), "{text}");
        assert!(!text.contains("not heard of"), "{text}");
    }
}
