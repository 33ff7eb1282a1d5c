//! What the promises say of a run, checked at each step. It is told what the server was asked, looks at what the server
//! has, and knows nothing of the scripts or the engine.

use std::collections::HashMap;

use super::model::Promise;
use crate::key::Key;
use crate::script::packed::{Queue, State};
use crate::script::{Call, Outcome, Token, Verb};
use crate::store::memory::keyspace::Keyspace;

/// A promise that was broken, and what shows it.
pub(super) type Broken = (Promise, String);

/// Times are in µs of the run, which is no host's clock.
pub(super) struct Judge {
    key: Key,
    step: u64,
    horizon: u64,
    /// The record as it was left.
    record: Record,
    /// Who stands in the queue, in the order in which the server ran their requests.
    queue: Vec<Waiter>,
    /// After how many losses of data each token first stood in the queue.
    seen: HashMap<Token, u32>,
    /// Every grant there was, by its token.
    grants: HashMap<Token, Granted>,
    largest_fence: u64,
    /// The record was lost since the grant with that fence.
    forgot: bool,
    /// The clock ever did.
    went_back: bool,
    /// Time in which the server served somebody: what passed between two scripts, but never more than one step.
    served: u64,
    last_run: u64,
    /// When data was lost or the clock made a step, and how often.
    disturbed_at: Option<u64>,
    disturbances: u32,
    clock_steps: u32,
    losses: u32,
    processes: HashMap<String, Sign>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Record {
    /// Of the holder: its manager, and whether its lease is a renewed one.
    manager: String,
    renewed: bool,
    owner: Option<Token>,
    end: u64,
    fence: u64,
    entries: usize,
}

struct Waiter {
    token: Token,
    manager: String,
    /// It may be passed over: its place was lost, or its process let a lease lapse.
    void: bool,
}

#[derive(Clone, Copy)]
struct Granted {
    at: u64,
    fence: u64,
    disturbances: u32,
    /// It was given back. A copy of its acquire may take the lock again then, and is given back too (R7).
    released: bool,
    /// By a request that was dated before the clock made a step.
    misdated: bool,
}

/// A process's last sign of life at this name.
#[derive(Clone, Copy)]
struct Sign {
    served: u64,
    clock_steps: u32,
    dead: bool,
}

/// A request that the server has run.
pub(super) struct Ran<'a> {
    pub(super) call: &'a Call,
    pub(super) manager: &'a str,
    pub(super) outcome: &'a Outcome,
    pub(super) more: bool,
    /// When its sender stops to wait for the answer, and how many clock steps there had been when it was dated.
    pub(super) given_up_at: u64,
    pub(super) dated_after: u32,
}

impl Judge {
    pub(super) fn new(key: Key, step: u64, horizon: u64) -> Judge {
        Judge {
            key,
            step,
            horizon,
            record: Record::default(),
            queue: Vec::new(),
            seen: HashMap::new(),
            grants: HashMap::new(),
            largest_fence: 0,
            forgot: false,
            went_back: false,
            served: 0,
            last_run: 0,
            disturbed_at: None,
            disturbances: 0,
            clock_steps: 0,
            losses: 0,
            processes: HashMap::new(),
        }
    }

    pub(super) fn clock_steps(&self) -> u32 {
        self.clock_steps
    }

    /// The clock makes a step, or another with another clock takes its place.
    pub(super) fn clock_stepped(&mut self, now: u64, by: i64) {
        self.clock_steps += 1;
        self.went_back |= by < 0;
        self.disturbed(now);
    }

    /// Something that was there is not any more, or is as it once was.
    pub(super) fn data_lost(&mut self, now: u64, keyspace: &Keyspace) {
        self.forgot = true;
        self.losses += 1;
        self.disturbed(now);
        self.record = look(keyspace, &self.key);
        // Whoever is known again from an old copy may be served, and may be passed over.
        let list = keyspace.list_of(self.key.queue()).map(|(list, _)| list).into_iter().flatten();
        let hash = keyspace.hash_of(self.key.record()).map(|(hash, _)| hash);
        let known = list.filter(|token| hash.is_some_and(|hash| hash.contains_key(&[b"w:", &token[..]].concat())));
        let waiter = |token| Waiter { token, manager: String::new(), void: true };
        self.queue = known.filter_map(|token| token_of(token).map(waiter)).collect();
    }

    fn disturbed(&mut self, now: u64) {
        self.disturbed_at = Some(now);
        self.disturbances += 1;
    }

    pub(super) fn died(&mut self, manager: &str) {
        if let Some(sign) = self.processes.get_mut(manager) {
            sign.dead = true;
        }
    }

    /// Whether what this token was granted stands under the exceptions of P1.
    pub(super) fn is_excepted(&self, token: Token) -> bool {
        self.grants.get(&token).is_none_or(|grant| self.disturbed_at.is_some_and(|at| grant.at <= at))
    }

