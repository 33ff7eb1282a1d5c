//! `fairlock why-waiting`.

use std::thread;
use std::time::Duration;

use fairlock::LockOptions;
use serde_json::{Value, json};

use crate::look::{fairlock, is_golden, labelled, masked, patient, until_awaited};
use crate::process::{Ended, code_unread, end};
use crate::support::child::{Role, receive, report};
use crate::support::{Child, Server};

const SOON: Duration = Duration::from_secs(20);

/// Holds a name, and waits for another when it is asked to, until its parent ends it.
pub(crate) const HOLDS_AND_WAITS: (&str, Role) = ("holds_and_waits", |args| {
    let [url, held, wanted] = args else {
        panic!("{args:?}")
    };
    let manager = patient(url, LockOptions::new().label("worker"));
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
        child.expect("holds", SOON);
        child
    });
    for (child, [_, wanted]) in children.iter_mut().zip(names) {
        child.send("wait");
        until_awaited(&labelled(server, ""), wanted, 1);
    }
    children
}

pub(crate) fn why_waiting(server: &Server, args: &[&str]) -> Ended {
    end(fairlock(server, &[&["why-waiting"], args].concat()))
}

pub(crate) fn json(server: &Server, name: &str) -> Value {
    let ended = why_waiting(server, &[name, "--json"]);
    serde_json::from_str(&ended.stdout).expect("one object")
}

#[test]
fn deadlock_of_two_processes_is_named_with_its_remedy() {
    let server = Server::start();
    let [one, two] = holders(&server, [["x", "it's y"], ["it's y", "x"]]);
    let ended = why_waiting(&server, &["x"]);
    assert_eq!((ended.code, &*ended.stderr), (Some(2), ""), "{ended:?}");
    is_golden("why-waiting.text.txt", &masked(&ended.stdout));
    let unread = code_unread(&mut fairlock(&server, &["why-waiting", "x"]));
    assert_eq!(unread, Some(2), "though nobody reads the answer");
    let object = json(&server, "x");
    let text = serde_json::to_string_pretty(&object).expect("JSON");
    is_golden("why-waiting.json.txt", &masked(&(text + "\n")));
    let holders = [0, 1].map(|at| object["waits"][at]["holder"]["pid"].clone());
    assert_eq!(holders, [json!(one.pid()), json!(two.pid())]);
    let fence = &object["deadlocks"][0]["locks"][0]["fence"];
    let remedy = format!("fairlock release x --fence {fence}");
    ended.shows(&remedy);
    let words: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
    assert_eq!(end(fairlock(&server, &words)).code, Some(0));
    // The first has lost x, and still waits. The second has both.
    two.expect("got it", SOON);
    assert_eq!(why_waiting(&server, &["it's y"]).code, Some(0));
}

#[test]
fn chain_through_processes_ends_at_the_holder_that_does_not_wait() {
    let server = Server::start();
    let _guard = labelled(&server, "nightly").lock("z").unwrap();
    let [one, two] = holders(&server, [["x", "y"], ["y", "z"]]);
    let ended = why_waiting(&server, &["x"]);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    let last = ended.stdout.lines().next_back().expect("a line");
    assert_eq!(last, "            which waits for no lock");
    let object = json(&server, "x");
    let names = [0, 1, 2].map(|at| object["locks"][at]["name"].clone());
    assert_eq!(names, ["x", "y", "z"].map(Value::from));
    for (at, holds, waits_for, pid) in [(0, "x", "y", one.pid()), (1, "y", "z", two.pid())] {
        let wait = &object["waits"][at];
        let found = (&wait["holds"], &wait["waits_for"], &wait["holder"]["pid"]);
        assert_eq!(found, (&json!(holds), &json!(waits_for), &json!(pid)));
    }
    assert_eq!(object["deadlocks"], json!([]));
}

#[test]
fn several_holders_are_shown_as_a_tree() {
    let server = Server::start();
    let manager = labelled(&server, "idle");
    let _readers = [0; 12].map(|_| manager.rw_lock("shared").read().unwrap());
    let _other = labelled(&server, "other").lock("other").unwrap();
    let third = labelled(&server, "third");
    thread::scope(|scope| {
        scope.spawn(|| {
            let _read = third.rw_lock("shared").read().unwrap();
            assert!(third.try_lock_for("other", SOON / 10).unwrap().is_none());
        });
        until_awaited(&manager, "other", 1);
        let text = why_waiting(&server, &["shared"]).stdout;
        let lines: Vec<&str> = text.lines().collect();
        let waits = lines[1].starts_with("  held for ") && lines[1].contains("third");
        assert!(waits && lines[2].contains(" other: mutex"), "{text}");
        let idle = |line: &&&str| line.starts_with("  held for ") && line.contains("idle");
        assert_eq!(lines.iter().filter(idle).count(), 9, "{text}");
        assert_eq!(lines.last(), Some(&"  and 3 more holders"));
    });
}

#[test]
fn thread_that_waits_for_itself_is_a_deadlock() {
    let server = Server::start();
    let _child = holders(&server, [["-v", "-v"]]);
    let ended = why_waiting(&server, &["--", "-v"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let remedy = ended.stdout.lines().next_back().expect("a line");
    assert!(
        remedy.starts_with("  fairlock release --fence "),
        "{ended:?}"
    );
    assert!(remedy.ends_with(" -- -v"), "{ended:?}");
}

#[test]
fn name_that_nobody_holds_is_explained() {
    let server = Server::start();
    let ended = why_waiting(&server, &["a\nb"]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    ended.says("\"a\\nb\"");
    // A lock that was released leaves a record, and nobody in it.
    let manager = labelled(&server, "");
    manager.lock("n").unwrap().unlock().unwrap();
    assert_eq!(why_waiting(&server, &["n"]).code, Some(1));
    let cooling = LockOptions::new().hold_at_least(Duration::from_secs(3600));
    manager.with(cooling).lock("n").unwrap().unlock().unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_awaited(&manager, "n", 1);
    let ended = why_waiting(&server, &["n"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.shows("  nobody holds it: \"n\": mutex, cooling");
}
