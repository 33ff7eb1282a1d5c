//! Proxies and services that know fewer commands than Redis: they are used for as long as nothing
//! that is needed is missing, and the error about what is missing names it. On Redis alone: nothing
//! is in front of the in-memory store.

use std::time::Duration;

use fairlock::{Error, LockManager, Misuse};

use crate::connection_names::names;
use crate::fixtures::{P, SOON, T, Waiters, build, builder};
use crate::support::gateway::{Gateway, Unknown};
use crate::support::scripted_server::{ScriptedReply, is};
use crate::support::{Proxy, SLACK, Server, until};

/// How services refuse a command that they do not have.
const WORDINGS: [Unknown; 7] = [
    Unknown::Says("ERR unknown command '{}', with args beginning with: '2' "),
    Unknown::Says("ERR unknown command `{}`"),
    Unknown::Says("unsupported command '{}'"),
    Unknown::Says("ERR command '{}' not support for normal user"),
    Unknown::Says("NOPERM this user has no permissions to run the '{}' command"),
    Unknown::Says("ERR Command is not available: '{}'. See the documentation"),
    Unknown::Closes,
];

/// Everything that a user of one server does.
#[track_caller]
fn assert_locks_work(url: &str, what: &str) {
    let [one, other] = [(); 2].map(|()| {
        let built = builder(url).build();
        built.unwrap_or_else(|error| panic!("{what}: {error}"))
    });
    let holder = one.lock("a").unwrap();
    holder.renew().unwrap();
    let mut queue = Waiters::of("a");
    queue.add(&other);
    queue.add(&one);
    holder.unlock().unwrap();
    for i in 0..2 {
        queue.expect_grant(i, P + T + SLACK).unlock().unwrap();
    }
    let held = one.lock("a").unwrap();
    assert!(other.inspect("a").unwrap().is_some(), "{what}");
    held.unlock().unwrap();
    one.lock_all(["x", "y"]).unwrap().unlock().unwrap();
    one.rw_lock("r").read().unwrap().unlock().unwrap();
    assert!(other.delete("a").unwrap(), "{what}");
}

#[test]
fn a_proxy_without_hello_is_used_whatever_it_says() {
    for unknown in WORDINGS {
        let server = Server::tcp();
        let proxy = Gateway::without(server.addr(), &["HELLO"], unknown);
        assert_locks_work(&proxy.url(), &format!("{unknown:?}"));
    }
}

#[test]
fn a_proxy_that_knows_scripts_and_messages_alone_is_used() {
    const OTHERS: &[&str] = &[
        "HELLO", "CLIENT", "INFO", "TIME", "ASKING", "CLUSTER", "CONFIG", "ROLE", "COMMAND", "ACL",
    ];
    for unknown in WORDINGS {
        if matches!(unknown, Unknown::Says(text) if text.starts_with("NOPERM")) {
            continue;
        }
        let server = Server::tcp();
        let proxy = Gateway::without(server.addr(), OTHERS, unknown);
        assert_locks_work(&proxy.url(), &format!("{unknown:?}"));
    }
}

#[test]
fn a_proxy_without_evalsha_gets_each_script_with_its_source() {
    let server = Server::tcp();
    for unknown in &WORDINGS[..4] {
        let proxy = Gateway::without(server.addr(), &["EVALSHA"], *unknown);
        assert_locks_work(&proxy.url(), &format!("{unknown:?}"));
        let mgr = build(builder(proxy.url()).lanes(1));
        let lock = || mgr.lock("a").unwrap().unlock().unwrap();
        lock();
        let refused = proxy.refused().len();
        lock();
        assert_eq!(proxy.refused().len(), refused, "it is not tried again");
    }
}

/// The next connections ask for no more than the first one was answered.
#[test]
fn later_connections_do_not_ask_again_for_what_was_refused() {
    let server = Server::tcp();
    let unknown = Unknown::Says("ERR unknown command '{}'");
    let proxy = Gateway::without(server.addr(), &["HELLO", "TIME"], unknown);
    let mgr = build(builder(proxy.url()));
    assert_eq!(proxy.refused(), ["HELLO", "TIME"]);
    let _held = mgr.lock("a").unwrap();
    let _waiter = mgr.enqueue("a").unwrap();
    until(SOON, "each connection is open and has its name", || {
        let names = names(&server);
        names.len() == 3 && names.iter().all(|name| name.starts_with("fairlock:-:"))
    });
    assert_eq!(proxy.refused(), ["HELLO", "TIME"]);
}

