//! A process with one waiter, as far as the protocol needs it: the decisions of the engine's
//! waiter, lease and renewal thread, as a plain value. Its times are ticks from now.

use super::record_state::{
    PERIOD, ReleaseMode, SmallAnswer, SmallGrant, SmallReply, SmallRequest, SmallToken, TTL,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ClientStage {
    #[default]
    Idle,
    /// An acquire is in flight until `due_in` is over. Then it is due again.
    Acquiring,
    Queued,
    /// Redis has lost the waiter (R4: lost places).
    PlaceLost,
    /// The request that cancels the waiter is in flight.
    Cancelling,
    /// Granted, perhaps long ago (R12: doubtful grants).
    Confirming,
    Holding,
    /// No guard has the lease, and the next one gets it.
    Kept,
    Crashed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) stage: ClientStage,
    pub(super) token: Option<SmallToken>,
    /// Until the next request of this stage is due.
    pub(super) due_in: u8,
    /// The fence of the lease.
    pub(super) fence: u32,
    /// How far behind it the fence of the guard is: which turn this is.
    pub(super) turn: u8,
    /// Others wait behind the grants up to this fence.
    pub(super) wanted_fence: u32,
    /// The time left of the lease by the client's own clock.
    pub(super) left: u8,
    /// Since the token was first sent (R6: token lifetime).
    pub(super) age: u8,
    /// The stamps under which the waiter was queued.
    pub(super) since: u32,
    /// The place may be lost, so the client must look it up.
    pub(super) must_look_up: bool,
    /// The client has begun to release all permits but one, whether Redis knows that or not.
    pub(super) downgraded: bool,
    pub(super) doubt: AcquireDoubt,
    /// A grant that came during a request (R8: grant during a request).
    pub(super) noted_grant: Option<SmallGrant>,
    pub(super) releases: Vec<PendingRelease>,
    pub(super) in_flight: Vec<InFlight>,
}

/// Whether an acquire of the token went unanswered, and whether it can still take the token (R7:
/// late copies).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum AcquireDoubt {
    /// Every acquire was answered.
    #[default]
    None,
    /// An acquire went unanswered, and it is too late for it to arrive.
    Past,
    /// An acquire went unanswered and can still arrive.
    Open,
}

/// A token that the background has to release.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PendingRelease {
    pub(super) token: SmallToken,
    pub(super) fence: u32,
    pub(super) mode: ReleaseMode,
    /// A delayed acquire can still take the token (R7: late copies).
    pub(super) may_be_taken: bool,
    pub(super) due_in: u8,
}

impl PendingRelease {
    /// A client that downgrades and then releases does both, so these two are distinct.
    fn is_of(&self, token: SmallToken, mode: ReleaseMode) -> bool {
        self.token == token
            && (self.mode == ReleaseMode::Downgrade) == (mode == ReleaseMode::Downgrade)
    }
}

/// A request or its answer that takes longer than usual.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct InFlight {
    pub(super) request: SmallRequest,
    /// The request has arrived, and this is on its way back.
    pub(super) answer: Option<SmallAnswer>,
    /// The request is past its `not_after` (R5: dated requests).
    pub(super) late: bool,
    /// Nobody waits for the answer any more.
    pub(super) ignored: bool,
}

impl Client {
    /// The client's action before time goes on.
    pub(super) fn due(&self) -> Option<DueAction> {
        if self.must_look_up {
            return Some(DueAction::LookUp);
        }
        if self.stage == ClientStage::Kept && self.is_wanted() {
            return Some(DueAction::LetGo);
        }
        if self.due_in == 0 {
            match self.stage {
                ClientStage::Acquiring => return Some(DueAction::Acquire),
                ClientStage::PlaceLost => return Some(DueAction::Requeue),
                ClientStage::Queued => return Some(DueAction::Sync),
                ClientStage::Confirming => return Some(DueAction::Confirm),
                ClientStage::Holding | ClientStage::Kept => return Some(DueAction::Renew),
                ClientStage::Idle | ClientStage::Cancelling | ClientStage::Crashed => {}
            }
        }
        self.releases
            .iter()
            .position(|release| release.due_in == 0)
            .map(DueAction::Release)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !matches!(
            self.stage,
            ClientStage::Idle | ClientStage::Holding | ClientStage::Kept | ClientStage::Crashed
        )
    }

