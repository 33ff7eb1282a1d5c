//! TLS to every server of a topology: sentinels and the master, all nodes of a cluster.

use std::net::SocketAddr;
use std::thread;

use fairlock::{Error, LockManager, LockOptions, endpoint::Endpoint};

use super::certificates::{Authority, Certificate, argument};
use super::{CLIENT_CERTIFICATE, Reason, SOON, UNKNOWN_ISSUER, build, is_tls, start, url_of};
use crate::support::server::free_address;
use crate::support::{Server, until, until_some};

const SERVICE: &str = "mymaster";

/// The arguments that a server needs for TLS, without its port.
fn files(authority: &Authority, own: &Certificate) -> [(&'static str, String); 3] {
    [
        ("tls-cert-file", argument(&own.certificate).to_owned()),
        ("tls-key-file", argument(&own.key).to_owned()),
        ("tls-ca-cert-file", argument(&authority.file()).to_owned()),
    ]
}

/// A server with TLS and these arguments, and its address for TLS.
fn server(authority: &Authority, extra: &[&str]) -> (Server, SocketAddr) {
    start(authority, &authority.server(), extra)
}

/// A sentinel with TLS that watches the master at this address.
fn sentinel(authority: &Authority, master: SocketAddr, extra: &str) -> (Server, SocketAddr) {
    let own = authority.server();
    until_some(SOON, "the ports are free", || {
        let addr = free_address();
        let mut config = format!(
            "tls-port {}\ntls-replication yes\nsentinel monitor {SERVICE} {} {} 1\n{extra}\n",
            addr.port(),
            master.ip(),
            master.port(),
        );
        for (name, value) in files(authority, &own) {
            config += &format!("{name} {value}\n");
        }
        let server = Server::sentinel_at(free_address(), &config).ok()?;
        Some((server, addr))
    })
}

fn builder(
    to: impl Into<fairlock::endpoint::Endpoint>,
    authority: &Authority,
) -> fairlock::Builder {
    LockManager::builder(to)
        .tls_ca(authority.pem())
        .options(LockOptions::new().ttl(SOON))
}

#[test]
fn sentinels_and_their_master_are_reached_through_tls() {
    let authority = Authority::new();
    let no_clients = "tls-auth-clients no";
    let (master, at) = server(&authority, &["--tls-auth-clients", "no"]);
    let (_sentinel, sentinel_at) = sentinel(&authority, at, no_clients);
    let to = format!("rediss-sentinel://{sentinel_at}/{SERVICE}");
    let mgr = build(builder(&to, &authority));
    mgr.lock("a").unwrap().unlock().unwrap();
    let host = (sentinel_at.ip().to_string(), sentinel_at.port());
    let typed = Endpoint::sentinel(SERVICE, [host]).tls();
    let other = build(builder(typed, &authority));
    assert!(other.lock("a").unwrap().is_held());
    assert!(!master.clients().is_empty());

    let wrong = builder(&to, &Authority::named("other")).build();
    assert_is(wrong.expect_err("no manager"), UNKNOWN_ISSUER);
}

#[test]
fn sentinel_that_demands_a_client_certificate_says_so() {
    let authority = Authority::new();
    let (_master, at) = server(&authority, &["--tls-auth-clients", "no"]);
    let (_sentinel, sentinel_at) = sentinel(&authority, at, "tls-auth-clients yes");
    let to = format!("rediss-sentinel://{sentinel_at}/{SERVICE}");
    let refused = builder(&to, &authority).build();
    assert_is(refused.expect_err("no manager"), CLIENT_CERTIFICATE);
    let client = authority.client();
    let accepted = builder(&to, &authority).tls_identity(client.pem(), client.key_pem());
    build(accepted).lock("a").unwrap().unlock().unwrap();
}

#[test]
fn all_nodes_of_a_cluster_are_reached_through_tls() {
    let authority = Authority::new();
    let args = [
        "--tls-auth-clients",
        "no",
        "--tls-cluster",
        "yes",
        "--cluster-enabled",
        "yes",
    ];
    let nodes: Vec<_> = (0..2).map(|_| server(&authority, &args)).collect();
    for ((node, _), slots) in nodes.iter().zip([0..8192, 8192..16384]) {
        let slots: Vec<String> = slots.map(|slot: u16| slot.to_string()).collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        node.query::<()>(&command);
    }
    let port = nodes[1].1.port().to_string();
    nodes[0]
        .0
        .query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    until(3 * SOON, "the cluster is in order", || {
        nodes.iter().all(|(node, _)| {
            let info: String = node.query(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        })
    });
    let at = nodes[0].1;
    let mgr = build(builder(format!("rediss-cluster://{at}"), &authority));
    for i in 0..8 {
        mgr.lock(format!("name{i}")).unwrap().unlock().unwrap();
    }
    assert!(nodes.iter().all(|(node, _)| !node.clients().is_empty()));
    let typed = Endpoint::cluster([(at.ip().to_string(), at.port())]).tls();
    let other = build(builder(typed, &authority));
    assert!(other.lock("a").unwrap().is_held());

    let wrong = builder(format!("rediss-cluster://{at}"), &Authority::named("other")).build();
    assert_is(wrong.expect_err("no manager"), UNKNOWN_ISSUER);
}

#[track_caller]
fn assert_is(error: Error, expected: Reason) {
    assert!(is_tls(&error, expected), "{error:?}");
}

/// The readers of a quorum wait for all sockets at once. Bytes that are decrypted already make no
/// socket readable.
#[test]
fn a_quorum_is_reached_through_tls() {
    const THREADS: usize = 16;
    let authority = Authority::new();
    let nodes: Vec<_> = (0..3)
        .map(|_| server(&authority, &["--tls-auth-clients", "no"]))
        .collect();
    let urls = || Endpoint::quorum(nodes.iter().map(|(_, at)| url_of(*at)));
    // The servers have just started.
    let manager = || build(builder(urls(), &authority).uptime_check(false));
    let (mgr, other) = (manager(), manager());
    let guard = mgr.lock("a").unwrap();
    assert!(other.try_lock("a").unwrap().is_none());
    guard.unlock().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let mgr = &mgr;
            scope.spawn(move || {
                for _ in 0..20 {
                    let guard = mgr.try_lock(format!("own{thread}")).unwrap();
                    guard.expect("it is free").unlock().unwrap();
                }
            });
        }
    });
    let wrong = builder(urls(), &Authority::named("other")).build();
    assert_is(wrong.expect_err("no manager"), UNKNOWN_ISSUER);
}
