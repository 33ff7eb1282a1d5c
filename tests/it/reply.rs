//! The commands of a test to the in-memory store, and the replies.

use fairlock::memory::Memory;
use redis::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    /// A text or a status. Bytes that are not UTF-8 are replaced.
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

pub(crate) trait Commands {
    fn command(&self, words: &[&str]) -> Reply;
}

impl Commands for Memory {
    fn command(&self, words: &[&str]) -> Reply {
        self.run_command(words).map_or_else(Reply::Error, Reply::of)
    }
}

impl Reply {
    fn of(value: Value) -> Reply {
        match value {
            Value::Int(n) => Reply::Int(n),
            Value::BulkString(bytes) => Reply::Text(String::from_utf8_lossy(&bytes).into_owned()),
            Value::SimpleString(text) => Reply::Text(text),
            Value::Array(values) => Reply::List(values.into_iter().map(Reply::of).collect()),
            _ => Reply::Nil,
        }
    }
}
