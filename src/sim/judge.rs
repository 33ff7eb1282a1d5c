//! What the promises say of a run, checked at each step. It tells the model of each request that the server has run,
//! and what the record and the queue show then; the rest is about time. It knows nothing of the scripts or the engine.

use std::collections::HashMap;

use super::model::{Lock, Promise};
use super::op::{Attempt, Kind, Lease, Loss, Moment, Op, Outcome, Sight};
use super::record::Record;
use super::served::Served;
use crate::key::Key;
use crate::script::{self, Call, Mode, Token, Verb};
use crate::store::memory::keyspace::Keyspace;

/// A promise that was broken, and what shows it.
pub(super) type Broken = (Promise, String);

/// Times are in µs of the run, which is no host's clock; those of a record are by the server's clock.
pub(super) struct Judge {
    key: Key,
    /// What the server is to have.
    model: Model,
    /// What it was when the replica caught up.
    replica: Model,
    /// The record as it was left.
    record: Record,
    attempts: HashMap<Token, Attempt>,
    clients: HashMap<String, u8>,
    /// Somebody came back to a place that he had left. He has a later ticket than those behind him, so positions, which
    /// count tickets, bound nothing any more.
    returned: bool,
    /// After how many losses of data each token first stood in the queue.
    seen: HashMap<Token, u32>,
    /// The last grant of each token.
    grants: HashMap<Token, Granted>,
    /// When each grant there was was made, and when it was taken away by force.
    made: HashMap<(Token, u64), (u64, Option<u64>)>,
    /// When data was lost or the clock made a step, and how often.
    disturbed_at: Option<u64>,
    disturbances: u32,
    clock_steps: u32,
    losses: u32,
}

#[derive(Clone)]
struct Model {
    lock: Lock,
    served: Served,
}

#[derive(Clone, Copy)]
struct Granted {
    fence: u64,
    disturbances: u32,
    /// It was given back. A copy of its acquire may take the lock again then, and is given back too (R7).
    released: bool,
    /// By a request that was dated before the clock made a step.
    misdated: bool,
}

/// A request that the server has run.
pub(super) struct Ran<'a> {
    pub(super) call: &'a Call,
    pub(super) manager: &'a str,
    pub(super) outcome: &'a script::Outcome,
    /// When its sender stops to wait for the answer, and how many clock steps there had been when it was dated.
    pub(super) given_up_at: u64,
    pub(super) dated_after: u32,
}

impl Judge {
    pub(super) fn new(key: Key, step: u64, horizon: u64) -> Judge {
        let model = Model { lock: Lock::new(Kind::Mutex), served: Served::new(step, horizon) };
        Judge {
            key,
            replica: model.clone(),
            model,
            record: Record::default(),
            attempts: HashMap::new(),
            clients: HashMap::new(),
            returned: false,
            seen: HashMap::new(),
            grants: HashMap::new(),
            made: HashMap::new(),
            disturbed_at: None,
            disturbances: 0,
            clock_steps: 0,
            losses: 0,
        }
    }

    pub(super) fn clock_steps(&self) -> u32 {
        self.clock_steps
    }

    /// The clock makes a step, or another with another clock takes its place.
    pub(super) fn clock_stepped(&mut self, now: u64) {
        self.clock_steps += 1;
        self.disturbed(now);
    }

    /// The replica catches up.
    pub(super) fn replicated(&mut self) {
        self.replica = self.model.clone();
    }

    /// Something that was there is not any more.
    pub(super) fn lost_data(&mut self, now: u64, loss: Loss, keyspace: &Keyspace) {
        // A queue that the record counts no entries of cannot be missed.
        if loss == Loss::All || self.record.entries > 0 {
            let after = self.model.lock.after(&Op::Lose(loss), &Outcome::Done);
            self.model.lock = after.map_or_else(|_| Lock::new(Kind::Mutex), |mut worlds| worlds.swap_remove(0));
        }
        if loss == Loss::All {
            self.model.served = self.model.served.anew();
        }
        self.is_another(now, keyspace);
    }

