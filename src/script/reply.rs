//! Reads what the scripts reply, with one function per verb. Anything but the promised shape is
//! [`Malformed`]: it never panics, and it never becomes a grant.
//!
//! The file is long on purpose: PROTOCOL.md has all replies in one table, and so has it.

mod fields;
mod inspection;
#[cfg(test)]
mod tests;

use std::time::Duration;

use redis::Value;

use super::outcome::{Grant, Outcome, ScriptReply, Vote};
use super::{Call, Family, Token, Verb};
use crate::key::Key;

pub(crate) use fields::Malformed;
use fields::{
    ParseResult, flag, malformed, micros, more_and_dead_waiters, number, packed_number, plain,
    previous, previous_from, since_of, text, token,
};
use inspection::seen;
pub(crate) use inspection::{InspectedHolder, Inspection};

impl ScriptReply {
    pub(crate) fn parse(call: &Call, value: &Value) -> ParseResult<ScriptReply> {
        let family = call.spec.family;
        let reply = match &call.verb {
            Verb::Acquire { token, .. } => acquire(family, *token, value),
            Verb::Propose { token, .. } => propose(*token, value),
            Verb::Release { token, .. } => release(family, *token, value),
            Verb::Renew { .. } => renew(family, value),
            Verb::Pass { to, .. } => pass(family, *to, value),
            Verb::Sync { newest } => sync(family, *newest, value),
            Verb::Inspect { .. } => inspect(family, value),
            Verb::Vacate | Verb::Delete => vacate(family, value),
            Verb::Lookup { tokens } => match family {
                Family::Mutex => lookup_of_mutex(tokens.len(), value),
                Family::Permit | Family::Quorum => lookup_of_permits(tokens, value),
            },
        }?;
        if reply.next_page != 0 && !call.verb.is_paged() {
            return Err(malformed("0 or 1 for more", value));
        }
        if reply.dead_waiters != 0 && !call.verb.serves_queue() {
            return Err(malformed("no waiters that were passed over", value));
        }
        Ok(reply)
    }
}

impl Grant {
    /// Reads the message of a grant: `token fence granted-at left previous key`. Before it comes the
    /// word `permit` if it is one of permits, else how many others wait. `None` for any other text.
    pub(crate) fn from_message(prefix: &str, message: &str) -> Option<(Grant, Key, Family)> {
        let (first, rest) = message.split_once(' ')?;
        let (family, waiting) = match first {
            "permit" => (Family::Permit, None),
            waiters => (Family::Mutex, Some(plain::<u64>(waiters)? > 0)),
        };
        let mut parts = rest.splitn(6, ' ');
        let token = Token::parse(parts.next()?)?;
        let fence = plain(parts.next()?)?;
        let granted_at = plain(parts.next()?)?;
        let left = Duration::from_micros(plain(parts.next()?)?);
        let previous = previous_from(plain(parts.next()?)?)?;
        let key = Key::from_record(prefix, parts.next()?)?;
        Some((
            Grant {
                token,
                fence,
                granted_at,
                left,
                previous,
                waiting,
            },
            key,
            family,
        ))
    }
}

/// The message `wanted fence key` says that somebody waits behind the grant with that fence, or
/// behind an older one. `None` for any other text.
pub(crate) fn wanted_behind(prefix: &str, message: &str) -> Option<(Key, u64)> {
    let (fence, record) = message.strip_prefix("wanted ")?.split_once(' ')?;
    Some((Key::from_record(prefix, record)?, plain(fence)?))
}

/// R22 (tries among the dead): a try has called the processes that wait for this lock, whose record
/// the message `call key` names. `None` for any other text.
pub(crate) fn called_for(prefix: &str, message: &str) -> Option<Key> {
    Key::from_record(prefix, message.strip_prefix("call ")?)
}

fn acquire(family: Family, token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected =
        "granted, waiting, busy, silent, late, more, queued or kind, each with its fields";
    // The short way.
    if family != Family::Quorum
        && let Value::BulkString(packed) = value
    {
        let grant = packed_grant(family, token, packed);
        let grant = grant.ok_or_else(|| malformed(expected, value))?;
        let now = Some(grant.granted_at);
        return Ok(ScriptReply::of(Outcome::Granted(grant), now));
    }
    let answer = ReplyParts::read(family, expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", fields) => answer.granted(token, fields),
        ("waiting", [ticket, position, left, since, others @ ..]) => {
            let waiting = Outcome::Waiting {
                ticket: number(ticket)?,
                position: number(position)?,
                left: micros(left)?,
                since: number(since)?,
            };
            answer.reply(waiting, others)
        }
        ("busy", [left, rest @ ..]) => {
            let left = micros(left)?;
            let (told, others) = match rest {
                [Value::Int(1), others @ ..] if family == Family::Mutex => (true, others),
                others => (false, others),
            };
            answer.reply(Outcome::Busy { left, told }, others)
        }
        ("silent", []) if family != Family::Quorum => answer.reply(Outcome::Silent, &[]),
        // Only a mutex has a form without the queue's key.
        ("queued", others) if family == Family::Mutex => answer.reply(Outcome::Queued, others),
        _ => answer.one_of(&[Outcome::Late, Outcome::More]),
    }
}

