//! Servers are examined for a diagnosis: all at once, each on connections of its own, and each on a
//! thread that nobody joins. So one that hangs delays no other.

use std::sync::Arc;
use std::thread;

use crossbeam_channel::unbounded;

use super::interview::{ask_master, ask_only};
use super::subject::{ExamTime, Subject};
use crate::diagnosis::facts::{NodeAnswers, NodeFacts, NodeRole};
use crate::error::{Result as ApiResult, Step};
use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::{Address, ServerSettings, StoreFault};

/// A question to one server.
pub(in crate::store) type Question<T> = Box<dyn FnOnce() -> Result<T, StoreFault> + Send + 'static>;

/// Asks all at once. Each has its answer, in the same order, or an error. Blocks until `until` at most.
pub(in crate::store) fn ask_all<T: Send + 'static>(
    questions: Vec<Question<T>>,
    clock: &Clock,
    until: Time,
) -> Vec<ApiResult<T>> {
    let started = clock.now();
    let error = |fault: StoreFault, waited| Err(fault.into_error(None, waited));
    let late = || error(StoreFault::timed_out(Step::Reply), until - started);
    let mut answers: Vec<_> = questions.iter().map(|_| late()).collect();
    let (sender, replies) = unbounded();
    for (index, question) in questions.into_iter().enumerate() {
        let to = sender.clone();
        let spawned = thread::Builder::new()
            .name("fairlock-examine".to_owned())
            .spawn(move || {
                // The examination may be over.
                let _ = to.send((index, question()));
            });
        if let Err(error) = spawned {
            answers[index] = Err(StoreFault::no_thread(error).into());
        }
    }
    drop(sender);
    while let Some((index, answer)) = clock.receive(&replies, until) {
        answers[index] = answer.or_else(|fault| error(fault, clock.now() - started));
    }
    answers
}

/// Examines masters.
pub(in crate::store) fn examine_masters(subjects: &[Subject], time: &ExamTime) -> Vec<NodeFacts> {
    let until = time.first_step();
    let question = |subject: &Subject| -> Question<NodeAnswers> {
        let (subject, time) = (subject.clone(), time.clone());
        Box::new(move || ask_master(&subject, &time, until))
    };
    let answers = ask_all(subjects.iter().map(question).collect(), &time.clock, until);
    let facts = |(subject, answers): (&Subject, ApiResult<NodeAnswers>)| {
        facts_of(&subject.node.server, NodeRole::Master, answers)
    };
    subjects.iter().zip(answers).map(facts).collect()
}

/// Examines masters, and then the replicas that they name. The facts of the replicas follow those of
/// their master.
pub(in crate::store) fn examine_with_replicas(
    subjects: &[Subject],
    time: &ExamTime,
) -> Vec<NodeFacts> {
    let masters = examine_masters(subjects, time);
    let of_master = |(subject, facts): (&Subject, &NodeFacts)| -> Vec<ServerSettings> {
        let info = facts
            .answers
            .as_ref()
            .ok()
            .and_then(|said| said.info.as_ref().ok());
        let lines = info.map(|info| info.replicas()).unwrap_or_default();
        let settings = |host: String, port: u16| ServerSettings {
            address: Address::Tcp(host, port),
            login: subject.node.server.login.clone(),
        };
        lines
            .into_iter()
            .map(|line| settings(line.host, line.port))
            .collect()
    };
    let replicas: Vec<Vec<ServerSettings>> = subjects.iter().zip(&masters).map(of_master).collect();
    let until = time.second_step();
    let question = |(subject, server): (&Subject, &ServerSettings)| -> Question<NodeAnswers> {
        question_only(server, false, &subject.node.caller_id, time, until)
    };
    let questions = subjects
        .iter()
        .zip(&replicas)
        .flat_map(|(subject, servers)| {
            let of_master = servers.iter().map(move |server| (subject, server));
            of_master.map(question)
        });
    let questions = questions.collect();
    let mut answers = ask_all(questions, &time.clock, until).into_iter();
    let mut all = Vec::new();
    for (master, replicas) in masters.into_iter().zip(replicas) {
        all.push(master);
        let answers = replicas.iter().zip(&mut answers);
        all.extend(answers.map(|(server, answers)| facts_of(server, NodeRole::Replica, answers)));
    }
    all
}

/// Examines servers as far as any server can be, master or not. Each has its role here.
pub(in crate::store) fn examine_only(
    servers: &[(ServerSettings, NodeRole)],
    is_in_cluster: bool,
    caller_id: &Arc<CallerId>,
    time: &ExamTime,
) -> Vec<NodeFacts> {
    let until = time.second_step();
    let question = |(server, _): &(ServerSettings, NodeRole)| {
        question_only(server, is_in_cluster, caller_id, time, until)
    };
    let questions = servers.iter().map(question).collect();
    let answers = ask_all(questions, &time.clock, until);
    let facts = servers.iter().zip(answers);
    let facts = facts.map(|((server, role), answers)| facts_of(server, *role, answers));
    facts.collect()
}

fn question_only(
    server: &ServerSettings,
    is_in_cluster: bool,
    caller_id: &Arc<CallerId>,
    time: &ExamTime,
    until: Time,
) -> Question<NodeAnswers> {
    let (server, caller_id, time) = (server.clone(), Arc::clone(caller_id), time.clone());
    Box::new(move || ask_only(&server, is_in_cluster, &caller_id, &time, until))
}

fn facts_of(server: &ServerSettings, role: NodeRole, answers: ApiResult<NodeAnswers>) -> NodeFacts {
    NodeFacts {
        address: server.address.to_string(),
        role,
        user: server
            .login
            .shown_user()
            .unwrap_or_else(|| "default".to_owned()),
        answers,
    }
}
