//! A record with its queue and its holders, as far as what the promises say of them shows there. A mutex is one with at
//! most one holder.

use crate::key::Key;
use crate::script::Token;
use crate::script::packed::{Holder as Packed, Permits, Queue, State};
use crate::store::memory::keyspace::{Bytes, Keyspace};

/// What is there of a name.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    /// Those who hold, their time over or not.
    pub(super) holders: Vec<Holder>,
    /// What is nobody's, and not free until its least time is over.
    pub(super) cooling: Vec<Cooling>,
    /// The fence given last; of a reader/writer lock that of the last writer.
    pub(super) fence: u64,
    /// When served time was brought up to date.
    pub(super) counted: u64,
    pub(super) entries: usize,
    /// How many waiters' records it counts, and how many there are.
    pub(super) waiters: (usize, usize),
    /// The list, in its order.
    pub(super) queue: Vec<Entry>,
    /// What is counted of holders that are many, and looked at only now and then.
    pub(super) books: Option<Books>,
}

/// Whose time is told, and on what terms. All times are in µs.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) manager: String,
    pub(super) fence: u64,
    pub(super) granted_at: u64,
    pub(super) end: u64,
    pub(super) ttl: u64,
    pub(super) hold: u64,
    pub(super) permits: u32,
    /// It had its time of grace.
    pub(super) spared: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Cooling {
    /// Whose it was; of a mutex nothing tells.
    pub(super) token: Option<Token>,
    pub(super) end: u64,
    pub(super) permits: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) token: Token,
    /// It has a waiter's record.
    pub(super) waits: bool,
    pub(super) manager: String,
    pub(super) permits: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Books {
    pub(super) capacity: u32,
    pub(super) taken: u32,
    /// No holder lapses before it; 0 if there is none.
    pub(super) look_from: u64,
    /// The shortest lease among them.
    pub(super) shortest: u64,
}

impl Record {
    pub(super) fn read(keyspace: &Keyspace, key: &Key) -> Record {
        let mut record = Record::default();
        let hash = keyspace.hash_of(key.record()).map(|(hash, _)| hash);
        let field = |field: &str| hash.and_then(|hash| hash.get(field.as_bytes()));
        let text = |name: &str| field(name).and_then(|text| std::str::from_utf8(text).ok());
        if let Some(state) = field("s").and_then(|packed| State::unpack(packed)) {
            record.fence = state.fence;
            let spared = text("u").and_then(|fence| fence.parse::<u64>().ok()) == Some(state.fence);
            let owner = field("o").and_then(|token| token_of(token));
            let request = Request::read(text("a").unwrap_or_default());
            let Request {
                manager, ttl, hold, ..
            } = request;
            let (fence, granted_at, end, permits) =
                (state.fence, state.granted_at, state.lease_end, 1);
            let holder = |token| Holder {
                token,
                manager,
                fence,
                granted_at,
                end,
                ttl,
                hold,
                permits,
                spared,
            };
            record.cooling = match owner {
                None if end > 0 => vec![Cooling {
                    token: None,
                    end,
                    permits,
                }],
                _ => Vec::new(),
            };
            record.holders = owner.map(holder).into_iter().collect();
        }
        if let Some(state) = field("p").and_then(|packed| Permits::unpack(packed)) {
            record.fence = state.fence;
            let Permits {
                capacity,
                permits_taken: taken,
                next_lapse: look_from,
                shortest_lease: shortest,
                ..
            } = state;
            record.books = Some(Books {
                capacity,
                taken,
                look_from,
                shortest: u64::from(shortest) * 1000,
            });
        }
        for (field, holder) in keyspace
            .hash_of(&key.holders())
            .into_iter()
            .flat_map(|(holders, _)| holders)
        {
            record.read_holder(field, holder);
        }
        // Their tokens are not the same when a run is played again.
        record
            .holders
            .sort_by_key(|holder| (holder.granted_at, holder.fence));
        // A mutex has its queue in one field, and permits in another.
        let counts = field("q")
            .or(field("n"))
            .and_then(|packed| Queue::unpack(packed))
            .unwrap_or_default();
        (record.counted, record.entries) = (counts.looked_at, counts.entries as usize);
        let fields = hash.into_iter().flat_map(|hash| hash.keys());
        record.waiters = (
            counts.waiter_records as usize,
            fields.filter(|field| field.starts_with(b"w:")).count(),
        );
        let entry = |token: &Bytes| {
            let waiter = hash.and_then(|hash| hash.get(&[b"w:", token.as_slice()].concat()));
            let request = Request::read(
                waiter
                    .and_then(|text| std::str::from_utf8(text).ok())
                    .unwrap_or_default(),
            );
            let Request {
                manager, permits, ..
            } = request;
            Some(Entry {
                token: token_of(token)?,
                waits: waiter.is_some(),
                manager,
                permits,
            })
        };
        let list = keyspace.list_of(key.queue()).map(|(list, _)| list);
        record.queue = list.into_iter().flatten().filter_map(entry).collect();
        record
    }

