//! What the scripts answer. Whatever does not have the promised shape is [`Malformed`]: never a panic,
//! never a grant.

use std::str::FromStr;
use std::time::Duration;

use redis::Value;

use super::{Call, Family, Token, Verb};
use crate::key::Key;
use crate::loss::PreviousHolder;

/// A reply that does not have the shape that its script promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a reply of an unexpected shape: {0}")]
pub(crate) struct Malformed(String);

type Result<T> = std::result::Result<T, Malformed>;

/// An answer of one of our scripts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    /// The server's time in µs, when the reply has it.
    pub(crate) now: Option<u64>,
    /// There is more of the same to do: call again at once.
    pub(crate) more: bool,
    pub(crate) outcome: Outcome,
    /// Other waiters of the caller's manager who were handed a lock in the same step.
    pub(crate) grants: Vec<Grant>,
}

/// A token became an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) fence: u64,
    /// Server time in µs.
    pub(crate) granted_at: u64,
    /// Time left when this was said.
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
    Late,
    More,
    /// The single-key form does not do here (R11).
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
        /// The owner stood in the queue, for this manager.
        owner_waited_here: bool,
        left: Duration,
        since: u64,
        newest_known: bool,
        served: u64,
    },
    Absent,
    Seen(Box<Seen>),
    /// Of a lookup: the owner, the manager's row of stamps, and which of the tokens wait.
    Present {
        owner: Option<Token>,
        since: u64,
        waiting: Vec<bool>,
    },
}

/// What `inspect` saw.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    /// As the record has it.
    pub(crate) kind: String,
    pub(crate) fence: u64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: u64,
    pub(crate) queue: Vec<String>,
}

/// One who holds what was looked at, or whose lease cools.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Holder {
    pub(crate) cools: bool,
    pub(crate) fence: u64,
    pub(crate) granted_at: u64,
    pub(crate) left: Duration,
    /// How many permits it has; of a mutex 1.
    pub(crate) permits: u32,
    pub(crate) request: String,
}

