//! A record with its queue and its holders, as the checks see it. A mutex is a record with at most
//! one holder.

use std::collections::BTreeMap;

use crate::key::Key;
use crate::script::Token;
use crate::script::packed::{PackedHolder, PackedPermits, PackedQueue, PackedState, is_looking};
use crate::store::memory::keyspace::{Bytes, Keyspace};

/// The data in the keys of a name. All times are in µs.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordView {
    /// The holders, also those whose time is over.
    pub(super) holders: Vec<HolderView>,
    /// Permits that were released, and are not free until their `hold_at_least` is over.
    pub(super) cooling: Vec<Cooling>,
    /// The newest fence. For a reader/writer lock it is the fence of the last writer.
    pub(super) fence: u64,
    /// When served time was last brought up to date.
    pub(super) counted: u64,
    /// Served time.
    pub(super) served: u64,
    /// How many entries of the list the record counts.
    pub(super) entries: usize,
    /// How many waiters' records it counts.
    pub(super) counted_waiters: usize,
    /// How many waiters' records there are.
    pub(super) waiter_records: usize,
    /// The list, in its order.
    pub(super) queue: Vec<QueueEntry>,
    /// The counts of permits. A mutex has none.
    pub(super) accounting: Option<Accounting>,
}

/// A lease as the server has it.
#[derive(Debug, Clone)]
pub(super) struct HolderView {
    pub(super) token: Token,
    pub(super) manager: String,
    pub(super) fence: u64,
    pub(super) granted_at: u64,
    pub(super) end: u64,
    pub(super) ttl: u64,
    pub(super) hold: u64,
    pub(super) permits: u32,
    /// How many fences behind its first the request asked for. The grant has reserved no more than it
    /// may be ahead of the clock.
    pub(super) spare: u64,
    /// It has had its time of grace.
    pub(super) spared: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Cooling {
    /// The token of the last holder. The record of a mutex does not say.
    pub(super) token: Option<Token>,
    pub(super) end: u64,
    pub(super) permits: u32,
}

#[derive(Debug, Clone)]
pub(super) struct QueueEntry {
    pub(super) token: Token,
    /// It has a waiter's record.
    pub(super) waits: bool,
    pub(super) manager: String,
    pub(super) permits: u32,
}

/// The counts by which scripts avoid looking at every holder of permits.
#[derive(Debug, Clone)]
pub(super) struct Accounting {
    pub(super) capacity: u32,
    pub(super) taken: u32,
    /// When scripts next look at the holders: none lapses before. 0 if there is no holder.
    pub(super) look_from: u64,
    /// Scripts have begun to look, and have not seen all holders.
    pub(super) is_looking: bool,
    /// The server may have been away when that look began.
    pub(super) look_outage: bool,
    /// The shortest lease among them.
    pub(super) shortest: u64,
}

impl HolderView {
    /// Whether this is a fence of its grant.
    pub(super) fn has_fence(&self, fence: u64) -> bool {
        let most = (self.granted_at + 65_535).saturating_sub(self.fence);
        (self.fence..=self.fence + self.spare.min(most)).contains(&fence)
    }
}

impl RecordView {
    pub(super) fn read(keyspace: &Keyspace, key: &Key) -> RecordView {
        let mut record = RecordView::default();
        let fields = Fields(keyspace.hash_of(key.record()).map(|(hash, _)| hash));
        record.read_mutex(&fields);
        let holders = keyspace.hash_of(&key.holders());
        for (field, value) in holders.into_iter().flat_map(|(holders, _)| holders) {
            if field == b"p" {
                record.read_accounting(value);
            } else {
                record.read_holder(field, value);
            }
        }
        // Tokens are random: without this a run that is played again would see another order.
        record
            .holders
            .sort_by_key(|holder| (holder.granted_at, holder.fence));
        record.read_counts(&fields);
        let list = keyspace.list_of(key.queue()).map(|(list, _)| list);
        record.queue = list
            .into_iter()
            .flatten()
            .filter_map(|token| fields.entry(token))
            .collect();
        record
    }

