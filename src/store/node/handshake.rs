//! The handshake: who the caller is, whether this is the right server, and what time it is there.

use std::io;
use std::sync::atomic::Ordering;

use redis::{Cmd, RedisError, Value};

use super::Node;
use super::connection::{Connection, fault, refusal};
use super::first_reply::no_first_reply;
use super::hello::{Expected, Hello};
use super::role::{Role, hello};
use crate::error::Step;
use crate::store::clock::Time;
use crate::store::fault::is_closed_kind;
use crate::store::refusal::is_unknown_command;
use crate::store::{Anchor, Login, StoreFault};

impl Node {
    /// Sends AUTH, ASKING (to a cluster), SELECT, HELLO and TIME as one pipeline, and reads the
    /// replies, all before `reply_by`. HELLO names the connection.
    pub(super) fn shake_hands(
        &self,
        connection: &mut Connection,
        role: Role,
        reply_by: Time,
    ) -> Result<(), StoreFault> {
        // Read once: another handshake may learn meanwhile that names are refused.
        let name = (!self.refuses_names.load(Ordering::Relaxed)).then_some(role);
        let commands = self.handshake_commands(name);
        let sent = self.clock.now();
        let left = self.time_left(reply_by)?;
        connection.limit_writes(left)?;
        connection.limit_reads(left)?;
        connection
            .send(&commands)
            .map_err(|e| self.turned_away(connection, e, reply_by))?;
        let mut replies = self.handshake_replies(connection, commands.len(), reply_by)?;
        let received = self.clock.now();
        let time = replies.pop().unwrap_or_default();
        let hello = replies.pop().unwrap_or_default();
        let hello = match name {
            Some(_) => self.without_name(connection, hello, reply_by)?,
            None => hello,
        };
        let hello = Hello::read(hello, self.address());
        // First of all: a sentinel knows no SELECT, and a cluster refuses it.
        if let Ok(hello) = &hello {
            self.check_mode(hello, connection, self.time_left(reply_by)?)?;
        }
        // The other replies are from AUTH, ASKING and SELECT. A refusal of AUTH is the cause of all
        // refusals after it, so the first one is the one to report.
        for reply in replies {
            refusal(reply).map_err(|fault| fault.of_login(&self.server.login))?;
        }
        let hello = hello?;
        hello.check_version(self.address())?;
        self.check_role(&hello, connection, self.time_left(reply_by)?)?;
        connection.anchor = Anchor {
            server: server_time(refusal(time)?)?,
            sent,
            received,
        };
        self.note_anchor(connection.anchor);
        Ok(())
    }

    /// HELLO and TIME are the last two.
    fn handshake_commands(&self, name: Option<Role>) -> Vec<Cmd> {
        let mut commands = Vec::new();
        commands.extend(auth(&self.server.login));
        if self.expected == Expected::ClusterNode {
            // It does nothing here. A user who may not run it learns that at once, and not first
            // when a slot moves.
            commands.push(redis::cmd("ASKING"));
        }
        if self.server.login.database != 0 {
            let mut select = redis::cmd("SELECT");
            select.arg(self.server.login.database);
            commands.push(select);
        }
        commands.push(match name {
            Some(role) => role.hello(&self.caller_id),
            None => hello(),
        });
        commands.push(redis::cmd("TIME"));
        commands
    }

    /// The reply to a HELLO with a name. A proxy may know HELLO, and refuse the name in it. Then
    /// this connection and all later ones have no name: it helps people, and no call depends on it.
    fn without_name(
        &self,
        connection: &mut Connection,
        reply: Value,
        reply_by: Time,
    ) -> Result<Value, StoreFault> {
        let is_about_arguments = matches!(&reply, Value::ServerError(error)
            if error.code() == "ERR" && !is_unknown_command(error.details().unwrap_or_default()));
        if !is_about_arguments {
            return Ok(reply);
        }
        self.refuses_names.store(true, Ordering::Relaxed);
        connection.limit_writes(self.time_left(reply_by)?)?;
        connection
            .send(&[hello()])
            .map_err(|e| fault(e, Step::Connect))?;
        connection.limit_reads(self.time_left(reply_by)?)?;
        connection.receive().map_err(|e| fault(e, Step::Connect))
    }

    fn handshake_replies(
        &self,
        connection: &mut Connection,
        count: usize,
        reply_by: Time,
    ) -> Result<Vec<Value>, StoreFault> {
        let mut replies = Vec::with_capacity(count);
        for _ in 0..count {
            connection.limit_reads(self.time_left(reply_by)?)?;
            match connection.receive() {
                Ok(reply) => replies.push(reply),
                // A server may refuse and then close. Its refusal says more than the end.
                Err(error) => {
                    let refused = replies.into_iter().find_map(|reply| refusal(reply).err());
                    return Err(match refused {
                        Some(refused) => refused.of_login(&self.server.login),
                        None => self.no_first_reply(connection, error, reply_by),
                    });
                }
            }
        }
        Ok(replies)
    }

    /// Why the handshake could not be sent. A server that turns clients away writes the reason and
    /// closes, perhaps before any command arrives. So its reason may be in the socket behind the
    /// error.
    fn turned_away(
        &self,
        connection: &mut Connection,
        error: io::Error,
        reply_by: Time,
    ) -> StoreFault {
        if is_closed_kind(error.kind())
            && let Ok(reply) = connection.receive()
            && let Err(refused) = refusal(reply)
        {
            return refused.of_login(&self.server.login);
        }
        self.no_first_reply(connection, error, reply_by)
    }

    fn no_first_reply(
        &self,
        connection: &Connection,
        error: impl Into<RedisError>,
        reply_by: Time,
    ) -> StoreFault {
        // This client has closed the connection. To ask the server why would take long if it hangs.
        if let Err(ended) = self.check_not_ended() {
            return ended;
        }
        let left = reply_by - self.clock.now();
        no_first_reply(connection, &self.server, error.into(), left)
    }
}

/// The command that logs in, if a login is needed.
pub(super) fn auth(login: &Login) -> Option<Cmd> {
    let password = login.password.as_deref()?;
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = &login.user {
        auth.arg(user);
    }
    auth.arg(password);
    Some(auth)
}

/// The reply to TIME, in µs.
pub(super) fn server_time(value: Value) -> Result<u64, StoreFault> {
    let shown = format!("{value:?}");
    redis::from_redis_value(value)
        .ok()
        .and_then(|(seconds, micros): (u64, u64)| {
            // Within an i64, sums with it cannot overflow for ages.
            seconds
                .checked_mul(1_000_000)?
                .checked_add(micros)
                .filter(|time| i64::try_from(*time).is_ok())
        })
        .ok_or_else(|| {
            StoreFault::protocol(format!(
                "expected seconds and microseconds as the reply to TIME; got {shown:.100}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that is no Redis, or whose clock is set to the end of time.
    #[test]
    fn server_time_beyond_every_sum_is_refused() {
        let time = |seconds: &str, micros: &str| {
            server_time(Value::Array(
                [seconds, micros]
                    .map(|n| Value::BulkString(n.into()))
                    .into(),
            ))
        };
        assert_eq!(
            time("1700000000", "7").expect("a time"),
            1_700_000_000_000_007
        );
        for (seconds, micros) in [
            ("18446744073709551615", "0"),
            ("18446744073709", "551615"),
            ("0", "-1"),
            ("", ""),
        ] {
            let refused = time(seconds, micros);
            assert!(
                matches!(&refused, Err(StoreFault::Server { code, .. }) if code == "PROTOCOL"),
                "{refused:?}"
            );
        }
    }
}
