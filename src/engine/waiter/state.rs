//! A place in a queue, as a state that is told what happens and what time it is.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::lease::{Lease, deadline_from_reply};
use crate::engine::request::Request;
use crate::engine::waiter::GrantNotice;
use crate::error::Error;
use crate::loss::PreviousHolder;
use crate::script::{Grant, Token};
use crate::store::clock::Time;

/// One waiter's place.
pub(crate) struct WaiterState {
    pub(crate) token: Token,
    stage: Stage,
    /// R8: a grant that was heard of while a request of this token was in flight.
    noted: Option<GrantNotice>,
    /// The place as last heard: 1 is next.
    position: Option<u64>,
    ticket: u64,
    /// Which row of the manager's stamps it was enqueued under; another one since then means that it may
    /// have been passed over.
    since: u64,
    queued_at: Time,
    /// When this token was first sent (R6).
    pub(crate) first_sent: Option<Time>,
    /// The last server time up to which a request whose fate is not known may take this token (R7).
    not_after: u64,
}

/// | stage      | meaning                                          | becomes                               |
/// |------------|--------------------------------------------------|---------------------------------------|
/// | Asking     | a request of the token is in flight or to be sent again | Queued, Granted, Confirming, Failed, Ended |
/// | Queued     | it stands in the queue                            | Granted, Confirming, Gone, Asking (withdrawing), Failed, Ended |
/// | Gone       | Redis does not know it any more (R4)              | Asking under a new token, Failed, Ended |
/// | Confirming | granted, perhaps long ago: a renewal is to tell (R12) | Granted, Gone, Failed, Ended      |
/// | Granted    | a lease, renewed until it is claimed              | Claimed, Confirming, Failed, Ended    |
/// | Claimed    | a guard has it; news of its grant may still come  | –                                     |
/// | Failed     | it cannot be had; the error is for the waiter     | Ended                                 |
/// | Ended      | nobody waits here any more                        | –                                     |
enum Stage {
    Asking,
    Queued,
    Gone,
    Confirming(GrantNotice),
    Granted(Arc<Lease>),
    Claimed,
    Failed(Error),
    Ended,
}

/// What the caller has to do, after letting go of the place's mutex.
#[must_use]
pub(crate) enum WaiterAction {
    Nothing,
    /// Wake the waiter and keep the lease renewed.
    Keep(Arc<Lease>),
    /// Ask by a renewal whether the grant still holds.
    Confirm,
    /// Enqueue it again, under a new token.
    Requeue,
    /// Nobody wants the token any more: release it, or take it out of the queue (R13).
    Abandon {
        token: Token,
        not_after: u64,
    },
}

/// What a waiter finds.
pub(crate) enum TakeGrant {
    Taken(Arc<Lease>),
    Confirm,
    Failed(Error),
    NotYet,
}

impl WaiterState {
    pub(crate) fn new(token: Token) -> WaiterState {
        WaiterState {
            token,
            stage: Stage::Asking,
            noted: None,
            position: None,
            ticket: 0,
            since: 0,
            queued_at: Time::NEVER,
            first_sent: None,
            not_after: 0,
        }
    }

    /// A place that was granted without standing in the queue.
    pub(crate) fn granted(lease: Arc<Lease>) -> WaiterState {
        WaiterState {
            stage: Stage::Granted(Arc::clone(&lease)),
            ..WaiterState::new(lease.token)
        }
    }

    /// A request was answered that had to be sent twice: its first copy can take the token until `not_after`.
    pub(crate) fn resent(&mut self, not_after: u64) {
        self.not_after = self.not_after.max(not_after);
    }

    /// The answer to an acquire: it stands in the queue.
    pub(crate) fn queued(
        &mut self,
        now: Time,
        ticket: u64,
        position: u64,
        since: u64,
        request: &Arc<Request>,
    ) -> WaiterAction {
        if !matches!(self.stage, Stage::Asking) {
            return self.abandon();
        }
        (self.ticket, self.position, self.since, self.queued_at) =
            (ticket, Some(position), since, now);
        match self.noted.take() {
            Some(notice) => self.accept(notice, now, request),
            None => {
                self.stage = Stage::Queued;
                WaiterAction::Nothing
            }
        }
    }

