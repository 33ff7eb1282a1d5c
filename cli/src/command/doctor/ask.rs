//! The questions to one server.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairlock::servers::redis::{self, Cmd, FromRedisValue, Value};
use fairlock::servers::{Deployment, ServerConnection};
use fairlock::{Error, servers::Server};

use super::derived::derive;
use super::facts::{Facts, Kind};
use super::remedy;

/// How often the round trip is measured.
const SAMPLES: usize = 5;

/// Each is asked for by itself: 6.2 takes no more, and all together would bring passwords.
const SETTINGS: &str = "maxmemory maxmemory-policy appendfsync save stop-writes-on-bgsave-error \
                        timeout min-replicas-to-write min-replicas-max-lag lua-time-limit \
                        client-output-buffer-limit cluster-require-full-coverage";

/// A reply; or the server's refusal, or why there is none.
type Reply = Result<Value, String>;

struct Link {
    connection: ServerConnection,
    /// T
    timeout: Duration,
    /// No question is sent after it.
    until: Instant,
    /// Why no more can be asked.
    ended: Option<String>,
}

/// Asks a server what its kind is asked. An error: it cannot be reached, or refuses every command.
pub(super) fn ask(f: &mut Facts, at: &Server, until: Instant) -> Result<(), (String, String)> {
    f.set("user", at.login_name());
    let mut link = Link::open(f, at, until)?;
    match f.kind {
        Kind::Sentinel => link.service(f),
        Kind::Seed => link.slots(f, at),
        _ => {
            link.clock(f);
            link.settings(f);
            if f.deployment == Deployment::Cluster {
                link.cluster(f);
                link.slots(f, at);
            }
            if let Some(why) = &link.ended {
                f.set("stopped", why);
            }
            if f.kind == Kind::Master && f.is("is_tried", "true") {
                link.rights(f);
            }
        }
    }
    derive(f);
    Ok(())
}

impl Link {
    /// Connects, logs in and gives the connection its name.
    fn open(f: &mut Facts, server: &Server, until: Instant) -> Result<Link, (String, String)> {
        let timeout = f.time("timeout_ms");
        // A replica may have fewer databases.
        let at = server.clone().database(0);
        let name = format!("fairlock:-:{}:diagnosis", std::process::id());
        let hello = command(&format!("HELLO 2 SETNAME {name}"));
        let is_closed = |error: &Error| error.to_string().contains("closed the connection");
        let started = Instant::now();
        let mut opened = at.open(&[hello], timeout);
        // A proxy may do so upon a command that it does not know.
        if opened.as_ref().is_err_and(is_closed) {
            opened = at.open(&[], timeout);
        }
        let (connection, replies) = opened.map_err(|error| remedy::of(&error))?;
        f.set_time("connect_ms", started.elapsed());
        match replies.into_iter().next().map(refusal) {
            Some(Ok(_)) => {}
            Some(Err(error)) if remedy::refuses_all(&error) => {
                let message = format!("redis at {server} refused: {error}");
                return Err((message, remedy::of_error(&error).to_owned()));
            }
            _ => f.set("no_hello", 1),
        }
        Ok(Link {
            connection,
            timeout,
            until,
            ended: None,
        })
    }

    /// Sends the commands in one write.
    fn ask(&mut self, commands: &[String]) -> Vec<Reply> {
        let left = self.until.saturating_duration_since(Instant::now());
        let asked: Vec<Cmd> = commands.iter().map(|words| command(words)).collect();
        if self.ended.is_none() {
            match self.connection.run(&asked, left.min(self.timeout)) {
                Ok(replies) => return replies.into_iter().map(refusal).collect(),
                Err(error) => self.ended = Some(remedy::of(&error).0),
            }
        }
        let why = self.ended.clone().unwrap_or_default();
        vec![Err(why); commands.len()]
    }

    /// The reply to one question. Without one, what it would tell is not known.
    fn read<T: FromRedisValue>(&mut self, f: &mut Facts, tells: &str, question: &str) -> Option<T> {
        let reply = self.ask(&[question.to_owned()]).remove(0);
        let reply = reply.inspect_err(|error| f.set_unknown(tells, why(question, error)));
        read(reply.ok()?)
    }

    /// A sentinel: what it says about its service. A manager asks the first two questions.
    fn service(&mut self, f: &mut Facts) {
        let service = f.text("service").to_owned();
        let question = |what: &str| format!("SENTINEL {what} {service}");
        let _: Option<Value> = self.read(f, "address", &question("GET-MASTER-ADDR-BY-NAME"));
        let fields: Option<HashMap<String, String>> = self.read(f, "master", &question("MASTER"));
        for (name, value) in fields.unwrap_or_default() {
            f.set(&name, value);
        }
        if f.has("port") {
            f.set("master", format!("{}:{}", f.text("ip"), f.text("port")));
        }
        let _: Option<Value> = self.read(f, "quorum_check", &question("CKQUORUM"));
        let replicas: Option<Vec<HashMap<String, String>>> =
            self.read(f, "replicas", &question("REPLICAS"));
        for replica in replicas.unwrap_or_default() {
            if let (Some(host), Some(port)) = (replica.get("ip"), replica.get("port")) {
                f.add("replica_addresses", &format!("{host}:{port}"));
            }
        }
    }

