//! Answers that a server may give: of any shape, or nearly or exactly of a documented shape.

use std::sync::Arc;

use super::input::FuzzInput;
use super::shapes::{GRANT, HOLDER, before_queue, is_told, report_of, shapes_of};
use crate::key::Key;
use crate::script::{
    Call, Family, LockSpec, Mode, Page, PassedFrom, Secret, Token, Value, Verb, Wait, parse_value,
};

/// The values that a made-up answer can refer to.
pub(super) struct ServerFacts<'a> {
    pub(super) tokens: &'a [Token],
    /// The server's time in µs.
    pub(super) now: u64,
}

impl ServerFacts<'_> {
    pub(super) fn token(&self, input: &mut FuzzInput<'_>) -> Token {
        // A small byte picks one of the newest tokens.
        let back = input.below(self.tokens.len().clamp(1, 255));
        self.tokens
            .iter()
            .rev()
            .nth(back)
            .copied()
            .unwrap_or_else(|| Token::numbered(back as u16))
    }
}

pub(super) fn any_call(key: &Key, facts: &ServerFacts<'_>, input: &mut FuzzInput<'_>) -> Call {
    let token = facts.token(input);
    let params: Arc<str> = "10000 0 0 host\t1\tmain#1\t".into();
    let which = input.below(40);
    let verb = match which % 10 {
        0 | 1 => Verb::Acquire {
            token,
            wait: Wait::Yes,
            params,
        },
        2 => Verb::Acquire {
            token,
            wait: if which < 20 { Wait::No } else { Wait::NoneCame },
            params,
        },
        3 => {
            let modes = [
                Mode::Used,
                Mode::Unused,
                Mode::Lost,
                Mode::KeepIfOwner,
                Mode::Forced(Page {
                    number: input.below(3) as u32,
                    from: input.number(),
                }),
                Mode::Reduce { to: 1 },
            ];
            Verb::Release {
                token,
                fence: input.number(),
                last: None,
                mode: input.choose(&modes),
            }
        }
        4 => Verb::Renew {
            token,
            fence: 0,
            params: "".into(),
        },
        5 => Verb::Sync { newest: token },
        6 => Verb::Vacate,
        7 => Verb::Inspect {
            waiters: 1000,
            from: input.number(),
        },
        8 => Verb::Pass {
            to: token,
            from: PassedFrom::Bearer(Secret::new()),
            fence: input.number(),
            last: None,
            params,
        },
        _ => Verb::Lookup {
            tokens: (0..input.below(4)).map(|_| facts.token(input)).collect(),
        },
    };
    Call {
        spec: SPECS[which / 10],
        key: key.clone(),
        verb,
    }
}

/// One of each kind of lock.
pub(super) const SPECS: [LockSpec; 4] = [
    LockSpec::MUTEX,
    LockSpec::read(),
    LockSpec::write(),
    LockSpec::semaphore(3, 2),
];

/// An answer of a documented shape. One in four has an error in it.
pub(super) fn answer(call: &Call, facts: &ServerFacts<'_>, input: &mut FuzzInput<'_>) -> Value {
    let mut value = match call.verb {
        _ if input.one_in(32) => return any_value(input, 4),
        Verb::Lookup { ref tokens } if call.spec.family == Family::Mutex => {
            let letters = ["o", "m"]
                .into_iter()
                .chain(tokens.iter().map(|_| "w"))
                .collect::<String>();
            Value::Array(fields(&letters, facts, input))
        }
        _ => {
            let (status, letters) = input.choose(&shapes_of(call));
            let each = if status == "seen" {
                "ai"
            } else {
                report_of(call.spec.family)
            };
            let mut rest: Vec<_> = (0..input.below(8).saturating_sub(5))
                .flat_map(|_| fields(each, facts, input))
                .collect();
            let told = Value::Int(input.below(3) as i64);
            if is_told(call, status, &told) && input.one_in(2) {
                rest.insert(0, told);
            }
            if let (Verb::Lookup { tokens }, "present") = (&call.verb, status) {
                rest = tokens.iter().map(|_| lookup_entry(facts, input)).collect();
            }
            let now = Value::Int(
                facts
                    .now
                    .wrapping_add_signed(i64::from(input.byte() as i8) * 1000)
                    as i64,
            );
            let dead_waiters = if input.one_in(8) { input.below(66) } else { 0 };
            let more = i64::from(input.one_in(8)) + 2 * dead_waiters as i64;
            let more = Value::Int(more);
            let mut parts = fields(letters, facts, input);
            if status == "seen" && call.spec.family == Family::Permit {
                let holders = input.below(3);
                parts[3] = Value::Int(holders as i64);
                parts.extend((0..holders).flat_map(|_| fields(HOLDER, facts, input)));
            }
            if status == "seen" {
                parts.extend(fields(before_queue(call.spec.family), facts, input));
            }
            let parts = parts.into_iter().chain(rest);
            Value::Array([bulk(status), now, more].into_iter().chain(parts).collect())
        }
    };
    if input.one_in(4) {
        spoil(&mut value, input);
    }
    value
}