/// A refusal says nothing about the version. INFO does, and so does HELLO.
#[test]
fn the_version_behind_a_proxy_is_learned_and_never_guessed() {
    let server = Server::tcp();
    let said = |version: &'static str| {
        Gateway::to(server.addr(), move |words| {
            if is(words, "HELLO") {
                return Some(ScriptedReply::error("ERR unknown command 'HELLO'"));
            }
            let text = format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n");
            is(words, "INFO").then(|| ScriptedReply::bulk(text))
        })
    };
    for version in ["6.2.0", "7.2.4", "unstable"] {
        build(builder(said(version).url()));
    }
    for version in ["5.0.14", "6.0.9"] {
        match LockManager::connect(said(version).url()) {
            Err(Error::Misused {
                misuse: Misuse::Server,
                message,
                ..
            }) => {
                assert!(message.contains(version), "{message}");
            }
            other => panic!("{version}: {other:?}"),
        }
    }
}

/// The commands that are missing, the end of the URL, and what needs them.
type Case<'a> = (
    &'static [&'static str],
    &'a str,
    &'a dyn Fn(String) -> Result<(), Error>,
);

/// Each is needed here, so its refusal ends the call. The error has the command and the words.
#[test]
fn a_command_that_is_needed_is_named_with_the_servers_words() {
    let server = Server::tcp();
    let url = |proxy: &Gateway, rest: &str| format!("redis://{}{rest}", proxy.addr());
    let connect = |url: String| builder(url).build().map(drop);
    let list = |url: String| {
        let mgr = builder(url).build()?;
        mgr.list("*").try_for_each(|found| found.map(drop))
    };
    let lock = |url: String| builder(url).build()?.lock("a").map(drop);
    let acknowledged = |url: String| builder(url).replica_acks(1, T / 2).build().map(drop);
    let cases: [Case<'_>; 6] = [
        (&["SELECT"], "/1", &connect),
        (&["SCAN"], "", &list),
        (&["WAIT"], "", &acknowledged),
        (&["EVAL", "EVALSHA"], "", &lock),
        (&["TIME", "EVAL"], "", &connect),
        (&["HELLO", "TIME", "EVAL"], "", &connect),
    ];
    for (commands, rest, run) in cases {
        for text in ["unsupported command", "ERR not here"] {
            let proxy = Gateway::without(server.addr(), commands, Unknown::Says(text));
            let error = run(url(&proxy, rest)).expect_err(commands[0]);
            assert!(matches!(&error, Error::Refused { .. }), "{error:?}");
            let said = error.to_string();
            assert!(said.contains(text), "{commands:?}: {said}");
            let last = commands.last().expect("one");
            assert!(said.contains(last), "{commands:?}: {said}");
        }
    }
    let proxy = Gateway::without(server.addr(), &["AUTH"], Unknown::Says("ERR no such thing"));
    let error = connect(format!("redis://:secret@{}", proxy.addr())).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("ERR no such thing") && said.contains("AUTH"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

/// Grants arrive by syncs, and no caller waits for messages.
#[test]
fn r17_waiters_are_served_without_messages() {
    for unknown in WORDINGS {
        if matches!(unknown, Unknown::Says(text) if text.starts_with("NOPERM")) {
            continue;
        }
        let server = Server::tcp();
        let proxy = Gateway::without(server.addr(), &["SUBSCRIBE"], unknown);
        let mgr = build(builder(proxy.url()));
        let holder = build(builder(server.url())).lock("a").unwrap();
        let mut queue = Waiters::of("a");
        queue.add(&mgr);
        holder.unlock().unwrap();
        queue.expect_grant(0, P + T + SLACK).unlock().unwrap();
    }
}

/// KeyDB's active replicas take writes on both sides.
#[test]
fn a_server_that_is_one_of_several_masters_is_refused() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    proxy.replace_in_replies("$6\r\nmaster", "$14\r\nactive-replica");
    match LockManager::connect(proxy.url()) {
        Err(Error::Misused {
            misuse: Misuse::Server,
            message,
            ..
        }) => {
            for part in ["active-replica", "another server takes them", "only master"] {
                assert!(message.contains(part), "{message}");
            }
        }
        other => panic!("{other:?}"),
    }
}

/// It closes connections, and not upon a command that it does not know.
#[test]
fn a_server_that_closes_once_is_greeted_again() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let server = Server::tcp();
    let greetings = AtomicUsize::new(0);
    let proxy = Gateway::to(server.addr(), move |words| {
        let is_first = is(words, "HELLO") && greetings.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then_some(ScriptedReply::Close)
    });
    let mgr = build(builder(proxy.url()).connect_timeout(Duration::from_secs(5)));
    mgr.lock("a").unwrap().unlock().unwrap();
    let lane = |name: &String| name.ends_with(":lane");
    assert!(names(&server).iter().any(lane), "it has its name by HELLO");
}
