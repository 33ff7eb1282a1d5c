//! A cluster of real servers, each on a free port with its bus port, and what an operator does to
//! it.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use redis::{FromRedisValue, RedisResult};

use crate::support::{Server, until, until_some};

/// How long a set may take until all its nodes agree. A node refuses for 2 s after its start.
const AGREED_WITHIN: Duration = Duration::from_secs(30);
const SLOTS: u16 = 16_384;

/// Masters, each with as many replicas as the test asked for. All of it ends with the value.
///
/// The first nodes are the masters, in the order of their slots. Then come their replicas: node
/// `masters + i` is the first replica of node `i`. After a failover or a migration the servers know
/// who owns what: [`ClusterSet::owner_of`] asks them.
pub(crate) struct ClusterSet {
    nodes: Vec<Server>,
    ids: Vec<String>,
    masters: usize,
    args: Vec<String>,
    /// Only one migration at a time.
    migrating: Mutex<()>,
}

impl ClusterSet {
    /// Three masters and a replica of each.
    pub(crate) fn start() -> Self {
        Self::start_with(3, 1, &[])
    }

    /// A cluster of `masters` masters with `replicas` replicas each, all with these arguments.
    pub(crate) fn start_with(masters: usize, replicas: usize, extra: &[&str]) -> Self {
        let args: Vec<String> = COMMON_ARGS
            .iter()
            .chain(extra)
            .map(ToString::to_string)
            .collect();
        let nodes: Vec<Server> = thread::scope(|scope| {
            let starting: Vec<_> = (0..masters * (1 + replicas))
                .map(|_| scope.spawn(|| launch(&args)))
                .collect();
            let started = starting.into_iter().map(|node| node.join());
            started.map(|node| node.expect("it starts")).collect()
        });
        let ids = nodes.iter().map(id_of).collect();
        let set = Self {
            nodes,
            ids,
            masters,
            args,
            migrating: Mutex::new(()),
        };
        set.form();
        set
    }