    /// Whether a token that is nobody's any more was known from data of before a loss, or taken by a request that a clock
    /// which went back let in after all.
    pub(super) fn may_have_come_back(&self, token: Token) -> bool {
        self.grants.get(&token).is_some_and(|grant| grant.misdated)
            || self.seen.get(&token).is_some_and(|seen| *seen < self.losses)
    }

    /// Who owns the lock by the record, and its manager, if its lease has not lapsed.
    pub(super) fn owner(&self, clock: u64) -> Option<(Token, &str)> {
        let owner = self.record.owner.filter(|_| self.record.end > clock);
        owner.map(|owner| (owner, self.record.manager.as_str()))
    }

    /// A guard believes that it is held.
    pub(super) fn held(&self, token: Token, fence: u64) -> Result<(), Broken> {
        if self.record.owner == Some(token) {
            return Ok(());
        }
        let whose = self.record.owner.map_or("nobody's".to_owned(), |owner| format!("{owner:?}'s"));
        Err((Promise::Exclusion, format!("a guard of {token:?} (fence {fence}) is held, and the record is {whose}")))
    }

    /// The server has run a request, at a time of its own clock.
    pub(super) fn ran(&mut self, now: u64, clock: u64, keyspace: &Keyspace, ran: &Ran<'_>) -> Result<(), Broken> {
        let before = std::mem::replace(&mut self.record, look(keyspace, &self.key));
        let after = self.record.clone();
        self.served += (now - self.last_run).min(self.step);
        self.last_run = now;
        let token = match ran.call.verb {
            Verb::Acquire { token, .. } | Verb::Release { token, .. } | Verb::Renew { token } => Some(token),
            _ => None,
        };
        let late = matches!(ran.outcome, Outcome::Late);
        let ends_own = matches!(ran.call.verb, Verb::Release { .. }) && token == before.owner;
        let changed = (before.owner, before.fence) != (after.owner, after.fence);

        // P1, in the record.
        if let Some(owner) = before.owner
            && after.owner != before.owner
            && before.end > clock
            && !ends_own
        {
            return Err((
                Promise::Exclusion,
                format!("{owner:?} lost its lease, which had not lapsed, to {:?}", ran.call),
            ));
        }
        // P7: past its caller's patience a request takes nothing.
        if let Verb::Acquire { token, .. } = ran.call.verb
            && !late
            && now > ran.given_up_at
            && ran.dated_after == self.clock_steps
        {
            let took = changed && after.owner == Some(token) || self.is_new_in(keyspace, token);
            if took {
                return Err((Promise::OneGrant, format!("{token:?} took something after its caller had given up")));
            }
        }
        // R10, which P3 allows for: who lets a lease lapse is taken for dead.
        if before.owner.is_some() && after.owner != before.owner && before.end <= clock && !ends_own {
            let dead = (before.renewed && before.manager != ran.manager).then_some(before.manager);
            self.queue.iter_mut().filter(|w| Some(&w.manager) == dead.as_ref()).for_each(|w| w.void = true);
        }
        if let Verb::Release { token, .. } = ran.call.verb {
            self.queue.retain(|waiter| waiter.token != token);
            if let Some(grant) = self.grants.get_mut(&token).filter(|_| ends_own && after.owner != before.owner) {
                grant.released = true;
            }
        }
        if let Some(owner) = after.owner.filter(|_| changed) {
            self.granted(now, clock, owner, after.fence, ran)?;
        }
        if let Verb::Acquire { token, .. } = ran.call.verb
            && self.is_new_in(keyspace, token)
        {
            self.seen.entry(token).or_insert(self.losses);
            self.queue.push(Waiter { token, manager: ran.manager.to_owned(), void: false });
        }
        // R11: until it is noticed that the list lost entries, whoever is added to it loses his place as well.
        let entries = keyspace.list_of(self.key.queue()).map_or(0, |(list, _)| list.len());
        if after.entries > entries {
            self.queue.iter_mut().for_each(|waiter| waiter.void = true);
        }
        let shows_life = matches!(ran.outcome, Outcome::Waiting { .. } | Outcome::Synced { .. });
        if shows_life {
            let sign = Sign { served: self.served, clock_steps: self.clock_steps, dead: false };
            self.processes.insert(ran.manager.to_owned(), sign);
        }
        // P4: whoever could be served now has been.
        let serves = matches!(ran.call.verb, Verb::Acquire { .. } | Verb::Release { .. } | Verb::Sync { .. });
        if serves && !late && !ran.more && after.owner.is_none() && after.end <= clock {
            let waits = self.queue.iter().find(|waiter| !self.may_be_passed_over(waiter));
            if let Some(waiter) = waits {
                return Err((Promise::WakeUp, format!("the lock is free, and {:?} waits", waiter.token)));
            }
            // All others have been passed over, and are not known any more.
            self.queue.clear();
        }
        // No key without a TTL.
        let hash = keyspace.hash_of(self.key.record()).map(|(_, expiry)| expiry);
        let list = keyspace.list_of(self.key.queue()).map(|(_, expiry)| expiry);
        if hash.into_iter().chain(list).any(|expiry| expiry.is_none()) {
            return Err((Promise::Leftovers, "a key has no TTL".to_owned()));
        }
        Ok(())
    }

