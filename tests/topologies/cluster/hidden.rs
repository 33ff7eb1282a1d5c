//! A cluster behind a proxy that hides it: the servers refuse keys of several slots in one command.
//! Servers of a cluster that lack a command which is seldom needed.

use std::thread;
use std::time::Duration;

use fairlock::{Builder, Error, LockGuard, LockManager, LockOptions, endpoint::Endpoint};

use crate::cluster_set::ClusterSet;
use crate::support::{Gateway, Proxy, Server, Unknown, until};

const TTL: Duration = Duration::from_secs(6);
/// So many that one call does not renew them all.
const LOCKS: u64 = 70;

/// How often the server has refused keys of several slots.
fn refused(server: &Server) -> u64 {
    let info: String = server.query(&["INFO", "errorstats"]);
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

#[test]
fn a_connection_is_refused_keys_of_several_slots_once() {
    let set = ClusterSet::start_with(1, 0, &[]);
    let server = set.node(0);
    let proxy = Proxy::to(server.addr());
    proxy.replace_in_replies("$7\r\ncluster\r\n", "$10\r\nstandalone\r\n");
    let options = LockOptions::new().ttl(TTL);
    let builder = LockManager::builder(proxy.url()).options(options);
    let manager = builder.build().expect("the server says it is alone");
    let guards: Vec<LockGuard> = (0..LOCKS)
        .map(|number| manager.lock(format!("name-{number}")).expect("it is free"))
        .collect();
    let renewed_by = |rounds: u64| {
        until(3 * TTL, "all are renewed", || {
            manager.stats().renewals_confirmed >= rounds * LOCKS
        });
    };
    renewed_by(1);
    let first = refused(server);
    assert!(first > 0, "renewals were sent together");
    renewed_by(4);
    assert_eq!(refused(server), first);
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert_eq!(manager.stats().renewals_failed, 0);
}

fn builder(url: &str) -> Builder {
    LockManager::builder(url).options(LockOptions::new().ttl(TTL))
}

/// The proxy knows which server has a key, and no command about the cluster.
#[test]
fn a_cluster_behind_one_address_is_used_by_its_plain_url() {
    let set = ClusterSet::start_with(3, 0, &[]);
    for unknown in [
        Unknown::Says("ERR unknown command '{}', with args beginning with: 'SLOTS' "),
        Unknown::Says("unsupported command '{}'"),
        Unknown::Says("ERR Command is not available: '{}'. See the documentation"),
        Unknown::Closes,
    ] {
        let commands = &["CLUSTER", "ASKING", "READONLY"];
        let proxy = Gateway::without(set.node(0).addr(), commands, unknown);
        let [one, other] = [(); 2].map(|()| {
            let built = builder(&proxy.url()).build();
            built.unwrap_or_else(|error| panic!("{unknown:?}: {error}"))
        });
        // Each master has some of them.
        let guards: Vec<LockGuard> = (0..12)
            .map(|number| one.lock(format!("name-{number}")).expect("it is free"))
            .collect();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| other.lock("name-0"));
            until(3 * TTL, "it waits", || {
                one.inspect("name-0")
                    .unwrap()
                    .is_some_and(|info| info.waiters == 1)
            });
            until(3 * TTL, "all are renewed", || {
                one.stats().renewals_confirmed >= 24
            });
            for guard in guards {
                guard.unlock().unwrap();
            }
            waiting.join().unwrap().unwrap().unlock().unwrap();
        });
        assert_eq!(one.stats().renewals_failed, 0, "{unknown:?}");
        // A message from another server of the cluster came through the proxy.
        assert_eq!(other.stats().handovers, 1, "{unknown:?}");

        let url = format!("redis-cluster://{}", proxy.addr());
        let refused = builder(&url).build().unwrap_err().to_string();
        if let Unknown::Says(_) = unknown {
            let instead = format!("redis://{}", proxy.addr());
            for part in ["CLUSTER SLOTS", &instead] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }
}

/// A user of a cluster may lack the right to ask for its map. That is no proxy.
#[test]
fn a_node_of_a_cluster_is_no_proxy_for_want_of_a_right() {
    let set = ClusterSet::start_with(1, 0, &[]);
    let rules = ["on", ">p", "~*", "&*", "+@all", "-cluster"];
    let user = ["ACL", "SETUSER", "u"];
    set.node(0).query::<()>(&[&user[..], &rules].concat());
    let url = format!("redis://u:p@{}", set.node(0).addr());
    match builder(&url).build() {
        Err(Error::Misused { message, .. }) => {
            assert!(message.contains("redis-cluster://"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// Its members must be single servers: a restart of one of many would not show.
#[test]
fn a_quorum_takes_no_cluster_behind_one_address() {
    let set = ClusterSet::start_with(1, 0, &[]);
    let unknown = Unknown::Says("ERR unknown command '{}'");
    let proxy = Gateway::without(set.node(0).addr(), &["CLUSTER"], unknown);
    let servers = [Server::tcp(), Server::tcp()];
    let urls = servers.iter().map(Server::url).chain([proxy.url()]);
    let built = LockManager::builder(Endpoint::quorum(urls)).build();
    match built {
        Err(Error::Misused { message, .. }) => assert!(message.contains("cluster"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// Redis Software does not have the command. It matters only to a name whose slot moves.
#[test]
fn a_cluster_without_asking_is_used_until_a_slot_moves() {
    let set = ClusterSet::start_with(2, 0, &["--rename-command", "ASKING", ""]);
    let manager = builder(&set.url()).build().expect("nothing is missing yet");
    let name = set.name_on(0, 0);
    manager.lock(&name).unwrap().unlock().unwrap();
    let slot = set.slot_of("moves");
    let from = set.owner_of(slot);
    set.begin_migration(slot, 1 - from);
    let error = manager
        .lock("moves")
        .map(drop)
        .expect_err("it needs ASKING");
    let said = error.to_string();
    assert!(
        said.contains("ASKING") && said.contains("unknown command"),
        "{said}"
    );
    manager.lock(&name).unwrap().unlock().unwrap();
    set.end_migration(slot, 1 - from);
    manager.lock("moves").unwrap().unlock().unwrap();
}
