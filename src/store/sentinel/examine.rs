//! The sentinels, the master and its replicas, examined for a diagnosis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::question::{RIGHTS, address_of, why_refused};
use super::resolver::Resolver;
use crate::config::Config;
use crate::diagnosis::answer::{Answer, Unknown};
use crate::diagnosis::facts::{Deployment, Facts, NodeRole, SentinelAnswers, SentinelFacts};
use crate::error::Result as ApiResult;
use crate::key::Key;
use crate::script::{CallerId, LockSpec};
use crate::store::node::{
    ExamTime, QueryConnection, Question, Role, Subject, ask_all, examine_only,
    examine_with_replicas,
};
use crate::store::{Address, SentinelSettings, ServerSettings, StoreFault};

impl Resolver {
    /// Asks the sentinels at the same time as the master.
    pub(super) fn examine(&self, config: &Config) -> Facts {
        let clock = self.clock();
        let time = ExamTime::new(&clock, config);
        let sentinels = self.sentinels();
        let until = time.first_step();
        let node = Arc::clone(&self.master().node);
        let subject = Subject {
            key: Key::for_diagnosis(&config.prefix, 0),
            spec: LockSpec::MUTEX,
            listener: Some(Arc::clone(&node)),
            node,
        };
        let (answers, nodes) = std::thread::scope(|scope| {
            let questions = sentinels.iter().map(|sentinel| {
                let service = self.service();
                question(sentinel, service, false, self.caller_id(), &time)
            });
            let questions = questions.collect();
            let asking = std::thread::Builder::new()
                .spawn_scoped(scope, || ask_all(questions, &clock, until));
            let nodes = examine_with_replicas(&[subject], &time);
            (asking.map(|asking| asking.join()), nodes)
        });
        // The system may give no thread. Nothing in it panics.
        let answers = answers.ok().and_then(Result::ok).unwrap_or_default();
        Facts {
            deployment: Deployment::Sentinel,
            sentinels: facts(&sentinels, answers),
            nodes,
        }
    }
}

/// Asks the sentinels, and then the servers that they know, though none of them may be a master.
pub(in crate::store) fn examine_without_master(
    settings: &SentinelSettings,
    caller_id: &Arc<CallerId>,
    time: &ExamTime,
) -> Facts {
    let sentinels = settings.sentinel_servers();
    let questions = sentinels
        .iter()
        .map(|sentinel| question(sentinel, &settings.service, true, caller_id, time));
    let answers = ask_all(questions.collect(), &time.clock, time.first_step());
    let mut servers: Vec<(ServerSettings, NodeRole)> = Vec::new();
    for (address, role) in answers.iter().flatten().flat_map(|(_, known)| known) {
        if servers.iter().all(|(server, _)| server.address != *address) {
            let (address, login) = (address.clone(), settings.login.clone());
            servers.push((ServerSettings { address, login }, *role));
        }
    }
    Facts {
        deployment: Deployment::Sentinel,
        sentinels: facts(&sentinels, answers),
        nodes: examine_only(&servers, false, caller_id, time),
    }
}

/// The answers of a sentinel, and the servers that it knows.
type Told = (SentinelAnswers, Vec<(Address, NodeRole)>);

fn facts(sentinels: &[ServerSettings], answers: Vec<ApiResult<Told>>) -> Vec<SentinelFacts> {
    let facts = |(sentinel, answers): (&ServerSettings, ApiResult<Told>)| SentinelFacts {
        address: sentinel.address.to_string(),
        user: sentinel
            .login
            .shown_user()
            .unwrap_or_else(|| "default".to_owned()),
        answers: answers.map(|(answers, _)| answers),
    };
    sentinels.iter().zip(answers).map(facts).collect()
}

fn question(
    sentinel: &ServerSettings,
    service: &str,
    asks_for_servers: bool,
    caller_id: &Arc<CallerId>,
    time: &ExamTime,
) -> Question<Told> {
    let (sentinel, time) = (sentinel.clone(), time.clone());
    let (service, caller_id) = (service.to_owned(), Arc::clone(caller_id));
    Box::new(move || {
        let connection = QueryConnection::open(&sentinel, &caller_id, &time.clock, time.connect)?;
        let mut connection = connection.named(Role::Diagnosis, &caller_id);
        let answers = ask(&mut connection, &sentinel, &service, time.reply)?;
        let servers = if asks_for_servers {
            servers(&mut connection, &service, time.reply)
        } else {
            Vec::new()
        };
        Ok((answers, servers))
    })
}

/// The servers of the service that a sentinel knows, its master first. Without those about which it
/// does not answer.
fn servers(
    connection: &mut QueryConnection,
    service: &str,
    timeout: Duration,
) -> Vec<(Address, NodeRole)> {
    let question = |what: &str| {
        let mut command: Cmd = redis::cmd("SENTINEL");
        command.arg(what).arg(service);
        command
    };
    let commands = [question("GET-MASTER-ADDR-BY-NAME"), question("REPLICAS")];
    let replies = connection.ask(&commands, timeout).unwrap_or_default();
    let mut replies = replies.into_iter().map(|reply| reply.unwrap_or(Value::Nil));
    let master = replies.next().and_then(address_of);
    let replicas: Vec<HashMap<String, String>> = replies
        .next()
        .and_then(|reply| redis::from_redis_value(reply).ok())
        .unwrap_or_default();
    let replicas = replicas.into_iter().filter_map(|fields| {
        let host = fields.get("ip").filter(|host| !host.is_empty())?;
        let port = fields.get("port")?.parse().ok()?;
        Some((Address::Tcp(host.clone(), port), NodeRole::Replica))
    });
    let master = master.map(|address| (address, NodeRole::Master));
    master.into_iter().chain(replicas).collect()
}

fn ask(
    connection: &mut QueryConnection,
    sentinel: &ServerSettings,
    service: &str,
    timeout: Duration,
) -> Result<SentinelAnswers, StoreFault> {
    let question = |what: &str| {
        let mut command: Cmd = redis::cmd("SENTINEL");
        command.arg(what).arg(service);
        command
    };
    let commands = [
        question("GET-MASTER-ADDR-BY-NAME"),
        question("MASTER"),
        question("CKQUORUM"),
    ];
    let mut replies = connection.ask(&commands, timeout)?.into_iter();
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
    let master = next();
    if let Err(fault) = &master
        && let unfit @ StoreFault::Unfit { .. } = why_refused(fault.clone(), sentinel, RIGHTS[0])
    {
        return Err(unfit);
    }
    Ok(SentinelAnswers {
        master: read(master, "SENTINEL GET-MASTER-ADDR-BY-NAME", |reply| {
            address_of(reply).map(|address| address.to_string())
        }),
        fields: read(next(), "SENTINEL MASTER", |reply| {
            let fields: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
            let pairs = fields.chunks_exact(2);
            pairs
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect::<HashMap<_, _>>()
        }),
        can_agree: match next() {
            Err(fault) if fault.code() == Some("NOQUORUM") => Ok(Err(fault.to_string())),
            reply => read(reply, "SENTINEL CKQUORUM", |_| Ok(())),
        },
    })
}

fn read<T>(
    reply: Result<Value, StoreFault>,
    command: &'static str,
    value: impl FnOnce(Value) -> T,
) -> Answer<T> {
    match reply {
        Ok(reply) => Ok(value(reply)),
        Err(fault) if fault.code() == Some("NOPERM") => Err(Unknown::NoRight(command)),
        Err(fault) => Err(Unknown::Failed(fault.to_string())),
    }
}
