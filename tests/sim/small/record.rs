//! How a record, its queue and its holders become keys, and are read back.

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;

use super::setting::Setting;
use super::shelf::{Holder, STEP, Shelf, Stamp, Stands, TTL, Tok};
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::script::packed::{self, Permits, Queue, State};
use crate::script::{Family, Token};
use crate::store::memory::keyspace::{Bytes, Keyspace};
use crate::store::memory::server::Server;

/// In µs.
pub(super) const TICK: u64 = 1_000_000;
pub(super) const TTL_MS: u64 = TTL as u64 * TICK / 1000;
/// The server's time when a script runs, always the same: what the record holds is written relative to it.
pub(super) const NOW: u64 = 1_000_000_000_000;
/// Fences and other marks that were made before now.
const MARKS: u64 = NOW - 1_000_000;
/// Served time before a script runs.
const SERVED: u64 = 1_000_000_000;
/// When keys end that are not to end, in s: more than a lease of any tick and the retention after.
const EXPIRES: u64 = NOW / 1_000_000 + 3_700;

/// The keys of the name.
pub(super) struct Record {
    pub(super) setting: Setting,
    pub(super) key: Key,
}

type Fields = Vec<(String, Bytes)>;

impl Record {
    /// Makes the keys that hold this.
    pub(super) fn lay_out(&self, server: &mut Server, shelf: &Shelf) {
        server.state().keyspace = Keyspace::default();
        if shelf.fence == 0 {
            return;
        }
        let kind = self.setting.spec(0).kind();
        let (mut fields, holders, queue_field) = match self.setting.family() {
            Family::Mutex => (self.mutex_fields(shelf), Vec::new(), "q"),
            Family::Permit => (
                vec![("p".to_owned(), self.permits_state(shelf))],
                self.holders(shelf, &kind),
                "n",
            ),
        };
        fields.push(("k".to_owned(), kind.into()));
        for (tok, ticket) in &shelf.waiters {
            let (ticket, terms) = (
                100 + u64::from(*ticket),
                self.setting.terms(tok.client, TTL_MS),
            );
            let waiter = format!("{ticket} {NOW} c{} {terms} -", tok.client);
            fields.push((format!("w:{}", token(*tok).simple()), waiter.into()));
        }
        if !shelf.queue.is_empty() || !shelf.stamps.is_empty() {
            let queue = Queue {
                entries: shelf.queue.len() as u32,
                waiter_records: shelf.waiters.len() as u32,
                looked_at: NOW - u64::from(shelf.idle) * TICK,
                served_time: SERVED,
                last_ticket: 100 + u64::from(shelf.tickets),
                served_ticket: 100,
                queue_expires_at: EXPIRES as u32,
            };
            fields.push((queue_field.to_owned(), queue.pack()));
        }
        for stamp in &shelf.stamps {
            let until = (SERVED as i64 + i64::from(stamp.ahead) * TICK as i64) as u64;
            let packed = packed::Stamp {
                alive_until: until,
                since: fence(stamp.since),
            }
            .pack();
            fields.push((format!("m:c{}", stamp.client), packed));
        }
        let of_hash = |fields: Fields| {
            fields
                .into_iter()
                .flat_map(|(field, value)| [field.into_bytes(), value])
                .collect()
        };
        let entries = shelf
            .queue
            .iter()
            .map(|tok| token(*tok).simple().into_bytes())
            .collect();
        make(server, "HSET", self.key.record(), of_hash(fields));
        make(server, "HSET", &self.key.holders(), of_hash(holders));
        make(server, "RPUSH", self.key.queue(), entries);
    }

    fn mutex_fields(&self, shelf: &Shelf) -> Fields {
        let mut fields = Vec::new();
        let mut set = |name: &str, value: &str| fields.push((name.to_owned(), value.into()));
        let mut state = State {
            fence: fence(shelf.fence),
            ended_fence: fence(shelf.ended),
            expires_at: EXPIRES as u32,
            previous: -1,
            ended_how: 1,
            ..State::default()
        };
        if let Some(owner) = shelf.holders.first() {
            set("o", &token(owner.tok).simple());
            set(
                "a",
                &format!(
                    "{} {NOW} c{} {TTL_MS} 0 0",
                    u8::from(owner.waited),
                    owner.tok.client
                ),
            );
            set("l", "-");
            if owner.stands == Stands::Spared {
                set("u", &fence(shelf.fence).to_string());
            }
            (state.granted_at, state.lease_end) = (NOW, end(owner.left));
            state.ttl = TTL_MS as u32;
        }
        fields.push(("s".to_owned(), state.pack()));
        fields
    }

