//! The renewal thread: its main loop, and its owners.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::lease_renewal::LeaseRenewal;
use super::link::{RenewalLink, Replied};
use super::release_upkeep::ReleaseUpkeep;
use super::schedule::Tasks;
use super::timers::Timers;
use super::waiter_upkeep::WaiterUpkeep;
use crate::engine::base::Base;
use crate::engine::releasing::Releasing;
use crate::engine::upkeep::{Command, Intake, Task, TokenRelease};
use crate::logging::Logger;
use crate::loss::LossReason;
use crate::script::Call;
use crate::stats::{Meter, OldestTimes};
use crate::store::CallResult;
use crate::store::clock::Time;

/// The thread that keeps leases and queued waiters alive, and releases tokens for callers that
/// could not wait. All of this state is the thread's own, so no mutex guards its leases.
///
/// It only wires its owners: it takes commands in, asks each owner what is due, sends, and hands
/// the replies back. `link` and `schedule` are the lowest of them, and know none of the others.
pub(crate) struct RenewalThread {
    base: Base,
    intake: Intake,
    leases: LeaseRenewal,
    waiters: WaiterUpkeep,
    releases: ReleaseUpkeep,
    tasks: Tasks,
    timers: Timers,
    link: RenewalLink,
    drop_when_idle: Vec<Sender<Infallible>>,
    oldest: OldestTimes,
    /// When the oldest times are shown again.
    oldest_due: Time,
    stopping: bool,
}

impl RenewalThread {
    pub(crate) fn new(base: &Base, releasing: &Arc<Releasing>, intake: Intake) -> RenewalThread {
        RenewalThread {
            base: base.clone(),
            link: RenewalLink::new(&base.client, &intake),
            intake,
            leases: LeaseRenewal::new(base),
            waiters: WaiterUpkeep::new(base),
            releases: ReleaseUpkeep::new(base, releasing),
            tasks: Tasks::new(&base.client),
            timers: Timers::new(&base.client),
            drop_when_idle: Vec::new(),
            oldest: OldestTimes::new(),
            oldest_due: Time::from_nanos(0),
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
            self.base.grants.close();
            survives(|| self.take_in());
            let owed = self.link.take_renewals();
            for lease in self.leases.take_all(owed) {
                survives(|| {
                    self.leases
                        .lose(&lease, LossReason::Expired, &mut self.tasks);
                });
            }
            // Nobody sends the releases any more.
            survives(|| self.report_to_shutdowns(Time::NEVER));
            log::error!(
                logger: Logger,
                "the renewal thread of fairlock panicked, and all its locks are lost"
            );
        }
    }

