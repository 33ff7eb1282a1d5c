//! `fairlock why-waiting`.

use crate::support::child::{Role, receive, report};
use crate::*;

/// Holds a name, and waits for another when it is asked to, until its parent ends it.
pub(crate) const HOLDS_AND_WAITS: (&str, Role) = ("holds_and_waits", |args| {
    let [url, held, wanted] = args else {
        panic!("{args:?}")
    };
    let manager = patient(url, "worker");
    let _guard = manager.lock(held).expect("it is free");
    report("holds");
    receive();
    let _other = manager.lock(wanted).expect("its turn");
    report("got it");
    receive();
});

/// Processes that each hold the first name, and wait for the second.
fn holders<const N: usize>(server: &Server, names: [[&str; 2]; N]) -> [Child; N] {
    let mut children = names.map(|[held, wanted]| {
        let child = Child::spawn(HOLDS_AND_WAITS.0, &[&server.url(), held, wanted]);
        child.expect("holds", LONG);
        child
    });
    for (child, [_, wanted]) in children.iter_mut().zip(names) {
        child.send("wait");
        until_queued(server, wanted, 1);
    }
    children
}

/// The chain of this name. The command ends with this code.
pub(crate) fn why_waiting(server: &Server, name: &str, code: i32) -> Ended {
    let ended = exits(fairlock(server, &format!("why-waiting {name}")), code);
    assert!(code == 1 || ended.stderr.is_empty(), "{ended:?}");
    ended
}

pub(crate) fn json(server: &Server, name: &str) -> Value {
    let ended = end(fairlock(server, &format!("why-waiting {name} --json")));
    serde_json::from_str(&ended.stdout).expect("one object")
}

#[test]
fn deadlock_of_two_processes_is_named_with_its_remedy() {
    let server = Server::start();
    let [one, two] = holders(&server, [["x", "it's y"], ["it's y", "x"]]);
    let ended = why_waiting(&server, "x", 2);
    is_golden("why-waiting.text.txt", &masked(&ended.stdout));
    let unread = code_unread(&mut fairlock(&server, "why-waiting x"), || ());
    assert_eq!(unread, Some(2), "though nobody reads the answer");
    let object = json(&server, "x");
    let text = serde_json::to_string_pretty(&object).expect("JSON");
    is_golden("why-waiting.json.txt", &masked(&(text + "\n")));
    let holders = [0, 1].map(|at| object["waits"][at]["holder"]["pid"].clone());
    assert_eq!(holders, [one.pid(), two.pid()].map(Value::from));
    let fence = &object["deadlocks"][0]["locks"][0]["fence"];
    let remedy = format!("release x --fence {fence}");
    ended.shows(&format!("  fairlock {remedy}\n"));
    exits(fairlock(&server, &format!("{remedy} --yes")), 0);
    // The first has lost x, and still waits. The second has both.
    two.expect("got it", LONG);
    why_waiting(&server, "\"it's y\"", 0);
}

#[test]
fn thread_that_waits_for_itself_is_a_deadlock() {
    let server = Server::start();
    let _child = holders(&server, [["-v", "-v"]]);
    let ended = why_waiting(&server, "-- -v", 2);
    has_parts(&ended.stdout, "\n  fairlock release --fence | -- -v\n");
}

#[test]
fn name_that_nobody_holds_is_explained() {
    let server = Server::start();
    let ended = why_waiting(&server, "'a\nb'", 1);
    assert_eq!(ended.stdout, "");
    ended.says("\"a\\nb\"");
    // A lock that was released leaves a record, and nobody in it.
    let manager = manager(&server);
    manager.lock("n").unwrap().unlock().unwrap();
    why_waiting(&server, "n", 1);
    let cooling = LockOptions::new().hold_at_least(Duration::from_secs(3600));
    manager.with(cooling).lock("n").unwrap().unlock().unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_queued(&server, "n", 1);
    why_waiting(&server, "n", 0).shows("  nobody holds it: \"n\": mutex, cooling");
}
