//! Reads what the scripts reply, with one function per verb. Anything but the promised shape is
//! [`Malformed`]: it never panics, and it never becomes a grant.
//!
//! The file is long on purpose: the functions are read side by side with the replies that
//! PROTOCOL.md lists for each verb.

mod fields;
mod inspection;

use std::time::Duration;

use redis::Value;

use super::{Call, Family, Token, Verb};
use crate::key::Key;
use crate::loss::PreviousHolder;

pub(crate) use fields::Malformed;
use fields::{
    ParseResult, flag, malformed, micros, number, plain, previous, previous_from, since_of, text,
    token,
};
use inspection::seen;
pub(crate) use inspection::{InspectedHolder, Inspection};

/// The reply of one of our scripts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptReply {
    /// The server's time in µs, if the reply has it.
    pub(crate) now: Option<u64>,
    /// There is more of the same to do: call again at once.
    pub(crate) more: bool,
    /// Where the next page of holders begins; 0 if there is none. Only for the verbs that take the
    /// holders of permits page by page.
    pub(crate) next_page: u64,
    pub(crate) outcome: Outcome,
    /// Other waiters of the caller's manager that were granted a lock in the same step.
    pub(crate) grants: Vec<Grant>,
}

/// A token became an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) fence: u64,
    /// Server time in µs.
    pub(crate) granted_at: u64,
    /// The time that was left when the server wrote this.
    pub(crate) left: Duration,
    pub(crate) previous: PreviousHolder,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Granted(Grant),
    Waiting {
        ticket: u64,
        position: u64,
        left: Duration,
        since: u64,
    },
    Busy {
        left: Duration,
    },
    /// The answer of one node of a quorum. A majority of them makes an outcome.
    Vote(Vote),
    Late,
    More,
    /// R11 (missing keys): this record needs both keys.
    Queued,
    /// The record is of this kind and version, not of ours.
    Kind(String),
    Released,
    Refused,
    Already,
    Lapsed,
    Forced,
    Lost,
    Unknown,
    Renewed {
        left: Duration,
        fence: u64,
    },
    Gone {
        stored: u64,
        ended: u64,
        how: PreviousHolder,
    },
    Synced {
        owner: Option<Grant>,
        /// The owner waited in the queue, and it is this manager's.
        owner_waited_here: bool,
        left: Duration,
        since: u64,
        newest_known: bool,
        served: u64,
    },
    Absent,
    /// Nobody uses the name, and it can become any kind of lock.
    Vacated,
    Inspection(Box<Inspection>),
    /// The answer to a lookup: the owner, the manager's row of stamps, and the waiting tokens.
    Present {
        owner: Option<Token>,
        since: u64,
        waiting: Vec<bool>,
    },
}

/// How one node of a quorum answers a proposal, or a renewal that it cannot grant now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The token has the name on this node. `ended` is the fence of the last guard whose end the
    /// node has seen, and the grant says how that guard ended.
    Granted { grant: Grant, ended: u64 },
    /// Another token has it, or it cools. Nothing changed.
    Busy { left: Duration, fence: u64 },
    /// It is free, and the node has granted this fence, which is not below the proposed one. Nothing
    /// changed.
    Outbid { fence: u64 },
}

impl Outcome {
    /// The family of the kind that the name is, if that is not the caller's own.
    pub(crate) fn other_family(&self, own: Family) -> Option<Family> {
        let Outcome::Kind(kind) = self else {
            return None;
        };
        Family::of_kind(kind).filter(|family| *family != own)
    }
}

impl ScriptReply {
    pub(crate) fn parse(call: &Call, value: &Value) -> ParseResult<ScriptReply> {
        let family = call.spec.family;
        let reply = match &call.verb {
            Verb::Acquire { token, .. } => acquire(family, *token, value),
            Verb::Propose { token, .. } => propose(*token, value),
            Verb::Release { token, .. } => release(family, *token, value),
            Verb::Renew { .. } => renew(family, value),
            Verb::Sync { newest } => sync(family, *newest, value),
            Verb::Inspect { .. } => inspect(family, value),
            Verb::Vacate => vacate(value),
            Verb::Lookup { tokens } => match family {
                Family::Mutex => lookup_of_mutex(tokens.len(), value),
                Family::Permit | Family::Quorum => lookup_of_permits(tokens, value),
            },
        }?;
        if reply.next_page != 0 && !call.verb.is_paged() {
            return Err(malformed("0 or 1 for more", value));
        }
        Ok(reply)
    }
}

