//! Sets of servers, each server on a host of its own.

use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{self, Stdio},
    thread,
    time::Duration,
};

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use crate::{
    network::{Host, Network},
    scenario_checker::TIMINGS,
    support::until,
};

/// A set is formed, or repaired, within this time on a loaded machine. Sentinels that failed over
/// twice at once need half a minute alone.
pub(crate) const FORMED_WITHIN: Duration = Duration::from_secs(90);

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const SERVICE: &str = "main";

/// A server process on its host. It ends by SIGKILL, with this value or with this process.
pub(crate) struct Server {
    pub(crate) host: Host,
    ip: String,
    port: u16,
    dir: TempDir,
    process: process::Child,
}

impl Server {
    fn start(network: &Network, host: Host, args: &[&str]) -> Server {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ip = network.address(host);
        let mut text = format!(
            "port {PORT}\nbind {ip}\nprotected-mode no\nsave \"\"\ndir {dir}\n\
             unixsocket {dir}/socket\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n",
            dir = dir.path().display()
        );
        args.iter().for_each(|line| text.extend([line, "\n"]));
        Server::with_config(network, host, PORT, dir, &text, &[])
    }

    /// Watches the master at this address.
    fn sentinel(network: &Network, host: Host, master: &str) -> Server {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ip = network.address(host);
        let text = format!(
            "port {SENTINEL_PORT}\nbind {ip}\nprotected-mode no\ndir {dir}\n\
             unixsocket {dir}/socket\n\
             sentinel monitor {SERVICE} {master} {PORT} 2\n\
             sentinel down-after-milliseconds {SERVICE} 800\n\
             sentinel failover-timeout {SERVICE} 3000\n\
             sentinel parallel-syncs {SERVICE} 2\n",
            dir = dir.path().display()
        );
        Server::with_config(network, host, SENTINEL_PORT, dir, &text, &["--sentinel"])
    }