fn propose(token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "granted, busy, outbid, late or kind, each with its fields";
    let answer = ReplyParts::read(Family::Quorum, expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", [fence, at, left, ended, how]) => {
            let vote = Vote::Granted {
                grant: grant(token, [fence, at, left, how])?,
                ended: number(ended)?,
            };
            answer.reply(Outcome::Vote(vote), &[])
        }
        ("busy", [left, fence]) => answer.reply(busy_node(left, fence)?, &[]),
        ("outbid", [fence]) => {
            let fence = number(fence)?;
            answer.reply(Outcome::Vote(Vote::Outbid { fence }), &[])
        }
        _ => answer.one_of(&[Outcome::Late]),
    }
}

fn busy_node(left: &Value, fence: &Value) -> ParseResult<Outcome> {
    let (left, fence) = (micros(left)?, number(fence)?);
    Ok(Outcome::Vote(Vote::Busy { left, fence }))
}

fn release(family: Family, token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "released, late, granted, refused, already, lapsed, forced, lost, unknown, queued \
                    or kind, each with its fields";
    // The short way does not ask for the time.
    if family != Family::Quorum
        && let Value::BulkString(word) = value
        && word == b"released"
    {
        return Ok(ScriptReply::of(Outcome::Released, None));
    }
    let answer = ReplyParts::read(family, expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", fields) => answer.granted(token, fields),
        ("unknown", others) if family != Family::Permit => answer.reply(Outcome::Unknown, others),
        // Only a quorum has no form with one key of several.
        ("queued", others) if family != Family::Quorum => answer.reply(Outcome::Queued, others),
        _ => answer.one_of(&[
            Outcome::Released,
            Outcome::Late,
            Outcome::Refused,
            Outcome::Already,
            Outcome::Lapsed,
            Outcome::Forced,
            Outcome::Lost,
        ]),
    }
}

fn renew(family: Family, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "renewed, gone, late or kind, each with its fields";
    let answer = ReplyParts::read(family, expected, value)?;
    match (answer.status, answer.fields) {
        // Only a node of a quorum may take the lease again, so only its answers say why not.
        ("busy", [left, fence]) if family == Family::Quorum => {
            answer.reply(busy_node(left, fence)?, &[])
        }
        ("renewed", [left, fence, rest @ ..]) => {
            let (waiting, others) = answer.waiting_others(rest)?;
            let renewed = Outcome::Renewed {
                left: micros(left)?,
                fence: number(fence)?,
                waiting: waiting == Some(true),
            };
            answer.reply(renewed, others)
        }
        ("gone", [stored, ended, how, others @ ..]) => {
            let gone = Outcome::Gone {
                stored: number(stored)?,
                ended: number(ended)?,
                how: previous(how)?,
            };
            answer.reply(gone, others)
        }
        _ => answer.one_of(&[Outcome::Late]),
    }
}

fn pass(family: Family, to: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "granted, late, already, lapsed, forced, lost, unknown or kind, each with its \
                    fields";
    let answer = ReplyParts::read(family, expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", fields) => answer.granted(to, fields),
        _ => answer.one_of(&[
            Outcome::Late,
            Outcome::Already,
            Outcome::Lapsed,
            Outcome::Forced,
            Outcome::Lost,
            Outcome::Unknown,
        ]),
    }
}