    /// Gives each master its part of the slots, and each replica its master.
    fn form(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if index < self.masters {
                add_slots(node, self.slots_of(index));
            }
        }
        for node in &self.nodes[1..] {
            meet(&self.nodes[0], node);
        }
        let all = self.nodes.len();
        until(AGREED_WITHIN, "every node knows all others", || {
            self.nodes.iter().all(|node| known_nodes(node) == all)
        });
        for (index, node) in self.nodes.iter().enumerate().skip(self.masters) {
            let master = &self.ids[index % self.masters];
            node.query::<()>(&["CLUSTER", "REPLICATE", master]);
        }
        until(AGREED_WITHIN, "every replica has a copy", || {
            self.nodes[self.masters..].iter().all(has_copy)
        });
        self.await_ok();
    }

    /// The slots that a master has at the start.
    fn slots_of(&self, master: usize) -> RangeInclusive<u16> {
        let part = |at: usize| (usize::from(SLOTS) * at / self.masters) as u16;
        part(master)..=part(master + 1) - 1
    }

    /// Waits until every node that runs and answers says that the cluster is in order.
    pub(crate) fn await_ok(&self) {
        until(AGREED_WITHIN, "the cluster is in order", || {
            self.nodes.iter().all(is_ok)
        });
    }

    /// `redis-cluster://` with all nodes.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| node.addr().to_string())
            .collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    pub(crate) fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// How many masters there were at the start.
    pub(crate) fn masters(&self) -> usize {
        self.masters
    }

    pub(crate) fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// The slot of a lock's name, as the servers compute it.
    pub(crate) fn slot_of(&self, name: &str) -> u16 {
        let key = format!("fairlock:{{{name}}}");
        self.ask_any(&["CLUSTER", "KEYSLOT", &key])
    }

    /// The `n`-th name (from 0) whose slot that master had at the start.
    pub(crate) fn name_on(&self, master: usize, n: usize) -> String {
        let slots = self.slots_of(master);
        let names = (0..).map(|i| format!("name-{i}"));
        let mut on_it = names.filter(|name| slots.contains(&self.slot_of(name)));
        on_it.nth(n).expect("there is always a next one")
    }

    /// The node that says of itself that it owns a slot.
    pub(crate) fn owner_of(&self, slot: u16) -> usize {
        until_some(AGREED_WITHIN, "a node says that it owns the slot", || {
            let nodes = self.nodes.iter().enumerate();
            let mut running = nodes.filter(|(_, node)| node.is_running());
            running.find_map(|(index, node)| {
                let owner = owner_known_to(node, slot)?;
                (owner == self.ids[index]).then_some(index)
            })
        })
    }

    /// Asks the first node that answers.
    pub(crate) fn ask_any<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let answers = self.nodes.iter().filter(|node| node.is_running());
        let mut answers = answers.map(|node| node.try_query(command));
        answers
            .find_map(RedisResult::ok)
            .unwrap_or_else(|| panic!("no node answers {command:?}"))
    }

    /// Moves a slot with all its keys, as an operator does it, while clients use it.
    pub(crate) fn migrate(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        if from != to {
            self.begin_migration(slot, to);
            self.move_keys(slot, from, to);
            self.end_migration(slot, to);
        }
    }

    /// From now on the slot's owner answers ASK for keys that it does not have.
    pub(crate) fn begin_migration(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        let number = slot.to_string();
        let (source, target) = (&self.ids[from], &self.ids[to]);
        let importing = ["CLUSTER", "SETSLOT", &number, "IMPORTING", source];
        self.nodes[to].query::<()>(&importing);
        let migrating = ["CLUSTER", "SETSLOT", &number, "MIGRATING", target];
        self.nodes[from].query::<()>(&migrating);
    }

    /// Moves the keys that the slot has now.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let _alone = self
            .migrating
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let number = slot.to_string();
        loop {
            let keys: Vec<String> =
                self.nodes[from].query(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]);
            if keys.is_empty() {
                return;
            }
            self.move_these(&keys, from, to);
        }
    }

    /// Moves these keys. A key that is on both sides is replaced.
    pub(crate) fn move_these(&self, keys: &[String], from: usize, to: usize) {
        let target = self.nodes[to].addr();
        let (host, port) = (target.ip().to_string(), target.port().to_string());
        let mut migrate = vec!["MIGRATE", &host, &port, "", "0", "5000", "REPLACE", "KEYS"];
        migrate.extend(keys.iter().map(String::as_str));
        self.nodes[from].query::<()>(&migrate);
    }

    /// The slot belongs to its new owner, and all masters learn it.
    pub(crate) fn end_migration(&self, slot: u16, to: usize) {
        let number = slot.to_string();
        let new_owner = ["CLUSTER", "SETSLOT", &number, "NODE", &self.ids[to]];
        // The target first: otherwise both could send clients to the other for a while.
        self.nodes[to].query::<()>(&new_owner);
        for (index, node) in self.nodes.iter().enumerate() {
            if index != to && node.is_running() && is_master(node) {
                // One that has lost its last slot by this is a replica now, and refuses.
                let _ = node.try_query::<()>(&new_owner);
            }
        }
        // An older claim that is still on its way can win at a node, until all know the new epoch.
        let owner = Some(self.ids[to].clone());
        until(AGREED_WITHIN, "all nodes agree on the slot's owner", || {
            let running = self.nodes.iter().filter(|node| node.is_running());
            let mut others = running.filter(|node| owner_known_to(node, slot) != owner);
            let other = others.next();
            if let Some(other) = other.filter(|node| is_master(node)) {
                let _ = other.try_query::<()>(&new_owner);
            }
            other.is_none() && self.epochs_agree()
        });
    }

    /// Whether all running nodes know the same epoch of every node.
    fn epochs_agree(&self) -> bool {
        let running = self.nodes.iter().filter(|node| node.is_running());
        let mut epochs = running.map(|node| {
            let nodes: String = node.query(&["CLUSTER", "NODES"]);
            let epoch = |line: &str| {
                let words: Vec<&str> = line.split(' ').collect();
                (words[0].to_owned(), words[6].to_owned())
            };
            nodes.lines().map(epoch).collect::<BTreeMap<_, _>>()
        });
        let first = epochs.next();
        epochs.all(|other| Some(other) == first)
    }

    /// Adds an empty master. Returns its index.
    pub(crate) fn add_node(&mut self) -> usize {
        let node = launch(&self.args);
        let id = id_of(&node);
        meet(&self.nodes[0], &node);
        self.nodes.push(node);
        self.ids.push(id);
        let all = self.nodes.len();
        until(AGREED_WITHIN, "every node knows the new one", || {
            let running = || self.nodes.iter().filter(|node| node.is_running());
            running().all(|node| known_nodes(node) >= all && is_ok(node))
        });
        all - 1
    }

    /// Has all nodes forget one that owns no slot, and ends it.
    pub(crate) fn remove_node(&self, index: usize) {
        self.nodes[index].kill();
        for (other, node) in self.nodes.iter().enumerate() {
            if other != index && node.is_running() {
                node.query::<()>(&["CLUSTER", "FORGET", &self.ids[index]]);
            }
        }
    }
}

