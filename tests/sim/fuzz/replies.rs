//! Single answers and messages: exactly the documented ones are accepted, and read as they were
//! sent.

use super::input::FuzzInput;
use super::shapes::{HOLDER, SEEN, before_queue, grants, is_documented, is_token};
use super::values::{ServerFacts, answer, any_call, any_value};
use crate::inspect::{LockInfo, LockState};
use crate::key::Key;
use crate::script::{
    Call, Family, Grant, InspectedHolder, Outcome, ScriptReply, Token, Value, parse_value,
    wanted_behind,
};

/// An answer to a call, or a message on the channel of grants.
pub fn replies(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let key = Key::new("fairlock", input.choose(&["a", "an {odd} name%"])).expect("good names");
    let tokens: Vec<Token> = (0..4).map(Token::numbered).collect();
    let facts = ServerFacts {
        tokens: &tokens,
        now: 1_700_000_000_000_000,
    };
    if input.one_in(4) {
        return message(&key, &facts, &mut input);
    }
    let call = any_call(&key, &facts, &mut input);
    let value = match input.below(4) {
        0 => any_value(&mut input, 5),
        1 => match parse_value(input.rest()) {
            Some(value) => value,
            None => return,
        },
        _ => answer(&call, &facts, &mut input),
    };
    let parsed = ScriptReply::parse(&call, &value);
    assert_eq!(
        parsed.is_ok(),
        is_documented(&call, &value),
        "{call:?}: {value:?} is {parsed:?}"
    );
    if let Ok(reply) = parsed {
        check_reply(&call, &value, reply);
    }
}

/// The parsed reply has the numbers and grants of the answer.
fn check_reply(call: &Call, value: &Value, reply: ScriptReply) {
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
            (reply.now, reply.more, reply.dead_waiters),
            (Some(number(now)), number(more) % 2 == 1, number(more) / 2),
            "{value:?}"
        );
        let read = match &reply.outcome {
            Outcome::Waiting {
                ticket,
                position,
                left,
                since,
            } => vec![*ticket, *position, micros(*left), *since],
            Outcome::Busy { left, told: false } => vec![micros(*left)],
            Outcome::Busy { left, told: true } => vec![micros(*left), 1],
            Outcome::Renewed { left, fence, .. } => vec![micros(*left), *fence],
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
    if let Outcome::Inspection(seen) = reply.outcome {
        let is_live = |holder: &&InspectedHolder| holder.lapsed_for.is_none();
        let held = seen
            .holders
            .iter()
            .filter(is_live)
            .any(|holder| !holder.cools);
        let known = seen.queue.len();
        let fields = match call.spec.family {
            Family::Mutex | Family::Quorum => SEEN[0].2.len(),
            Family::Permit => 4 + HOLDER.len() * seen.holders.len(),
        };
        let info = LockInfo::new(call.key.clone(), *seen);
        assert_eq!(info.state == LockState::Held, held, "{info:?}");
        assert!(
            info.queue.len() <= known && (info.state != LockState::Free || info.holder.is_none()),
            "{info:?}"
        );
        let before_queue = before_queue(call.spec.family).len();
        assert_eq!(parts.len(), 3 + fields + before_queue + 2 * known);
        let last = parts.get(2 + fields + before_queue);
        assert_eq!(info.served, last.map_or(0, number), "{info:?}");
    }
}

fn micros(left: std::time::Duration) -> u64 {
    left.as_micros() as u64
}

/// All grants that a reply reports, as the parser read them.
pub(super) fn granted(reply: &ScriptReply) -> Vec<Grant> {
    let own = match &reply.outcome {
        Outcome::Granted(grant) => Some(*grant),
        Outcome::Synced { owner, .. } => *owner,
        _ => None,
    };
    own.into_iter()
        .chain(reply.grants.iter().copied())
        .collect()
}

/// A text that is accepted as a message is one to the letter: written again, it is the same text.
fn message(key: &Key, facts: &ServerFacts<'_>, input: &mut FuzzInput<'_>) {
    let family = input.choose(&[Family::Mutex, Family::Permit]);
    let text = message_text(family, key, facts, input);
    if let Some((read, fence)) = wanted_behind("fairlock", &text) {
        assert_eq!(text, format!("wanted {fence} {}", read.record()));
        return;
    }
    let Some((grant, read, family)) = Grant::from_message("fairlock", &text) else {
        return;
    };
    let (first, text) = text.split_once(' ').expect("it was read");
    // The message to the owner of a mutex says how many others wait.
    if family == Family::Permit {
        assert_eq!((first, grant.waiting), ("permit", None), "{text:?}");
    } else {
        assert_eq!(Some(first != "0"), grant.waiting, "{text:?}");
        assert!(first.parse::<u64>().is_ok_and(|n| n.to_string() == first));
    }
    let how = text.split(' ').nth(4).unwrap_or_default();
    assert!(
        ["-1", "0", "1", "2"].contains(&how) && is_token(&text[..32]),
        "{text:?} is {grant:?}"
    );
    let left = grant.left.as_micros();
    let written = format!(
        "{} {} {} {left} {how} {}",
        grant.token.simple(),
        grant.fence,
        grant.granted_at,
        read.record()
    );
    assert_eq!(
        written, text,
        "a message was read differently than it was written"
    );
}

/// A message in which one part may be anything.
pub(super) fn message_text(
    family: Family,
    key: &Key,
    facts: &ServerFacts<'_>,
    input: &mut FuzzInput<'_>,
) -> String {
    if input.one_in(8) {
        return input.text();
    }
    let left = if input.one_in(4) {
        input.number()
    } else {
        u64::from(input.byte()) * 100_000
    };
    let granted_at = match input.below(4) {
        0 => input.number(),
        _ => facts.now.wrapping_sub(u64::from(input.byte()) * 50_000),
    };
    let mut words = [
        facts.token(input).simple(),
        input.number().to_string(),
        granted_at.to_string(),
        left.to_string(),
        (input.below(4) as i64 - 1).to_string(),
        key.record().to_owned(),
    ];
    if family == Family::Mutex && input.one_in(8) {
        return format!("wanted {} {}", words[1], words[5]);
    }
    match input.below(16) {
        at @ 0..=5 => words[at] = input.text(),
        at @ 6..=11 => {
            words[at - 6].insert_str(0, input.choose(&["+", "0", " ", "-", "{", "\u{a0}"]))
        }
        12 => words[0] = words[0].to_uppercase(),
        13 => words[0].insert_str(0, "permit "),
        _ => {}
    }
    let prefix = match family {
        Family::Permit => "permit ".to_owned(),
        _ => format!("{} ", input.below(3)),
    };
    format!("{prefix}{}", words.join(" "))
}