fn sync(family: Family, newest: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "synced, absent, late or kind, each with its fields";
    let answer = ReplyParts::read(family, expected, value)?;
    let fields = match answer.status {
        "synced" => answer.fields,
        _ => return answer.one_of(&[Outcome::Absent, Outcome::Late]),
    };
    let [
        owner,
        fence,
        at,
        left,
        how,
        entries,
        since,
        known,
        served,
        waited,
        others @ ..,
    ] = fields
    else {
        return Err(malformed(expected, value));
    };
    let entries = number(entries)?;
    // If nobody owns the lock, the numbers are those of its last grant. The token of an owner comes
    // below, in place of this one.
    let last = grant(newest, [fence, at, left, how])?;
    let owner = match text(owner)? {
        "" => None,
        // Permits have no single owner.
        _ if family == Family::Permit => {
            return Err(malformed("no owner, since these are permits", owner));
        }
        _ => Some(Grant {
            token: token(owner)?,
            waiting: Some(entries > 0),
            ..last
        }),
    };
    let synced = Outcome::Synced {
        owner,
        owner_waited_here: flag(waited)?,
        left: last.left,
        since: number(since)?,
        newest_known: flag(known)?,
        served: number(served)?,
    };
    answer.reply(synced, others)
}

fn inspect(family: Family, value: &Value) -> ParseResult<ScriptReply> {
    let answer = ReplyParts::read(family, "seen, absent or kind, each with its fields", value)?;
    match answer.status {
        "seen" => {
            let seen = seen(family, answer.now, answer.fields, value)?;
            answer.reply(Outcome::Inspection(Box::new(seen)), &[])
        }
        "queued" if family == Family::Mutex => answer.reply(Outcome::Queued, answer.fields),
        _ => answer.one_of(&[Outcome::Absent]),
    }
}

fn vacate(family: Family, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "vacated, refused or kind, each with its fields";
    let answer = ReplyParts::read(family, expected, value)?;
    answer.one_of(&[Outcome::Vacated, Outcome::Refused])
}

/// The reply to HMGET: the owner, the manager's stamp, and the record of each token.
fn lookup_of_mutex(tokens: usize, value: &Value) -> ParseResult<ScriptReply> {
    let Value::Array(fields) = value else {
        return Err(malformed("the fields that were asked for", value));
    };
    let [owner, stamp, records @ ..] = &fields[..] else {
        return Err(malformed("the fields that were asked for", value));
    };
    if records.len() != tokens {
        return Err(malformed("a field for each token", value));
    }
    let owner = match owner {
        Value::Nil => None,
        owner => Some(token(owner)?),
    };
    let since = match stamp {
        Value::Nil => 0,
        Value::BulkString(row) => {
            since_of(row).ok_or_else(|| malformed("a stamp of two packed numbers", stamp))?
        }
        _ => return Err(malformed("a stamp", stamp)),
    };
    let is_waiting = |record: &Value| match record {
        Value::Nil => Ok(false),
        record => text(record).map(|_| true),
    };
    let waiting = records.iter().map(is_waiting).collect::<ParseResult<_>>()?;
    let present = Outcome::Present {
        owner,
        since,
        waiting,
    };
    Ok(ScriptReply::of(present, None))
}

fn lookup_of_permits(tokens: &[Token], value: &Value) -> ParseResult<ScriptReply> {
    let expected = "present with an entry for each token, or kind";
    let answer = ReplyParts::read(Family::Permit, expected, value)?;
    let (since, entries) = match (answer.status, answer.fields) {
        ("present", [since, entries @ ..]) if entries.len() == tokens.len() => (since, entries),
        _ => return answer.kind(),
    };
    let mut waiting = Vec::new();
    let mut grants = Vec::new();
    for (token, entry) in tokens.iter().zip(entries) {
        if let Value::Array(fields) = entry {
            let [fence, at, left, how] = &fields[..] else {
                return Err(malformed("a grant of four fields", entry));
            };
            grants.push(grant(*token, [fence, at, left, how])?);
            // The token is known, and its grant says the rest.
            waiting.push(true);
        } else {
            waiting.push(flag(entry)?);
        }
    }
    let outcome = Outcome::Present {
        owner: None,
        since: number(since)?,
        waiting,
    };
    Ok(ScriptReply {
        grants,
        ..answer.reply(outcome, &[])?
    })
}

/// The parts that the replies of all scripts have in common. The fields are those of the status,
/// then come grants to others.
struct ReplyParts<'a> {
    family: Family,
    status: &'a str,
    now: u64,
    more: bool,
    dead_waiters: u64,
    next_page: u64,
    fields: &'a [Value],
    /// The replies that the script may give, and its actual reply.
    expected: &'static str,
    value: &'a Value,
}

