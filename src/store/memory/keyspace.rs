//! The data of a Redis server as a plain value, and the commands on it that the scripts use. Each
//! command does what Redis defines.

use std::collections::{BTreeMap, VecDeque};

use redis::Value;

/// A key, a field, a value or an element.
pub(crate) type Bytes = Vec<u8>;

/// A reply, or the text of an error.
pub(crate) type CommandResult = Result<Value, String>;

/// All keys. Two keyspaces that are equal reply alike to every command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Keyspace {
    keys: BTreeMap<Bytes, KeyEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KeyEntry {
    pub(super) content: Content,
    /// The last ms of the server's time in which the key exists.
    pub(super) expires_at: Option<i64>,
}

/// Never empty: a key disappears with its last field or element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Hash(BTreeMap<Bytes, Bytes>),
    List(VecDeque<Bytes>),
}

/// The commands, and how many words each has, its name included. A negative number is a minimum.
const COMMANDS: [(&str, i8); 19] = [
    ("DEL", -2),
    ("HDEL", -3),
    ("HEXISTS", 3),
    ("HGET", 3),
    ("HGETALL", 2),
    ("HKEYS", 2),
    ("HLEN", 2),
    ("HMGET", -3),
    ("HSCAN", -3),
    ("HSET", -4),
    ("LINDEX", 3),
    ("LLEN", 2),
    ("LPOP", -2),
    ("LRANGE", 4),
    ("PEXPIREAT", -3),
    ("PTTL", 2),
    ("RPOP", -2),
    ("RPUSH", -3),
    ("UNLINK", -2),
];

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_POSITIVE: &str = "ERR value is out of range, must be positive";

impl Keyspace {
    /// How many words a command has, if it is one of [`COMMANDS`].
    pub(super) fn arity(name: &str) -> Option<i8> {
        COMMANDS
            .iter()
            .find(|(command, _)| *command == name)
            .map(|(_, arity)| *arity)
    }

    /// Runs a command at a server's time in ms. Its number of words must fit its arity.
    pub(super) fn run(&mut self, now_ms: i64, name: &str, args: &[Bytes]) -> CommandResult {
        // A key whose time is over is gone, whichever command finds it first.
        for key in if matches!(name, "DEL" | "UNLINK") {
            args
        } else {
            &args[..1]
        } {
            if self
                .keys
                .get(key)
                .and_then(|entry| entry.expires_at)
                .is_some_and(|at| at < now_ms)
            {
                self.keys.remove(key);
            }
        }
        match (name, args) {
            ("DEL" | "UNLINK", keys) => Ok(number(
                keys.iter()
                    .filter(|key| self.keys.remove(*key).is_some())
                    .count(),
            )),
            ("PEXPIREAT", [key, at]) => self.expire_at(now_ms, key, at),
            ("PEXPIREAT", [_, _, option, ..]) => Err(format!(
                "ERR Unsupported option {}",
                String::from_utf8_lossy(option)
            )),
            ("PTTL", [key]) => {
                Ok(Value::Int(self.keys.get(key).map_or(-2, |entry| {
                    entry.expires_at.map_or(-1, |at| at - now_ms)
                })))
            }
            ("HSET", [key, pairs @ ..]) if pairs.len() % 2 == 0 => self.set_fields(key, pairs),
            ("HDEL", [key, fields @ ..]) => self.delete_fields(key, fields),
            (name, [key, args @ ..]) if name.starts_with('H') => self.read_hash(name, key, args),
            (name, [key, args @ ..]) => self.run_on_list(name, key, args),
            (name, []) => Err(wrong_number(name)),
        }
    }

    fn read_hash(&self, name: &str, key: &Bytes, args: &[Bytes]) -> CommandResult {
        let of = |hash: Option<&BTreeMap<Bytes, Bytes>>, field| {
            bulk(hash.and_then(|hash| hash.get(field)))
        };
        let hash = || self.hash(key);
        match (name, args) {
            ("HGET", [field]) => hash().map(|hash| of(hash, field)),
            ("HMGET", fields) if !fields.is_empty() => hash().map(|hash| {
                let values = fields.iter().map(|field| of(hash, field));
                Value::Array(values.collect())
            }),
            ("HGETALL", []) => hash().map(|hash| {
                let pairs = hash.into_iter().flatten();
                Value::Array(
                    pairs
                        .flat_map(|(field, value)| [bulk(Some(field)), bulk(Some(value))])
                        .collect(),
                )
            }),
            ("HKEYS", []) => hash().map(|hash| {
                let pairs = hash.into_iter().flatten();
                Value::Array(pairs.map(|(field, _)| bulk(Some(field))).collect())
            }),
            ("HLEN", []) => hash().map(|hash| number(hash.map_or(0, BTreeMap::len))),
            ("HSCAN", [cursor, option, count]) if option.eq_ignore_ascii_case(b"COUNT") => {
                page_of(hash()?, cursor, count)
            }
            ("HEXISTS", [field]) => hash().map(|hash| {
                let exists = hash.is_some_and(|hash| hash.contains_key(field));
                number(usize::from(exists))
            }),
            _ => Err(wrong_number(name)),
        }
    }

