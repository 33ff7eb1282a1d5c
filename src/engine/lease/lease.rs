//! A lease: a lock that was granted to this process. It does no I/O and reads no clock. The caller
//! passes in what happened, and what time it is.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::lost_signal::LostSignal;
use super::passing::{DoubtfulPass, Passing};
use super::state::LeaseState;
use super::wanted_signal::WantedSignal;
use crate::config::margin;
use crate::engine::request::Request;
use crate::error::Error;
use crate::loss::{Loss, LossReason, LossWatcher, PreviousHolder};
use crate::script::{Grant, Mode, Token};
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::sync::Mutex;

/// A lock that was granted to this process.
///
/// A lease can be *lent*: its owner gives others of its own under it, one after the other, each to
/// one guard. Such a lease has its own end, and the lender's token and deadline: it is held while
/// neither of the two has ended. The renewal thread renews the lender.
pub(crate) struct HeldLease {
    pub(crate) request: Arc<Request>,
    pub(crate) token: Token,
    /// See [`HeldLease::fence`]. A lent lease has its own when somebody first asks for it.
    fence: OnceLock<u64>,
    /// How many fences Redis has reserved behind the first.
    spare: u64,
    pub(crate) previous: PreviousHolder,
    /// When this process learned of the grant, or somewhat before.
    noticed_at: Time,
    /// When `max_hold` ends it.
    pub(crate) ends_at: Time,
    /// Its waiter was queued, or may have been, so the registry keeps its token until the lease ends.
    pub(crate) was_queued: bool,
    /// Others waited when it was granted, or may have. False unless its request hears.
    pub(crate) was_wanted: bool,
    /// R7 (late copies): until this server time, a copy of its acquire that is still under way can
    /// take the token. 0: no copy is under way.
    pub(crate) not_after: u64,
    /// How many permits it has. A guard can release some of them.
    permits: AtomicU32,
    /// How many fences those that it was lent to have taken.
    lent_fences: AtomicU32,
    /// When it was last lent, in ns. Only the statistics use it.
    lent_at: AtomicU64,
    /// When the request was sent, at the latest, whose reply last showed that Redis has the lease. In ns.
    confirmed_at: AtomicU64,
    /// The lease under which this one was given.
    lender: Option<Arc<HeldLease>>,
    state: LeaseState,
    signal: LostSignal,
    passing: Passing,
    /// A guard has tried to detach the lock.
    was_passed: AtomicBool,
    wanted: WantedSignal,
    /// Why the last renewal failed. `None` if it succeeded, or none was due yet.
    renewal_fault: Mutex<Option<Box<StoreFault>>>,
}

impl HeldLease {
    /// `granted` is a local time no later than the grant.
    pub(crate) fn new(
        request: Arc<Request>,
        grant: &Grant,
        granted: Time,
        deadline: Time,
    ) -> HeldLease {
        let fence = OnceLock::from(grant.fence);
        HeldLease::of_grant(request, grant, fence, granted, deadline)
    }

    fn of_grant(
        request: Arc<Request>,
        grant: &Grant,
        fence: OnceLock<u64>,
        granted: Time,
        deadline: Time,
    ) -> HeldLease {
        HeldLease {
            permits: AtomicU32::new(request.spec.weight),
            was_wanted: request.hears && grant.waiting != Some(false),
            ends_at: request
                .max_hold
                .map_or(Time::NEVER, |limit| granted + limit),
            spare: u64::from(request.spare_fences).min(grant.most_spare_fences()),
            request,
            token: grant.token,
            fence,
            previous: grant.previous,
            noticed_at: granted,
            was_queued: false,
            not_after: 0,
            lent_fences: AtomicU32::new(0),
            lent_at: AtomicU64::new(0),
            confirmed_at: AtomicU64::new(granted.as_nanos()),
            lender: None,
            state: LeaseState::held_until(deadline),
            signal: LostSignal::default(),
            passing: Passing::default(),
            was_passed: AtomicBool::new(false),
            wanted: WantedSignal::default(),
            renewal_fault: Mutex::new(None),
        }
    }

    /// The lender is lent for a request, from now on.
    pub(crate) fn lent(
        lender: Arc<HeldLease>,
        request: Arc<Request>,
        previous: PreviousHolder,
        now: Time,
    ) -> HeldLease {
        let grant = Grant {
            token: lender.token,
            fence: 0,
            granted_at: 0,
            left: Duration::ZERO,
            previous,
            waiting: Some(false),
        };
        lender.lent_at.store(now.as_nanos(), Ordering::Relaxed);
        HeldLease {
            lender: Some(lender),
            ..HeldLease::of_grant(request, &grant, OnceLock::new(), now, Time::NEVER)
        }
    }

