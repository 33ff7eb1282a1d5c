//! The ACL rule of each topology: a user with the documented rights can do everything, and the
//! error for a user who lacks one of them names it.

use std::thread;
use std::time::Duration;

use fairlock::{
    Builder, Error, LockGuard, LockManager, LockOptions, Result, RwLock, endpoint::Endpoint,
};

use crate::cluster_set::ClusterSet;
use crate::sentinel_set::{SentinelSet, SentinelSetup};
use crate::support::{Server, until};

/// As short as it can be with such a command timeout.
const TTL: Duration = Duration::from_secs(6);
/// A loaded machine answers within this time.
const T: Duration = Duration::from_secs(1);
const CHECK_PERIOD: Duration = Duration::from_millis(375);
const TWO_CHECKS: Duration = Duration::from_millis(750);

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

/// The rights in a page's code that begins like this.
fn documented(page: &'static str, beginning: &str) -> Vec<&'static str> {
    let rules = page.split('`').filter(|code| code.starts_with(beginning));
    // Other sentences name single rights.
    let rule = rules.max_by_key(|rule| rule.len());
    let rule = rule.unwrap_or_else(|| panic!("no page names {beginning}"));
    // A bar in a table is escaped.
    rule.split_whitespace()
        .map(|right| &*right.replace(r"\|", "|").leak())
        .collect()
}

/// The commands that a user needs at one server.
fn one_servers() -> Vec<&'static str> {
    documented(include_str!("../../docs/SERVERS.md"), "+select")
}

fn sentinels() -> Vec<&'static str> {
    documented(include_str!("../../docs/SERVERS.md"), "+sentinel")
}

fn clusters() -> Vec<&'static str> {
    let more = documented(include_str!("../../docs/SERVERS.md"), "+cluster");
    let one_servers = one_servers().into_iter();
    let without = one_servers.filter(|right| *right != "+select");
    without.chain(more).collect()
}

/// Makes the user `u` anew on each server, with these rights but one.
fn set_user<'a>(servers: impl IntoIterator<Item = &'a Server>, rights: &[&str], without: &str) {
    let mut command = vec!["ACL", "SETUSER", "u", "reset", "on", ">p"];
    command.extend(["resetchannels", "~fairlock:*"]);
    // A quorum has no messages.
    if rights.contains(&"+publish") {
        command.push("&fairlock:grants:*");
    }
    command.extend(rights.iter().filter(|right| **right != without));
    for server in servers {
        server.query::<()>(&command);
    }
}

fn builder(to: impl Into<Endpoint>) -> Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(CHECK_PERIOD)
        .horizon(CHECK_PERIOD + 3 * T)
        .connect_timeout(SOON)
}

fn build(url: &str) -> Result<LockManager> {
    builder(url).build()
}

/// The commands that a server has refused to its users, in the order of their names.
fn refused_by(server: &Server) -> Vec<String> {
    let log: Vec<Vec<redis::Value>> = server.query(&["ACL", "LOG"]);
    let text = |value: &redis::Value| redis::from_redis_value_ref(value).unwrap_or_default();
    let mut refused: Vec<String> = log
        .iter()
        .flat_map(|entry| entry.chunks_exact(2))
        .filter(|pair| text(&pair[0]) == "object")
        .map(|pair| text(&pair[1]))
        .collect();
    refused.sort_unstable();
    refused
}

