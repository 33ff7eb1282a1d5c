//! How a [`RecordState`] becomes keys in the store, and how the keys that a script left are read
//! back.

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;

use super::record_state::{
    HolderState, HolderStatus, RecordState, STEP, SmallStamp, SmallToken, TTL, Told,
};
use super::setting::{SmallSetting, handover_words};
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::script::packed;
use crate::script::{Family, Token};
use crate::store::memory::keyspace::{Bytes, Keyspace};
use crate::store::memory::server::ScriptServer;

/// In µs.
pub(super) const TICK: u64 = 1_000_000;
pub(super) const TTL_MS: u64 = TTL as u64 * TICK / 1000;
/// The server's time when a script runs. It is always the same, and the record is written relative
/// to it.
pub(super) const NOW: u64 = 1_000_000_000_000;
/// The base of fences and of rows of stamps. It lies before now, as it must.
const MARKS: u64 = NOW - 1_000_000;
/// The base of fences that are ahead of the clock. A new fence is the next number, since the last grant
/// was just now.
const FENCES_AHEAD: u64 = NOW + 30_000;
/// Served time before a script runs.
const SERVED: u64 = 1_000_000_000;
/// The last ticket that was served before a script runs.
const SERVED_TICKET: u64 = 100;
/// When keys expire, in s. It is further off than any lease and the retention after it.
const EXPIRES: u64 = NOW / 1_000_000 + 3_700;
/// The field that says which fence the owner was told about, and when.
const TOLD: &str = "b";
/// How the scripts write the status of a holder of permits.
const STATUSES: [(i8, HolderStatus); 3] = [
    (0, HolderStatus::Holds),
    (1, HolderStatus::Spared),
    (3, HolderStatus::Lapsed),
];

/// The keys of the name.
pub(super) struct RecordKeys {
    pub(super) setting: SmallSetting,
    pub(super) key: Key,
}

type FieldList = Vec<(String, Bytes)>;

impl RecordKeys {
    /// Replaces the server's keys by those that hold this state.
    pub(super) fn write(&self, server: &mut ScriptServer, record: &RecordState) {
        server.state().keyspace = Keyspace::default();
        if record.fence == 0 {
            return;
        }
        let kind = self.setting.spec(0).kind();
        let mut fields = self.state_fields(record);
        let holders = match self.setting.family() {
            Family::Mutex | Family::Quorum => Vec::new(),
            Family::Permit => self.holder_fields(record, &kind),
        };
        fields.push(("k".to_owned(), kind.into()));
        for (token, ticket) in &record.waiters {
            let ticket = SERVED_TICKET + u64::from(*ticket);
            let params = self.setting.waiter_params(token.client, TTL_MS);
            let waiter = format!("{ticket} {NOW} c{} {params} -", token.client);
            fields.push((format!("w:{}", real_token(*token).simple()), waiter.into()));
        }
        if record.entries() > 0 || !record.stamps.is_empty() {
            let queue = packed::PackedQueue {
                entries: record.entries(),
                waiter_records: record.waiters.len() as u32,
                looked_at: NOW - u64::from(record.since_served) * TICK,
                served_time: SERVED,
                last_ticket: SERVED_TICKET + u64::from(record.tickets),
                served_ticket: SERVED_TICKET,
                queue_expires_at: EXPIRES as u32,
            };
            fields.push((self.queue_field().to_owned(), queue.pack()));
        }
        for stamp in &record.stamps {
            let alive_until = (SERVED as i64 + i64::from(stamp.ahead) * TICK as i64) as u64;
            let since = MARKS + u64::from(stamp.since);
            fields.push((
                format!("m:c{}", stamp.client),
                packed::PackedStamp { alive_until, since }.pack(),
            ));
        }
        let as_arguments = |fields: FieldList| {
            fields
                .into_iter()
                .flat_map(|(field, value)| [field.into_bytes(), value])
                .collect()
        };
        let entries = record
            .queue
            .iter()
            .map(|token| real_token(*token).simple().into_bytes())
            .collect();
        write_key(server, "HSET", self.key.record(), as_arguments(fields));
        write_key(server, "HSET", &self.key.holders(), as_arguments(holders));
        write_key(server, "RPUSH", self.key.queue(), entries);
    }

