//! `fairlock why-waiting`.

use std::thread;
use std::time::Duration;

use fairlock::LockOptions;
use serde_json::Value;

use crate::look::{fairlock, labelled, patient, until_awaited};
use crate::process::{Ended, code_unread, end};
use crate::support::child::{Role, receive, report};
use crate::support::{Child, Server, until};

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
    let mut one = holder(&server, "x", "y");
    let mut two = holder(&server, "y", "x");
    for (child, name) in [(&mut one, "y"), (&mut two, "x")] {
        child.send("wait");
        until_awaited(&manager, name, 1);
    }
    let ended = why_waiting(&server, "x");
    assert_eq!((ended.code, &*ended.stderr), (Some(2), ""), "{ended:?}");
    let fence = |name: &str| manager.inspect(name).unwrap().unwrap().fence;
    let remedy = format!("fairlock release x --fence {}", fence("x"));
    for part in [
        "Deadlock: each of these waits for a lock that the next one holds.",
        &format!("process {} on ", one.pid()),
        &format!("process {} on ", two.pid()),
        "label \"worker\", holds x and waits for y",
        "label \"worker\", holds y and waits for x",
        &remedy,
        &format!("fairlock release y --fence {}", fence("y")),
    ] {
        assert!(ended.stdout.contains(part), "no {part}: {}", ended.stdout);
    }
    let unread = code_unread(&mut fairlock(&server, &["why-waiting", "x"]));
    assert_eq!(unread, Some(2), "though nobody reads the answer");
    let (code, object) = json(&server, "y");
    assert_eq!(code, Some(2));
    let circle = &object["deadlocks"][0];
    assert_eq!(
        (&circle["certain"], &circle["locks"][0]["name"]),
        (&Value::Bool(true), &"y".into())
    );

    let words: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
    assert_eq!(end(&mut fairlock(&server, &words)).code, Some(0));
    // The first has lost x, and still waits. The second has both.
    two.expect("got it", SOON);
    assert_eq!(why_waiting(&server, "y").code, Some(0));
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
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [x, by_one, y, by_two, z, by_us, end] = lines[..] else {
        panic!("{}", ended.stdout)
    };
    assert_eq!(
        (x, end),
        ("x: mutex", "            which waits for no lock")
    );
    for (line, begin, part) in [
        (
            by_one,
            "  held for ",
            format!(" by process {} ", children[0].pid()),
        ),
        (
            y,
            "    which waits for ",
            "position 1, for y: mutex, 1 waiting".to_owned(),
        ),
        (
            by_two,
            "      held for ",
            format!(" by process {} ", children[1].pid()),
        ),
        (
            z,
            "        which waits for ",
            "position 1, for z: mutex, 1 waiting".to_owned(),
        ),
        (
            by_us,
            "          held for ",
            format!("label \"nightly\", fence {}", guard.fence()),
        ),
    ] {
        assert!(
            line.starts_with(begin) && line.contains(&part),
            "{line:?}: {part}"
        );
    }
    let (code, object) = json(&server, "x");
    assert_eq!(code, Some(0));
    let names: Vec<&Value> = object["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| &l["name"])
        .collect();
    assert_eq!(names, ["x", "y", "z"]);
    assert_eq!(object["deadlocks"], Value::Array(Vec::new()));
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
        assert!(
            lines[1].starts_with("  held for ") && lines[1].contains("third"),
            "{text}"
        );
        assert!(lines[2].starts_with("    which waits for ") && lines[2].contains(" other: mutex"));
        let idle = lines
            .iter()
            .filter(|line| line.starts_with("  held for ") && line.contains("idle"));
        assert_eq!(idle.count(), 2, "{text}");
    });
}

#[test]
fn thread_that_waits_for_itself_is_a_deadlock() {
    let server = Server::start();
    let mut child = holder(&server, "it's mine", "it's mine");
    child.send("wait");
    until_awaited(&labelled(&server, ""), "it's mine", 1);
    let ended = why_waiting(&server, "it's mine");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stdout.contains("a lock that it took itself"),
        "{ended:?}"
    );
    let remedy = r"  fairlock release 'it'\''s mine' --fence ";
    assert!(ended.stdout.contains(remedy), "{ended:?}");
}

/// A record of an older version has no number of the thread.
#[test]
fn holder_without_a_thread_number_may_be_the_one_that_waits() {
    let server = Server::start();
    let mut child = holder(&server, "x", "y");
    let manager = labelled(&server, "");
    let _guard = manager.lock("y").unwrap();
    child.send("wait");
    until_awaited(&manager, "y", 1);
    let label: String = server.query(&["HGET", "fairlock:{x}", "l"]);
    let parts: Vec<&str> = label.split('\t').collect();
    let name = parts[2].split('#').next().expect("a name");
    let older = [parts[0], parts[1], name, parts[3]].join("\t");
    let _: i64 = server.query(&["HSET", "fairlock:{x}", "l", &older]);
    let ended = why_waiting(&server, "x");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("which may wait for "), "{ended:?}");
    let (_, object) = json(&server, "x");
    assert_eq!(object["waits"][0]["certain"], Value::Bool(false));
    assert_eq!(object["locks"][0]["holders"][0]["thread_id"], Value::Null);
}

#[test]
fn name_that_nobody_uses_exits_1() {
    let server = Server::start();
    let ended = why_waiting(&server, "a\nb");
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert_eq!(
        ended.stderr,
        "fairlock: nobody holds \"a\\nb\" or waits for it\n"
    );
    // A lock that was released leaves a record, and nobody in it.
    labelled(&server, "").lock("n").unwrap().unlock().unwrap();
    assert_eq!(why_waiting(&server, "n").code, Some(1));
}

#[test]
fn name_that_cools_is_explained() {
    let server = Server::start();
    let cooling = LockOptions::new().hold_at_least(Duration::from_secs(3600));
    let manager = labelled(&server, "").with(cooling);
    manager.lock("n").unwrap().unlock().unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    let ended = why_waiting(&server, "n");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("nobody holds it: it cools for "),
        "{ended:?}"
    );
    until(SOON, "it waits", || {
        why_waiting(&server, "n").stdout.contains("1 waiting")
    });
}
