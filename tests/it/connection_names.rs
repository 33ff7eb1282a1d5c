//! The names of connections, as `CLIENT LIST` has them. On Redis alone: no other store has
//! connections.

use std::collections::{BTreeSet, HashSet};
use std::process;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

use fairlock::{LockManager, LockOptions};

use crate::fixtures::{SOON, builder, manager};
use crate::support::scripted_server::{ScriptedReply, ScriptedServer, is};
use crate::support::{Server, until};

/// The names of all connections.
pub(crate) fn names(server: &Server) -> BTreeSet<String> {
    let name = |line: &String| {
        let (_, rest) = line
            .split_once(" name=")
            .expect("each client has the field");
        rest.split(' ').next().unwrap_or_default().to_owned()
    };
    server.clients().iter().map(name).collect()
}

fn own(label: &str, role: &str) -> String {
    format!("fairlock:{label}:{}:{role}", process::id())
}

/// A manager that holds one lock and awaits another has a connection of each sort.
#[track_caller]
fn assert_roles_are_shown(server: &Server, mgr: &LockManager, label: &str) {
    let _held = mgr.lock("held").unwrap();
    let _waiter = mgr.enqueue("held").unwrap();
    let expected: BTreeSet<String> = ["lane", "renewal", "subscription"]
        .map(|role| own(label, role))
        .into();
    until(SOON, "each connection has its name", || {
        names(server) == expected
    });
}

#[test]
fn each_connection_says_whose_it_is_and_what_for() {
    let server = Server::start();
    let labelled = builder(server.url()).options(LockOptions::new().label("billing"));
    assert_roles_are_shown(&server, &labelled.build().unwrap(), "billing");
    until(SOON, "the manager is gone", || names(&server).is_empty());
    assert_roles_are_shown(&server, &manager(server.url()), "-");
}

#[test]
fn any_label_makes_a_name_of_four_parts() {
    let server = Server::start();
    for (label, shown) in [
        ("a:b c", "a_b_c".to_owned()),
        ("köln 🦀", "k_ln__".to_owned()),
        ("!~\"\\", "!~\"\\".to_owned()),
        (&"x".repeat(200), "x".repeat(64)),
    ] {
        let mgr = builder(server.url()).options(LockOptions::new().label(label));
        let mgr = mgr.build().unwrap();
        let expected = [own(&shown, "lane")].into();
        until(SOON, "the first connection has its name", || {
            names(&server).is_superset(&expected)
        });
        assert!(
            names(&server)
                .iter()
                .all(|name| name.split(':').count() == 4)
        );
        drop(mgr);
        until(SOON, "the manager is gone", || names(&server).is_empty());
    }
}

#[test]
fn a_name_needs_no_right_and_no_command_more() {
    let server = Server::start();
    let documented = "~fairlock:* resetchannels &fairlock:grants:* +time";
    let rules: Vec<&str> = documented.split(' ').collect();
    let user = ["ACL", "SETUSER", "u", "reset", "on", ">p"];
    let _: () = server.query(&[&user[..], &rules].concat());
    let before = server.commands_processed();
    let mgr = builder(format!("{}?user=u&pass=p", server.url()));
    let mgr = mgr.build().unwrap();
    // AUTH, HELLO and TIME.
    assert_eq!(server.commands_processed() - before, 3);
    assert_eq!(mgr.stats().requests, 3);
    assert_eq!(names(&server), [own("-", "lane")].into());
}

/// Some proxies know HELLO, and none of its options.
#[test]
fn a_server_that_refuses_names_is_used_without() {
    let server = ScriptedServer::start(|words| {
        if is(words, "HELLO") && words.len() > 2 {
            return ScriptedReply::error("ERR syntax error in HELLO option 'SETNAME'");
        }
        if is(words, "HELLO") {
            let pairs = ["server", "redis", "version", "7.2.0"];
            return ScriptedReply::array(pairs.map(ScriptedReply::bulk));
        }
        if is(words, "TIME") {
            return ScriptedReply::polite(words);
        }
        ScriptedReply::Close
    });
    let mgr = builder(server.url()).build().unwrap();
    assert_eq!(server.count("HELLO"), 2);
    // A call ends each connection. The next one knows it by then.
    until(SOON, "three connections", || {
        let _ = mgr.try_lock("a");
        server.count("TIME") >= 3
    });
    let hellos = server.commands();
    let named = hellos
        .iter()
        .filter(|words| words.len() > 2 && words[0] == "HELLO");
    assert_eq!(named.count(), 1, "{hellos:?}");
}

/// Since names are refused, the connections that sent a HELLO with a name, and those that sent one
/// without. A connection is known by the thread that serves it.
#[derive(Default)]
struct Hellos {
    named: HashSet<ThreadId>,
    bare: HashSet<ThreadId>,
}

/// A proxy may be put in front of the server while a manager runs. Then the first connections after
/// that are refused their names at the same time, and the second one when the first has learned it.
#[test]
fn names_refused_to_two_connections_at_once_cost_neither_its_handshake() {
    let hellos = Arc::new((Mutex::new(None::<Hellos>), Condvar::new()));
    let server = ScriptedServer::start({
        let hellos = Arc::clone(&hellos);
        move |words| {
            if !is(words, "HELLO") {
                return ScriptedReply::polite(words);
            }
            let connection = thread::current().id();
            let (hellos, changed) = &*hellos;
            let mut hellos = hellos.lock().unwrap();
            if let Some(since) = &mut *hellos {
                changed.notify_all();
                if words.len() > 2 {
                    let is_first = since.named.is_empty();
                    since.named.insert(connection);
                    let must_wait = |hellos: &mut Option<Hellos>| {
                        let since = hellos.as_ref().expect("names are refused");
                        since.named.len() < 2 || !is_first && since.bare.is_empty()
                    };
                    drop(changed.wait_timeout_while(hellos, SOON, must_wait));
                    return ScriptedReply::error("ERR syntax error in HELLO option 'SETNAME'");
                }
                since.bare.insert(connection);
            }
            let pairs = ["server", "redis", "version", "7.2.0"];
            ScriptedReply::array(pairs.map(ScriptedReply::bulk))
        }
    });
    let mgr = builder(server.url()).lanes(8).connect_timeout(SOON);
    let mgr = mgr.build().unwrap();
    *hellos.0.lock().unwrap() = Some(Hellos::default());
    thread::scope(|scope| {
        for n in 0..8 {
            let mgr = &mgr;
            // No reply of this server makes sense, so no lock is granted.
            scope.spawn(move || mgr.try_lock(n.to_string()).unwrap_err());
        }
    });
    until(SOON, "each goes on without a name", || {
        let hellos = hellos.0.lock().unwrap();
        let since = hellos.as_ref().unwrap();
        since.named.len() >= 2 && since.named.is_subset(&since.bare)
    });
}
