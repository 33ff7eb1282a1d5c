//! `fairlock show --follow`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fairlock::LockOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::look::{Lapsed, fairlock, labelled};
use crate::process::{end, give_environment};
use crate::support::{SLACK, Server, until_some};

/// A following process, and its lines as they come.
pub(crate) struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(command: &mut Command) -> Following {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Following { child, lines }
    }

    pub(crate) fn of(server: &Server, name: &str) -> Following {
        Following::start(&mut fairlock(
            server,
            &["show", name, "--follow", "--interval", "100ms", "--json"],
        ))
    }

    #[track_caller]
    fn line(&self) -> String {
        let line = self.lines.recv_timeout(SLACK * 8);
        line.expect("another line")
    }

    #[track_caller]
    fn next(&self) -> Value {
        serde_json::from_str(&self.line()).expect("an object")
    }

    /// The next object, which is about this event.
    #[track_caller]
    pub(crate) fn event(&self, event: &str) -> Value {
        let object = self.next();
        assert_eq!(object["event"], event, "{object}");
        object
    }

    /// The next object, which is about this event and has this value.
    #[track_caller]
    fn has(&self, event: &str, field: &str, value: impl Into<Value>) -> Value {
        let object = self.event(event);
        assert_eq!(object.pointer(field), Some(&value.into()), "{object}");
        object
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let ended = || self.child.try_wait().expect("it is ours");
        until_some(SLACK * 8, "it ends", ended)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_change_of_a_lock_is_a_line() {
    let server = Server::start();
    let (ours, theirs) = (labelled(&server, "ours"), labelled(&server, "theirs"));
    let label = "/party/label";
    let following = Following::of(&server, "n");
    following.has("first_look", "/at", Value::Null);
    let guard = ours.lock("n").unwrap();
    let granted = following.has("granted", label, "ours");
    assert_eq!(granted["party"]["fence"], guard.fence());
    let waiter = theirs.enqueue("n").unwrap();
    following.has("queue_grew", "/waiters", 1);
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    following.has("released", label, "ours");
    following.has("granted", label, "theirs");
    following.has("queue_shrank", "/waiters", 0);
    let waiter = ours.enqueue("n").unwrap();
    following.has("queue_grew", "/state", "held");
    assert!(theirs.force_release("n", next.fence()).unwrap());
    let last = waiter.wait().unwrap();
    following.has("forced", label, "theirs");
    following.has("granted", "/previous_holder", "forced");
    following.has("queue_shrank", "/name", "n");
    let lock = last.detach(Duration::from_secs(60)).unwrap();
    following.has("detached", label, "ours");
    let last = theirs.attach(&lock).unwrap();
    following.has("granted", label, "theirs");
    last.unlock().unwrap();
    let freed = following.has("freed", "/state", "free");
    assert_eq!(freed["waiters"], 0);
    assert!(freed["at"].as_f64() > granted["at"].as_f64());
}

#[test]
fn lapse_and_cooling_are_lines() {
    let server = Server::tcp();
    let manager = labelled(&server, "me");
    let following = Following::of(&server, "n");
    following.has("first_look", "/state", "free");
    let _lapsed = Lapsed::of(&server, "n");
    let mut lapsed = following.next();
    // The first look at it may come after the lapse.
    if lapsed["event"] == "granted" {
        lapsed = following.next();
    }
    assert_eq!([&lapsed["event"], &lapsed["state"]], ["lapsed", "lapsed"]);
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    let guard = cooling.lock("n").unwrap();
    following.has("granted", "/previous_holder", "lapsed");
    guard.unlock().unwrap();
    following.has("cooling", "/state", "cooling");
}

#[test]
fn readers_and_permits_have_lines_of_their_own() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let following = Following::of(&server, "r");
    following.event("first_look");
    let first = one.rw_lock("r").read().unwrap();
    following.has("granted", "/party/shared", true);
    let second = two.rw_lock("r").read().unwrap();
    following.has("granted", "/party/label", "two");
    drop(first);
    following.has("freed", "/party/label", "one");
    drop(second);
    following.event("freed");
    let writer = one.rw_lock("r").write().unwrap();
    following.has("granted", "/party/shared", false);
    let _reader = writer.downgrade().unwrap();
    following.has("changed", "/party/shared", true);
    let following = Following::of(&server, "s");
    following.event("first_look");
    let mut permits = one.semaphore("s", 3).acquire(2).unwrap();
    following.has("granted", "/party/permits", 2);
    permits.release_permits(1).unwrap();
    following.has("changed", "/party/permits", 1);
    drop(permits);
    following.has("freed", "/party/label", "one");
}

#[test]
fn outage_is_survived_and_said() {
    let server = Server::start();
    let manager = labelled(&server, "me");
    let long = manager.with(LockOptions::new().fixed_lease(Duration::from_secs(3600)));
    let _guard = long.lock("n").unwrap();
    let args = ["show", "n", "--follow", "--interval", "100ms"];
    let for_people = Following::start(&mut fairlock(&server, &args));
    let first = for_people.line();
    assert!(first.contains("Z  first_look "), "{first}");
    let mut following = Following::of(&server, "n");
    following.event("first_look");
    server.kill();
    let lost = following.event("unreachable");
    assert!(lost["error"].is_string(), "{lost}");
    assert!(lost["state"].is_null(), "{lost}");
    server.restart();
    following.event("reachable");
    // The server came back without data.
    following.event("freed");
    assert_eq!(following.child.try_wait().unwrap(), None);
}

#[test]
fn int_and_term_end_it_even_in_an_outage() {
    let server = Server::start();
    for signal in [Signal::INT, Signal::TERM] {
        // In the background, a shell has its children ignore INT.
        let follow = fairlock(&server, &["show", "n", "--follow", "--json"]);
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT,TERM")
            .arg(follow.get_program());
        command.args(follow.get_args());
        give_environment(&mut command, &follow);
        let mut following = Following::start(&mut command);
        following.event("first_look");
        server.stop();
        kill_process(Pid::from_child(&following.child), signal).expect("it runs");
        assert_eq!(following.end().signal(), Some(signal.as_raw()));
        server.cont();
    }
}

#[test]
fn interval_is_checked_and_needs_follow() {
    let server = Server::start();
    let wrong = ["99ms", "0s", "1", "-1s", "86401s", "500000000000y"];
    let wrong = wrong.map(|interval| ("--follow", interval));
    for (follow, interval) in wrong.into_iter().chain([("--json", "1s")]) {
        let interval = format!("--interval={interval}");
        let ended = end(&mut fairlock(&server, &["show", "n", follow, &interval]));
        assert_eq!(ended.code, Some(64), "{interval}");
    }
}
