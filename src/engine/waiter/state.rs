//! The state machine of one waiter. It is pure: each event comes with its time, and the returned
//! [`WaiterAction`] says what the engine must do.
//!
//! The file is long on purpose: all transitions of the stage are in one place, so that the table on
//! [`Stage`] can be checked against them.

#[cfg(all(test, not(fairlock_loom)))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::lease::{HeldLease, deadline_from_reply};
use crate::engine::request::Request;
use crate::engine::waiter::grant_notice::GrantNotice;
use crate::error::Error;
use crate::loss::PreviousHolder;
use crate::script::{Grant, Token, random_bits};
use crate::store::clock::Time;

/// R21 (asking again): the longest that a first pause can be.
const FIRST_PAUSE: Duration = Duration::from_millis(8);

/// A waiter's knowledge of its lock and of its place in the queue.
pub(crate) struct WaiterState {
    pub(crate) token: Token,
    /// | stage      | meaning                                        | becomes                            |
    /// |------------|------------------------------------------------|------------------------------------|
    /// | Asking     | a request of the token is in flight, or next   | Queued, Granted, Confirming        |
    /// | Queued     | the token is in the queue in Redis             | Granted, Confirming, Forgotten; Asking, to cancel |
    /// | Forgotten  | Redis does not know the token any more (R4)    | Asking with a new token, Granted, Confirming |
    /// | Confirming | granted, but in doubt: a renewal decides (R12) | Granted, Forgotten                 |
    /// | Granted    | a lease, renewed until the caller takes it     | Taken, Confirming                  |
    /// | Unasked    | it asks for nothing: its owner gives it a lease | Given                             |
    /// | Given      | a lease of its owner's                         | Taken, Unasked                     |
    /// | Taken      | a guard has the lease; notices may still come  | –                                  |
    /// | Failed     | the wait failed; every look gets the error     | Cancelled                          |
    /// | Cancelled  | nobody waits here any more                     | –                                  |
    ///
    /// All but Taken become Failed by a shutdown or a refusal, and Cancelled when the caller drops
    /// the waiter.
    stage: Stage,
    /// R8 (grant during a request): a grant that became known while a request of this token was in
    /// flight.
    pending_notice: Option<GrantNotice>,
    /// The position in the queue as of the last reply: 1 is next.
    position: Option<u64>,
    ticket: u64,
    /// The row of the manager's stamps under which this waiter was enqueued. If Redis has another
    /// row now, the waiter may have been passed over.
    since: u64,
    queued_at: Time,
    /// R6 (token lifetime): when this token was first sent.
    pub(crate) first_sent: Option<Time>,
    /// R7 (late copies): the last server time at which a copy of an unanswered request may still
    /// take this token. 0 if there is no such copy.
    not_after: u64,
    /// A copy of a request may have queued this token, and no reply said so.
    may_be_queued: bool,
    /// R4 (lost places): Redis has forgotten a token of this waiter.
    was_forgotten: bool,
    /// R21 (asking again): when the caller asks next, if the store has no queue. `NEVER` while its
    /// request is under way.
    pub(crate) ask_at: Time,
    /// R21 (asking again): the longest that the last pause could be.
    pause: Duration,
    /// When a thread first began to wait. A caller that waits in pieces begins again and again.
    waits_since: Option<Time>,
    /// When the log says next that this wait lasts.
    report_at: Time,
}

enum Stage {
    Asking,
    Queued,
    Forgotten,
    Confirming(GrantNotice),
    Granted(Arc<HeldLease>),
    Unasked,
    Given(Arc<HeldLease>),
    Taken,
    Failed(Error),
    Cancelled,
}

/// The engine's action after an event. It acts after it has released the waiter's mutex.
#[must_use]
pub(crate) enum WaiterAction {
    Nothing,
    /// Wake the waiter and keep the lease renewed.
    Keep(Arc<HeldLease>),
    /// R12 (doubtful grants): send a renewal, whose reply says whether the grant still holds.
    Confirm,
    /// R4 (lost places): enqueue the waiter again, under a new token.
    Requeue,
    /// R13 (unwanted grants): nobody wants the token any more. Release it, or take it out of the
    /// queue.
    Abandon {
        token: Token,
        not_after: u64,
    },
    /// Tell the owner that its waiter does not wait any more. R13 (unwanted grants): the lease that
    /// it was given is the owner's again.
    Leave {
        given: Option<Arc<HeldLease>>,
    },
}