    /// The replica takes over, with the data that it has.
    pub(super) fn failed_over(&mut self, now: u64, keyspace: &Keyspace) {
        self.model = self.replica.clone();
        self.is_another(now, keyspace);
    }

    fn is_another(&mut self, now: u64, keyspace: &Keyspace) {
        self.losses += 1;
        self.disturbed(now);
        self.record = Record::read(keyspace, &self.key);
    }

    fn disturbed(&mut self, now: u64) {
        self.disturbed_at = Some(now);
        self.disturbances += 1;
    }

    /// Since when P1 excepts a grant: it was made before a loss of data, a step of the clock or a force.
    pub(super) fn excepted_since(&self, token: Token, fence: u64) -> Option<u64> {
        let (made, forced) = self.made.get(&(token, fence))?;
        self.disturbed_at.filter(|at| made <= at).max(*forced)
    }

    /// Whether a token that is nobody's any more was known from data of before a loss, or taken by a request that a
    /// clock which went back let in after all.
    pub(super) fn may_have_come_back(&self, token: Token) -> bool {
        self.grants.get(&token).is_some_and(|grant| grant.misdated)
            || self.seen.get(&token).is_some_and(|seen| *seen < self.losses)
    }

    /// That of the last grant.
    pub(super) fn fence(&self) -> u64 {
        self.record.fence
    }