    /// Begins another attempt, with another token (R1: tokens are registered before they are sent).
    pub(super) fn begin_attempt(&mut self, token: SmallToken) -> SmallRequest {
        self.stage = ClientStage::Acquiring;
        self.token = Some(token);
        self.age = 0;
        self.since = 0;
        self.doubt = AcquireDoubt::None;
        self.noted_grant = None;
        self.send_acquire()
    }

    pub(super) fn send_acquire(&mut self) -> SmallRequest {
        self.due_in = PERIOD;
        SmallRequest::Acquire(self.own_token())
    }

    pub(super) fn own_token(&self) -> SmallToken {
        self.token
            .expect("a client that sends requests has a token")
    }

    /// Adds a release for the background. Returns its index among the pending releases.
    fn add_release(&mut self, token: SmallToken, fence: u32, mode: ReleaseMode) -> usize {
        if let Some(at) = self
            .releases
            .iter()
            .position(|release| release.is_of(token, mode))
        {
            return at;
        }
        let may_be_taken = self.token == Some(token)
            && self.doubt == AcquireDoubt::Open
            && mode != ReleaseMode::Downgrade;
        self.releases.push(PendingRelease {
            token,
            fence,
            mode,
            may_be_taken,
            due_in: 0,
        });
        self.releases.len() - 1
    }

    /// R4 (lost places), R6 (token lifetime): the client abandons a token that it will not use
    /// again.
    pub(super) fn abandon_own_token(&mut self) {
        let _ = self.add_release(self.own_token(), 0, ReleaseMode::Unused);
    }

    /// Becomes idle. The tasks of the background and the requests in flight stay.
    fn reset(&mut self) {
        *self = Client {
            releases: std::mem::take(&mut self.releases),
            in_flight: std::mem::take(&mut self.in_flight),
            ..Client::default()
        };
    }

    /// Whether others wait for its lease, as far as it knows.
    pub(super) fn is_wanted(&self) -> bool {
        self.fence <= self.wanted_fence
    }

    /// Whether it may keep its lease, or lend it: as in the line of the engine, that must have half its
    /// time left.
    pub(super) fn may_go_on(&self) -> bool {
        !self.is_wanted() && 2 * self.left >= TTL
    }

    /// A message says that others wait behind the grant with this fence. A process that neither has the
    /// lock nor asks for it forgets that.
    pub(super) fn on_wanted(&mut self, fence: u32) {
        if !matches!(self.stage, ClientStage::Idle | ClientStage::Crashed) {
            self.wanted_fence = self.wanted_fence.max(fence);
        }
    }

    /// The guard's token and fence.
    pub(super) fn guard(&self) -> Option<(SmallToken, u32)> {
        let token = self.token.filter(|_| self.stage == ClientStage::Holding);
        token.map(|token| (token, self.fence + u32::from(self.turn)))
    }

    /// Ends the lease before its release is sent (R14: release first, then send). The background
    /// repeats a release that gets no answer.
    pub(super) fn unlock(&mut self) -> SmallRequest {
        let at = self.add_release(self.own_token(), self.fence, ReleaseMode::Used(self.turn));
        self.reset();
        self.send_release(at)
    }

    /// Counts as one permit before it releases all others.
    pub(super) fn downgrade(&mut self) -> SmallRequest {
        self.downgraded = true;
        let at = self.add_release(self.own_token(), self.fence, ReleaseMode::Downgrade);
        self.send_release(at)
    }

    pub(super) fn drop_waiter(&mut self) -> SmallRequest {
        let at = self.add_release(self.own_token(), 0, ReleaseMode::Unused);
        self.reset();
        self.send_release(at)
    }

    /// The waiter's deadline has come. The reply says whether it got the lock in the last moment.
    pub(super) fn cancel(&mut self) -> SmallRequest {
        self.stage = ClientStage::Cancelling;
        self.due_in = PERIOD;
        self.must_look_up = false;
        SmallRequest::Release(self.own_token(), 0, ReleaseMode::KeepIfOwner)
    }

    pub(super) fn send_release(&mut self, at: usize) -> SmallRequest {
        let release = &mut self.releases[at];
        release.due_in = PERIOD;
        SmallRequest::Release(release.token, release.fence, release.mode)
    }

