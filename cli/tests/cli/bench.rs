//! `fairlock bench`. No test says how fast anything is.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::look::labelled;
use crate::process::{end, fairlock};
use crate::support::{Server, until, until_some};

const SOON: Duration = Duration::from_secs(20);

/// On a busy machine the server may be slow, and then the default timeout would be an outage.
fn bench(server: &Server, args: &[&str]) -> Command {
    fairlock(
        server,
        &[&["bench", "--command-timeout", "10s"], args].concat(),
    )
}

fn keys(server: &Server) -> Vec<String> {
    server.query(&["KEYS", "*"])
}

#[test]
fn bench_prints_each_measurement_next_to_the_round_trip() {
    let server = Server::start();
    let args = ["--duration", "30ms", "--threads", "3", "--json"];
    let ended = end(&mut bench(&server, &args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("loads the server"), "{ended:?}");
    let lines: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let names: Vec<_> = lines
        .iter()
        .map(|line| line["measurement"].as_str().expect("a name"))
        .collect();
    let measurements = ["round_trip", "lock_unlock", "hand_over", "all"];
    assert_eq!(names, measurements);
    for line in &lines[..3] {
        let number = |field: &str| line[field].as_f64().expect("a number");
        let times = ["p50", "p90", "p99", "max"].map(number);
        assert!(times[0] > 0.0 && times.is_sorted(), "{line}");
        assert!(number("round_trips") > 0.0 && number("per_second") > 0.0);
    }
    assert_eq!(lines[1]["threads"], 3);
    let counted: u64 = lines[..3]
        .iter()
        .map(|line| line["count"].as_u64().expect("a count"))
        .sum();
    assert!(lines[3]["requests"].as_u64() > Some(counted), "{counted}");
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn bench_prints_a_table_and_spares_the_locks_of_others() {
    let server = Server::start();
    // Keys contain these characters in another form.
    let guard = labelled(&server, "").lock("{a}%").expect("free");
    let before = keys(&server);
    let args = ["--duration", "20ms", "--threads", "1", "--names", "{a}%"];
    let ended = end(&mut bench(&server, &args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in ["p99", "lock_unlock", "hand_over", "requests"] {
        assert!(ended.stdout.contains(part), "{part}: {ended:?}");
    }
    assert_eq!(keys(&server), before);
    guard.renew().expect("still held");
}

/// Ends in time, with nothing left.
#[track_caller]
fn assert_ends(mut process: Child, code: i32) {
    let status = until_some(SOON, "it ends", || process.try_wait().expect("its state"));
    assert_eq!(status.code(), Some(code));
}

fn start(mut command: Command) -> Child {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::null());
    piped.spawn().expect("the binary starts")
}

#[test]
fn interrupted_bench_leaves_no_key_behind() {
    let server = Server::start();
    // Locks are taken from the second measurement on, and the hand-overs have a queue.
    for (signal, code, key) in [(Signal::INT, 130, "}"), (Signal::TERM, 143, "}:q")] {
        let process = start(bench(&server, &["--duration", "300ms", "--names", "mine"]));
        until(SOON, "a lock", || {
            keys(&server).iter().any(|shown| shown.ends_with(key))
        });
        kill_process(Pid::from_child(&process), signal).expect("it runs");
        assert_ends(process, code);
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[test]
fn bench_ends_when_nobody_reads_or_its_server_dies() {
    let server = Server::start();
    let mut process = start(bench(&server, &["--duration", "1h"]));
    until(SOON, "it measures", || server.commands_processed() > 100);
    drop(process.stdout.take());
    assert_ends(process, 0);
    assert_eq!(keys(&server), [""; 0]);
    let before = server.commands_processed();
    // An error comes after two timeouts, so these are short. The usual ones would be over before
    // the kill where the machine is busy.
    let times = ["bench", "--command-timeout", "2s", "--duration", "1h"];
    let process = start(fairlock(&server, &times));
    let measures = || server.commands_processed() > before + 100;
    until(SOON, "it measures", measures);
    server.kill();
    assert_ends(process, 69);
}

#[test]
fn wrong_names_and_threads_exit_64() {
    let server = Server::start();
    let long = "x".repeat(512);
    for args in [["--names", &long], ["--threads", "0"], ["--duration", "5"]] {
        let ended = end(&mut bench(&server, &args));
        assert_eq!(ended.code, Some(64), "{ended:?}");
    }
}
