//! The promises about a run, checked at each step.
//!
//! The checker passes each request that the server has run to the model, with what the record and
//! the queue hold afterwards. It knows neither the scripts nor the engine. `time_watch` checks the
//! promises about time.

mod ended;
mod grants;
mod observed;
mod turns;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ended::EndedLease;
use grants::Grants;
use turns::{Fences, Turns};

use super::accounting;
use super::breach::Breach;
use super::executed_call::ExecutedCall;
use super::model::ModelLock;
use super::model::Promise;
use super::model::{Attempt, DataLoss, ModelKind, ModelOutcome, Op};
use super::record::{HolderView, RecordView};
use super::served_time::ServedTime;
use super::sim_setting::SimSetting;
use crate::key::Key;
use crate::script::{self, Grant, Mode, Token, Verb, Wait};
use crate::store::memory::keyspace::Keyspace;

/// Times are in µs of the run, which is no host's clock. Those of a record, and those called
/// `clock`, are by the server's clock.
pub(super) struct Checker {
    key: Key,
    kind: ModelKind,
    /// T
    timeout: u64,
    /// P + T
    step: u64,
    /// No lease is longer.
    longest: u64,
    /// Whether answers are checked that say how much is left of a lease.
    pub(super) checks_left: bool,
    /// The state that the server should have.
    model: ServerModel,
    /// The model's state when the replica caught up.
    replica: ServerModel,
    /// The record after the last request.
    record: RecordView,
    attempts: HashMap<Token, Attempt>,
    /// By the numbers of the attempts.
    tokens: Vec<Token>,
    clients: HashMap<String, u8>,
    /// Tokens of the forced releases that ended a lease.
    forced: HashSet<Token>,
    /// The last of them, its page, and how often data was lost or the clock stepped before.
    last_forced: Option<(Token, Mode, u32)>,
    /// Entries of the queue were lost, or their count, and no request has counted them since.
    miscounted: bool,
    /// The waiters that the last request passed over because all of the time counted.
    pub(super) passed_over: Vec<Token>,
    grants: Grants,
    turns: Turns,
    fences: Fences,
    /// When data was last lost or the clock last stepped.
    disturbed_at: Option<u64>,
    disturbances: u32,
    clock_steps: u32,
    failovers: u32,
}

#[derive(Clone)]
struct ServerModel {
    lock: ModelLock,
    served_time: ServedTime,
    /// A waiter came back to a place that it had left. It has a later ticket than those behind it.
    /// So positions, which count tickets, bound nothing until the queue has been empty.
    returned: bool,
    /// Tokens whose last lease ended without a release.
    ended: HashMap<Token, EndedLease>,
}

/// When the server ran a request.
#[derive(Clone, Copy)]
pub(super) struct RanAt {
    /// In µs of the run.
    pub(super) now: u64,
    /// In µs, by the server's clock.
    pub(super) clock: u64,
}

impl Checker {
    pub(super) fn new(setting: &SimSetting) -> Checker {
        let SimSetting {
            kind, config, key, ..
        } = setting;
        let kind = *kind;
        let step = micros(config.check_period + config.command_timeout);
        let model = ServerModel {
            lock: ModelLock::new(kind),
            served_time: ServedTime::new(step, micros(config.horizon)),
            returned: false,
            ended: HashMap::new(),
        };
        Checker {
            key: key.clone(),
            kind,
            timeout: micros(config.command_timeout),
            step,
            longest: micros(setting.ttl),
            checks_left: true,
            replica: model.clone(),
            model,
            record: RecordView::default(),
            attempts: HashMap::new(),
            tokens: Vec::new(),
            clients: HashMap::new(),
            forced: HashSet::new(),
            last_forced: None,
            miscounted: false,
            passed_over: Vec::new(),
            grants: Grants::default(),
            turns: Turns::new(setting.local_handovers + 1),
            fences: Fences::default(),
            disturbed_at: None,
            disturbances: 0,
            clock_steps: 0,
            failovers: 0,
        }
    }

    pub(super) fn clock_steps(&self) -> u32 {
        self.clock_steps
    }

    /// The clock steps, or a server with another clock takes over.
    pub(super) fn on_clock_stepped(&mut self, at: RanAt) {
        self.clock_steps += 1;
        self.model.on_clock(at.clock);
        self.note_disturbance(at.now);
    }

    /// The replica catches up.
    pub(super) fn on_replicated(&mut self) {
        self.replica = self.model.clone();
    }