/// A waiter's state, as its caller finds it.
pub(crate) enum TakeGrant {
    Taken(Arc<HeldLease>),
    /// The grant is in doubt: [`WaiterAction::Confirm`] comes first.
    Confirm,
    Failed(Error),
    NotYet,
}

impl WaiterState {
    pub(crate) fn new(token: Token) -> WaiterState {
        WaiterState {
            token,
            stage: Stage::Asking,
            pending_notice: None,
            position: None,
            ticket: 0,
            since: 0,
            queued_at: Time::NEVER,
            first_sent: None,
            not_after: 0,
            may_be_queued: false,
            was_forgotten: false,
            ask_at: Time::NEVER,
            pause: Duration::ZERO,
            waits_since: None,
            report_at: Time::NEVER,
        }
    }

    /// A thread begins to wait, in one piece or in several. The log says so after `long_wait`.
    pub(crate) fn begin_wait(&mut self, now: Time, long_wait: Duration) {
        if self.waits_since.is_none() {
            self.waits_since = Some(now);
            self.report_at = now + long_wait;
        }
    }

    /// When the log says next that this wait lasts.
    pub(crate) fn report_at(&self) -> Time {
        self.report_at
    }

    /// The log may have nothing of this name from then on.
    pub(crate) fn report_by(&mut self, at: Time) {
        self.report_at = self.report_at.min(at);
    }

    /// For how long threads have waited, if the log is to say so now. The next report comes when that
    /// has doubled.
    pub(crate) fn take_report(&mut self, now: Time) -> Option<Duration> {
        let waited = now - self.waits_since?;
        (now >= self.report_at).then(|| {
            self.report_at = now + waited;
            waited
        })
    }

    /// Since when threads have waited for the grant, if it has not come.
    pub(crate) fn awaited_since(&self) -> Option<Time> {
        self.waits_since.filter(|_| self.awaits_grant())
    }

    /// Whether it has neither ended nor been granted, as far as is known here.
    pub(crate) fn awaits_grant(&self) -> bool {
        matches!(
            self.stage,
            Stage::Asking | Stage::Queued | Stage::Forgotten | Stage::Unasked
        )
    }

