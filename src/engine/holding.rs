//! How a lease is kept: a caller hands it to the renewal thread, and may renew it itself. A loss is
//! reported to all that watch the lease.

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::engine::callbacks::Callbacks;
use crate::engine::client::Client;
use crate::engine::hearing::Hearing;
use crate::engine::lease::{Due, HeldLease, first_lost, renewed_until};
use crate::engine::life::Life;
use crate::engine::request::Request;
use crate::engine::upkeep::{Command, ScheduledLease, Upkeep};
use crate::error::{Error, Result};
use crate::logging::Logger;
use crate::loss::{Loss, LossReason, LossWatcher};
use crate::script::Call;
use crate::stats::Count;
use crate::store::Answer;
use crate::store::clock::Time;
use crate::sync::Mutex;

/// With this many new leases, the renewal thread is woken to take them in.
const WAKE_FROM: usize = 4096;
/// With more new leases than this, a caller that adds one drops some that have ended.
const DROP_ENDED_FROM: usize = 64;

/// The leases of one manager that the renewal thread is to keep.
pub(crate) struct Holding {
    life: Arc<Life>,
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    hearing: Arc<Hearing>,
    callbacks: Callbacks,
    /// New leases, see [`Holding::keep_renewed`]. The renewal thread takes them in when it wakes.
    new_leases: (Sender<ScheduledLease>, Receiver<ScheduledLease>),
    /// A thread holds this while it has taken some of the new leases out.
    dropping_ended: Mutex<()>,
}

impl Holding {
    pub(super) fn new(
        life: &Arc<Life>,
        client: &Arc<Client>,
        upkeep: &Arc<Upkeep>,
        hearing: &Arc<Hearing>,
    ) -> Holding {
        Holding {
            life: Arc::clone(life),
            client: Arc::clone(client),
            upkeep: Arc::clone(upkeep),
            hearing: Arc::clone(hearing),
            callbacks: Callbacks::new(),
            new_leases: unbounded(),
            dropping_ended: Mutex::new(()),
        }
    }

    /// Call this before sending a request. It fails if the manager is closed, and starts the
    /// callback thread if the request has `on_lost`.
    pub(super) fn prepare(&self, request: &Request) -> Result<()> {
        self.life.check_open()?;
        if request.on_lost.is_some() {
            self.callbacks.start(&self.life, self.client.clock())
        } else {
            Ok(())
        }
    }

    /// Ends the callback thread after the calls that were sent before.
    pub(super) fn end_callbacks(&self) {
        self.callbacks.end();
    }

    /// Keeps a lease renewed from now on. It wakes the renewal thread only if that would wake too
    /// late by itself: most leases are released before their first renewal is due.
    pub(super) fn keep_renewed(&self, lease: &Arc<HeldLease>) {
        let renew_at = lease.first_renewal(self.client.now());
        let due = lease.next_due(renew_at);
        let (sender, new_leases) = &self.new_leases;
        // The engine itself has a receiver, so this never fails.
        let _ = sender.send(ScheduledLease {
            lease: Arc::clone(lease),
            renew_at,
            due_at: renew_at,
        });
        if new_leases.len() > DROP_ENDED_FROM {
            self.drop_ended_leases();
        }
        if new_leases.len() >= WAKE_FROM {
            self.upkeep.wake();
        } else {
            self.upkeep.wake_if_late_for(due);
        }
    }

    /// The deadline of a lease was moved to an earlier time. Has the renewal thread look at it then.
    pub(super) fn watch(&self, lease: &Arc<HeldLease>) {
        let due_at = lease.next_due(Time::NEVER);
        let _ = self.new_leases.0.send(ScheduledLease {
            lease: Arc::clone(lease),
            renew_at: Time::NEVER,
            due_at,
        });
        self.upkeep.wake_if_late_for(due_at);
    }

