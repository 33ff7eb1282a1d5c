//! Reads the single values of a reply. Each reader says what it expected if something else came.

use std::str::FromStr;
use std::time::Duration;

use redis::Value;

use crate::loss::PreviousHolder;
use crate::script::{Token, value_text};

/// A reply without the shape that its script promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a reply of an unexpected shape: expected {expected}, got {got}")]
pub(crate) struct Malformed {
    expected: &'static str,
    got: String,
}

/// One call passes over no more waiters: see queue_head.lua.
const MOST_PASSED_OVER: u64 = 64;

pub(super) type ParseResult<T> = std::result::Result<T, Malformed>;

pub(super) fn token(value: &Value) -> ParseResult<Token> {
    Token::parse(text(value)?).ok_or_else(|| malformed("a token", value))
}

pub(super) fn previous(value: &Value) -> ParseResult<PreviousHolder> {
    let previous = match value {
        Value::Int(n) => previous_from(*n),
        _ => None,
    };
    previous.ok_or_else(|| malformed("how the previous holder ended, -1 to 2", value))
}

pub(super) fn previous_from(n: i64) -> Option<PreviousHolder> {
    match n {
        -1 => Some(PreviousHolder::Unknown),
        0 => Some(PreviousHolder::Released),
        1 => Some(PreviousHolder::Lapsed),
        2 => Some(PreviousHolder::Forced),
        _ => None,
    }
}

pub(super) fn number(value: &Value) -> ParseResult<u64> {
    let number = match value {
        Value::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    };
    number.ok_or_else(|| malformed("a number, not below 0", value))
}

pub(super) fn flag(value: &Value) -> ParseResult<bool> {
    match number(value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(malformed("0 or 1", value)),
    }
}

/// 1 if there is more of the same to do, and twice the number of waiters of dead processes that
/// the call passed over.
pub(super) fn more_and_dead_waiters(value: &Value) -> ParseResult<(bool, u64)> {
    let number = number(value)?;
    if number > 1 + 2 * MOST_PASSED_OVER {
        return Err(malformed("0 or 1, and twice at most 64", value));
    }
    Ok((number % 2 == 1, number / 2))
}

pub(super) fn micros(value: &Value) -> ParseResult<Duration> {
    number(value).map(Duration::from_micros)
}

/// A time left. If it is over: for how long.
pub(super) fn time_left(value: &Value) -> ParseResult<(Duration, Option<Duration>)> {
    let Value::Int(left) = value else {
        return Err(malformed("a number of µs", value));
    };
    let micros = Duration::from_micros(left.unsigned_abs());
    Ok(if *left > 0 {
        (micros, None)
    } else {
        (Duration::ZERO, Some(micros))
    })
}

pub(super) fn text(value: &Value) -> ParseResult<&str> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(&**text),
        _ => None,
    };
    text.ok_or_else(|| malformed("a text", value))
}

/// A number exactly as the scripts write it.
pub(super) fn plain<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse()
        .ok()
        .filter(|number: &N| number.to_string() == text)
}

/// When the row began to which a stamp belongs: the second of two or three numbers, packed as Lua's
/// are.
pub(super) fn since_of(stamp: &[u8]) -> Option<u64> {
    let numbers = stamp
        .chunks(8)
        .map(|number| packed_number(number.try_into().ok()?));
    match numbers.collect::<Option<Vec<u64>>>()?[..] {
        [_, since] | [_, since, _] => Some(since),
        _ => None,
    }
}

/// A whole number, packed as Lua's are.
pub(super) fn packed_number(bytes: &[u8; 8]) -> Option<u64> {
    let number = f64::from_le_bytes(*bytes);
    // From 2^53 on, a number of Lua's need not be exact.
    const TOO_LARGE: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number)).then_some(number as u64)
}

pub(super) fn malformed(expected: &'static str, value: &Value) -> Malformed {
    Malformed {
        expected,
        got: value_text(value),
    }
}
