//! The thread that keeps everything alive: leases by renewals, places by syncs. It also does what others
//! could not wait for.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::schedule::Schedule;
use crate::engine::Engine;
use crate::engine::acquire::{Wait, acquire_call};
use crate::engine::background::Job;
use crate::engine::background::{Command, Fresh};
use crate::engine::lease::{Due, Lease, deadline_from_reply};
use crate::engine::lifecycle::Waker;
use crate::engine::release::reason_of;
use crate::engine::waiter::WaiterAction;
use crate::engine::waiter::{TokenOwner, WaiterEntry, in_order};
use crate::loss::LossReason;
use crate::script::{Call, Mode, Outcome, Token, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, CallResult, Link, StoreFault};

/// How many calls go into one pipeline: what fits a socket's buffer, so that writing never blocks.
const BATCH: usize = 256;
/// How soon a call is put again while the thread's connection is being opened.
const CONNECTING: Duration = Duration::from_millis(5);

/// The renewal thread's state. All of it is the thread's own, so no mutex guards the leases.
pub(crate) struct RenewalThread {
    pub(crate) engine: Arc<Engine>,
    intake: Receiver<Command>,
    pub(crate) waker: Receiver<()>,
    link: Box<dyn Link>,
    leases: Schedule<Kept>,
    pub(crate) errands: Schedule<Errand>,
    pub(crate) lookups: Vec<Call>,
    /// When the last pipeline was sent.
    pub(crate) asked: Time,
    /// When to look at the intake again although nothing is due; see [`Renewal::take_in`].
    look_in: Time,
    settling: Vec<Sender<Infallible>>,
    /// Leases that are out of the schedule for the moment, so that a panic loses sight of none.
    in_hand: Vec<Arc<Lease>>,
    /// Whether renewals fail. The log is told when that begins and when it ends, not by each lock.
    failing: bool,
    stopping: bool,
}

/// A lease in the schedule, renewed at absolute times.
pub(crate) struct Kept {
    lease: Arc<Lease>,
    renew_at: Time,
}

/// What is done once, or until it succeeds.
pub(crate) enum Errand {
    Job(Job),
    Confirm(Arc<WaiterEntry>),
    Requeue(Arc<WaiterEntry>),
}

/// A call in the batch, and whom its answer is for.
pub(crate) enum Task {
    Renew(Kept),
    Job(Job),
    Confirm(Arc<WaiterEntry>, Token),
    Requeue(Arc<WaiterEntry>),
    Sync,
    Lookup,
}

impl RenewalThread {
    pub(crate) fn new(
        engine: Arc<Engine>,
        intake: Receiver<Command>,
        waker: Receiver<()>,
    ) -> RenewalThread {
        let ringing: Arc<Waker> = Arc::clone(&engine.waker);
        let link = engine.store.link(Arc::new(move || ringing.wake()));
        RenewalThread {
            engine,
            intake,
            waker,
            link,
            leases: Schedule::new(),
            errands: Schedule::new(),
            lookups: Vec::new(),
            asked: Time::from_nanos(0),
            look_in: Time::NEVER,
            settling: Vec::new(),
            in_hand: Vec::new(),
            failing: false,
            stopping: false,
        }
    }

    /// Leases must not be believed in when nobody renews them: if this thread ends in a panic, all are
    /// lost, and the manager is closed. What panicked may do so again, as a program's logger that is called with each
    /// loss, so each lease is lost by itself, and the log comes last.
    pub(crate) fn run_to_the_end(mut self) {
        fn survives(run: impl FnOnce()) -> bool {
            catch_unwind(AssertUnwindSafe(run)).is_ok()
        }
        if !survives(|| self.run()) {
            self.engine.close();
            survives(|| self.take_in());
            let kept = self.leases.take_all().into_iter().map(|kept| kept.lease);
            for lease in kept.chain(std::mem::take(&mut self.in_hand)) {
                survives(|| self.lose(&lease, LossReason::Expired));
            }
            log::error!(
                "the renewal thread of fairlock panicked; this is a bug, and all its locks are lost"
            );
        }
    }