    /// Looks at two new leases for each one added, and drops those that have ended. So their number
    /// stays small, and the renewal thread need not wake for them. It also does not free in one go
    /// the leases that other threads have allocated: threads that meet in the allocator put each
    /// other to sleep.
    fn drop_ended_leases(&self) {
        let (sender, new_leases) = &self.new_leases;
        // The renewal thread holds this mutex while it takes the leases in: otherwise it could miss
        // the two that this thread has taken out for a moment.
        let Some(_dropping) = self.dropping_ended.try_lock() else {
            return;
        };
        let now = self.client.now();
        for new in new_leases.try_iter().take(2) {
            if new.lease.due(now, Time::NEVER) != Due::Drop {
                let due = new.lease.next_due(new.renew_at);
                let _ = sender.send(new);
                self.upkeep.wake_if_late_for(due);
            }
        }
    }

    /// Renews the leases of a guard now. Blocks for at most two command timeouts.
    pub(crate) fn renew(&self, leases: &[Arc<HeldLease>]) -> Result<()> {
        self.life.check_fork()?;
        let started = self.client.now();
        if let Some(loss) = first_lost(leases, started) {
            return Err(Error::Lost { loss });
        }
        let renewal = |lease: &Arc<HeldLease>| {
            let renewed = lease.renewed_lease();
            renewed.request.renew(renewed.token, renewed.fence())
        };
        let calls: Vec<Call> = leases.iter().map(renewal).collect();
        let results = self
            .client
            .store()
            .run(&calls, self.client.deadlines(started, Time::NEVER));
        let mut first_error = Ok(());
        for ((lease, call), result) in leases.iter().zip(&calls).zip(results) {
            let renewed = match result.answer.and_then(Answer::in_time) {
                Ok(answer) => self.on_renew_reply(lease, &answer),
                Err(fault) => Err(self.client.error_since(started, fault, &call.key)),
            };
            first_error = first_error.and(renewed);
        }
        first_error
    }

    /// Applies the reply to a renewal that a guard's owner asked for.
    pub(super) fn on_renew_reply(&self, lease: &Arc<HeldLease>, answer: &Answer) -> Result<()> {
        let renewed = lease.renewed_lease();
        let reason = match renewed_until(renewed, answer) {
            Ok(deadline) if renewed.extend(self.client.now(), deadline) => {
                renewed.note_confirmed(answer.sent);
                self.hearing.on_renewed(renewed, answer);
                self.client.meter().count(Count::RenewalsConfirmed);
                return Ok(());
            }
            // Too late. P6 (a loss stays): the lease was seen past its deadline, and is never held
            // again.
            Ok(_) => LossReason::Expired,
            Err(reason) => reason,
        };
        Err(self.lose(lease, reason))
    }

    /// The new leases since the last call. To be called by the renewal thread.
    pub(super) fn take_new(&self) -> Vec<ScheduledLease> {
        // A caller that drops ended leases holds some of them for a moment, and puts the others
        // back. Under this mutex it holds none.
        let _nobody_drops = self.dropping_ended.lock();
        self.new_leases.1.try_iter().collect()
    }

    pub(super) fn has_new(&self) -> bool {
        !self.new_leases.1.is_empty()
    }

    /// A reply shows that a guard's lease is over. The renewal thread reports the loss and abandons
    /// the token.
    pub(super) fn lose(&self, lease: &Arc<HeldLease>, reason: LossReason) -> Error {
        lease.renewed_lease().lose(reason);
        self.upkeep
            .send(Command::ReportLoss(Arc::clone(lease.renewed_lease())));
        let loss = lease.loss().unwrap_or_else(|| lease.loss_for(reason));
        Error::Lost { loss }
    }

    /// A guard has lost its lease: that counts, its watcher is told, its callback is called, and the log
    /// has it.
    pub(super) fn announce_loss(&self, lease: &HeldLease, loss: &Loss, watcher: LossWatcher) {
        self.client
            .meter()
            .on_lost(loss.reason, lease.held_for(self.client.now()));
        watcher.tell(loss);
        // The callback may end the process, so the log comes first. The program's logger may panic.
        let logged = catch_unwind(|| {
            log::warn!(
                logger: Logger,
                "lost {:?} (fence {}): {}",
                loss.lock,
                loss.fence,
                loss.reason
            );
        });
        if let Some(callback) = &lease.request.on_lost {
            self.callbacks.call(Arc::clone(callback), loss.clone());
        }
        if let Err(panic) = logged {
            resume_unwind(panic);
        }
    }
}