    /// The requests that the process has sent can still arrive.
    pub(super) fn crash(&mut self) {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        in_flight.retain(|flight| flight.answer.is_none());
        in_flight
            .iter_mut()
            .for_each(|flight| flight.ignored = true);
        *self = Client {
            stage: ClientStage::Crashed,
            in_flight,
            ..Client::default()
        };
    }

    /// A grant arrives, by a message or in the answer to another request.
    pub(super) fn on_grant(&mut self, grant: SmallGrant) {
        if self.stage == ClientStage::Crashed {
            return;
        }
        if self.token == Some(grant.to) {
            match self.stage {
                // R8 (grant during a request): it counts once the request in flight has its answer,
                // or fails.
                ClientStage::Acquiring | ClientStage::Cancelling => self.noted_grant = Some(grant),
                ClientStage::Queued | ClientStage::PlaceLost => self.accept_grant(grant),
                _ => {}
            }
        } else {
            // R13 (unwanted grants): nobody here wants it, so it is released.
            let _ = self.add_release(grant.to, 0, ReleaseMode::Unused);
        }
    }

    /// R12 (doubtful grants): the client first confirms a grant with less than half of its time
    /// left. The real client subtracts a margin from that time, so exactly half counts as less.
    fn accept_grant(&mut self, grant: SmallGrant) {
        self.noted_grant = None;
        self.must_look_up = false;
        if grant.waits {
            self.on_wanted(grant.fence);
        }
        if 2 * grant.left > TTL {
            self.hold(grant.fence, grant.left);
        } else {
            self.stage = ClientStage::Confirming;
            self.fence = grant.fence;
            self.due_in = 0;
        }
    }

    fn hold(&mut self, fence: u32, left: u8) {
        self.stage = ClientStage::Holding;
        self.fence = fence;
        self.left = left;
        self.due_in = PERIOD;
    }

    /// The connection of the acquire in flight is gone. The server may execute it, now or later.
    pub(super) fn on_connection_lost(&mut self) {
        self.doubt = AcquireDoubt::Open;
        self.on_no_answer();
    }

    fn on_no_answer(&mut self) {
        self.due_in = 0;
        if let Some(grant) = self.noted_grant.take() {
            self.accept_grant(grant);
        }
    }

