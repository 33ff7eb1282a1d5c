//! The questions to one server.

use std::collections::HashMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fairlock::servers::redis::{self, Cmd, FromRedisValue, Value};
use fairlock::servers::{Deployment, Server, ServerConnection, Servers};

use super::derived::derive;
use super::facts::{Facts, Kind};
use super::remedy;

/// How often the round trip is measured.
const SAMPLES: usize = 5;

/// Each is asked for by itself: 6.2 takes no more, and all together would bring passwords.
const SETTINGS: &str = "maxmemory maxmemory-policy appendfsync save stop-writes-on-bgsave-error \
                        timeout min-replicas-to-write lua-time-limit \
                        client-output-buffer-limit cluster-require-full-coverage";

struct Link<'a> {
    f: &'a mut Facts,
    connection: ServerConnection,
    /// No question is sent after it.
    until: Instant,
}

/// Asks a server what its kind is asked. An error: it cannot be reached, or refuses every command.
pub(super) fn ask(
    f: &mut Facts,
    servers: &Servers,
    server: &Server,
    until: Instant,
) -> Result<(), (String, String)> {
    f.set("user", server.login_name());
    let (timeout, started) = (f.time("timeout_ms"), Instant::now());
    // A replica may have fewer databases.
    let at = server.clone().database(0);
    let opened = at.open(&[command("TIME")], timeout);
    let (connection, replies) = opened.map_err(|error| remedy::of(&error))?;
    f.set_time("connect_ms", started.elapsed());
    if let Some(Err(error)) = replies.into_iter().next().map(refusal)
        && why("TIME", &error) == error
    {
        let message = format!("redis at {server} refused: {error}");
        return Err((message, remedy::of_error(&error).to_owned()));
    }
    let mut link = Link {
        f,
        connection,
        until,
    };
    match link.f.kind {
        Kind::Sentinel => link.service(),
        Kind::Seed => link.slots(servers, server),
        _ => {
            link.clock();
            link.settings();
            if link.f.deployment == Deployment::Cluster {
                link.cluster();
                link.slots(servers, server);
            }
            if link.f.kind == Kind::Master && !link.f.has("stopped") {
                link.rights();
            }
        }
    }
    derive(f);
    Ok(())
}