    fn read_mutex(&mut self, fields: &Fields<'_>) {
        let Some(state) = fields
            .get("s")
            .and_then(|packed| PackedState::unpack(packed))
        else {
            return;
        };
        self.fence = state.fence;
        let owner = fields.get("o").and_then(|token| token_of(token));
        let Some(token) = owner else {
            let lease_end = state.without_owner().lease_end;
            if lease_end > 0 {
                self.cooling.push(Cooling {
                    token: None,
                    end: lease_end,
                    permits: 1,
                });
            }
            return;
        };
        let request = RecordedRequest::read(fields.text("a"));
        let spared = fields.text("u").parse::<u64>().ok() == Some(state.fence);
        self.holders.push(HolderView {
            token,
            manager: request.manager,
            fence: state.fence,
            granted_at: state.granted_at,
            end: state.lease_end,
            ttl: request.ttl,
            hold: request.hold,
            permits: 1,
            spare: request.number.unwrap_or_default(),
            spared,
        });
    }

    fn read_accounting(&mut self, packed: &[u8]) {
        let Some(state) = PackedPermits::unpack(packed) else {
            return;
        };
        self.fence = state.fence;
        self.accounting = Some(Accounting {
            capacity: state.capacity,
            taken: state.permits_taken,
            look_from: state.next_lapse,
            is_looking: is_looking(packed),
            look_outage: state.look_outage != 0,
            shortest: u64::from(state.shortest_lease) * 1000,
        });
    }

    fn read_counts(&mut self, fields: &Fields<'_>) {
        // A mutex has the counts of its queue in one field, and permits have them in another.
        let counts = fields
            .get("q")
            .or(fields.get("n"))
            .and_then(|packed| PackedQueue::unpack(packed))
            .unwrap_or_default();
        self.counted = counts.looked_at;
        self.served = counts.served_time;
        self.entries = counts.entries as usize;
        self.counted_waiters = counts.waiter_records as usize;
        self.waiter_records = fields.waiter_records();
    }

    fn read_holder(&mut self, field: &[u8], holder: &[u8]) {
        let Some(token) = token_of(field.strip_prefix(b"c:").unwrap_or(field)) else {
            return;
        };
        let Some((packed, text)) = PackedHolder::unpack(holder) else {
            return;
        };
        let Ok(text) = std::str::from_utf8(text) else {
            return;
        };
        match packed.phase {
            0 | 1 => {
                // `kind capacity fence`, and the rest as in a waiter's record.
                let mut words = text.splitn(4, ' ').skip(2);
                let fence = words.next().and_then(|fence| fence.parse().ok());
                let request = RecordedRequest::read(words.next().unwrap_or_default());
                self.holders.push(HolderView {
                    token,
                    manager: request.manager,
                    fence: fence.unwrap_or_default(),
                    granted_at: request.since,
                    end: packed.lease_end,
                    ttl: request.ttl,
                    hold: request.hold,
                    permits: packed.weight,
                    spare: 0,
                    spared: packed.phase == 1,
                });
            }
            2 => self.cooling.push(Cooling {
                token: Some(token),
                end: packed.lease_end,
                permits: packed.weight,
            }),
            // It stays so that its holder learns how it ended.
            _ => {}
        }
    }

    pub(super) fn holder(&self, token: Token) -> Option<&HolderView> {
        self.holders.iter().find(|holder| holder.token == token)
    }

