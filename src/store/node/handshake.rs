//! The handshake: who the caller is, whether this is the right server, and what time it is there. It
//! asks for more than it needs, and fails only when something that is needed is refused.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, RedisError, Value};

use super::Node;
use super::connection::{Connection, fault, refusal};
use super::expected::Expected;
use super::first_reply::no_first_reply;
use super::greeting::{Greeting, Said};
use super::hello::Role;
use super::login::auth;
use crate::error::Step;
use crate::script::value_text;
use crate::store::clock::Time;
use crate::store::fault::is_closed_kind;
use crate::store::{Anchor, Login, StoreFault};

/// Why a command is needed.
const FOR_LOGIN: &str = "which the login needs";
pub(super) const FOR_DATABASE: &str = "which a database other than 0 needs";
const FOR_LOCKS: &str = "which every lock needs";

/// The replies to the first write on a connection.
struct FirstReplies {
    auth: Option<Value>,
    asking: Option<Value>,
    select: Option<Value>,
    greeting: Vec<Value>,
    time: Value,
}

impl Node {
    /// Sends AUTH, ASKING (to a cluster), SELECT, the greeting and TIME as one pipeline, and reads
    /// the replies, all before `reply_by`. Fails if something that is needed is refused. The
    /// rest may be refused by a proxy, and is then left out, here and on later connections.
    pub(super) fn shake_hands(
        &self,
        connection: &mut Connection,
        role: Role,
        mut greeting: Greeting,
        reply_by: Time,
    ) -> Result<(), StoreFault> {
        let login = &*Arc::clone(&connection.first_login);
        let auth = auth(login);
        // It does nothing here. A user who may not run it learns that at once, and not first when a
        // slot moves.
        let asking = (self.expected == Expected::ClusterNode).then(|| redis::cmd("ASKING"));
        let select = select(login);
        let greetings = greeting.commands(role, &self.caller_id);
        let mut commands: Vec<Cmd> = [&auth, &asking, &select]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        commands.extend(greetings.iter().cloned());
        commands.push(self.time_command(greeting));
        let sent = self.clock.now();
        let left = self.time_left(reply_by)?;
        connection.limit_writes(left)?;
        connection
            .send(&commands)
            .map_err(|e| self.turned_away(connection, e, reply_by))?;
        let replies = self.handshake_replies(connection, commands.len(), reply_by)?;
        let received = self.clock.now();
        let mut replies = replies.into_iter();
        let mut next = |command: &Option<Cmd>| command.as_ref().and_then(|_| replies.next());
        let replies = FirstReplies {
            auth: next(&auth),
            asking: next(&asking),
            select: next(&select),
            greeting: replies.by_ref().take(greetings.len()).collect(),
            time: replies.next().unwrap_or_default(),
        };
        let auth = replies.auth.map_or(Ok(Value::Nil), refusal);
        let auth = auth.map_err(|fault| fault.of_login(login).of_command("AUTH", FOR_LOGIN));
        let mut said = greeting.read(replies.greeting);
        while let Ok(Said::Refused(other)) = said {
            // A refusal of AUTH is the cause of all refusals after it.
            auth.clone()?;
            greeting = other;
            self.greeting.fall_back_to(greeting);
            let commands = greeting.commands(role, &self.caller_id);
            said = greeting.read(self.ask(connection, &commands, reply_by)?);
        }
        // First of all: a sentinel knows no SELECT, and a cluster refuses it.
        if let Ok(Said::Server(hello)) = &said {
            self.check_mode(hello, connection, self.time_left(reply_by)?)?;
        }
        auth?;
        let select = replies.select.map_or(Ok(Value::Nil), refusal);
        select.map_err(|fault| fault.of_command("SELECT", FOR_DATABASE))?;
        self.note_asking(replies.asking.map_or(Ok(Value::Nil), refusal))?;
        if let Said::Server(hello) = said? {
            self.check_version(&hello)?;
            self.check_role(&hello, connection, self.time_left(reply_by)?)?;
            // While a slot moves, a node would refuse two keys of which one is missing.
            let tries_rights = hello.is_before((7, 0)) && self.expected != Expected::ClusterNode;
            self.rights.note_version(tries_rights);
            connection.hello = hello;
        }
        self.was_greeted
            .fetch_or(!greeting.is_silent(), Ordering::Relaxed);
        // A proxy may send each name to another server. One command is for one of them alone.
        connection.refuses_several_slots =
            greeting > Greeting::Hello || self.hides_cluster.load(Ordering::Relaxed);
        connection.anchor =
            self.first_anchor(connection, replies.time, (sent, received), reply_by)?;
        self.note_anchor(connection.anchor);
        Ok(())
    }

