//! The answers of the scripts as docs/PROTOCOL.md has them. This is written independently of the
//! parser that it checks.

use std::time::Duration;

use crate::loss::PreviousHolder;
use crate::script::{Call, Family, Grant, Token, Value, Verb};

/// The fields of each script and status, one letter per field:
///
/// | letter | field |
/// |---|---|
/// | `n` | a number |
/// | `i` | a number that may be below 0 |
/// | `b` | 0 or 1 |
/// | `k` | how the previous holder ended |
/// | `o` | an owner's token, or an empty text |
/// | `t` | a token |
/// | `s` | a text |
/// | `e` | an empty text |
/// | `h` | the words of a holder |
pub(super) const SHAPES: [(&str, &str, &str); 37] = [
    ("acquire", "granted", "nnnkn"),
    ("acquire", "waiting", "nnnn"),
    ("acquire", "busy", "n"),
    ("acquire", "late", ""),
    ("acquire", "more", ""),
    ("acquire", "queued", ""),
    ("acquire", "kind", "s"),
    ("release", "released", ""),
    ("release", "late", ""),
    ("release", "granted", "nnnkn"),
    ("release", "refused", ""),
    ("release", "already", ""),
    ("release", "lapsed", ""),
    ("release", "forced", ""),
    ("release", "lost", ""),
    ("release", "unknown", ""),
    ("release", "queued", ""),
    ("release", "kind", "s"),
    ("renew", "renewed", "nnn"),
    ("renew", "gone", "nnk"),
    ("renew", "late", ""),
    ("renew", "kind", "s"),
    ("pass", "granted", "nnnkn"),
    ("pass", "late", ""),
    ("pass", "already", ""),
    ("pass", "lapsed", ""),
    ("pass", "forced", ""),
    ("pass", "lost", ""),
    ("pass", "unknown", ""),
    ("pass", "kind", "s"),
    ("sync", "synced", "onnnknnbnb"),
    ("sync", "absent", ""),
    ("sync", "late", ""),
    ("sync", "kind", "s"),
    ("vacate", "vacated", ""),
    ("vacate", "refused", ""),
    ("vacate", "kind", "s"),
];
/// The same for inspections. After `seen` come the fields of [`before_queue`], and then the queue.
pub(super) const SEEN: [(&str, &str, &str); 3] = [
    ("inspect", "seen", "snnikssn"),
    ("inspect", "absent", ""),
    ("inspect", "kind", "s"),
];
/// The fields of `seen` before the queue, by family.
pub(super) fn before_queue(family: Family) -> &'static str {
    match family {
        Family::Permit => "kn",
        Family::Mutex | Family::Quorum => "n",
    }
}
/// The report of a grant to another waiter, by family. That of a mutex says how many others wait.
pub(super) fn report_of(family: Family) -> &'static str {
    match family {
        Family::Mutex => "tnnnkn",
        Family::Permit | Family::Quorum => GRANT,
    }
}
/// The same of permits.
pub(super) const GRANT: &str = "tnnnk";

/// Whether this may follow the fields of that status: 1 if a process that keeps the lock was told.
pub(super) fn is_told(call: &Call, status: &str, part: &Value) -> bool {
    let of_mutex = call.spec.family == Family::Mutex;
    (script_of(call), status) == ("acquire", "busy") && of_mutex && *part == Value::Int(1)
}

/// The answers of the permit scripts that differ from the mutex scripts' or are new. After `seen`
/// come as many holders as its last number says, and then what comes for a mutex. After `present`
/// comes an entry for each token.
const OF_PERMITS: [(&str, &str, &str); 8] = [
    ("acquire", "granted", "nnnk"),
    ("release", "granted", "nnnk"),
    ("renew", "renewed", "nn"),
    ("pass", "granted", "nnnk"),
    ("sync", "synced", "ennnknnbnb"),
    ("inspect", "seen", "snnn"),
    ("lookup", "present", "n"),
    ("lookup", "kind", "s"),
];
/// The answers that the permit scripts never give.
const OF_MUTEXES: [(&str, &str); 2] = [("acquire", "queued"), ("release", "unknown")];
/// A holder of permits in an inspection.
pub(super) const HOLDER: &str = "ibnh";

/// Each status with which a call can be answered, and its fields. The lookup of a mutex has no
/// status and is not among them.
pub(super) fn shapes_of(call: &Call) -> Vec<(&'static str, &'static str)> {
    let script = script_of(call);
    let common = SHAPES.iter().chain(&SEEN);
    let mut shapes: Vec<_> = common
        .filter(|shape| shape.0 == script)
        .map(|shape| (shape.1, shape.2))
        .collect();
    if call.spec.family == Family::Permit {
        let own: Vec<_> = OF_PERMITS
            .iter()
            .filter(|shape| shape.0 == script)
            .map(|shape| (shape.1, shape.2))
            .collect();
        shapes.retain(|(status, _)| {
            !OF_MUTEXES.contains(&(script, *status))
                && !own.iter().any(|(others, _)| others == status)
        });
        shapes.extend(own);
    }
    shapes
}