/// The entry for one token in the answer to a lookup of permits.
fn lookup_entry(facts: &ServerFacts<'_>, input: &mut FuzzInput<'_>) -> Value {
    match input.below(3) {
        2 => Value::Array(fields(&GRANT[1..], facts, input)),
        waits => Value::Int(waits as i64),
    }
}

fn fields(letters: &str, facts: &ServerFacts<'_>, input: &mut FuzzInput<'_>) -> Vec<Value> {
    let field = |letter| match letter {
        b'n' => match input.below(4) {
            0 => Value::Int(facts.now as i64),
            1 => Value::Int(facts.now.wrapping_sub(u64::from(input.byte()) * 50_000) as i64),
            2 => Value::Int(i64::from(input.byte()) * 100_000),
            _ => Value::Int(input.number() as i64),
        },
        b'i' => Value::Int(i64::from(input.byte() as i8) * 100_000),
        b'b' => Value::Int(input.below(2) as i64),
        b'k' => Value::Int(input.below(4) as i64 - 1),
        b'e' if !input.one_in(32) => bulk(""),
        b'h' => {
            let fence = input.number();
            bulk(&format!(
                "rw/1 9 {fence} 1 {} 0123456789abcdef 10000 0 0 1 host\t1\tmain#1\tlabel",
                facts.now
            ))
        }
        b'o' if input.one_in(4) => bulk(""),
        b'm' | b'w' if input.one_in(2) => Value::Nil,
        b'm' => bulk(&format!("{} {}", facts.now, input.number() >> 1)),
        b'a' | b'w' if input.one_in(4) => bulk(&input.text()),
        b'a' | b'w' => bulk(&format!(
            "1 {} 0123456789abcdef 10000 0 0 host\t{}\tmain#1\tlabel",
            facts.now,
            input.number()
        )),
        b's' => bulk(match input.below(4) {
            0 => "mutex/1",
            1 => "semaphore/1 3",
            2 => "0 1700000000000000 0123456789abcdef 10000 0 0",
            _ => "host\t1\tmain#1\tlabel",
        }),
        _ => bulk(&facts.token(input).simple()),
    };
    letters.bytes().map(field).collect()
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Damages one part, somewhere: it is replaced, doubled, removed, or everything from it on is cut
/// off.
fn spoil(value: &mut Value, input: &mut FuzzInput<'_>) {
    if let Value::Array(parts) = value
        && !parts.is_empty()
        && !input.one_in(8)
    {
        let at = input.below(parts.len().min(255));
        match input.below(6) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, parts[at].clone()),
            2 => parts.truncate(at),
            _ => spoil(&mut parts[at], input),
        }
    } else {
        *value = any_value(input, 3);
    }
}

/// Any value, nested at most this deep.
pub(super) fn any_value(input: &mut FuzzInput<'_>, depth: usize) -> Value {
    let several = |input: &mut FuzzInput<'_>| {
        (0..input.below(6))
            .map(|_| any_value(input, depth - 1))
            .collect::<Vec<_>>()
    };
    match input.below(if depth == 0 { 9 } else { 13 }) {
        0 => Value::Nil,
        1 => Value::Int(input.number() as i64),
        2 => Value::Int(-i64::from(input.byte())),
        3 => bulk(&input.text()),
        4 => Value::BulkString(input.bytes(40).to_vec()),
        5 => Value::SimpleString(input.text()),
        6 => input
            .choose(&[Value::Okay, Value::Boolean(true)].each_ref())
            .clone(),
        7 => Value::Double(input.number() as f64),
        8 => parse_value(b"-ERR no\r\n").unwrap_or(Value::Nil),
        9 => Value::Set(several(input)),
        10 => Value::Map(
            several(input)
                .into_iter()
                .map(|value| (value, Value::Nil))
                .collect(),
        ),
        _ => Value::Array(several(input)),
    }
}