    /// The answer to a request of this token: it is the owner.
    pub(crate) fn answered(
        &mut self,
        notice: GrantNotice,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        match self.stage {
            Stage::Asking => self.accept(notice, now, request),
            Stage::Ended | Stage::Failed(_) => self.abandon(),
            _ => WaiterAction::Nothing,
        }
    }

    /// The news came from elsewhere: a message, a sync, somebody else's release.
    pub(crate) fn heard(
        &mut self,
        notice: GrantNotice,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        if notice.grant.token != self.token {
            // It took a new token meanwhile.
            return WaiterAction::Abandon {
                token: notice.grant.token,
                not_after: 0,
            };
        }
        match self.stage {
            // R8: what the request in flight will say decides.
            Stage::Asking => {
                self.noted = Some(notice);
                WaiterAction::Nothing
            }
            Stage::Queued | Stage::Gone => self.accept(notice, now, request),
            Stage::Confirming(_) | Stage::Granted(_) | Stage::Claimed => WaiterAction::Nothing,
            Stage::Failed(_) | Stage::Ended => self.abandon(),
        }
    }

    /// No answer came to the request in flight, which can take the token until `not_after`. A grant that
    /// was heard of meanwhile settles it.
    pub(crate) fn unanswered(
        &mut self,
        not_after: u64,
        now: Time,
        request: &Arc<Request>,
    ) -> WaiterAction {
        self.not_after = self.not_after.max(not_after);
        match (&self.stage, self.noted.take()) {
            (Stage::Asking, Some(notice)) => self.accept(notice, now, request),
            (Stage::Ended | Stage::Failed(_), _) => self.abandon(),
            _ => WaiterAction::Nothing,
        }
    }

    fn abandon(&self) -> WaiterAction {
        WaiterAction::Abandon {
            token: self.token,
            not_after: self.not_after,
        }
    }