    /// The main loop: take in what was sent, do what is due in one pipeline, sleep until the next is due.
    fn run(&mut self) {
        loop {
            self.in_hand.clear();
            self.take_in();
            if self.stopping {
                return self.finish();
            }
            let batch = self.collect();
            if !batch.is_empty() {
                self.carry_out(batch);
                continue;
            }
            self.settling.clear();
            let next = self.next_due();
            self.engine.waker.publish(next);
            // What was sent, or stood in a queue, before it was published did not ring.
            if self.intake.is_empty()
                && self.engine.fresh.1.is_empty()
                && self.engine.waiters.next_due() >= next
            {
                let _ = self.engine.clock.receive(&self.waker, next);
            }
            self.engine.waker.publish(Time::from_nanos(0));
        }
    }

    /// When there is something to do, if nothing comes meanwhile.
    pub(crate) fn next_due(&self) -> Time {
        self.leases
            .next()
            .min(self.errands.next())
            .min(self.engine.waiters.next_due())
            .min(self.look_in)
    }

    pub(crate) fn take_in(&mut self) {
        let now = self.engine.now();
        if self.look_in <= now {
            self.look_in = Time::NEVER;
        }
        self.take_in_leases(now);
        while let Ok(work) = self.intake.try_recv() {
            match work {
                Command::Lost(lease) => {
                    if let Due::Lose(reason) = lease.due(now, Time::NEVER) {
                        self.lose(&lease, reason);
                    }
                }
                Command::Background(job) => self.errands.put(now, Errand::Job(job)),
                Command::Confirm(waiter) => self.errands.put(now, Errand::Confirm(waiter)),
                Command::Requeue(waiter) => self.errands.put(now, Errand::Requeue(waiter)),
                Command::Resync => self.resync(now),
                Command::EndAll(tell) => {
                    self.take_in_leases(now);
                    let names = self.end_all();
                    let _ = tell.send(names);
                }
                Command::Settle(hold) => self.settling.push(hold),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn take_in_leases(&mut self, now: Time) {
        // Not while a thread that locks has some of them in its hands.
        let fresh: Vec<Fresh> = {
            let _sifting = self.engine.sifting.lock();
            self.engine.fresh.1.try_iter().collect()
        };
        self.in_hand
            .extend(fresh.iter().map(|fresh| Arc::clone(&fresh.lease)));
        for Fresh { lease, renew_at } in fresh {
            match lease.due(now, renew_at) {
                // It was locked and unlocked meanwhile. More of the kind will come, and each would ring if this
                // thread slept past the time when it is due.
                Due::Drop => self.look_in = self.look_in.min(now + lease.request.soonest_due()),
                Due::Lose(reason) => self.lose(&lease, reason),
                Due::Nothing | Due::Renew => self.keep(Kept { lease, renew_at }),
            }
        }
    }

    fn keep(&mut self, kept: Kept) {
        self.leases.put(kept.lease.next_due(kept.renew_at), kept);
    }

    /// What is due, at most a pipeline full, with room for each sort so that none starves another. Losses
    /// come first and need no network (P6).
    pub(crate) fn collect(&mut self) -> Vec<(Task, Call)> {
        let now = self.engine.now();
        let mut batch = Vec::new();
        let mut early = Vec::new();
        // Renewals that are due soon go along, so that many leases do not mean many wake-ups.
        let horizon = if self.leases.next() <= now {
            now + self.engine.config.back_off
        } else {
            now
        };
        while batch.len() < BATCH / 2
            && let Some(kept) = self.leases.take_due(horizon)
        {
            self.in_hand.push(Arc::clone(&kept.lease));
            let renew_at = if kept.renew_at <= horizon {
                now
            } else {
                kept.renew_at
            };
            match kept.lease.due(now, renew_at) {
                Due::Drop => {}
                Due::Lose(reason) => self.lose(&kept.lease, reason),
                Due::Renew => {
                    let call = kept.lease.request.call(Verb::Renew {
                        token: kept.lease.token,
                    });
                    batch.push((Task::Renew(kept), call));
                }
                Due::Nothing => early.push(kept),
            }
        }
        early.into_iter().for_each(|kept| self.keep(kept));

        // Those that are to be enqueued again go in the order in which they came (R4).
        let mut again = Vec::new();
        let renewals = batch.len();
        while batch.len() - renewals + again.len() < BATCH / 4
            && let Some(errand) = self.errands.take_due(now)
        {
            match errand {
                Errand::Job(job) => {
                    let call = job.call.clone();
                    batch.push((Task::Job(job), call));
                }
                Errand::Confirm(waiter) => {
                    let (token, wanted) = {
                        let state = waiter.state.lock();
                        (state.token, state.is_confirming())
                    };
                    if wanted {
                        let call = waiter.request.call(Verb::Renew { token });
                        batch.push((Task::Confirm(waiter, token), call));
                    }
                }
                Errand::Requeue(waiter) => again.push(waiter),
            }
        }
        in_order(&mut again);
        for waiter in again {
            let asking = waiter.state.lock().is_asking();
            if !asking {
                let in_doubt = waiter.state.lock().in_doubt();
                self.engine.apply(&waiter, in_doubt);
                self.engine.waiters.replace_token(&waiter);
            }
            if let Some(token) = self.engine.token_to_send(&waiter, now) {
                let call = acquire_call(&waiter.request, token, Wait::Yes);
                batch.push((Task::Requeue(waiter), call));
            }
        }

        // If a sync is not answered, the next one is due a period later at the latest.
        let reschedule = now + self.engine.config.check_period;
        for call in self.engine.waiters.take_due(now, reschedule, BATCH / 8) {
            batch.push((Task::Sync, call));
        }
        let lookups = self.lookups.len().min(BATCH / 8);
        batch.extend(
            self.lookups
                .drain(..lookups)
                .map(|call| (Task::Lookup, call)),
        );
        batch
    }

    pub(crate) fn carry_out(&mut self, batch: Vec<(Task, Call)>) {
        let mut batch = batch.into_iter().peekable();
        while batch.peek().is_some() {
            let (tasks, calls): (Vec<Task>, Vec<Call>) = batch.by_ref().take(BATCH).unzip();
            self.asked = self.engine.now();
            let results = self.link.run(&calls);
            self.settle(tasks, &calls, results);
        }
    }

    /// What the answers to a pipeline mean.
    pub(crate) fn settle(&mut self, tasks: Vec<Task>, calls: &[Call], results: Vec<CallResult>) {
        for ((task, call), result) in tasks.into_iter().zip(calls).zip(results) {
            if let Ok(answer) = &result.answer {
                self.engine.deliver_all(call, answer);
            }
            match task {
                Task::Renew(kept) => self.renewed(kept, result.answer),
                Task::Job(job) => self.done(job, result.answer),
                Task::Confirm(waiter, token) => self.confirmed(waiter, token, result.answer),
                Task::Requeue(waiter) => self.on_requeue_reply(waiter, call, result),
                Task::Sync => self.on_sync_reply(call, result.answer),
                Task::Lookup => self.on_lookup_reply(call, result.answer),
            }
        }
    }

    fn renewed(&mut self, kept: Kept, answer: Result<Answer, StoreFault>) {
        let engine = Arc::clone(&self.engine);
        let now = engine.now();
        let lease = &kept.lease;
        if answer.is_ok() && std::mem::take(&mut self.failing) {
            log::info!("renewals are answered again");
        }
        match answer.map(|answer| (answer.reply.outcome, answer.sent)) {
            Ok((Outcome::Renewed { left, fence }, sent)) if fence == lease.fence => {
                if lease.extend(now, deadline_from_reply(sent, left)) {
                    engine.counters.renewed.add(1);
                    let period = lease.request.renewal_period().unwrap_or(Duration::MAX);
                    let next = kept.renew_at + period;
                    let renew_at = if next > now { next } else { now + period };
                    self.keep(Kept {
                        lease: kept.lease,
                        renew_at,
                    });
                } else if let Some(loss) = lease.loss() {
                    // Too late: it was seen lost, and a guard is never held again.
                    self.lose(lease, loss.reason);
                }
            }
            // Redis went back to an older copy, where the token still waited, and granted it once more: others may have
            // held the lock in between.
            Ok((Outcome::Renewed { .. }, _)) => self.lose(lease, LossReason::Taken),
            Ok((Outcome::Gone { ended, how, .. }, _)) => {
                self.lose(lease, reason_of(lease.fence, ended, how))
            }
            Ok((outcome, _)) => {
                log::warn!(
                    "renewing {:?}: an answer out of place: {outcome:?}",
                    lease.request.key.name
                );
                self.lose(lease, LossReason::Taken);
            }
            Err(fault) => {
                // Not ready is no failure: the thread's connection is opened with the first renewal.
                if !matches!(fault, StoreFault::NotReady) {
                    engine.counters.renewal_failures.add(1);
                    let name = &lease.request.key.name;
                    if self.failing {
                        log::debug!("renewing {name:?} failed again: {fault}");
                    } else {
                        log::warn!("renewing {name:?} failed and will be tried again: {fault}");
                    }
                    self.failing = true;
                }
                let renew_at = self.again_at(&fault);
                self.keep(Kept {
                    lease: kept.lease,
                    renew_at,
                });
            }
        }
    }

    /// R14: fires no loss for a lease that was released meanwhile.
    fn lose(&mut self, lease: &Arc<Lease>, reason: LossReason) {
        lease.lose(reason);
        let Some(loss) = lease.loss() else { return };
        // A grant that nobody has claimed yet is no guard's: its place decides.
        if let TokenOwner::Waiting(waiter) = self.engine.waiters.find(lease.token) {
            let action = waiter.state.lock().lost(lease);
            if !matches!(action, WaiterAction::Nothing) {
                return self.engine.apply(&waiter, action);
            }
        }
        // Nor is one of several before all are granted: who asked for them finds it lost, and has used none.
        let guarded = lease.request.is_guarded();
        if !(if guarded {
            self.engine.tell(lease, &loss)
        } else {
            lease.tell(&loss)
        }) {
            return;
        }
        if self.leases.next() == Time::NEVER {
            // Nobody is left to whom an answer would come; the next failure is the beginning of another outage.
            self.failing = false;
        }
        self.engine
            .waiters
            .unclaim_if(lease.was_queued, lease.token);
        let now = self.engine.now();
        let about = lease.request.call(Verb::Renew { token: lease.token });
        // The next holder is told that this one did not end well.
        let mode = if guarded { Mode::Lost } else { Mode::Unused };
        let job = Job::new(
            &about,
            lease.token,
            lease.fence,
            mode,
            now + lease.request.longest(),
        );
        let job = job.until(lease.not_after);
        self.errands.put(now, Errand::Job(job));
    }

    fn end_all(&mut self) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        let all = self.leases.take_all();
        self.in_hand
            .extend(all.iter().map(|kept| Arc::clone(&kept.lease)));
        for kept in all {
            if kept.lease.is_held(self.engine.now()) {
                if kept.lease.request.is_guarded() {
                    names.push(Arc::clone(&kept.lease.request.key.name));
                }
                self.lose(&kept.lease, LossReason::Shutdown);
            } else if let Some(loss) = kept.lease.loss() {
                self.lose(&kept.lease, loss.reason);
            }
        }
        names.sort();
        names
    }

    /// When to put a call again that came to nothing.
    pub(crate) fn again_at(&self, fault: &StoreFault) -> Time {
        // After a failed exchange another connection is opened, which takes its own pauses.
        let connecting = matches!(fault, StoreFault::NotReady) || fault.is_ambiguous();
        let pause = if connecting {
            CONNECTING
        } else {
            self.engine.config.back_off
        };
        self.engine.now() + pause
    }
}
