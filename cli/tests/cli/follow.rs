//! `fairlock show --follow`.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use fairlock::{LockOptions, RwLock};
use rustix::process::Signal;
use serde_json::Value;

use crate::look::{Lapsed, fairlock, labelled};
use crate::process::wrapped;
use crate::run::{LONG, Run};
use crate::support::{Server, until};

/// A following process, and its lines as objects.
pub(crate) struct Following(Run);

impl Following {
    pub(crate) fn of(server: &Server, name: &str) -> Following {
        let args = ["show", name, "--follow", "--interval", "100ms", "--json"];
        Following(Run::start(&mut fairlock(server, &args)))
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        serde_json::from_str(&self.0.line()).expect("an object")
    }

    /// The next object, which is about this event.
    #[track_caller]
    pub(crate) fn event(&mut self, event: &str) -> Value {
        let object = self.next();
        assert_eq!(object["event"], event, "{object}");
        object
    }

    /// The next object, which is about this event and has this value.
    #[track_caller]
    fn has(&mut self, event: &str, field: &str, value: impl Into<Value>) -> Value {
        let object = self.event(event);
        assert_eq!(object.pointer(field), Some(&value.into()), "{object}");
        object
    }
}

#[test]
fn each_change_of_a_lock_is_a_line() {
    let server = Server::start();
    let (ours, theirs) = (labelled(&server, "ours"), labelled(&server, "theirs"));
    let label = "/party/label";
    let mut following = Following::of(&server, "n");
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
    let mut following = Following::of(&server, "n");
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
    let mut following = Following::of(&server, "r");
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
    let _reader = RwLock::downgrade(writer).unwrap();
    following.has("changed", "/party/shared", true);
    let mut following = Following::of(&server, "s");
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
    let mut for_people = Run::start(&mut fairlock(&server, &args));
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
    assert!(following.0.is_running());
}

#[test]
fn int_and_term_end_it_even_in_an_outage() {
    let server = Server::start();
    for signal in [Signal::INT, Signal::TERM] {
        // In the background, a shell has its children ignore INT.
        let follow = fairlock(&server, &["show", "n", "--follow", "--json"]);
        let defaults = ["env", "--default-signal=INT,TERM"];
        let mut following = Following(Run::start(&mut wrapped(&defaults, &follow)));
        following.event("first_look");
        server.stop();
        following.0.signal(signal);
        until(LONG, "it ends", || !following.0.is_running());
        let ended = following.0.process.wait().expect("it has ended");
        assert_eq!(ended.signal(), Some(signal.as_raw()));
        server.cont();
    }
}