    /// Who owns the lock by the record, and its manager, if its lease has not lapsed.
    pub(super) fn owner(&self, clock: u64) -> Option<(Token, &str)> {
        let owner = self.record.owner.filter(|_| self.record.end > clock);
        owner.map(|owner| (owner, self.record.manager.as_str()))
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// When data was lost or the clock made a step last.
    pub(super) fn disturbed_at(&self) -> u64 {
        self.disturbed_at.unwrap_or(0)
    }

    /// Whether it stands in the queue.
    pub(super) fn stands(&self, token: Token) -> bool {
        self.record.queue.contains(&(token, true))
    }

    /// Whether it owns the lock, or stands in the queue.
    pub(super) fn knows(&self, token: Token) -> bool {
        self.record.owner == Some(token) || self.stands(token)
    }

    /// P1: a guard believes that it is held.
    pub(super) fn held(&self, clock: u64, token: Token, fence: u64) -> Result<(), Broken> {
        if self.record.owner == Some(token) && self.record.end >= clock && self.record.fence == fence {
            return Ok(());
        }
        let whose = self.record.owner.map_or("nobody's".to_owned(), |owner| format!("{owner:?}'s"));
        Err((Promise::Exclusion, format!("a guard of {token:?} (fence {fence}) is held, and the record is {whose}")))
    }

    /// The server has run a request, at a time of its own clock.
    pub(super) fn ran(&mut self, now: u64, clock: u64, keyspace: &Keyspace, ran: &Ran<'_>) -> Result<(), Broken> {
        let before = std::mem::replace(&mut self.record, Record::read(keyspace, &self.key));
        let after = self.record.clone();
        if let Some((op, outcome)) = self.told(&before, ran) {
            // P7: past its caller's patience a request takes nothing, and gives no sign of life.
            let is_dated = matches!(ran.call.verb, Verb::Acquire { .. } | Verb::Sync { .. });
            if is_dated && outcome != Outcome::Late && now > ran.given_up_at && ran.dated_after == self.clock_steps {
                return Err((
                    Promise::OneGrant,
                    format!("{op:?}, which its caller had given up, ended in {outcome:?}"),
                ));
            }
            let moment = self.moment(clock, &before, &after, ran);
            let sight = self.sight(&after, ran.manager);
            let request = self.model.lock.request(moment.clone(), op.clone(), &outcome, sight);
            self.model.lock = request.map_err(|promise| {
                let is = &self.model.lock;
                (
                    promise,
                    format!("{op:?} at {now} µs ended in {outcome:?}, and left {after:?}, of {is:?} at {moment:?}"),
                )
            })?;
        }
        let client = self.client(ran.manager);
        let shows_life = matches!(ran.outcome, script::Outcome::Waiting { .. } | script::Outcome::Synced { .. });
        if shows_life || after.counted == clock {
            self.model.served.count(clock);
        }
        if shows_life {
            self.model.served.sign(client);
        }
        self.remember(now, &before, &after, ran)?;
        has_its_time(clock, &before, &after, ran)?;
        // R11: unless entries were lost, the record counts them right.
        let entries = after.queue.len();
        if self.losses == 0 && after.entries != entries {
            return Err((Promise::Leftovers, format!("the record counts {} entries of {entries}", after.entries)));
        }
        // No key without a TTL.
        let hash = keyspace.hash_of(self.key.record()).map(|(_, expiry)| expiry);
        let list = keyspace.list_of(self.key.queue()).map(|(_, expiry)| expiry);
        if hash.into_iter().chain(list).any(|expiry| expiry.is_none()) {
            return Err((Promise::Leftovers, "a key has no TTL".to_owned()));
        }
        Ok(())
    }

    /// The request and its answer in the words of the model. `None` for one that only looks.
    fn told(&mut self, before: &Record, ran: &Ran<'_>) -> Option<(Op, Outcome)> {
        let client = self.client(ran.manager);
        let op = match &ran.call.verb {
            Verb::Acquire { token, may_wait, asked, .. } => {
                // `ttl fixed hold label`
                let fixed = asked.split(' ').nth(1) == Some("1");
                let attempt = self.attempt(*token, client, if fixed { Lease::Fixed } else { Lease::Renewed });
                match before.queue.iter().any(|(entry, waits)| entry == token && !waits) {
                    _ if !may_wait => Op::TryLock(attempt),
                    // A token that waits stands only once where it counts.
                    true if !before.queue.contains(&(*token, true)) => Op::Return(attempt),
                    _ => Op::Enqueue(attempt),
                }
            }
            Verb::Release { fence, mode: Mode::Forced, .. } => Op::ForceRelease { client, fence: *fence },
            Verb::Release { token, mode, .. } => {
                let attempt = self.attempt(*token, client, Lease::Renewed);
                match mode {
                    Mode::Used => Op::Unlock(attempt),
                    Mode::Lost => Op::Drop(attempt),
                    // Of a mutex there is nothing to keep.
                    Mode::Unused | Mode::KeepIfOwner | Mode::Downgrade | Mode::Forced => Op::Leave(attempt),
                }
            }
            Verb::Renew { token } => Op::Renew(self.attempt(*token, client, Lease::Renewed)),
            Verb::Sync { .. } => Op::Sync { client },
            Verb::Inspect { .. } | Verb::Lookup { .. } => return None,
        };
        self.returned |= matches!(op, Op::Return(_));
        use script::Outcome as Said;
        let outcome = match ran.outcome {
            Said::Granted(grant) => Outcome::Granted { fence: grant.fence },
            Said::Waiting { position, .. } => Outcome::Waiting { position: Some(*position).filter(|_| !self.returned) },
            Said::Busy { .. } => Outcome::Busy,
            Said::Late => Outcome::Late,
            Said::Released => Outcome::Released,
            Said::Renewed { .. } => Outcome::Renewed,
            Said::Synced { .. } => Outcome::Done,
            Said::Absent => Outcome::Absent,
            Said::Refused | Said::Already if matches!(op, Op::ForceRelease { .. }) => Outcome::Refused,
            Said::Already | Said::Lapsed | Said::Forced | Said::Lost | Said::Unknown | Said::Gone { .. } => {
                Outcome::Lost
            }
            // Nobody asks for these here.
            _ => Outcome::Forbidden,
        };
        Some((op, outcome))
    }

    fn moment(&self, clock: u64, before: &Record, after: &Record, ran: &Ran<'_>) -> Moment {
        let Model { served, .. } = &self.model;
        let number = before.owner.and_then(|owner| self.attempts.get(&owner)).map(|attempt| attempt.number);
        let is_spared = before.owner == after.owner && !before.is_spared() && after.is_spared();
        let is_guard = matches!(ran.call.verb, Verb::Release { mode: Mode::Used | Mode::Lost, .. });
        Moment {
            clock,
            over: self.model.lock.taken_by().filter(|_| before.end <= clock).collect(),
            rested: Default::default(),
            silent: served.silent(clock),
            outage: served.is_outage(clock),
            grace: number.filter(|_| is_spared).into_iter().collect(),
            counts_anew: false,
            cools: is_guard && before.hold > 0 && before.granted_at.min(clock) + before.hold > clock,
        }
    }

    fn sight(&mut self, record: &Record, manager: &str) -> Sight {
        let client = self.client(manager);
        let mut number = |token: Token| self.attempt(token, client, Lease::Renewed).number;
        let holders = record.owner.map(|owner| (number(owner), record.fence)).into_iter().collect();
        let mut queue: Vec<u16> = Vec::new();
        for (token, _) in record.queue.iter().filter(|(_, waits)| *waits) {
            let number = number(*token);
            if !queue.contains(&number) {
                queue.push(number);
            }
        }
        Sight { holders, queue }
    }

    fn client(&mut self, manager: &str) -> u8 {
        let next = self.clients.len() as u8;
        *self.clients.entry(manager.to_owned()).or_insert(next)
    }

    /// By its token, with what its first request says.
    fn attempt(&mut self, token: Token, client: u8, lease: Lease) -> Attempt {
        let number = self.attempts.len() as u16;
        *self.attempts.entry(token).or_insert(Attempt { number, client, lease, permits: 1 })
    }

    /// P7: a token is granted once, unless it was given back, or the grant was lost with the data or by a step of the
    /// clock.
    fn remember(&mut self, now: u64, before: &Record, after: &Record, ran: &Ran<'_>) -> Result<(), Broken> {
        if let (Verb::Acquire { token, .. }, script::Outcome::Waiting { .. }) = (&ran.call.verb, ran.outcome) {
            self.seen.entry(*token).or_insert(self.losses);
        }
        if let (Verb::Release { mode, .. }, Some(owner)) = (&ran.call.verb, before.owner)
            && *ran.outcome == script::Outcome::Released
            && let Some(grant) = self.grants.get_mut(&owner)
        {
            grant.released = true;
            if *mode == Mode::Forced {
                self.made.entry((owner, before.fence)).and_modify(|(_, forced)| *forced = Some(now));
            }
        }
        let Some(token) = after.owner.filter(|_| after.is_granted_since(before)) else {
            return Ok(());
        };
        let misdated = ran.dated_after < self.clock_steps;
        let (fence, disturbances) = (after.fence, self.disturbances);
        self.made.insert((token, fence), (now, None));
        match self.grants.insert(token, Granted { fence, disturbances, released: false, misdated }) {
            Some(earlier) if earlier.disturbances == self.disturbances && !earlier.released => {
                let said = format!("{token:?} was granted twice, with fences {} and {}", earlier.fence, after.fence);
                Err((Promise::OneGrant, said))
            }
            _ => Ok(()),
        }
    }

    /// All is over: nobody owns the lock, and nobody's place is left.
    pub(super) fn leftovers(&self, clock: u64, keyspace: &Keyspace) -> Result<(), Broken> {
        let record = Record::read(keyspace, &self.key);
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
}

/// P1, P5: a grant and a renewal give a lease its full time and no more, nothing takes any of it, and whoever waits
/// sees to it that one from before the clock went back ends in its time (R15).
fn has_its_time(clock: u64, before: &Record, after: &Record, ran: &Ran<'_>) -> Result<(), Broken> {
    let Some(owner) = after.owner else { return Ok(()) };
    let is_granted = after.is_granted_since(before);
    let full = clock + after.ttl.max(after.hold);
    let waits = matches!(ran.outcome, script::Outcome::Waiting { .. } | script::Outcome::Synced { .. });
    let (least, most) = if is_granted {
        (full, full)
    } else if matches!(ran.outcome, script::Outcome::Renewed { .. }) {
        (clock + after.ttl, full)
    } else {
        (before.end.min(full), if waits { full } else { before.end.max(full) })
    };
    if (least..=most).contains(&after.end) {
        return Ok(());
    }
    let said = format!("the lease of {owner:?} ends at {}, and not from {least} to {most}", after.end);
    Err((if after.end < least { Promise::Exclusion } else { Promise::Service }, said))
}
