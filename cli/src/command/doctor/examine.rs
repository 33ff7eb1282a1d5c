//! All servers, asked at once, each on a thread that nobody joins: one that hangs delays no other.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use fairlock::{
    Step,
    servers::{Server, Servers},
};

use super::cluster_map::{masters, slot_map};
use super::facts::{Deployment, Facts, NodeAnswers, NodeFacts, NodeRole};
use super::fault::Fault;
use super::interview::{Master, Time, ask_master, ask_only};
use super::rights::Names;
use super::sentinel::{self, Told};

/// The examination of the servers of an endpoint. Its two steps take two connect timeouts and six
/// command timeouts at most.
pub(super) struct Examination {
    pub(super) servers: Servers,
    pub(super) prefix: String,
    /// Whether replicas must acknowledge locks.
    pub(super) has_acks: bool,
    pub(super) connect: Duration,
    /// T
    pub(super) reply: Duration,
}

impl Examination {
    /// Examines servers on which locks can be taken.
    pub(super) fn of_usable(&self) -> Facts {
        let first = self.first_step();
        let named = &self.servers.named();
        let (mut sentinels, mut masters) = (Vec::new(), Vec::new());
        match self.servers.deployment() {
            Deployment::Cluster => masters = self.masters_of_cluster(first),
            Deployment::Sentinel => {
                let told = self.sentinels(false, first);
                let master = sentinel::master_in(&told);
                masters.extend(master.map(|server| self.master(&server, Some(&server))));
                sentinels = sentinel::facts(named, told);
            }
            other => {
                // The callers of a quorum await no message.
                let listener = |server| (other == Deployment::Single).then_some(server);
                let master = |server| self.master(server, listener(server));
                masters.extend(named.iter().map(master));
            }
        }
        Facts {
            deployment: self.servers.deployment(),
            sentinels,
            nodes: self.with_replicas(&masters, first),
        }
    }

    /// Examines servers, none of which may be a master, as far as each answers.
    pub(super) fn of_unusable(&self) -> Facts {
        let named = &self.servers.named();
        let as_masters = |servers: &[Server]| {
            let masters = servers.iter().cloned();
            masters.map(|server| (server, NodeRole::Master)).collect()
        };
        let (mut sentinels, mut servers) = (Vec::new(), as_masters(named));
        if self.servers.deployment() == Deployment::Sentinel {
            let told = self.sentinels(true, self.first_step());
            servers = sentinel::servers_in(&told);
            sentinels = sentinel::facts(named, told);
        }
        let mut nodes = self.only(servers);
        if self.servers.deployment() == Deployment::Cluster {
            // Any node of the cluster may be named.
            for node in nodes.iter_mut().filter(|node| node.is_replica()) {
                node.role = NodeRole::Replica;
            }
        }
        Facts {
            deployment: self.servers.deployment(),
            sentinels,
            nodes,
        }
    }

    /// The end of the first step: sentinels and masters.
    fn first_step(&self) -> Instant {
        Instant::now() + self.connect + self.reply * 4
    }

    /// The end of the second step: the servers that the first one named.
    fn second_step(&self) -> Instant {
        Instant::now() + self.connect + self.reply * 2
    }

    fn time(&self, until: Instant) -> Time {
        Time {
            connect: self.connect,
            reply: self.reply,
            until,
        }
    }

    fn master(&self, server: &Server, listener: Option<&Server>) -> Master {
        Master {
            server: server.clone(),
            names: Names::new(&self.prefix, 0),
            listener: listener.cloned(),
            is_in_cluster: false,
            has_acks: self.has_acks,
        }
    }

    fn sentinels(&self, asks_for_servers: bool, until: Instant) -> Vec<Result<Told, Fault>> {
        let until = until.min(Instant::now() + self.connect + self.reply);
        let (servers, time) = (self.servers.clone(), self.time(until));
        ask_all(
            &self.servers.named(),
            until,
            |_| false,
            move |server| sentinel::ask(server, &servers, asks_for_servers, time),
        )
    }

