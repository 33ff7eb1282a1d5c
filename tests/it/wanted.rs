//! An owner that asks for it is told that others want its lock, whatever the server refuses. On Redis
//! alone: memory and rights are limited there.

use std::time::Duration;

use fairlock::LockManager;
use redis::Connection;

use crate::fixtures::{Record, SOON, manager, manager_of, warm_up};
use crate::support::Server;

/// A connection that hears all messages about grants.
fn listening(server: &Server) -> Connection {
    let connection = server.connection();
    connection.set_read_timeout(Some(SOON)).unwrap();
    connection
}

/// Makes the owner of this lock one that keeps it, and wants to hear of others.
fn keeps(server: &Server, name: &str) -> String {
    let record = Record::of(server, name);
    let request = record.field("a").expect("somebody owns it");
    record.set(&[("a", &format!("{request} 131071"))]);
    format!("fairlock:grants:{}", manager_of(&request))
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
        let refused = other.semaphore("a", 1).try_acquire();
        assert!(
            matches!(refused, Err(fairlock::Error::WrongKind { .. })),
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
