//! An owner that asks for it is told that others want its lock, whatever the server refuses. A try
//! gives it a moment to let go. On Redis alone: memory and rights are limited there.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use fairlock::{LockManager, LockOptions, Misuse};
use redis::Connection;

use crate::fixtures::{LOG_ALL, Record, SOON, T, Verb, log_of, manager, manager_of, warm_up};
use crate::support::{SLACK, Server};

/// For so long a try waits for an owner that was told, and for no longer than T.
const A_MOMENT: Duration = Duration::from_millis(50);

/// A connection that hears all messages about grants.
fn listening(server: &Server) -> Connection {
    let connection = server.connection();
    connection.set_read_timeout(Some(SOON)).unwrap();
    connection
}

/// Makes the owner of this lock one that keeps it, and wants to hear of others.
fn keeps(server: &Server, name: &str) -> String {
    let request = of_such_an_owner(server, name, "65535 2");
    format!("fairlock:grants:{}", manager_of(&request))
}

/// Puts a spare and the word `hears` into the request of the owner, which has none. Returns it.
fn of_such_an_owner(server: &Server, name: &str, handovers: &str) -> String {
    let record = Record::of(server, name);
    let request = record.field("a").expect("somebody owns it");
    let request = format!("{request} {handovers}");
    record.set(&[("a", &request)]);
    request
}

fn answers_with_the_message(server: &Server, ask: impl FnOnce(&LockManager)) {
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&other);
    let held = ours.lock("a").unwrap();
    let channel = keeps(server, "a");
    let mut listening = listening(server);
    let mut messages = listening.as_pubsub();
    messages.psubscribe("fairlock:grants:*").unwrap();
    ask(&other);
    let message = messages.get_message().expect("the owner is told");
    let text: String = message.get_payload().unwrap();
    assert_eq!(message.get_channel_name(), channel);
    assert_eq!(text, format!("wanted {} fairlock:{{a}}", held.fence()));
}

#[test]
fn full_server_answers_a_try_and_tells_the_owner() {
    let server = Server::start();
    answers_with_the_message(&server, |other| {
        // The server knows the script before it is full.
        let _held = other.lock("b").unwrap();
        assert!(other.try_lock("b").unwrap().is_none());
        let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(other.try_lock("a").unwrap().is_none());
    });
    let fields = Record::of(&server, "a").fields();
    assert!(!fields.contains_key("bf"), "{fields:?}");
}

#[test]
fn waiter_tells_the_owner_once() {
    let server = Server::start();
    answers_with_the_message(&server, |other| {
        let waited = Duration::from_millis(1);
        assert!(other.try_lock_for("a", waited).unwrap().is_none());
        assert!(other.try_lock("a").unwrap().is_none());
    });
    let record = Record::of(&server, "a");
    assert_eq!(record.number("bf"), record.number("f"));
    assert!(record.number("bt") >= record.number("g"));
}

#[test]
fn other_kind_of_lock_tells_the_owner() {
    let server = Server::start();
    answers_with_the_message(&server, |other| {
        let refused = other.semaphore("a", 1).try_acquire(1);
        assert!(
            matches!(
                refused,
                Err(fairlock::Error::Misused {
                    misuse: Misuse::Kind { .. },
                    ..
                })
            ),
            "{refused:?}"
        );
    });
}

/// The message is refused, and the answer comes all the same.
#[test]
fn owner_is_not_told_by_a_user_without_its_channel() {
    let server = Server::start();
    let ours = manager(server.url());
    let _held = ours.lock("a").unwrap();
    keeps(&server, "a");
    let rules = ["on", ">p", "~fairlock:*", "+@all", "resetchannels"];
    let _: () = server.query(&[&["ACL", "SETUSER", "u"][..], &rules].concat());
    let mute = manager(format!("{}?user=u&pass=p", server.url()));
    assert!(mute.try_lock("a").unwrap().is_none());
    let record = Record::of(&server, "a");
    assert_eq!(record.number("bf"), record.number("f"));
}

/// A process that has these names, keeps them, and lets go of each as soon as somebody wants it. Runs
/// `act` meanwhile.
fn beside_a_keeper(server: &Server, names: &[&str], act: impl FnOnce()) {
    let ours = manager(server.url());
    let mut held: Vec<_> = names
        .iter()
        .map(|name| {
            let guard = ours.lock(name).unwrap();
            keeps(server, name);
            (
                format!("wanted {} fairlock:{{{name}}}", guard.fence()),
                guard,
            )
        })
        .collect();
    let (ready, is_ready) = bounded(1);
    thread::scope(|scope| {
        let mut listening = listening(server);
        scope.spawn(move || {
            let mut messages = listening.as_pubsub();
            messages.psubscribe("fairlock:grants:*").unwrap();
            ready.send(()).unwrap();
            while !held.is_empty() {
                let message = messages.get_message().expect("each is wanted");
                let text: String = message.get_payload().unwrap();
                held.retain(|(wanted, _)| *wanted != text);
            }
        });
        is_ready.recv().unwrap();
        act();
    });
}