    /// The masters of a cluster, and a name that this one keeps.
    fn slots(&mut self, f: &mut Facts, server: &Server) {
        let ranges: Option<Vec<Vec<Value>>> = self.read(f, "masters", "CLUSTER SLOTS");
        for mut range in ranges.unwrap_or_default() {
            // `first last [host port …] …`
            range.truncate(3);
            let range: Option<(u16, u16, Vec<Value>)> = read(Value::Array(range));
            let (first, last, mut master) = range.unwrap_or_default();
            master.truncate(2);
            let master: Option<(Option<String>, u16)> = read(Value::Array(master));
            let (host, port) = master.unwrap_or_default();
            // A node that does not know its own host leaves it out.
            let (own, host) = (server.host().unwrap_or_default(), host.unwrap_or_default());
            let host = match host.as_str() {
                "" | "?" => own,
                host => host,
            };
            let address = match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            f.add("masters", &address);
            if f.kind == Kind::Master && f.server.as_ref() == Some(&address) {
                let slot =
                    |name: &str| crc16::State::<crc16::XMODEM>::calculate(name.as_bytes()) % 16_384;
                // Each is in a certain slot with a chance of one to the number of all slots.
                let mut names =
                    (0..300_000).map(|number| format!("{}-{number}", f.text("lock_name")));
                let kept = names.find(|name| (first..=last).contains(&slot(name)));
                return f.set("lock_name", kept.unwrap_or_default());
            }
        }
    }

    /// The round trip, and the server's clock: the shortest one reads it best.
    fn clock(&mut self, f: &mut Facts) {
        let mut times = Vec::new();
        let ends = Instant::now() + self.timeout;
        while times.len() < SAMPLES && Instant::now() < ends && self.ended.is_none() {
            let (before, host) = (Instant::now(), SystemTime::now());
            let time: Option<(f64, f64)> = self.read(f, "offset", "TIME");
            let took = before.elapsed();
            let host = host.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
            if let Some((seconds, us)) = time
                && times.iter().all(|time| took < *time)
            {
                let ahead = (seconds - host.as_secs_f64()) * 1000.0 + us / 1000.0;
                f.set("ahead_ms", ahead);
                f.set("offset", format_args!("{ahead:+.1} ms"));
                f.set_time("error_ms", took / 2);
            }
            times.push(took);
        }
        times.sort_unstable();
        if let (Some(median), Some(slowest)) = (times.get(times.len() / 2), times.last()) {
            f.set_time("median_ms", *median);
            f.set_time("slowest_ms", *slowest);
        }
    }

    fn settings(&mut self, f: &mut Facts) {
        let questions = SETTINGS.split(' ').map(|name| format!("CONFIG GET {name}"));
        let replies = self.ask(&questions.collect::<Vec<_>>());
        for (name, reply) in SETTINGS.split(' ').zip(replies) {
            match reply.map(read::<(String, String)>) {
                Ok(Some((_, value))) => f.set(name, value),
                Ok(None) => {}
                Err(error) => f.set_unknown(name, why("CONFIG GET", &error)),
            }
        }
        self.lines(f, "INFO", "INFO");
    }

    /// Its cluster, as this server sees it.
    fn cluster(&mut self, f: &mut Facts) {
        self.lines(f, "cluster_known_nodes", "CLUSTER INFO");
        let nodes: Option<String> = self.read(f, "amiss", "CLUSTER NODES");
        for line in nodes.unwrap_or_default().lines() {
            // `id host:port@bus flags master …`
            let words: Vec<&str> = line.split(' ').collect();
            let is_bad = |flag: &&str| matches!(*flag, "fail" | "fail?" | "noaddr");
            if let [_, place, flags, ..] = words[..]
                && let Some(flag) = flags.split(',').find(is_bad)
            {
                let node = place.split(['@', ',']).next().unwrap_or_default();
                f.add("amiss", &format!("{node}({flag})"));
            }
        }
    }

    /// Lines of `name:value`.
    fn lines(&mut self, f: &mut Facts, tells: &str, question: &str) {
        let text: Option<String> = self.read(f, tells, question);
        let text = text.unwrap_or_default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            f.set(name, value);
        }
    }

    /// Tries the commands that are no part of a script. They change nothing.
    fn rights(&mut self, f: &mut Facts) {
        let channel = format!("{}:grants:doctor", f.text("prefix"));
        let publish = format!("PUBLISH {channel} test");
        let subscribe = format!("SUBSCRIBE {channel}");
        // No other command may follow the last one.
        let tried = match f.deployment {
            Deployment::Quorum => vec!["SCAN 0 COUNT 1"],
            Deployment::Cluster => vec!["SCAN 0 COUNT 1", "PING", "ASKING", &publish, &subscribe],
            _ => vec!["SCAN 0 COUNT 1", "PING", &publish, &subscribe],
        };
        let tried: Vec<String> = tried.into_iter().map(str::to_owned).collect();
        for (question, reply) in tried.iter().zip(self.ask(&tried)) {
            let command = question.split(' ').next().unwrap_or_default();
            if let Err(error) = reply {
                f.set_unknown(command, why(question, &error));
            }
            if f.is_refused(command) {
                f.add("lacking", &format!("+{}", command.to_lowercase()));
            } else if matches!(command, "SCAN" | "ASKING") && f.is_absent(command) {
                f.add("absent", command);
            }
        }
    }
}

fn read<T: FromRedisValue>(reply: Value) -> Option<T> {
    redis::from_redis_value(reply).ok()
}

/// A server's error as its words.
fn refusal(reply: Value) -> Reply {
    match reply {
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            Err(format!("{} {details}", error.code()))
        }
        reply => Ok(reply),
    }
}

/// Why there is no answer to a question.
fn why(question: &str, error: &str) -> String {
    if error.starts_with("NOPERM ") {
        format!("no right to {question}")
    } else if error.contains("unknown command") {
        format!("the server has no {question}")
    } else {
        error.to_owned()
    }
}

fn command(words: &str) -> Cmd {
    let words: Vec<&str> = words.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).clone()
}