    fn permits_state(&self, shelf: &Shelf) -> Bytes {
        let lasts = if shelf.look.is_some() {
            TTL_MS as u32
        } else {
            0
        };
        let state = Permits {
            fence: fence(shelf.fence),
            next_lapse: shelf.look.map_or(0, end),
            shortest_lease: lasts,
            longest_lease: lasts,
            expires_at: EXPIRES as u32,
            // Also if the key is not there: then whoever makes it must not count upon that.
            holders_expire_at: EXPIRES as u32,
            capacity: self.setting.kind.permits(),
            permits_taken: shelf.holding().map(|holder| holder.permits).sum(),
            previous: -1,
        };
        state.pack()
    }

    fn holders(&self, shelf: &Shelf, kind: &str) -> Fields {
        let field = |holder: &Holder| {
            let lapsed = holder.stands == Stands::Lapsed;
            let packed = packed::Holder {
                lease_end: end(holder.left),
                ttl: TTL_MS as u32,
                hold: 0,
                weight: if lapsed { 0 } else { holder.permits },
                phase: STANDS
                    .iter()
                    .find(|(_, stands)| *stands == holder.stands)
                    .map_or(0, |(number, _)| *number),
                previous: -1,
            };
            let client = holder.tok.client;
            let terms = self.setting.terms(client, TTL_MS);
            let words = format!("{kind} {} 1 {NOW} c{client} {terms} -", fence(holder.fence));
            (token(holder.tok).simple(), packed.pack(&words))
        };
        shelf.holders.iter().map(field).collect()
    }

    /// Reads what a script left. What this model has no place for is an error, so that it is kept up with the scripts.
    pub(super) fn read(&self, keyspace: &Keyspace) -> Result<(Shelf, PreviousHolder), String> {
        let mut shelf = Shelf::default();
        let (queue, holders) = (
            keyspace.list_of(self.key.queue()),
            keyspace.hash_of(&self.key.holders()),
        );
        let Some((fields, expires)) = keyspace.hash_of(self.key.record()) else {
            return if queue.is_none() && holders.is_none() {
                Ok((shelf, PreviousHolder::Unknown))
            } else {
                Err("a queue or holders without a record".to_owned())
            };
        };
        let ends = [
            Some(expires),
            queue.map(|(_, expires)| expires),
            holders.map(|(_, expires)| expires),
        ];
        if ends.into_iter().flatten().any(|expires| expires.is_none()) {
            return Err("a key that does not expire".to_owned());
        }
        if fields.get(&b"k"[..]).map(text) != Some(self.setting.spec(0).kind()) {
            return Err(format!(
                "a record of another kind: {:?}",
                fields.get(&b"k"[..]).map(text)
            ));
        }
        let (how, known) = match self.setting.family() {
            Family::Mutex => (read_mutex(fields, &mut shelf)?, "k o a l s q u c"),
            Family::Permit => (
                self.read_permits(fields, holders.map(|(holders, _)| holders), &mut shelf)?,
                "k p n c",
            ),
        };
        self.read_queue(fields, queue.map(|(list, _)| list), known, &mut shelf)?;
        let ended = match how {
            -1 => PreviousHolder::Unknown,
            0 => PreviousHolder::Released,
            1 => PreviousHolder::Lapsed,
            _ => return Err(format!("the last holder ended as {how}")),
        };
        Ok((shelf, ended))
    }