    /// THE MAIN LOOP of the renewal thread:
    /// 1. take in what other threads sent and left: unread replies, new leases and commands;
    /// 2. collect the calls of all that is due;
    /// 3. send them in one pipeline, and handle the replies;
    /// 4. if nothing is due, sleep until something is, or until another thread wakes this one.
    fn run(&mut self) {
        loop {
            self.leases.begin_round();
            self.take_in();
            if self.stopping {
                self.leases.report_last_losses(&mut self.tasks);
                self.send_last_releases();
                return self.base.client.publish_traffic();
            }
            let batch = self.collect();
            // A timer that is due by now may send commands.
            let is_idle = batch.is_empty() && self.timers.next_due() > self.base.client.now();
            let replied = self.link.send(batch);
            self.on_replies(replied);
            self.report_to_shutdowns(self.base.client.now());
            if is_idle {
                self.base.client.publish_traffic();
                self.show_oldest();
                self.drop_when_idle.clear();
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        let Intake {
            commands,
            waker,
            woken,
        } = &self.intake;
        let until = self.next_due().min(self.publish_due());
        waker.publish_sleep(until);
        // A command, a lease or a reply left unread that came before this thread published its
        // sleep woke nobody. So the thread looks again.
        if commands.is_empty()
            && !self.base.holding.has_new()
            && self.base.registry.next_due() >= until
            && self.releases.unread_due() >= until
        {
            let _ = self.base.client.clock().receive(woken, until);
        }
        waker.publish_awake();
    }

    /// When to publish the store's traffic and the oldest times again. With fixed leases alone, this
    /// thread would sleep for as long as they last. While nothing is due at all, the first lease
    /// wakes it.
    fn publish_due(&self) -> Time {
        if Meter::PUBLISHES && !self.has_nothing_to_show() {
            self.base.client.now() + self.base.client.config().check_period
        } else {
            Time::NEVER
        }
    }

    fn has_nothing_to_show(&self) -> bool {
        self.next_work() == Time::NEVER && self.base.client.meter().waiting() == 0
    }

    /// Shows how long the oldest wait and the oldest hold have lasted. It looks at all of them, so
    /// not more often than once per check period, and once more when there are none left.
    fn show_oldest(&mut self) {
        let now = self.base.client.now();
        if !Meter::PUBLISHES || (now < self.oldest_due && !self.has_nothing_to_show()) {
            return;
        }
        self.oldest_due = now + self.base.client.config().check_period;
        let waiters = self.base.registry.all();
        let waits = waiters
            .iter()
            .filter_map(|w| w.state.lock().awaited_since());
        let holds = self.leases.oldest_hold(now);
        let [wait, hold] = [waits.min(), holds].map(|since| since.map(Time::as_nanos));
        self.oldest.show(wait, hold, now.as_nanos());
    }

    /// When there is something to do, if nothing is sent before.
    pub(crate) fn next_due(&self) -> Time {
        self.next_work().min(self.timers.next_due())
    }

    /// The same without timers: a timer alone keeps no connection alive, and there is nothing to show
    /// about it.
    fn next_work(&self) -> Time {
        self.leases
            .next_due()
            .min(self.releases.next_due())
            .min(self.tasks.next_due())
            .min(self.base.registry.next_due())
            .min(self.link.next_due(self.is_idle()))
    }

    /// Whether this process neither holds nor awaits anything.
    fn is_idle(&self) -> bool {
        self.leases.is_empty()
            && self.tasks.next_due() == Time::NEVER
            && self.base.registry.next_due() == Time::NEVER
    }

    pub(crate) fn take_in(&mut self) {
        let now = self.base.client.now();
        let late = self.link.late_results();
        self.leases.keep_in_hand(&late);
        self.on_replies(late);
        self.releases.read_unread(now);
        self.leases.take_in(now, &mut self.tasks);
        self.link.look_after(now, self.is_idle());
        if self.link.has_moved() {
            // First: the answers to the renewals below are about the servers after it.
            self.base.hearing.note_trouble();
            // That server may lack what the one before had, or forgot while it was away. So leases are renewed and waiters are
            // looked up at once, and what was to be sent again after a pause is sent now.
            self.leases.renew_now(now, |_| true);
            self.tasks.all_due(now);
            self.base.registry.all_due(now);
        }
        let again = self.link.due_again();
        if !again.is_empty() {
            self.leases
                .renew_now(now, |lease| again.contains(&lease.token));
        }
        // Before the commands: those that timers send are carried out in this round.
        self.timers.run(now);
        while let Ok(command) = self.intake.commands.try_recv() {
            match command {
                Command::ReportLoss(lease) => {
                    self.leases.report_if_lost(&lease, now, &mut self.tasks);
                }
                Command::Do(task) => self.tasks.put(now, task),
                Command::Subscribed => self.waiters.on_subscribed(now),
                Command::EndAll(command) => {
                    // A lease of a lock that was taken since the first look must end, too.
                    self.leases.take_in(now, &mut self.tasks);
                    let owed = self.link.take_renewals();
                    let ended = self.leases.end_all(owed, &mut self.tasks);
                    self.releases.begin_shutdown(command, ended);
                }
                Command::CallAt(at, timer) => self.timers.put(at, timer),
                Command::DropWhenIdle(sender) => self.drop_when_idle.push(sender),
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// The calls of all that is due, at most a pipeline full. Each sort has room of its own, so
    /// that none starves another. Losses come first and need no network (P6).
    pub(crate) fn collect(&mut self) -> Vec<(Task, Call)> {
        let now = self.base.client.now();
        let mut batch = self.leases.collect(now, &mut self.tasks);
        batch.extend(self.tasks.take_due(now, |task| match task {
            Task::ReleaseToken(release) => Some(release.call.clone()),
            task => self.waiters.prepare_call(task, now),
        }));
        batch.extend(self.waiters.collect(now));
        batch
    }

    fn on_replies(&mut self, replied: Vec<Replied>) {
        for (task, call, result) in replied {
            self.on_reply(task, &call, result);
        }
    }

    pub(crate) fn on_reply(&mut self, task: Task, call: &Call, result: CallResult) {
        // The handler of an acquire's reply delivers its grants, for the callers too.
        if let Ok(answer) = &result.answer
            && !matches!(task, Task::Requeue(_))
        {
            self.base.grants.deliver_all(call, answer);
        }
        let (waiters, tasks) = (&mut self.waiters, &mut self.tasks);
        match task {
            Task::Renew(scheduled) => self.leases.on_reply(scheduled, result.answer, tasks),
            Task::ReleaseToken(release) => self.releases.on_reply(release, result.answer, tasks),
            Task::Confirm(waiter) => waiters.on_confirm_reply(waiter, call, result.answer, tasks),
            Task::Requeue(waiter) => waiters.on_requeue_reply(waiter, call, result, tasks),
            Task::Vacate(waiter, family) => {
                waiters.on_vacate_reply(waiter, family, result.answer, tasks);
            }
            Task::Sync => waiters.on_sync_reply(call, result.answer, tasks),
            Task::Lookup => waiters.on_lookup_reply(call, result.answer),
        }
    }

    fn report_to_shutdowns(&mut self, now: Time) {
        let tasks = self.tasks.iter().chain(self.link.owed());
        self.releases.report_to_shutdowns(tasks, now);
    }

    /// At the end of the thread: sends the releases that are still open, and reads the replies to
    /// those whose callers have left, for at most one command timeout.
    fn send_last_releases(&mut self) {
        let client = Arc::clone(&self.base.client);
        let until = client.now() + client.config().command_timeout;
        for release in self.link.take_releases() {
            // The node may have run it, and its reply is of no use any more.
            let resent = true;
            let again = TokenRelease { resent, ..release };
            self.tasks.put(until, Task::ReleaseToken(again));
        }
        loop {
            let now = client.now();
            // At the latest when the time is up, each of them has failed or is answered.
            client.store().read_unread();
            self.take_in();
            let all_is_read = client.store().unread_due() == Time::NEVER;
            let open = self.tasks.take_releases();
            if now >= until {
                return self.releases.leave_at_end(&open);
            }
            let with_call = |release: TokenRelease| {
                let call = release.call.clone();
                (Task::ReleaseToken(release), call)
            };
            let batch: Vec<(Task, Call)> = open.into_iter().map(with_call).collect();
            if batch.is_empty() && all_is_read {
                return;
            }
            let replied = self.link.send_and_wait(batch);
            self.on_replies(replied);
            let next = client.now() + client.config().command_timeout / 8;
            if all_is_read {
                // The link wakes the thread when its connection is ready. A release that is still
                // open then is sent again, at a slower pace.
                let woken = &self.intake.woken;
                let _ = client.clock().receive(woken, next.min(until));
            } else {
                client.store().read_all_unread(next.min(until));
            }
        }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