    /// The fence of the grant. A lent lease takes the next of the fences that Redis has reserved for
    /// the lender, when this is first called. The lender is lent to one guard after the other. So the
    /// order of their fences is that of the guards, and a guard that asks for no fence uses none up.
    pub(crate) fn fence(&self) -> u64 {
        *self.fence.get_or_init(|| {
            let lender = self.lender.as_ref();
            lender.map_or(0, |lender| {
                let taken = lender.lent_fences.fetch_add(1, Ordering::Relaxed);
                lender.fence() + u64::from(taken)
            })
        })
    }

    /// How long after the grant the lease may take its fence, at the earliest. Zero: at once.
    ///
    /// P2 (rising fences): if Redis loses its data, its next fence is its time. So a lender gives away
    /// fewer fences than microseconds have passed since its grant.
    pub(crate) fn fence_due_after(&self) -> Duration {
        match &self.lender {
            Some(lender) if self.fence.get().is_none() => {
                let taken = u64::from(lender.lent_fences.load(Ordering::Relaxed));
                // 0.1 % more, as the clocks' rates may differ.
                Duration::from_nanos(taken * 1001)
            }
            _ => Duration::ZERO,
        }
    }

    /// Whether Redis has reserved a fence for one more lent lease.
    pub(crate) fn has_spare_fence(&self) -> bool {
        let taken = u64::from(self.lent_fences.load(Ordering::Relaxed));
        self.request.spare_fences > 0 && taken <= self.spare
    }

    /// When this process learned of the grant that is renewed for it, or somewhat before.
    pub(crate) fn renewed_noticed_at(&self) -> Time {
        let renewed = self.lender.as_deref().unwrap_or(self);
        renewed.noticed_at
    }

    /// The lease under which this one was given. `None` for a grant of Redis.
    pub(crate) fn lender(&self) -> Option<&Arc<HeldLease>> {
        self.lender.as_ref()
    }

    /// The lease that the renewal thread renews for this one: its lender, or itself.
    pub(crate) fn renewed_lease(self: &Arc<Self>) -> &Arc<HeldLease> {
        self.lender.as_ref().unwrap_or(self)
    }

    /// The last of its fences that a guard had, for a release of this mode. `None`: there is nothing to
    /// say about that. A guard that has lost the lock can still take the next one.
    pub(crate) fn last_fence(&self, mode: Mode) -> Option<u64> {
        let taken = u64::from(self.lent_fences.load(Ordering::Relaxed));
        match mode {
            Mode::Used => (taken > 1).then(|| self.fence() + taken - 1),
            Mode::Lost | Mode::Unfinished if self.request.spare_fences > 0 => {
                Some(self.fence() + taken.min(self.spare))
            }
            _ => None,
        }
    }

    /// When its first renewal is due after `now`. Never under a lender, or for a fixed lease.
    pub(crate) fn first_renewal(&self, now: Time) -> Time {
        let period = self.request.renewal_period();
        let period = period.filter(|_| self.lender.is_none());
        period.map_or(Time::NEVER, |period| now + period)
    }

    /// The same lease, if this process learned of the grant now.
    pub(crate) fn noticed(self, now: Time) -> HeldLease {
        HeldLease {
            noticed_at: now,
            ..self
        }
    }

    /// The same lease, of a waiter that was queued.
    pub(crate) fn for_queued(self) -> HeldLease {
        HeldLease {
            was_queued: true,
            ..self
        }
    }

    /// The same lease, if a copy of its acquire may still be under way (R7).
    pub(crate) fn with_not_after(self, not_after: u64) -> HeldLease {
        HeldLease { not_after, ..self }
    }

    /// The fence of its grant, and those that Redis has reserved.
    pub(crate) fn fences(&self) -> RangeInclusive<u64> {
        self.fence()..=self.fence() + self.spare
    }

    /// How long its caller waited for it.
    pub(crate) fn waited(&self) -> Duration {
        self.noticed_at - self.request.asked_at
    }

    /// For how long this process has had it.
    pub(crate) fn held_for(&self, now: Time) -> Duration {
        now - self.noticed_at
    }

    /// Since when one guard has had it: its only one, or the one that it was last lent to.
    pub(crate) fn held_by_one_guard_since(&self) -> Time {
        let lent_at = Time::from_nanos(self.lent_at.load(Ordering::Relaxed));
        self.noticed_at.max(lent_at)
    }

    /// How many permits it has by now.
    pub(crate) fn permits(&self) -> u32 {
        self.permits.load(Ordering::Relaxed)
    }

