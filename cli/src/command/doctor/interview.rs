//! The questions to one server.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairlock::servers::Server;
use fairlock::servers::redis::{self, Cmd, Value};

use super::answer::{Answer, Info, Unknown, is_older};
use super::facts::{ClockReading, ClusterAnswers, NodeAnswers, SETTINGS, Settings, WorkAnswers};
use super::fault::{Fault, Lack};
use super::link::{Link, Reply, command, left};
use super::rights::{Lacking, Names};

/// How often the round trip is measured, unless that takes longer than one command timeout.
const SAMPLES: usize = 5;

/// A script that changes nothing.
const HARMLESS: &str = "return redis.sha1hex(KEYS[1])";

/// The time for one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    pub(super) connect: Duration,
    /// T
    pub(super) reply: Duration,
    /// No question is sent after it.
    pub(super) until: Instant,
}

/// A server that keeps locks, and what is tried on it.
#[derive(Clone)]
pub(super) struct Master {
    pub(super) server: Server,
    /// A name that it keeps.
    pub(super) names: Names,
    /// The server that a message is awaited at. `None`: nobody needs messages.
    pub(super) listener: Option<Server>,
    pub(super) is_in_cluster: bool,
    /// Whether replicas must acknowledge locks.
    pub(super) has_acks: bool,
}

/// Asks a server that keeps locks.
pub(super) fn ask_master(master: &Master, time: Time) -> Result<NodeAnswers, Fault> {
    let mut interview = Interview::begin(&master.server, time)?;
    let mut answers = interview.basics(&master.names.key())?;
    if master.is_in_cluster {
        answers.cluster = Some(interview.cluster());
    }
    answers.work = Some(interview.work(master));
    answers.stopped = interview.stopped();
    Ok(answers)
}

/// Asks a server that takes nothing, such as a replica. Asks a node of a cluster for its view of
/// it, too.
pub(super) fn ask_only(
    server: &Server,
    is_in_cluster: bool,
    time: Time,
) -> Result<NodeAnswers, Fault> {
    let mut interview = Interview::begin(&server.clone().database(0), time)?;
    let mut answers = interview.basics("")?;
    if is_in_cluster {
        answers.cluster = Some(interview.cluster());
    }
    answers.stopped = interview.stopped();
    Ok(answers)
}

impl Master {
    /// The callers of a quorum ask again, and await no message.
    fn is_quorum(&self) -> bool {
        self.listener.is_none()
    }
}

/// One server's connection, and the time that is left for it.
struct Interview {
    link: Link,
    time: Time,
    connected_in: Duration,
    /// Why no more can be asked.
    ended: Option<Fault>,
}

impl Interview {
    fn begin(server: &Server, time: Time) -> Result<Interview, Fault> {
        let started = Instant::now();
        let link = Link::open(server, time.until.min(started + time.connect))?;
        Ok(Interview {
            link,
            time,
            connected_in: started.elapsed(),
            ended: None,
        })
    }

    /// Sends the commands in one write. Each has a reply or a fault.
    fn ask_all(&mut self, commands: &[Cmd]) -> Vec<Reply> {
        let left = self.time.left();
        let asked = match &self.ended {
            Some(fault) => Err(fault.clone()),
            None if left.is_zero() => Err(Fault::timed_out()),
            None => self.link.ask(commands, left),
        };
        asked.unwrap_or_else(|fault| {
            self.ended = Some(fault.clone());
            vec![Err(fault); commands.len()]
        })
    }

    fn ask<const N: usize>(&mut self, commands: [Cmd; N]) -> [Reply; N] {
        let replies = self.ask_all(&commands).try_into();
        replies.expect("each command has a reply or a fault")
    }

    fn ask_one(&mut self, command: Cmd) -> Reply {
        let [reply] = self.ask([command]);
        reply
    }

    /// Why no more could be asked.
    fn stopped(&self) -> Option<String> {
        self.ended.as_ref().map(ToString::to_string)
    }

