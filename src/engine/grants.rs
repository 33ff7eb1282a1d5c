//! Every grant comes through here, whichever way it became known: a message, a sync, or the reply
//! to another request. Its waiter gets it. A grant without a waiter is released.

use std::sync::Arc;

use crate::engine::client::Client;
use crate::engine::holding::Holding;
use crate::engine::lease::{HeldLease, note_taken};
use crate::engine::life::Life;
use crate::engine::upkeep::{Task, Timer, Upkeep};
use crate::engine::waiter::{
    Askers, GrantNotice, TokenOwner, WaiterAction, WaiterEntry, WaiterRegistry,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::script::{Call, Wait};
use crate::stats::Count;
use crate::store::Answer;
use crate::store::clock::Time;

#[cfg(all(test, feature = "memory"))]
mod tests;

/// R21 (asking again): the end of a pause, for a caller that waits by a channel. It asks by itself.
struct PauseEnd(Arc<WaiterEntry>);

impl Timer for PauseEnd {
    fn on_time(&self, now: Time) -> Option<Time> {
        let is_over = self.0.state.lock().is_pause_over(now);
        if is_over {
            self.0.send_ready();
        }
        None
    }
}

/// Gives each grant to its waiter, and carries out what the waiter's state decides.
pub(crate) struct Grants {
    life: Arc<Life>,
    client: Arc<Client>,
    upkeep: Arc<Upkeep>,
    holding: Arc<Holding>,
    registry: Arc<WaiterRegistry>,
    askers: Arc<Askers>,
}

impl Grants {
    pub(super) fn new(
        life: &Arc<Life>,
        client: &Arc<Client>,
        upkeep: &Arc<Upkeep>,
        holding: &Arc<Holding>,
        registry: &Arc<WaiterRegistry>,
        askers: &Arc<Askers>,
    ) -> Grants {
        Grants {
            life: Arc::clone(life),
            client: Arc::clone(client),
            upkeep: Arc::clone(upkeep),
            holding: Arc::clone(holding),
            registry: Arc::clone(registry),
            askers: Arc::clone(askers),
        }
    }

    /// From now on the manager gives out no locks, and every wait ends with [`Error::Closed`].
    pub(super) fn close(&self) {
        self.life.close();
        for waiter in self.registry.all() {
            let action = waiter.state.lock().fail(Error::Closed);
            self.apply(&waiter, action);
            waiter.wake();
        }
    }

    /// Delivers the grants to other waiters of this manager that a reply carries, and counts the
    /// dead waiters that the call passed over. Every answer to a call comes through here, once.
    pub(super) fn deliver_all(&self, call: &Call, answer: &Answer) {
        if answer.reply.dead_waiters > 0 {
            self.client
                .meter()
                .add(Count::DeadWaiters, answer.reply.dead_waiters);
        }
        for grant in &answer.reply.grants {
            self.deliver(call, GrantNotice::from_reply(*grant, answer.sent));
        }
    }

    /// Delivers a grant to its waiter. R13 (unwanted grants): a grant that nobody waits for is
    /// released. `about` names the lock.
    ///
    /// R18 (replica acks): a grant that comes this way is not acknowledged yet, if that is needed. So
    /// a renewal confirms it first.
    pub(super) fn deliver(&self, about: &Call, notice: GrantNotice) {
        match self.registry.owner_of(notice.grant.token) {
            TokenOwner::Waiter(waiter) => self.on_grant(&waiter, notice),
            // The grant became known in another way before, and a guard has it.
            TokenOwner::Guard => {}
            TokenOwner::Unknown => {
                self.upkeep
                    .abandon_token(about, notice.grant.token, 0, notice.grant.left)
            }
        }
    }

    /// Delivers a grant to its waiter, if there is one.
    pub(super) fn deliver_if_awaited(&self, notice: GrantNotice) {
        if let TokenOwner::Waiter(waiter) = self.registry.owner_of(notice.grant.token) {
            self.on_grant(&waiter, notice);
        }
    }

    fn on_grant(&self, waiter: &Arc<WaiterEntry>, notice: GrantNotice) {
        let notice = if self.client.store().confirms_grants() {
            notice.doubtful()
        } else {
            notice
        };
        let mut state = waiter.state.lock();
        let action = state.on_notice(notice, self.client.now(), &waiter.request);
        drop(state);
        self.apply_hand_over(waiter, action);
    }

    /// Like [`Grants::apply`]. If the event gave the waiter its grant, the lock was handed over, and
    /// that counts.
    pub(super) fn apply_hand_over(&self, waiter: &Arc<WaiterEntry>, action: WaiterAction) {
        if matches!(action, WaiterAction::Keep(_) | WaiterAction::Confirm) {
            self.client.meter().count(Count::Handovers);
        }
        self.apply(waiter, action);
    }

    /// Carries out what a waiter's state decided. Call this without the waiter's mutex: the
    /// registry's mutex is never asked for under it, and nobody is woken under it.
    pub(super) fn apply(&self, waiter: &Arc<WaiterEntry>, action: WaiterAction) {
        match action {
            WaiterAction::Nothing => {}
            WaiterAction::Keep(lease) => {
                self.holding.keep_renewed(&lease);
                waiter.wake();
            }
            WaiterAction::Confirm if !self.client.has_queue() => self.ask_anew(waiter),
            WaiterAction::Confirm => self.upkeep.ask(Task::Confirm(Arc::clone(waiter))),
            WaiterAction::Requeue => self.upkeep.ask(Task::Requeue(Arc::clone(waiter))),
            WaiterAction::Abandon { token, not_after } => {
                self.upkeep
                    .abandon_queued(&waiter.request, token, not_after);
            }
            WaiterAction::Leave { given } => {
                if let Some(owner) = waiter.owner() {
                    owner.on_left(waiter, given);
                }
            }
        }
    }

    /// Has the renewal thread sync a name at once, if anybody here waits for it.
    pub(super) fn sync_now(&self, key: &Key) {
        if !self.client.has_queue() {
            return;
        }
        let now = self.client.now();
        self.registry.reschedule(&key.name, now);
        self.upkeep.wake_if_late_for(now);
    }

    /// The caller of a waiter has taken this lease. Call this while the waiter is still registered:
    /// see [`WaiterRegistry::mark_guarded`](crate::engine::waiter::WaiterRegistry::mark_guarded).
    pub(super) fn give_to_waiter(
        &self,
        waiter: &Arc<WaiterEntry>,
        lease: Arc<HeldLease>,
    ) -> Result<Arc<HeldLease>> {
        if !waiter.is_unasked() {
            return self.give_to_caller(lease);
        }
        // A lent lease is never abandoned: its owner passes the lender on.
        if let Err(error) = self.life.check_open() {
            let given = Some(lease);
            self.apply(waiter, WaiterAction::Leave { given });
            return Err(error);
        }
        note_taken(self.client.id(), &lease);
        Ok(lease)
    }

    /// The lease becomes the caller's.
    pub(super) fn give_to_caller(&self, lease: Arc<HeldLease>) -> Result<Arc<HeldLease>> {
        if lease.was_queued {
            self.registry.mark_guarded(lease.token);
        }
        // A shutdown may have come while the grant was under way.
        if let Err(error) = self.life.check_open() {
            self.abandon_lease(&lease);
            return Err(error);
        }
        let owner = lease.request.owner.as_ref();
        if !owner.is_some_and(|owner| owner.lends()) {
            note_taken(self.client.id(), &lease);
        }
        Ok(lease)
    }

    /// Abandons the token of a lease that has no guard and never will.
    pub(super) fn abandon_lease(&self, lease: &Arc<HeldLease>) {
        // R14 (release first, then send).
        lease.close();
        if lease.was_queued {
            self.registry.forget_guarded(lease.token);
        }
        let about = lease.request.enter(lease.token, Wait::No);
        self.upkeep.abandon_token(
            &about,
            lease.token,
            lease.not_after,
            lease.request.longest(),
        );
    }

    /// R21 (asking again): the lease that the waiter had is lost, or in doubt. Its token is
    /// abandoned, and the caller asks under others. A confirmation would spare nobody a request.
    pub(super) fn ask_anew(&self, waiter: &Arc<WaiterEntry>) {
        let now = self.client.now();
        let mut state = waiter.state.lock();
        let abandon = state.abandon_token();
        let token = state.token;
        let _ = state.on_absent(token, now);
        drop(state);
        self.apply(waiter, abandon);
        self.registry.replace_token(waiter);
        self.begin_pause(waiter, now);
        waiter.changed.notify_one();
    }

    /// R21 (asking again): the caller has asked in vain.
    pub(super) fn begin_pause(&self, waiter: &Arc<WaiterEntry>, now: Time) {
        let mut state = waiter.state.lock();
        state.begin_pause(now, self.client.config().back_off);
        drop(state);
        self.watch_pause(waiter);
    }

    /// R21 (asking again): where the store has no queue, a caller that waits by a channel is sent to
    /// look when its pause is over.
    pub(super) fn watch_pause(&self, waiter: &Arc<WaiterEntry>) {
        if self.client.has_queue() || !waiter.is_watched() {
            return;
        }
        // `NEVER`: a request is under way. The thread that sent it begins the next pause.
        let ask_at = waiter.state.lock().ask_at;
        if ask_at != Time::NEVER {
            let end = PauseEnd(Arc::clone(waiter));
            self.upkeep.call_at(ask_at, Arc::new(end));
        }
    }

    /// A lock was released. Where the store has no queue, the first waiter of this manager asks at
    /// once.
    pub(super) fn wake_asker(&self, key: &Key) {
        if !self.client.has_queue() {
            self.askers.wake_first(&key.name);
        }
    }
}
