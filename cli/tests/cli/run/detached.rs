//! A lock that goes to the command of a run, or to a run.

use fairlock::{DetachedLock, PreviousHolder};

use super::*;

const VARIABLE: &str = "FAIRLOCK_DETACHED";

/// A run that attaches the lock in this text.
#[track_caller]
fn attaching(server: &Server, name: &str, text: &str, code: i32) -> Ended {
    let mut command = run_script(server, &format!("--attach '{name}'"), "echo it ran");
    let stdout = if code == 0 { "it ran\n" } else { "" };
    gives(command.env(VARIABLE, text), code, stdout)
}

#[test]
fn run_hands_its_lock_to_its_command() {
    let server = Server::start();
    let mgr = manager(&server);
    let guard = mgr.lock("a").unwrap();
    let fence = guard.fence();
    let script = "echo \"$FAIRLOCK_FENCE\"; read go; \"$BINARY\" run --attach a -- \
                  sh -c 'echo \"$FAIRLOCK_FENCE,$FAIRLOCK_DETACHED\"; exit 3'";
    let mut giver = Run::reading(&server, "--detach 1m a", script);
    until_queued(&server, "a", 1);
    guard.unlock().unwrap();
    let detached: u64 = giver.line().parse().expect("a fence");
    let mut waiter = mgr.enqueue("a").unwrap();
    let info = mgr.inspect("a").unwrap().expect("it is taken");
    assert_eq!((info.state, info.fence), (LockState::Detached, detached));
    let pid = info.holder.expect("the one that detached it").pid;
    assert_eq!(pid, giver.process.id(), "the command takes its place");
    let early = waiter.wait_for(Duration::from_millis(300)).unwrap();
    assert!(early.is_none());
    giver.end_input();
    let ended = giver.ended();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(ended.stderr, "", "nothing was lost");
    let attached = ended.stdout.trim_end().strip_suffix(',');
    let attached = attached.expect("no secret is left").parse::<u64>().unwrap();
    assert!(attached > detached && detached > fence);
    let next = waiter.wait().unwrap();
    assert_eq!(next.previous_holder(), PreviousHolder::Released);
}

#[test]
fn run_takes_over_a_lock_of_its_name_once() {
    let server = Server::start();
    let mgr = manager(&server);
    let detach = |name: &str| mgr.lock(name).unwrap().detach(LONG).unwrap().secret_text();
    let text = detach("a b");
    attaching(&server, "a b", &format!("{text}\n"), 0);
    attaching(&server, "a b", &text, 74);
    assert!(mgr.try_lock("a b").unwrap().is_some());
    // What is no lock of that name is refused.
    let text = detach("a");
    let secret = text.rsplit(':').next().expect("it is the last part");
    for (name, text) in [("b", &*text), ("a", &text[1..]), ("a", "")] {
        let ended = attaching(&server, name, text, 64);
        ended.says(VARIABLE);
        assert!(!ended.stderr.contains(secret), "{ended:?}");
    }
    let detached: DetachedLock = text.parse().unwrap();
    mgr.attach(&detached).unwrap().unlock().unwrap();
}

/// The run holds nothing, so it reports no loss.
#[test]
fn lock_that_no_command_attaches_lapses() {
    let server = Server::start();
    let ended = script_gives(&server, "--detach 100ms a", "sleep 1; exit 5", 5, "");
    assert_eq!(ended.stderr, "");
    assert_eq!(previous(&server, "--no-wait a"), "lapsed");
}
