//! A URL that reaches a server of another topology, or a replica: `build` fails, and the error has
//! the URL to use.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, Misuse, endpoint::Endpoint};

use crate::support::server::free_address;
use crate::support::{Server, until};

const SERVICE: &str = "mymaster";
/// How long a loaded machine may take to answer.
const PATIENT: Duration = Duration::from_secs(10);

/// A sentinel that watches services at a port where nobody listens.
fn sentinel(services: &[&str], more: &str) -> Server {
    let monitored: Vec<String> = services
        .iter()
        .map(|name| format!("sentinel monitor {name} 127.0.0.1 1 1\n"))
        .collect();
    let config = monitored.concat() + more;
    loop {
        // Another process may take the port between our check and the server's bind.
        match Server::sentinel_at(free_address(), &config) {
            Ok(sentinel) => return sentinel,
            Err(why) => assert!(why.contains("in use"), "{why}"),
        }
    }
}

fn replica_of(master: &Server) -> Server {
    let port = master.addr().port().to_string();
    Server::tcp_with(&["--replicaof", "127.0.0.1", &port])
}

/// The error says all of this.
#[track_caller]
fn assert_refused(to: impl Into<Endpoint>, says: &[&str]) {
    let to = to.into();
    let builder = LockManager::builder(to.clone()).connect_timeout(PATIENT);
    match builder.build() {
        Err(Error::Misused {
            misuse: Misuse::Server,
            message,
            ..
        }) => {
            for text in says {
                assert!(message.contains(text), "{to:?}: {message}");
            }
        }
        other => panic!("{to:?}: {other:?}"),
    }
}

#[test]
fn plain_url_of_a_cluster_node_is_refused_with_its_url() {
    let node = Server::tcp_with(&["--cluster-enabled", "yes", "--requirepass", "p"]);
    let addr = node.addr();
    let instead = format!("belongs to a cluster: use redis-cluster://{addr}");
    for login in ["", "default:"] {
        let login = format!("{login}{}p@", if login.is_empty() { ":" } else { "" });
        assert_refused(format!("redis://{login}{addr}"), &[&instead]);
        // A cluster refuses SELECT, which says less.
        assert_refused(format!("redis://{login}{addr}/1"), &[&instead]);
    }
    let builder = LockManager::builder(format!("redis://{addr}")).connect_timeout(PATIENT);
    let stranger = builder.build().unwrap_err();
    assert!(
        matches!(&stranger, Error::Refused { code, .. } if code == "NOAUTH"),
        "{stranger:?}"
    );
}

#[test]
fn plain_url_of_a_sentinel_is_refused_with_its_url() {
    let one = sentinel(&[SERVICE], "");
    let addr = one.addr();
    let instead = format!("is a sentinel: use redis-sentinel://{addr}/{SERVICE}");
    assert_refused(format!("redis://{addr}"), &[&instead]);
    // A sentinel knows no SELECT.
    assert_refused(format!("redis://{addr}/1"), &[&instead]);
    // The password is the master's. The sentinel has none, and refuses AUTH.
    assert_refused(format!("redis://:p@{addr}"), &[&instead]);

    let several = sentinel(&["a", "b"], "user u on >p ~* &* +@all\n");
    let addr = several.addr();
    let instead = format!("redis-sentinel://{addr}/<service>");
    assert_refused(format!("redis://u:p@{addr}"), &[&instead]);
}

#[test]
fn plain_url_of_a_replica_is_refused_with_its_masters() {
    let master = Server::tcp();
    let replica = replica_of(&master);
    let (url, master) = (replica.url(), master.addr());
    let instead = format!("is a replica: use redis://{master}");
    assert_refused(&url, &[&instead, "redis-sentinel://"]);

    let no_role = ["ACL", "SETUSER", "u", "on", ">p", "+@all", "-role"];
    replica.query::<()>(&no_role);
    let url = format!("redis://u:p@{}", replica.addr());
    assert_refused(&url, &["is a replica: use its master's URL"]);
}

#[test]
fn urls_of_other_topologies_are_refused_by_a_plain_server() {
    let server = Server::tcp();
    let addr = server.addr();
    let instead = format!("{addr} belongs to no cluster: use redis://{addr}");
    assert_refused(format!("redis-cluster://{addr}"), &[&instead]);
    let instead = format!("a sentinel; {addr} is none: use redis://{addr}");
    assert_refused(format!("redis-sentinel://{addr}/{SERVICE}"), &[&instead]);
    let one = sentinel(&[SERVICE], "");
    let instead = format!("redis-sentinel://{}/{SERVICE}", one.addr());
    assert_refused(format!("redis-cluster://{}", one.addr()), &[&instead]);
}

#[test]
fn a_quorum_names_the_member_that_is_no_master() {
    let masters = [Server::tcp(), Server::tcp()];
    let replica = replica_of(&masters[0]);
    let node = Server::tcp_with(&["--cluster-enabled", "yes"]);
    let sentinel = sentinel(&[SERVICE], "");
    for (other, is) in [
        (&replica, "is a replica"),
        (&node, "belongs to a cluster"),
        (&sentinel, "is a sentinel"),
    ] {
        let urls = [&masters[0], &masters[1], other].map(Server::url);
        assert_refused(Endpoint::quorum(urls), &[&format!("{} {is}", other.addr())]);
    }
}

/// Not even if it has to open its connections while its server is a replica.
#[test]
fn a_manager_survives_the_demotion_of_its_server() {
    let server = Server::tcp();
    let manager = LockManager::builder(server.url())
        .options(LockOptions::new().ttl(Duration::from_secs(15)))
        .command_timeout(Duration::from_millis(1500))
        .horizon(Duration::from_secs(6))
        .build()
        .unwrap();
    manager.lock("a").unwrap().unlock().unwrap();
    server.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    server.query::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let refused = manager.try_lock("a").unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { code, .. } if code == "READONLY"),
        "{refused:?}"
    );
    server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    until(PATIENT, "it grants locks again", || {
        manager.try_lock("a").is_ok_and(|guard| guard.is_some())
    });
}