    fn with_config(
        network: &Network,
        host: Host,
        port: u16,
        dir: TempDir,
        config: &str,
        args: &[&str],
    ) -> Server {
        let path = dir.path().join("config");
        fs::write(&path, config).expect("a config can be written");
        let log = File::create(dir.path().join("log")).expect("a log can be written");
        let process = network
            .command(host, "setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(binary())
            .arg(&path)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("a server can be started on a host");
        Server {
            host,
            ip: network.address(host),
            port,
            dir,
            process,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn wait_until_ready(&self) {
        until(FORMED_WITHIN, "a server answers PING", || {
            UnixStream::connect(self.socket()).is_ok() && self.try_query::<()>(&["PING"]).is_ok()
        });
    }

    /// Sends one command by a socket that no cut affects.
    pub(crate) fn try_query<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(format!("redis+unix://{}", self.socket().display()))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command).unwrap_or_else(|e| {
            panic!(
                "{command:?} failed at {}: {e}\n{}",
                self.address(),
                self.log()
            )
        })
    }

    fn replication(&self, what: &str) -> Option<String> {
        self.info("replication", what)
    }

    /// One line of a section of `INFO`.
    fn info(&self, section: &str, what: &str) -> Option<String> {
        let info: String = self.try_query(&["INFO", section]).ok()?;
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    }

    pub(crate) fn is_master(&self) -> bool {
        self.replication("role").as_deref() == Some("master")
    }

    fn follows(&self, master: &Server) -> bool {
        self.replication("master_host").as_ref() == Some(&master.ip)
            && self.replication("master_link_status").as_deref() == Some("up")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The servers of one topology.
pub(crate) enum Servers {
    Single(Server),
    Sentinel {
        nodes: Vec<Server>,
        sentinels: Vec<Server>,
    },
    Cluster(Vec<Server>),
    Quorum(Vec<Server>),
}

impl Servers {
    pub(crate) fn single(network: &mut Network) -> Servers {
        let host = network.add_host();
        let server = Server::start(network, host, &[]);
        server.wait_until_ready();
        Servers::Single(server)
    }

    /// A master, two replicas, and three sentinels on hosts of their own.
    pub(crate) fn sentinel(network: &mut Network) -> Servers {
        let hosts: Vec<Host> = (0..6).map(|_| network.add_host()).collect();
        let master = network.address(hosts[0]);
        let follow = format!("replicaof {master} {PORT}");
        let nodes: Vec<Server> = (0..3)
            .map(|at| {
                let args = if at == 0 {
                    vec![]
                } else {
                    vec![follow.as_str()]
                };
                Server::start(network, hosts[at], &args)
            })
            .collect();
        nodes.iter().for_each(Server::wait_until_ready);
        // A sentinel asks the master for its replicas, and again ten seconds later.
        until(FORMED_WITHIN, "the replicas follow the master", || {
            nodes[1..].iter().all(|node| node.follows(&nodes[0]))
        });
        let sentinels: Vec<Server> = hosts[3..]
            .iter()
            .map(|host| Server::sentinel(network, *host, &master))
            .collect();
        sentinels.iter().for_each(Server::wait_until_ready);
        Servers::Sentinel { nodes, sentinels }
    }

    /// Three masters with a replica each: the replica of the node at `n` is at `n + 3`.
    pub(crate) fn cluster(network: &mut Network) -> Servers {
        let args = [
            "cluster-enabled yes",
            "cluster-node-timeout 1000",
            "cluster-replica-validity-factor 0",
            "cluster-require-full-coverage no",
            "cluster-migration-barrier 10",
        ];
        let nodes: Vec<Server> = (0..6)
            .map(|_| {
                let host = network.add_host();
                Server::start(network, host, &args)
            })
            .collect();
        nodes.iter().for_each(Server::wait_until_ready);
        let [first, others @ ..] = &nodes[..] else {
            unreachable!("there are six")
        };
        for (at, shard) in nodes[..3].iter().enumerate() {
            shard.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let slots: Vec<String> = (16384 * at / 3..16384 * (at + 1) / 3)
                .map(|slot| slot.to_string())
                .collect();
            let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str))
                .collect();
            shard.query::<()>(&command);
        }
        for other in others {
            first.query::<()>(&["CLUSTER", "MEET", &other.ip, &PORT.to_string()]);
        }
        let servers = Servers::Cluster(nodes);
        let Servers::Cluster(nodes) = &servers else {
            unreachable!("it was just made")
        };
        until(FORMED_WITHIN, "all nodes know each other", || {
            nodes.iter().all(|node| {
                node.query::<String>(&["CLUSTER", "INFO"])
                    .contains("cluster_known_nodes:6")
            })
        });
        for at in 0..3 {
            let id: String = nodes[at].query(&["CLUSTER", "MYID"]);
            until(FORMED_WITHIN, "a node becomes a replica", || {
                nodes[at + 3]
                    .try_query::<()>(&["CLUSTER", "REPLICATE", &id])
                    .is_ok()
            });
        }
        servers
    }

    pub(crate) fn quorum(network: &mut Network) -> Servers {
        let nodes: Vec<Server> = (0..5)
            .map(|_| {
                let host = network.add_host();
                Server::start(network, host, &[])
            })
            .collect();
        nodes.iter().for_each(Server::wait_until_ready);
        Servers::Quorum(nodes)
    }

    /// The URL of a manager's endpoint; a space separates those of a quorum.
    pub(crate) fn url(&self) -> String {
        let addresses = |servers: &[Server], between: &str| {
            let all: Vec<String> = servers.iter().map(Server::address).collect();
            all.join(between)
        };
        match self {
            Servers::Single(server) => format!("redis://{}", server.address()),
            Servers::Sentinel { sentinels, .. } => {
                format!("redis-sentinel://{}/{SERVICE}", addresses(sentinels, ","))
            }
            Servers::Cluster(nodes) => format!("redis-cluster://{}", addresses(nodes, ",")),
            Servers::Quorum(nodes) => format!("redis://{}", addresses(nodes, " redis://")),
        }
    }

    /// Those that store locks.
    pub(crate) fn nodes(&self) -> &[Server] {
        match self {
            Servers::Single(server) => std::slice::from_ref(server),
            Servers::Sentinel { nodes, .. } | Servers::Cluster(nodes) | Servers::Quorum(nodes) => {
                nodes
            }
        }
    }

    /// The hosts of all servers.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        self.all().map(|server| server.host).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Server> {
        let sentinels = match self {
            Servers::Sentinel { sentinels, .. } => &sentinels[..],
            _ => &[],
        };
        self.nodes().iter().chain(sentinels)
    }

    /// Keeps what the servers have logged.
    pub(crate) fn keep_logs(&self, dir: &Path) {
        for server in self.all() {
            let _ = fs::write(dir.join(format!("{}.txt", server.address())), server.log());
        }
    }

    /// The master that the sentinels name, or that of the cluster's first shard, or the server.
    pub(crate) fn master(&self) -> &Server {
        let named = match self {
            Servers::Single(server) => return server,
            Servers::Quorum(nodes) => return &nodes[0],
            Servers::Sentinel { sentinels, .. } => named_by(&sentinels[0]),
            Servers::Cluster(nodes) => owner_of_first_slot(&nodes[1]),
        };
        let nodes = self.nodes();
        let master = nodes.iter().find(|node| Some(&node.ip) == named.as_ref());
        master.unwrap_or_else(|| panic!("{named:?} is no node"))
    }