    /// The guard keeps this many permits.
    pub(crate) fn keep_permits(&self, permits: u32) {
        self.permits.store(permits, Ordering::Relaxed);
    }

    pub(crate) fn is_held(&self, now: Time) -> bool {
        self.follow_lender(now);
        self.state.is_held(now)
    }

    /// It is lost with its lender. P6 (a loss stays): this is written before anybody answers.
    fn follow_lender(&self, now: Time) {
        if let Some(lender) = &self.lender
            && !lender.state.is_held(now)
            && let Some(reason) = lender.state.lost()
        {
            self.state.lose(reason);
        }
    }

    /// Whether it was released, or its loss is known. Reads no clock: a lease past its deadline is
    /// over when somebody has looked.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline().is_none()
    }

    /// `None` if it has ended.
    fn deadline(&self) -> Option<Time> {
        let own = self.state.deadline()?;
        match &self.lender {
            Some(lender) => lender.state.deadline(),
            None => Some(own),
        }
    }

    pub(crate) fn remaining(&self, now: Time) -> Duration {
        self.deadline()
            .map_or(Duration::ZERO, |deadline| deadline - now)
    }

    /// The same, or the time until `max_hold` ends it if that is less.
    pub(crate) fn remaining_for_guard(&self, now: Time) -> Duration {
        self.remaining(now).min(self.ends_at - now)
    }

    /// The loss, if the lease is lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        if let Some(lender) = &self.lender
            && let Some(reason) = lender.state.lost()
        {
            self.state.lose(reason);
        }
        self.state.lost().map(|reason| self.loss_for(reason))
    }

    /// The loss, if the lease is not held any more.
    pub(crate) fn loss_at(&self, now: Time) -> Option<Loss> {
        if self.is_held(now) {
            return None;
        }
        let loss = self.loss();
        Some(loss.unwrap_or_else(|| self.loss_for(LossReason::Expired)))
    }

    pub(crate) fn loss_for(&self, reason: LossReason) -> Loss {
        Loss {
            lock: self.request.key.name.clone(),
            fence: self.fence(),
            reason,
        }
    }

    pub(crate) fn note_renewal_fault(&self, fault: Option<&StoreFault>) {
        *self.renewal_fault.lock() = fault.map(|fault| Box::new(fault.clone()));
    }

    /// Why the last renewal of this grant failed, if it did.
    pub(crate) fn renewal_error(&self) -> Option<Error> {
        let renewed = self.lender.as_deref().unwrap_or(self);
        let fault = renewed.renewal_fault.lock().clone()?;
        Some(fault.into_error(Some(&self.request.key), Duration::ZERO))
    }

    /// A reply confirmed a renewal. False if the lease had ended before.
    pub(crate) fn extend(&self, now: Time, deadline: Time) -> bool {
        self.state.extend(now, deadline)
    }

    /// A reply has shown that Redis had the lease when it ran a request that was sent at this time.
    pub(crate) fn note_confirmed(&self, sent: Time) {
        self.confirmed_at
            .fetch_max(sent.as_nanos(), Ordering::Relaxed);
    }

    /// Whether Redis is known to have had the lease after the last trouble, whose mark this is. See
    /// [`Hearing::troubles`](crate::engine::hearing::Hearing::troubles). For a lent lease, its lender
    /// counts.
    pub(crate) fn is_confirmed(&self, troubles: u64) -> bool {
        let renewed = self.lender.as_deref().unwrap_or(self);
        renewed.confirmed_at.load(Ordering::Relaxed) > troubles
    }

    /// The lease is lost, if it has not ended before.
    pub(crate) fn lose(&self, reason: LossReason) {
        self.state.lose(reason);
    }

    /// R14 (release first, then send): ends the lease here, before its release is sent. An error if
    /// the lease is lost.
    pub(crate) fn release(&self, now: Time) -> Result<(), Loss> {
        self.end(now)?;
        self.disconnect();
        Ok(())
    }

    /// The first half of [`HeldLease::release`], for a caller that holds a mutex. It wakes nobody.
    pub(crate) fn end(&self, now: Time) -> Result<(), Loss> {
        self.follow_lender(now);
        self.state
            .release(now)
            .map_err(|reason| self.loss_for(reason))
    }

    /// The second half of [`HeldLease::release`]: wakes the threads that watch for a loss.
    pub(crate) fn disconnect(&self) {
        self.signal.close();
    }

    /// The same, for a lease that was lent, and that its owner has taken back: nobody reports a loss of it
    /// any more.
    pub(crate) fn disconnect_lent(&self) {
        if self.signal.is_watched() {
            self.signal.close();
        }
    }

    /// Ends a lease that no guard has or will have, held or lost. No loss is reported.
    pub(crate) fn close(&self) {
        self.state.close();
        self.signal.close();
    }

    /// The guard asks Redis to pass the lock on to another token. While that is under way, a renewal
    /// that finds another owner does not count as a loss.
    pub(crate) fn begin_pass(&self) {
        self.was_passed.store(true, Ordering::Relaxed);
        self.passing.begin();
    }

    /// Whether a guard has tried to detach the lock, so that another token may own it.
    pub(crate) fn may_be_passed(&self) -> bool {
        self.was_passed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_being_passed(&self) -> bool {
        self.passing.is_under_way()
    }

    /// Redis has not passed the lock on, and never will by the requests so far.
    pub(crate) fn end_pass(&self) {
        self.passing.end();
    }

    /// Nobody knows whether Redis has passed the lock on. P1 (one holder): then the other token's lease
    /// ends at `until` or later, and others can take the lock. So the guard believes in its lock
    /// until then, or until a renewal shows that it is still the owner.
    pub(crate) fn doubt_pass(&self, pass: DoubtfulPass, until: Time) {
        self.passing.doubt(pass);
        self.state.cut(until);
    }

    /// R7 (late copies): until this server time, the lock can still be passed on. 0: it cannot.
    pub(crate) fn pass_not_after(&self) -> u64 {
        self.passing.not_after()
    }

    /// The passes without an answer, for the one caller that releases the other tokens. This lease has
    /// ended.
    pub(crate) fn take_doubtful_passes(&self) -> Vec<DoubtfulPass> {
        self.passing.take_doubtful()
    }

    /// Notes the loss. The one call that did so gets the watcher, and tells it once the loss is counted.
    pub(crate) fn report_loss(&self) -> Option<LossWatcher> {
        self.signal.report()
    }

    #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
    pub(crate) fn is_loss_reported(&self) -> bool {
        self.signal.is_reported()
    }

    pub(crate) fn lost(&self) -> &Receiver<Loss> {
        self.signal.receiver()
    }

    /// Somebody waits for the lock. Its guard may learn so from now on.
    pub(crate) fn note_wanted(&self) {
        self.wanted.set();
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.is_set()
    }

    pub(crate) fn wanted(&self) -> &Receiver<()> {
        self.wanted.receiver()
    }

    /// The renewal thread's next action for the lease at `now`, if it is to be renewed at
    /// `renew_at`.
    pub(crate) fn due(&self, now: Time, renew_at: Time) -> Due {
        if self.state.is_released() {
            return Due::Drop;
        }
        if !self.is_held(now) {
            // It may have been released since the first look: then there is no loss to report.
            return self.state.lost().map_or(Due::Drop, Due::Lose);
        }
        if now >= self.ends_at {
            Due::Lose(LossReason::MaxHold)
        } else if now >= renew_at {
            Due::Renew
        } else {
            Due::Nothing
        }
    }

    /// When [`HeldLease::due`] has something to say next.
    pub(crate) fn next_due(&self, renew_at: Time) -> Time {
        let deadline = self.state.deadline().unwrap_or(Time::from_nanos(0));
        renew_at.min(deadline).min(self.ends_at)
    }
}

