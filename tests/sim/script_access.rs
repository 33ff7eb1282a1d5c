//! Operations of the simulator and the fuzzer on tokens and replies that the engine never needs.

pub(crate) use redis::Value;
use uuid::Uuid;

use super::Token;

/// The first of the replies in these bytes.
pub(crate) fn parse_value(bytes: &[u8]) -> Option<Value> {
    redis::parse_redis_value(bytes).ok()
}

/// All replies in these bytes, up to the first that is malformed.
pub(crate) fn values_of(mut bytes: &[u8]) -> Vec<Value> {
    let mut parser = redis::Parser::new();
    std::iter::from_fn(|| parser.parse_value(&mut bytes).ok()).collect()
}

impl Token {
    /// A token that its number identifies, for a search that numbers its tokens.
    pub(crate) fn numbered(number: u16) -> Token {
        Token(Uuid::from_u128(number.into()))
    }

    /// The number of a numbered token.
    pub(crate) fn number(self) -> u16 {
        self.0.as_u128() as u16
    }

    /// The form that records have.
    pub(crate) fn simple(self) -> String {
        self.0.simple().to_string()
    }
}