/// Everything that two managers do, and longer than a check of the subscription takes.
fn use_everything(one: &LockManager, other: &LockManager) {
    let holder = one.lock("a").unwrap();
    holder.renew().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("a"));
        until(SOON, "it waits", || {
            one.inspect("a")
                .unwrap()
                .is_some_and(|info| info.waiters == 1)
        });
        let renewed = one.stats().renewals_confirmed;
        until(SOON, "it is renewed", || {
            one.stats().renewals_confirmed > renewed
        });
        // Time itself is under test: the subscription is checked twice in it.
        thread::sleep(TWO_CHECKS);
        holder.unlock().unwrap();
        let next = waiting.join().unwrap().unwrap();
        assert_eq!(other.stats().handovers, 1);
        assert_eq!(one.list("*").map(Result::unwrap).count(), 1);
        assert!(one.force_release("a", next.fence()).unwrap());
    });
    one.lock_all(["x", "y", "z"]).unwrap().unlock().unwrap();
    let permits = one.semaphore("s", 3);
    permits.acquire(2).unwrap().unlock().unwrap();
    let written = other.rw_lock("r").write().unwrap();
    let read = RwLock::downgrade(written).unwrap();
    one.rw_lock("r").read().unwrap().unlock().unwrap();
    read.unlock().unwrap();
    for name in ["x", "y", "z", "s", "r"] {
        assert!(other.delete(name).unwrap());
    }
}

/// The first refusal that a user meets. `held` is held by somebody else.
fn first_refusal(url: &str, held: &LockGuard) -> Result<()> {
    let manager = build(url)?;
    manager.list("*").try_for_each(|found| found.map(drop))?;
    manager.lock("free")?.unlock()?;
    manager.try_lock_for(held.name(), TWO_CHECKS).map(drop)
}

/// Each of these rights, for a user of these servers who lacks it: the error names it.
fn assert_each_is_named<'a>(
    servers: impl Fn() -> Vec<&'a Server>,
    rights: &[&str],
    url_for: impl Fn(&str) -> String,
    held: &LockGuard,
) {
    for right in rights {
        set_user(servers(), rights, right);
        let end = first_refusal(&url_for(right), held);
        // Without it, a wait goes on. A connection that is half open would not be noticed.
        if *right == "+ping" {
            end.unwrap();
            let refused = servers().into_iter().flat_map(refused_by);
            assert!(refused.into_iter().any(|command| command == "ping"));
            continue;
        }
        assert_named(end, right);
    }
}

#[track_caller]
fn assert_named<T>(end: Result<T>, right: &str) {
    let error = end.err().unwrap_or_else(|| panic!("nothing needs {right}"));
    let Error::Refused { code, message, .. } = &error else {
        panic!("{right}: {error:?}");
    };
    assert_eq!(code, "NOPERM", "{right}: {message}");
    let named = right.trim_start_matches('+');
    assert!(message.contains(named), "{right}: {message}");
}

#[test]
fn documented_rights_are_enough_with_sentinels() {
    let finder = format!("user u on >p resetchannels {}", sentinels().join(" "));
    let set = SentinelSet::start_with(&SentinelSetup {
        sentinel_lines: &[&finder],
        ..SentinelSetup::default()
    });
    set_user(&set.nodes, &one_servers(), "");
    let login = "sentinelUsername=u&sentinelPassword=p";
    let url = format!("{}?{login}", set.url().replace("://", "://u:p@"));
    use_everything(&build(&url).unwrap(), &build(&url).unwrap());
    for server in set.nodes.iter().chain(&set.sentinels) {
        assert_eq!(refused_by(server), [""; 0]);
    }

    let admin = build(&set.url()).unwrap();
    let held = admin.lock("held").unwrap();
    // Database 1 has a lock of the same name, which is free.
    let in_database_1 = url.replace("?", "/1?");
    assert_each_is_named(
        || set.nodes.iter().collect(),
        &one_servers(),
        |right| {
            if right == "+select" {
                in_database_1.clone()
            } else {
                url.clone()
            }
        },
        &held,
    );
    set_user(&set.nodes, &one_servers(), "");
    for right in sentinels() {
        set_user(&set.sentinels, &sentinels(), right);
        let error = build(&url).map(drop);
        // Without it, two addresses of one sentinel count as two.
        if right == "+sentinel|myid" {
            error.unwrap();
            continue;
        }
        assert_named(error, &format!("ACL SETUSER u {right}"));
    }
}