impl<'a> ReplyParts<'a> {
    fn read(family: Family, expected: &'static str, value: &'a Value) -> ParseResult<Self> {
        let Value::Array(parts) = value else {
            return Err(malformed(expected, value));
        };
        let [status, now, more, fields @ ..] = &parts[..] else {
            return Err(malformed(expected, value));
        };
        // Where the next page begins is a text, since it has 64 bits.
        let (more, dead_waiters, next_page) = match more {
            Value::Int(_) => {
                let (more, dead_waiters) = more_and_dead_waiters(more)?;
                (more, dead_waiters, 0)
            }
            text_of_page => {
                let next_page = plain(text(text_of_page)?)
                    .ok_or_else(|| malformed("where a page begins", text_of_page))?;
                (next_page != 0, 0, next_page)
            }
        };
        Ok(ReplyParts {
            family,
            status: text(status)?,
            now: number(now)?,
            more,
            dead_waiters,
            next_page,
            fields,
            expected,
            value,
        })
    }

    /// The reply with this outcome, and with the grants to others that follow the fields.
    fn reply(&self, outcome: Outcome, others: &[Value]) -> ParseResult<ScriptReply> {
        let mut grants = Vec::new();
        let mut rest = others;
        while let [of, fields @ ..] = rest {
            let grant;
            (grant, rest) = self.grant(token(of)?, fields)?;
            grants.push(grant);
        }
        Ok(ScriptReply {
            now: Some(self.now),
            more: self.more,
            dead_waiters: self.dead_waiters,
            next_page: self.next_page,
            outcome,
            grants,
        })
    }

    /// The reply that grants the lock to this token.
    fn granted(&self, token: Token, fields: &[Value]) -> ParseResult<ScriptReply> {
        let (grant, others) = self.grant(token, fields)?;
        self.reply(Outcome::Granted(grant), others)
    }

    /// The grant at the head of the fields, and the fields behind it.
    fn grant<'f>(&self, of: Token, fields: &'f [Value]) -> ParseResult<(Grant, &'f [Value])> {
        let [fence, at, left, how, rest @ ..] = fields else {
            return Err(malformed(self.expected, self.value));
        };
        let grant = grant(of, [fence, at, left, how])?;
        let (waiting, rest) = self.waiting_others(rest)?;
        Ok((Grant { waiting, ..grant }, rest))
    }

    /// Whether somebody waits, if the name is a mutex: then the fields go on with the number of
    /// waiters. And the fields behind that number.
    fn waiting_others<'f>(&self, fields: &'f [Value]) -> ParseResult<(Option<bool>, &'f [Value])> {
        match (self.family, fields) {
            (Family::Mutex, [waiters, rest @ ..]) => Ok((Some(number(waiters)? > 0), rest)),
            (Family::Mutex, []) => Err(malformed(self.expected, self.value)),
            _ => Ok((None, fields)),
        }
    }

    /// The reply with the outcome among these whose word the status is, and with the grants to others
    /// behind it. Every script may also reply what kind the name is.
    fn one_of(&self, outcomes: &[Outcome]) -> ParseResult<ScriptReply> {
        match outcomes.iter().find(|one| one.word() == self.status) {
            Some(outcome) => self.reply(outcome.clone(), self.fields),
            None => self.kind(),
        }
    }

    /// The one status that every script may reply.
    fn kind(&self) -> ParseResult<ScriptReply> {
        match (self.status, self.fields) {
            ("kind", [kind, others @ ..]) => {
                self.reply(Outcome::Kind(text(kind)?.to_owned()), others)
            }
            _ => Err(malformed(self.expected, self.value)),
        }
    }
}

/// The lock was granted just now. For a mutex, now is its fence.
fn packed_grant(family: Family, token: Token, packed: &[u8]) -> Option<Grant> {
    let (now, rest) = packed.split_first_chunk()?;
    let (left, rest) = rest.split_first_chunk()?;
    let (&how, rest) = rest.split_first()?;
    let now = packed_number(now)?;
    let fence = match family {
        Family::Mutex if rest.is_empty() => now,
        // A reader has the fence of the writer before it.
        Family::Permit => packed_number(rest.try_into().ok()?)?,
        _ => return None,
    };
    Some(Grant {
        token,
        fence,
        granted_at: now,
        left: Duration::from_micros(packed_number(left)?),
        previous: previous_from(i64::from(how.cast_signed()))?,
        // A mutex has a short way while nobody waits.
        waiting: (family == Family::Mutex).then_some(false),
    })
}

fn grant(token: Token, [fence, granted_at, left, how]: [&Value; 4]) -> ParseResult<Grant> {
    Ok(Grant {
        token,
        fence: number(fence)?,
        granted_at: number(granted_at)?,
        left: micros(left)?,
        previous: previous(how)?,
        waiting: None,
    })
}
