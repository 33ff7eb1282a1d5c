//! Passwords that are rotated while locks are held, on sets of servers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use std::thread;

use fairlock::{
    Builder, Error, LockManager, LockOptions, Step,
    credentials::{Credentials, CredentialsError, CredentialsRequest},
    endpoint::Endpoint,
};

use crate::cluster_set::ClusterSet;
use crate::quorum::set::Set;
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, Server, until};

const TTL: Duration = Duration::from_secs(12);
/// A busy machine keeps it.
const T: Duration = Duration::from_millis(1500);

/// Holds a lock while the user of all these servers gets another password and loses its connections.
#[track_caller]
fn rotation_costs_no_lock(to: impl Into<Endpoint>, servers: &[&Server]) {
    let password = Arc::new(Mutex::new("one"));
    let rotate = |next: &'static str| {
        *password.lock().unwrap() = next;
        for server in servers {
            let secret = format!(">{next}");
            let user = ["ACL", "SETUSER", "u", "reset", "on", &secret];
            let _: () = server.query(&[&user[..], &["~*", "&*", "+@all"]].concat());
            let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
        }
    };
    rotate("one");
    let current = Arc::clone(&password);
    let mgr = LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .connect_timeout(Duration::from_secs(3))
        .command_timeout(T)
        .uptime_check(false)
        .credentials(move |_: &CredentialsRequest| {
            Ok(Credentials::new("u", *current.lock().unwrap()))
        })
        .build()
        .unwrap();
    let held = mgr.lock("held").unwrap();
    rotate("two");
    let rotated = Instant::now();
    until(TTL + SLACK, "more than a ttl passes", || {
        assert!(held.is_held(), "{:?}", rotated.elapsed());
        rotated.elapsed() > TTL
    });
    mgr.lock("another").unwrap().unlock().unwrap();
    held.unlock().unwrap();
}

#[test]
fn rotated_password_costs_no_lock_on_a_quorum() {
    let set = Set::start(3);
    let urls = set.servers.iter().map(Server::url);
    let servers: Vec<&Server> = set.servers.iter().collect();
    rotation_costs_no_lock(Endpoint::quorum(urls), &servers);
}

#[test]
fn rotated_password_costs_no_lock_in_a_cluster() {
    let set = ClusterSet::start();
    let servers: Vec<&Server> = set.nodes().iter().collect();
    rotation_costs_no_lock(set.url(), &servers);
}

#[test]
fn rotated_password_costs_no_lock_under_sentinels() {
    let set = SentinelSet::start();
    let servers: Vec<&Server> = set.nodes.iter().collect();
    rotation_costs_no_lock(set.url(), &servers);
}

/// A provider that gives nothing.
type NoCredentials = fn(&CredentialsRequest) -> Result<Credentials, CredentialsError>;

/// Each way in which a provider gives nothing, and the words for it.
const FAILING: [(NoCredentials, &str); 3] = [
    (|_| Err("the vault is sealed".into()), "the vault is sealed"),
    (|_| panic!("on purpose"), "panicked"),
    (
        |_| {
            // For longer than any test runs.
            thread::park_timeout(Duration::from_secs(600));
            Err("it is late".into())
        },
        "took too long",
    ),
];

/// `build` blames the provider, within the connect timeout.
#[track_caller]
fn provider_is_blamed(what: &str, with: impl Fn(NoCredentials) -> Builder) {
    for (provider, words) in FAILING {
        // A busy machine takes its time over a panic.
        let timeout = Duration::from_secs(if words == "took too long" { 2 } else { 60 });
        let started = Instant::now();
        let built = with(provider).connect_timeout(timeout).build();
        let took = started.elapsed();
        assert!(took < timeout + SLACK, "{what}: {took:?}");
        let error = built.expect_err("there are no credentials");
        let Error::Unavailable { step, cause, .. } = &error else {
            panic!("{what}: {error:?}");
        };
        assert_eq!(*step, Step::Credentials, "{what}: {error:?}");
        assert!(cause.to_string().contains(words), "{what}: {cause}");
    }
}

#[test]
fn provider_that_gives_nothing_is_blamed_on_each_topology() {
    let server = Server::start();
    let provided = |to: &dyn Fn() -> Endpoint, what: &str| {
        provider_is_blamed(what, |provider| {
            LockManager::builder(to()).credentials(provider)
        });
    };
    provided(&|| server.url().into(), "one server");
    let set = Set::start(3);
    let quorum = || Endpoint::quorum(set.servers.iter().map(Server::url));
    provided(&quorum, "a quorum");
    let cluster = ClusterSet::start();
    provided(&|| cluster.url().into(), "a cluster");
    let sentinels = SentinelSet::start();
    provided(&|| sentinels.url().into(), "a master of sentinels");
    provider_is_blamed("sentinels", |provider| {
        LockManager::builder(sentinels.url()).sentinel_credentials(provider)
    });
}
