//! Errors about a server say which one. On Redis alone: the memory of this process has no address,
//! and the last test says so.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, endpoint::Endpoint};

use crate::fixtures::{T, builder};
use crate::support::scripted_server::{ScriptedReply, ScriptedServer, is};
use crate::support::server::free_address;
use crate::support::{Proxy, SLACK, Server, until_some};

/// The address that an error names, if it is about a server.
pub(crate) fn server_of(error: &Error) -> Option<&str> {
    match error {
        Error::Unavailable { server, .. } | Error::Refused { server, .. } => server.as_deref(),
        _ => None,
    }
}

#[track_caller]
fn assert_names(error: &Error, address: &str) {
    assert_eq!(server_of(error), Some(address), "{error:?}");
    let said = error.to_string();
    assert_eq!(said.matches(address).count(), 1, "{said}");
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let nowhere = free_address();
    for url in [
        format!("redis://u:pw@{nowhere}/3"),
        format!("redis://{nowhere}"),
    ] {
        let error = LockManager::connect(url).unwrap_err();
        assert_names(&error, &nowhere.to_string());
        assert!(
            error
                .to_string()
                .starts_with(&format!("redis at {nowhere} is unavailable (no connection")),
            "{error}"
        );
    }
    let error = LockManager::connect(Endpoint::unix("/nowhere/redis.sock")).unwrap_err();
    assert_names(&error, "/nowhere/redis.sock");
    // The port is shown although it is the default one, and an IPv6 address has its brackets.
    let error = LockManager::connect("redis://nowhere.invalid").unwrap_err();
    assert_names(&error, "nowhere.invalid:6379");
    let six = format!("[::1]:{}", nowhere.port());
    let error = LockManager::connect(format!("redis://{six}")).unwrap_err();
    assert_names(&error, &six);
}

/// Rust prints the `Debug` form of an error that `main` returns: it has the words of the cause.
#[test]
fn error_says_what_is_missing() {
    let nowhere = free_address();
    let server = Server::tcp_with(&["--requirepass", "right"]);
    let locked = server.addr();
    let port = nowhere.port();
    for (url, start, end) in [
        (
            format!("redis://{nowhere}"),
            format!("redis at {nowhere} is unavailable (no connection"),
            format!(
                "): Connection refused (os error 111); no Redis runs there: start one, for \
                 instance with `docker run -p {port}:6379 redis`, or correct the address"
            ),
        ),
        (
            "redis+unix:///nowhere/redis.sock".to_owned(),
            "redis at /nowhere/redis.sock is unavailable (no connection".to_owned(),
            "): No such file or directory (os error 2); no Redis runs there: start it, or correct \
             the address"
                .to_owned(),
        ),
        (
            "redis://nowhere.invalid".to_owned(),
            "redis at nowhere.invalid:6379 is unavailable (no connection".to_owned(),
            "): failed to lookup address information: ".to_owned(),
        ),
        (
            format!("redis-cluster://{nowhere}"),
            format!("redis at {nowhere} is unavailable (no connection"),
            "): Connection refused (os error 111); no Redis runs there: start it, or correct the \
             address"
                .to_owned(),
        ),
        (
            format!("redis-sentinel://{nowhere}/service"),
            format!("redis at {nowhere} is unavailable (no connection"),
            format!(
                "): no sentinel of \"service\" answers: {nowhere}: no connection: Connection \
                 refused (os error 111); no sentinel runs there: start one, or correct the address"
            ),
        ),
        (
            format!("redis://{locked}"),
            format!("redis at {locked} refused: NOAUTH Authentication required: "),
            "the server wants a password, and got none".to_owned(),
        ),
    ] {
        let error = LockManager::connect(url).unwrap_err();
        if let Error::Unavailable { cause, .. } = &error {
            let fields = format!("{error:?}");
            let (kept, words) = (fields.replace('\\', ""), cause.to_string());
            assert!(kept.contains(&words), "{fields}");
        }
        let said = error.to_string();
        assert!(said.starts_with(&start) && said.contains(&end), "{said}");
    }
}

#[test]
fn a_server_that_refuses_is_named() {
    let server = Server::tcp_with(&["--requirepass", "right"]);
    let address = server.addr().to_string();
    let refused = format!("redis at {address} refused: ");
    for (login, code) in [(":wrong@", "WRONGPASS"), ("", "NOAUTH")] {
        let error = LockManager::connect(format!("redis://{login}{address}")).unwrap_err();
        assert_names(&error, &address);
        assert!(
            error.to_string().starts_with(&format!("{refused}{code}")),
            "{error}"
        );
    }
    let server = Server::tcp();
    let address = server.addr().to_string();
    let mgr = builder(server.url()).build().unwrap();
    let _: () = server.query(&["SET", "fairlock:{n}", "x"]);
    let refused = format!("redis at {address} refused for the lock \"n\": WRONGTYPE");
    for error in [
        mgr.lock("n").map(drop).unwrap_err(),
        mgr.try_lock("n").map(drop).unwrap_err(),
        mgr.enqueue("n").map(drop).unwrap_err(),
        mgr.lock_all(["n", "m"]).map(drop).unwrap_err(),
        mgr.inspect("n").map(drop).unwrap_err(),
        mgr.force_release("n", 1).map(drop).unwrap_err(),
    ] {
        assert_names(&error, &address);
        assert!(error.to_string().starts_with(&refused), "{error}");
    }
}