pub(super) fn script_of(call: &Call) -> &'static str {
    match call.verb {
        Verb::Acquire { .. } | Verb::Propose { .. } => "acquire",
        Verb::Release { .. } => "release",
        Verb::Renew { .. } => "renew",
        Verb::Pass { .. } => "pass",
        Verb::Sync { .. } => "sync",
        Verb::Inspect { .. } => "inspect",
        Verb::Vacate | Verb::Delete => "vacate",
        Verb::Lookup { .. } => "lookup",
    }
}

/// Whether the protocol allows this answer to a call.
pub(super) fn is_documented(call: &Call, value: &Value) -> bool {
    let of_permits = call.spec.family == Family::Permit;
    let Value::Array(parts) = value else {
        // The short form of a release.
        let short = Value::BulkString(b"released".to_vec());
        return script_of(call) == "release" && !of_permits && *value == short;
    };
    if let (Verb::Lookup { tokens }, false) = (&call.verb, of_permits) {
        return parts.len() == tokens.len() + 2 && is_looked_up(parts);
    }
    if let Some([now, left, how]) = short_grant(call, parts) {
        return is(now, b'n') && is(left, b'n') && is(how, b'k');
    }
    let [status, now, more, rest_of_answer @ ..] = &parts[..] else {
        return false;
    };
    let Some(letters) = letters_of(call, status) else {
        return false;
    };
    let Some((fields, rest)) = rest_of_answer.split_at_checked(letters.len()) else {
        return false;
    };
    let rest = behind_told(call, status, rest);
    let report = report_of(call.spec.family);
    let rest_fits = match (text(status), &call.verb) {
        (Some("seen"), _) if of_permits => are_holders_and_queue(&fields[3], rest),
        (Some("seen"), _) => is_queue(call.spec.family, rest),
        (Some("present"), Verb::Lookup { tokens }) => {
            let is_entry = |entry: &Value| match entry {
                Value::Array(grant) => are(grant, &GRANT[1..]),
                entry => is(entry, b'b'),
            };
            rest.len() == tokens.len() && rest.iter().all(is_entry)
        }
        _ => rest.chunks(report.len()).all(|part| are(part, report)),
    };
    is(now, b'n') && is_more(call, more) && are(fields, letters) && rest_fits
}

/// The parts behind the fields of the status, and behind the number that may follow them.
fn behind_told<'a>(call: &Call, status: &Value, rest: &'a [Value]) -> &'a [Value] {
    match rest.split_first() {
        Some((told, behind)) if is_told(call, text(status).unwrap_or(""), told) => behind,
        _ => rest,
    }
}

/// Scripts that serve the queue add 2 for each dead waiter that they passed over, 64 at most.
fn is_more(call: &Call, more: &Value) -> bool {
    match more {
        Value::Int(more)
            if matches!(script_of(call), "acquire" | "release" | "sync" | "vacate") =>
        {
            (0..=129).contains(more)
        }
        more => is(more, b'b'),
    }
}

fn letters_of(call: &Call, status: &Value) -> Option<&'static str> {
    let status = text(status)?;
    shapes_of(call)
        .into_iter()
        .find(|shape| shape.0 == status)
        .map(|shape| shape.1)
}

/// The fields after the status in the short form of an acquire's answer.
fn short_grant<'a>(call: &Call, parts: &'a [Value]) -> Option<[&'a Value; 3]> {
    let [status, now, left, how] = parts else {
        return None;
    };
    let granted = script_of(call) == "acquire" && text(status) == Some("granted");
    (granted && call.spec.family == Family::Mutex).then_some([now, left, how])
}

fn are_holders_and_queue(count: &Value, rest: &[Value]) -> bool {
    let Value::Int(count) = count else {
        return false;
    };
    let Some((holders, queue)) = count
        .checked_mul(4)
        .and_then(|end| rest.split_at_checked(end.try_into().ok()?))
    else {
        return false;
    };
    holders
        .chunks(HOLDER.len())
        .all(|holder| are(holder, HOLDER) && matches!(holder[2], Value::Int(0..=0xffff_ffff)))
        && is_queue(Family::Permit, queue)
}

/// The waiters' records, each with a time, and the fields before them.
fn is_queue(family: Family, parts: &[Value]) -> bool {
    let letters = before_queue(family);
    let parts = parts.split_at_checked(letters.len());
    parts.is_some_and(|(fields, queue)| {
        are(fields, letters) && queue.chunks(2).all(|waiter| are(waiter, "si"))
    })
}

