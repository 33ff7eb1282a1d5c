//! Three sentinels, a master and two replicas: real processes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::server::free_address;
use crate::support::{Server, until, until_some};

/// The name of the service that the sentinels watch.
pub(crate) const SERVICE: &str = "mymaster";

/// How long the sentinels wait for a silent server before they call it down.
pub(crate) const DOWN_AFTER: Duration = Duration::from_millis(500);

/// How long a failover may take on a loaded machine, from the master's end to the last sentinel's
/// word.
pub(crate) const FAILOVER_WITHIN: Duration = Duration::from_secs(30);

/// How long the set may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Three sentinels and the servers that they watch. All of them end in `Drop`.
pub(crate) struct SentinelSet {
    pub(crate) sentinels: Vec<Server>,
    /// The first one is the master at the start.
    pub(crate) nodes: Vec<Server>,
}

/// The settings of a set that are not the same for all tests.
#[derive(Default)]
pub(crate) struct SentinelSetup<'a> {
    /// Arguments of the master and the replicas, such as `["--requirepass", "p"]`.
    pub(crate) node_args: &'a [&'a str],
    /// Lines of the sentinels' configuration, such as `requirepass p`.
    pub(crate) sentinel_lines: &'a [&'a str],
}

impl SentinelSet {
    /// Starts a set and waits until each sentinel knows all others, and both replicas are in sync.
    pub(crate) fn start() -> SentinelSet {
        SentinelSet::start_with(&SentinelSetup::default())
    }

    /// Starts a set with these settings. With a password for sentinels, only its start is awaited.
    pub(crate) fn start_with(setup: &SentinelSetup<'_>) -> SentinelSet {
        let mut why = String::new();
        // Another process may take a port between our check and the server's bind.
        for _ in 0..5 {
            match SentinelSet::try_start(setup) {
                Ok(set) => {
                    set.await_ready(setup);
                    return set;
                }
                Err(e) if e.contains("in use") => why = e,
                Err(e) => panic!("{e}"),
            }
        }
        panic!("five times a port was taken; the last server said: {why}");
    }

    fn try_start(setup: &SentinelSetup<'_>) -> Result<SentinelSet, String> {
        let node_addrs: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
        let sentinel_addrs: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
        let configs = configs(node_addrs, sentinel_addrs, setup.sentinel_lines);
        let master_port = node_addrs[0].port().to_string();
        thread::scope(|scope| {
            let nodes: Vec<_> = node_addrs
                .iter()
                .enumerate()
                .map(|(i, addr)| {
                    let mut args = vec!["--repl-diskless-sync-delay", "0"];
                    args.extend(setup.node_args);
                    if i > 0 {
                        args.extend(["--replicaof", "127.0.0.1", &master_port]);
                    }
                    scope.spawn(move || Server::tcp_at(*addr, &args))
                })
                .collect();
            // A sentinel that finds a server down at its start would call for a failover.
            let nodes: Result<Vec<_>, _> = nodes.into_iter().map(join).collect();
            let nodes = nodes?;
            let sentinels: Vec<_> = sentinel_addrs
                .iter()
                .zip(&configs)
                .map(|(addr, config)| scope.spawn(move || Server::sentinel_at(*addr, config)))
                .collect();
            let sentinels: Result<Vec<_>, _> = sentinels.into_iter().map(join).collect();
            Ok(SentinelSet {
                sentinels: sentinels?,
                nodes,
            })
        })
    }

    fn await_ready(&self, setup: &SentinelSetup<'_>) {
        if setup.node_args.contains(&"--requirepass") {
            return;
        }
        // A replica counts as online before the master sends it what it writes.
        self.await_replication();
        if !setup.sentinel_lines.is_empty() {
            return;
        }
        for sentinel in &self.sentinels {
            until(READY_WITHIN, "the sentinel knows the set", || {
                let known = master_fields(sentinel);
                let is = |field: &str, value: &str| field_of(&known, field) == Some(value);
                is("flags", "master") && is("num-slaves", "2") && is("num-other-sentinels", "2")
            });
        }
    }

    /// Has the sentinels wait for so long that no machine is loaded enough to be called down, and
    /// waits until each of them says that it could agree with the others on a failover.
    pub(crate) fn calm(&self) {
        let after = ["down-after-milliseconds", "4000"];
        for sentinel in &self.sentinels {
            sentinel.query::<()>(&[&["SENTINEL", "SET", SERVICE], &after[..]].concat());
            until(READY_WITHIN, "the sentinel has a quorum", || {
                let agreed = sentinel.try_query::<String>(&["SENTINEL", "CKQUORUM", SERVICE]);
                agreed.is_ok()
            });
        }
    }

