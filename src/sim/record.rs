//! A record and its queue, as far as what the promises say of them shows there.

use crate::key::Key;
use crate::script::Token;
use crate::script::packed::{Queue, State};
use crate::store::memory::keyspace::Keyspace;

/// What is there of a name.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) owner: Option<Token>,
    pub(super) manager: String,
    pub(super) fence: u64,
    pub(super) granted_at: u64,
    pub(super) end: u64,
    /// Of the holder's request, in µs.
    pub(super) ttl: u64,
    pub(super) hold: u64,
    pub(super) fixed: bool,
    /// The fence of the lease that had its grace last.
    pub(super) spared: u64,
    /// When served time was brought up to date.
    pub(super) counted: u64,
    pub(super) entries: usize,
    /// Tokens in the order of the list, and whether they have a waiter's record.
    pub(super) queue: Vec<(Token, bool)>,
}

impl Record {
    pub(super) fn read(keyspace: &Keyspace, key: &Key) -> Record {
        let Some((hash, _)) = keyspace.hash_of(key.record()) else { return Record::default() };
        let text = |field: &str| hash.get(field.as_bytes()).and_then(|text| std::str::from_utf8(text).ok());
        let state = hash.get(&b"s"[..]).and_then(|packed| State::unpack(packed)).unwrap_or_default();
        let counts = hash.get(&b"q"[..]).and_then(|packed| Queue::unpack(packed)).unwrap_or_default();
        // `ticket since manager ttl fixed hold`, of which the times are in ms.
        let request: Vec<&str> = text("a").unwrap_or_default().split(' ').collect();
        let time = |at: usize| request.get(at).and_then(|ms| ms.parse::<u64>().ok()).unwrap_or_default() * 1000;
        let entry = |token: &Vec<u8>| Some((token_of(token)?, hash.contains_key(&[b"w:", token.as_slice()].concat())));
        let list = keyspace.list_of(key.queue()).map(|(list, _)| list);
        Record {
            owner: hash.get(&b"o"[..]).and_then(|token| token_of(token)),
            manager: request.get(2).copied().unwrap_or_default().to_owned(),
            fence: state.fence,
            granted_at: state.granted,
            end: state.end,
            ttl: time(3),
            hold: time(5),
            fixed: request.get(4) == Some(&"1"),
            spared: text("u").and_then(|fence| fence.parse().ok()).unwrap_or_default(),
            counted: counts.looked,
            entries: counts.entries as usize,
            queue: list.into_iter().flatten().filter_map(entry).collect(),
        }
    }

    /// Whether somebody was made its owner since `before`.
    pub(super) fn is_granted_since(&self, before: &Record) -> bool {
        (before.owner, before.fence) != (self.owner, self.fence)
    }

    /// The holder had its time of grace.
    pub(super) fn is_spared(&self) -> bool {
        self.owner.is_some() && self.spared == self.fence
    }
}

fn token_of(text: &[u8]) -> Option<Token> {
    Token::parse(std::str::from_utf8(text).ok()?)
}
