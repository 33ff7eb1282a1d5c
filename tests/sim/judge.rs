//! What the promises say of a run, checked at each step. It tells the model of each request that the server has run,
//! and what the record and the queue show then; the rest is about time. It knows nothing of the scripts or the engine.

mod ended;
mod told;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ended::Ended;

use super::books;
use super::model::ModelLock;
use super::model::Promise;
use super::model::{Attempt, DataLoss, ModelKind, ModelOutcome, Op};
use super::record::{Holder, Record};
use super::served::Served;
use crate::config::Config;
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::script::{self, Call, Mode, Token, Verb};
use crate::store::memory::keyspace::Keyspace;

/// A promise that was broken, and what shows it.
pub(super) type Broken = (Promise, String);

/// Times are in µs of the run, which is no host's clock; those of a record are by the server's clock.
pub(super) struct Judge {
    key: Key,
    kind: ModelKind,
    /// T
    timeout: u64,
    /// What the server is to have.
    model: Model,
    /// What it was when the replica caught up.
    replica: Model,
    /// The record as it was left.
    record: Record,
    attempts: HashMap<Token, Attempt>,
    /// By the numbers of the attempts.
    tokens: Vec<Token>,
    clients: HashMap<String, u8>,
    /// Those that took the lock away.
    struck: HashSet<Token>,
    /// Entries were lost, or the count of them, and nobody has counted anew.
    miscounted: bool,
    /// After how many failovers each token first stood in the queue.
    seen: HashMap<Token, u32>,
    /// Those whose grant became a guard.
    claimed: HashSet<Token>,
    /// The last grant of each token.
    grants: HashMap<Token, Granted>,
    /// When each grant there was was made, and when it was taken away by force.
    made: HashMap<(Token, u64), (u64, Option<u64>)>,
    /// When data was lost or the clock made a step, and how often.
    disturbed_at: Option<u64>,
    disturbances: u32,
    clock_steps: u32,
    failovers: u32,
}

#[derive(Clone)]
struct Model {
    lock: ModelLock,
    served: Served,
    /// Somebody came back to a place that he had left. He has a later ticket than those behind him, so positions, which
    /// count tickets, bound nothing until the queue has been empty.
    returned: bool,
    /// Whose last lease ended without a release.
    ended: HashMap<Token, Ended>,
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
    /// It is to be sent again, since there is more of the same to do.
    pub(super) more: bool,
    /// When its sender stops to wait for the answer, and how many clock steps there had been when it was dated.
    pub(super) given_up_at: u64,
    pub(super) dated_after: u32,
}

impl Judge {
    pub(super) fn new(key: Key, kind: ModelKind, config: &Config) -> Judge {
        let [period, timeout, horizon] =
            [config.check_period, config.command_timeout, config.horizon].map(micros);
        let step = period + timeout;
        let model = Model {
            lock: ModelLock::new(kind),
            served: Served::new(step, horizon),
            returned: false,
            ended: HashMap::new(),
        };
        Judge {
            key,
            kind,
            timeout,
            replica: model.clone(),
            model,
            record: Record::default(),
            attempts: HashMap::new(),
            tokens: Vec::new(),
            clients: HashMap::new(),
            struck: HashSet::new(),
            miscounted: false,
            seen: HashMap::new(),
            claimed: HashSet::new(),
            grants: HashMap::new(),
            made: HashMap::new(),
            disturbed_at: None,
            disturbances: 0,
            clock_steps: 0,
            failovers: 0,
        }
    }

    pub(super) fn clock_steps(&self) -> u32 {
        self.clock_steps
    }

    /// The clock makes a step, or another with another clock takes its place.
    pub(super) fn clock_stepped(&mut self, now: u64, clock: u64) {
        self.clock_steps += 1;
        self.model.clock_is(clock);
        self.disturbed(now);
    }

    /// Its grant became a guard.
    pub(super) fn claimed(&mut self, token: Token) {
        self.claimed.insert(token);
    }

    /// The replica catches up.
    pub(super) fn replicated(&mut self) {
        self.replica = self.model.clone();
    }

    /// Something that was there is not any more.
    pub(super) fn lost_data(&mut self, now: u64, loss: DataLoss, keyspace: &Keyspace) {
        // A queue that the record counts no entries of cannot be missed.
        if loss != DataLoss::Queue || self.record.entries > 0 {
            let after = self
                .model
                .lock
                .after(&Op::LoseData(loss), &ModelOutcome::Done);
            self.model.lock = after.map_or_else(
                |_| ModelLock::new(self.kind),
                |mut worlds| worlds.swap_remove(0),
            );
        }
        if matches!(loss, DataLoss::All | DataLoss::Record) {
            self.model.served = self.model.served.anew();
        }
        if matches!(loss, DataLoss::All | DataLoss::Holders) {
            self.model.ended.clear();
        }
        self.is_another(now, keyspace);
    }