    /// Asks what any server is asked, master or replica. A server that does not even tell the time
    /// is a fault.
    fn basics(&mut self, key: &str) -> Result<NodeAnswers, Fault> {
        let (round_trips, clock) = self.times(key)?;
        let [info, settings @ ..]: [Reply; 1 + SETTINGS.len()] =
            self.ask(std::array::from_fn(|at| match at {
                0 => command(&["INFO"]),
                at => command(&["CONFIG", "GET", SETTINGS[at - 1]]),
            }));
        let info = text(info, "INFO").map(|text| Info::parse(&text));
        let settings = SETTINGS.into_iter().zip(settings);
        let settings = settings.map(|(name, reply)| (name, setting(name, reply)));
        Ok(NodeAnswers {
            connected_in: self.connected_in,
            says_what_it_is: self.link.version.is_some(),
            stopped: None,
            round_trips,
            clock,
            info,
            settings: Settings(settings.collect()),
            work: None,
            cluster: None,
        })
    }

    /// The shortest round trip reads the server's clock best.
    fn times(&mut self, key: &str) -> Result<(Vec<Duration>, ClockReading), Fault> {
        let by_script = command(&["EVAL", "return redis.call('TIME')", "1", key]);
        let mut asked = command(&["TIME"]);
        let mut refused = None;
        if self.link.is_silent {
            asked = by_script.clone();
        } else if let Err(fault) = self.ask_one(asked.clone())
            && fault.refuses_command()
            && fault.lack().is_none()
        {
            asked = by_script;
            refused = Some(fault);
        }
        let started = Instant::now();
        let (first, mut best) = self.reading(&asked).map_err(|fault| match refused {
            // Scripts have no TIME either, and the server does not say which command is unknown.
            Some(of_time) if fault.is_unknown_command() => of_time,
            _ => fault,
        })?;
        let mut round_trips = vec![first];
        while round_trips.len() < SAMPLES && started.elapsed() < self.time.reply {
            let (took, reading) = self.reading(&asked)?;
            round_trips.push(took);
            if reading.error < best.error {
                best = reading;
            }
        }
        Ok((round_trips, best))
    }

    /// Asks for the time, and how long the answer takes.
    fn reading(&mut self, asked: &Cmd) -> Result<(Duration, ClockReading), Fault> {
        let (before, host) = (Instant::now(), SystemTime::now());
        let server = server_time(self.ask_one(asked.clone())?)?;
        let took = before.elapsed();
        let host = host.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
        let reading = ClockReading {
            ahead_us: server - host.as_micros() as i64,
            error: took / 2,
        };
        Ok((took, reading))
    }

    fn cluster(&mut self) -> ClusterAnswers {
        let [info, nodes] = self.ask([
            command(&["CLUSTER", "INFO"]),
            command(&["CLUSTER", "NODES"]),
        ]);
        ClusterAnswers {
            info: text(info, "CLUSTER INFO").map(|text| Info::parse(&text)),
            nodes: text(nodes, "CLUSTER NODES"),
        }
    }

    /// Tries what locks need.
    fn work(&mut self, master: &Master) -> WorkAnswers {
        let mut lacking = Lacking::new(&master.names);
        let message = self.message(master, &mut lacking);
        let asked = self.lacking(master, &mut lacking);
        let mut scripts = self.scripts(&master.names.key());
        if scripts == Err(Unknown::NoRight("EVALSHA")) {
            lacking.note("EVALSHA", Lack::Command);
        }
        if scripts == Err(Unknown::NoCommand("EVALSHA")) {
            // Each script is sent with its source.
            lacking.note_absent("EVALSHA");
            scripts = Ok(());
        }
        if self.link.version.is_none() && !self.link.is_silent {
            lacking.note_absent("HELLO");
        }
        WorkAnswers {
            absent: std::mem::take(&mut lacking.absent),
            scripts,
            lacking: if lacking.rules.is_empty() {
                asked.map(|()| lacking.rules)
            } else {
                Ok(lacking.rules)
            },
            message,
        }
    }

    /// Asks for the rights of the scripts, as a manager does before its first lock, and tries what
    /// is no part of a script.
    fn lacking(&mut self, master: &Master, lacking: &mut Lacking<'_>) -> Answer<()> {
        let version = self.link.version.as_ref();
        let is_old = version.is_some_and(|version| is_older(version, (7, 0)));
        let question = lacking.question(master.is_quorum(), is_old && !master.is_in_cluster);
        let tried: [Option<&[&str]>; 4] = [
            Some(&["SCAN", "0", "COUNT", "1"]),
            (!master.is_quorum()).then_some(&["PING"]),
            master.is_in_cluster.then_some(&["ASKING"]),
            master.has_acks.then_some(&["WAIT", "0", "0"]),
        ];
        let tried: Vec<&[&str]> = tried.into_iter().flatten().collect();
        let commands = tried.iter().map(|words| command(words));
        let commands: Vec<Cmd> = [question].into_iter().chain(commands).collect();
        let mut replies = self.ask_all(&commands);
        let of_question = replies.remove(0);
        for (words, reply) in tried.iter().zip(replies) {
            match reply {
                Err(fault) if fault.is_unknown_command() => lacking.note_absent(words[0]),
                Err(fault) => {
                    if let Some(lack) = fault.lack() {
                        lacking.note(words[0], lack);
                    }
                }
                Ok(_) => {}
            }
        }
        match of_question {
            Ok(reply) => lacking.read(reply).map_err(|fault| fault.unknown("EVAL")),
            Err(fault) => match fault.lack() {
                Some(lack) => {
                    lacking.note("EVAL", lack);
                    Ok(())
                }
                None => Err(fault.unknown("EVAL")),
            },
        }
    }

