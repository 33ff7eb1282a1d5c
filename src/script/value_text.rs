//! A reply of the server in plain words, for the error that says that it is not the expected one.

use std::fmt::{self, Write as _};

use redis::Value;

/// A longer text is cut: the beginning shows the shape.
const LONGEST: usize = 200;

/// Texts are in quotes, lists in brackets.
pub(crate) fn value_text(value: &Value) -> String {
    let mut text = Shortened(String::new());
    // An error means that the text is long enough.
    let _ = write!(text, "{}", Shown(value));
    text.0
}

/// A text that takes no more than [`LONGEST`] characters, so that a long reply costs no time.
struct Shortened(String);

impl fmt::Write for Shortened {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.0.chars().count() >= LONGEST {
                self.0.push('…');
                return Err(fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}

struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Nil => f.write_str("nil"),
            Value::Okay => f.write_str("OK"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Double(number) => write!(f, "{number}"),
            Value::Boolean(flag) => write!(f, "{flag}"),
            Value::BulkString(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => write!(f, "\"{}\"", text.escape_debug()),
                Err(_) => write!(f, "{} bytes", bytes.len()),
            },
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
                write!(f, "\"{}\"", text.escape_debug())
            }
            Value::Array(values) | Value::Set(values) => {
                f.write_str("[")?;
                for (at, value) in values.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{}", Shown(value))?;
                }
                f.write_str("]")
            }
            Value::Map(fields) => {
                f.write_str("{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{}: {}", Shown(name), Shown(value))?;
                }
                f.write_str("}")
            }
            Value::ServerError(error) => {
                write!(
                    f,
                    "the error {} {}",
                    error.code(),
                    error.details().unwrap_or_default()
                )
            }
            _ => f.write_str("a value of another kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_shown_without_rusts_names() {
        let text = |text: &str| Value::BulkString(text.into());
        for (value, shown) in [
            (Value::Nil, "nil"),
            (Value::Okay, "OK"),
            (Value::Int(-3), "-3"),
            (text("a \"b\"\n"), "\"a \\\"b\\\"\\n\""),
            (Value::BulkString(vec![0xff, 0]), "2 bytes"),
            (
                Value::Array(vec![text("x"), Value::Array(vec![])]),
                "[\"x\", []]",
            ),
            (
                Value::Map(vec![(text("role"), Value::Nil)]),
                "{\"role\": nil}",
            ),
        ] {
            assert_eq!(value_text(&value), shown);
        }
    }

    #[test]
    fn long_replies_are_cut() {
        let long = value_text(&Value::Array(vec![Value::Int(1); 1_000_000]));
        assert_eq!(long.chars().count(), LONGEST + 1);
        assert!(long.starts_with("[1, 1, ") && long.ends_with('…'), "{long}");
    }
}