    /// Waits until both replicas have all that the first master has written.
    pub(crate) fn await_replication(&self) {
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let mark = MARKS.fetch_add(1, Ordering::Relaxed).to_string();
        self.nodes[0].query::<()>(&["SET", "mark", &mark, "PX", "60000"]);
        for replica in &self.nodes[1..] {
            until(READY_WITHIN, "the replica has the mark", || {
                let found: Result<String, _> = replica.try_query(&["GET", "mark"]);
                found.is_ok_and(|found| found == mark)
            });
        }
    }

    /// `host:port` of each sentinel, with commas between them.
    pub(crate) fn hosts(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|s| s.addr().to_string())
            .collect();
        hosts.join(",")
    }

    /// The URL of the service.
    pub(crate) fn url(&self) -> String {
        format!("redis-sentinel://{}/{SERVICE}", self.hosts())
    }

    /// The node at this address.
    pub(crate) fn node(&self, addr: SocketAddr) -> &Server {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|node| node.addr() == addr)
            .unwrap_or_else(|| panic!("no node at {addr}"))
    }

    /// The master that this sentinel names to clients. `None` if it does not answer.
    pub(crate) fn named_by(sentinel: &Server) -> Option<SocketAddr> {
        let named: (String, u16) = sentinel
            .try_query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
            .ok()?;
        format!("{}:{}", named.0, named.1).parse().ok()
    }

    /// Waits until one of these sentinels names another master than `old`, and that one says so
    /// itself.
    pub(crate) fn await_other_master(&self, sentinels: &[&Server], old: &Server) -> &Server {
        let new = until_some(FAILOVER_WITHIN, "a new master is named", || {
            sentinels
                .iter()
                .filter_map(|sentinel| SentinelSet::named_by(sentinel))
                .find(|addr| *addr != old.addr())
        });
        let new = self.node(new);
        until(FAILOVER_WITHIN, "the new master is one", || is_master(new));
        new
    }

    /// Waits until each of these sentinels names this master.
    pub(crate) fn await_named(&self, sentinels: &[&Server], master: &Server) {
        for sentinel in sentinels {
            until(FAILOVER_WITHIN, "each sentinel names the master", || {
                SentinelSet::named_by(sentinel) == Some(master.addr())
            });
        }
    }

    /// All sentinels.
    pub(crate) fn all(&self) -> Vec<&Server> {
        self.sentinels.iter().collect()
    }
}

/// Whether the server says that it is a master.
pub(crate) fn is_master(node: &Server) -> bool {
    let role: Result<Vec<redis::Value>, _> = node.try_query(&["ROLE"]);
    let first = role.ok().and_then(|role| role.into_iter().next());
    first.is_some_and(|role| redis::from_redis_value::<String>(role).is_ok_and(|r| r == "master"))
}

/// The fields of a sentinel's answer about the master: names and values. Empty if there is none.
pub(crate) fn master_fields(sentinel: &Server) -> Vec<String> {
    let fields = sentinel.try_query(&["SENTINEL", "MASTER", SERVICE]);
    fields.unwrap_or_default()
}

/// One of them.
pub(crate) fn field_of<'a>(fields: &'a [String], name: &str) -> Option<&'a str> {
    let mut pairs = fields.chunks_exact(2);
    pairs
        .find(|pair| pair[0] == name)
        .map(|pair| pair[1].as_str())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().expect("a server can be started")
}

/// The sentinels know each other and the replicas from the start. Otherwise they would learn of
/// each other by messages that come every two seconds.
fn configs(nodes: [SocketAddr; 3], sentinels: [SocketAddr; 3], lines: &[&str]) -> [String; 3] {
    let at = |addr: SocketAddr| format!("{} {}", addr.ip(), addr.port());
    std::array::from_fn(|own| {
        let mut config = format!(
            "sentinel monitor {SERVICE} {} 2\n\
             sentinel down-after-milliseconds {SERVICE} {}\n\
             sentinel failover-timeout {SERVICE} 5000\n\
             sentinel parallel-syncs {SERVICE} 2\n\
             sentinel myid {}\n",
            at(nodes[0]),
            DOWN_AFTER.as_millis(),
            run_id(sentinels[own]),
        );
        for replica in &nodes[1..] {
            config += &format!("sentinel known-replica {SERVICE} {}\n", at(*replica));
        }
        for (other, addr) in sentinels.iter().enumerate() {
            if other != own {
                config += &format!(
                    "sentinel known-sentinel {SERVICE} {} {}\n",
                    at(*addr),
                    run_id(*addr)
                );
            }
        }
        config + &lines.join("\n") + "\n"
    })
}

/// The id of a sentinel.
fn run_id(sentinel: SocketAddr) -> String {
    format!("{:040x}", sentinel.port())
}
