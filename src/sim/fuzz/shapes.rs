//! The answers of the scripts as docs/PROTOCOL.md has them, written apart from what reads them.

use std::time::Duration;

use crate::loss::PreviousHolder;
use crate::script::{Call, Grant, Token, Value, Verb};

/// Of each script and status the fields, a letter for each: `n` a number, `b` 0 or 1, `k` how the one before ended, `o`
/// an owner's token or nothing, `t` a token, `s` a text.
pub(super) const SHAPES: [(&str, &str, &str); 24] = [
    ("acquire", "granted", "nnnk"),
    ("acquire", "waiting", "nnnn"),
    ("acquire", "busy", "n"),
    ("acquire", "late", ""),
    ("acquire", "more", ""),
    ("acquire", "queued", ""),
    ("acquire", "kind", "s"),
    ("release", "released", ""),
    ("release", "granted", "nnnk"),
    ("release", "refused", ""),
    ("release", "already", ""),
    ("release", "lapsed", ""),
    ("release", "forced", ""),
    ("release", "lost", ""),
    ("release", "unknown", ""),
    ("release", "queued", ""),
    ("release", "kind", "s"),
    ("renew", "renewed", "nn"),
    ("renew", "gone", "nnk"),
    ("renew", "kind", "s"),
    ("sync", "synced", "onnnknnbnb"),
    ("sync", "absent", ""),
    ("sync", "late", ""),
    ("sync", "kind", "s"),
];
/// Its rest is the queue.
pub(super) const SEEN: [(&str, &str, &str); 3] =
    [("inspect", "seen", "snnnkssn"), ("inspect", "absent", ""), ("inspect", "kind", "s")];
/// A grant to another waiter.
pub(super) const GRANT: &str = "tnnnk";

pub(super) fn script_of(call: &Call) -> &'static str {
    match call.verb {
        Verb::Acquire { .. } => "acquire",
        Verb::Release { .. } => "release",
        Verb::Renew { .. } => "renew",
        Verb::Sync { .. } => "sync",
        Verb::Inspect { .. } => "inspect",
        Verb::Lookup { .. } => "lookup",
    }
}

/// Whether a server that keeps to the protocol may answer a call so.
pub(super) fn is_documented(call: &Call, value: &Value) -> bool {
    let Value::Array(parts) = value else {
        // The short way of a release.
        return script_of(call) == "release" && *value == Value::BulkString(b"released".to_vec());
    };
    if let Verb::Lookup { tokens } = &call.verb {
        return parts.len() == tokens.len() + 2 && is_looked_up(parts);
    }
    if let Some([now, left, how]) = short_grant(call, parts) {
        return is(now, b'n') && is(left, b'n') && is(how, b'k');
    }
    let [status, now, more, said @ ..] = &parts[..] else { return false };
    let Some(letters) = letters_of(call, status) else { return false };
    let Some((fields, rest)) = said.split_at_checked(letters.len()) else { return false };
    let rest_fits = match text(status) {
        Some("seen") => rest.iter().all(|part| is(part, b's')),
        _ => rest.chunks(GRANT.len()).all(|grant| are(grant, GRANT)),
    };
    is(now, b'n') && is(more, b'b') && are(fields, letters) && rest_fits
}

fn letters_of(call: &Call, status: &Value) -> Option<&'static str> {
    let (status, script) = (text(status)?, script_of(call));
    SHAPES.iter().chain(&SEEN).find(|shape| shape.0 == script && shape.1 == status).map(|shape| shape.2)
}

/// What follows the status in an answer of the short way of an acquire.
fn short_grant<'a>(call: &Call, parts: &'a [Value]) -> Option<[&'a Value; 3]> {
    let [status, now, left, how] = parts else { return None };
    (script_of(call) == "acquire" && text(status) == Some("granted")).then_some([now, left, how])
}

/// HMGET of the owner, the manager's stamp and the waiters' records.
fn is_looked_up(parts: &[Value]) -> bool {
    let or_nothing = |part: &Value, fits: &dyn Fn(&str) -> bool| *part == Value::Nil || text(part).is_some_and(fits);
    let is_whole = |number: f64| number >= 0.0 && number < 2f64.powi(53) && number.trunc() == number;
    let is_number = |bytes: &[u8]| is_whole(f64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    let is_stamp = match &parts[1] {
        Value::Nil => true,
        Value::BulkString(row) => row.len() == 16 && row.chunks(8).all(is_number),
        _ => false,
    };
    or_nothing(&parts[0], &is_token) && is_stamp && parts[2..].iter().all(|part| or_nothing(part, &|_| true))
}

fn are(parts: &[Value], letters: &str) -> bool {
    parts.len() == letters.len() && parts.iter().zip(letters.bytes()).all(|(part, letter)| is(part, letter))
}

fn is(part: &Value, letter: u8) -> bool {
    match (letter, part) {
        (b'n', Value::Int(n)) => *n >= 0,
        (b'b', Value::Int(n)) => matches!(n, 0 | 1),
        (b'k', Value::Int(n)) => (-1..=2).contains(n),
        (b'o', _) => text(part).is_some_and(|text| text.is_empty() || is_token(text)),
        (b't', _) => text(part).is_some_and(is_token),
        (b's', _) => text(part).is_some(),
        _ => false,
    }
}

pub(super) fn is_token(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Who is granted what by an answer that is documented. An acquire's and a release's own grant is their token's.
pub(super) fn grants(call: &Call, value: &Value) -> Vec<Grant> {
    let Value::Array(parts) = value else { return Vec::new() };
    if let (Some([now, left, how]), Verb::Acquire { token, .. }) = (short_grant(call, parts), &call.verb) {
        return vec![grant(*token, &[now.clone(), now.clone(), left.clone(), how.clone()])];
    }
    let [status, _, _, said @ ..] = &parts[..] else { return Vec::new() };
    let Some(letters) = letters_of(call, status) else { return Vec::new() };
    let (fields, rest) = said.split_at(letters.len());
    let mut grants = Vec::new();
    match (text(status), &call.verb) {
        (Some("granted"), Verb::Acquire { token, .. } | Verb::Release { token, .. }) => {
            grants.push(grant(*token, fields));
        }
        (Some("synced"), _) => grants.extend(token(&fields[0]).map(|owner| grant(owner, &fields[1..]))),
        (Some("seen"), _) => return grants,
        _ => {}
    }
    let others = rest.chunks(GRANT.len()).filter_map(|part| Some(grant(token(&part[0])?, &part[1..])));
    grants.extend(others);
    grants
}

fn token(part: &Value) -> Option<Token> {
    text(part).and_then(Token::parse)
}

fn grant(token: Token, fields: &[Value]) -> Grant {
    let number = |at: usize| match fields[at] {
        Value::Int(n) => n,
        _ => unreachable!("it is documented"),
    };
    let previous = [PreviousHolder::Unknown, PreviousHolder::Released, PreviousHolder::Lapsed, PreviousHolder::Forced]
        [(number(3) + 1) as usize];
    let left = Duration::from_micros(number(2) as u64);
    Grant { token, fence: number(0) as u64, granted_at: number(1) as u64, left, previous }
}
