//! Operations of the simulator and the search of small worlds on a server, beside commands.

use std::collections::VecDeque;

use redis::Value;

use super::{ScriptServer, words_of};
use crate::key::Key;
use crate::script::{
    Call, CallerId, Form, Outcome, ScriptReply, Token, renewals_command, split_renewals,
};
use crate::store::memory::keyspace::{Bytes, Content, KeyEntry, Keyspace};

impl ScriptServer {
    /// Sends a call as a manager does, and reads the reply.
    pub(crate) fn run_call(
        &mut self,
        now: u64,
        call: &Call,
        caller_id: &CallerId,
        not_after: u64,
    ) -> Result<ScriptReply, String> {
        match self.renew_together(now, call, caller_id, not_after)? {
            Some(value) => parse(call, &value),
            None => self.run_alone(now, call, caller_id, not_after),
        }
    }

    /// The same, but a renewal of a mutex does not go together with others.
    pub(crate) fn run_alone(
        &mut self,
        now: u64,
        call: &Call,
        caller_id: &CallerId,
        not_after: u64,
    ) -> Result<ScriptReply, String> {
        let command = call.command(caller_id, Form::default(), not_after);
        let value = self.run(now, &words_of(&command))?;
        parse(call, &value)
    }

    /// Renews a mutex as the renewal thread does that has renewals of other names, too. Returns what
    /// the reply says about this call; `None` if it must be sent alone.
    ///
    /// The others are a token that never had the lock, before it, and a name without a record,
    /// behind it.
    pub(crate) fn renew_together(
        &mut self,
        now: u64,
        call: &Call,
        caller_id: &CallerId,
        not_after: u64,
    ) -> Result<Option<Value>, String> {
        if !call.is_renewed_with(call) {
            return Ok(None);
        }
        let stranger = call.renewal(Token::parse(&"0".repeat(32)).expect("a token"));
        let absent = Call {
            key: Key::new("fairlock", "absent").expect("a name"),
            ..call.clone()
        };
        let calls = [&stranger, call, &absent];
        let command = renewals_command(calls.into_iter(), caller_id, false, not_after);
        let value = self.run(now, &words_of(&command))?;
        match split_renewals(calls.len(), &value).as_deref() {
            Some([None, reply, None]) => Ok(reply.clone()),
            // R5 (dated requests): it came too late for all of them.
            Some([Some(late), ..]) if parse(call, late)?.outcome == Outcome::Late => {
                Ok(Some(late.clone()))
            }
            _ => Err(format!("{value:?} renews what is not held")),
        }
    }
}

fn parse(call: &Call, value: &Value) -> Result<ScriptReply, String> {
    ScriptReply::parse(call, value).map_err(|malformed| malformed.to_string())
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