/// `kind capacity fence ticket granted-at …`
fn is_holder(text: &str) -> bool {
    let is_number = |word: &str| {
        let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        digits && (word == "0" || !word.starts_with('0')) && word.parse::<u64>().is_ok()
    };
    let words: Vec<&str> = text.splitn(6, ' ').collect();
    words.len() > 4 && is_number(words[2]) && is_number(words[4])
}

/// The answer to a lookup of a mutex: HMGET of the owner, the manager's stamp and the waiters'
/// records.
fn is_looked_up(parts: &[Value]) -> bool {
    let or_nothing = |part: &Value, fits: &dyn Fn(&str) -> bool| {
        *part == Value::Nil || text(part).is_some_and(fits)
    };
    let is_whole =
        |number: f64| number >= 0.0 && number < 2f64.powi(53) && number.trunc() == number;
    let is_number = |bytes: &[u8]| is_whole(f64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    let is_stamp = match &parts[1] {
        Value::Nil => true,
        Value::BulkString(row) => row.len() == 16 && row.chunks(8).all(is_number),
        _ => false,
    };
    or_nothing(&parts[0], &is_token)
        && is_stamp
        && parts[2..].iter().all(|part| or_nothing(part, &|_| true))
}

fn are(parts: &[Value], letters: &str) -> bool {
    parts.len() == letters.len()
        && parts
            .iter()
            .zip(letters.bytes())
            .all(|(part, letter)| is(part, letter))
}

fn is(part: &Value, letter: u8) -> bool {
    match (letter, part) {
        (b'n', Value::Int(n)) => *n >= 0,
        (b'i', Value::Int(_)) => true,
        (b'b', Value::Int(n)) => matches!(n, 0 | 1),
        (b'k', Value::Int(n)) => (-1..=2).contains(n),
        (b'o', _) => text(part).is_some_and(|text| text.is_empty() || is_token(text)),
        (b't', _) => text(part).is_some_and(is_token),
        (b's', _) => text(part).is_some(),
        (b'e', _) => text(part) == Some(""),
        (b'h', _) => text(part).is_some_and(is_holder),
        _ => false,
    }
}

pub(super) fn is_token(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// All grants in a documented answer. An acquire's and a release's own grant belongs to the token
/// of the call.
pub(super) fn grants(call: &Call, value: &Value) -> Vec<Grant> {
    let Value::Array(parts) = value else {
        return Vec::new();
    };
    if let (Some([now, left, how]), Verb::Acquire { token, .. }) =
        (short_grant(call, parts), &call.verb)
    {
        let fields = [now.clone(), now.clone(), left.clone(), how.clone()];
        return vec![grant(*token, &fields)];
    }
    let [status, _, _, rest_of_answer @ ..] = &parts[..] else {
        return Vec::new();
    };
    let Some(letters) = letters_of(call, status) else {
        return Vec::new();
    };
    let (fields, rest) = rest_of_answer.split_at(letters.len());
    let rest = behind_told(call, status, rest);
    let mut grants = Vec::new();
    match (text(status), &call.verb) {
        (
            Some("granted"),
            Verb::Acquire { token, .. }
            | Verb::Release { token, .. }
            | Verb::Pass { to: token, .. },
        ) => {
            grants.push(grant(*token, fields));
        }
        (Some("present"), Verb::Lookup { tokens }) => {
            let entries = tokens.iter().zip(rest);
            return entries
                .filter_map(|(token, entry)| match entry {
                    Value::Array(fields) => Some(grant(*token, fields)),
                    _ => None,
                })
                .collect();
        }
        (Some("synced"), _) => {
            grants.extend(token(&fields[0]).map(|owner| grant(owner, &fields[1..6])))
        }
        (Some("seen"), _) => return grants,
        _ => {}
    }
    let others = rest.chunks(report_of(call.spec.family).len());
    grants.extend(others.filter_map(|part| Some(grant(token(&part[0])?, &part[1..]))));
    grants
}

fn token(part: &Value) -> Option<Token> {
    text(part).and_then(Token::parse)
}

/// The last field, if there are five, is how many others wait.
fn grant(token: Token, fields: &[Value]) -> Grant {
    let number = |at: usize| match fields[at] {
        Value::Int(n) => n,
        _ => unreachable!("a documented grant has a number here"),
    };
    let previous = [
        PreviousHolder::Unknown,
        PreviousHolder::Released,
        PreviousHolder::Lapsed,
        PreviousHolder::Forced,
    ][(number(3) + 1) as usize];
    let left = Duration::from_micros(number(2) as u64);
    Grant {
        token,
        fence: number(0) as u64,
        granted_at: number(1) as u64,
        left,
        previous,
        waiting: fields.get(4).map(|waiters| *waiters != Value::Int(0)),
    }
}
