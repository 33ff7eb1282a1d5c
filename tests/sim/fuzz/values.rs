//! Answers that a server may give: of any shape, and nearly or wholly of the shape that is promised.

use std::sync::Arc;

use super::shapes::{GRANT, HOLDER, shapes_of};
use super::tape::Tape;
use crate::key::Key;
use crate::script::{Call, Family, LockSpec, Mode, Token, Value, Verb, parse_value};

/// What an answer can be about.
pub(super) struct About<'a> {
    pub(super) tokens: &'a [Token],
    /// The server's time in µs.
    pub(super) now: u64,
}

impl About<'_> {
    pub(super) fn token(&self, tape: &mut Tape<'_>) -> Token {
        // The newest are params about most.
        let back = tape.below(self.tokens.len().clamp(1, 255));
        self.tokens
            .iter()
            .rev()
            .nth(back)
            .copied()
            .unwrap_or_else(|| Token::numbered(back as u16))
    }
}

pub(super) fn any_call(key: &Key, about: &About<'_>, tape: &mut Tape<'_>) -> Call {
    let token = about.token(tape);
    let params: Arc<str> = "10000 0 0 host\t1\tmain\t".into();
    let which = tape.below(36);
    let verb = match which % 9 {
        0 | 1 => Verb::Acquire {
            token,
            may_wait: true,
            params,
        },
        2 => Verb::Acquire {
            token,
            may_wait: false,
            params,
        },
        3 => {
            let modes = [
                Mode::Used,
                Mode::Unused,
                Mode::Lost,
                Mode::KeepIfOwner,
                Mode::Forced,
                Mode::Downgrade,
            ];
            Verb::Release {
                token,
                fence: tape.number(),
                mode: tape.choose(&modes),
            }
        }
        4 => Verb::Renew { token },
        5 | 6 => Verb::Sync { newest: token },
        7 => Verb::Inspect { waiters: 1000 },
        _ => Verb::Lookup {
            tokens: (0..tape.below(4)).map(|_| about.token(tape)).collect(),
        },
    };
    Call {
        spec: SPECS[which / 9],
        key: key.clone(),
        verb,
    }
}

/// One of each kind.
pub(super) const SPECS: [LockSpec; 4] = [
    LockSpec::MUTEX,
    LockSpec::read(),
    LockSpec::write(),
    LockSpec::semaphore(3, 2),
];

/// As it is promised, three times out of four, else with something in it that is not.
pub(super) fn answer(call: &Call, about: &About<'_>, tape: &mut Tape<'_>) -> Value {
    let mut value = match call.verb {
        _ if tape.one_in(32) => return any(tape, 4),
        Verb::Lookup { ref tokens } if call.spec.family == Family::Mutex => {
            let letters = ["o", "m"]
                .into_iter()
                .chain(tokens.iter().map(|_| "w"))
                .collect::<String>();
            Value::Array(fields(&letters, about, tape))
        }
        _ => {
            let (status, letters) = tape.choose(&shapes_of(call));
            let each = if status == "seen" { "a" } else { GRANT };
            let mut rest: Vec<_> = (0..tape.below(8).saturating_sub(5))
                .flat_map(|_| fields(each, about, tape))
                .collect();
            if let (Verb::Lookup { tokens }, "present") = (&call.verb, status) {
                rest = tokens.iter().map(|_| known(about, tape)).collect();
            }
            let now = Value::Int(
                about
                    .now
                    .wrapping_add_signed(i64::from(tape.byte() as i8) * 1000)
                    as i64,
            );
            let more = Value::Int(i64::from(tape.one_in(8)));
            let mut said = fields(letters, about, tape);
            if status == "seen" && call.spec.family == Family::Permit {
                let holders = tape.below(3);
                said[3] = Value::Int(holders as i64);
                said.extend((0..holders).flat_map(|_| fields(HOLDER, about, tape)));
            }
            let said = said.into_iter().chain(rest);
            Value::Array([bulk(status), now, more].into_iter().chain(said).collect())
        }
    };
    if tape.one_in(4) {
        spoil(&mut value, tape);
    }
    value
}