impl Reply {
    pub(crate) fn parse(call: &Call, value: &Value) -> Result<Reply> {
        if let (Verb::Lookup { tokens }, Family::Mutex) = (&call.verb, call.spec.family) {
            return lookup(tokens.len(), value);
        }
        let short = |now, outcome| {
            Ok(Reply {
                now,
                more: false,
                outcome,
                grants: Vec::new(),
            })
        };
        // Scripts about permits have no short ways, no form without the queue's key, and no one owner.
        let of_mutex = call.spec.family == Family::Mutex;
        let parts = match (&call.verb, value) {
            (Verb::Release { .. }, Value::BulkString(word)) if word == b"released" && of_mutex => {
                return short(None, Outcome::Released);
            }
            (_, Value::Array(parts)) => parts,
            _ => return Err(malformed(value)),
        };
        if let (Verb::Acquire { token, .. }, [status, now, left, how]) = (&call.verb, &parts[..])
            && of_mutex
            && text(status)? == "granted"
        {
            return short(
                Some(number(now)?),
                Outcome::Granted(grant(*token, now, now, left, how)?),
            );
        }
        let [status, now, more, said @ ..] = &parts[..] else {
            return Err(malformed(value));
        };
        let (status, now, more) = (text(status)?, number(now)?, flag(more)?);
        let own = match &call.verb {
            Verb::Acquire { token, .. } | Verb::Release { token, .. } | Verb::Renew { token } => {
                Some(*token)
            }
            _ => None,
        };
        // What the status says comes first, the rest is about others.
        let (outcome, rest) = match (&call.verb, status.as_str(), said) {
            (
                Verb::Acquire { .. } | Verb::Release { .. },
                "granted",
                [fence, at, left, how, rest @ ..],
            ) => {
                let token = own.ok_or_else(|| malformed(value))?;
                (Outcome::Granted(grant(token, fence, at, left, how)?), rest)
            }
            (Verb::Acquire { .. }, "waiting", [ticket, position, left, since, rest @ ..]) => {
                let (ticket, position) = (number(ticket)?, number(position)?);
                (
                    Outcome::Waiting {
                        ticket,
                        position,
                        left: micros(left)?,
                        since: number(since)?,
                    },
                    rest,
                )
            }
            (Verb::Acquire { .. }, "busy", [left, rest @ ..]) => (
                Outcome::Busy {
                    left: micros(left)?,
                },
                rest,
            ),
            (Verb::Acquire { .. } | Verb::Sync { .. }, "late", rest) => (Outcome::Late, rest),
            (Verb::Acquire { .. }, "more", rest) => (Outcome::More, rest),
            (Verb::Acquire { .. } | Verb::Release { .. }, "queued", rest) if of_mutex => {
                (Outcome::Queued, rest)
            }
            (_, "kind", [kind, rest @ ..]) => (Outcome::Kind(text(kind)?), rest),
            (Verb::Release { .. }, "released", rest) => (Outcome::Released, rest),
            (Verb::Release { .. }, "refused", rest) => (Outcome::Refused, rest),
            (Verb::Release { .. }, "already", rest) => (Outcome::Already, rest),
            (Verb::Release { .. }, "lapsed", rest) => (Outcome::Lapsed, rest),
            (Verb::Release { .. }, "forced", rest) => (Outcome::Forced, rest),
            (Verb::Release { .. }, "lost", rest) => (Outcome::Lost, rest),
            (Verb::Release { .. }, "unknown", rest) if of_mutex => (Outcome::Unknown, rest),
            (Verb::Renew { .. }, "renewed", [left, fence, rest @ ..]) => (
                Outcome::Renewed {
                    left: micros(left)?,
                    fence: number(fence)?,
                },
                rest,
            ),
            (Verb::Renew { .. }, "gone", [stored, ended, how, rest @ ..]) => (
                Outcome::Gone {
                    stored: number(stored)?,
                    ended: number(ended)?,
                    how: previous(how)?,
                },
                rest,
            ),
            (
                Verb::Sync { newest },
                "synced",
                [
                    owner,
                    fence,
                    at,
                    left,
                    how,
                    entries,
                    since,
                    known,
                    served,
                    ours,
                    rest @ ..,
                ],
            ) => {
                number(entries)?;
                // Of a lock that nobody owns, the last one.
                let told = grant(*newest, fence, at, left, how)?;
                let owner = match text(owner)?.as_str() {
                    "" => None,
                    _ if !of_mutex => return Err(malformed(value)),
                    token => Some(Grant {
                        token: Token::parse(token).ok_or_else(|| malformed(value))?,
                        ..told
                    }),
                };
                let synced = Outcome::Synced {
                    owner,
                    owner_waited_here: flag(ours)?,
                    left: told.left,
                    since: number(since)?,
                    newest_known: flag(known)?,
                    served: number(served)?,
                };
                (synced, rest)
            }
            (Verb::Sync { .. } | Verb::Inspect { .. }, "absent", rest) => (Outcome::Absent, rest),
            (Verb::Inspect { .. }, "seen", said) => {
                let seen = match call.spec.family {
                    Family::Mutex => seen_mutex(said),
                    Family::Permit => seen_permits(said),
                };
                (
                    Outcome::Seen(Box::new(seen?.ok_or_else(|| malformed(value))?)),
                    &[][..],
                )
            }
            (Verb::Lookup { tokens }, "present", [since, told @ ..])
                if told.len() == tokens.len() =>
            {
                let (mut waiting, mut holding) = (Vec::new(), Vec::new());
                for (token, told) in tokens.iter().zip(told) {
                    if let Value::Array(told) = told {
                        let [fence, at, left, how] = &told[..] else {
                            return Err(malformed(value));
                        };
                        holding.push(grant(*token, fence, at, left, how)?);
                        // It is not gone; what it has, the grant says.
                        waiting.push(true);
                    } else {
                        waiting.push(flag(told)?);
                    }
                }
                let outcome = Outcome::Present {
                    owner: None,
                    since: number(since)?,
                    waiting,
                };
                return Ok(Reply {
                    now: Some(now),
                    more,
                    outcome,
                    grants: holding,
                });
            }
            _ => return Err(malformed(value)),
        };
        let mut grants = Vec::new();
        for chunk in rest.chunks(5) {
            let [token, fence, at, left, how] = chunk else {
                return Err(malformed(value));
            };
            let token = Token::parse(&text(token)?).ok_or_else(|| malformed(value))?;
            grants.push(grant(token, fence, at, left, how)?);
        }
        Ok(Reply {
            now: Some(now),
            more,
            outcome,
            grants,
        })
    }
}

