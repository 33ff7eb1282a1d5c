//! The renewal thread: its state and its main loop.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::schedule::Schedule;
use super::task::{OpenShutdown, Task};
use crate::engine::base::Base;
use crate::engine::client::Client;
use crate::engine::grants::Grants;
use crate::engine::holding::Holding;
use crate::engine::lease::{Due, Lease};
use crate::engine::line::Lines;
use crate::engine::releasing::Releasing;
use crate::engine::reports::Reports;
use crate::engine::upkeep::{Command, Intake, ScheduledLease, ShutdownReport, Upkeep};
use crate::engine::waiter::{WaiterRegistry, in_order};
use crate::engine::waiting::Waiting;
use crate::loss::LossReason;
use crate::script::{Call, Token};
use crate::stats::{Meter, OldestTimes};
use crate::store::clock::Time;
use crate::store::{CallResult, Link, StoreFault};

/// How many calls one pipeline has. They fit into a socket's buffer, so writing never blocks.
pub(super) const PIPELINE: usize = 256;
/// How soon a call is sent again while the thread's connection is being opened.
const CONNECTING: Duration = Duration::from_millis(5);

/// The thread that keeps leases and queued waiters alive, and releases tokens for callers that
/// could not wait. All of this state is the thread's own, so no mutex guards its leases.
pub(crate) struct RenewalThread {
    pub(super) client: Arc<Client>,
    pub(super) upkeep: Arc<Upkeep>,
    pub(super) holding: Arc<Holding>,
    pub(super) registry: Arc<WaiterRegistry>,
    pub(super) lines: Arc<Lines>,
    pub(super) reports: Arc<Reports>,
    pub(super) grants: Arc<Grants>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) releasing: Arc<Releasing>,
    pub(super) intake: Intake,
    pub(super) link: Box<dyn Link>,
    /// The calls that a slow node owes replies, by their numbers.
    pub(super) owed: BTreeMap<u64, (Task, Call)>,
    /// How many calls were sent.
    sent: u64,
    /// When to ask the link for late results.
    late_results_at: Time,
    pub(super) leases: Schedule<ScheduledLease>,
    /// Each is done once, or until it succeeds.
    pub(super) tasks: Schedule<Task>,
    pub(super) lookups: Vec<Call>,
    /// When the last pipeline was sent.
    pub(crate) last_sent_at: Time,
    /// When to look again although nothing is due; see [`RenewalThread::take_in_leases`] and
    /// [`RenewalThread::read_unread`].
    pub(super) look_again_at: Time,
    /// When this thread last read replies that nobody waits for.
    pub(super) read_at: Time,
    drop_when_idle: Vec<Sender<Infallible>>,
    /// Shutdowns that have no report yet.
    pub(super) shutdowns: Vec<OpenShutdown>,
    /// Leases that are out of the schedule for the moment. After a panic they are lost like the
    /// scheduled ones, so that none is forgotten.
    pub(super) in_hand: Vec<Arc<Lease>>,
    oldest: OldestTimes,
    /// When the oldest times are shown again.
    oldest_due: Time,
    /// Renewals fail. The log says when that begins and when it ends, not for each lock.
    pub(super) renewals_fail: bool,
    stopping: bool,
}

impl RenewalThread {
    pub(crate) fn new(base: &Base, releasing: &Arc<Releasing>, intake: Intake) -> RenewalThread {
        let link = base.client.store().link(base.upkeep.alarm());
        RenewalThread {
            client: Arc::clone(&base.client),
            upkeep: Arc::clone(&base.upkeep),
            holding: Arc::clone(&base.holding),
            registry: Arc::clone(&base.registry),
            lines: Arc::clone(&base.lines),
            reports: Arc::clone(&base.reports),
            grants: Arc::clone(&base.grants),
            waiting: Arc::clone(&base.waiting),
            releasing: Arc::clone(releasing),
            intake,
            link,
            owed: BTreeMap::new(),
            sent: 0,
            late_results_at: Time::NEVER,
            leases: Schedule::new(),
            tasks: Schedule::new(),
            lookups: Vec::new(),
            last_sent_at: Time::from_nanos(0),
            look_again_at: Time::NEVER,
            read_at: Time::from_nanos(0),
            drop_when_idle: Vec::new(),
            shutdowns: Vec::new(),
            in_hand: Vec::new(),
            oldest: OldestTimes::new(),
            oldest_due: Time::from_nanos(0),
            renewals_fail: false,
            stopping: false,
        }
    }