    pub(super) fn on_answer(
        &mut self,
        request: SmallRequest,
        answer: &SmallAnswer,
    ) -> Result<(), String> {
        for grant in &answer.grants {
            self.on_grant(*grant);
        }
        let is_own = self.token == Some(request.token());
        match (request, self.stage) {
            (SmallRequest::Acquire(_), ClientStage::Acquiring) if is_own => {
                self.on_acquire_reply(request, answer)?;
            }
            (SmallRequest::Release(_, _, ReleaseMode::KeepIfOwner), ClientStage::Cancelling)
                if is_own =>
            {
                self.on_cancel_reply(&answer.reply);
            }
            (SmallRequest::Release(token, _, mode), _) => {
                self.on_release_reply(token, mode, &answer.reply);
            }
            (SmallRequest::Renew(_), ClientStage::Holding | ClientStage::Kept) if is_own => {
                match answer.reply {
                    SmallReply::Renewed { left, waits } => {
                        self.left = self.left.max(left);
                        if waits {
                            self.on_wanted(self.fence);
                        }
                    }
                    _ => self.lose_lease(),
                }
            }
            (SmallRequest::Renew(_), ClientStage::Confirming) if is_own => match answer.reply {
                SmallReply::Renewed { left, waits } => {
                    if waits {
                        self.on_wanted(self.fence);
                    }
                    self.hold(self.fence, left)
                }
                _ => self.lose_place(),
            },
            (SmallRequest::Sync(token), _) if is_own => self.on_sync_reply(token, &answer.reply),
            (SmallRequest::Lookup(_), ClientStage::Queued | ClientStage::Confirming) if is_own => {
                self.on_lookup_reply(&answer.reply);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_acquire_reply(
        &mut self,
        request: SmallRequest,
        answer: &SmallAnswer,
    ) -> Result<(), String> {
        match answer.reply {
            SmallReply::Granted(grant) => self.accept_grant(grant),
            SmallReply::Waiting { since } => {
                self.stage = ClientStage::Queued;
                self.since = since;
                self.due_in = PERIOD;
                if let Some(grant) = self.noted_grant.take() {
                    self.accept_grant(grant);
                }
            }
            SmallReply::Late => self.due_in = 0,
            _ => return Err(format!("{request:?} was answered {answer:?}")),
        }
        Ok(())
    }

    fn on_cancel_reply(&mut self, reply: &SmallReply) {
        if let SmallReply::Granted(grant) = reply {
            self.accept_grant(*grant);
            return;
        }
        // R7 (late copies): a copy of its acquire may still be under way.
        if self.doubt != AcquireDoubt::None {
            self.abandon_own_token();
        }
        self.reset();
    }

    fn on_release_reply(&mut self, token: SmallToken, mode: ReleaseMode, reply: &SmallReply) {
        self.releases
            .retain(|release| !release.is_of(token, mode) || release.may_be_taken);
        if mode == ReleaseMode::Downgrade
            && self.token == Some(token)
            && self.stage == ClientStage::Holding
            && *reply != SmallReply::Released
        {
            self.lose_lease();
        }
        // An earlier answer to this release may have been lost. It could have had the grant of our
        // waiter, so the waiter syncs.
        if self.stage == ClientStage::Queued {
            self.due_in = 0;
        }
    }

    fn on_sync_reply(&mut self, token: SmallToken, reply: &SmallReply) {
        let stage = self.stage;
        match reply {
            SmallReply::Synced {
                owner,
                ours,
                since,
                known,
                ..
            } => {
                if let Some(grant) = owner.filter(|grant| *ours || grant.to == token) {
                    self.on_grant(grant);
                }
                self.must_look_up |=
                    self.stage == ClientStage::Queued && (!known || *since != self.since);
            }
            SmallReply::Absent if stage == ClientStage::Queued => self.lose_place(),
            SmallReply::Late if stage == ClientStage::Queued => self.due_in = 0,
            _ => {}
        }
    }

    fn on_lookup_reply(&mut self, reply: &SmallReply) {
        match reply {
            SmallReply::Present {
                waits: true, since, ..
            } => self.since = *since,
            // It was granted, and the message was lost. The answer to a sync has the fence.
            SmallReply::Present { owns: true, .. } if self.stage == ClientStage::Queued => {
                self.due_in = 0;
            }
            SmallReply::Present { owns: false, .. } => self.lose_place(),
            _ => {}
        }
    }

    fn lose_place(&mut self) {
        self.stage = ClientStage::PlaceLost;
        self.due_in = 0;
        self.must_look_up = false;
    }

    /// A guard has lost its lock, or the process one that it kept. It abandons the token.
    fn lose_lease(&mut self) {
        let mode = match self.stage {
            ClientStage::Kept => ReleaseMode::Used(self.turn),
            _ => ReleaseMode::Lost(self.turn),
        };
        let _ = self.add_release(self.own_token(), self.fence, mode);
        self.reset();
    }

    pub(super) fn tick(&mut self) {
        let request_was_in_flight = self.due_in > 0;
        self.due_in = self.due_in.saturating_sub(1);
        self.age = if self.token.is_some() {
            (self.age + 1).min(TTL)
        } else {
            0
        };
        if self.doubt == AcquireDoubt::Open {
            self.doubt = AcquireDoubt::Past;
        }
        if let Some(grant) = &mut self.noted_grant {
            grant.left = grant.left.saturating_sub(1);
        }
        for release in &mut self.releases {
            release.may_be_taken = false;
            release.due_in = release.due_in.saturating_sub(1);
        }
        self.in_flight.retain(|flight| flight.answer.is_none());
        for flight in &mut self.in_flight {
            flight.late = true;
            flight.ignored = true;
        }
        match self.stage {
            ClientStage::Holding | ClientStage::Kept => {
                self.left -= 1;
                if self.left == 0 {
                    self.lose_lease();
                }
            }
            ClientStage::Acquiring if request_was_in_flight => {
                self.doubt = AcquireDoubt::Past;
                self.on_no_answer();
            }
            ClientStage::Cancelling => {
                self.on_no_answer();
                if self.stage == ClientStage::Cancelling {
                    self.abandon_own_token();
                    self.reset();
                }
            }
            _ => {}
        }
    }
}

/// A client's action before time goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueAction {
    Acquire,
    Requeue,
    Sync,
    LookUp,
    Confirm,
    Renew,
    /// Others want the lock that it keeps.
    LetGo,
    /// The index of a pending release.
    Release(usize),
}