    /// And those who wait. No field is left but the `known`.
    fn read_queue(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
        list: Option<&VecDeque<Bytes>>,
        known: &str,
        shelf: &mut Shelf,
    ) -> Result<(), String> {
        let queue_field = if self.setting.family() == Family::Mutex {
            &b"q"[..]
        } else {
            &b"n"[..]
        };
        let queue_state = fields
            .get(queue_field)
            .map(|packed| Queue::unpack(packed).ok_or("a queue's state that is too short"));
        let queue_state = queue_state.transpose()?.unwrap_or_default();
        let taken = queue_state.served_ticket;
        shelf.tickets = queue_state.last_ticket.saturating_sub(taken) as u8;
        shelf.idle = ((NOW
            - queue_state
                .looked_at
                .clamp(NOW - u64::from(STEP + 1) * TICK, NOW))
            / TICK) as u8;
        for (name, value) in fields {
            let name = text(name);
            match name.split_once(':') {
                Some(("w", token)) => {
                    let (waiter, tok) = (text(value), of_token(token)?);
                    let (ticket, rest) = waiter.split_once(' ').unwrap_or_default();
                    let terms = format!(
                        " c{} {} -",
                        tok.client,
                        self.setting.terms(tok.client, TTL_MS)
                    );
                    if !rest.ends_with(&terms) {
                        return Err(format!("{tok:?} waits by {waiter:?}"));
                    }
                    shelf
                        .waiters
                        .push((tok, parse::<u64>(ticket)?.saturating_sub(taken) as u8));
                }
                Some(("m", manager)) => {
                    let client = parse(manager.trim_start_matches('c'))?;
                    let stamp =
                        packed::Stamp::unpack(value).ok_or_else(|| format!("a stamp {value:?}"))?;
                    let ahead = stamp.alive_until as i64 - queue_state.served_time as i64;
                    let ahead = if ahead < 0 {
                        -1
                    } else {
                        (ahead / TICK as i64) as i8
                    };
                    shelf.stamps.push(Stamp {
                        client,
                        ahead,
                        since: mark(stamp.since),
                    });
                }
                _ if known.split(' ').any(|known| known == name) => {}
                _ => return Err(format!("a field {name:?} that this model does not know")),
            }
        }
        shelf.waiters.sort();
        shelf.stamps.sort();
        if let Some(list) = list {
            shelf.queue = list
                .iter()
                .map(|token| of_token(&text(token)))
                .collect::<Result<_, _>>()?;
        }
        if (
            queue_state.entries as usize,
            queue_state.waiter_records as usize,
        ) != (shelf.queue.len(), shelf.waiters.len())
        {
            return Err(format!(
                "the record counts {} and {} in {shelf:?}",
                queue_state.entries, queue_state.waiter_records
            ));
        }
        if let Some((lost, _)) = shelf
            .waiters
            .iter()
            .find(|(tok, _)| !shelf.queue.contains(tok))
        {
            return Err(format!("{lost:?} waits and does not stand in the queue"));
        }
        if shelf.queue.is_empty() {
            // An acquire begins with these anew.
            shelf.tickets = 0;
            if shelf.stamps.is_empty() {
                shelf.idle = 0;
            }
        }
        Ok(())
    }

    fn read_permits(
        &self,
        fields: &BTreeMap<Bytes, Bytes>,
        holders: Option<&BTreeMap<Bytes, Bytes>>,
        shelf: &mut Shelf,
    ) -> Result<i8, String> {
        let state = fields
            .get(&b"p"[..])
            .and_then(|packed| Permits::unpack(packed))
            .ok_or("permits without a state")?;
        if state.capacity != self.setting.kind.permits() {
            return Err(format!("a capacity of {}", state.capacity));
        }
        (shelf.fence, shelf.look) = (
            mark(state.fence),
            (state.next_lapse > 0).then(|| left(state.next_lapse)),
        );
        if shelf.look.is_some()
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
        for (token, value) in holders.into_iter().flatten() {
            let tok = of_token(&text(token))?;
            let (packed, words) =
                packed::Holder::unpack(value).ok_or_else(|| format!("a holder {value:?}"))?;
            let words = text(words);
            let terms = self.setting.terms(tok.client, TTL_MS);
            let parts: Vec<&str> = words.splitn(6, ' ').collect();
            let &[kind, capacity, fence, _, _, rest] = &parts[..] else {
                return Err(format!("a holder {words:?}"));
            };
            let is_its = format!("{kind} {capacity}") == self.setting.spec(0).kind()
                && rest == format!("c{} {terms} -", tok.client)
                && (u64::from(packed.ttl), packed.hold) == (TTL_MS, 0);
            let stands = STANDS.iter().find(|(number, _)| *number == packed.phase);
            let Some((_, stands)) = stands.filter(|_| is_its) else {
                return Err(format!("{tok:?} holds by {packed:?} {words:?}"));
            };
            let lapsed = *stands == Stands::Lapsed;
            if (packed.weight == 0) != lapsed {
                return Err(format!(
                    "P1: {tok:?} has {} permits and is {stands:?}",
                    packed.weight
                ));
            }
            let (permits, stands, left) = (packed.weight, *stands, left(packed.lease_end));
            shelf.holders.push(Holder {
                tok,
                permits,
                fence: mark(parse(fence)?),
                left,
                stands,
                waited: false,
            });
        }
        shelf.holders.sort();
        let taken: u32 = shelf.holding().map(|holder| holder.permits).sum();
        if state.permits_taken != taken {
            return Err(format!(
                "P1: {} permits count as taken in {shelf:?}",
                state.permits_taken
            ));
        }
        Ok(state.previous)
    }
}