/// On a busy machine one of these may come too late, and then the next must not.
fn takes_what_a_keeper_lets_go(
    what: &str,
    names: &[&str],
    mut take: impl FnMut(&LockManager) -> bool,
) {
    let server = Server::start();
    let other = manager(server.url());
    warm_up(&other);
    for _ in 0..20 {
        let mut taken = false;
        beside_a_keeper(&server, names, || taken = take(&other));
        if taken {
            return;
        }
    }
    panic!("{what}: it never waits for a keeper that lets go");
}

#[test]
fn try_takes_a_lock_whose_keeper_lets_go() {
    takes_what_a_keeper_lets_go("try_lock", &["a"], |m| m.try_lock("a").unwrap().is_some());
    takes_what_a_keeper_lets_go("try_lock_for", &["a"], |m| {
        m.try_lock_for("a", Duration::ZERO).unwrap().is_some()
    });
    takes_what_a_keeper_lets_go("handle", &["a"], |m| {
        m.mutex("a").try_lock().unwrap().is_some()
    });
    takes_what_a_keeper_lets_go("reentrant", &["a"], |m| {
        m.reentrant_mutex("a").try_lock().unwrap().is_some()
    });
    takes_what_a_keeper_lets_go("fixed", &["a"], |m| {
        let options = LockOptions::new().fixed_lease(Duration::from_secs(10));
        m.with(options).try_lock("a").unwrap().is_some()
    });
}

#[test]
fn try_for_several_takes_locks_whose_keepers_let_go() {
    takes_what_a_keeper_lets_go("all kept", &["a", "b"], |m| {
        m.try_lock_all(["a", "b"]).unwrap().is_some()
    });
    takes_what_a_keeper_lets_go("one kept", &["b"], |m| {
        m.try_lock_all(["a", "b", "c"]).unwrap().is_some()
    });
    takes_what_a_keeper_lets_go("for no time", &["a"], |m| {
        m.try_lock_all_for(["a", "b"], Duration::ZERO)
            .unwrap()
            .is_some()
    });
}

/// The keeper has a guard. P8 (every call ends).
#[test]
fn try_waits_a_moment_for_a_keeper_and_leaves_no_trace() {
    let server = Server::start();
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&other);
    let held = ours.lock_all(["a", "b"]).unwrap();
    keeps(&server, "a");
    let tries: [fn(&LockManager) -> bool; 2] = [
        |m| m.try_lock("a").unwrap().is_some(),
        |m| m.try_lock_all(["a", "c"]).unwrap().is_some(),
    ];
    for take in tries {
        let began = Instant::now();
        assert!(!take(&other));
        let took = began.elapsed();
        assert!(
            A_MOMENT <= took && took <= 3 * T + A_MOMENT + SLACK,
            "{took:?}"
        );
    }
    let record = Record::of(&server, "a");
    assert!(record.starting("w:").is_empty());
    Record::of(&server, "c").comes_to_rest();
    drop(held);
    record.comes_to_rest();
}

/// Nobody lets go for a try here, so it asks once.
#[test]
fn try_waits_for_no_other_owner() {
    let server = Server::start_with(&LOG_ALL);
    let (ours, other) = (manager(server.url()), manager(server.url()));
    warm_up(&other);
    let _held = ours.lock_all(["a", "b", "c", "d"]).unwrap();
    // It only hears, and does not keep the lock.
    of_such_an_owner(&server, "b", "0 1");
    keeps(&server, "c");
    keeps(&server, "d");
    let asked = || ["a", "b", "c", "d"].map(|name| log_of(&server, Verb::Acquire, name).len());
    let before = asked();
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(other.try_lock("b").unwrap().is_none());
    // One of the two is not kept.
    assert!(other.try_lock_all(["a", "c"]).unwrap().is_none());
    // With so short a lease nobody may wait.
    let short = LockOptions::new().fixed_lease(Duration::from_millis(20));
    assert!(other.with(short).try_lock("d").unwrap().is_none());
    let after = asked();
    let asked: Vec<_> = before
        .iter()
        .zip(after)
        .map(|(before, after)| after - before)
        .collect();
    assert_eq!(asked, [2, 1, 1, 1]);
}

#[test]
fn try_without_the_right_to_subscribe_answers_that_it_is_taken() {
    let server = Server::start();
    let ours = manager(server.url());
    let _held = ours.lock("a").unwrap();
    keeps(&server, "a");
    let rules = ["on", ">p", "~fairlock:*", "&*", "+@all", "-subscribe"];
    let _: () = server.query(&[&["ACL", "SETUSER", "u"][..], &rules].concat());
    let other = manager(format!("{}?user=u&pass=p", server.url()));
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(other.try_lock_all(["a", "b"]).unwrap().is_none());
    Record::of(&server, "b").comes_to_rest();
}
