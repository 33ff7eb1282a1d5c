//! The questions to one server for a diagnosis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};

use super::Node;
use super::connection::Connection;
use super::expected::Expected;
use super::handshake::server_time;
use super::query::QueryConnection;
use super::rights::Lacks;
use super::role::Role;
use super::subject::{ExamTime, Subject};
use crate::diagnosis::answer::{Answer, Unknown};
use crate::diagnosis::facts::{
    ClockReading, ClusterAnswers, NodeAnswers, SETTINGS, Settings, WorkAnswers,
};
use crate::diagnosis::info::Info;
use crate::error::Step;
use crate::script::{Call, CallerId, Verb};
use crate::store::clock::Time;
use crate::store::refusal::{Lack, Refusal, is_unknown_command};
use crate::store::{ServerSettings, StoreFault};

/// How often the round trip is measured, unless that takes longer than one command timeout.
const SAMPLES: usize = 5;

/// A script that changes nothing.
const HARMLESS: &str = "return redis.sha1hex(KEYS[1])";

type Reply = Result<Value, StoreFault>;

/// Asks a server that keeps locks.
pub(super) fn ask_master(
    subject: &Subject,
    time: &ExamTime,
    until: Time,
) -> Result<NodeAnswers, StoreFault> {
    let node = &subject.node;
    let started = Instant::now();
    let connection = node.connect(Role::Diagnosis)?;
    let says_what_it_is = !connection.hello.is_empty();
    let connection = QueryConnection::over(connection, node.name());
    let connected_in = started.elapsed();
    let mut interview = Interview::new(connection, time, until);
    interview.time_command = node.time_command(node.greeting.get());
    let mut answers = interview.basics(connected_in)?;
    answers.says_what_it_is = says_what_it_is;
    if node.expected == Expected::ClusterNode {
        answers.cluster = Some(interview.cluster());
    }
    answers.work = Some(interview.work(subject));
    answers.stopped = interview.stopped();
    Ok(answers)
}

/// Asks a server that takes nothing, such as a replica. Asks a node of a cluster for its view of it,
/// too.
pub(super) fn ask_only(
    server: &ServerSettings,
    is_in_cluster: bool,
    caller_id: &CallerId,
    time: &ExamTime,
    until: Time,
) -> Result<NodeAnswers, StoreFault> {
    let started = Instant::now();
    let connection = QueryConnection::open(server, caller_id, &time.clock, time.connect)?;
    let connected_in = started.elapsed();
    let connection = connection.named(Role::Diagnosis, caller_id);
    let mut interview = Interview::new(connection, time, until);
    let mut answers = interview.basics(connected_in)?;
    if is_in_cluster {
        answers.cluster = Some(interview.cluster());
    }
    answers.stopped = interview.stopped();
    Ok(answers)
}

/// One server's connection, and the time that is left for it.
struct Interview<'a> {
    connection: QueryConnection,
    time: &'a ExamTime,
    until: Time,
    /// Why no more can be asked.
    ended: Option<StoreFault>,
    /// Asks for the server's time.
    time_command: Cmd,
}

