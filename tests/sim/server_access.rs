//! Operations of the simulator and the search of small worlds on a server, beside commands.

use std::collections::VecDeque;

use super::{Server, words_of};
use crate::script::{Call, CallerId, Form, ScriptReply};
use crate::store::memory::keyspace::{Bytes, Content, KeyEntry, Keyspace};

impl Server {
    /// Sends a call as a manager does, and reads the reply.
    pub(crate) fn run_call(
        &mut self,
        now: u64,
        call: &Call,
        caller_id: &CallerId,
        not_after: u64,
    ) -> Result<ScriptReply, String> {
        let command = call.command(caller_id, Form::default(), not_after);
        let value = self.run(now, &words_of(&command))?;
        ScriptReply::parse(call, &value).map_err(|malformed| malformed.to_string())
    }
}

impl Keyspace {
    /// A list, and the last ms in which it exists.
    pub(crate) fn list_of(&self, key: &str) -> Option<(&VecDeque<Bytes>, Option<i64>)> {
        match self.entry(key) {
            Some(KeyEntry {
                content: Content::List(list),
                expires_at,
            }) => Some((list, *expires_at)),
            _ => None,
        }
    }
}
