//! The state that commands read and write, and the commands that do not concern a key.

use std::collections::HashMap;

use redis::Value;

use super::keyspace::{Bytes, Keyspace};

/// The state that commands read and write.
#[derive(Default)]
pub(crate) struct ServerState {
    pub(crate) keyspace: Keyspace,
    /// The time in µs. It stays the same while a script runs, so that no key expires within it.
    pub(super) now: u64,
    /// How many subscribers each channel has.
    pub(crate) listeners: HashMap<Bytes, usize>,
    pub(super) published: Vec<PublishedMessage>,
    /// How many keys there may be before the next sweep.
    sweep_at: usize,
}

/// A message that a command published.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PublishedMessage {
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
}

impl ServerState {
    /// Drops the keys whose time is over. Does so only once there are twice as many keys as the
    /// last sweep left, so that sweeping costs little per request.
    pub(super) fn sweep(&mut self, now: u64) {
        if self.keyspace.len() > self.sweep_at {
            self.keyspace.sweep((now / 1000) as i64);
            self.sweep_at = 1024 + 2 * self.keyspace.len();
        }
    }

    /// Runs a command that is not a script.
    pub(super) fn run(&mut self, name: &str, args: &[Bytes]) -> Result<Value, CommandError> {
        let arity = match name {
            "TIME" => 1,
            "PUBLISH" => 3,
            _ => Keyspace::arity(name).ok_or(CommandError::Unknown)?,
        };
        let words = i8::try_from(args.len() + 1).unwrap_or(i8::MAX);
        if if arity < 0 {
            words < -arity
        } else {
            words != arity
        } {
            return Err(CommandError::WrongArity);
        }
        match name {
            "TIME" => {
                let part = |n: u64| Value::BulkString(n.to_string().into_bytes());
                Ok(Value::Array(vec![
                    part(self.now / 1_000_000),
                    part(self.now % 1_000_000),
                ]))
            }
            "PUBLISH" => {
                let listeners = self.listeners.get(&args[0]).copied().unwrap_or(0);
                self.published.push(PublishedMessage {
                    channel: args[0].clone(),
                    text: args[1].clone(),
                });
                Ok(Value::Int(listeners as i64))
            }
            _ => self
                .keyspace
                .run((self.now / 1000) as i64, name, args)
                .map_err(CommandError::Own),
        }
    }
}

/// Why a command did not run. Redis words the error differently for a client and for a script.
pub(super) enum CommandError {
    Unknown,
    WrongArity,
    /// The command's own error.
    Own(String),
}

/// The name of a command as the server looks it up.
pub(super) fn upper(name: &Bytes) -> String {
    String::from_utf8_lossy(name).to_ascii_uppercase()
}
