//! `fairlock bench`. No test says how fast anything is.

use crate::*;

/// On a busy machine the server may be slow, and then a short timeout would be an outage.
fn bench(server: &Server, args: &str) -> Command {
    fairlock(server, &format!("bench --command-timeout 10s {args}"))
}

fn keys(server: &Server) -> Vec<String> {
    server.query(&["KEYS", "*"])
}

#[test]
fn bench_prints_each_measurement_and_spares_the_locks_of_others() {
    let server = Server::start();
    // Keys contain these characters in another form.
    let guard = manager(&server).lock("{a}%").unwrap();
    let before = keys(&server);
    let args = "--duration 30ms --threads 3 --names {a}%";
    let table = exits(bench(&server, args), 0);
    let ended = exits(bench(&server, &format!("{args} --json")), 0);
    ended.says("loads the server");
    let lines = ended.stdout.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.map(|line| line.expect("JSON")).collect();
    let names: Vec<_> = lines.iter().map(|line| &line["measurement"]).collect();
    assert_eq!(names, ["round_trip", "lock_unlock", "hand_over", "all"]);
    for line in &lines[..3] {
        table.shows(line["measurement"].as_str().expect("a name"));
        let number = |field: &str| line[field].as_f64().expect("a number");
        let times = ["p50", "p90", "p99", "max"].map(number);
        assert!(times[0] > 0.0 && times.is_sorted(), "{line}");
        assert!(number("round_trips") > 0.0 && number("per_second") > 0.0);
    }
    assert_eq!(lines[1]["threads"], 3);
    let counts = lines[..3].iter().map(|line| line["count"].as_u64());
    let counted: u64 = counts.map(|count| count.expect("a count")).sum();
    assert!(lines[3]["requests"].as_u64() > Some(counted), "{counted}");
    assert_eq!(keys(&server), before);
    guard.renew().expect("still held");
    exits(bench(&server, &format!("--names {}", "x".repeat(512))), 64);
}

#[test]
fn interrupted_bench_leaves_no_key_behind() {
    let server = Server::start();
    // Locks are taken from the second measurement on, and the hand-overs have a queue.
    for (signal, code, key) in [(Signal::INT, 130, "}"), (Signal::TERM, 143, "}:q")] {
        let mut run = Run::start(bench(&server, "--duration 300ms --names mine"));
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
    let measures = |before| {
        let more = || server.commands_processed() > before + 100;
        until(LONG, "it measures", more);
    };
    let mut unread = bench(&server, "--duration 1h");
    assert_eq!(code_unread(&mut unread, || measures(0)), Some(0));
    assert_eq!(keys(&server), [""; 0]);
    let before = server.commands_processed();
    // An error comes after two timeouts, so these are short. The usual ones would be over before
    // the kill where the machine is busy.
    let line = "bench --command-timeout 2s --duration 1h";
    let mut run = Run::start(fairlock(&server, line));
    measures(before);
    server.kill();
    assert_eq!(run.ended().code, Some(69));
}

#[test]
fn young_quorum_is_no_conflict_and_keeps_the_names_of_a_bench() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = urls(&servers);
    let ended = exits(at(&urls, "run --wait 300ms a -- true"), 69);
    ended.says("it has run for less than the ttl");
    // A server that has just started has no vote until a ttl is over.
    let ended = until_some(LONG, "it measures", || {
        let ended = end(at(&urls, "bench --duration 20ms"));
        (ended.code == Some(0)).then_some(ended)
    });
    ended.says("is not deleted; Redis forgets it within an hour");
}
