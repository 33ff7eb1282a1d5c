//! `fairlock why-waiting`.

use std::thread;
use std::time::Duration;

use fairlock::{LockOptions, inspect::LockInfo};
use serde_json::{Value, json};

use crate::look::{fairlock, labelled, patient, until_awaited};
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

/// A process that holds one name. It waits for the other when it gets a line.
fn holder(server: &Server, held: &str, wanted: &str) -> Child {
    let child = Child::spawn(HOLDS_AND_WAITS.0, &[&server.url(), held, wanted]);
    child.expect("holds", SOON);
    child
}

fn why_waiting(server: &Server, name: &str) -> Ended {
    end(&mut fairlock(server, &["why-waiting", name]))
}

fn json(server: &Server, name: &str) -> (Option<i32>, Value) {
    let ended = end(&mut fairlock(server, &["why-waiting", name, "--json"]));
    let object = serde_json::from_str(&ended.stdout).expect("one object");
    (ended.code, object)
}

#[test]
fn deadlock_of_two_processes_is_named_with_its_remedy() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let mut one = holder(&server, "x", "it's y");
    let mut two = holder(&server, "it's y", "x");
    for (child, name) in [(&mut one, "it's y"), (&mut two, "x")] {
        child.send("wait");
        until_awaited(&manager, name, 1);
    }
    let ended = why_waiting(&server, "x");
    assert_eq!((ended.code, &*ended.stderr), (Some(2), ""), "{ended:?}");
    let fence = |name: &str| manager.inspect(name).unwrap().unwrap().fence;
    let remedy = format!("fairlock release x --fence {}", fence("x"));
    let quoted = format!(r"fairlock release 'it'\''s y' --fence {}", fence("it's y"));
    for part in [
        "Deadlock: each of these",
        &format!("process {} on ", one.pid()),
        &format!("process {} on ", two.pid()),
        "label \"worker\", holds x and waits for it's y",
        "label \"worker\", holds it's y and waits for x",
        &remedy,
        &quoted,
    ] {
        assert!(ended.stdout.contains(part), "no {part}: {}", ended.stdout);
    }
    let unread = code_unread(&mut fairlock(&server, &["why-waiting", "x"]));
    assert_eq!(unread, Some(2), "though nobody reads the answer");
    let (code, object) = json(&server, "x");
    assert_eq!(code, Some(2));
    let circle = &object["deadlocks"][0];
    assert_eq!(circle["certain"], Value::Bool(true));
    assert_eq!(
        circle["locks"][0],
        json!({"name": "x", "fence": fence("x")})
    );
    let wait = &object["waits"][0];
    assert_eq!(
        (&wait["holds"], &wait["waits_for"]),
        (&json!("x"), &json!("it's y"))
    );
    assert_eq!(
        (&wait["position"], &wait["through"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(wait["holder"]["pid"], json!(one.pid()));
    assert!(wait["waited"].as_f64().is_some_and(|waited| waited >= 0.0));

    let words: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
    assert_eq!(end(&mut fairlock(&server, &words)).code, Some(0));
    // The first has lost x, and still waits. The second has both.
    two.expect("got it", SOON);
    assert_eq!(why_waiting(&server, "it's y").code, Some(0));
}

#[test]
fn chain_through_processes_ends_at_the_holder_that_does_not_wait() {
    let server = Server::start();
    let manager = labelled(&server, "nightly");
    let guard = manager.lock("z").unwrap();
    let mut children = [holder(&server, "x", "y"), holder(&server, "y", "z")];
    for (child, name) in children.iter_mut().zip(["y", "z"]) {
        child.send("wait");
        until_awaited(&manager, name, 1);
    }
    let ended = why_waiting(&server, "x");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    let [one, two] = children.each_ref().map(|child| child.pid());
    for (line, (begin, part)) in ended.stdout.lines().zip([
        ("x: mutex", ""),
        ("  held for ", &*format!(" by process {one} ")),
        (
            "    which waits for ",
            "position 1, for y: mutex, 1 waiting",
        ),
        ("      held for ", &format!(" by process {two} ")),
        (
            "        which waits for ",
            "position 1, for z: mutex, 1 waiting",
        ),
        (
            "          held for ",
            &format!("label \"nightly\", fence {}", guard.fence()),
        ),
        ("            which waits for no lock", ""),
    ]) {
        assert!(
            line.starts_with(begin) && line.contains(part),
            "{line:?}: {part}"
        );
    }
    let (code, object) = json(&server, "x");
    assert_eq!(code, Some(0));
    let locks = object["locks"].as_array().expect("a list");
    let locks: Vec<LockInfo> = locks
        .iter()
        .map(|lock| serde_json::from_value(lock.clone()).expect("a lock"))
        .collect();
    let names: Vec<&str> = locks.iter().map(|lock| &*lock.name).collect();
    assert_eq!(names, ["x", "y", "z"]);
    assert_eq!(object["deadlocks"], json!([]));
}

#[test]
fn several_holders_are_shown_as_a_tree() {
    let server = Server::start();
    let manager = labelled(&server, "idle");
    let _readers = [
        manager.rw_lock("shared").read().unwrap(),
        manager.rw_lock("shared").read().unwrap(),
    ];
    let _other = labelled(&server, "other").lock("other").unwrap();
    let third = labelled(&server, "third");
    thread::scope(|scope| {
        scope.spawn(|| {
            let _read = third.rw_lock("shared").read().unwrap();
            assert!(third.try_lock_for("other", SOON / 10).unwrap().is_none());
        });
        until_awaited(&manager, "other", 1);
        let text = why_waiting(&server, "shared").stdout;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "shared: reader/writer lock", "{text}");
        let waits = lines[1].starts_with("  held for ") && lines[1].contains("third");
        assert!(waits && lines[2].contains(" other: mutex"), "{text}");
        let idle = |line: &&&str| line.starts_with("  held for ") && line.contains("idle");
        assert_eq!(lines.iter().filter(idle).count(), 2, "{text}");
    });
}

#[test]
fn thread_that_waits_for_itself_is_a_deadlock() {
    let server = Server::start();
    let mut child = holder(&server, "-v", "-v");
    child.send("wait");
    until_awaited(&labelled(&server, ""), "-v", 1);
    let ended = end(&mut fairlock(&server, &["why-waiting", "--", "-v"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let what = "a lock that it took itself";
    let is_remedy =
        |line: &str| line.starts_with("  fairlock release --fence ") && line.ends_with(" -- -v");
    assert!(
        ended.stdout.contains(what) && ended.stdout.lines().any(is_remedy),
        "{ended:?}"
    );
}

#[test]
fn name_that_nobody_holds_is_explained() {
    let server = Server::start();
    let ended = why_waiting(&server, "a\nb");
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.stderr.contains("nobody holds \"a\\nb\""), "{ended:?}");
    // A lock that was released leaves a record, and nobody in it.
    let manager = labelled(&server, "");
    manager.lock("n").unwrap().unlock().unwrap();
    assert_eq!(why_waiting(&server, "n").code, Some(1));
    let cooling = LockOptions::new().hold_at_least(Duration::from_secs(3600));
    manager.with(cooling).lock("n").unwrap().unlock().unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_awaited(&manager, "n", 1);
    let ended = why_waiting(&server, "n");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ["n: mutex, 1 waiting", "nobody holds it: it cools for "];
    assert!(
        lines.iter().all(|line| ended.stdout.contains(line)),
        "{ended:?}"
    );
}
