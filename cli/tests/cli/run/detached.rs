//! A lock that goes to the command of a run, or to a run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use fairlock::{DetachedLock, PreviousHolder, inspect::LockState};
use tempfile::TempDir;

use super::{LONG, Run, manager, run, run_script};
use crate::process::{Ended, end};
use crate::support::{Server, until};

const VARIABLE: &str = "FAIRLOCK_DETACHED";

/// `fairlock run ARGS -- sh -c SCRIPT`, where `$BINARY` is fairlock.
fn with_binary(server: &Server, args: &[&str], script: &str) -> Command {
    let mut command = run_script(server, args, script);
    command.env("BINARY", env!("CARGO_BIN_EXE_fairlock"));
    command
}

/// A run that attaches the lock in this text.
fn attaching(server: &Server, name: &str, text: &str) -> Ended {
    end(run_script(server, &["--attach", name], "echo it ran").env(VARIABLE, text))
}

#[test]
fn run_hands_its_lock_to_its_command() {
    let server = Server::start();
    let mgr = manager(&server);
    let guard = mgr.lock("a").unwrap();
    let fence = guard.fence();
    let script = "echo \"$FAIRLOCK_FENCE\"; read go; \"$BINARY\" run --attach a -- \
                  sh -c 'echo \"$FAIRLOCK_FENCE,$FAIRLOCK_DETACHED\"; exit 3'";
    let mut giver = Run::reading(&mut with_binary(&server, &["--detach", "1m", "a"], script));
    until(LONG, "it waits", || {
        mgr.inspect("a")
            .unwrap()
            .is_some_and(|info| info.waiters == 1)
    });
    guard.unlock().unwrap();
    let detached: u64 = giver.line().parse().expect("a fence");
    let mut waiter = mgr.enqueue("a").unwrap();
    let info = mgr.inspect("a").unwrap().expect("it is taken");
    assert_eq!((info.state, info.fence), (LockState::Detached, detached));
    let pid = info.holder.expect("the one that detached it").pid;
    assert_eq!(pid, giver.process.id(), "the command takes its place");
    assert!(
        waiter
            .wait_for(Duration::from_millis(300))
            .unwrap()
            .is_none()
    );
    giver.end_input();
    let ended = giver.ended();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(ended.stderr, "", "nothing was lost");
    let attached = ended
        .stdout
        .trim_end()
        .strip_suffix(',')
        .expect("no secret is left");
    assert!(attached.parse::<u64>().unwrap() > detached && detached > fence);
    let next = waiter.wait().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
}

#[test]
fn run_takes_over_a_lock_once() {
    let server = Server::start();
    let mgr = manager(&server);
    let text = mgr.lock("a b").unwrap().detach(LONG).unwrap().secret_text();
    let ended = attaching(&server, "a b", &format!("{text}\n"));
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "it ran\n"),
        "{ended:?}"
    );
    let ended = attaching(&server, "a b", &text);
    assert_eq!((ended.code, &*ended.stdout), (Some(74), ""), "{ended:?}");
    assert!(mgr.try_lock("a b").unwrap().is_some());
}

#[test]
fn run_refuses_what_is_no_lock_of_that_name() {
    let server = Server::start();
    let mgr = manager(&server);
    let text = mgr.lock("a").unwrap().detach(LONG).unwrap().secret_text();
    let secret = text.rsplit(':').next().expect("it is the last part");
    for (name, text) in [("b", &*text), ("a", &text[1..]), ("a", "")] {
        let ended = attaching(&server, name, text);
        assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
        assert!(ended.stderr.contains(VARIABLE), "{ended:?}");
        assert!(!ended.stderr.contains(secret), "{ended:?}");
    }
    let ended = end(&mut run_script(&server, &["--attach", "a"], "echo it ran"));
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    for args in [&["--detach", "0s", "a"][..], &["--detach", "25h", "a"]] {
        let ended = end(&mut run_script(&server, args, "echo it ran"));
        assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    }
    let detached: DetachedLock = text.parse().unwrap();
    mgr.attach(&detached).unwrap().unlock().unwrap();
}

/// The run holds nothing, so it reports no loss.
#[test]
fn lock_that_no_command_attaches_lapses() {
    let server = Server::start();
    let mgr = manager(&server);
    let script = "sleep 1; exit 5";
    let ended = end(&mut run_script(
        &server,
        &["--detach", "100ms", "a"],
        script,
    ));
    assert_eq!((ended.code, &*ended.stderr), (Some(5), ""), "{ended:?}");
    let next = mgr.try_lock("a").unwrap().expect("it lapsed");
    assert_eq!(next.previous_holder(), PreviousHolder::Lapsed);
}

#[test]
fn command_that_cannot_be_executed_leaves_the_lock_free() {
    let server = Server::start();
    let dir = TempDir::new().expect("a directory");
    let program = dir.path().join("program");
    fs::write(&program, "#!/no/such/interpreter\n").expect("our own directory is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = run(&server, &["--detach", "1m", "a"]);
    let ended = end(command.arg(&program));
    assert!(matches!(ended.code, Some(126 | 127)), "{ended:?}");
    assert!(manager(&server).try_lock("a").unwrap().is_some());
}