    fn state_fields(&self, record: &RecordState) -> FieldList {
        match self.setting.family() {
            Family::Mutex | Family::Quorum => self.mutex_fields(record),
            Family::Permit => Vec::new(),
        }
    }

    /// The name of the field that describes the queue.
    fn queue_field(&self) -> &'static str {
        match self.setting.family() {
            Family::Mutex | Family::Quorum => "q",
            Family::Permit => "n",
        }
    }

    fn mutex_fields(&self, record: &RecordState) -> FieldList {
        let mut fields = Vec::new();
        let mut set = |name: &str, value: &str| fields.push((name.to_owned(), value.into()));
        let mut state = packed::PackedState {
            fence: self.fence(record.fence),
            ended_fence: self.fence(record.ended_fence),
            expires_at: EXPIRES as u32,
            previous: -1,
            ended_how: 1,
            granted_at: NOW,
            ..packed::PackedState::default()
        };
        if let Some(owner) = record.holders.first() {
            let waited = u8::from(owner.waited);
            let client = owner.token.client;
            set("o", &real_token(owner.token).simple());
            let words = handover_words(owner.spare, owner.hears);
            set(
                "a",
                &format!("{waited} {NOW} c{client} {TTL_MS} 0 0{words}"),
            );
            set("l", "-");
            if owner.status == HolderStatus::Spared {
                set("u", &self.fence(record.fence).to_string());
            }
            state.lease_end = time_after(owner.left);
            state.ttl = TTL_MS as u32;
        }
        if let Some(request) = record.forced_by {
            fields.push(("i".to_owned(), real_token(request).simple().into()));
        }
        let told_fence = match record.told {
            Told::Nobody => None,
            Told::Last => Some(self.fence(record.fence)),
            Told::Earlier => Some(self.fence(record.fence) - 1),
        };
        if let Some(told_fence) = told_fence {
            let told = [told_fence as f64, NOW as f64].map(f64::to_le_bytes);
            fields.push((TOLD.to_owned(), told.concat()));
        }
        fields.push(("s".to_owned(), state.pack()));
        fields
    }

    fn permits_field(&self, record: &RecordState) -> Bytes {
        let lease_ms = if record.next_lapse.is_some() {
            TTL_MS as u32
        } else {
            0
        };
        let state = packed::PackedPermits {
            fence: self.fence(record.fence),
            next_lapse: record.next_lapse.map_or(0, time_after),
            shortest_lease: lease_ms,
            longest_lease: lease_ms,
            look_pause: 0,
            expires_at: EXPIRES as u32,
            // Also if the key of the holders is not there. A script that creates it must not rely
            // on this number.
            holders_expire_at: EXPIRES as u32,
            capacity: self.setting.kind.permits(),
            permits_taken: record.holding().map(|holder| holder.permits).sum(),
            previous: -1,
            look_outage: 0,
        };
        state.pack()
    }

    fn holder_fields(&self, record: &RecordState, kind: &str) -> FieldList {
        let field = |holder: &HolderState| {
            let packed = packed::PackedHolder {
                lease_end: time_after(holder.left),
                ttl: TTL_MS as u32,
                hold: 0,
                weight: match holder.status {
                    HolderStatus::Holds | HolderStatus::Spared => holder.permits,
                    HolderStatus::Lapsed => 0,
                },
                phase: STATUSES
                    .iter()
                    .find(|(_, status)| *status == holder.status)
                    .map_or(0, |(number, _)| *number),
                previous: -1,
            };
            let client = holder.token.client;
            let params = self.setting.params(client, TTL_MS);
            let fence = self.fence(holder.fence);
            let words = format!("{kind} {fence} 1 {NOW} c{client} {params} -");
            (real_token(holder.token).simple(), packed.pack(&words))
        };
        let state = ("p".to_owned(), self.permits_field(record));
        std::iter::once(state)
            .chain(record.holders.iter().map(field))
            .collect()
    }

    /// Reads what a script left. Anything that a [`RecordState`] has no place for is an error, so
    /// that this model is kept up to date with the scripts.
    pub(super) fn read(
        &self,
        keyspace: &Keyspace,
    ) -> Result<(RecordState, PreviousHolder), String> {
        let mut record = RecordState::default();
        let queue = keyspace.list_of(self.key.queue());
        let holders = keyspace.hash_of(&self.key.holders());
        let Some((fields, expires)) = keyspace.hash_of(self.key.record()) else {
            return if queue.is_none() && holders.is_none() {
                Ok((record, PreviousHolder::Unknown))
            } else {
                Err("a queue or holders without a record".to_owned())
            };
        };
        let all_expire = [
            Some(expires),
            queue.map(|(_, expires)| expires),
            holders.map(|(_, expires)| expires),
        ];
        if all_expire
            .into_iter()
            .flatten()
            .any(|expires| expires.is_none())
        {
            return Err("a key does not expire".to_owned());
        }
        let kind = fields.get(&b"k"[..]).map(text);
        if kind != Some(self.setting.spec(0).kind()) {
            return Err(format!("the record is of another kind: {kind:?}"));
        }
        let how = match self.setting.family() {
            Family::Mutex | Family::Quorum => self.read_mutex(fields, &mut record)?,
            Family::Permit => {
                let holders = holders.ok_or("a record without the state of permits")?;
                self.read_permits(holders.0, &mut record)?
            }
        };
        self.read_waiters_and_stamps(fields, &mut record)?;
        read_queue(queue.map(|(list, _)| list), &mut record)?;
        let counted = self.unpack_queue_field(fields)?.entries;
        record.miscounted = (counted as usize as i64 - record.queue.len() as i64) as i8;
        self.check_queue_field(fields, &record)?;
        if record.entries() == 0 {
            // The next acquire starts these from the beginning.
            record.tickets = 0;
            if record.stamps.is_empty() {
                record.since_served = 0;
            }
        }
        let last_ended = match how {
            -1 => PreviousHolder::Unknown,
            0 => PreviousHolder::Released,
            1 => PreviousHolder::Lapsed,
            2 => PreviousHolder::Forced,
            _ => {
                return Err(format!(
                    "the record says that the last holder ended as {how}"
                ));
            }
        };
        Ok((record, last_ended))
    }

    fn unpack_queue_field(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
    ) -> Result<packed::PackedQueue, String> {
        match fields.get(self.queue_field().as_bytes()) {
            Some(bytes) => packed::PackedQueue::unpack(bytes)
                .ok_or_else(|| "the state of the queue is too short".to_owned()),
            None => Ok(packed::PackedQueue::default()),
        }
    }

    /// Reads the fields of waiters, stamps and the queue. Every other field must be one that this
    /// file knows.
    fn read_waiters_and_stamps(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
        record: &mut RecordState,
    ) -> Result<(), String> {
        let known_fields = match self.setting.family() {
            // The ends before the last one, in `z`, are no part of a world. So a release may be
            // answered that nothing is known, which says as little here as that its lease lapsed.
            // So each script tells the owner again, unless processes keep the lock.
            Family::Mutex | Family::Quorum => "k o a l s q u c z i b",
            Family::Permit => "k n c",
        };
        let queue = self.unpack_queue_field(fields)?;
        let oldest = NOW - u64::from(STEP + 1) * TICK;
        record.tickets = queue.last_ticket.saturating_sub(queue.served_ticket) as u8;
        record.since_served = ((NOW - queue.looked_at.clamp(oldest, NOW)) / TICK) as u8;
        for (name, value) in fields {
            let name = text(name);
            match name.split_once(':') {
                Some(("w", token)) => {
                    let token = parse_token(token)?;
                    let ticket = self.read_ticket(token, &text(value))?;
                    record
                        .waiters
                        .push((token, ticket.saturating_sub(queue.served_ticket) as u8));
                }
                Some(("m", manager)) => {
                    let stamp = packed::PackedStamp::unpack(value)
                        .ok_or_else(|| format!("{value:?} is no stamp"))?;
                    let ahead = stamp.alive_until as i64 - queue.served_time as i64;
                    record.stamps.push(SmallStamp {
                        client: parse(manager.trim_start_matches('c'))?,
                        ahead: if ahead < 0 {
                            -1
                        } else {
                            (ahead / TICK as i64) as i8
                        },
                        since: mark(stamp.since),
                    });
                }
                _ if known_fields.split(' ').any(|known| known == name) => {}
                _ => return Err(format!("this model does not know the field {name:?}")),
            }
        }
        record.waiters.sort();
        record.stamps.sort();
        Ok(())
    }

    fn read_ticket(&self, token: SmallToken, waiter: &str) -> Result<u64, String> {
        let (ticket, rest) = waiter.split_once(' ').unwrap_or_default();
        let params = self.setting.waiter_params(token.client, TTL_MS);
        if !rest.ends_with(&format!(" c{} {params} -", token.client)) {
            return Err(format!("{token:?} has the waiter's record {waiter:?}"));
        }
        parse(ticket)
    }

    /// The record must count its waiters right. Unless it counts entries that were lost, every waiter
    /// must be queued.
    fn check_queue_field(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
        record: &RecordState,
    ) -> Result<(), String> {
        let queue = self.unpack_queue_field(fields)?;
        if queue.waiter_records as usize != record.waiters.len() {
            return Err(format!(
                "the record counts {} waiters in {record:?}",
                queue.waiter_records
            ));
        }
        if record.miscounted > 0 {
            return Ok(());
        }
        match record
            .waiters
            .iter()
            .find(|(token, _)| !record.queue.contains(token))
        {
            Some((lost, _)) => Err(format!("{lost:?} is a waiter but not in the queue")),
            None => Ok(()),
        }
    }

    fn read_permits(
        &self,
        holders: &BTreeMap<Bytes, Bytes>,
        record: &mut RecordState,
    ) -> Result<i8, String> {
        let state = holders
            .get(&b"p"[..])
            .and_then(|bytes| packed::PackedPermits::unpack(bytes))
            .ok_or("there is no state of permits")?;
        if state.capacity != self.setting.kind.permits() {
            return Err(format!("the record has a capacity of {}", state.capacity));
        }
        record.fence = self.fence_mark(state.fence);
        record.next_lapse = (state.next_lapse > 0).then(|| ticks_until(state.next_lapse));
        if record.next_lapse.is_some()
            && (
                u64::from(state.shortest_lease),
                u64::from(state.longest_lease),
            ) != (TTL_MS, TTL_MS)
        {
            return Err(format!(
                "P5: the shortest lease is {} ms, the longest {} ms",
                state.shortest_lease, state.longest_lease
            ));
        }
        for (token, value) in holders.iter().filter(|(field, _)| *field != b"p") {
            let token = parse_token(&text(token))?;
            record.holders.push(self.read_holder(token, value)?);
        }
        record.holders.sort();
        let taken: u32 = record.holding().map(|holder| holder.permits).sum();
        if state.permits_taken != taken {
            return Err(format!(
                "P1: {} permits count as taken in {record:?}",
                state.permits_taken
            ));
        }
        Ok(state.previous)
    }

    fn read_holder(&self, token: SmallToken, value: &[u8]) -> Result<HolderState, String> {
        let (packed, words) =
            packed::PackedHolder::unpack(value).ok_or_else(|| format!("{value:?} is no holder"))?;
        let words = text(words);
        let parts: Vec<&str> = words.splitn(6, ' ').collect();
        let &[kind, capacity, fence, _, _, rest] = &parts[..] else {
            return Err(format!("{words:?} is no holder"));
        };
        let params = self.setting.params(token.client, TTL_MS);
        let is_its_own = format!("{kind} {capacity}") == self.setting.spec(0).kind()
            && rest == format!("c{} {params} -", token.client)
            && (u64::from(packed.ttl), packed.hold) == (TTL_MS, 0);
        let status = STATUSES
            .iter()
            .find(|(number, _)| *number == packed.phase)
            .map(|(_, status)| *status);
        let Some(status) = status.filter(|_| is_its_own) else {
            return Err(format!(
                "{token:?} has the holder's entry {packed:?} {words:?}"
            ));
        };
        if (packed.weight == 0) != (status == HolderStatus::Lapsed) {
            return Err(format!(
                "P1: {token:?} has {} permits and the status {status:?}",
                packed.weight
            ));
        }
        Ok(HolderState {
            token,
            permits: packed.weight,
            fence: self.fence_mark(parse(fence)?),
            spare: 0,
            left: ticks_until(packed.lease_end),
            status,
            hears: false,
            waited: false,
        })
    }

    fn read_mutex(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
        record: &mut RecordState,
    ) -> Result<i8, String> {
        let field = |name: &str| fields.get(name.as_bytes()).map(text);
        let state = match fields.get(&b"s"[..]) {
            Some(bytes) => {
                packed::PackedState::unpack(bytes).ok_or("the state of the mutex is too short")?
            }
            None => packed::PackedState::default(),
        };
        record.fence = self.fence_mark(state.fence);
        record.ended_fence = self.fence_mark(state.ended_fence);
        if let Some((fence, at)) = fields
            .get(TOLD.as_bytes())
            .and_then(|told| told.split_at_checked(8))
            && *at == (NOW as f64).to_le_bytes()
            && self.setting.keepers > 0
        {
            let is_last = *fence == (state.fence as f64).to_le_bytes();
            record.told = if is_last { Told::Last } else { Told::Earlier };
        }
        let forced_by = field("i").map(|request| parse_token(&request));
        record.forced_by = forced_by.transpose()?;
        if let Some(owner) = field("o") {
            let token = parse_token(&owner)?;
            let request = field("a").unwrap_or_default();
            let word = |at: usize| request.split(' ').nth(at).unwrap_or("0");
            if word(2) != format!("c{}", token.client) {
                return Err(format!(
                    "the owner is {token:?}, and the request is {request:?}"
                ));
            }
            let was_spared = field("u").is_some_and(|spared| spared == state.fence.to_string());
            record.holders = vec![HolderState {
                token,
                permits: 1,
                fence: record.fence,
                spare: parse(word(6))?,
                hears: word(7) == "1",
                left: ticks_until(state.lease_end),
                status: if was_spared {
                    HolderStatus::Spared
                } else {
                    HolderStatus::Holds
                },
                waited: !request.starts_with("0 "),
            }];
            return Ok(state.previous);
        }
        let state = state.without_owner();
        if state.lease_end > 0 {
            return Err(
                "a lease end without an owner, although nobody uses hold_at_least".to_owned(),
            );
        }
        Ok(state.previous)
    }

    /// A fence as the record has it.
    pub(super) fn fence(&self, mark: u32) -> u64 {
        self.fences() + u64::from(mark)
    }

    /// The small number of a fence.
    pub(super) fn fence_mark(&self, fence: u64) -> u32 {
        u32::try_from(fence.saturating_sub(self.fences())).unwrap_or(u32::MAX)
    }

    fn fences(&self) -> u64 {
        if self.setting.fences_ahead {
            FENCES_AHEAD
        } else {
            MARKS
        }
    }
}