    /// A message from each master is awaited at the next one: it must cross the cluster.
    fn masters_of_cluster(&self, until: Instant) -> Vec<Master> {
        let until = until.min(Instant::now() + self.connect + self.reply);
        let time = self.time(until);
        let maps = ask_all(&self.servers.named(), until, Result::is_ok, move |server| {
            slot_map(server, time)
        });
        let map = maps.into_iter().find_map(Result::ok).unwrap_or_default();
        let masters = masters(&map, &self.prefix);
        let servers: Vec<Server> = masters
            .iter()
            .map(|((host, port), _)| self.servers.at(host, *port))
            .collect();
        let next = servers.iter().cycle().skip(1);
        let all = servers.iter().zip(next).zip(&masters);
        all.map(|((server, next), (_, names))| Master {
            names: names.clone(),
            is_in_cluster: true,
            ..self.master(server, Some(next))
        })
        .collect()
    }

    /// Examines masters, and then the replicas that they name, which follow their master.
    fn with_replicas(&self, masters: &[Master], until: Instant) -> Vec<NodeFacts> {
        let time = self.time(until);
        let ask = move |master: &Master| ask_master(master, time);
        let answers = ask_all(masters, until, |_| false, ask);
        let servers = masters.iter().map(|master| &master.server);
        let masters: Vec<NodeFacts> = servers
            .zip(answers)
            .map(|(server, answers)| facts_of(server, NodeRole::Master, answers))
            .collect();
        let replicas = masters.iter().map(|master| self.replicas_of(master));
        let replicas: Vec<Vec<Server>> = replicas.collect();
        let all = replicas.iter().flatten().cloned();
        let all = all.map(|server| (server, NodeRole::Replica));
        let mut found = self.only(all.collect()).into_iter();
        let mut nodes = Vec::new();
        for (master, replicas) in masters.into_iter().zip(replicas) {
            nodes.push(master);
            nodes.extend(found.by_ref().take(replicas.len()));
        }
        nodes
    }

    /// Examines servers as far as any server can be, master or not. Each has its role here.
    fn only(&self, servers: Vec<(Server, NodeRole)>) -> Vec<NodeFacts> {
        let until = self.second_step();
        let is_in_cluster = self.servers.deployment() == Deployment::Cluster;
        let time = self.time(until);
        let answers = ask_all(
            &servers,
            until,
            |_| false,
            move |(server, role)| {
                ask_only(server, is_in_cluster && *role == NodeRole::Master, time)
            },
        );
        let facts = servers.iter().zip(answers);
        facts
            .map(|((server, role), answers)| facts_of(server, *role, answers))
            .collect()
    }

    /// The replicas that a master names, if one of them may take its place.
    fn replicas_of(&self, master: &NodeFacts) -> Vec<Server> {
        use Deployment::{Cluster, Sentinel};
        let answers = master.answers.as_ref().ok();
        let info = answers.and_then(|answers| answers.info.as_ref().ok());
        match info {
            Some(info) if matches!(self.servers.deployment(), Sentinel | Cluster) => {
                let lines = info.replicas().into_iter();
                lines
                    .map(|line| self.servers.at(line.host, line.port))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

fn facts_of(server: &Server, role: NodeRole, answers: Result<NodeAnswers, Fault>) -> NodeFacts {
    NodeFacts {
        address: server.to_string(),
        role,
        user: server.login_name(),
        answers,
    }
}

/// Asks all at once. Each has its answer, in the same order, or a fault. Blocks until `until` at
/// most, or until one answer is enough.
fn ask_all<T: Clone + Send + 'static, A: Send + 'static>(
    all: &[T],
    until: Instant,
    is_enough: fn(&Result<A, Fault>) -> bool,
    ask: impl Fn(&T) -> Result<A, Fault> + Clone + Send + 'static,
) -> Vec<Result<A, Fault>> {
    let mut answers: Vec<_> = all.iter().map(|_| Err(Fault::timed_out())).collect();
    let (sender, replies) = unbounded();
    for (index, one) in all.iter().cloned().enumerate() {
        let (to, ask) = (sender.clone(), ask.clone());
        let spawned = thread::Builder::new()
            .name("fairlock-examine".to_owned())
            .spawn(move || {
                // The examination may be over.
                let _ = to.send((index, ask(&one)));
            });
        if let Err(error) = spawned {
            let (step, why) = (Step::Thread, error.to_string());
            answers[index] = Err(Fault::Unasked { step, why });
        }
    }
    drop(sender);
    while let Ok((index, answer)) = replies.recv_deadline(until) {
        answers[index] = answer;
        if is_enough(&answers[index]) {
            break;
        }
    }
    answers
}