    fn scripts(&mut self, key: &str) -> Answer<()> {
        let digest = redis::Script::new(HARMLESS);
        let [by_text, by_digest] = self.ask([
            command(&["EVAL", HARMLESS, "1", key]),
            command(&["EVALSHA", digest.get_hash(), "1", key]),
        ]);
        by_text.map_err(|fault| fault.unknown("EVAL"))?;
        by_digest.map_err(|fault| fault.unknown("EVALSHA"))?;
        Ok(())
    }

    /// Sends a message to ourselves.
    fn message(&mut self, master: &Master, lacking: &mut Lacking<'_>) -> Option<Answer<Duration>> {
        let listener = master.listener.as_ref()?;
        let channel = master.names.channel();
        let mut listening = self.listen(listener, &channel);
        // A listener that cannot be reached has a finding of its own.
        if listening
            .as_ref()
            .is_err_and(|fault| fault.code().is_none())
        {
            listening = self.listen(&master.server, &channel);
        }
        let mut link = match listening {
            Ok(link) => link,
            Err(fault) => return Some(Err(refused(&fault, "SUBSCRIBE", lacking))),
        };
        let sent = Instant::now();
        if let Err(fault) = self.ask_one(command(&["PUBLISH", &channel, ""])) {
            return Some(Err(refused(&fault, "PUBLISH", lacking)));
        }
        let arrived = link.receive(self.time.left().max(Duration::from_millis(1)));
        Some(match arrived {
            Ok(_) => Ok(sent.elapsed()),
            Err(fault) => Err(Unknown::Failed(fault.to_string())),
        })
    }

    fn listen(&self, listener: &Server, channel: &str) -> Result<Link, Fault> {
        let until = self.time.until.min(Instant::now() + self.time.connect);
        let mut link = Link::open(listener, until)?;
        let replies = link.ask(&[command(&["SUBSCRIBE", channel])], self.time.left())?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))?;
        Ok(link)
    }
}

impl Time {
    /// How long the next reply may take.
    fn left(&self) -> Duration {
        left(self.until).min(self.reply)
    }
}

/// The reply to TIME, in µs.
fn server_time(reply: Value) -> Result<i64, Fault> {
    let time: Option<(i64, i64)> = redis::from_redis_value(reply).ok();
    let micros = time.and_then(|(s, us)| s.checked_mul(1_000_000)?.checked_add(us));
    let plausible = micros.filter(|micros| (0..i64::MAX / 2).contains(micros));
    plausible.ok_or_else(|| Fault::protocol("seconds and microseconds as the reply to TIME"))
}

fn text(reply: Reply, command: &'static str) -> Answer<String> {
    let reply = reply.map_err(|fault| fault.unknown(command))?;
    redis::from_redis_value(reply).map_err(|_| Unknown::Failed(format!("{command} has no text")))
}

/// The reply to CONFIG GET: the name and the value, or nothing.
fn setting(name: &'static str, reply: Reply) -> Answer<String> {
    let reply = reply.map_err(|fault| fault.unknown("CONFIG GET"))?;
    let pair: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
    match <[String; 2]>::try_from(pair) {
        Ok([_, value]) => Ok(value),
        Err(_) => Err(Unknown::Absent(name.to_owned())),
    }
}

/// Why a command of the subscription was refused. A right that is missing is noted.
fn refused(fault: &Fault, command: &'static str, lacking: &mut Lacking<'_>) -> Unknown {
    match fault.lack() {
        Some(lack) => {
            lacking.note(command, lack);
            Unknown::NoRight(command)
        }
        None => fault.unknown(command),
    }
}