impl Link<'_> {
    /// Sends the questions in one write. Returns each reply, or why there is none.
    fn ask(&mut self, questions: &[impl AsRef<str>]) -> Vec<Result<Value, String>> {
        let left = self.until.saturating_duration_since(Instant::now());
        let left = left.min(self.f.time("timeout_ms"));
        let commands = questions.iter().map(|words| command(words.as_ref()));
        let commands: Vec<Cmd> = commands.collect();
        if !self.f.has("stopped") {
            match self.connection.run(&commands, left) {
                Ok(replies) => return replies.into_iter().map(refusal).collect(),
                Err(error) => self.f.set("stopped", remedy::of(&error).0),
            }
        }
        vec![Err(self.f.text("stopped").to_owned()); questions.len()]
    }

    /// The reply to one question. Without one, what it would tell is not known.
    fn read<T: FromRedisValue + Default>(&mut self, tells: &str, question: &str) -> T {
        match self.ask(&[question]).remove(0) {
            Ok(reply) => read(&reply),
            Err(error) => {
                self.f.set_unknown(tells, why(question, &error));
                T::default()
            }
        }
    }

    /// A sentinel: what it says about its service. A manager asks the first two questions.
    fn service(&mut self) {
        let service = self.f.text("service").to_owned();
        let question = |what: &str| format!("SENTINEL {what} {service}");
        let fields: HashMap<String, String> = self.read("master", &question("MASTER"));
        for (name, value) in fields {
            self.f.set(&name, value);
        }
        if self.f.has("port") {
            let master = format!("{}:{}", self.f.text("ip"), self.f.text("port"));
            self.f.set("master", master);
        }
        let _: Vec<String> = self.read("master", &question("GET-MASTER-ADDR-BY-NAME"));
        let _: String = self.read("quorum_check", &question("CKQUORUM"));
        let replicas: Vec<HashMap<String, String>> = self.read("replicas", &question("REPLICAS"));
        for replica in replicas {
            let field = |name| replica.get(name).map_or("", String::as_str);
            let address = format!("{}:{}", field("ip"), field("port"));
            self.f.add("replica_addresses", &address);
        }
    }

    /// The masters of a cluster, and a name that this one keeps.
    fn slots(&mut self, servers: &Servers, server: &Server) {
        let ranges: Vec<Vec<Value>> = self.read("masters", "CLUSTER SLOTS");
        for range in ranges {
            // `first last [host port …] …`
            let [first, last, Value::Array(master), ..] = &range[..] else {
                continue;
            };
            let [host, port, ..] = &master[..] else {
                continue;
            };
            let host = match read::<String>(host) {
                // A node that does not know its own host leaves it out.
                host if host.is_empty() || host == "?" => server.host().unwrap_or_default().into(),
                host => host,
            };
            let address = servers.at(host, read(port)).to_string();
            self.f.add("masters", &address);
            if self.f.kind == Kind::Master && self.f.server.as_ref() == Some(&address) {
                let kept = read::<u16>(first)..=read(last);
                let is_kept = |name: &String| {
                    let sum = crc16::State::<crc16::XMODEM>::calculate(name.as_bytes());
                    kept.contains(&(sum % 16_384))
                };
                // Each is in a certain slot with a chance of one to the number of all slots.
                let own = self.f.text("lock_name");
                let mut names = (0..300_000).map(|number| format!("{own}-{number}"));
                let name = names.find(is_kept).unwrap_or_default();
                return self.f.set("lock_name", name);
            }
        }
    }

    /// The round trip, and the server's clock: the shortest one reads it best.
    fn clock(&mut self) {
        let (mut samples, ends) = (Vec::new(), Instant::now() + self.f.time("timeout_ms"));
        while samples.len() < SAMPLES && Instant::now() < ends {
            let (before, host) = (Instant::now(), SystemTime::now());
            let (seconds, us): (f64, f64) = self.read("median_ms", "TIME");
            let took = before.elapsed();
            if !self.f.why("median_ms").is_empty() {
                return;
            }
            let host = host.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
            samples.push((took, (seconds - host.as_secs_f64()) * 1000.0 + us / 1000.0));
        }
        samples.sort_by_key(|(took, _)| *took);
        if let (Some((fastest, ahead_ms)), Some((slowest, _))) = (samples.first(), samples.last()) {
            self.f.set("ahead_ms", ahead_ms);
            self.f.set_time("error_ms", *fastest / 2);
            self.f.set_time("median_ms", samples[samples.len() / 2].0);
            self.f.set_time("slowest_ms", *slowest);
        }
    }

    fn settings(&mut self) {
        let questions = SETTINGS.split(' ').map(|name| format!("CONFIG GET {name}"));
        let replies = self.ask(&questions.collect::<Vec<_>>());
        for (name, reply) in SETTINGS.split(' ').zip(replies) {
            match reply.map(|reply| read::<Vec<String>>(&reply)) {
                Ok(setting) => setting
                    .get(1)
                    .into_iter()
                    .for_each(|value| self.f.set(name, value)),
                Err(error) => self.f.set_unknown(name, why("CONFIG GET", &error)),
            }
        }
        self.lines("INFO", "INFO");
    }

    /// Its cluster, as this server sees it.
    fn cluster(&mut self) {
        self.lines("cluster_known_nodes", "CLUSTER INFO");
        let nodes: String = self.read("amiss", "CLUSTER NODES");
        for line in nodes.lines() {
            // `id host:port@bus flags master …`
            let words: Vec<&str> = line.split(' ').collect();
            let is_bad = |flag| matches!(flag, "fail" | "fail?" | "noaddr");
            if let [_, node, flags, ..] = words[..]
                && flags.split(',').any(is_bad)
            {
                self.f.add("amiss", &format!("{node}({flags})"));
            }
        }
    }

    /// Lines of `name:value`.
    fn lines(&mut self, tells: &str, question: &str) {
        let text: String = self.read(tells, question);
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            self.f.set(name, value);
        }
    }

    /// Tries the commands that are no part of a script. They change nothing.
    fn rights(&mut self) {
        let channel = format!("{}:grants:doctor", self.f.text("prefix"));
        let (publish, subscribe) = (
            format!("PUBLISH {channel} -"),
            format!("SUBSCRIBE {channel}"),
        );
        // No other command may follow the last one.
        let tried: &[&str] = match self.f.deployment {
            Deployment::Quorum => &["SCAN 0"],
            Deployment::Cluster => &["SCAN 0", "PING", "ASKING", &publish, &subscribe],
            _ => &["SCAN 0", "PING", &publish, &subscribe],
        };
        let replies = self.ask(tried);
        // A proxy may close the connection upon a command that it does not know.
        self.f.set_unknown("stopped", "");
        for (question, reply) in tried.iter().zip(replies) {
            let command = question.split(' ').next().unwrap_or_default();
            let error = reply.err().unwrap_or_default();
            if error.starts_with("NOPERM ") {
                self.f
                    .add("lacking", &format!("+{}", command.to_lowercase()));
            } else if error.contains("unknown command") && command != "PING" {
                self.f.add("absent", command);
            }
        }
    }
}

fn read<T: FromRedisValue + Default>(reply: &Value) -> T {
    redis::from_redis_value(reply.clone()).unwrap_or_default()
}

/// A server's error as its words.
fn refusal(reply: Value) -> Result<Value, String> {
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