fn read_queue(list: Option<&VecDeque<Bytes>>, record: &mut RecordState) -> Result<(), String> {
    if let Some(list) = list {
        record.queue = list
            .iter()
            .map(|token| parse_token(&text(token)))
            .collect::<Result<_, _>>()?;
    }
    Ok(())
}

fn write_key(server: &mut ScriptServer, command: &str, key: &str, arguments: Vec<Bytes>) {
    if arguments.is_empty() {
        return;
    }
    let mut run = |command: Vec<Bytes>| {
        server
            .run(NOW, &command)
            .expect("the store knows this command, and the key is new");
    };
    run([vec![command.into(), key.into()], arguments].concat());
    run(vec![
        "PEXPIREAT".into(),
        key.into(),
        (EXPIRES * 1000).to_string().into(),
    ]);
}

pub(super) fn real_token(token: SmallToken) -> Token {
    Token::numbered(u16::from(token.client) << 8 | u16::from(token.number))
}

pub(super) fn small_token(token: Token) -> SmallToken {
    SmallToken {
        client: (token.number() >> 8) as u8,
        number: token.number() as u8,
    }
}

/// The small number of the stamps since one time.
pub(super) fn mark(number: u64) -> u32 {
    u32::try_from(number.saturating_sub(MARKS)).unwrap_or(u32::MAX)
}

/// The server's time in this number of ticks.
fn time_after(ticks: u8) -> u64 {
    NOW + u64::from(ticks) * TICK
}

fn ticks_until(time: u64) -> u8 {
    (time.saturating_sub(NOW) / TICK) as u8
}

fn parse_token(text: &str) -> Result<SmallToken, String> {
    Token::parse(text)
        .map(small_token)
        .ok_or_else(|| format!("{text:?} is no token"))
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

fn parse<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
