//! The sentinels, the master and its replicas, examined for a diagnosis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::question::{RIGHTS, address_of, why_refused};
use super::resolver::Resolver;
use crate::config::Config;
use crate::diagnosis::answer::{Answer, Unknown};
use crate::diagnosis::facts::{Deployment, Facts, SentinelAnswers, SentinelFacts};
use crate::key::Key;
use crate::script::LockSpec;
use crate::store::node::{
    ExamTime, QueryConnection, Question, Role, Subject, ask_all, examine_with_replicas,
};
use crate::store::{ServerSettings, StoreFault};

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
            let questions = sentinels
                .iter()
                .map(|sentinel| self.question(sentinel, &time));
            let questions = questions.collect();
            let asking = std::thread::Builder::new()
                .spawn_scoped(scope, || ask_all(questions, &clock, until));
            let nodes = examine_with_replicas(&[subject], &time);
            (asking.map(|asking| asking.join()), nodes)
        });
        // The system may give no thread. Nothing in it panics.
        let answers = answers.ok().and_then(Result::ok).unwrap_or_default();
        let facts = |(sentinel, answers): (&ServerSettings, _)| SentinelFacts {
            address: sentinel.address.to_string(),
            user: sentinel
                .login
                .shown_user()
                .unwrap_or_else(|| "default".to_owned()),
            answers,
        };
        Facts {
            deployment: Deployment::Sentinel,
            sentinels: sentinels.iter().zip(answers).map(facts).collect(),
            nodes,
        }
    }

    fn question(&self, sentinel: &ServerSettings, time: &ExamTime) -> Question<SentinelAnswers> {
        let (sentinel, time) = (sentinel.clone(), time.clone());
        let (service, caller_id) = (self.service().to_owned(), Arc::clone(self.caller_id()));
        Box::new(move || {
            let connection =
                QueryConnection::open(&sentinel, &caller_id, &time.clock, time.connect)?;
            let connection = connection.named(Role::Diagnosis, &caller_id);
            ask(connection, &sentinel, &service, time.reply)
        })
    }
}

fn ask(
    mut connection: QueryConnection,
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
