//! From the name of a lock to its keys in Redis, and back.

use std::sync::Arc;

use crate::error::{Error, Misuse, Result};
use crate::glob::{Glob, Piece};

/// The longest name of a lock, in bytes of UTF-8.
pub(crate) const MAX_NAME: usize = 512;

/// The name of a lock, with its keys.
///
/// The record is `<prefix>:{<name>}` and the queue `<prefix>:{<name>}:q`. Semaphores and
/// reader/writer locks also have `<prefix>:{<name>}:h`, the holders. The braces are a hash tag, so
/// all keys of a name are in one slot. `{`, `}` and `%` in the name are percent-encoded. So the tag
/// is always the whole name, and no two names share a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: Arc<str>,
    queue: Arc<str>,
}

impl Key {
    /// Refuses an empty name and one of more than [`MAX_NAME`] bytes (P10).
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Key> {
        if name.is_empty() || name.len() > MAX_NAME {
            let message = format!(
                "a name has 1 to {MAX_NAME} bytes; this one has {}",
                name.len()
            );
            return Err(Error::misused(Misuse::Name, message));
        }
        let mut queue = String::with_capacity(prefix.len() + name.len() + 5);
        queue.push_str(prefix);
        queue.push_str(":{");
        encode(name, &mut queue);
        queue.push_str("}:q");
        Ok(Key {
            name: name.into(),
            queue: queue.into(),
        })
    }

    /// Reads the name back from the key of a record. `None` if this is not such a key, or has
    /// another prefix.
    pub(crate) fn from_record(prefix: &str, record: &str) -> Option<Key> {
        let encoded = record
            .strip_prefix(prefix)?
            .strip_prefix(":{")?
            .strip_suffix('}')?;
        let key = Key::new(prefix, &decode(encoded)?).ok()?;
        (key.record() == record).then_some(key)
    }

    pub(crate) fn record(&self) -> &str {
        &self.queue[..self.queue.len() - ":q".len()]
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    /// The part of all its keys that decides their slot in a cluster.
    pub(crate) fn hash_tag(&self) -> &str {
        // The name's own braces are encoded, and a prefix has none.
        let (_, tag) = self.record().split_once('{').unwrap_or_default();
        tag.strip_suffix('}').unwrap_or_default()
    }

    /// The key of the holders, for kinds whose holders are not in the record.
    pub(crate) fn holders(&self) -> String {
        format!("{}:h", self.record())
    }
}

/// A SCAN pattern that finds the records of all names that match a glob, and some others.
///
/// Redis matches bytes, and one character of a name may be several bytes of its key. So `?` and
/// classes become `*` here, and the caller must match each name again.
pub(crate) fn scan_pattern(prefix: &str, glob: &Glob) -> String {
    let mut pattern = String::new();
    push_literally(prefix, &mut pattern);
    pattern.push_str(":{");
    for piece in glob.pieces() {
        match piece {
            Piece::Char(c) => {
                let mut encoded = String::new();
                encode(c.encode_utf8(&mut [0; 4]), &mut encoded);
                push_literally(&encoded, &mut pattern);
            }
            Piece::Any | Piece::One | Piece::Class { .. } => pattern.push('*'),
        }
    }
    pattern.push('}');
    pattern
}

fn push_literally(text: &str, pattern: &mut String) {
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
}

fn encode(name: &str, out: &mut String) {
    for c in name.chars() {
        match c {
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            '%' => out.push_str("%25"),
            c => out.push(c),
        }
    }
}

fn decode(encoded: &str) -> Option<String> {
    let mut name = String::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some(at) = rest.find(['%', '{', '}']) {
        name.push_str(&rest[..at]);
        name.push(match rest.get(at..at + 3)? {
            "%7B" => '{',
            "%7D" => '}',
            "%25" => '%',
            _ => return None,
        });
        rest = &rest[at + 3..];
    }
    name.push_str(rest);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awkward_names_round_trip_and_never_collide() {
        let names = [
            "a",
            "a b",
            "{",
            "}",
            "{}",
            "}x",
            "%",
            "%7B",
            "a:q",
            "a}:q",
            "\n\"'",
            "🦀",
            &"é".repeat(256),
        ];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let key = Key::new("p", name).unwrap();
            assert_eq!(
                Key::from_record("p", key.record()),
                Some(key.clone()),
                "{name:?}"
            );
            assert!(
                seen.insert(key.record().to_owned()) && seen.insert(key.queue().to_owned()),
                "{name:?}"
            );
        }
    }

    #[test]
    fn foreign_keys_are_not_read_as_names() {
        for record in [
            "p:{}", "p:{a", "p:{a}b}", "p:{%zz}", "p:{a}:q", "q:{a}", "p:{é%",
        ] {
            assert_eq!(Key::from_record("p", record), None, "{record}");
        }
    }
}
