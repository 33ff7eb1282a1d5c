//! One connection to a server, for questions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fairlock::servers::redis::{self, Cmd, Value};
use fairlock::servers::{Server, ServerConnection};

use super::fault::{Fault, refusal};

pub(super) type Reply = Result<Value, Fault>;

pub(super) struct Link {
    connection: ServerConnection,
    /// The version in the answer to HELLO. `None`: the server, or a proxy before it, has no HELLO.
    pub(super) version: Option<String>,
    /// It was closed upon a greeting, so it is asked for nothing that a proxy may not know.
    pub(super) is_silent: bool,
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
                version: None,
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
            Some(reply) => link.version = Some(version(reply?)),
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

/// The version in the answer to HELLO. Empty if there is none.
fn version(reply: Value) -> String {
    let mut fields: HashMap<String, Value> = redis::from_redis_value(reply).unwrap_or_default();
    let version = fields.remove("version");
    version.map_or(String::new(), |version| {
        redis::from_redis_value(version).unwrap_or_default()
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer has a list of modules, too.
    #[test]
    fn version_is_found_among_the_fields_of_hello() {
        let text = |text: &str| Value::BulkString(text.into());
        let modules = Value::Array(vec![Value::Array(vec![text("name"), text("m")])]);
        let mut fields = vec![
            text("server"),
            text("redis"),
            text("version"),
            text("6.2.14"),
        ];
        fields.extend([text("proto"), Value::Int(2), text("modules"), modules]);
        assert_eq!(version(Value::Array(fields)), "6.2.14");
        assert_eq!(version(Value::Okay), "");
    }
}