    /// The server lost data.
    pub(super) fn on_data_lost(&mut self, now: u64, loss: DataLoss, keyspace: &Keyspace) {
        // Nobody can miss a queue if the record counts no entries of it.
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
            self.model.served_time = self.model.served_time.restarted();
        }
        if matches!(loss, DataLoss::All | DataLoss::Holders) {
            self.model.ended.clear();
        }
        self.on_data_changed(now, keyspace);
    }

    /// The replica takes over, with its older data.
    pub(super) fn on_failed_over(&mut self, at: RanAt, keyspace: &Keyspace) {
        self.failovers += 1;
        self.model = self.replica.clone();
        self.model.on_clock(at.clock);
        self.on_data_changed(at.now, keyspace);
    }

    fn on_data_changed(&mut self, now: u64, keyspace: &Keyspace) {
        self.miscounted = true;
        self.turns.forget_waiters();
        self.note_disturbance(now);
        self.record = RecordView::read(keyspace, &self.key);
    }

    fn note_disturbance(&mut self, now: u64) {
        self.disturbed_at = Some(now);
        self.disturbances += 1;
    }

    /// The start of the exception to P1 for a grant: a loss of data, a step of the clock or a
    /// forced release that came after the grant.
    pub(super) fn excepted_since(&self, token: Token, fence: u64) -> Option<u64> {
        let times = self.grants.times.get(&(token, fence))?;
        self.disturbed_at
            .filter(|at| times.granted_at <= *at)
            .max(times.forced_at)
    }

    /// Whether a token that nobody uses any more may hold the lock again: the data from before a
    /// failover had it, or a clock that went back let a late request of it in.
    pub(super) fn may_have_come_back(&self, token: Token) -> bool {
        self.grants.is_misdated(token) || self.grants.was_queued_before(token, self.failovers)
    }

    /// The fence of one of the holders, or the last fence if nobody holds.
    pub(super) fn fence_of_a_holder(&self, pick: u64) -> u64 {
        let holders = &self.record.holders;
        let one = holders.get(pick as usize % holders.len().max(1));
        one.map_or(self.record.fence, |holder| holder.fence)
    }

    /// Whether the token was ever granted, whatever became of the grant.
    pub(super) fn was_granted(&self, token: Token) -> bool {
        self.grants.last.contains_key(&token)
    }

    /// Holders whose time is not over.
    pub(super) fn live_holders(&self, clock: u64) -> impl Iterator<Item = &HolderView> {
        self.record
            .holders
            .iter()
            .filter(move |holder| holder.end > clock)
    }

    pub(super) fn record(&self) -> &RecordView {
        &self.record
    }

    /// When data was last lost or the clock last stepped.
    pub(super) fn disturbed_at(&self) -> u64 {
        self.disturbed_at.unwrap_or(0)
    }

    /// Whether the token holds the lock or waits in the queue.
    pub(super) fn knows(&self, token: Token) -> bool {
        self.record.holder(token).is_some() || self.record.is_queued(token)
    }

    /// P1: a guard reports that it is held, so the record must have it as a holder.
    pub(super) fn check_held(&self, clock: u64, token: Token, fence: u64) -> Result<(), Breach> {
        match self.record.holder(token) {
            Some(holder) if holder.end >= clock && holder.fence == fence => Ok(()),
            _ => {
                let by = &self.record.holders;
                let said = format!(
                    "a guard of {token:?} (fence {fence}) is held, but the record has {by:?}"
                );
                Err(Breach::new(Promise::Exclusion, said))
            }
        }
    }

    /// The server has run a request.
    pub(super) fn on_executed(
        &mut self,
        at: RanAt,
        keyspace: &Keyspace,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let before = std::mem::replace(&mut self.record, RecordView::read(keyspace, &self.key));
        let after = self.record.clone();
        self.check_silence(at, &before, executed)?;
        if let Some((op, outcome)) = self.observed(&before, executed) {
            self.check_not_late(at, executed, &op, &outcome)?;
            self.check_model(at, &before, executed, (op, outcome))?;
        }
        self.count_served_time(at.clock, &before, executed);
        self.check_reported_end(at.clock, executed)?;
        self.check_repeated_force(executed)?;
        self.forget_expired(at.clock);
        self.record_request(at, &before, executed);
        self.record_grants(at, &before, executed)?;
        self.check_fences_rise(at, &before, executed)?;
        self.check_last_fence(&before, executed)?;
        self.note_waiters(at.now);
        accounting::check_lease_times(at.clock, &before, &after, executed)?;
        accounting::check_cooling(at.clock, &before, &after, executed)?;
        if self.checks_left {
            accounting::check_times_left(&after, self.longest, executed)?;
        }
        accounting::check_counts(&after)?;
        self.check_entries()?;
        self.check_key_ttls(keyspace)
    }

    /// The last request has published this grant.
    pub(super) fn check_message(&self, grant: &Grant) -> Result<(), Breach> {
        accounting::check_grant_left(&self.record, grant)
    }

    /// P7, R5 (dated requests): once its caller has stopped waiting, a request takes nothing and
    /// is no sign of life.
    fn check_not_late(
        &self,
        at: RanAt,
        executed: &ExecutedCall<'_>,
        op: &Op,
        outcome: &ModelOutcome,
    ) -> Result<(), Breach> {
        let is_dated = matches!(
            executed.call.verb,
            Verb::Acquire { .. }
                | Verb::Sync { .. }
                | Verb::Renew { .. }
                | Verb::Release {
                    mode: Mode::Forced(_),
                    ..
                }
        );
        // A renewal of a lease that is gone extends nothing.
        let is_answered_so = match executed.call.verb {
            Verb::Renew { .. } => matches!(outcome, ModelOutcome::Late | ModelOutcome::Lost),
            _ => *outcome == ModelOutcome::Late,
        };
        if is_dated
            && !is_answered_so
            && at.now > executed.times_out_at
            && executed.dated_after == self.clock_steps
        {
            let said = format!("{op:?}, whose caller had stopped waiting, ended in {outcome:?}");
            return Err(Breach::new(Promise::OneGrant, said));
        }
        Ok(())
    }

    /// The request must end, and leave the record, as the model says.
    fn check_model(
        &mut self,
        at: RanAt,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
        (op, outcome): (Op, ModelOutcome),
    ) -> Result<(), Breach> {
        let after = self.record.clone();
        let view = self.server_view(at.clock, before, executed);
        let observation = self.observation(&after, executed.manager);
        let lock = &self.model.lock;
        let request = lock.request(view.clone(), op.clone(), &outcome, &observation);
        let now = at.now;
        self.model.lock = request.map_err(|promise| {
            let said = format!(
                "{op:?} at {now} µs ended in {outcome:?}, and left {after:?}; \
                 before it the model was {lock:?}, at {view:?}"
            );
            Breach::new(promise, said)
        })?;
        // A look that is under way is to be continued as well.
        if !self.is_looking() && executed.more != self.model.lock.is_unfinished() {
            let said = format!(
                "{op:?} at {now} µs answered {} to whether there are more heads to pass over",
                executed.more
            );
            return Err(Breach::new(Promise::WakeUp, said));
        }
        Ok(())
    }

    /// R22 (tries among the dead): a try finds that nobody came for longer than the horizon, and has
    /// called the processes that wait. Only then all of the time counts. It notes which waiters that
    /// passes over: [`Run::check_passed_over`](super::run::Run) knows whether they are alive.
    fn check_silence(
        &mut self,
        at: RanAt,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        self.passed_over.clear();
        let all_counts = self.all_counts(before);
        let is_silent = *executed.outcome == script::Outcome::Silent;
        let is_long = self.model.served_time.is_long_silence(at.clock);
        let asked_as =
            |wanted| matches!(&executed.call.verb, Verb::Acquire { wait, .. } if *wait == wanted);
        if all_counts && !(is_long && asked_as(Wait::NoneCame))
            || is_silent && !(is_long && asked_as(Wait::No))
        {
            let said = format!("{:?} counts the time of an outage", executed.call.verb);
            return Err(Breach::new(Promise::Order, said));
        }
        if all_counts {
            let waited = before.queue.iter().filter(|entry| entry.waits);
            let is_over = |token: &Token| !self.knows(*token);
            self.passed_over = waited.map(|entry| entry.token).filter(is_over).collect();
        }
        Ok(())
    }

    /// R2 (served time), R3 (signs of life).
    fn count_served_time(&mut self, clock: u64, before: &RecordView, executed: &ExecutedCall<'_>) {
        let all_counts = self.all_counts(before);
        let client = self.client(executed.manager);
        let shows_life = matches!(
            executed.outcome,
            script::Outcome::Waiting { .. } | script::Outcome::Synced { .. }
        );
        if shows_life || self.record.counted == clock {
            self.model.served_time.count(clock, all_counts);
        }
        if shows_life {
            self.model.served_time.sign(client);
        }
    }

    /// R11 (missing keys): unless entries were lost, the record counts them right.
    fn check_entries(&mut self) -> Result<(), Breach> {
        let entries = self.record.queue.len();
        let counted = self.record.entries;
        self.miscounted &= counted != entries;
        self.model.returned &= entries > 0;
        if !self.miscounted && counted != entries {
            return Err(Breach::new(
                Promise::Leftovers,
                format!("the record counts {counted} entries, and there are {entries}"),
            ));
        }
        Ok(())
    }

    /// Every key has a TTL.
    fn check_key_ttls(&self, keyspace: &Keyspace) -> Result<(), Breach> {
        let hashes = [self.key.record(), &self.key.holders()]
            .map(|key| keyspace.hash_of(key).map(|(_, expiry)| expiry));
        let list = keyspace.list_of(self.key.queue()).map(|(_, expiry)| expiry);
        let mut expiries = hashes.into_iter().chain([list]).flatten();
        if expiries.any(|expiry| expiry.is_none()) {
            return Err(Breach::new(Promise::Leftovers, "a key has no TTL"));
        }
        Ok(())
    }

    /// At the end of a run nobody holds anything, and no waiter is left.
    pub(super) fn check_leftovers(&self, clock: u64, keyspace: &Keyspace) -> Result<(), Breach> {
        if let Some(holder) = self.live_holders(clock).next() {
            return Err(Breach::new(
                Promise::Leftovers,
                format!("{holder:?} still holds the lock"),
            ));
        }
        let record = RecordView::read(keyspace, &self.key);
        let waiters = record.waiter_records;
        // A list without a record stays until a caller waits again, or until its TTL.
        if waiters + record.entries > 0 {
            let said = format!(
                "{waiters} waiters' records and {} entries are left",
                record.entries
            );
            return Err(Breach::new(Promise::Leftovers, said));
        }
        Ok(())
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