    fn run_on_list(&mut self, name: &str, key: &Bytes, args: &[Bytes]) -> CommandResult {
        match (name, args) {
            ("LLEN", []) => self
                .list(key)
                .map(|list| number(list.map_or(0, VecDeque::len))),
            ("LINDEX", [index]) => self.element(key, index),
            ("LRANGE", [first, last]) => self.range(key, first, last),
            ("LPOP", []) => self.pop(key, 1, VecDeque::pop_front).map(first),
            ("RPOP", []) => self.pop(key, 1, VecDeque::pop_back).map(first),
            ("LPOP", [count]) => self.pop_many(key, count, VecDeque::pop_front),
            ("RPOP", [count]) => self.pop_many(key, count, VecDeque::pop_back),
            ("RPUSH", elements) if !elements.is_empty() => self.push(key, elements),
            _ => Err(wrong_number(name)),
        }
    }

    /// The value of a key, if it exists.
    pub(super) fn entry(&self, key: &str) -> Option<&KeyEntry> {
        self.keys.get(key.as_bytes())
    }

    /// A hash, and the last ms in which it exists.
    pub(crate) fn hash_of(&self, key: &str) -> Option<(&BTreeMap<Bytes, Bytes>, Option<i64>)> {
        match self.entry(key) {
            Some(KeyEntry {
                content: Content::Hash(hash),
                expires_at,
            }) => Some((hash, *expires_at)),
            _ => None,
        }
    }

    /// The keys of all hashes that exist.
    pub(super) fn hashes(&self, now_ms: i64) -> impl Iterator<Item = &Bytes> {
        let exists = move |entry: &KeyEntry| entry.expires_at.is_none_or(|at| at >= now_ms);
        let hashes = self
            .keys
            .iter()
            .filter(move |(_, e)| exists(e) && matches!(e.content, Content::Hash(_)));
        hashes.map(|(key, _)| key)
    }