impl Grant {
    /// Reads the message of a grant: `token fence granted-at left previous key`, with the word
    /// `permit` before it if it is one of permits. `None` for any other text.
    pub(crate) fn from_message(prefix: &str, message: &str) -> Option<(Grant, Key, Family)> {
        let (family, message) = match message.strip_prefix("permit ") {
            Some(rest) => (Family::Permit, rest),
            None => (Family::Mutex, message),
        };
        let mut parts = message.splitn(6, ' ');
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
            },
            key,
            family,
        ))
    }
}

fn acquire(family: Family, token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "granted, waiting, busy, late, more, queued or kind, each with its fields";
    // The short way of a mutex. The grant was made now, and now is its fence.
    if family == Family::Mutex
        && let Value::Array(parts) = value
        && let [status, now, left, how] = &parts[..]
        && text(status)? == "granted"
    {
        let grant = grant(token, [now, now, left, how])?;
        return Ok(ScriptReply {
            now: Some(grant.granted_at),
            more: false,
            next_page: 0,
            outcome: Outcome::Granted(grant),
            grants: Vec::new(),
        });
    }
    let answer = ReplyParts::read(expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", [fence, at, left, how, others @ ..]) => {
            let grant = grant(token, [fence, at, left, how])?;
            answer.reply(Outcome::Granted(grant), others)
        }
        ("waiting", [ticket, position, left, since, others @ ..]) => {
            let waiting = Outcome::Waiting {
                ticket: number(ticket)?,
                position: number(position)?,
                left: micros(left)?,
                since: number(since)?,
            };
            answer.reply(waiting, others)
        }
        ("busy", [left, others @ ..]) => {
            let left = micros(left)?;
            answer.reply(Outcome::Busy { left }, others)
        }
        ("late", others) => answer.reply(Outcome::Late, others),
        ("more", others) => answer.reply(Outcome::More, others),
        // Only a mutex has a form without the queue's key.
        ("queued", others) if family == Family::Mutex => answer.reply(Outcome::Queued, others),
        _ => answer.kind(),
    }
}

fn propose(token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "granted, busy, outbid, late or kind, each with its fields";
    let answer = ReplyParts::read(expected, value)?;
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
        ("late", others) => answer.reply(Outcome::Late, others),
        _ => answer.kind(),
    }
}

fn busy_node(left: &Value, fence: &Value) -> ParseResult<Outcome> {
    let (left, fence) = (micros(left)?, number(fence)?);
    Ok(Outcome::Vote(Vote::Busy { left, fence }))
}

fn release(family: Family, token: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "released, granted, refused, already, lapsed, forced, lost, unknown, queued or \
                    kind, each with its fields";
    // The short way of a mutex does not ask for the time.
    if family == Family::Mutex
        && let Value::BulkString(word) = value
        && word == b"released"
    {
        return Ok(ScriptReply {
            now: None,
            more: false,
            next_page: 0,
            outcome: Outcome::Released,
            grants: Vec::new(),
        });
    }
    let answer = ReplyParts::read(expected, value)?;
    match (answer.status, answer.fields) {
        ("granted", [fence, at, left, how, others @ ..]) => {
            let grant = grant(token, [fence, at, left, how])?;
            answer.reply(Outcome::Granted(grant), others)
        }
        ("released", others) => answer.reply(Outcome::Released, others),
        ("refused", others) => answer.reply(Outcome::Refused, others),
        ("already", others) => answer.reply(Outcome::Already, others),
        ("lapsed", others) => answer.reply(Outcome::Lapsed, others),
        ("forced", others) => answer.reply(Outcome::Forced, others),
        ("lost", others) => answer.reply(Outcome::Lost, others),
        ("unknown", others) if family != Family::Permit => answer.reply(Outcome::Unknown, others),
        // Only a mutex has a form without the queue's key.
        ("queued", others) if family == Family::Mutex => answer.reply(Outcome::Queued, others),
        _ => answer.kind(),
    }
}

