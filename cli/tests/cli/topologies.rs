//! `ls`, `show` and `bench` where several servers hold the locks.

use std::collections::BTreeSet;

use fairlock::{LockGuard, LockManager, LockOptions, Waiter};

use crate::cluster_set::ClusterSet;
use crate::look::{first_column, objects, patient, until_awaited};
use crate::process::{Ended, end, exits, without_server};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::support::{Server, until, until_some};

/// The binary with these arguments behind those that say where the locks are.
fn ended(place: &[&str], args: &[&str]) -> Ended {
    end(without_server(&[args, place].concat()).env("FAIRLOCK_COMMAND_TIMEOUT", "2s"))
}

#[track_caller]
fn ok(place: &[&str], args: &[&str]) -> String {
    let ended = ended(place, args);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    ended.stdout
}

fn manager(url: &str) -> LockManager {
    patient(url, LockOptions::new().label("nightly"))
}

/// `ls` and `show` have this lock, held and awaited.
#[track_caller]
fn assert_shown(place: &[&str], name: &str) {
    let page = ok(place, &["show", name]);
    assert!(page.contains("held by"), "{page}");
    let listed = objects(&ok(place, &["ls", name, "--json"]));
    let shown = objects(&ok(place, &["show", name, "--json"]));
    for info in [&listed[0], &shown[0]] {
        assert_eq!((&*info.name, info.waiters), (name, 1));
        let holder = info.holder.as_ref().expect("it is held");
        let (label, pid) = (&*holder.label, holder.pid);
        assert_eq!((label, pid), ("nightly", std::process::id()));
        assert_eq!(holder.fence, Some(info.fence));
    }
    let other = ended(place, &["show", "no such name"]);
    assert_eq!(other.code, Some(1), "{other:?}");
}

#[test]
fn a_sentinel_set_is_shown_before_and_after_a_failover() {
    let set = SentinelSet::start();
    let mgr = manager(&set.url());
    let _guard = mgr.lock("invoices:42").expect("it is free");
    let _waiter = mgr.enqueue("invoices:42").expect("the master answers");
    until_awaited(&mgr, "invoices:42", 1);
    let url = set.url();
    let place = ["--url", &*url];
    assert_shown(&place, "invoices:42");
    // A sentinel that hangs delays the answer, and does not prevent it.
    set.sentinels[0].stop();
    assert_shown(&place, "invoices:42");
    set.sentinels[0].cont();
    set.await_replication();
    set.nodes[0].kill();
    let new = set.await_other_master(&set.all(), &set.nodes[0]);
    assert_shown(&place, "invoices:42");
    // Without any sentinel there is no answer. The error names each.
    set.sentinels.iter().for_each(Server::kill);
    let ended = ended(&place, &["ls"]);
    assert_eq!((ended.code, &*ended.stdout), (Some(69), ""), "{ended:?}");
    for sentinel in &set.sentinels {
        let address = sentinel.addr().to_string();
        assert!(ended.stderr.contains(&address), "{}", ended.stderr);
    }
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let direct = ok(&["--url", &new.url()], &["ls"]);
    assert!(direct.contains("invoices:42"), "{direct}");
}

/// Each of these names is held and awaited.
fn hold_all(mgr: &LockManager, names: &BTreeSet<String>) -> Vec<(LockGuard, Waiter)> {
    let hold = |name: &String| {
        let guard = mgr.lock(name).expect("it is free");
        let waiter = mgr.enqueue(name).expect("the masters answer");
        until_awaited(mgr, name, 1);
        (guard, waiter)
    };
    names.iter().map(hold).collect()
}

