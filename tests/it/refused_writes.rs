//! The server refuses writes for a while: as a replica, without enough replicas, without a disk.
//! Such a refusal comes before a script's first write, so nothing is in doubt, and a call asks
//! again within its time. On Redis alone, since only Redis has these states.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};

use crate::fixtures::{P, SOON, build, steady, warm_up, with_ttl};
use crate::permits::Want;
use crate::renewals::{all_are_held, are_renewed, hold_many};
use crate::support::{SLACK, Server, is_redis_62, until};

/// So long that the server's state can change within one call.
const T: Duration = Duration::from_secs(3);

/// A state of a server in which it refuses writes.
struct State {
    code: &'static str,
    enter: &'static [&'static [&'static str]],
    leave: &'static [&'static [&'static str]],
}

const STATES: [State; 4] = [
    State {
        code: "READONLY",
        enter: &[&["REPLICAOF", "127.0.0.1", "1"]],
        leave: &[&["REPLICAOF", "NO", "ONE"]],
    },
    State {
        code: "MASTERDOWN",
        enter: &[
            &["CONFIG", "SET", "replica-serve-stale-data", "no"],
            &["REPLICAOF", "127.0.0.1", "1"],
        ],
        leave: &[&["REPLICAOF", "NO", "ONE"]],
    },
    State {
        code: "NOREPLICAS",
        enter: &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        leave: &[&["CONFIG", "SET", "min-replicas-to-write", "0"]],
    },
    State {
        code: "MISCONF",
        enter: &[
            &["CONFIG", "SET", "dir", "/proc"],
            &["CONFIG", "SET", "save", "3600 1"],
            &["BGSAVE"],
        ],
        leave: &[&["CONFIG", "SET", "save", ""]],
    },
];

fn send(server: &Server, commands: &[&[&str]]) {
    for command in commands {
        let _: redis::Value = server.query(command);
    }
}

/// A server, and a manager that has used it before.
fn server(extra: &[&str]) -> (Server, LockManager) {
    // 6.2 protects no setting.
    let unprotected = ["--enable-protected-configs", "yes"];
    let unprotected = if is_redis_62() { &[][..] } else { &unprotected };
    let server = Server::tcp_with(&[unprotected, extra].concat());
    let manager = patient(&server);
    warm_up(&manager);
    (server, manager)
}

/// On one lane, so that the state cannot change between two calls for several names.
fn patient(server: &Server) -> LockManager {
    let builder = with_ttl(server.url(), 10 * T)
        .lanes(1)
        .command_timeout(T)
        .horizon(P + 3 * T);
    build(builder.check_period(P))
}

/// A verb that gives up by itself.
type Tries = fn(&LockManager) -> Result<bool, Error>;

const TRIES: [Tries; 3] = [
    |m| m.try_lock("a").map(|guard| guard.is_some()),
    |m| m.try_lock_all(["b", "c"]).map(|guard| guard.is_some()),
    |m| {
        Want::Permits(2, 3)
            .try_take(m, "n")
            .map(|guard| guard.is_some())
    },
];

fn enter(server: &Server, state: &State) {
    send(server, state.enter);
    if state.code == "MISCONF" {
        until(SOON, "the save has failed", || {
            let info: String = server.query(&["INFO", "persistence"]);
            info.contains("rdb_last_bgsave_status:err")
        });
    }
}

/// Enters the state, and calls each verb until the server has refused it several times.
fn in_state(state: &State, then: impl Fn(&Server, thread::ScopedJoinHandle<Result<bool, Error>>)) {
    for verb in TRIES {
        let (server, manager) = server(&[]);
        enter(&server, state);
        let errors = server.counted("total_error_replies");
        thread::scope(|scope| {
            let tries = scope.spawn(|| verb(&manager));
            until(SOON, "it is refused again and again", || {
                tries.is_finished() || server.counted("total_error_replies") >= errors + 3
            });
            then(&server, tries);
        });
        assert_eq!(
            manager.stats().background_releases,
            0,
            "nothing was in doubt"
        );
        send(&server, state.leave);
        for name in ["a", "b", "c"] {
            manager
                .try_lock(name)
                .unwrap()
                .expect("it is free")
                .unlock()
                .unwrap();
        }
    }
}

#[test]
fn a_try_outlasts_a_state_that_refuses_writes() {
    thread::scope(|scope| {
        for state in &STATES {
            scope.spawn(move || {
                in_state(state, |server, tries| {
                    assert!(!tries.is_finished(), "{}: {:?}", state.code, tries.join());
                    send(server, state.leave);
                    let end = tries.join().unwrap();
                    assert!(matches!(end, Ok(true)), "{}: {end:?}", state.code);
                });
            });
        }
    });
}

#[test]
fn p8_a_try_ends_in_the_words_of_a_server_that_refuses_writes() {
    thread::scope(|scope| {
        for state in &STATES {
            scope.spawn(move || {
                in_state(state, |_, tries| {
                    let start = Instant::now();
                    let end = tries.join().unwrap();
                    assert!(start.elapsed() <= 2 * T + SLACK, "{}", state.code);
                    assert!(
                        matches!(&end, Err(Error::Refused { code, .. }) if code == state.code),
                        "{}: {end:?}",
                        state.code
                    );
                });
            });
        }
    });
}

/// Renewals that the server refuses count for nothing. They are sent again until it takes them.
#[test]
fn locks_renewed_together_outlast_a_state_that_refuses_writes() {
    thread::scope(|scope| {
        for state in &STATES {
            scope.spawn(move || {
                let (server, _) = server(&[]);
                let manager = build(steady(server.url()));
                let guards = hold_many(&manager);
                are_renewed(&manager, 1);
                enter(&server, state);
                let errors = server.counted("total_error_replies");
                let refused = |count| {
                    until(SOON, "renewals are refused", || {
                        server.counted("total_error_replies") >= errors + count
                    });
                };
                // The first of them are refused together, and then each alone.
                refused(10);
                let renewed = manager.stats().renewals_confirmed;
                refused(100);
                assert_eq!(
                    manager.stats().renewals_confirmed,
                    renewed,
                    "{}",
                    state.code
                );
                send(&server, state.leave);
                are_renewed(&manager, 2);
                all_are_held(&manager, &guards);
            });
        }
    });
}

#[test]
fn a_replica_grants_locks_once_it_is_promoted() {
    let (master, ours) = server(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::tcp();
    // No manager can be built on a replica.
    let theirs = patient(&replica);
    let port = master.addr().port().to_string();
    let _: () = replica.query(&["REPLICAOF", "127.0.0.1", &port]);
    let held = ours.lock("held").unwrap();
    until(SOON, "the replica has the data", || {
        replica.query::<i64>(&["EXISTS", "fairlock:{held}"]) == 1
    });
    let errors = replica.counted("total_error_replies");
    thread::scope(|scope| {
        let tries = scope.spawn(|| theirs.try_lock("a"));
        until(SOON, "it is refused again and again", || {
            tries.is_finished() || replica.counted("total_error_replies") >= errors + 3
        });
        assert!(!tries.is_finished(), "{:?}", tries.join());
        let _: () = replica.query(&["REPLICAOF", "NO", "ONE"]);
        let guard = tries.join().unwrap().unwrap();
        guard.expect("it is free").unlock().unwrap();
    });
    assert!(
        theirs.try_lock("held").unwrap().is_none(),
        "its lease goes on"
    );
    drop(held);
}

#[test]
fn a_master_grants_locks_once_its_replica_is_back() {
    let settings = [
        "--repl-diskless-sync-delay",
        "0",
        "--min-replicas-to-write",
        "1",
    ];
    let (master, ours) = {
        let server = Server::tcp_with(&settings);
        let manager = patient(&server);
        (server, manager)
    };
    let port = master.addr().port().to_string();
    let replica = Server::tcp_with(&["--replicaof", "127.0.0.1", &port]);
    ours.lock("a").unwrap().unlock().unwrap();
    replica.kill();
    let errors = master.counted("total_error_replies");
    thread::scope(|scope| {
        let waits = scope.spawn(|| ours.lock("a"));
        until(SOON, "it is refused again and again", || {
            waits.is_finished() || master.counted("total_error_replies") >= errors + 3
        });
        assert!(!waits.is_finished(), "{:?}", waits.join());
        replica.restart();
        waits.join().unwrap().unwrap().unlock().unwrap();
    });
}
