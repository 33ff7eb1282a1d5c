//! Errors say which of several servers they are about.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, Step, endpoint::Endpoint};

use crate::cluster_set::ClusterSet;
use crate::sentinel_set::{SERVICE, SentinelSet, SentinelSetup};
use crate::support::{Server, until_some};

const T: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(30);

fn builder(to: impl Into<fairlock::endpoint::Endpoint>) -> fairlock::Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(Duration::from_secs(10)))
        .command_timeout(T)
        .connect_timeout(Duration::from_secs(3))
        .outage_limit(T)
        .uptime_check(false)
}

/// The address that an error names. Its text has it, too.
#[track_caller]
fn server_of(error: &Error) -> String {
    let (Error::Unavailable { server, .. } | Error::Refused { server, .. }) = error else {
        panic!("{error:?} is about no server");
    };
    let server = server.as_deref().unwrap_or_else(|| panic!("{error:?}"));
    assert!(error.to_string().contains(server), "{error}");
    server.to_owned()
}

fn address(server: &Server) -> String {
    server.addr().to_string()
}

#[test]
fn the_sentinel_or_the_master_that_failed_is_named() {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: &["--requirepass", "right", "--masterauth", "right"],
        sentinel_lines: &[&format!("sentinel auth-pass {SERVICE} right")],
    });
    let sentinels = set.sentinels.iter().map(|s| s.addr());
    let all: Vec<(String, u16)> = sentinels
        .map(|addr| (addr.ip().to_string(), addr.port()))
        .collect();
    let to = || Endpoint::sentinel(SERVICE, all.clone());
    let master = address(&set.nodes[0]);
    let refused = builder(to().password("wrong")).build().unwrap_err();
    assert_eq!(server_of(&refused), master);
    let refused = builder(to().password("right").sentinel_password("wrong"));
    let refused = refused.build().unwrap_err();
    let named = server_of(&refused);
    assert!(set.sentinels.iter().any(|s| address(s) == named), "{named}");

    let mgr = builder(to().password("right")).build().unwrap();
    let _guard = mgr.lock("a").unwrap();
    // Without the sentinels there is no failover.
    set.sentinels.iter().for_each(Server::stop);
    set.nodes[0].stop();
    let silent = until_some(SOON, "the master is silent", || mgr.try_lock("b").err());
    assert_eq!(server_of(&silent), master);
    let nobody = builder(to().password("right")).build().unwrap_err();
    let each: Vec<String> = set.sentinels.iter().map(address).collect();
    assert_eq!(server_of(&nobody), each.join(", "));
    set.sentinels.iter().for_each(Server::cont);
    set.nodes[0].cont();
}

#[test]
fn the_node_of_a_cluster_that_failed_is_named() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let mgr = builder(set.url()).build().unwrap();
    for master in 0..3 {
        mgr.lock(set.name_on(master, 0)).unwrap().unlock().unwrap();
    }
    let name = set.name_on(1, 0);
    let _: () = set
        .node(1)
        .query(&["SET", &format!("fairlock:{{{name}}}"), "x"]);
    assert_eq!(
        server_of(&mgr.lock(&name).unwrap_err()),
        address(set.node(1))
    );
    set.node(2).stop();
    let name = set.name_on(2, 0);
    for error in [
        mgr.lock(&name).map(drop).unwrap_err(),
        mgr.inspect(&name).map(drop).unwrap_err(),
        mgr.lock_all([set.name_on(0, 0), name.clone()])
            .map(drop)
            .unwrap_err(),
        mgr.list("*").find_map(Result::err).expect("an error"),
    ] {
        assert_eq!(server_of(&error), address(set.node(2)), "{error}");
    }
    set.nodes().iter().for_each(Server::stop);
    let error = builder(set.url()).build().unwrap_err();
    assert!(server_of(&error).contains(&address(set.node(0))), "{error}");
    set.nodes().iter().for_each(Server::cont);
}

#[test]
fn the_master_whose_replicas_are_missing_is_named() {
    const ACK: Duration = Duration::from_millis(100);
    let acked =
        |to: fairlock::endpoint::Endpoint| builder(to).replica_acks(1, ACK).build().unwrap();
    let server = Server::tcp();
    let mgr = acked(server.url().into());
    let named = |error: Error| {
        assert!(
            matches!(
                error,
                Error::Unavailable {
                    step: Step::Replicas,
                    ..
                }
            ),
            "{error:?}"
        );
        server_of(&error)
    };
    assert_eq!(named(mgr.lock("a").unwrap_err()), address(&server));
    assert_eq!(
        named(mgr.lock_all(["b", "c"]).map(drop).unwrap_err()),
        address(&server)
    );
    // The grant comes as a message.
    let held = builder(server.url()).build().unwrap().lock("d").unwrap();
    let waiter = mgr.enqueue("d").unwrap();
    held.unlock().unwrap();
    assert_eq!(
        named(waiter.wait().map(drop).unwrap_err()),
        address(&server)
    );

    let set = ClusterSet::start_with(3, 0, &[]);
    let mgr = acked(set.url().into());
    for master in 0..3 {
        let error = mgr.lock(set.name_on(master, 0)).unwrap_err();
        assert_eq!(named(error), address(set.node(master)));
    }
}

#[test]
fn each_failed_node_of_a_quorum_is_named() {
    let servers = [Server::start(), Server::tcp(), Server::tcp()];
    let mgr = builder(Endpoint::quorum(servers.iter().map(Server::url)));
    let mgr = mgr.build().unwrap();
    mgr.lock("a").unwrap().unlock().unwrap();
    servers[1].stop();
    servers[2].stop();
    let error = mgr.lock("a").unwrap_err();
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error:?}");
    };
    let text = cause.to_string();
    for server in &servers[1..] {
        assert_eq!(text.matches(&address(server)).count(), 1, "{text}");
        assert!(error.to_string().contains(&address(server)), "{error}");
    }
    servers[1..].iter().for_each(Server::cont);
}

#[cfg(feature = "tls")]
#[test]
fn a_server_without_tls_is_named() {
    let server = Server::tcp();
    let error = LockManager::connect(format!("rediss://{}", address(&server))).unwrap_err();
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "TLS"),
        "{error:?}"
    );
    assert_eq!(server_of(&error), address(&server));
}
