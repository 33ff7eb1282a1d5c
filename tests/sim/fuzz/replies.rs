//! Answers and messages, each by itself: what is taken for one is one.

use super::shapes::{HOLDER, SEEN, grants, is_documented, is_token};
use super::tape::Tape;
use super::values::{About, answer, any, any_call};
use crate::inspect::{LockInfo, LockState};
use crate::key::Key;
use crate::script::{Call, Family, Grant, Outcome, Reply, Token, Value, parse_value};

/// An answer to a call, or a message on the channel of grants.
pub fn replies(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let key = Key::new("fairlock", tape.choose(&["a", "an {odd} name%"])).expect("good names");
    let tokens: Vec<Token> = (0..4).map(Token::numbered).collect();
    let about = About {
        tokens: &tokens,
        now: 1_700_000_000_000_000,
    };
    if tape.one_in(4) {
        return message(&key, &about, &mut tape);
    }
    let call = any_call(&key, &about, &mut tape);
    let value = match tape.below(4) {
        0 => any(&mut tape, 5),
        1 => match parse_value(tape.rest()) {
            Some(value) => value,
            None => return,
        },
        _ => answer(&call, &about, &mut tape),
    };
    let parsed = Reply::parse(&call, &value);
    assert_eq!(
        parsed.is_ok(),
        is_documented(&call, &value),
        "{call:?}: {value:?} is {parsed:?}"
    );
    if let Ok(reply) = parsed {
        says_what_came(&call, &value, reply);
    }
}

fn says_what_came(call: &Call, value: &Value, reply: Reply) {
    assert_eq!(granted(&reply), grants(call, value), "{call:?}: {value:?}");
    let Value::Array(parts) = value else { return };
    let number = |value: &Value| match value {
        Value::Int(n) => *n as u64,
        _ => u64::MAX,
    };
    if let [_, now, more, fields @ ..] = &parts[..]
        && !matches!(
            (&reply.outcome, parts.len()),
            (Outcome::Present { .. }, _) | (Outcome::Granted(_), 4)
        )
    {
        assert_eq!(
            (reply.now, reply.more),
            (Some(number(now)), number(more) == 1),
            "{value:?}"
        );
        let read = match &reply.outcome {
            Outcome::Waiting {
                ticket,
                position,
                left,
                since,
            } => vec![*ticket, *position, micros(*left), *since],
            Outcome::Busy { left } => vec![micros(*left)],
            Outcome::Renewed { left, fence } => vec![micros(*left), *fence],
            Outcome::Gone { stored, ended, .. } => vec![*stored, *ended],
            _ => Vec::new(),
        };
        assert!(
            fields
                .iter()
                .map(number)
                .zip(&read)
                .all(|(came, read)| came == *read),
            "{value:?} is {reply:?}"
        );
    }
    if let Outcome::Seen(seen) = reply.outcome {
        let (held, known) = (
            seen.holders.iter().any(|holder| !holder.cools),
            seen.queue.len(),
        );
        let fields = match call.spec.family {
            Family::Mutex => SEEN[0].2.len(),
            Family::Permit => 4 + HOLDER.len() * seen.holders.len(),
        };
        let info = LockInfo::new(call.key.clone(), *seen);
        assert_eq!(info.state == LockState::Held, held, "{info:?}");
        assert!(
            info.queue.len() <= known && (info.state != LockState::Free || info.holder.is_none()),
            "{info:?}"
        );
        assert_eq!(parts.len(), 3 + fields + known);
    }
}

fn micros(left: std::time::Duration) -> u64 {
    left.as_micros() as u64
}

/// All grants that were read in a reply.
pub(super) fn granted(reply: &Reply) -> Vec<Grant> {
    let own = match &reply.outcome {
        Outcome::Granted(grant) => Some(*grant),
        Outcome::Synced { owner, .. } => *owner,
        _ => None,
    };
    own.into_iter()
        .chain(reply.grants.iter().copied())
        .collect()
}

/// What is taken for a message is one to the letter.
fn message(key: &Key, about: &About<'_>, tape: &mut Tape<'_>) {
    let family = tape.choose(&[Family::Mutex, Family::Permit]);
    let text = message_text(family, key, about, tape);
    let Some((grant, read, family)) = Grant::from_message("fairlock", &text) else {
        return;
    };
    assert_eq!(
        family == Family::Permit,
        text.starts_with("permit "),
        "{text:?}"
    );
    let text = text.strip_prefix("permit ").unwrap_or(&text);
    let how = text.split(' ').nth(4).unwrap_or_default();
    assert!(
        ["-1", "0", "1", "2"].contains(&how) && is_token(&text[..32]),
        "{text:?} is {grant:?}"
    );
    let left = grant.left.as_micros();
    let again = format!(
        "{} {} {} {left} {how} {}",
        grant.token.simple(),
        grant.fence,
        grant.granted_at,
        read.record()
    );
    assert_eq!(again, text, "it was read otherwise than it was written");
}

/// A message with one thing in it that may be anything.
pub(super) fn message_text(
    family: Family,
    key: &Key,
    about: &About<'_>,
    tape: &mut Tape<'_>,
) -> String {
    if tape.one_in(8) {
        return tape.text();
    }
    let left = if tape.one_in(4) {
        tape.number()
    } else {
        u64::from(tape.byte()) * 100_000
    };
    let granted_at = match tape.below(4) {
        0 => tape.number(),
        _ => about.now.wrapping_sub(u64::from(tape.byte()) * 50_000),
    };
    let mut words = [
        about.token(tape).simple(),
        tape.number().to_string(),
        granted_at.to_string(),
        left.to_string(),
        (tape.below(4) as i64 - 1).to_string(),
        key.record().to_owned(),
    ];
    match tape.below(16) {
        at @ 0..=5 => words[at] = tape.text(),
        at @ 6..=11 => {
            words[at - 6].insert_str(0, tape.choose(&["+", "0", " ", "-", "{", "\u{a0}"]))
        }
        12 => words[0] = words[0].to_uppercase(),
        13 => words[0].insert_str(0, "permit "),
        _ => {}
    }
    let first = if family == Family::Permit {
        "permit "
    } else {
        ""
    };
    format!("{first}{}", words.join(" "))
}