    /// Drops the keys whose time is over. Changes no reply.
    pub(super) fn sweep(&mut self, now_ms: i64) {
        self.keys
            .retain(|_, entry| entry.expires_at.is_none_or(|at| at >= now_ms));
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    fn hash(&self, key: &Bytes) -> Result<Option<&BTreeMap<Bytes, Bytes>>, String> {
        match self.keys.get(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Hash(hash)) => Ok(Some(hash)),
            Some(Content::List(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn list(&self, key: &Bytes) -> Result<Option<&VecDeque<Bytes>>, String> {
        match self.keys.get(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::List(list)) => Ok(Some(list)),
            Some(Content::Hash(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn set_fields(&mut self, key: &Bytes, pairs: &[Bytes]) -> CommandResult {
        let empty = || KeyEntry {
            content: Content::Hash(BTreeMap::new()),
            expires_at: None,
        };
        let Content::Hash(hash) = &mut self.keys.entry(key.clone()).or_insert_with(empty).content
        else {
            return Err(WRONG_TYPE.to_owned());
        };
        let new = pairs
            .chunks(2)
            .filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none());
        Ok(number(new.count()))
    }

    fn delete_fields(&mut self, key: &Bytes, fields: &[Bytes]) -> CommandResult {
        let Some(entry) = self.keys.get_mut(key) else {
            return Ok(Value::Int(0));
        };
        let Content::Hash(hash) = &mut entry.content else {
            return Err(WRONG_TYPE.to_owned());
        };
        let deleted = fields
            .iter()
            .filter(|field| hash.remove(*field).is_some())
            .count();
        if hash.is_empty() {
            self.keys.remove(key);
        }
        Ok(number(deleted))
    }

    fn push(&mut self, key: &Bytes, elements: &[Bytes]) -> CommandResult {
        let empty = || KeyEntry {
            content: Content::List(VecDeque::new()),
            expires_at: None,
        };
        let Content::List(list) = &mut self.keys.entry(key.clone()).or_insert_with(empty).content
        else {
            return Err(WRONG_TYPE.to_owned());
        };
        list.extend(elements.iter().cloned());
        Ok(number(list.len()))
    }

    fn element(&self, key: &Bytes, index: &Bytes) -> CommandResult {
        // Redis looks for the key before it reads the index.
        let Some(list) = self.list(key)? else {
            return Ok(Value::Nil);
        };
        let index = integer(index)?;
        let from_front = if index < 0 {
            index + list.len() as i64
        } else {
            index
        };
        Ok(bulk(
            usize::try_from(from_front).ok().and_then(|at| list.get(at)),
        ))
    }

    fn range(&self, key: &Bytes, first: &Bytes, last: &Bytes) -> CommandResult {
        let first = integer(first)?;
        let last = integer(last)?;
        let Some(list) = self.list(key)? else {
            return Ok(Value::Array(Vec::new()));
        };
        let from_front = |index: i64| {
            if index < 0 {
                index.saturating_add(list.len() as i64).max(-1)
            } else {
                index
            }
        };
        let skipped = from_front(first).max(0);
        let taken = from_front(last)
            .saturating_sub(skipped)
            .saturating_add(1)
            .max(0);
        let elements = list.iter().skip(skipped as usize).take(taken as usize);
        Ok(Value::Array(
            elements.map(|element| bulk(Some(element))).collect(),
        ))
    }

    /// `None` if there is no such key.
    fn pop(
        &mut self,
        key: &Bytes,
        count: usize,
        end: fn(&mut VecDeque<Bytes>) -> Option<Bytes>,
    ) -> Result<Option<Vec<Bytes>>, String> {
        let Some(entry) = self.keys.get_mut(key) else {
            return Ok(None);
        };
        let Content::List(list) = &mut entry.content else {
            return Err(WRONG_TYPE.to_owned());
        };
        let popped = (0..count.min(list.len()))
            .map_while(|_| end(list))
            .collect();
        if list.is_empty() {
            self.keys.remove(key);
        }
        Ok(Some(popped))
    }

    fn pop_many(
        &mut self,
        key: &Bytes,
        count: &Bytes,
        end: fn(&mut VecDeque<Bytes>) -> Option<Bytes>,
    ) -> CommandResult {
        let count = integer(count)
            .ok()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or(NOT_POSITIVE)?;
        let popped = self.pop(key, count, end)?;
        Ok(popped.map_or(Value::Nil, |popped| {
            Value::Array(popped.iter().map(|e| bulk(Some(e))).collect())
        }))
    }

    /// An expiry that is not in the future deletes the key, and that counts as set.
    fn expire_at(&mut self, now_ms: i64, key: &Bytes, at: &Bytes) -> CommandResult {
        let at = integer(at)?;
        let Some(entry) = self.keys.get_mut(key) else {
            return Ok(Value::Int(0));
        };
        entry.expires_at = Some(at);
        if at <= now_ms {
            self.keys.remove(key);
        }
        Ok(Value::Int(1))
    }
}

/// A page of a hash, and where the next one begins. The fields come in the order of a number made
/// from their names. So a field that is there during all pages is on one of them, whatever else
/// comes and goes.
fn page_of(hash: Option<&BTreeMap<Bytes, Bytes>>, cursor: &Bytes, count: &Bytes) -> CommandResult {
    let from: u64 = std::str::from_utf8(cursor)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or("ERR invalid cursor")?;
    let count = usize::try_from(integer(count)?).map_err(|_| "ERR syntax error")?;
    let mut fields: Vec<_> = hash
        .into_iter()
        .flatten()
        .map(|(field, value)| (scan_place(field), field, value))
        .filter(|(place, ..)| *place >= from)
        .collect();
    fields.sort_unstable_by_key(|(place, ..)| *place);
    let next = fields.get(count).map_or(0, |(place, ..)| *place);
    let page = fields
        .iter()
        .take_while(|(place, ..)| next == 0 || *place < next)
        .flat_map(|(_, field, value)| [bulk(Some(field)), bulk(Some(value))]);
    let cursor = Value::BulkString(next.to_string().into_bytes());
    Ok(Value::Array(vec![cursor, Value::Array(page.collect())]))
}

/// Where a field comes in a scan; never 0, which is the begin. FNV-1a, so that it is the same in
/// every run.
fn scan_place(field: &Bytes) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    field.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}

pub(super) fn wrong_number(name: &str) -> String {
    format!(
        "ERR wrong number of arguments for '{}' command",
        name.to_lowercase()
    )
}

fn bulk(bytes: Option<&Bytes>) -> Value {
    bytes.map_or(Value::Nil, |bytes| Value::BulkString(bytes.clone()))
}

fn first(popped: Option<Vec<Bytes>>) -> Value {
    bulk(popped.unwrap_or_default().first())
}

fn number(n: usize) -> Value {
    Value::Int(n as i64)
}

/// Redis accepts a number only in the form in which it would write that number itself.
fn integer(bytes: &Bytes) -> Result<i64, String> {
    let read = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok());
    read.filter(|n: &i64| n.to_string().as_bytes() == bytes)
        .ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_exists_in_its_last_millisecond_and_no_longer() {
        let mut keyspace = Keyspace::default();
        let mut run = |now_ms, command: &str| {
            let words: Vec<Bytes> = command
                .split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect();
            keyspace
                .run(now_ms, std::str::from_utf8(&words[0]).unwrap(), &words[1..])
                .unwrap()
        };
        run(10, "HSET k a 1");
        run(10, "PEXPIREAT k 20");
        assert_eq!(run(20, "HEXISTS k a"), Value::Int(1));
        assert_eq!(run(21, "HEXISTS k a"), Value::Int(0));
        // A key that is to end now has ended: a server deletes it without waiting for the next
        // millisecond.
        run(30, "HSET k a 1");
        assert_eq!(run(30, "PEXPIREAT k 30"), Value::Int(1));
        assert_eq!(run(30, "HEXISTS k a"), Value::Int(0));
    }
}
