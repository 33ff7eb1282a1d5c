//! Chains and deadlocks of locks that no server has.

use std::sync::Arc;

use serde_json::{Value, json};

use super::chain::Scene;
use super::{LockInfo, Locks, settle};

/// `name: holders < waiters`, for instance `x: a < b`. A party is a letter, or `3*a` with
/// permits. `a!` passes the lock from guard to guard, and `a!!` keeps it too.
fn lock(text: &str) -> LockInfo {
    let (name, rest) = text.split_once(": ").expect("a name");
    let (holders, waiters) = rest.split_once('<').expect("holders and waiters");
    let kind = match name.split_once('/') {
        Some((_, permits)) => {
            let permits: u32 = permits.parse().expect("a number");
            json!({"semaphore": {"permits": permits}})
        }
        None => json!("mutex"),
    };
    let parties = |text: &str| text.split_whitespace().map(party).collect::<Vec<_>>();
    let info = json!({
        "name": name, "seen_at": 2.0, "kind": kind, "fence": 7, "holder": null,
        "state": if holders.trim().is_empty() { "free" } else { "held" },
        "holders": parties(holders), "time_left": 9.5,
        "waiters": parties(waiters).len(), "queue": parties(waiters), "lapsed": [],
        "previous_holder": "released", "served": 0
    });
    serde_json::from_value(info).expect("a lock")
}

/// `a` and `a2` are one thread, with two managers.
fn party(text: &str) -> Value {
    let (permits, thread) = text.split_once('*').unwrap_or(("1", text));
    let letter = thread.chars().next().expect("a letter");
    let permits: u32 = permits.parse().expect("a number");
    json!({
        "manager": thread[letter.len_utf8()..].trim_end_matches('!'), "host": "h", "pid": 1,
        "thread": letter, "thread_id": u32::from(letter), "label": "", "since": 1.0,
        "ttl": 10.0, "fence": 7, "permits": permits, "shared": false, "fixed_lease": false,
        "lapsed_for": null, "last_heard": null,
        "hands_over": thread.ends_with('!'), "keeps": thread.ends_with("!!")
    })
}

fn locks<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Locks {
    let locks = texts.into_iter().map(|text| lock(text.as_ref()));
    locks.map(|lock| (Arc::clone(&lock.name), lock)).collect()
}

/// The names of a chain, the number of its waits, and its deadlock: `!` is behind a certain one,
/// and `?` behind another.
fn chain(locks: &Locks, from: &str) -> String {
    let scene = Scene::new(locks);
    let mut report = scene.follow(from);
    report.find_deadlock();
    let mut text: String = report
        .locks
        .iter()
        .map(|lock| format!("{} ", lock.name))
        .collect();
    text += &report.waits.len().to_string();
    let held = report.circle.iter();
    text.extend(held.map(|wait| format!(" {}", wait.holds.name)));
    text + match &report.deadlocks[..] {
        [] => "",
        _ if report.is_certain => "!",
        _ => "?",
    }
}

#[test]
fn chain_ends_or_runs_into_a_circle() {
    let circle = "w: d < ; x: a < b d; y: b < c; z: c < a";
    let uncertain = "s/2: a b < c; x: c < a; y: d < b; z: e < d; w: b < e";
    let other_holder = "s/4: a 3*b < 2*c; x: c < a b";
    for (texts, expected) in [
        ("x: a < z; y: b < a; z: c < b; other: d < e", "x y z 2"),
        ("s/4: a 2*b c < d; x: e < a; y: f < c", "s/4 x y 2"),
        ("s/9: a b < c; x: d < a b; y: e < d", "s/9 x y 3"),
        (circle, "w x z y 4 x z y!"),
        (circle, "x z y 3 x z y!"),
        (circle, "y x z 3 y x z!"),
        ("x: a < b a", "x 1 x!"),
        // Other holders can release enough permits.
        ("s/4: a b < c; x: c < a", "s/4 x 2 s/4 x?"),
        ("s/4: 3*a < 2*c; x: c < a", "s/4 x 2 s/4 x!"),
        (other_holder, "s/4 x 3 x s/4!"),
        (other_holder, "x s/4 3 x s/4!"),
        // The threads are not surely the same.
        ("x: a2 < b; y: b < a", "x y 2 x y?"),
        ("x: a! < b; y: b < a", "x y 2 x y?"),
        ("x: a < b; y: b < a!", "x y 2 x y?"),
        ("x: a!! < b; y: b < a", "x y 2 x y?"),
        // Another thread of the keeper's process.
        ("x: a!! < b; y: b < c", "x y 2 x y?"),
        ("x: a! < b; y: b < c", "x 0"),
        // A certain circle hides an uncertain one.
        (uncertain, "s/2 x y z w 6 y z w!"),
    ] {
        let (from, _) = expected.split_once(' ').expect("a name");
        assert_eq!(chain(&locks(texts.split("; ")), from), expected, "{texts}");
    }
}