    /// Asks for the server's time. Where TIME is unknown, a script does: each script uses the time.
    pub(super) fn time_command(&self, greeting: Greeting) -> Cmd {
        if !greeting.is_silent() && !self.refuses_time.load(Ordering::Relaxed) {
            return redis::cmd("TIME");
        }
        let mut eval = redis::cmd("EVAL");
        eval.arg("return redis.call('TIME')");
        // A proxy sends a script to the server of its key. A node of a cluster runs one without keys.
        match self.expected {
            Expected::ClusterNode => eval.arg(0),
            _ => eval.arg(1).arg(self.caller_id.no_lock()),
        };
        eval
    }

    /// The pairing of clocks that the connection begins with, by the reply to the first question for
    /// the time.
    fn first_anchor(
        &self,
        connection: &mut Connection,
        reply: Value,
        (sent, received): (Time, Time),
        reply_by: Time,
    ) -> Result<Anchor, StoreFault> {
        let is_refused = |fault: &StoreFault| {
            fault.refuses_command() && !fault.is_lack_of_rights() && fault.code() != Some("MOVED")
        };
        match refusal(reply) {
            Err(fault) if is_refused(&fault) && !self.refuses_time.load(Ordering::Relaxed) => {
                let sent = self.clock.now();
                let command = self.time_command(Greeting::Silent);
                let mut replies = self.ask(connection, &[command], reply_by)?;
                let reply = refusal(replies.pop().unwrap_or_default());
                let time = reply.map_err(|by_script| match by_script {
                    // Scripts have no TIME either.
                    StoreFault::InDoubt(_) => of_time(fault),
                    other => other.of_command("EVAL", FOR_LOCKS),
                })?;
                self.refuses_time.store(true, Ordering::Relaxed);
                Ok(Anchor {
                    server: server_time(time)?,
                    sent,
                    received: self.clock.now(),
                })
            }
            reply => Ok(Anchor {
                server: server_time(reply.map_err(of_time)?)?,
                sent,
                received,
            }),
        }
    }

    /// A server may not know ASKING, or may not have it: that matters first when a slot moves to it.
    /// A user who lacks the right learns that now, since it can be added.
    fn note_asking(&self, reply: Result<Value, StoreFault>) -> Result<(), StoreFault> {
        match reply {
            Err(fault) if fault.is_lack_of_rights() || !fault.refuses_command() => Err(fault),
            reply => {
                let needed = "which a call needs while its slot moves";
                let refused = reply.err().map(|fault| fault.of_command("ASKING", needed));
                *self.asking_refused.lock() = refused;
                Ok(())
            }
        }
    }

    /// Sends commands in one write, and reads their replies.
    fn ask(
        &self,
        connection: &mut Connection,
        commands: &[Cmd],
        reply_by: Time,
    ) -> Result<Vec<Value>, StoreFault> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        connection.limit_writes(self.time_left(reply_by)?)?;
        connection
            .send(commands)
            .map_err(|e| fault(e, Step::Connect))?;
        self.handshake_replies(connection, commands.len(), reply_by)
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
                        Some(refused) => refused.of_login(&connection.first_login),
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
            return refused.of_login(&connection.first_login);
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
        if let Err(ended) = self.ages.check_not_ended() {
            return ended;
        }
        let left = reply_by - self.clock.now();
        no_first_reply(connection, &self.server, error.into(), left)
    }
}

/// The command that chooses the database. `None`: it is the first one.
pub(super) fn select(login: &Login) -> Option<Cmd> {
    (login.database != 0).then(|| redis::cmd("SELECT").arg(login.database).clone())
}

/// The fault of a question for the time. A script that asks for it writes nothing.
fn of_time(fault: StoreFault) -> StoreFault {
    let fault = match fault {
        StoreFault::InDoubt(fault) => *fault,
        fault => fault,
    };
    fault.of_command("TIME", FOR_LOCKS)
}

/// The reply to TIME, in µs.
pub(super) fn server_time(value: Value) -> Result<u64, StoreFault> {
    let shown = value_text(&value);
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
                "expected seconds and microseconds as the reply to TIME; got {shown}"
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