    fn read_holder(&mut self, field: &[u8], holder: &[u8]) {
        let token = token_of(field.strip_prefix(b"c:").unwrap_or(field));
        let (
            Some(token),
            Some((
                Packed {
                    lease_end: end,
                    weight: permits,
                    phase: stands,
                    ..
                },
                text,
            )),
        ) = (token, Packed::unpack(holder))
        else {
            return;
        };
        let Ok(text) = std::str::from_utf8(text) else {
            return;
        };
        match stands {
            0 | 1 => {
                // `kind capacity fence`, and the rest as of a waiter.
                let mut words = text.splitn(4, ' ').skip(2);
                let fence = words
                    .next()
                    .and_then(|fence| fence.parse().ok())
                    .unwrap_or_default();
                let request = Request::read(words.next().unwrap_or_default());
                let Request {
                    manager,
                    since: granted_at,
                    ttl,
                    hold,
                    ..
                } = request;
                let spared = stands == 1;
                self.holders.push(Holder {
                    token,
                    manager,
                    fence,
                    granted_at,
                    end,
                    ttl,
                    hold,
                    permits,
                    spared,
                });
            }
            2 => self.cooling.push(Cooling {
                token: Some(token),
                end,
                permits,
            }),
            // It stays so that its holder hears what became of it.
            _ => {}
        }
    }

    pub(super) fn holder(&self, token: Token) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.token == token)
    }

    /// Those who were made holders since `before`.
    pub(super) fn granted_since<'a>(
        &'a self,
        before: &'a Record,
    ) -> impl Iterator<Item = &'a Holder> {
        self.holders
            .iter()
            .filter(|holder| before.same(holder).is_none())
    }

    /// The same grant.
    pub(super) fn same(&self, grant: &Holder) -> Option<&Holder> {
        let holder = self.holder(grant.token)?;
        ((holder.fence, holder.granted_at) == (grant.fence, grant.granted_at)).then_some(holder)
    }

    /// Whether the time of this holder is over.
    pub(super) fn is_over(&self, token: Token, clock: u64) -> bool {
        self.holder(token).is_some_and(|holder| holder.end <= clock)
    }

    /// Whether the time for which what was this token's cools is over.
    pub(super) fn has_rested(&self, token: Token, clock: u64) -> bool {
        let cools =
            |cooling: &&Cooling| cooling.token.is_none_or(|of| of == token) && cooling.end > clock;
        !self.cooling.iter().any(|cooling| cools(&cooling))
    }

    /// Whether a request that comes now looks whose time is over (R15 included).
    pub(super) fn looks(&self, clock: u64) -> bool {
        let looks = |Books {
                         look_from,
                         shortest,
                         ..
                     }: &Books| {
            *look_from > 0 && (*look_from <= clock || *look_from - clock > *shortest)
        };
        self.books.as_ref().is_none_or(looks)
    }

    /// Permits of those who hold or cool, and whose time is not over at that time.
    pub(super) fn taken(&self, clock: u64) -> u32 {
        let holders = self
            .holders
            .iter()
            .map(|holder| (holder.end, holder.permits));
        let all = holders.chain(
            self.cooling
                .iter()
                .map(|cooling| (cooling.end, cooling.permits)),
        );
        all.filter(|(end, _)| *end > clock)
            .map(|(_, permits)| permits)
            .sum()
    }

    /// How many entries a request takes the list to have: as many as are counted, but one that checks counts anew, and
    /// finds none that counts if some are lost.
    pub(super) fn counted_entries(&self, checks: bool) -> usize {
        match self.queue.len() {
            length if checks && length < self.entries => 0,
            length if checks => length,
            _ => self.entries,
        }
    }

    /// Who is next.
    pub(super) fn head(&self) -> Option<&Entry> {
        self.queue.iter().find(|entry| entry.waits)
    }

    pub(super) fn stands(&self, token: Token) -> bool {
        self.queue
            .iter()
            .any(|entry| entry.waits && entry.token == token)
    }
}

/// `ticket since manager ttl fixed hold`, and of permits how many; the times of what was asked for are in ms there.
struct Request {
    since: u64,
    manager: String,
    ttl: u64,
    hold: u64,
    permits: u32,
}

impl Request {
    fn read(text: &str) -> Request {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        Request {
            since: number(1).unwrap_or_default(),
            manager: words.get(2).copied().unwrap_or_default().to_owned(),
            ttl: number(3).unwrap_or_default() * 1000,
            hold: number(5).unwrap_or_default() * 1000,
            // A mutex has its label there.
            permits: number(6).map_or(1, |permits| permits as u32),
        }
    }
}

fn token_of(text: &[u8]) -> Option<Token> {
    Token::parse(std::str::from_utf8(text).ok()?)
}
