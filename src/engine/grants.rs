//! Every grant comes through here, whichever way it became known: a message, a sync, or the reply
//! to another request. Its waiter gets it. A grant without a waiter is released.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::background::Command;
use crate::engine::waiter::{GrantNotice, TokenOwner, WaiterAction, WaiterEntry};
use crate::key::Key;
use crate::script::Call;
use crate::store::Answer;

#[cfg(all(test, feature = "memory"))]
mod tests;

impl Engine {
    /// Delivers the grants to other waiters of this manager that a reply carries, and counts the
    /// dead waiters that the call passed over. Every answer to a call comes through here, once.
    pub(super) fn deliver_all(&self, call: &Call, answer: &Answer) {
        if answer.reply.dead_waiters > 0 {
            self.meter.dead_waiters.add(answer.reply.dead_waiters);
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
        let notice = if self.store.confirms_grants() {
            notice.doubtful()
        } else {
            notice
        };
        match self.waiters.owner_of(notice.grant.token) {
            TokenOwner::Waiter(waiter) => self.on_grant(&waiter, notice),
            // The grant became known in another way before, and a guard has it.
            TokenOwner::Guard => {}
            TokenOwner::Unknown => {
                self.abandon_token(about, notice.grant.token, 0, notice.grant.left)
            }
        }
    }

    fn on_grant(&self, waiter: &Arc<WaiterEntry>, notice: GrantNotice) {
        let mut state = waiter.state.lock();
        let action = state.on_notice(notice, self.now(), &waiter.request);
        drop(state);
        self.apply_hand_over(waiter, action);
    }

    /// Like [`Engine::apply`]. If the event gave the waiter its grant, the lock was handed over, and
    /// that counts.
    pub(super) fn apply_hand_over(&self, waiter: &Arc<WaiterEntry>, action: WaiterAction) {
        if matches!(action, WaiterAction::Keep(_) | WaiterAction::Confirm) {
            self.meter.handed_over.add(1);
        }
        self.apply(waiter, action);
    }

    /// Carries out what a waiter's state decided. Call this without the waiter's mutex: the
    /// registry's mutex is never asked for under it, and nobody is woken under it.
    pub(super) fn apply(&self, waiter: &Arc<WaiterEntry>, action: WaiterAction) {
        match action {
            WaiterAction::Nothing => {}
            WaiterAction::Keep(lease) => {
                self.keep_renewed(&lease);
                if waiter.request.is_place {
                    self.on_place_granted(waiter);
                } else {
                    waiter.changed.notify_one();
                }
            }
            WaiterAction::Confirm if !self.service.has_queue => self.ask_anew(waiter),
            WaiterAction::Confirm => self.send_to_background(Command::Confirm(Arc::clone(waiter))),
            WaiterAction::Requeue => self.send_to_background(Command::Requeue(Arc::clone(waiter))),
            WaiterAction::Abandon { token, not_after } => {
                self.abandon_queued(&waiter.request, token, not_after);
            }
            WaiterAction::LeaveLine => self.leave_line(waiter),
            WaiterAction::PassOn(turn) => self.pass_on(&turn),
        }
    }

    /// Has the renewal thread sync a name at once, if anybody here waits for it.
    pub(super) fn sync_now(&self, key: &Key) {
        if !self.service.has_queue {
            return;
        }
        let now = self.now();
        self.waiters.reschedule(&key.name, now);
        self.waker.wake_if_late_for(now);
    }
}
