//! The questions to a sentinel.

use std::collections::HashMap;
use std::time::Instant;

use fairlock::servers::redis::{self, Value};
use fairlock::{endpoint::Endpoint, servers::Server, servers::Servers};

use super::answer::{Answer, Unknown};
use super::facts::{NodeRole, SentinelAnswers, SentinelFacts};
use super::fault::Fault;
use super::interview::Time;
use super::link::{Link, Reply, command};

/// The answers of a sentinel.
pub(super) struct Told {
    answers: SentinelAnswers,
    /// The master that it names.
    master: Option<Server>,
    /// The replicas that it knows, if they were asked for.
    replicas: Vec<Server>,
}

/// Asks a sentinel. It has no SELECT and no TIME.
pub(super) fn ask(
    server: &Server,
    servers: &Servers,
    asks_for_servers: bool,
    time: Time,
) -> Result<Told, Fault> {
    let mut link = Link::open(server, time.until.min(Instant::now() + time.connect))?;
    let service = servers.service().unwrap_or_default();
    let question = |what: &str| command(&["SENTINEL", what, service]);
    let mut commands = vec![
        question("GET-MASTER-ADDR-BY-NAME"),
        question("MASTER"),
        question("CKQUORUM"),
    ];
    if asks_for_servers {
        commands.push(question("REPLICAS"));
    }
    let mut replies = link.ask(&commands, time.reply)?.into_iter();
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
    let master = next().map_err(|fault| unfit(fault, server));
    if let Err(fault @ Fault::Unfit(_)) = master {
        return Err(fault);
    }
    let master = read(master, "SENTINEL GET-MASTER-ADDR-BY-NAME", |reply| {
        master_of(reply, servers)
    });
    let answers = SentinelAnswers {
        master: master.clone().map(|master| Some(master?.to_string())),
        fields: read(next(), "SENTINEL MASTER", fields_of),
        can_agree: match next() {
            Err(fault) if fault.code() == Some("NOQUORUM") => Ok(Err(fault.to_string())),
            reply => read(reply, "SENTINEL CKQUORUM", |_| Ok(())),
        },
    };
    Ok(Told {
        answers,
        master: master.ok().flatten(),
        replicas: next().map_or(Vec::new(), |reply| replicas_of(reply, servers)),
    })
}

/// The facts about these sentinels, by their answers.
pub(super) fn facts(servers: &[Server], told: Vec<Result<Told, Fault>>) -> Vec<SentinelFacts> {
    let facts = |(server, told): (&Server, Result<Told, Fault>)| SentinelFacts {
        address: server.to_string(),
        user: server.login_name(),
        answers: told.map(|told| told.answers),
    };
    servers.iter().zip(told).map(facts).collect()
}

/// The master of the newest configuration.
pub(super) fn master_in(told: &[Result<Told, Fault>]) -> Option<Server> {
    let naming = told.iter().flatten().filter(|told| told.master.is_some());
    let newest = naming.max_by_key(|told| told.epoch());
    newest.and_then(|told| told.master.clone())
}

/// The servers that any of the sentinels knows, masters first.
pub(super) fn servers_in(told: &[Result<Told, Fault>]) -> Vec<(Server, NodeRole)> {
    let mut servers: Vec<(Server, NodeRole)> = Vec::new();
    for told in told.iter().flatten() {
        let master = told.master.iter().map(|at| (at, NodeRole::Master));
        let replicas = told.replicas.iter().map(|at| (at, NodeRole::Replica));
        for (server, role) in master.chain(replicas) {
            let address = server.to_string();
            if servers
                .iter()
                .all(|(known, _)| known.to_string() != address)
            {
                servers.push((server.clone(), role));
            }
        }
    }
    servers
}

impl Told {
    /// Rises with each failover.
    fn epoch(&self) -> u64 {
        let fields = self.answers.fields.as_ref().ok();
        let epoch = fields.and_then(|fields| fields.get("config-epoch")?.parse().ok());
        epoch.unwrap_or(0)
    }
}

/// A server that does not know the command is none.
fn unfit(fault: Fault, server: &Server) -> Fault {
    if !fault.is_unknown_command() {
        return fault;
    }
    let url = Endpoint::from(server.clone()).to_string();
    let cluster = url.replacen("://", "-cluster://", 1);
    Fault::Unfit(format!(
        "a sentinel; {server} is none: use {url}, or {cluster} for a cluster"
    ))
}

fn read<T>(reply: Reply, command: &'static str, value: impl FnOnce(Value) -> T) -> Answer<T> {
    match reply {
        Ok(reply) => Ok(value(reply)),
        Err(fault) if fault.lack().is_some() => Err(Unknown::NoRight(command)),
        Err(fault) => Err(Unknown::Failed(fault.to_string())),
    }
}

fn master_of(reply: Value, servers: &Servers) -> Option<Server> {
    let (host, port): (String, u16) = redis::from_redis_value(reply).ok()?;
    (!host.is_empty() && port != 0).then(|| servers.at(host, port))
}

fn fields_of(reply: Value) -> HashMap<String, String> {
    redis::from_redis_value(reply).unwrap_or_default()
}

fn replicas_of(reply: Value, servers: &Servers) -> Vec<Server> {
    let replicas: Vec<Value> = redis::from_redis_value(reply).unwrap_or_default();
    let server = |replica: Value| {
        let fields = fields_of(replica);
        let host = fields.get("ip").filter(|host| !host.is_empty())?;
        Some(servers.at(host, fields.get("port")?.parse().ok()?))
    };
    replicas.into_iter().filter_map(server).collect()
}