/// How a holder of permits stands, as the scripts say it.
const STANDS: [(i8, Stands); 3] = [(0, Stands::Holds), (1, Stands::Spared), (3, Stands::Lapsed)];

fn read_mutex(fields: &BTreeMap<Bytes, Bytes>, shelf: &mut Shelf) -> Result<i8, String> {
    let field = |name: &str| fields.get(name.as_bytes()).map(text);
    let state = fields
        .get(&b"s"[..])
        .map(|packed| State::unpack(packed).ok_or("a state that is too short"));
    let state = state.transpose()?.unwrap_or_default();
    (shelf.fence, shelf.ended) = (mark(state.fence), mark(state.ended_fence));
    if let Some(owner) = field("o") {
        let tok = of_token(&owner)?;
        let request = field("a").unwrap_or_default();
        if request.split(' ').nth(2) != Some(&format!("c{}", tok.client)) {
            return Err(format!(
                "the owner is {tok:?}, and the request is {request:?}"
            ));
        }
        let spared = field("u").is_some_and(|graced| graced == state.fence.to_string());
        let stands = if spared {
            Stands::Spared
        } else {
            Stands::Holds
        };
        let waited = !request.starts_with("0 ");
        shelf.holders = vec![Holder {
            tok,
            permits: 1,
            fence: shelf.fence,
            left: left(state.lease_end),
            stands,
            waited,
        }];
    } else if state.lease_end > 0 {
        return Err("an end without an owner, and nobody asked to hold at least".to_owned());
    }
    Ok(state.previous)
}

fn make(server: &mut Server, command: &str, key: &str, rest: Vec<Bytes>) {
    if rest.is_empty() {
        return;
    }
    let mut run = |words: Vec<Bytes>| {
        server
            .run(NOW, &words)
            .expect("a command that the store knows, on a key of its type");
    };
    run([vec![command.into(), key.into()], rest].concat());
    run(vec![
        "PEXPIREAT".into(),
        key.into(),
        (EXPIRES * 1000).to_string().into(),
    ]);
}

pub(super) fn token(tok: Tok) -> Token {
    Token::numbered(u16::from(tok.client) << 8 | u16::from(tok.number))
}

pub(super) fn tok(token: Token) -> Tok {
    Tok {
        client: (token.number() >> 8) as u8,
        number: token.number() as u8,
    }
}

/// A fence, or another mark, as a record has it.
pub(super) fn fence(mark: u32) -> u64 {
    MARKS + u64::from(mark)
}

pub(super) fn mark(number: u64) -> u32 {
    u32::try_from(number.saturating_sub(MARKS)).unwrap_or(u32::MAX)
}

/// So many ticks from now.
fn end(left: u8) -> u64 {
    NOW + u64::from(left) * TICK
}

fn left(end: u64) -> u8 {
    (end.saturating_sub(NOW) / TICK) as u8
}

fn of_token(text: &str) -> Result<Tok, String> {
    Token::parse(text)
        .map(tok)
        .ok_or_else(|| format!("a token {text:?}"))
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

fn parse<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} for a number"))
}