    /// Waits until all servers agree on the masters, and all replicas follow them.
    pub(crate) fn wait_until_formed(&self) {
        until(FORMED_WITHIN, "the servers agree on their roles", || {
            let formed = self.is_formed();
            if !formed {
                // A pause between two polls: every look takes several connections.
                thread::sleep(Duration::from_millis(50));
            }
            formed
        });
    }

    fn is_formed(&self) -> bool {
        match self {
            Servers::Single(_) => true,
            // A node that runs for less than a TTL has no vote.
            Servers::Quorum(nodes) => nodes.iter().all(|node| {
                let uptime = node.info("server", "uptime_in_seconds");
                uptime.is_some_and(|s| s.parse().is_ok_and(|s: u64| s > TIMINGS.ttl.as_secs()))
            }),
            Servers::Sentinel { nodes, sentinels } => {
                let named: Vec<_> = sentinels.iter().map(named_by).collect();
                let agree = named.iter().all(|name| *name == named[0]);
                let master = nodes
                    .iter()
                    .find(|node| Some(&node.ip) == named[0].as_ref());
                let sentinels_know = sentinels.iter().all(|s| {
                    s.try_query::<String>(&["SENTINEL", "CKQUORUM", SERVICE])
                        .is_ok_and(|said| said.starts_with("OK 3"))
                        && fields(s).is_some_and(|fields| fields == "master 2 2")
                });
                agree
                    && sentinels_know
                    && master.is_some_and(|master| {
                        master.is_master()
                            && nodes
                                .iter()
                                .filter(|node| node.ip != master.ip)
                                .all(|node| node.follows(master))
                    })
            }
            Servers::Cluster(nodes) => {
                nodes.iter().all(|node| {
                    let healthy = node
                        .try_query::<String>(&["CLUSTER", "INFO"])
                        .is_ok_and(|info| info.contains("cluster_state:ok"));
                    let map: String = node.try_query(&["CLUSTER", "NODES"]).unwrap_or_default();
                    healthy && map.lines().count() == 6 && !map.contains("fail")
                }) && (0..3).all(|at| {
                    let (a, b) = (&nodes[at], &nodes[at + 3]);
                    a.is_master() && b.follows(a) || b.is_master() && a.follows(b)
                })
            }
        }
    }

    /// Makes every node follow the master that all sentinels name. They would do it themselves,
    /// ten seconds after an old master came back.
    pub(crate) fn demote_old_masters(&self) {
        let Servers::Sentinel { nodes, sentinels } = self else {
            return;
        };
        until(FORMED_WITHIN, "the sentinels name one master", || {
            let named: Vec<_> = sentinels.iter().map(named_by).collect();
            named[0].is_some() && named.iter().all(|name| *name == named[0])
        });
        let master = self.master();
        for node in nodes.iter().filter(|node| node.ip != master.ip) {
            if node.is_master() {
                node.query::<()>(&["REPLICAOF", &master.ip, &PORT.to_string()]);
            }
        }
    }

    /// Fails over by the command that is meant for it.
    pub(crate) fn fail_over(&self) {
        let Servers::Sentinel { sentinels, .. } = self else {
            panic!("only sentinels do this")
        };
        let old = self.master().ip.clone();
        until(FORMED_WITHIN, "the sentinels begin a failover", || {
            sentinels[0]
                .try_query::<()>(&["SENTINEL", "FAILOVER", SERVICE])
                .is_ok()
        });
        until(FORMED_WITHIN, "the sentinels name another master", || {
            named_by(&sentinels[0]).is_some_and(|named| named != old)
        });
    }
}

fn named_by(sentinel: &Server) -> Option<String> {
    let said: RedisResult<Option<Vec<String>>> =
        sentinel.try_query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
    Some(said.ok()??.first()?.clone())
}

/// The flags of the master, how many replicas it has, and how many other sentinels watch it.
fn fields(sentinel: &Server) -> Option<String> {
    let said: Vec<String> = sentinel.try_query(&["SENTINEL", "MASTER", SERVICE]).ok()?;
    let value = |what: &str| {
        let mut pairs = said.chunks_exact(2);
        Some(pairs.find(|pair| pair[0] == what)?[1].clone())
    };
    Some(format!(
        "{} {} {}",
        value("flags")?,
        value("num-slaves")?,
        value("num-other-sentinels")?
    ))
}

fn owner_of_first_slot(node: &Server) -> Option<String> {
    let nodes: String = node.try_query(&["CLUSTER", "NODES"]).ok()?;
    let owner = nodes
        .lines()
        .find(|line| line.split(' ').any(|word| word.starts_with("0-")))?;
    Some(owner.split(' ').nth(1)?.split(':').next()?.to_owned())
}

/// The server's binary, which `tests/run.sh` names.
fn binary() -> PathBuf {
    std::env::var_os("FAIRLOCK_TEST_SERVER")
        .map(PathBuf::from)
        .expect("run this by tests/run.sh, which finds the server")
}