fn letter(at: u32) -> char {
    char::from_u32(0x4e00 + at).expect("a letter")
}

#[test]
fn cut_chain_claims_no_end() {
    let texts = (0..500).map(|at| format!("n{at}: {} < {}", letter(at + 1), letter(at)));
    let locks = locks(texts);
    let scene = Scene::new(&locks);
    let report = scene.follow("n0");
    assert_eq!((report.locks.len(), report.waits.len()), (200, 200));
    assert!(!report.lines.concat().contains("waits for no lock"));
}

#[test]
fn holder_that_waits_is_shown_first_and_not_all_others() {
    let locks = locks(["s: a b c d e f g h i j k l m <", "x: n < m"]);
    let scene = Scene::new(&locks);
    let lines = scene.follow("s").lines;
    let waits = lines[1].contains("thread m#") && lines[2].contains("x: mutex");
    let held = lines.iter().filter(|line| line.starts_with("  held for "));
    assert!(waits && held.count() == 10, "{lines:?}");
    assert_eq!(lines.last().expect("a line"), "  and 3 more holders");
}

#[test]
fn many_readers_of_two_locks_are_one_deadlock() {
    let readers = |from| {
        (from..from + 300)
            .map(|at| format!("{} ", letter(at)))
            .collect()
    };
    let (some, others): (String, String) = (readers(0), readers(300));
    let locks = locks([
        format!("x: {some}< {others}"),
        format!("y: {others}< {some}"),
    ]);
    assert_eq!(chain(&locks, "x"), "x y 600 x y!");
}

#[test]
fn deadlock_has_to_be_there_at_two_looks() {
    let later = |text: &str| {
        let mut lock = lock(text);
        lock.holders[0].fence = Some(8);
        lock
    };
    // The same threads, but each got its lock between the looks.
    let changed = vec![later("x: a < b"), later("y: b < a"), lock("x: a < ")];
    for (looks, expected) in [
        (vec![lock("x: a < b"), lock("y: b < a")], "x y 2 x y!"),
        (vec![lock("x: a < ")], "x y 1"),
        (changed, "x y 1"),
    ] {
        let mut locks = locks(["x: a < b", "y: b < a"]);
        let mut looks = looks.into_iter();
        let same = |name: &str| locks[name].clone();
        let (x, y) = (same("x"), same("y"));
        let look = |name: &str| {
            let kept = if name == "x" { &x } else { &y };
            Ok(Some(looks.next().unwrap_or(kept.clone())))
        };
        settle(&mut locks, "x", look).expect("no server");
        assert_eq!(chain(&locks, "x"), expected);
    }
}

#[test]
fn busy_names_end_the_looks_without_a_deadlock() {
    let mut locks = locks(["x: a < b", "y: b < a"]);
    let mut looks = 0;
    let look = |name: &str| {
        looks += 1;
        assert!(looks < 1000, "it looks without end");
        let mut lock = lock(if name == "x" { "x: a < b" } else { "y: b < a" });
        lock.holders[0].fence = Some(looks);
        Ok(Some(lock))
    };
    let is_there = settle(&mut locks, "x", look).expect("no server");
    assert!(!is_there, "each look saw other holders");
}