    /// The replica takes over, with the data that it has.
    pub(super) fn failed_over(&mut self, now: u64, clock: u64, keyspace: &Keyspace) {
        self.failovers += 1;
        self.model = self.replica.clone();
        self.model.clock_is(clock);
        self.is_another(now, keyspace);
    }

    fn is_another(&mut self, now: u64, keyspace: &Keyspace) {
        self.miscounted = true;
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

    /// Whether a token that is nobody's any more was known from data of before a failover, or taken by a request that a
    /// clock which went back let in after all.
    pub(super) fn may_have_come_back(&self, token: Token) -> bool {
        self.grants.get(&token).is_some_and(|grant| grant.misdated)
            || self
                .seen
                .get(&token)
                .is_some_and(|seen| *seen < self.failovers)
    }

    /// That of one who holds, or else the last.
    pub(super) fn fence_of_one(&self, chance: u64) -> u64 {
        let holders = &self.record.holders;
        let one = holders.get(chance as usize % holders.len().max(1));
        one.map_or(self.record.fence, |holder| holder.fence)
    }

    /// Whether it was granted once, whatever became of that.
    pub(super) fn was_granted(&self, token: Token) -> bool {
        self.grants.contains_key(&token)
    }

    /// Holders whose time is not over.
    pub(super) fn live_holders(&self, clock: u64) -> impl Iterator<Item = &Holder> {
        self.record
            .holders
            .iter()
            .filter(move |holder| holder.end > clock)
    }

    /// Permits that count as taken of holders that were lost.
    pub(super) fn missing(&self) -> u32 {
        self.model.lock.missing()
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// When data was lost or the clock made a step last.
    pub(super) fn disturbed_at(&self) -> u64 {
        self.disturbed_at.unwrap_or(0)
    }

    /// Whether it holds, or stands in the queue.
    pub(super) fn knows(&self, token: Token) -> bool {
        self.record.holder(token).is_some() || self.record.stands(token)
    }

    /// P1: a guard believes that it is held.
    pub(super) fn held(&self, clock: u64, token: Token, fence: u64) -> Result<(), Broken> {
        match self.record.holder(token) {
            Some(holder) if holder.end >= clock && holder.fence == fence => Ok(()),
            _ => {
                let by = &self.record.holders;
                let said = format!(
                    "a guard of {token:?} (fence {fence}) is held, and by the record it is {by:?}'s"
                );
                Err((Promise::Exclusion, said))
            }
        }
    }

    /// The server has run a request, at a time of its own clock.
    pub(super) fn ran(
        &mut self,
        now: u64,
        clock: u64,
        keyspace: &Keyspace,
        ran: &Ran<'_>,
    ) -> Result<(), Broken> {
        let before = std::mem::replace(&mut self.record, Record::read(keyspace, &self.key));
        let after = self.record.clone();
        if let Some((op, outcome)) = self.told(&before, ran) {
            // P7: past its caller's patience a request takes nothing, and gives no sign of life.
            let is_dated = matches!(ran.call.verb, Verb::Acquire { .. } | Verb::Sync { .. });
            if is_dated
                && outcome != ModelOutcome::Late
                && now > ran.given_up_at
                && ran.dated_after == self.clock_steps
            {
                return Err((
                    Promise::OneGrant,
                    format!("{op:?}, which its caller had given up, ended in {outcome:?}"),
                ));
            }
            let moment = self.moment(clock, &before, &after, ran);
            let sight = self.sight(&after, ran.manager);
            let request = self
                .model
                .lock
                .request(moment.clone(), op.clone(), &outcome, &sight);
            self.model.lock = request.map_err(|promise| {
                let is = &self.model.lock;
                (
                    promise,
                    format!("{op:?} at {now} µs ended in {outcome:?}, and left {after:?}, of {is:?} at {moment:?}"),
                )
            })?;
            if ran.more != self.model.lock.is_unfinished() {
                let said = format!(
                    "{op:?} at {now} µs said {} of there being more to pass over",
                    ran.more
                );
                return Err((Promise::WakeUp, said));
            }
        }
        let client = self.client(ran.manager);
        let shows_life = matches!(
            ran.outcome,
            script::Outcome::Waiting { .. } | script::Outcome::Synced { .. }
        );
        if shows_life || after.counted == clock {
            self.model.served.count(clock);
        }
        if shows_life {
            self.model.served.sign(client);
        }
        self.is_told_the_end(clock, ran)?;
        self.forget(clock);
        self.remember(now, clock, &before, &after, ran)?;
        books::has_its_time(clock, &before, &after, ran)?;
        books::are_right(&after, self.missing())?;
        // R11: unless entries were lost, the record counts them right.
        let entries = after.queue.len();
        self.miscounted &= after.entries != entries;
        self.model.returned &= entries > 0;
        if !self.miscounted && after.entries != entries {
            return Err((
                Promise::Leftovers,
                format!("the record counts {} entries of {entries}", after.entries),
            ));
        }
        // No key without a TTL.
        let hashes = [self.key.record(), &self.key.holders()]
            .map(|key| keyspace.hash_of(key).map(|(_, expiry)| expiry));
        let list = keyspace.list_of(self.key.queue()).map(|(_, expiry)| expiry);
        if hashes
            .into_iter()
            .chain([list])
            .flatten()
            .any(|expiry| expiry.is_none())
        {
            return Err((Promise::Leftovers, "a key has no TTL".to_owned()));
        }
        Ok(())
    }

    /// P7: a token is granted once, unless it was given back, or the grant was lost with the data or by a step of the
    /// clock.
    fn remember(
        &mut self,
        now: u64,
        clock: u64,
        before: &Record,
        after: &Record,
        ran: &Ran<'_>,
    ) -> Result<(), Broken> {
        if let (Verb::Acquire { token, .. }, script::Outcome::Waiting { .. }) =
            (&ran.call.verb, ran.outcome)
        {
            self.seen.entry(*token).or_insert(self.failovers);
        }
        if let Verb::Release { token, fence, mode } = ran.call.verb
            && *ran.outcome == script::Outcome::Released
            && mode != Mode::Downgrade
        {
            if mode == Mode::Lost && self.kind == ModelKind::Mutex {
                self.model.none_is_last();
            }
            let is_forced = mode == Mode::Forced;
            self.struck.extend(is_forced.then_some(token));
            let ends = |holder: &&Holder| {
                if is_forced {
                    holder.fence == fence
                } else {
                    holder.token == token
                }
            };
            for holder in before.holders.iter().filter(ends) {
                if let Some(grant) = self.grants.get_mut(&holder.token) {
                    grant.released = true;
                }
                if is_forced {
                    let made = self.made.entry((holder.token, holder.fence));
                    made.and_modify(|(_, forced)| *forced = Some(now));
                }
            }
        }
        // R6: what was sent within a ttl of the first may come after a grant that nobody heard of has lapsed, and a
        // request has two command timeouts.
        if let Verb::Acquire { token, .. } = &ran.call.verb
            && let Some(Ended {
                fence,
                how: PreviousHolder::Lapsed,
                ttl,
                ..
            }) = self.model.ended.get(token)
            && let Some((made, _)) = self.made.get(&(*token, *fence))
            && now <= made + ttl + 2 * self.timeout
            && !self.claimed.contains(token)
            && let Some(grant) = self.grants.get_mut(token)
        {
            grant.released = true;
        }
        let is_over = |holder: &&Holder| after.same(holder).is_none();
        for holder in before.holders.iter().filter(is_over) {
            let how = match ran.call.verb {
                Verb::Release {
                    mode: Mode::Forced,
                    fence,
                    ..
                } if fence == holder.fence => PreviousHolder::Forced,
                Verb::Release { token, .. } if token == holder.token => continue,
                _ => PreviousHolder::Lapsed,
            };
            self.model.has_ended(self.kind, holder, how, clock);
        }
        let misdated = ran.dated_after < self.clock_steps;
        for Holder { token, fence, .. } in after.granted_since(before) {
            let granted = Granted {
                fence: *fence,
                disturbances: self.disturbances,
                released: false,
                misdated,
            };
            self.made.insert((*token, *fence), (now, None));
            self.model.ended.remove(token);
            match self.grants.insert(*token, granted) {
                Some(earlier) if earlier.disturbances == self.disturbances && !earlier.released => {
                    let said = format!(
                        "{token:?} was granted twice, with fences {} and {fence}",
                        earlier.fence
                    );
                    return Err((Promise::OneGrant, said));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All is over: nobody holds anything, and nobody's place is left.
    pub(super) fn leftovers(&self, clock: u64, keyspace: &Keyspace) -> Result<(), Broken> {
        let record = Record::read(keyspace, &self.key);
        if let Some(holder) = self.live_holders(clock).next() {
            return Err((Promise::Leftovers, format!("{holder:?} holds the lock")));
        }
        let fields = keyspace.hash_of(self.key.record()).map_or(0, |(hash, _)| {
            hash.keys().filter(|f| f.starts_with(b"w:")).count()
        });
        // A list whose record was lost stays until somebody waits again, or until its TTL.
        if fields + record.entries > 0 {
            return Err((
                Promise::Leftovers,
                format!("{fields} waiters' records, {} entries", record.entries),
            ));
        }
        Ok(())
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