    fn accept(&mut self, notice: GrantNotice, now: Time, request: &Arc<Request>) -> WaiterAction {
        self.position = None;
        // R12: never dropped on the estimate alone; what is left must be worth having.
        match notice.deadline {
            Some(deadline) if deadline - now >= request.ttl / 2 => {
                self.hold(notice, deadline, request)
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
        request: &Arc<Request>,
    ) -> WaiterAction {
        let lease = Lease::new(Arc::clone(request), &notice.grant, notice.granted, deadline);
        let lease = Arc::new(lease.after_waiting().not_after(self.not_after));
        self.stage = Stage::Granted(Arc::clone(&lease));
        WaiterAction::Keep(lease)
    }

    /// The renewal that a grant in doubt was asked for succeeded.
    pub(crate) fn confirmed(
        &mut self,
        sent: Time,
        left: Duration,
        fence: u64,
        request: &Arc<Request>,
    ) -> WaiterAction {
        match self.stage {
            Stage::Confirming(GrantNotice {
                mut grant,
                deadline,
                granted,
            }) => {
                if fence != grant.fence {
                    // Redis went back to an older copy, where it still waited, and granted it once more.
                    (grant.fence, grant.previous) = (fence, PreviousHolder::Unknown);
                }
                let notice = GrantNotice {
                    grant,
                    deadline,
                    granted: granted.min(sent),
                };
                self.hold(notice, deadline_from_reply(sent, left), request)
            }
            Stage::Failed(_) | Stage::Ended => self.abandon(),
            _ => WaiterAction::Nothing,
        }
    }

    /// Redis does not know the token. Only a place that stood in the queue before Redis was asked is gone:
    /// otherwise its own request may have come later.
    pub(crate) fn absent(&mut self, token: Token, asked: Time) -> WaiterAction {
        let gone = match self.stage {
            Stage::Queued => self.queued_at <= asked,
            Stage::Confirming(_) => true,
            _ => false,
        };
        if !gone || self.token != token {
            return WaiterAction::Nothing;
        }
        self.stage = Stage::Gone;
        self.position = None;
        WaiterAction::Requeue
    }

    /// The unclaimed lease was lost, or has too little time left.
    pub(crate) fn lost(&mut self, lease: &Arc<Lease>) -> WaiterAction {
        match &self.stage {
            Stage::Granted(held) if Arc::ptr_eq(held, lease) => {
                let grant = Grant {
                    token: lease.token,
                    fence: lease.fence,
                    granted_at: 0,
                    left: Duration::ZERO,
                    previous: lease.previous,
                };
                // What the renewal confirms will be another lease.
                lease.disown();
                self.stage = Stage::Confirming(GrantNotice {
                    grant,
                    deadline: None,
                    granted: Time::NEVER,
                });
                WaiterAction::Confirm
            }
            _ => WaiterAction::Nothing,
        }
    }

    /// Whether a place that stood in the queue at `asked` was enqueued under another row of stamps.
    pub(crate) fn is_suspect(&self, since: u64, asked: Time) -> bool {
        matches!(self.stage, Stage::Queued) && self.queued_at <= asked && self.since != since
    }

    /// Whether a place that stood in the queue at `asked` has had its turn: the news of a grant was missed, if it does not
    /// come soon.
    pub(crate) fn was_served(&self, ticket: u64, asked: Time) -> bool {
        matches!(self.stage, Stage::Queued) && self.queued_at <= asked && self.ticket <= ticket
    }

    /// Redis knows the token.
    pub(crate) fn present(&mut self, token: Token, since: u64) {
        if self.token == token {
            self.since = since;
        }
    }

    pub(crate) fn served(&mut self, ticket: u64) {
        if matches!(self.stage, Stage::Queued) {
            self.position = Some(self.ticket.saturating_sub(ticket).max(1));
        }
    }

    /// R4: another attempt has another token.
    pub(crate) fn restart(&mut self, token: Token) -> bool {
        if !matches!(self.stage, Stage::Gone | Stage::Asking) {
            return false;
        }
        self.stage = Stage::Asking;
        (self.token, self.noted, self.first_sent, self.not_after) = (token, None, None, 0);
        true
    }

    /// What is left of a token that takes no further part, if a request of it had no answer (R7).
    pub(crate) fn in_doubt(&self) -> WaiterAction {
        if self.not_after > 0 {
            self.abandon()
        } else {
            WaiterAction::Nothing
        }
    }

    /// The token as it was sent, to be given back whatever became of it.
    pub(crate) fn obsolete(&self) -> WaiterAction {
        self.abandon()
    }

    /// Before the request that leaves the queue is sent. False if there is nothing to leave, or a request
    /// is in flight whose sender sees to it.
    pub(crate) fn withdraw(&mut self) -> bool {
        let queued = matches!(self.stage, Stage::Queued);
        if queued {
            self.stage = Stage::Asking;
        }
        queued
    }

    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Asking)
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued)
    }

    pub(crate) fn is_confirming(&self) -> bool {
        matches!(self.stage, Stage::Confirming(_))
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Claimed | Stage::Ended | Stage::Failed(_))
    }

    /// Ended without its lock.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.stage, Stage::Ended | Stage::Failed(_))
    }

    pub(crate) fn position(&self) -> Option<u64> {
        if self.is_ended() { None } else { self.position }
    }

    /// The waiter looks. A lease with less than half of its time left is confirmed first, so that nobody
    /// who slept through his turn walks off with what has lapsed.
    pub(crate) fn claim(&mut self, now: Time, request: &Arc<Request>) -> TakeGrant {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Granted(lease) => {
                if lease.is_held(now) && lease.remaining(now) >= request.ttl / 2 {
                    self.stage = Stage::Claimed;
                    return TakeGrant::Taken(lease);
                }
                self.stage = Stage::Granted(Arc::clone(&lease));
                match self.lost(&lease) {
                    WaiterAction::Confirm => TakeGrant::Confirm,
                    _ => TakeGrant::NotYet,
                }
            }
            // It stays, for whoever waits here once more.
            Stage::Failed(error) => {
                let told = error.repeat();
                self.stage = Stage::Failed(error);
                TakeGrant::Failed(told)
            }
            other => {
                self.stage = other;
                TakeGrant::NotYet
            }
        }
    }

    /// Nobody waits here any more.
    pub(crate) fn give_up(&mut self) -> WaiterAction {
        if matches!(self.stage, Stage::Claimed) {
            return WaiterAction::Nothing;
        }
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Queued | Stage::Confirming(_) => self.abandon(),
            Stage::Granted(lease) => {
                // R14: off the schedule before the release is sent.
                lease.disown();
                self.abandon()
            }
            // An earlier request of the token had no answer (R7).
            Stage::Asking | Stage::Gone if self.not_after > 0 => self.abandon(),
            // Whoever sent the request that is in flight sees that the place has ended.
            Stage::Asking | Stage::Gone | Stage::Claimed | Stage::Failed(_) | Stage::Ended => {
                WaiterAction::Nothing
            }
        }
    }

    /// As [`Place::give_up`], with the reason for the waiter.
    pub(crate) fn fail(&mut self, error: Error) -> WaiterAction {
        if self.is_ended() {
            return WaiterAction::Nothing;
        }
        let action = self.give_up();
        self.stage = Stage::Failed(error);
        action
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::options::LockOptions;
    use crate::script::LockSpec;

    /// A second copy of the request may still be on its way, and what came of the first could be over when it arrives.
    #[test]
    fn r8_news_of_a_grant_is_noted_and_counts_when_its_request_is_answered() {
        let key = Key::new("fairlock", "a").expect("a good name");
        let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new()));
        let now = Time::from_nanos(1_000_000_000_000);
        let heard = || {
            let token = Token::new();
            let previous = PreviousHolder::Unknown;
            let grant = Grant {
                token,
                fence: 7,
                granted_at: 1,
                left: request.ttl,
                previous,
            };
            let mut state = WaiterState::new(token);
            let action = state.heard(GrantNotice::from_reply(grant, now), now, &request);
            assert!(
                matches!(action, WaiterAction::Nothing) && state.is_asking(),
                "it acted upon it"
            );
            assert!(matches!(state.claim(now, &request), TakeGrant::NotYet));
            state
        };
        assert!(
            matches!(heard().queued(now, 1, 1, 1, &request), WaiterAction::Keep(lease) if lease.fence == 7)
        );
        assert!(
            matches!(heard().unanswered(1, now, &request), WaiterAction::Keep(lease) if lease.fence == 7)
        );
        // Who gave up meanwhile wants none of it.
        let mut state = heard();
        assert!(matches!(state.give_up(), WaiterAction::Nothing));
        assert!(matches!(
            state.unanswered(1, now, &request),
            WaiterAction::Abandon { .. }
        ));
    }

    /// As after a failover to a copy in which it still waited: others may have held the lock in between.
    #[test]
    fn a_grant_that_is_confirmed_under_another_fence_is_another_grant() {
        let key = Key::new("fairlock", "a").expect("a good name");
        let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new()));
        let now = Time::from_nanos(1_000_000_000_000);
        for (fence, previous) in [(7, PreviousHolder::Released), (9, PreviousHolder::Unknown)] {
            let token = Token::new();
            let grant = Grant {
                token,
                fence: 7,
                granted_at: 1,
                left: Duration::ZERO,
                previous: PreviousHolder::Released,
            };
            let mut state = WaiterState::new(token);
            assert!(matches!(
                state.answered(GrantNotice::from_reply(grant, now), now, &request),
                WaiterAction::Confirm
            ));
            match state.confirmed(now, request.ttl, fence, &request) {
                WaiterAction::Keep(lease) => {
                    assert_eq!((lease.fence, lease.previous), (fence, previous))
                }
                _ => panic!("it is confirmed, and so held"),
            }
        }
    }
}