impl Grant {
    /// The message of a grant, `token fence granted-at left previous key`, of permits with the word `permit` before it;
    /// `None` for any other text.
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

fn seen_mutex(said: &[Value]) -> Result<Option<Seen>> {
    let [
        owner,
        fence,
        at,
        left,
        how,
        request,
        label,
        waiters,
        queue @ ..,
    ] = said
    else {
        return Ok(None);
    };
    previous(how)?;
    let (fence, left, cools) = (number(fence)?, micros(left)?, text(owner)?.is_empty());
    let request = format!("{} {}", text(request)?, text(label)?);
    let holder = Holder {
        cools,
        fence,
        granted_at: number(at)?,
        left,
        permits: 1,
        request,
    };
    // One that is free has nobody.
    let holders = if cools && left.is_zero() {
        Vec::new()
    } else {
        vec![holder]
    };
    let (kind, queue) = (
        "mutex/1".to_owned(),
        queue.iter().map(text).collect::<Result<_>>()?,
    );
    Ok(Some(Seen {
        kind,
        fence,
        holders,
        waiters: number(waiters)?,
        queue,
    }))
}

fn seen_permits(said: &[Value]) -> Result<Option<Seen>> {
    let [kind, fence, waiters, count, said @ ..] = said else {
        return Ok(None);
    };
    let count = number(count)?
        .checked_mul(4)
        .and_then(|count| usize::try_from(count).ok());
    let Some((told, queue)) = count.and_then(|count| said.split_at_checked(count)) else {
        return Ok(None);
    };
    let mut holders = Vec::new();
    for holder in told.chunks(4) {
        let [left, cools, permits, said] = holder else {
            return Ok(None);
        };
        // `kind capacity fence`, and the rest as of a waiter.
        let said = text(said)?;
        let mut parts = said.splitn(4, ' ').skip(2);
        let (Some(fence), Some(request)) = (parts.next().and_then(plain), parts.next()) else {
            return Ok(None);
        };
        let Some(granted_at) = request.split(' ').nth(1).and_then(plain) else {
            return Ok(None);
        };
        let Ok(permits) = number(permits)?.try_into() else {
            return Ok(None);
        };
        let (cools, left, request) = (flag(cools)?, micros(left)?, request.to_owned());
        holders.push(Holder {
            cools,
            fence,
            granted_at,
            left,
            permits,
            request,
        });
    }
    let queue = queue.iter().map(text).collect::<Result<_>>()?;
    Ok(Some(Seen {
        kind: text(kind)?,
        fence: number(fence)?,
        holders,
        waiters: number(waiters)?,
        queue,
    }))
}

fn lookup(asked: usize, value: &Value) -> Result<Reply> {
    let Value::Array(fields) = value else {
        return Err(malformed(value));
    };
    if fields.len() != asked + 2 {
        return Err(malformed(value));
    }
    let owner = known(&fields[0])?
        .map(|token| Token::parse(&token).ok_or_else(|| malformed(value)))
        .transpose()?;
    let since = match &fields[1] {
        Value::Nil => 0,
        Value::BulkString(row) => since_of(row).ok_or_else(|| malformed(value))?,
        _ => return Err(malformed(value)),
    };
    let waiting = fields[2..]
        .iter()
        .map(|field| Ok(known(field)?.is_some()))
        .collect::<Result<_>>()?;
    Ok(Reply {
        now: None,
        more: false,
        outcome: Outcome::Present {
            owner,
            since,
            waiting,
        },
        grants: Vec::new(),
    })
}

fn grant(token: Token, fence: &Value, at: &Value, left: &Value, how: &Value) -> Result<Grant> {
    Ok(Grant {
        token,
        fence: number(fence)?,
        granted_at: number(at)?,
        left: micros(left)?,
        previous: previous(how)?,
    })
}

fn previous(value: &Value) -> Result<PreviousHolder> {
    match value {
        Value::Int(n) => previous_from(*n).ok_or_else(|| malformed(value)),
        _ => Err(malformed(value)),
    }
}

fn previous_from(n: i64) -> Option<PreviousHolder> {
    match n {
        -1 => Some(PreviousHolder::Unknown),
        0 => Some(PreviousHolder::Released),
        1 => Some(PreviousHolder::Lapsed),
        2 => Some(PreviousHolder::Forced),
        _ => None,
    }
}

fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(n) => u64::try_from(*n).map_err(|_| malformed(value)),
        _ => Err(malformed(value)),
    }
}