    /// The holders that were granted after `before`.
    pub(super) fn granted_since<'a>(
        &'a self,
        before: &'a RecordView,
    ) -> impl Iterator<Item = &'a HolderView> {
        self.holders
            .iter()
            .filter(|holder| before.same(holder).is_none())
    }

    /// The same grant.
    pub(super) fn same(&self, grant: &HolderView) -> Option<&HolderView> {
        let holder = self.holder(grant.token)?;
        ((holder.fence, holder.granted_at) == (grant.fence, grant.granted_at)).then_some(holder)
    }

    /// Whether the time of this holder is over.
    pub(super) fn is_over(&self, token: Token, clock: u64) -> bool {
        self.holder(token).is_some_and(|holder| holder.end <= clock)
    }

    /// Whether nothing that this token released is still cooling.
    pub(super) fn has_rested(&self, token: Token, clock: u64) -> bool {
        let cools =
            |cooling: &Cooling| cooling.token.is_none_or(|of| of == token) && cooling.end > clock;
        !self.cooling.iter().any(cools)
    }

    /// Whether a request that arrives now looks for holders whose time is over (R15 included).
    pub(super) fn looks(&self, clock: u64) -> bool {
        self.accounting.as_ref().is_none_or(|accounting| {
            let from = accounting.look_from;
            accounting.is_looking
                || from > 0 && (from <= clock || from - clock > accounting.shortest)
        })
    }

    /// The permits of those that hold or cool, and whose time is not over at `clock`.
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

    /// How many entries count after a sync, which compares the count with the list. If some are
    /// lost, none counts.
    pub(super) fn entries_after_sync(&self) -> usize {
        match self.queue.len() {
            length if length < self.entries => 0,
            length => length,
        }
    }

    /// The first entry that waits.
    pub(super) fn head(&self) -> Option<&QueueEntry> {
        self.queue.iter().find(|entry| entry.waits)
    }

    pub(super) fn is_queued(&self, token: Token) -> bool {
        self.queue
            .iter()
            .any(|entry| entry.waits && entry.token == token)
    }
}

/// The fields of the record, if there is one.
struct Fields<'a>(Option<&'a BTreeMap<Bytes, Bytes>>);

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a Bytes> {
        self.0.and_then(|hash| hash.get(field.as_bytes()))
    }

    /// Empty if there is no such field, or no text in it.
    fn text(&self, field: &str) -> &'a str {
        self.get(field)
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }

    fn waiter(&self, token: &Bytes) -> Option<&'a Bytes> {
        let field = [b"w:", token.as_slice()].concat();
        self.0.and_then(|hash| hash.get(&field))
    }

    fn waiter_records(&self) -> usize {
        let fields = self.0.into_iter().flat_map(BTreeMap::keys);
        fields.filter(|field| field.starts_with(b"w:")).count()
    }

    /// An entry of the list, with what its waiter's record says.
    fn entry(&self, token: &Bytes) -> Option<QueueEntry> {
        let waiter = self.waiter(token);
        let text = waiter.and_then(|text| std::str::from_utf8(text).ok());
        let request = RecordedRequest::read(text.unwrap_or_default());
        Some(QueueEntry {
            token: token_of(token)?,
            waits: waiter.is_some(),
            manager: request.manager,
            permits: if self.text("k") == "mutex/1" {
                1
            } else {
                request.number.unwrap_or(1) as u32
            },
        })
    }
}

/// `ticket since manager ttl fixed hold`, and a number: for permits how many, for a mutex the spare,
/// if there is one. There the ttl and the hold are in ms.
struct RecordedRequest {
    since: u64,
    manager: String,
    ttl: u64,
    hold: u64,
    number: Option<u64>,
}

impl RecordedRequest {
    fn read(text: &str) -> RecordedRequest {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        RecordedRequest {
            since: number(1).unwrap_or_default(),
            manager: words.get(2).copied().unwrap_or_default().to_owned(),
            ttl: number(3).unwrap_or_default() * 1000,
            hold: number(5).unwrap_or_default() * 1000,
            // A plain mutex has its label there.
            number: number(6),
        }
    }
}

fn token_of(text: &[u8]) -> Option<Token> {
    Token::parse(std::str::from_utf8(text).ok()?)
}