    /// All is over: nobody owns the lock, and nobody's place is left.
    pub(super) fn leftovers(&self, clock: u64, keyspace: &Keyspace) -> Result<(), Broken> {
        let record = look(keyspace, &self.key);
        if let Some(owner) = record.owner.filter(|_| record.end > clock) {
            return Err((Promise::Leftovers, format!("{owner:?} owns the lock")));
        }
        let fields = keyspace
            .hash_of(self.key.record())
            .map_or(0, |(hash, _)| hash.keys().filter(|f| f.starts_with(b"w:")).count());
        // A list whose record was lost stays until somebody waits again, or until its TTL.
        if fields + record.entries > 0 {
            return Err((Promise::Leftovers, format!("{fields} waiters' records, {} entries", record.entries)));
        }
        Ok(())
    }

    fn granted(&mut self, now: u64, clock: u64, token: Token, fence: u64, ran: &Ran<'_>) -> Result<(), Broken> {
        let (asker, misdated) = (ran.manager, ran.dated_after < self.clock_steps);
        if fence <= self.largest_fence && !(self.forgot && self.went_back && clock <= self.largest_fence) {
            return Err((Promise::Fencing, format!("fence {fence} after {}", self.largest_fence)));
        }
        (self.largest_fence, self.forgot) = (fence, false);
        let at = self.queue.iter().position(|waiter| waiter.token == token);
        let ahead = &self.queue[..at.unwrap_or(self.queue.len())];
        // After a loss of data, an entry that outlived its record counts again when its token is sent once more.
        let outlived = self.may_have_come_back(token);
        if let Some(passed) = ahead.iter().filter(|_| !outlived).find(|waiter| !self.may_be_passed_over(waiter)) {
            let sign = self.processes.get(&passed.manager);
            let silent = sign.map_or(0, |sign| self.served - sign.served);
            let said = format!(
                "{token:?} was granted the lock at {now} µs, at a request of {asker}, and {:?} of {}, silent for {silent} \
                 µs, was first",
                passed.token, passed.manager
            );
            return Err((Promise::Order, said));
        }
        if outlived {
            self.queue.retain(|waiter| waiter.token != token);
        } else {
            let passed = ahead.len();
            self.queue.drain(..passed + usize::from(at.is_some()));
        }
        let grant = Granted { at: now, fence, disturbances: self.disturbances, released: false, misdated };
        if let Some(earlier) = self.grants.insert(token, grant)
            && earlier.disturbances == self.disturbances
            && !earlier.released
        {
            let said = format!("{token:?} was granted the lock twice, with fences {} and {fence}", earlier.fence);
            return Err((Promise::OneGrant, said));
        }
        Ok(())
    }

    /// Only those who died, were silent for longer than the horizon while others were served, or lost their places.
    fn may_be_passed_over(&self, waiter: &Waiter) -> bool {
        let Some(sign) = self.processes.get(&waiter.manager) else { return waiter.void };
        // A step of the clock can count as one step of served time.
        let steps = u64::from(self.clock_steps - sign.clock_steps);
        waiter.void || sign.dead || self.served - sign.served + steps * self.step + 1000 > self.horizon
    }

    fn is_new_in(&self, keyspace: &Keyspace, token: Token) -> bool {
        let last = last_bytes(keyspace, &self.key);
        let field = [b"w:", last.as_slice()].concat();
        let waits = keyspace.hash_of(self.key.record()).is_some_and(|(hash, _)| hash.contains_key(&field));
        token_of(&last) == Some(token) && waits && self.queue.iter().all(|waiter| waiter.token != token)
    }
}

fn last_bytes(keyspace: &Keyspace, key: &Key) -> Vec<u8> {
    keyspace.list_of(key.queue()).and_then(|(list, _)| list.back().cloned()).unwrap_or_default()
}

fn look(keyspace: &Keyspace, key: &Key) -> Record {
    let Some((hash, _)) = keyspace.hash_of(key.record()) else { return Record::default() };
    let state = hash.get(&b"s"[..]).and_then(|packed| State::unpack(packed)).unwrap_or_default();
    let queue = hash.get(&b"q"[..]).and_then(|packed| Queue::unpack(packed)).unwrap_or_default();
    // `ticket since manager ttl fixed hold`
    let request = hash.get(&b"a"[..]).and_then(|request| std::str::from_utf8(request).ok()).unwrap_or_default();
    let words: Vec<&str> = request.split(' ').collect();
    let manager = words.get(2).copied().unwrap_or_default().to_owned();
    let renewed = words.get(4) == Some(&"0");
    let owner = hash.get(&b"o"[..]).and_then(|token| token_of(token));
    Record { manager, renewed, owner, end: state.end, fence: state.fence, entries: queue.entries as usize }
}

fn token_of(text: &[u8]) -> Option<Token> {
    Token::parse(std::str::from_utf8(text).ok()?)
}