fn renew(family: Family, value: &Value) -> ParseResult<ScriptReply> {
    let answer = ReplyParts::read("renewed, gone or kind, each with its fields", value)?;
    match (answer.status, answer.fields) {
        // Only a node of a quorum may take the lease again, so only its answers say why not.
        ("busy", [left, fence]) if family == Family::Quorum => {
            answer.reply(busy_node(left, fence)?, &[])
        }
        ("late", others) if family == Family::Quorum => answer.reply(Outcome::Late, others),
        ("renewed", [left, fence, others @ ..]) => {
            let renewed = Outcome::Renewed {
                left: micros(left)?,
                fence: number(fence)?,
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
        _ => answer.kind(),
    }
}

fn sync(family: Family, newest: Token, value: &Value) -> ParseResult<ScriptReply> {
    let expected = "synced, absent, late or kind, each with its fields";
    let answer = ReplyParts::read(expected, value)?;
    let fields = match answer.status {
        "synced" => answer.fields,
        "absent" => return answer.reply(Outcome::Absent, answer.fields),
        "late" => return answer.reply(Outcome::Late, answer.fields),
        _ => return answer.kind(),
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
    number(entries)?;
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
    let answer = ReplyParts::read("seen, absent or kind, each with its fields", value)?;
    match answer.status {
        "seen" => {
            let seen = seen(family, answer.fields, value)?;
            answer.reply(Outcome::Inspection(Box::new(seen)), &[])
        }
        "absent" => answer.reply(Outcome::Absent, answer.fields),
        _ => answer.kind(),
    }
}

fn vacate(value: &Value) -> ParseResult<ScriptReply> {
    let answer = ReplyParts::read("vacated or kind, each with its fields", value)?;
    match answer.status {
        "vacated" => answer.reply(Outcome::Vacated, answer.fields),
        _ => answer.kind(),
    }
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
    Ok(ScriptReply {
        now: None,
        more: false,
        next_page: 0,
        outcome: Outcome::Present {
            owner,
            since,
            waiting,
        },
        grants: Vec::new(),
    })
}

fn lookup_of_permits(tokens: &[Token], value: &Value) -> ParseResult<ScriptReply> {
    let answer = ReplyParts::read("present with an entry for each token, or kind", value)?;
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
        now: Some(answer.now),
        more: answer.more,
        next_page: answer.next_page,
        outcome,
        grants,
    })
}

/// The parts that the replies of all scripts have in common. The fields are those of the status,
/// then come grants to others.
struct ReplyParts<'a> {
    status: &'a str,
    now: u64,
    more: bool,
    next_page: u64,
    fields: &'a [Value],
    /// The replies that the script may give, and its actual reply.
    expected: &'static str,
    value: &'a Value,
}