#[test]
fn a_cluster_is_shown_with_the_names_of_all_its_slots() {
    let set = ClusterSet::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
    let mgr = manager(&set.url());
    let names: BTreeSet<String> = (0..9).map(|n| set.name_on(n % 3, n / 3)).collect();
    let _held = hold_all(&mgr, &names);
    // One node is enough to find the others, and a replica will do.
    let (url, seed) = (set.url(), format!("redis-cluster://{}", set.node(4).addr()));
    for url in [&url, &seed] {
        let place = ["--url", url];
        assert_eq!(first_column::<BTreeSet<_>>(&ok(&place, &["ls"])), names);
        assert_shown(&place, names.first().expect("nine names"));
        assert_shown(&place, names.last().expect("nine names"));
    }
    // Redis has the places of the waiters on the replica, too, when it takes over.
    set.node(0).query::<i64>(&["WAIT", "1", "5000"]);
    set.node(0).kill();
    let place = ["--url", &*url];
    until(FAILOVER_WITHIN, "all nodes know who took over", || {
        ended(&place, &["ls"]).code == Some(0)
    });
    assert_shown(&place, &set.name_on(0, 0));
    assert_eq!(first_column::<BTreeSet<_>>(&ok(&place, &["ls"])), names);
}

/// A table of what the other nodes have is better than nothing. The exit code says that it is not
/// all.
#[test]
fn a_stopped_node_of_a_cluster_hides_only_its_own_names() {
    let set = ClusterSet::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let mgr = manager(&set.url());
    let hidden = set.name_on(0, 0);
    let others = BTreeSet::from([1, 2].map(|master| set.name_on(master, 0)));
    let _held = hold_all(&mgr, &(&others | &BTreeSet::from([hidden.clone()])));
    let url = set.url();
    let place = ["--url", &*url];
    set.node(0).stop();
    let about = format!("fairlock: redis at {} is unavailable", set.node(0).addr());
    let ended = |args: &[&str]| {
        let ended = ended(&place, args);
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.starts_with(&about), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        ended.stdout
    };
    assert_eq!(first_column::<BTreeSet<_>>(&ended(&["ls"])), others);
    let found = objects(&ended(&["ls", "--json"])).into_iter();
    let found: BTreeSet<String> = found.map(|info| info.name.to_string()).collect();
    assert_eq!(found, others);
    assert_eq!(ended(&["show", &hidden]), "");
    let page = ok(&place, &["show", others.first().expect("two names")]);
    assert!(
        page.contains("nightly") && page.contains("1 waiting"),
        "{page}"
    );
    set.node(0).cont();
}

/// Measures for a short time. On a busy machine a server may be slow, so the timeout is long.
#[track_caller]
fn assert_measured(place: &[&str], servers: &[&Server]) {
    let args = ["bench", "--duration", "20ms", "--command-timeout", "10s"];
    let ended = ended(place, &args);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "no warning: {ended:?}");
    for server in servers {
        let keys: Vec<String> = server.query(&["KEYS", "fairlock*"]);
        assert_eq!(keys, [""; 0]);
    }
}

#[test]
fn bench_leaves_no_key_behind_sentinels_or_in_a_cluster() {
    let set = SentinelSet::start();
    assert_measured(&["--url", &set.url()], &[&set.nodes[0]]);
    let set = ClusterSet::start_with(3, 0, &[]);
    let nodes: Vec<&Server> = set.nodes().iter().collect();
    assert_measured(&["--url", &set.url()], &nodes);
}

#[test]
fn young_quorum_is_no_conflict_and_keeps_the_names_of_a_bench() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let urls = servers.each_ref().map(Server::url).join(" ");
    let run = ["run", "--wait", "300ms", "--url", &urls, "a", "--", "true"];
    let ended = exits(without_server(&run), 69);
    let reason = "it has run for less than the ttl";
    ended.says(reason);
    // A server that has just started has no vote until a ttl is over.
    let bench = ["bench", "--duration", "20ms", "--url", &urls];
    let ended = until_some(FAILOVER_WITHIN, "it measures", || {
        let ended = end(without_server(&bench));
        (ended.code == Some(0)).then_some(ended)
    });
    ended.says("is not deleted; Redis forgets it within an hour");
}