impl Interview<'_> {
    fn new(connection: QueryConnection, time: &ExamTime, until: Time) -> Interview<'_> {
        Interview {
            connection,
            time,
            until,
            ended: None,
            time_command: command(&["TIME"]),
        }
    }

    /// Sends the commands in one write. Each has a reply or a fault.
    fn ask(&mut self, commands: &[Cmd]) -> Vec<Reply> {
        let left = (self.until - self.time.clock.now()).min(self.time.reply);
        if left.is_zero() {
            self.ended = Some(StoreFault::timed_out(Step::Reply));
        }
        if self.ended.is_none() {
            match self.connection.ask(commands, left) {
                Ok(replies) => return replies,
                Err(fault) => self.ended = Some(fault),
            }
        }
        let fault = self.ended.clone().unwrap_or(StoreFault::NotReady);
        commands.iter().map(|_| Err(fault.clone())).collect()
    }

    fn ask_one(&mut self, words: &[&str]) -> Reply {
        let mut replies = self.ask(&[command(words)]);
        replies.pop().unwrap_or(Err(StoreFault::NotReady))
    }

    /// Why no more could be asked.
    fn stopped(&self) -> Option<String> {
        self.ended.as_ref().map(ToString::to_string)
    }

    /// Asks what any server is asked, master or replica. A server that does not even tell the time
    /// is a fault.
    fn basics(&mut self, connected_in: Duration) -> Result<NodeAnswers, StoreFault> {
        let (round_trips, clock) = self.times()?;
        let mut commands = vec![command(&["INFO"])];
        commands.extend(SETTINGS.map(|name| command(&["CONFIG", "GET", name])));
        let mut replies = self.ask(&commands).into_iter();
        let info = replies.next().unwrap_or(Err(StoreFault::NotReady));
        let settings: HashMap<_, _> = SETTINGS
            .into_iter()
            .zip(replies)
            .map(|(name, reply)| (name, setting(name, reply)))
            .collect();
        Ok(NodeAnswers {
            connected_in,
            says_what_it_is: true,
            stopped: None,
            round_trips,
            clock,
            info: text(info, "INFO").map(|text| Info::parse(&text)),
            settings: Settings(settings),
            work: None,
            cluster: None,
        })
    }

    /// The shortest round trip reads the server's clock best.
    fn times(&mut self) -> Result<(Vec<Duration>, ClockReading), StoreFault> {
        let started = Instant::now();
        let mut round_trips = Vec::new();
        let mut best: Option<ClockReading> = None;
        while round_trips.len() < SAMPLES
            && (round_trips.is_empty() || started.elapsed() < self.time.reply)
        {
            let (before, host) = (Instant::now(), SystemTime::now());
            let mut replies = self.ask(std::slice::from_ref(&self.time_command.clone()));
            let server = server_time(replies.pop().unwrap_or(Err(StoreFault::NotReady))?)?;
            let took = before.elapsed();
            round_trips.push(took);
            let host = host.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
            let reading = ClockReading {
                ahead_us: server as i64 - host.as_micros() as i64,
                error: took / 2,
            };
            if best.is_none_or(|best| reading.error < best.error) {
                best = Some(reading);
            }
        }
        let best = best.ok_or_else(|| StoreFault::timed_out(Step::Reply))?;
        Ok((round_trips, best))
    }

    fn cluster(&mut self) -> ClusterAnswers {
        let commands = [
            command(&["CLUSTER", "INFO"]),
            command(&["CLUSTER", "NODES"]),
        ];
        let mut replies = self.ask(&commands).into_iter();
        let mut next = |name| text(replies.next().unwrap_or(Err(StoreFault::NotReady)), name);
        ClusterAnswers {
            info: next("CLUSTER INFO").map(|text| Info::parse(&text)),
            nodes: next("CLUSTER NODES"),
        }
    }

    /// Tries what locks need.
    fn work(&mut self, subject: &Subject) -> WorkAnswers {
        let mut lacking = Vec::new();
        let message = self.message(subject, &mut lacking);
        let asked = self.lacking(subject, &mut lacking);
        let scripts = self.scripts(subject);
        if scripts == Err(Unknown::NoRight("EVALSHA")) {
            add(&mut lacking, "+evalsha");
        }
        WorkAnswers {
            scripts,
            lacking: if lacking.is_empty() {
                asked.map(|()| lacking)
            } else {
                Ok(lacking)
            },
            message,
        }
    }

    /// Asks for the rights of the scripts, as a manager does before its first lock, and tries what
    /// is no part of a script.
    fn lacking(&mut self, subject: &Subject, lacking: &mut Vec<String>) -> Answer<()> {
        let node = &subject.node;
        let call = Call {
            spec: subject.spec,
            key: subject.key.clone(),
            verb: Verb::Vacate,
        };
        let mut tried = vec![("+scan", command(&["SCAN", "0", "COUNT", "1"]))];
        if subject.listener.is_some() {
            tried.push(("+ping", command(&["PING"])));
        }
        if node.has_replica_acks() {
            tried.push(("+wait", command(&["WAIT", "0", "0"])));
        }
        tried.push(("+eval", node.rights_command(&call)));
        let (rights, commands): (Vec<_>, Vec<_>) = tried.into_iter().unzip();
        let replies = self.ask(&commands);
        let mut scripts = Ok(());
        for (right, reply) in rights.into_iter().zip(replies) {
            match reply {
                Err(fault) if fault.code() == Some("NOPERM") => {
                    let command = right.trim_start_matches('+');
                    add(lacking, &right_of(command, lack_in(&fault), subject));
                }
                Ok(reply) if right == "+eval" => match Lacks::read(reply) {
                    Ok(lacks) => {
                        let key = right_of("", Lack::Key, subject);
                        let channel = right_of("", Lack::Channel, subject);
                        for rule in lacks.rules(&key, &channel) {
                            add(lacking, &rule);
                        }
                    }
                    Err(fault) => scripts = Err(unknown(&fault, "EVAL")),
                },
                Err(fault) if right == "+eval" => scripts = Err(unknown(&fault, "EVAL")),
                _ => {}
            }
        }
        scripts
    }

    fn scripts(&mut self, subject: &Subject) -> Answer<()> {
        let key = subject.key.record();
        let digest = redis::Script::new(HARMLESS);
        let replies = self.ask(&[
            command(&["EVAL", HARMLESS, "1", key]),
            command(&["EVALSHA", digest.get_hash(), "1", key]),
        ]);
        for (reply, name) in replies.into_iter().zip(["EVAL", "EVALSHA"]) {
            reply.map_err(|fault| unknown(&fault, name))?;
        }
        Ok(())
    }

    /// Sends a message to ourselves, on a channel beside the one of this manager's grants.
    fn message(
        &mut self,
        subject: &Subject,
        lacking: &mut Vec<String>,
    ) -> Option<Answer<Duration>> {
        let listener = subject.listener.as_ref()?;
        let node = &subject.node;
        let channel = format!("{}:diagnosis", node.caller_id.channel());
        let mut listening = self.listen(listener, &channel);
        // A listener that cannot be reached has a finding of its own.
        if listening
            .as_ref()
            .is_err_and(|fault| fault.code().is_none())
        {
            listening = self.listen(node, &channel);
        }
        let mut connection = match listening {
            Ok(connection) => connection,
            Err(fault) => return Some(Err(refused(&fault, "SUBSCRIBE", subject, lacking))),
        };
        let sent = Instant::now();
        if let Err(fault) = self.ask_one(&["PUBLISH", &channel, ""]) {
            return Some(Err(refused(&fault, "PUBLISH", subject, lacking)));
        }
        let arrived = self.await_message(&mut connection);
        Some(match arrived {
            Ok(()) => Ok(sent.elapsed()),
            Err(fault) => Err(Unknown::Failed(fault.to_string())),
        })
    }

    fn listen(&self, listener: &Arc<Node>, channel: &str) -> Result<Connection, StoreFault> {
        let mut connection = listener.connect(Role::Diagnosis)?;
        connection.request(&command(&["SUBSCRIBE", channel]), self.time.reply)?;
        Ok(connection)
    }

    fn await_message(&self, connection: &mut Connection) -> Result<(), StoreFault> {
        let left = (self.until - self.time.clock.now()).min(self.time.reply);
        connection.limit_reads(left.max(Duration::from_millis(1)))?;
        match connection.receive() {
            Ok(_) => Ok(()),
            Err(error) => Err(super::connection::fault(error, Step::Reply)),
        }
    }
}

fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// Why there is no answer to this command.
fn unknown(fault: &StoreFault, command: &'static str) -> Unknown {
    match fault {
        fault if fault.code() == Some("NOPERM") && lack_in(fault) == Lack::Command => {
            Unknown::NoRight(command)
        }
        StoreFault::Server { message, .. } if is_unknown_command(message) => {
            Unknown::NoCommand(command)
        }
        fault if fault.code().is_none() => Unknown::Unanswered(fault.to_string()),
        fault => Unknown::Failed(fault.to_string()),
    }
}

/// The rights that the user lacks, by a refusal.
fn lack_in(fault: &StoreFault) -> Lack {
    match fault {
        StoreFault::Server { code, message, .. } => {
            let refusal = Refusal::read(code, message);
            refusal.lack().unwrap_or(Lack::Command)
        }
        _ => Lack::Command,
    }
}

fn text(reply: Reply, command: &'static str) -> Answer<String> {
    let reply = reply.map_err(|fault| unknown(&fault, command))?;
    redis::from_redis_value(reply).map_err(|_| Unknown::Failed(format!("{command} has no text")))
}

/// The reply to CONFIG GET: the name and the value, or nothing.
fn setting(name: &'static str, reply: Reply) -> Answer<String> {
    let reply = reply.map_err(|fault| unknown(&fault, "CONFIG GET"))?;
    let pair: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
    match <[String; 2]>::try_from(pair) {
        Ok([_, value]) => Ok(value),
        Err(_) => Err(Unknown::Absent(name.to_owned())),
    }
}

/// Why a command of the subscription was refused. A right that is missing is noted.
fn refused(
    fault: &StoreFault,
    command: &'static str,
    subject: &Subject,
    lacking: &mut Vec<String>,
) -> Unknown {
    if fault.code() == Some("NOPERM") {
        add(lacking, &right_of(command, lack_in(fault), subject));
        return Unknown::NoRight(command);
    }
    unknown(fault, command)
}

/// The rule that gives what the user lacks, for all names of the prefix.
fn right_of(command: &str, lack: Lack, subject: &Subject) -> String {
    let record = subject.key.record();
    let prefix = record.split_once(":{").map_or(record, |(prefix, _)| prefix);
    match lack {
        Lack::Command => format!("+{}", command.to_lowercase()),
        Lack::Key => format!("~{prefix}:*"),
        Lack::Channel => format!("&{prefix}:grants:*"),
    }
}

fn add(lacking: &mut Vec<String>, right: &str) {
    if !lacking.iter().any(|known| known == right) {
        lacking.push(right.to_owned());
    }
}
