//! `fairlock watch`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fairlock::LockOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::look::{Lapsed, fairlock, labelled};
use crate::support::{SLACK, Server, until_some};

/// A watching process, and its lines as they come.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(command: &mut Command) -> Watching {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Watching { child, lines }
    }

    fn of(server: &Server, name: &str) -> Watching {
        Watching::start(&mut fairlock(
            server,
            &["watch", name, "--interval", "100ms", "--json"],
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
    fn event(&self, event: &str) -> Value {
        let object = self.next();
        assert_eq!(object["event"], event, "{object}");
        object
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let ended = || self.child.try_wait().expect("it is ours");
        until_some(SLACK * 8, "it ends", ended)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_change_of_a_lock_is_a_line() {
    let server = Server::start();
    let (ours, theirs) = (labelled(&server, "ours"), labelled(&server, "theirs"));
    let watching = Watching::of(&server, "n");
    let free = watching.event("first_look");
    assert_eq!(
        (&free["state"], &free["at"]),
        (&json!("free"), &json!(null))
    );
    let guard = ours.lock("n").unwrap();
    let granted = watching.event("granted");
    assert_eq!(granted["party"]["label"], "ours");
    assert_eq!(granted["party"]["fence"], guard.fence());
    assert_eq!(
        (&granted["name"], &granted["state"]),
        (&json!("n"), &json!("held"))
    );
    let waiter = theirs.enqueue("n").unwrap();
    assert_eq!(watching.event("queue_grew")["waiters"], 1);
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    assert_eq!(watching.event("released")["party"]["label"], "ours");
    assert_eq!(watching.event("granted")["party"]["label"], "theirs");
    assert_eq!(watching.event("queue_shrank")["waiters"], 0);
    let waiter = ours.enqueue("n").unwrap();
    watching.event("queue_grew");
    assert!(theirs.force_release("n", next.fence()).unwrap());
    let last = waiter.wait().unwrap();
    assert_eq!(watching.event("forced")["party"]["label"], "theirs");
    assert_eq!(watching.event("granted")["previous_holder"], "forced");
    watching.event("queue_shrank");
    last.unlock().unwrap();
    let freed = watching.event("freed");
    assert_eq!(
        (&freed["state"], &freed["waiters"]),
        (&json!("free"), &json!(0))
    );
    assert!(freed["at"].as_f64() > granted["at"].as_f64());
}

#[test]
fn a_lapse_and_a_cooling_are_lines() {
    let server = Server::tcp();
    let manager = labelled(&server, "me");
    let watching = Watching::of(&server, "n");
    watching.event("first_look");
    let _lapsed = Lapsed::of(&server, "n");
    let lapsed = match watching.next() {
        // The first look at it may come after the lapse.
        first if first["event"] == "granted" => watching.event("lapsed"),
        first => first,
    };
    assert_eq!(
        (&lapsed["event"], &lapsed["state"]),
        (&json!("lapsed"), &json!("lapsed"))
    );
    let cooling = manager.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    let guard = cooling.lock("n").unwrap();
    assert_eq!(watching.event("granted")["previous_holder"], "lapsed");
    guard.unlock().unwrap();
    assert_eq!(watching.event("cooling")["state"], "cooling");
}

#[test]
fn lock_that_goes_to_another_process_has_lines() {
    let server = Server::start();
    let (giver, worker) = (labelled(&server, "giver"), labelled(&server, "worker"));
    let watching = Watching::of(&server, "n");
    watching.event("first_look");
    let guard = giver.lock("n").unwrap();
    watching.event("granted");
    let lock = guard.detach(Duration::from_secs(60)).unwrap();
    let detached = watching.next();
    assert_eq!(
        (&detached["event"], &detached["state"]),
        (&json!("detached"), &json!("detached"))
    );
    assert_eq!(detached["party"]["label"], "giver");
    let guard = worker.attach(&lock).unwrap();
    let granted = watching.next();
    assert_eq!(granted["event"], "granted");
    assert_eq!(granted["party"]["label"], "worker");
    drop(guard);
}

#[test]
fn readers_and_permits_have_lines_of_their_own() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let watching = Watching::of(&server, "r");
    watching.event("first_look");
    let first = one.rw_lock("r").read().unwrap();
    assert_eq!(watching.event("granted")["party"]["access"], "reader");
    let second = two.rw_lock("r").read().unwrap();
    assert_eq!(watching.event("granted")["party"]["label"], "two");
    drop(first);
    assert_eq!(watching.event("freed")["party"]["label"], "one");
    drop(second);
    watching.event("freed");
    let writer = one.rw_lock("r").write().unwrap();
    assert_eq!(watching.event("granted")["party"]["access"], "writer");
    let _reader = writer.downgrade().unwrap();
    assert_eq!(watching.event("changed")["party"]["access"], "reader");
}

#[test]
fn lines_for_people_have_time_event_and_party() {
    let server = Server::start();
    let manager = labelled(&server, "me");
    let guard = manager.lock("n").unwrap();
    let watching = Watching::start(&mut fairlock(
        &server,
        &["watch", "n", "--interval", "100ms"],
    ));
    let first = watching.line();
    assert!(
        first.contains("Z  now ") && first.contains("\"me\""),
        "{first}"
    );
    guard.unlock().unwrap();
    let freed = watching.line();
    assert!(
        freed.contains("Z  freed ") && freed.contains("\"me\""),
        "{freed}"
    );
}

#[test]
fn an_outage_is_survived_and_said() {
    let server = Server::start();
    let manager = labelled(&server, "me");
    let long = manager.with(LockOptions::new().fixed_lease(Duration::from_secs(3600)));
    let _guard = long.lock("n").unwrap();
    let mut watching = Watching::of(&server, "n");
    watching.event("first_look");
    server.kill();
    let lost = watching.event("unreachable");
    assert!(
        lost["error"].is_string() && lost["state"].is_null(),
        "{lost}"
    );
    server.restart();
    watching.event("reachable");
    // The server came back without data.
    watching.event("freed");
    assert_eq!(watching.child.try_wait().unwrap(), None);
}

#[test]
fn int_and_term_end_it_even_in_an_outage() {
    let server = Server::start();
    for signal in [Signal::INT, Signal::TERM] {
        // In the background, a shell has its children ignore INT.
        let watch = fairlock(&server, &["watch", "n", "--json"]);
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT,TERM")
            .arg(watch.get_program())
            .args(watch.get_args());
        for (name, value) in watch.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let mut watching = Watching::start(&mut command);
        watching.event("first_look");
        server.stop();
        watching.signal(signal);
        let status = watching.end();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        server.cont();
    }
}

#[test]
fn an_interval_below_100ms_or_above_a_day_is_refused() {
    let server = Server::start();
    for interval in ["99ms", "0s", "1", "-1s", "86401s", "500000000000y"] {
        let option = format!("--interval={interval}");
        let mut watching = Watching::start(&mut fairlock(&server, &["watch", "n", &option]));
        assert_eq!(watching.end().code(), Some(64), "{interval}");
    }
}

#[test]
fn watch_ends_when_nobody_reads_its_lines() {
    let server = Server::start();
    let mut command = fairlock(&server, &["watch", "quiet", "--interval", "1h"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut first).unwrap();
    drop(stdout);
    let ended = until_some(SLACK * 8, "it ends", || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0), "after {first:?}");
}