/// Small timeouts, and nothing that starts later than it could.
const COMMON_ARGS: [&str; 12] = [
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-node-timeout",
    "1000",
    "--cluster-replica-validity-factor",
    "0",
    "--cluster-migration-barrier",
    "999",
    "--repl-diskless-sync-delay",
    "0",
];

/// A server that is a cluster node. Both its ports are free; it picks another if they are not.
fn launch(args: &[String]) -> Server {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Server::tcp_with(&args)
}

fn id_of(node: &Server) -> String {
    node.query(&["CLUSTER", "MYID"])
}

fn meet(node: &Server, other: &Server) {
    let addr = other.addr();
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    node.query::<()>(&["CLUSTER", "MEET", &host, &port]);
}

fn add_slots(node: &Server, slots: RangeInclusive<u16>) {
    let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
    let mut command = vec!["CLUSTER", "ADDSLOTS"];
    command.extend(slots.iter().map(String::as_str));
    node.query::<()>(&command);
}

/// How many nodes it knows, itself included, without those that it still greets.
fn known_nodes(node: &Server) -> usize {
    let nodes: String = node.query(&["CLUSTER", "NODES"]);
    let lines = nodes.lines().filter(|line| !line.contains("handshake"));
    lines.count()
}

/// The id of the slot's owner, in the eyes of a node.
fn owner_known_to(node: &Server, slot: u16) -> Option<String> {
    let ranges: Vec<Vec<redis::Value>> = node.try_query(&["CLUSTER", "SLOTS"]).ok()?;
    let number = |value: &redis::Value| u16::from_redis_value_ref(value).ok();
    let range = ranges.iter().find(|range| {
        let ends = number(&range[0]).zip(number(&range[1]));
        ends.is_some_and(|(from, to)| (from..=to).contains(&slot))
    })?;
    let owner: Vec<redis::Value> = Vec::from_redis_value_ref(&range[2]).ok()?;
    String::from_redis_value_ref(&owner[2]).ok()
}

fn is_ok(node: &Server) -> bool {
    node.try_query::<String>(&["CLUSTER", "INFO"])
        .is_ok_and(|info| info.contains("cluster_state:ok"))
}

fn has_copy(node: &Server) -> bool {
    let info: String = node.query(&["INFO", "replication"]);
    info.contains("master_link_status:up")
}

fn is_master(node: &Server) -> bool {
    let info: String = node.query(&["INFO", "replication"]);
    info.contains("role:master")
}

mod works {
    use super::*;

    #[test]
    fn cluster_moves_a_slot_and_fails_over() {
        let mut set = ClusterSet::start();
        let name = set.name_on(1, 0);
        let slot = set.slot_of(&name);
        assert_eq!(set.owner_of(slot), 1);
        let key = format!("fairlock:{{{name}}}");
        set.node(1).query::<()>(&["SET", &key, "here"]);
        set.migrate(slot, 2);
        assert_eq!(set.node(2).query::<String>(&["GET", &key]), "here");
        assert_eq!(set.owner_of(slot), 2);
        let added = set.add_node();
        set.migrate(slot, added);
        set.migrate(slot, 2);
        set.remove_node(added);
        set.node(0).kill();
        until(AGREED_WITHIN, "the replica takes over", || {
            is_master(set.node(3)) && is_ok(set.node(3)) && is_ok(set.node(1))
        });
        assert_eq!(set.owner_of(0), 3);
    }
}
