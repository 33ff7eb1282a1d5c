//! `fairlock show --follow`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fairlock::LockOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

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
    let following = Following::of(&server, "n");
    let free = following.event("first_look");
    assert_eq!(
        (&free["state"], &free["at"]),
        (&json!("free"), &Value::Null)
    );
    let guard = ours.lock("n").unwrap();
    let granted = following.event("granted");
    assert_eq!(granted["party"]["label"], "ours");
    assert_eq!(granted["party"]["fence"], guard.fence());
    assert_eq!(
        (&granted["name"], &granted["state"]),
        (&json!("n"), &json!("held"))
    );
    let waiter = theirs.enqueue("n").unwrap();
    assert_eq!(following.event("queue_grew")["waiters"], 1);
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    assert_eq!(following.event("released")["party"]["label"], "ours");
    assert_eq!(following.event("granted")["party"]["label"], "theirs");
    assert_eq!(following.event("queue_shrank")["waiters"], 0);
    let waiter = ours.enqueue("n").unwrap();
    following.event("queue_grew");
    assert!(theirs.force_release("n", next.fence()).unwrap());
    let last = waiter.wait().unwrap();
    assert_eq!(following.event("forced")["party"]["label"], "theirs");
    assert_eq!(following.event("granted")["previous_holder"], "forced");
    following.event("queue_shrank");
    let lock = last.detach(Duration::from_secs(60)).unwrap();
    let detached = following.event("detached");
    assert_eq!(detached["party"]["label"], "ours");
    let last = theirs.attach(&lock).unwrap();
    assert_eq!(following.event("granted")["party"]["label"], "theirs");
    last.unlock().unwrap();
    let freed = following.event("freed");
    assert_eq!(
        (&freed["state"], &freed["waiters"]),
        (&json!("free"), &json!(0))
    );
    assert!(freed["at"].as_f64() > granted["at"].as_f64());
}

#[test]
fn lapse_and_cooling_are_lines() {
    let server = Server::tcp();
    let manager = labelled(&server, "me");
    let following = Following::of(&server, "n");
    following.event("first_look");
    let _lapsed = Lapsed::of(&server, "n");
    let lapsed = match following.next() {
        // The first look at it may come after the lapse.
        first if first["event"] == "granted" => following.event("lapsed"),
        first => first,
    };
    let (event, state) = (&lapsed["event"], &lapsed["state"]);
    assert_eq!((event, state), (&json!("lapsed"), &json!("lapsed")));
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    let guard = cooling.lock("n").unwrap();
    assert_eq!(following.event("granted")["previous_holder"], "lapsed");
    guard.unlock().unwrap();
    assert_eq!(following.event("cooling")["state"], "cooling");
}

#[test]
fn readers_and_permits_have_lines_of_their_own() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let following = Following::of(&server, "r");
    following.event("first_look");
    let first = one.rw_lock("r").read().unwrap();
    assert_eq!(following.event("granted")["party"]["shared"], true);
    let second = two.rw_lock("r").read().unwrap();
    assert_eq!(following.event("granted")["party"]["label"], "two");
    drop(first);
    assert_eq!(following.event("freed")["party"]["label"], "one");
    drop(second);
    following.event("freed");
    let writer = one.rw_lock("r").write().unwrap();
    assert_eq!(following.event("granted")["party"]["shared"], false);
    let _reader = writer.downgrade().unwrap();
    assert_eq!(following.event("changed")["party"]["shared"], true);
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
    assert!(
        first.contains("Z  first_look ") && first.contains("\"me\""),
        "{first}"
    );
    let mut following = Following::of(&server, "n");
    following.event("first_look");
    server.kill();
    let lost = following.event("unreachable");
    assert!(
        lost["error"].is_string() && lost["state"].is_null(),
        "{lost}"
    );
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
    for interval in ["99ms", "0s", "1", "-1s", "86401s", "500000000000y"] {
        let option = format!("--interval={interval}");
        let ended = end(&mut fairlock(&server, &["show", "n", "--follow", &option]));
        assert_eq!(ended.code, Some(64), "{interval}");
    }
    let ended = end(&mut fairlock(&server, &["show", "n", "--interval", "1s"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
}