    /// Whether a look finds a lease or an error.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(
            self.stage,
            Stage::Granted(_) | Stage::Given(_) | Stage::Failed(_)
        )
    }

    /// A waiter that asks Redis for nothing: its owner gives it a lease.
    pub(crate) fn unasked() -> WaiterState {
        WaiterState {
            stage: Stage::Unasked,
            ..WaiterState::new(Token::never_sent())
        }
    }

    pub(crate) fn is_unasked(&self) -> bool {
        matches!(self.stage, Stage::Unasked)
    }

    /// The owner gives its waiter this lease. False if the waiter does not wait any more.
    #[must_use]
    pub(crate) fn give(&mut self, lease: &Arc<HeldLease>) -> bool {
        let waits = self.is_unasked();
        if waits {
            self.stage = Stage::Given(Arc::clone(lease));
        }
        waits
    }

    /// The owner takes its lease back, because that is lost. True: the waiter waits again. False:
    /// its caller has taken it, or has left.
    #[must_use]
    pub(crate) fn take_back(&mut self, lease: &Arc<HeldLease>) -> bool {
        let untaken = matches!(&self.stage, Stage::Given(given) if Arc::ptr_eq(given, lease));
        if untaken {
            self.stage = Stage::Unasked;
        }
        untaken
    }

    /// A waiter whose lock was granted before it had to queue.
    pub(crate) fn granted(lease: Arc<HeldLease>) -> WaiterState {
        WaiterState {
            stage: Stage::Granted(Arc::clone(&lease)),
            ..WaiterState::new(lease.token)
        }
    }

    /// R7 (late copies): a copy of a request had no reply. It may take the token until `not_after`, or
    /// has queued it.
    pub(crate) fn note_unanswered(&mut self, not_after: u64) {
        self.not_after = self.not_after.max(not_after);
        self.may_be_queued = true;
    }

    /// Whether the token was surely never in a queue: its one request is in flight, or was answered.
    fn was_never_queued(&self) -> bool {
        !self.may_be_queued && !self.was_queued() && self.pending_notice.is_none()
    }

    /// The reply to the acquire: the token is in the queue.
    pub(crate) fn on_queued(
        &mut self,
        now: Time,
        ticket: u64,
        position: u64,
        since: u64,
        request: &Arc<Request>,
    ) -> WaiterAction {
        if !matches!(self.stage, Stage::Asking) {
            return self.abandon_token();
        }
        self.ticket = ticket;
        self.position = Some(position);
        self.since = since;
        self.queued_at = now;
        match self.pending_notice.take() {
            // R8 (grant during a request): the token was granted while this reply was under way.
            Some(notice) => self.accept(notice, now, request, true),
            None => {
                self.stage = Stage::Queued;
                WaiterAction::Nothing
            }
        }
    }

    /// R8 (grant during a request): whether a grant became known while the request is in flight.
    pub(crate) fn has_pending_notice(&self) -> bool {
        matches!(self.stage, Stage::Asking) && self.pending_notice.is_some()
    }

    /// The reply to a request of this token: the token owns the lock.
    pub(crate) fn on_granted(
        &mut self,
        notice: GrantNotice,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        match self.stage {
            Stage::Asking => {
                let was_queued = !self.was_never_queued();
                self.accept(notice, now, request, was_queued)
            }
            Stage::Cancelled | Stage::Failed(_) => self.abandon_token(),
            _ => WaiterAction::Nothing,
        }
    }

    /// The grant became known by another way: a message, a sync, or the reply to another request.
    pub(crate) fn on_notice(
        &mut self,
        notice: GrantNotice,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        if notice.grant.token != self.token {
            // The waiter has got a new token since. R13 (unwanted grants): nobody wants this one.
            return WaiterAction::Abandon {
                token: notice.grant.token,
                not_after: 0,
            };
        }
        match self.stage {
            // R8 (grant during a request): the reply in flight decides. A second copy of the
            // request may arrive later than this grant, and find it over.
            Stage::Asking => {
                self.pending_notice = Some(notice);
                WaiterAction::Nothing
            }
            Stage::Queued | Stage::Forgotten => self.accept(notice, now, request, true),
            Stage::Confirming(_) | Stage::Granted(_) | Stage::Taken => WaiterAction::Nothing,
            // Its token is never sent.
            Stage::Unasked | Stage::Given(_) => WaiterAction::Nothing,
            Stage::Failed(_) | Stage::Cancelled => self.abandon_token(),
        }
    }

    /// No reply came to the request in flight. A copy of it can take the token until `not_after`.
    /// R8 (grant during a request): a grant that became known since then counts now.
    pub(crate) fn on_no_reply(
        &mut self,
        not_after: u64,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        self.not_after = self.not_after.max(not_after);
        match (&self.stage, self.pending_notice.take()) {
            (Stage::Asking, Some(notice)) => self.accept(notice, now, request, true),
            (Stage::Cancelled | Stage::Failed(_), _) => self.abandon_token(),
            _ => WaiterAction::Nothing,
        }
    }

    fn accept(
        &mut self,
        notice: GrantNotice,
        now: Time,
        request: &Arc<Request>,
        was_queued: bool,
    ) -> WaiterAction {
        self.position = None;
        // R12 (doubtful grants): the deadline is an estimate, so a grant is never dropped by it
        // alone. Below half of the ttl, or without a deadline, a renewal decides.
        match notice.deadline(request) {
            Some(deadline) if deadline - now >= request.ttl / 2 => {
                self.hold(notice, deadline, now, request, was_queued)
            }
            _ => {
                self.stage = Stage::Confirming(notice);
                WaiterAction::Confirm
            }
        }
    }

    fn hold(
        &mut self,
        notice: GrantNotice,
        deadline: Time,
        noticed_at: Time,
        request: &Arc<Request>,
        was_queued: bool,
    ) -> WaiterAction {
        let lease = HeldLease::new(Arc::clone(request), &notice.grant, notice.granted, deadline);
        let lease = lease.noticed(noticed_at).with_not_after(self.not_after);
        let lease = Arc::new(if was_queued {
            lease.for_queued()
        } else {
            lease
        });
        self.stage = Stage::Granted(Arc::clone(&lease));
        WaiterAction::Keep(lease)
    }

    /// The renewal that confirms a doubtful grant succeeded.
    pub(crate) fn on_confirmed(
        &mut self,
        sent: Time,
        left: Duration,
        fence: u64,
        waiting: bool,
        request: &Arc<Request>,
    ) -> WaiterAction {
        match self.stage {
            Stage::Confirming(GrantNotice {
                mut grant,
                granted,
                extrapolated,
            }) => {
                if fence != grant.fence {
                    // A failover went back to older data, in which the token still waited, and it
                    // was granted again. Others may have held the lock in between.
                    grant.fence = fence;
                    // Nobody knows when, or how many fences it has reserved.
                    grant.granted_at = 0;
                    grant.previous = PreviousHolder::Unknown;
                }
                grant.waiting = Some(waiting);
                let notice = GrantNotice {
                    grant,
                    granted: granted.min(sent),
                    extrapolated,
                };
                let deadline = deadline_from_reply(request, sent, left);
                let action = self.hold(notice, deadline, sent, request, true);
                if let WaiterAction::Keep(lease) = &action {
                    lease.note_confirmed(sent);
                }
                action
            }
            Stage::Failed(_) | Stage::Cancelled => self.abandon_token(),
            _ => WaiterAction::Nothing,
        }
    }

    /// Redis did not know the token when it was asked, at `asked`. A place is lost only if it was
    /// in the queue before that. Otherwise its own acquire may have arrived after the question.
    pub(crate) fn on_absent(&mut self, token: Token, asked: Time) -> WaiterAction {
        let is_lost = match self.stage {
            Stage::Queued => self.queued_at <= asked,
            Stage::Confirming(_) => true,
            _ => false,
        };
        if !is_lost || self.token != token {
            return WaiterAction::Nothing;
        }
        self.stage = Stage::Forgotten;
        self.position = None;
        WaiterAction::Requeue
    }

    /// The lease was lost, or has too little time left, before the caller took it.
    pub(crate) fn on_lease_lost(&mut self, lease: &Arc<HeldLease>) -> WaiterAction {
        match &self.stage {
            Stage::Granted(held) if Arc::ptr_eq(held, lease) => {
                let grant = Grant {
                    token: lease.token,
                    fence: lease.fence(),
                    granted_at: 0,
                    left: Duration::ZERO,
                    previous: lease.previous,
                    waiting: None,
                };
                // If the renewal confirms the grant, that is a new lease.
                lease.close();
                self.stage = Stage::Confirming(GrantNotice {
                    grant,
                    granted: Time::NEVER,
                    extrapolated: None,
                });
                WaiterAction::Confirm
            }
            _ => WaiterAction::Nothing,
        }
    }

    /// Whether this waiter was queued at `asked`, but under another row of stamps than Redis has
    /// now. Then it may have been passed over.
    pub(crate) fn is_suspect(&self, since: u64, asked: Time) -> bool {
        matches!(self.stage, Stage::Queued) && self.queued_at <= asked && self.since != since
    }

    /// Whether this waiter was queued at `asked`, but its ticket had been served by then. Then the
    /// message of its grant was missed, unless it arrives soon.
    pub(crate) fn was_served(&self, ticket: u64, asked: Time) -> bool {
        matches!(self.stage, Stage::Queued) && self.queued_at <= asked && self.ticket <= ticket
    }

    /// Redis knows the token, under this row of stamps.
    pub(crate) fn on_present(&mut self, token: Token, since: u64) {
        if self.token == token {
            self.since = since;
        }
    }

    pub(crate) fn note_served(&mut self, ticket: u64) {
        if matches!(self.stage, Stage::Queued) {
            self.position = Some(self.ticket.saturating_sub(ticket).max(1));
        }
    }

    /// R4 (lost places), R6 (token lifetime): another attempt has another token. False if this
    /// waiter needs none.
    pub(crate) fn restart(&mut self, token: Token) -> bool {
        if !matches!(self.stage, Stage::Forgotten | Stage::Asking) {
            return false;
        }
        self.was_forgotten |= matches!(self.stage, Stage::Forgotten);
        self.stage = Stage::Asking;
        self.token = token;
        self.pending_notice = None;
        self.first_sent = None;
        self.not_after = 0;
        self.may_be_queued = false;
        true
    }

    /// For a token that is replaced. R7 (late copies): if a request of it had no reply, a copy may
    /// still take the lock.
    pub(crate) fn abandon_if_in_doubt(&self) -> WaiterAction {
        if self.not_after > 0 {
            self.abandon_token()
        } else {
            WaiterAction::Nothing
        }
    }

    /// R13 (unwanted grants): nobody wants this token, whatever Redis knows of it.
    pub(crate) fn abandon_token(&self) -> WaiterAction {
        WaiterAction::Abandon {
            token: self.token,
            not_after: self.not_after,
        }
    }

    /// Before the request that leaves the queue is sent. False if the waiter is not queued, or if a
    /// request is in flight: its sender handles the outcome.
    pub(crate) fn begin_cancel(&mut self) -> bool {
        let queued = matches!(self.stage, Stage::Queued);
        if queued {
            self.stage = Stage::Asking;
        }
        queued
    }

    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Asking)
    }

    /// Whether Redis has forgotten a token of it, and so it asks again.
    pub(crate) fn was_forgotten(&self) -> bool {
        self.was_forgotten
    }

    /// Whether Redis has ever said that it is queued.
    pub(crate) fn was_queued(&self) -> bool {
        self.queued_at != Time::NEVER
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued)
    }

    pub(crate) fn is_confirming(&self) -> bool {
        matches!(self.stage, Stage::Confirming(_))
    }

    /// Its caller has the lease.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self.stage, Stage::Taken)
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(
            self.stage,
            Stage::Taken | Stage::Cancelled | Stage::Failed(_)
        )
    }

    /// Ended without the lock.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.stage, Stage::Cancelled | Stage::Failed(_))
    }

    pub(crate) fn position(&self) -> Option<u64> {
        if self.is_ended() { None } else { self.position }
    }

    /// R21 (asking again): the lock is taken. The next pause begins, which is a random part of twice
    /// the last, and of `most` at most. If a release has woken the waiter since it asked, there is
    /// no pause.
    pub(crate) fn begin_pause(&mut self, now: Time, most: Duration) {
        self.pause = (self.pause * 2).max(FIRST_PAUSE).min(most);
        if self.ask_at == Time::NEVER {
            // Callers that ask in step would take a part of the nodes each, again and again. So a
            // pause is random. At least a quarter of it keeps callers from asking all the time.
            let shortest = self.pause / 4;
            let random = f64::from(random_bits()) / f64::from(u32::MAX);
            self.ask_at = now + shortest + (self.pause - shortest).mul_f64(random);
        }
    }

    /// R21 (asking again): whether it is time to ask.
    pub(crate) fn is_pause_over(&self, now: Time) -> bool {
        self.is_asking() && now >= self.ask_at
    }

    /// The caller looks. R12 (doubtful grants): a lease with less than half of its ttl left is
    /// confirmed first. Otherwise a process that slept through its grant could take a lock that has
    /// lapsed. An owner vouches for a lease that it gave.
    pub(crate) fn take_grant(&mut self, now: Time, request: &Arc<Request>) -> TakeGrant {
        match std::mem::replace(&mut self.stage, Stage::Cancelled) {
            Stage::Given(lease) => {
                if lease.is_held(now) {
                    self.stage = Stage::Taken;
                    return TakeGrant::Taken(lease);
                }
                // The owner takes it back when it learns of the loss.
                self.stage = Stage::Given(lease);
                TakeGrant::NotYet
            }
            Stage::Granted(lease) => {
                if lease.is_held(now) && lease.remaining(now) >= request.ttl / 2 {
                    self.stage = Stage::Taken;
                    return TakeGrant::Taken(lease);
                }
                self.stage = Stage::Granted(Arc::clone(&lease));
                match self.on_lease_lost(&lease) {
                    WaiterAction::Confirm => TakeGrant::Confirm,
                    _ => TakeGrant::NotYet,
                }
            }
            // The error stays for the next look.
            Stage::Failed(error) => {
                self.stage = Stage::Failed(error.clone());
                TakeGrant::Failed(error)
            }
            other => {
                self.stage = other;
                TakeGrant::NotYet
            }
        }
    }

    /// The caller does not wait any more.
    pub(crate) fn cancel(&mut self) -> WaiterAction {
        if matches!(self.stage, Stage::Taken) {
            return WaiterAction::Nothing;
        }
        match std::mem::replace(&mut self.stage, Stage::Cancelled) {
            Stage::Queued | Stage::Confirming(_) => self.abandon_token(),
            Stage::Unasked => WaiterAction::Leave { given: None },
            Stage::Given(lease) => WaiterAction::Leave { given: Some(lease) },
            Stage::Granted(lease) => {
                // R14 (release first, then send): the renewal thread must not renew it after this.
                lease.close();
                self.abandon_token()
            }
            // R7 (late copies): an earlier request of the token had no reply.
            Stage::Asking | Stage::Forgotten if self.not_after > 0 => self.abandon_token(),
            // The sender of the request in flight finds the waiter cancelled, and abandons the
            // token.
            Stage::Asking
            | Stage::Forgotten
            | Stage::Taken
            | Stage::Failed(_)
            | Stage::Cancelled => WaiterAction::Nothing,
        }
    }

    /// Like [`WaiterState::cancel`], and keeps the error for the caller.
    pub(crate) fn fail(&mut self, error: Error) -> WaiterAction {
        if self.is_ended() {
            return WaiterAction::Nothing;
        }
        let action = self.cancel();
        self.stage = Stage::Failed(error);
        action
    }
}
