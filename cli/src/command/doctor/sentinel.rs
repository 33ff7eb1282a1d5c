//! The questions to a sentinel.

use std::collections::HashMap;
use std::time::Instant;

use redis::Value;

use super::answer::{Answer, Unknown};
use super::facts::{NodeRole, SentinelAnswers, SentinelFacts};
use super::fault::{Failed, Fault};
use super::interview::Time;
use super::link::{Link, Reply, command};
use super::place::{Address, Server};

/// The answers of a sentinel.
pub(super) struct Told {
    answers: SentinelAnswers,
    /// The master that it names.
    master: Option<Address>,
    /// The replicas that it knows, if they were asked for.
    replicas: Vec<Address>,
}

/// Asks a sentinel. It has no SELECT and no TIME.
pub(super) fn ask(
    server: &Server,
    service: &str,
    asks_for_servers: bool,
    time: Time,
) -> Result<Told, Fault> {
    let mut link = Link::open(server, time.until.min(Instant::now() + time.connect))?;
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
    let master = read(master, "SENTINEL GET-MASTER-ADDR-BY-NAME", address_of);
    let answers = SentinelAnswers {
        master: match &master {
            Ok(address) => Ok(address.as_ref().map(ToString::to_string)),
            Err(unknown) => Err(unknown.clone()),
        },
        fields: read(next(), "SENTINEL MASTER", fields_of),
        can_agree: match next() {
            Err(fault) if fault.code() == Some("NOQUORUM") => Ok(Err(fault.to_string())),
            reply => read(reply, "SENTINEL CKQUORUM", |_| Ok(())),
        },
    };
    Ok(Told {
        answers,
        master: master.ok().flatten(),
        replicas: next().map(replicas_of).unwrap_or_default(),
    })
}

/// The facts about these sentinels, by their answers.
pub(super) fn facts(servers: &[Server], told: Vec<Result<Told, Failed>>) -> Vec<SentinelFacts> {
    let facts = |(server, told): (&Server, Result<Told, Failed>)| SentinelFacts {
        address: server.address.to_string(),
        user: server.login.shown_user(),
        answers: told.map(|told| told.answers),
    };
    servers.iter().zip(told).map(facts).collect()
}

/// The master of the newest configuration.
pub(super) fn master_in(told: &[Result<Told, Failed>]) -> Option<Address> {
    let naming = told.iter().flatten().filter(|told| told.master.is_some());
    let newest = naming.max_by_key(|told| told.epoch());
    newest.and_then(|told| told.master.clone())
}

/// The servers that any of the sentinels knows, masters first.
pub(super) fn servers_in(told: &[Result<Told, Failed>]) -> Vec<(Address, NodeRole)> {
    let mut servers: Vec<(Address, NodeRole)> = Vec::new();
    for told in told.iter().flatten() {
        let master = told.master.iter().map(|at| (at, NodeRole::Master));
        let replicas = told.replicas.iter().map(|at| (at, NodeRole::Replica));
        for (address, role) in master.chain(replicas) {
            if servers.iter().all(|(known, _)| known != address) {
                servers.push((address.clone(), role));
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
    let (address, tls) = (&server.address, server.tls.as_ref().map_or("", |_| "s"));
    Fault::Unfit(format!(
        "a sentinel; {address} is none: use redis{tls}://{address}, or \
         redis{tls}-cluster://{address} for a cluster"
    ))
}

fn read<T>(reply: Reply, command: &'static str, value: impl FnOnce(Value) -> T) -> Answer<T> {
    match reply {
        Ok(reply) => Ok(value(reply)),
        Err(fault) if fault.lack().is_some() => Err(Unknown::NoRight(command)),
        Err(fault) => Err(Unknown::Failed(fault.to_string())),
    }
}

fn address_of(reply: Value) -> Option<Address> {
    let (host, port): (String, u16) = redis::from_redis_value(reply).ok()?;
    (!host.is_empty() && port != 0).then_some(Address::Tcp(host, port))
}

fn fields_of(reply: Value) -> HashMap<String, String> {
    let fields: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
    let pairs = fields.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

fn replicas_of(reply: Value) -> Vec<Address> {
    let replicas: Vec<Value> = redis::from_redis_value(reply).unwrap_or_default();
    let address = |replica: Value| {
        let fields = fields_of(replica);
        let host = fields.get("ip").filter(|host| !host.is_empty())?;
        Some(Address::Tcp(
            host.clone(),
            fields.get("port")?.parse().ok()?,
        ))
    };
    replicas.into_iter().filter_map(address).collect()
}