fn flag(value: &Value) -> Result<bool> {
    match number(value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(malformed(value)),
    }
}

/// A number as the scripts write it, and in no other way.
fn plain<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse()
        .ok()
        .filter(|number: &N| number.to_string() == text)
}

fn micros(value: &Value) -> Result<Duration> {
    number(value).map(Duration::from_micros)
}

fn text(value: &Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).map_err(|_| malformed(value)),
        Value::SimpleString(text) => Ok(text.clone()),
        _ => Err(malformed(value)),
    }
}

/// Of a stamp and the time since when, packed as Lua's numbers are.
fn since_of(row: &[u8]) -> Option<u64> {
    let (stamp, since) = row.split_first_chunk()?;
    whole(f64::from_le_bytes(*stamp)).and(whole(f64::from_le_bytes(since.try_into().ok()?)))
}

fn whole(number: f64) -> Option<u64> {
    // From here on not every number is one of Lua's.
    const TOO_LARGE: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number)).then_some(number as u64)
}

fn known(field: &Value) -> Result<Option<String>> {
    if *field == Value::Nil {
        Ok(None)
    } else {
        text(field).map(Some)
    }
}

fn malformed(value: &Value) -> Malformed {
    let mut shown = format!("{value:?}");
    if let Some((at, _)) = shown.char_indices().nth(200) {
        shown.truncate(at);
    }
    Malformed(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{LockSpec, Mode};

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_is_nearly_an_answer_is_none() {
        let token = Token::parse(TOKEN).expect("a token");
        // A bar ends a line.
        let parse = |verb, value: String| {
            let key = Key::new("fairlock", "n").expect("a good name");
            let value =
                redis::parse_redis_value(value.replace('|', "\r\n").as_bytes()).expect("a value");
            Reply::parse(
                &Call {
                    spec: LockSpec::MUTEX,
                    key,
                    verb,
                },
                &value,
            )
        };
        let renewed = |more: u8| {
            parse(
                Verb::Renew { token },
                format!("*5|+renewed|:7|:{more}|:1|:1|"),
            )
        };
        assert!(
            renewed(0).is_ok() && renewed(1).is_ok_and(|reply| reply.more) && renewed(2).is_err()
        );
        let synced = |entries: &str, known: u8| {
            let fields = format!("+{TOKEN}|:1|:1|:1|:0|{entries}|:1|:{known}|:1|:0");
            parse(
                Verb::Sync { newest: token },
                format!("*13|+synced|:7|:0|{fields}|"),
            )
        };
        assert!(synced(":1", 1).is_ok() && synced("+1", 1).is_err() && synced(":1", 2).is_err());
        let released = |answer: &str| {
            parse(
                Verb::Release {
                    token,
                    fence: 1,
                    mode: Mode::Used,
                },
                answer.to_owned(),
            )
        };
        assert!(
            released("$8|released|")
                .is_ok_and(|reply| reply.now.is_none() && reply.outcome == Outcome::Released)
        );
        let granted = |answer: &str| {
            let acquire = Verb::Acquire {
                token,
                may_wait: true,
                params: "".into(),
            };
            parse(acquire, answer.to_owned())
        };
        let short = Grant {
            token,
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
        assert!(
            released("$7|already|").is_err()
                && parse(Verb::Renew { token }, "$8|released|".to_owned()).is_err()
        );
        let looked_up = |owner: &str, row: &str, record: &str| {
            parse(
                Verb::Lookup {
                    tokens: vec![token],
                },
                format!("*3|{owner}|${}|{row}|{record}|", row.len()),
            )
        };
        let owner = format!("+{TOKEN}");
        // 2 and 2, 2 and half of something, 2 and nothing.
        let two = "\0\0\0\0\0\0\0@";
        let (good, half) = (two.repeat(2), format!("{two}\0\0\0\0\0\0\0?"));
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
    fn what_is_nearly_an_answer_about_permits_is_none() {
        let token = Token::parse(TOKEN).expect("a token");
        let parse = |verb, value: &str| {
            let key = Key::new("fairlock", "n").expect("a good name");
            let value =
                redis::parse_redis_value(value.replace('|', "\r\n").as_bytes()).expect("a value");
            Reply::parse(
                &Call {
                    spec: LockSpec::any(Family::Permit),
                    key,
                    verb,
                },
                &value,
            )
        };
        let released = |answer: &str| {
            parse(
                Verb::Release {
                    token,
                    fence: 1,
                    mode: Mode::Used,
                },
                answer,
            )
        };
        assert!(released("*3|+already|:7|:0|").is_ok());
        for answer in ["$8|released|", "*3|+unknown|:7|:0|", "*3|+queued|:7|:0|"] {
            assert!(released(answer).is_err(), "{answer}");
        }
        let granted = |answer: &str| {
            let acquire = Verb::Acquire {
                token,
                may_wait: true,
                params: "".into(),
            };
            parse(acquire, answer)
        };
        assert!(
            granted("*7|+granted|:7|:0|:7|:7|:5|:1|").is_ok()
                && granted("*4|+granted|:7|:5|:1|").is_err()
        );
        let synced = |owner: &str| {
            parse(
                Verb::Sync { newest: token },
                &format!("*13|+synced|:7|:0|+{owner}|:1|:1|:1|:0|:1|:1|:1|:1|:0|"),
            )
        };
        assert!(synced("").is_ok() && synced(TOKEN).is_err());
        let looked_up = |told: &str| {
            let verb = Verb::Lookup {
                tokens: vec![token],
            };
            parse(verb, &format!("*5|+present|:7|:0|:5|{told}|"))
        };
        let holds = looked_up("*4|:9|:5|:1000|:0").expect("it holds");
        assert_eq!(
            holds
                .grants
                .iter()
                .map(|grant| (grant.token, grant.fence))
                .collect::<Vec<_>>(),
            [(token, 9)]
        );
        assert!(
            looked_up(":1").is_ok_and(|reply| reply.grants.is_empty()) && looked_up(":0").is_ok()
        );
        assert!(
            looked_up(":2").is_err()
                && looked_up("*3|:9|:5|:1000").is_err()
                && looked_up("$-1").is_err()
        );
        let seen = |count: u8, holder: &str| {
            let (end, verb) = (
                format!(":1000|:0|:2|+{holder}|"),
                Verb::Inspect { waiters: 9 },
            );
            parse(
                verb,
                &format!("*11|+seen|:7|:0|+semaphore/1 5|:9|:0|:{count}|{end}"),
            )
        };
        let good = "semaphore/1 5 9 0 5 m 1000 0 0 2 host";
        let Ok(Reply {
            outcome: Outcome::Seen(told),
            ..
        }) = seen(1, good)
        else {
            panic!("it is good")
        };
        let [holder] = &told.holders[..] else {
            panic!("{told:?}")
        };
        assert_eq!((holder.fence, holder.granted_at, holder.permits), (9, 5, 2));
        assert!(
            seen(2, good).is_err()
                && seen(1, "semaphore/1 5 x 0 5 m").is_err()
                && seen(1, "semaphore/1").is_err()
        );
    }

    #[test]
    fn what_is_nearly_a_message_is_none() {
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