/// Redis allows it in a password, and nobody sees it in a variable.
#[test]
fn letters_of_a_refused_login_that_do_not_show_are_named() {
    let server = Server::tcp_with(&["--requirepass", "right"]);
    let (host, port) = (server.addr().ip().to_string(), server.addr().port());
    let settings = Endpoint::server(host, port);
    let said = |settings: Endpoint| LockManager::connect(settings).unwrap_err().to_string();
    for (password, end) in [
        ("right\n", "ends with an end of line"),
        ("right\r\n", "ends with an end of line"),
        ("right ", "ends with white space"),
        (" right", "begins with white space"),
        ("\u{feff}right", "begins with a byte order mark"),
        ("right\0", "has a control character"),
        ("ri\tght", "has a control character"),
    ] {
        let end = format!("disabled; the password {end}, which counts as a part of it");
        let refused = said(settings.clone().password(password));
        assert!(refused.contains(&end), "{refused}");
        let url = format!("redis://:right%0D%0A@{}", server.addr());
        let refused = LockManager::connect(url).unwrap_err().to_string();
        assert!(refused.contains("an end of line"), "{refused}");
    }
    let refused = said(settings.clone().user("default\n").password("right"));
    let end = "the user's name ends with an end of line";
    assert!(refused.contains(end), "{refused}");
    let refused = said(settings.password("wrong"));
    assert!(!refused.contains("counts as a part"), "{refused}");
}

#[test]
fn a_missing_right_and_a_server_too_old_are_named() {
    let server = Server::tcp();
    let address = server.addr().to_string();
    let rules = ["~*", "&*", "+@all", "-hdel"];
    let user = ["ACL", "SETUSER", "u", "reset", "on", ">p"];
    let _: () = server.query(&[&user[..], &rules].concat());
    let mgr = builder(format!("redis://u:p@{address}")).build().unwrap();
    assert_names(&mgr.lock("n").unwrap_err(), &address);
    let old = ScriptedServer::start(|words| {
        if is(words, "HELLO") {
            let pairs = ["server", "redis", "version", "5.0.0"];
            return ScriptedReply::array(pairs.map(ScriptedReply::bulk));
        }
        ScriptedReply::polite(words)
    });
    let error = LockManager::connect(old.url()).unwrap_err();
    assert!(matches!(error, Error::Misused { .. }), "{error:?}");
    assert!(
        error.to_string().contains(&old.addr().to_string()),
        "{error}"
    );
}

/// Each verb, with a guard and a waiter from before.
#[test]
fn a_server_that_falls_silent_is_named_by_each_verb() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let address = proxy.url().replace("redis://", "");
    let address = address.trim_end_matches('/');
    let mgr = builder(proxy.url())
        .options(LockOptions::new().ttl(Duration::from_secs(60)))
        .outage_limit(T)
        .build()
        .unwrap();
    let (first, second) = (mgr.lock("a").unwrap(), mgr.lock("b").unwrap());
    let mut waiter = mgr.enqueue("a").unwrap();
    proxy.pause_requests();
    let waited = until_some(T * 20 + SLACK, "the wait ends", || waiter.wait_for(T).err());
    for error in [
        waited,
        mgr.lock("n").unwrap_err(),
        mgr.try_lock("n").unwrap_err(),
        mgr.try_lock_for("n", T).unwrap_err(),
        mgr.lock_all(["n", "m"]).map(drop).unwrap_err(),
        mgr.inspect("n").unwrap_err(),
        mgr.list("*").next().expect("an error").unwrap_err(),
        mgr.semaphore("s", 2).acquire(1).map(drop).unwrap_err(),
        first.renew().unwrap_err(),
        first.unlock().unwrap_err(),
        second.abandon().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert_names(&error, address);
    }
}

#[test]
fn a_reply_without_sense_is_reported_with_its_server() {
    let server = ScriptedServer::start(ScriptedReply::polite);
    let mgr = builder(server.url()).build().unwrap();
    let error = mgr.try_lock("n").unwrap_err();
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "PROTOCOL"),
        "{error:?}"
    );
    assert_names(&error, &server.addr().to_string());
}

#[cfg(feature = "memory")]
#[test]
fn the_memory_of_this_process_has_no_address() {
    let memory = fairlock::memory::Memory::new();
    let mgr = builder(&memory).build().unwrap();
    memory.go_down();
    let error = mgr.try_lock("n").unwrap_err();
    assert!(matches!(&error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(server_of(&error), None);
    assert!(
        error
            .to_string()
            .starts_with("redis is unavailable for the lock")
    );
}