/// A majority decides, so the user is the same on all servers.
#[test]
fn documented_rights_are_enough_with_a_quorum() {
    let rights = documented(include_str!("../../docs/SERVERS.md"), "+info");
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let build = |login: &str| {
        let urls = servers
            .iter()
            .map(|server| format!("{}{login}", server.url()));
        builder(Endpoint::quorum(urls)).build()
    };
    let user = "?user=u&pass=p";
    set_user(&servers, &rights, "");
    until(SOON, "the servers have run for a ttl", || {
        build(user)
            .and_then(|manager| manager.try_lock("a"))
            .is_ok()
    });
    let [one, other] = [(); 2].map(|()| build(user).unwrap());
    let holder = one.lock("a").unwrap();
    holder.renew().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("a"));
        let renewed = one.stats().renewals_confirmed;
        until(SOON, "it is renewed", || {
            one.stats().renewals_confirmed > renewed
        });
        assert_eq!(one.list("*").map(Result::unwrap).count(), 1);
        holder.unlock().unwrap();
        let next = waiting.join().unwrap().unwrap();
        assert!(one.inspect("a").unwrap().is_some());
        assert!(one.force_release("a", next.fence()).unwrap());
    });
    one.lock_all(["x", "y", "z"]).unwrap().unlock().unwrap();
    drop((one, other));
    for server in &servers {
        assert_eq!(refused_by(server), [""; 0]);
    }

    for right in &rights {
        set_user(&servers, &rights, right);
        let login = if *right == "+select" {
            "?db=1&user=u&pass=p"
        } else {
            user
        };
        let end = build(login).and_then(|manager| {
            manager.list("*").try_for_each(|found| found.map(drop))?;
            manager.lock("free")?.unlock()
        });
        assert_asks_for_none_but(&rights, &end);
        assert_named(end, right);
    }
}

/// An error gives no advice to add a right that the page does not name.
#[track_caller]
fn assert_asks_for_none_but<T>(rights: &[&str], end: &Result<T>) {
    let text = end
        .as_ref()
        .err()
        .map_or_else(String::new, Error::to_string);
    let asked_for = text
        .split_whitespace()
        .filter(|word| word.starts_with(['+', '&']));
    let more: Vec<&str> = asked_for
        .map(|word| word.trim_end_matches([',', ';', '.']))
        .filter(|word| !rights.contains(word))
        .collect();
    assert!(more.is_empty(), "{more:?}: {text}");
}

#[test]
fn documented_rights_are_enough_with_replica_acks() {
    let master = Server::tcp_with(&["--repl-diskless-sync-delay", "0"]);
    let port = master.addr().port().to_string();
    let _replica = Server::tcp_with(&["--replicaof", "127.0.0.1", &port]);
    let more = documented(include_str!("../../docs/SERVERS.md"), "+wait");
    set_user([&master], &[one_servers(), more.clone()].concat(), "");
    let url = format!("redis://u:p@{}", master.addr());
    let build = || builder(&url).replica_acks(1, T / 2).build();
    let one = build().unwrap();
    until(SOON, "the replica acknowledges", || one.lock("a").is_ok());
    use_everything(&one, &build().unwrap());
    assert_eq!(refused_by(&master), [""; 0]);

    set_user([&master], &one_servers(), "");
    for right in more {
        assert_named(build().map(drop), right);
    }
}

#[test]
fn documented_rights_are_enough_with_a_cluster() {
    let set = ClusterSet::start_with(3, 0, &[]);
    set_user(set.nodes(), &clusters(), "");
    let url = set.url().replace("://", "://u:p@");
    use_everything(&build(&url).unwrap(), &build(&url).unwrap());
    for server in set.nodes() {
        assert_eq!(refused_by(server), [""; 0]);
    }

    let admin = build(&set.url()).unwrap();
    let held = admin.lock("held").unwrap();
    assert_each_is_named(
        || set.nodes().iter().collect(),
        &clusters(),
        |_| url.clone(),
        &held,
    );
    // These show before anything is taken.
    for right in ["+cluster|slots", "+asking"] {
        set_user(set.nodes(), &clusters(), right);
        assert_named(build(&url).map(drop), right);
    }
}