    /// Runs the thread. If it ends in a panic, nobody renews the leases any more, so nobody may
    /// believe in them: all are lost, and the manager is closed.
    ///
    /// The code that panicked may panic again. It may be the program's logger, which is called for
    /// each loss. So each lease is lost in a step of its own, and this function logs last.
    pub(crate) fn run_and_survive_panics(mut self) {
        fn survives(step: impl FnOnce()) -> bool {
            catch_unwind(AssertUnwindSafe(step)).is_ok()
        }
        if !survives(|| self.run()) {
            self.grants.close();
            survives(|| self.take_in());
            let scheduled = self.leases.take_all().into_iter().map(|s| s.lease);
            let owed = std::mem::take(&mut self.owed).into_values();
            let owed = owed.filter_map(|(task, _)| task.into_lease());
            let in_hand = std::mem::take(&mut self.in_hand);
            for lease in scheduled.chain(owed).chain(in_hand) {
                survives(|| self.report_loss(&lease, LossReason::Expired));
            }
            // Nobody sends the releases any more.
            survives(|| self.report_to_shutdowns(Time::NEVER));
            log::error!("the renewal thread of fairlock panicked, and all its locks are lost");
        }
    }

    /// THE MAIN LOOP of the renewal thread:
    /// 1. take in what other threads sent and left: unread replies, new leases and commands;
    /// 2. collect the calls of all that is due;
    /// 3. send them in one pipeline, and handle the replies;
    /// 4. if nothing is due, sleep until something is, or until another thread wakes this one.
    fn run(&mut self) {
        loop {
            self.in_hand.clear();
            self.take_in();
            if self.stopping {
                self.report_last_losses();
                self.send_last_releases();
                return self.client.publish_traffic();
            }
            let batch = self.collect();
            let is_idle = batch.is_empty();
            self.send(batch);
            self.report_to_shutdowns(self.client.now());
            if is_idle {
                self.client.publish_traffic();
                self.show_oldest();
                self.drop_when_idle.clear();
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        let until = self.next_due().min(self.publish_due());
        self.upkeep.publish_sleep(until);
        // A command, a lease or a reply left unread that came before this thread published its
        // sleep woke nobody. So the thread looks again.
        if self.intake.commands.is_empty()
            && !self.holding.has_new()
            && self.registry.next_due() >= until
            && self.unread_due() >= until
        {
            let _ = self.client.clock().receive(&self.intake.woken, until);
        }
        self.upkeep.publish_awake();
    }

    /// When to publish the store's traffic and the oldest times again. With fixed leases alone, this
    /// thread would sleep for as long as they last. While nothing is due at all, the first lease
    /// wakes it.
    fn publish_due(&self) -> Time {
        if Meter::PUBLISHES && !self.has_nothing_to_show() {
            self.client.now() + self.client.config().check_period
        } else {
            Time::NEVER
        }
    }

    fn has_nothing_to_show(&self) -> bool {
        self.next_due() == Time::NEVER && self.client.meter().waiting() == 0
    }

    /// Shows how long the oldest wait and the oldest hold have lasted. It looks at all of them, so
    /// not more often than once per check period, and once more when there are none left.
    fn show_oldest(&mut self) {
        let now = self.client.now();
        if !Meter::PUBLISHES || (now < self.oldest_due && !self.has_nothing_to_show()) {
            return;
        }
        self.oldest_due = now + self.client.config().check_period;
        let waiters = self.registry.all();
        let waits = waiters
            .iter()
            .filter_map(|w| w.state.lock().awaited_since());
        let held = self.leases.iter().map(|scheduled| &scheduled.lease);
        let holds = held
            .filter(|lease| lease.is_held(now))
            .map(|lease| lease.held_by_one_guard_since());
        let [wait, hold] = [waits.min(), holds.min()].map(|since| since.map(Time::as_nanos));
        self.oldest.show(wait, hold, now.as_nanos());
    }

    /// When there is something to do, if nothing is sent before.
    pub(crate) fn next_due(&self) -> Time {
        self.leases
            .next()
            .min(self.tasks.next())
            .min(self.registry.next_due())
            .min(self.look_again_at)
            .min(self.unread_due())
            .min(self.shutdown_due())
            .min(self.check_due())
            .min(self.late_results_at)
            .min(self.logins_due())
    }

    /// When to have the link look for other roles of the servers. Never while this process neither
    /// holds nor awaits anything: an idle manager sends nothing.
    fn check_due(&self) -> Time {
        let is_idle = self.leases.next() == Time::NEVER
            && self.tasks.next() == Time::NEVER
            && self.registry.next_due() == Time::NEVER;
        if is_idle {
            Time::NEVER
        } else {
            self.link.check_due()
        }
    }

    pub(crate) fn take_in(&mut self) {
        let now = self.client.now();
        if self.look_again_at <= now {
            self.look_again_at = Time::NEVER;
        }
        self.take_late_results();
        self.read_unread(now);
        self.renew_logins(now);
        self.take_in_leases(now);
        if self.check_due() <= now {
            self.link.check();
        }
        if self.link.has_moved() {
            self.send_all_now(now);
        }
        let again: HashSet<Token> = self.link.due_again().into_iter().collect();
        if !again.is_empty() {
            self.renew_again(&again, now);
        }
        while let Ok(command) = self.intake.commands.try_recv() {
            match command {
                Command::ReportLoss(lease) => {
                    if let Due::Lose(reason) = lease.due(now, Time::NEVER) {
                        self.report_loss(&lease, reason);
                    }
                }
                Command::Abandon(release) => self.tasks.put(now, Task::ReleaseToken(release)),
                Command::Confirm(waiter) => self.tasks.put(now, Task::Confirm(waiter)),
                Command::Requeue(waiter) => self.tasks.put(now, Task::Requeue(waiter)),
                Command::ReportLongWait(wait) => self.tasks.put(now, Task::AskHolder(wait)),
                Command::Subscribed => self.on_subscribed(now),
                Command::EndAll(command) => {
                    // A lease of a lock that was taken since the first look must end, too.
                    self.take_in_leases(now);
                    let report = ShutdownReport {
                        ended: self.end_all(),
                        unreleased: Vec::new(),
                    };
                    self.read_all_unread(&command);
                    self.shutdowns.push(OpenShutdown { report, command });
                }
                Command::DropWhenIdle(sender) => self.drop_when_idle.push(sender),
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// The link goes to another server, which may lack what the one before had. So leases are renewed
    /// and waiters are looked up at once, and what was to be sent again after a pause is sent now.
    fn send_all_now(&mut self, now: Time) {
        for scheduled in self.leases.take_all() {
            let is_renewed = scheduled.renew_at != Time::NEVER;
            let renew_at = if is_renewed { now } else { Time::NEVER };
            self.schedule(ScheduledLease {
                renew_at,
                ..scheduled
            });
        }
        for task in self.tasks.take_all() {
            self.tasks.put(now, task);
        }
        self.registry.all_due(now);
    }

    /// Renews the leases of these tokens at once. Most of them have ended by now.
    fn renew_again(&mut self, tokens: &HashSet<Token>, now: Time) {
        for scheduled in self.leases.take_all() {
            let is_renewed = scheduled.renew_at != Time::NEVER;
            if is_renewed && tokens.contains(&scheduled.lease.token) {
                self.schedule(ScheduledLease {
                    renew_at: now,
                    due_at: now,
                    ..scheduled
                });
            } else {
                self.schedule(scheduled);
            }
        }
    }

    pub(super) fn take_in_leases(&mut self, now: Time) {
        let new = self.holding.take_new();
        self.in_hand
            .extend(new.iter().map(|s| Arc::clone(&s.lease)));
        for scheduled in new {
            let lease = &scheduled.lease;
            match lease.due(now, scheduled.renew_at) {
                // The lock was taken and released again. More leases of the same request are
                // likely. Each would wake this thread, if it slept past the time when they are due.
                Due::Drop => {
                    self.look_again_at = self.look_again_at.min(now + lease.request.soonest_due());
                }
                Due::Lose(reason) => self.report_loss(lease, reason),
                Due::Nothing | Due::Renew => self.schedule(scheduled),
            }
        }
    }

    /// The calls of all that is due, at most a pipeline full. Each sort has room of its own, so
    /// that none starves another. Losses come first and need no network (P6).
    pub(crate) fn collect(&mut self) -> Vec<(Task, Call)> {
        let now = self.client.now();
        let mut batch = self.collect_renewals(now);
        batch.extend(self.collect_tasks(now));
        batch.extend(self.collect_syncs(now));
        batch.extend(self.collect_lookups(now));
        batch
    }

    fn collect_tasks(&mut self, now: Time) -> Vec<(Task, Call)> {
        let mut others = Vec::new();
        let mut requeues = Vec::new();
        while others.len() + requeues.len() < PIPELINE / 4
            && let Some(task) = self.tasks.take_due(now)
        {
            match task {
                Task::Requeue(waiter) => requeues.push(waiter),
                task => others.extend(self.with_call(task, now)),
            }
        }
        // R4 (lost places): waiters are enqueued again in the order in which they came.
        in_order(&mut requeues);
        // They go before releases, because the new place of a line comes before the release of its
        // tenure. If the acquire is refused for now, the release does not wait for it, and the line
        // loses its order. If the tenure has lapsed in Redis by now, the acquire takes the lock from
        // it, as any waiter's may, and the release reports that.
        let requeues = requeues.into_iter();
        let requeues = requeues.filter_map(|waiter| self.with_call(Task::Requeue(waiter), now));
        requeues.chain(others).collect()
    }

    /// A task with its call; `None` if it is not needed any more.
    pub(super) fn with_call(&self, task: Task, now: Time) -> Option<(Task, Call)> {
        let call = match &task {
            Task::Renew(ScheduledLease { lease, .. }) => {
                lease.request.renew(lease.token, lease.fence)
            }
            Task::ReleaseToken(release) => release.call.clone(),
            Task::Confirm(waiter) => self.confirm_call(waiter)?,
            Task::Requeue(waiter) => self.requeue_call(waiter, now)?,
            Task::Vacate(waiter, family) => self.vacate_call(waiter, *family)?,
            Task::Sync(call) | Task::Lookup(call) => call.clone(),
            Task::AskHolder(wait) => wait.call()?,
        };
        Some((task, call))
    }

    pub(super) fn send(&mut self, batch: Vec<(Task, Call)>) {
        let mut batch = batch.into_iter().peekable();
        while batch.peek().is_some() {
            let (tasks, calls): (Vec<Task>, Vec<Call>) = batch.by_ref().take(PIPELINE).unzip();
            self.last_sent_at = self.client.now();
            let first = self.sent;
            self.sent += calls.len() as u64;
            let results = self.link.begin(&calls, first);
            self.on_results(tasks, calls, results, first);
        }
    }

    /// Handles the results that have come, and keeps the calls whose replies a slow node owes.
    fn on_results(
        &mut self,
        tasks: Vec<Task>,
        calls: Vec<Call>,
        results: Vec<Option<CallResult>>,
        first: u64,
    ) {
        let mut answered = (Vec::new(), Vec::new(), Vec::new());
        for (((number, task), call), result) in (first..).zip(tasks).zip(calls).zip(results) {
            match result {
                Some(result) => {
                    answered.0.push(task);
                    answered.1.push(call);
                    answered.2.push(result);
                }
                None => {
                    self.owed.insert(number, (task, call));
                    self.late_results_at = self.client.now() + CONNECTING;
                }
            }
        }
        let (tasks, calls, results) = answered;
        self.on_replies(tasks, &calls, results);
    }

    /// Handles the results of slow nodes that have come by now.
    fn take_late_results(&mut self) {
        if self.owed.is_empty() {
            return;
        }
        for (number, result) in self.link.late_results() {
            // A shutdown may have taken it out.
            if let Some((task, call)) = self.owed.remove(&number) {
                self.on_replies(vec![task], &[call], vec![result]);
            }
        }
        self.late_results_at = if self.owed.is_empty() {
            Time::NEVER
        } else {
            self.client.now() + CONNECTING
        };
    }

    /// Sends calls, and waits for all replies for a command timeout at most.
    pub(super) fn send_and_wait(&mut self, batch: Vec<(Task, Call)>) {
        let mut batch = batch.into_iter().peekable();
        while batch.peek().is_some() {
            let (tasks, calls): (Vec<Task>, Vec<Call>) = batch.by_ref().take(PIPELINE).unzip();
            let results = self.link.run(&calls);
            self.on_replies(tasks, &calls, results);
        }
    }

    pub(crate) fn on_replies(
        &mut self,
        tasks: Vec<Task>,
        calls: &[Call],
        results: Vec<CallResult>,
    ) {
        for ((task, call), result) in tasks.into_iter().zip(calls).zip(results) {
            // The handler of an acquire's reply delivers its grants, for the callers too.
            if let Ok(answer) = &result.answer
                && !matches!(task, Task::Requeue(_))
            {
                self.grants.deliver_all(call, answer);
            }
            match task {
                Task::Renew(scheduled) => self.on_renew_reply(scheduled, result.answer),
                Task::ReleaseToken(release) => {
                    self.on_token_release_reply(release, result.answer);
                }
                Task::Confirm(waiter) => self.on_confirm_reply(waiter, call, result.answer),
                Task::Requeue(waiter) => self.on_requeue_reply(waiter, call, result),
                Task::Vacate(waiter, family) => {
                    self.on_vacate_reply(waiter, family, result.answer);
                }
                Task::Sync(_) => self.on_sync_reply(call, result.answer),
                Task::Lookup(_) => self.on_lookup_reply(call, result.answer),
                Task::AskHolder(wait) => self.on_holder_reply(wait, call, result.answer),
            }
        }
    }

    /// When to send a call again that failed.
    pub(super) fn retry_at(&self, fault: &StoreFault) -> Time {
        let pause = match fault {
            StoreFault::NotReplicated { .. } => self.client.config().back_off,
            // After a failed exchange another connection is opened, which makes its own pauses.
            StoreFault::NotReady => CONNECTING,
            // A server's reply, even a malformed one, does not end the connection.
            fault if fault.is_ambiguous() && fault.code().is_none() => CONNECTING,
            // R22 (tries among the dead): a live process is back within one command timeout.
            _ => self.client.config().back_off / 4,
        };
        self.client.now() + pause
    }
}
