//! One connection to a server, for questions.

use std::time::{Duration, Instant};

use fairlock::redis::{self, Cmd, Value};
use fairlock::{Server, ServerConnection};

use super::fault::{Fault, refusal};

pub(super) type Reply = Result<Value, Fault>;

pub(super) struct Link {
    connection: ServerConnection,
    /// The answer to HELLO. `None`: the server, or a proxy before it, has no HELLO.
    pub(super) hello: Option<Hello>,
    /// It was closed upon a greeting, so it is asked for nothing that a proxy may not know.
    pub(super) is_silent: bool,
}

/// A server's description of itself.
#[derive(Debug, Default)]
pub(super) struct Hello {
    version: String,
}

impl Link {
    /// Connects, logs in and gives the connection its name. Blocks until `until` at most.
    pub(super) fn open(server: &Server, until: Instant) -> Result<Link, Fault> {
        // The name in the server's list of clients, as the library's connections have one.
        let name = format!("fairlock:-:{}:diagnosis", std::process::id());
        let open = |first: &[Cmd]| -> Result<(Link, Option<Reply>), Fault> {
            let (connection, mut replies) = server.open(first, left(until))?;
            let link = Link {
                connection,
                hello: None,
                is_silent: first.is_empty(),
            };
            Ok((link, replies.pop().map(refusal)))
        };
        let opened = match open(&[command(&["HELLO", "2", "SETNAME", &name])]) {
            // A proxy may close the connection upon a command that it does not know.
            Err(fault) if fault.is_closed() => open(&[]),
            opened => opened,
        };
        let (mut link, greeting) = opened?;
        match greeting {
            Some(Err(fault)) if fault.refuses_command() => {
                link.ask(&[command(&["CLIENT", "SETNAME", &name])], left(until))?;
            }
            Some(reply) => link.hello = Some(Hello::read(reply?)),
            None => {}
        }
        Ok(link)
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. A fault ends
    /// the connection. Blocks for `within` at most.
    pub(super) fn ask(&mut self, commands: &[Cmd], within: Duration) -> Result<Vec<Reply>, Fault> {
        let replies = self.connection.run(commands, within)?;
        Ok(replies.into_iter().map(refusal).collect())
    }

    /// Awaits a message that no request asked for.
    pub(super) fn receive(&mut self, within: Duration) -> Result<Value, Fault> {
        Ok(self.connection.receive(within)?)
    }
}

impl Hello {
    fn read(reply: Value) -> Hello {
        let fields: Vec<Value> = redis::from_redis_value(reply).unwrap_or_default();
        let text =
            |value: &Value| -> String { redis::from_redis_value_ref(value).unwrap_or_default() };
        let mut pairs = fields.chunks_exact(2);
        let version = pairs.find(|pair| text(&pair[0]) == "version");
        Hello {
            version: version.map(|pair| text(&pair[1])).unwrap_or_default(),
        }
    }

    /// Whether the server says that it is older than this version.
    pub(super) fn is_before(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.version.split('.').map(|number| number.parse().ok());
        let major: Option<u32> = numbers.next().flatten();
        major.is_some_and(|major| (major, numbers.next().flatten().unwrap_or(0)) < version)
    }
}

/// The time that is left until then.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

pub(super) fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}