/// The first loss among these leases.
pub(crate) fn first_lost(leases: &[Arc<HeldLease>], now: Time) -> Option<Loss> {
    leases.iter().find_map(|lease| lease.loss_at(now))
}

/// An action that a lease needs.
#[derive(Debug, PartialEq)]
pub(crate) enum Due {
    /// It ended, and nobody needs to know.
    Drop,
    Nothing,
    Renew,
    Lose(LossReason),
}

/// R12 (doubtful grants): the local deadline of a lease whose time left came in a reply. The server
/// counted that time after the request was sent.
pub(crate) fn deadline_from_reply(request: &Request, sent: Time, left: Duration) -> Time {
    deadline_since(request, sent, left, Duration::ZERO)
}

/// The local deadline of a lease that had `left` to go at `since` or later. `since` lies
/// `extrapolated` after a moment at which the server's time was known.
///
/// Every time left that the server reports becomes a deadline here.
///
/// R15 (clock went back): if the server's clock went back after the grant, more may be left by that
/// clock than a lease can have. The server cuts the lease to its full length from now or later. So
/// the client may believe in that length, and in no more.
pub(crate) fn deadline_since(
    request: &Request,
    since: Time,
    left: Duration,
    extrapolated: Duration,
) -> Time {
    let left = left.min(request.longest());
    since + left.saturating_sub(margin(left, extrapolated))
}