impl<'a> ReplyParts<'a> {
    fn read(expected: &'static str, value: &'a Value) -> ParseResult<ReplyParts<'a>> {
        let Value::Array(parts) = value else {
            return Err(malformed(expected, value));
        };
        let [status, now, more, fields @ ..] = &parts[..] else {
            return Err(malformed(expected, value));
        };
        // Where the next page begins is a text, since it has 64 bits.
        let next_page = match more {
            Value::Int(_) => 0,
            text_of_page => plain(text(text_of_page)?)
                .ok_or_else(|| malformed("where a page begins", text_of_page))?,
        };
        Ok(ReplyParts {
            status: text(status)?,
            now: number(now)?,
            more: next_page != 0 || matches!(more, Value::Int(_)) && flag(more)?,
            next_page,
            fields,
            expected,
            value,
        })
    }

    /// The reply with this outcome, and with the grants to others that follow the fields.
    fn reply(&self, outcome: Outcome, others: &[Value]) -> ParseResult<ScriptReply> {
        let grants = others.chunks(5).map(|fields| match fields {
            [of, fence, at, left, how] => grant(token(of)?, [fence, at, left, how]),
            _ => Err(malformed("grants of five fields each", self.value)),
        });
        Ok(ScriptReply {
            now: Some(self.now),
            more: self.more,
            next_page: self.next_page,
            outcome,
            grants: grants.collect::<ParseResult<_>>()?,
        })
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

fn grant(token: Token, [fence, granted_at, left, how]: [&Value; 4]) -> ParseResult<Grant> {
    Ok(Grant {
        token,
        fence: number(fence)?,
        granted_at: number(granted_at)?,
        left: micros(left)?,
        previous: previous(how)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{LockSpec, Mode};

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn token() -> Token {
        Token::parse(TOKEN).expect("a token")
    }

    /// Parses a reply to a call on a mutex. A bar ends a line.
    fn parse(verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
        parse_as(LockSpec::MUTEX, verb, reply)
    }

    fn parse_of_permits(verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
        parse_as(LockSpec::any(Family::Permit), verb, reply)
    }

    fn parse_as(spec: LockSpec, verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
        let key = Key::new("fairlock", "n").expect("a good name");
        let value =
            redis::parse_redis_value(reply.replace('|', "\r\n").as_bytes()).expect("a value");
        ScriptReply::parse(&Call { spec, key, verb }, &value)
    }

    fn acquire() -> Verb {
        Verb::Acquire {
            token: token(),
            may_wait: true,
            params: "".into(),
        }
    }

    fn release() -> Verb {
        Verb::Release {
            token: token(),
            fence: 1,
            mode: Mode::Used,
        }
    }

    fn renewal() -> Verb {
        Verb::Renew {
            token: token(),
            fence: 1,
            params: "".into(),
        }
    }

    fn lookup() -> Verb {
        Verb::Lookup {
            tokens: vec![token()],
        }
    }

    #[test]
    fn malformed_replies_to_acquire_and_release_are_refused() {
        let released = |answer: &str| parse(release(), answer);
        assert!(
            released("$8|released|")
                .is_ok_and(|reply| reply.now.is_none() && reply.outcome == Outcome::Released)
        );
        let granted = |answer: &str| parse(acquire(), answer);
        let short = Grant {
            token: token(),
            fence: 7,
            granted_at: 7,
            left: Duration::from_micros(5),
            previous: PreviousHolder::Lapsed,
        };
        assert!(
            granted("*4|+granted|:7|:5|:1|")
                .is_ok_and(|reply| reply.outcome == Outcome::Granted(short))
        );
        assert!(
            granted("*4|+granted|:7|:5|:3|").is_err() && granted("*4|+waiting|:7|:5|:1|").is_err()
        );
        assert!(released("$7|already|").is_err() && parse(renewal(), "$8|released|").is_err());
    }

    #[test]
    fn malformed_replies_to_renew_and_sync_are_refused() {
        let renewed = |more: u8| parse(renewal(), &format!("*5|+renewed|:7|:{more}|:1|:1|"));
        assert!(
            renewed(0).is_ok() && renewed(1).is_ok_and(|reply| reply.more) && renewed(2).is_err()
        );
        let synced = |entries: &str, known: u8| {
            let fields = format!("+{TOKEN}|:1|:1|:1|:0|{entries}|:1|:{known}|:1|:0");
            parse(
                Verb::Sync { newest: token() },
                &format!("*13|+synced|:7|:0|{fields}|"),
            )
        };
        assert!(synced(":1", 1).is_ok() && synced("+1", 1).is_err() && synced(":1", 2).is_err());
    }

    #[test]
    fn malformed_votes_are_refused() {
        let parse = |verb, reply| parse_as(LockSpec::QUORUM, verb, reply);
        let propose = || Verb::Propose {
            token: token(),
            fence: 1,
            params: "".into(),
        };
        for good in [
            "*8|+granted|:7|:0|:1|:7|:5|:0|:-1|",
            "*5|+busy|:7|:0|:5|:1|",
            "*4|+outbid|:7|:0|:1|",
            "*3|+late|:7|:0|",
        ] {
            assert!(parse(propose(), good).is_ok(), "{good}");
        }
        for bad in [
            "*4|+granted|:7|:5|:1|",
            "*7|+granted|:7|:0|:1|:7|:5|:0|",
            "*5|+outbid|:7|:0|:1|:1|",
            "*5|+busy|:7|:0|:-5|:1|",
            "*3|+queued|:7|:0|",
        ] {
            assert!(parse(propose(), bad).is_err(), "{bad}");
        }
        let busy = "*5|+busy|:7|:0|:5|:1|";
        assert!(parse(renewal(), busy).is_ok());
        assert!(parse_as(LockSpec::MUTEX, renewal(), busy).is_err());
    }

    #[test]
    fn malformed_replies_to_lookup_are_refused() {
        let looked_up = |owner: &str, row: &str, record: &str| {
            parse(
                lookup(),
                &format!("*3|{owner}|${}|{row}|{record}|", row.len()),
            )
        };
        let owner = format!("+{TOKEN}");
        // 2 and 2, 2 and half of something, 2 and nothing.
        let two = "\0\0\0\0\0\0\0@";
        let good = two.repeat(2);
        let half = format!("{two}\0\0\0\0\0\0\0?");
        assert!(
            looked_up(&owner, &good, "$-1").is_ok() && looked_up("$-1", &good, "+record").is_ok()
        );
        assert!(looked_up("+somebody", &good, "$-1").is_err());
        assert!(looked_up(&owner, two, "$-1").is_err() && looked_up(&owner, &half, "$-1").is_err());
        assert!(
            looked_up(&owner, "5 7", "$-1").is_err() && looked_up(&owner, &good, ":1").is_err()
        );
    }

    #[test]
    fn malformed_replies_about_permits_are_refused() {
        let released = |answer: &str| parse_of_permits(release(), answer);
        assert!(released("*3|+already|:7|:0|").is_ok());
        for answer in ["$8|released|", "*3|+unknown|:7|:0|", "*3|+queued|:7|:0|"] {
            assert!(released(answer).is_err(), "{answer}");
        }
        let granted = |answer: &str| parse_of_permits(acquire(), answer);
        assert!(
            granted("*7|+granted|:7|:0|:7|:7|:5|:1|").is_ok()
                && granted("*4|+granted|:7|:5|:1|").is_err()
        );
        let synced = |owner: &str| {
            parse_of_permits(
                Verb::Sync { newest: token() },
                &format!("*13|+synced|:7|:0|+{owner}|:1|:1|:1|:0|:1|:1|:1|:1|:0|"),
            )
        };
        assert!(synced("").is_ok() && synced(TOKEN).is_err());
    }

    #[test]
    fn malformed_lookups_of_permits_are_refused() {
        let looked_up =
            |tokens: &str| parse_of_permits(lookup(), &format!("*5|+present|:7|:0|:5|{tokens}|"));
        let holds = looked_up("*4|:9|:5|:1000|:0").expect("it holds");
        assert_eq!(
            holds
                .grants
                .iter()
                .map(|grant| (grant.token, grant.fence))
                .collect::<Vec<_>>(),
            [(token(), 9)]
        );
        assert!(
            looked_up(":1").is_ok_and(|reply| reply.grants.is_empty()) && looked_up(":0").is_ok()
        );
        assert!(
            looked_up(":2").is_err()
                && looked_up("*3|:9|:5|:1000").is_err()
                && looked_up("$-1").is_err()
        );
    }

    #[test]
    fn malformed_inspections_of_permits_are_refused() {
        let seen = |count: u8, holder: &str| {
            let end = format!(":1000|:0|:2|+{holder}|");
            parse_of_permits(
                Verb::Inspect {
                    waiters: 9,
                    from: 0,
                },
                &format!("*11|+seen|:7|:0|+semaphore/1 5|:9|:0|:{count}|{end}"),
            )
        };
        let good = "semaphore/1 5 9 0 5 m 1000 0 0 2 host";
        let Ok(ScriptReply {
            outcome: Outcome::Inspection(inspection),
            ..
        }) = seen(1, good)
        else {
            panic!("it is good")
        };
        let [holder] = &inspection.holders[..] else {
            panic!("{inspection:?}")
        };
        assert_eq!((holder.fence, holder.granted_at, holder.permits), (9, 5, 2));
        assert!(
            seen(2, good).is_err()
                && seen(1, "semaphore/1 5 x 0 5 m").is_err()
                && seen(1, "semaphore/1").is_err()
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        let good = format!("{TOKEN} 7 5 1000 -1 fairlock:{{a name}}");
        let read = |message: &str| Grant::from_message("fairlock", message);
        assert!(
            read(&good).is_some_and(|(grant, key, _)| grant.fence == 7 && &*key.name == "a name")
        );
        let permit = format!("permit {good}");
        assert!(
            read(&permit)
                .is_some_and(|(grant, _, family)| grant.fence == 7 && family == Family::Permit)
        );
        assert!(read(&format!("permit {permit}")).is_none());
        let upper = TOKEN.to_uppercase();
        for (from, to) in [
            (" 7", " +7"),
            (" 7", " 07"),
            (" 7", "  7"),
            ("-1", "3"),
            ("-1", "-0"),
            (TOKEN, &*upper),
        ] {
            assert!(
                read(&good.replacen(from, to, 1)).is_none(),
                "{to:?} for {from:?}"
            );
        }
    }
}
