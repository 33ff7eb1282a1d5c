//! `fairlock bench`. No test says how fast anything is.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::look::labelled;
use crate::process::{code_unread_after, exits, fairlock};
use crate::run::{LONG, Run};
use crate::support::{Server, until};

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
    let ended = exits(bench(&server, &args), 0);
    ended.says("loads the server");
    let lines = ended.stdout.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.map(|line| line.expect("JSON")).collect();
    let names: Vec<_> = lines.iter().map(|line| &line["measurement"]).collect();
    let measurements = ["round_trip", "lock_unlock", "hand_over", "all"];
    assert_eq!(names, measurements);
    for line in &lines[..3] {
        let number = |field: &str| line[field].as_f64().expect("a number");
        let times = ["p50", "p90", "p99", "max"].map(number);
        assert!(times[0] > 0.0 && times.is_sorted(), "{line}");
        assert!(number("round_trips") > 0.0 && number("per_second") > 0.0);
    }
    assert_eq!(lines[1]["threads"], 3);
    let counts = lines[..3].iter().map(|line| line["count"].as_u64());
    let counted: u64 = counts.map(|count| count.expect("a count")).sum();
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
    let ended = exits(bench(&server, &args), 0);
    for part in ["p99", "lock_unlock", "hand_over", "requests"] {
        ended.shows(part);
    }
    assert_eq!(keys(&server), before);
    guard.renew().expect("still held");
    let long = "x".repeat(512);
    exits(bench(&server, &["--names", &long]), 64);
}

#[test]
fn interrupted_bench_leaves_no_key_behind() {
    let server = Server::start();
    // Locks are taken from the second measurement on, and the hand-overs have a queue.
    for (signal, code, key) in [(Signal::INT, 130, "}"), (Signal::TERM, 143, "}:q")] {
        let args = ["--duration", "300ms", "--names", "mine"];
        let mut run = Run::start(&mut bench(&server, &args));
        until(LONG, "a lock", || {
            keys(&server).iter().any(|shown| shown.ends_with(key))
        });
        run.signal(signal);
        assert_eq!(run.ended().code, Some(code));
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[test]
fn bench_ends_when_nobody_reads_or_its_server_dies() {
    let server = Server::start();
    let mut endless = bench(&server, &["--duration", "1h"]);
    let measured = || until(LONG, "it measures", || server.commands_processed() > 100);
    assert_eq!(code_unread_after(&mut endless, measured), Some(0));
    assert_eq!(keys(&server), [""; 0]);
    let before = server.commands_processed();
    // An error comes after two timeouts, so these are short. The usual ones would be over before
    // the kill where the machine is busy.
    let times = ["bench", "--command-timeout", "2s", "--duration", "1h"];
    let mut run = Run::start(&mut fairlock(&server, &times));
    let measures = || server.commands_processed() > before + 100;
    until(LONG, "it measures", measures);
    server.kill();
    assert_eq!(run.ended().code, Some(69));
}