/// What a lookup of permits says of a token.
fn known(about: &About<'_>, tape: &mut Tape<'_>) -> Value {
    match tape.below(3) {
        2 => Value::Array(fields(&GRANT[1..], about, tape)),
        waits => Value::Int(waits as i64),
    }
}

fn fields(letters: &str, about: &About<'_>, tape: &mut Tape<'_>) -> Vec<Value> {
    let field = |letter| match letter {
        b'n' => match tape.below(4) {
            0 => Value::Int(about.now as i64),
            1 => Value::Int(about.now.wrapping_sub(u64::from(tape.byte()) * 50_000) as i64),
            2 => Value::Int(i64::from(tape.byte()) * 100_000),
            _ => Value::Int(tape.number() as i64),
        },
        b'b' => Value::Int(tape.below(2) as i64),
        b'k' => Value::Int(tape.below(4) as i64 - 1),
        b'e' if !tape.one_in(32) => bulk(""),
        b'h' => {
            let fence = tape.number();
            bulk(&format!(
                "rw/1 9 {fence} 1 {} 0123456789abcdef 10000 0 0 1 host\t1\tmain\tlabel",
                about.now
            ))
        }
        b'o' if tape.one_in(4) => bulk(""),
        b'm' | b'w' if tape.one_in(2) => Value::Nil,
        b'm' => bulk(&format!("{} {}", about.now, tape.number() >> 1)),
        b'a' | b'w' if tape.one_in(4) => bulk(&tape.text()),
        b'a' | b'w' => bulk(&format!(
            "1 {} 0123456789abcdef 10000 0 0 host\t{}\tmain\tlabel",
            about.now,
            tape.number()
        )),
        b's' => bulk(match tape.below(4) {
            0 => "mutex/1",
            1 => "semaphore/1 3",
            2 => "0 1700000000000000 0123456789abcdef 10000 0 0",
            _ => "host\t1\tmain\tlabel",
        }),
        _ => bulk(&about.token(tape).simple()),
    };
    letters.bytes().map(field).collect()
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// One thing in it, somewhere, is another, twice there, missing, or last.
fn spoil(value: &mut Value, tape: &mut Tape<'_>) {
    if let Value::Array(parts) = value
        && !parts.is_empty()
        && !tape.one_in(8)
    {
        let at = tape.below(parts.len().min(255));
        match tape.below(6) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, parts[at].clone()),
            2 => parts.truncate(at),
            _ => spoil(&mut parts[at], tape),
        }
    } else {
        *value = any(tape, 3);
    }
}

/// Any value, as deep as this.
pub(super) fn any(tape: &mut Tape<'_>, depth: usize) -> Value {
    let several = |tape: &mut Tape<'_>| {
        (0..tape.below(6))
            .map(|_| any(tape, depth - 1))
            .collect::<Vec<_>>()
    };
    match tape.below(if depth == 0 { 9 } else { 13 }) {
        0 => Value::Nil,
        1 => Value::Int(tape.number() as i64),
        2 => Value::Int(-i64::from(tape.byte())),
        3 => bulk(&tape.text()),
        4 => Value::BulkString(tape.bytes(40).to_vec()),
        5 => Value::SimpleString(tape.text()),
        6 => tape
            .choose(&[Value::Okay, Value::Boolean(true)].each_ref())
            .clone(),
        7 => Value::Double(tape.number() as f64),
        8 => parse_value(b"-ERR no\r\n").unwrap_or(Value::Nil),
        9 => Value::Set(several(tape)),
        10 => Value::Map(
            several(tape)
                .into_iter()
                .map(|value| (value, Value::Nil))
                .collect(),
        ),
        _ => Value::Array(several(tape)),
    }
}
