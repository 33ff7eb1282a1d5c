//! The release of a token in the background, and when it is done.

use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::lease::{DoubtfulPass, HeldLease, loss_from_release};
use crate::error::Error;
use crate::logging::Logger;
use crate::loss::{Loss, LossReason};
use crate::script::{Call, Mode, Outcome, Token, Verb};
use crate::stats::Meter;
use crate::store::clock::Time;

/// A token that the renewal thread releases. It sends the release again and again until the token
/// is gone for good: see [`Answer::excludes_late_copies`](crate::store::Answer::excludes_late_copies).
pub(crate) struct TokenRelease {
    pub(crate) call: Call,
    pub(crate) token: Token,
    /// R7 (late copies): a reply must show a later server time than this, because until then a
    /// delayed acquire can still take the token. 0: every acquire of it was answered.
    pub(crate) not_after: u64,
    /// After this, a lease that the token had when its release began has lapsed by itself.
    pub(crate) expires: Time,
    /// The token may be queued instead of granted. A queue entry lasts for as long as other waiters
    /// of this process are queued, so only a reply ends it.
    pub(crate) may_be_queued: bool,
    /// An earlier attempt had no reply, so this one may be the second release of the token.
    pub(crate) resent: bool,
    /// Redis has answered. The remaining work is to catch late copies (R7), or to serve waiters
    /// behind many dead ones.
    pub(crate) answered: bool,
    /// A guard released the token, and believed to hold it. So it counts if the token was lost, and
    /// other callers wait for it to be gone.
    pub(crate) is_guards: bool,
    pub(crate) report_to: ReportTo,
}

/// The waiting thread for the result of a release: how the lease ended, `None` for a clean release.
pub(crate) enum ReportTo {
    Nobody,
    /// A caller that waits until there is a reply.
    UntilReply(Sender<Option<LossReason>>),
    /// A caller that waits for the first attempt only, whatever comes of it.
    UntilFirstAttempt(Sender<Option<LossReason>>),
    /// The drop of a guard that did not wait. A loss is logged.
    Log,
}

impl TokenRelease {
    /// The release of a lease that ended at `now`, or of some of its permits.
    pub(crate) fn of_lease(lease: &HeldLease, mode: Mode, now: Time) -> TokenRelease {
        let token = lease.token;
        let fence = lease.fence();
        let last = lease.last_fence(mode);
        let call = lease.request.call(Verb::Release {
            token,
            fence,
            last,
            mode,
        });
        TokenRelease {
            not_after: lease.not_after,
            ..TokenRelease::new(call, token, now + lease.request.longest())
        }
    }

    /// A pass of this lease had no answer, and the lease has ended. So the token that may own the lock
    /// now is released, too. Its secret is forgotten, so nobody has worked under it. But the guard may
    /// have lost its lock to it, in the middle of its work.
    pub(crate) fn of_doubtful_passes(lease: &HeldLease) -> Vec<TokenRelease> {
        let release = |pass: DoubtfulPass| {
            let call = lease.request.call(Verb::Release {
                token: pass.to,
                fence: 0,
                last: None,
                mode: Mode::Lost,
            });
            TokenRelease {
                not_after: pass.not_after,
                resent: true,
                ..TokenRelease::new(call, pass.to, pass.expires)
            }
        };
        let passes = lease.take_doubtful_passes();
        passes.into_iter().map(release).collect()
    }

    /// The release of a token that nobody wants. `about` names its lock.
    pub(crate) fn abandon(about: &Call, token: Token, expires: Time) -> TokenRelease {
        TokenRelease::new(abandon_call(about, token), token, expires)
    }

    fn new(call: Call, token: Token, expires: Time) -> TokenRelease {
        let is_guards = call.release_mode().is_guards();
        TokenRelease {
            call,
            token,
            is_guards,
            not_after: 0,
            expires,
            may_be_queued: false,
            resent: false,
            answered: false,
            report_to: ReportTo::Nobody,
        }
    }

    /// Whether the release ends the token, and not only some of its permits.
    pub(in crate::engine) fn ends_token(&self) -> bool {
        !matches!(self.call.release_mode(), Mode::Reduce { .. })
    }

    /// Sends the result to the caller that waits for it, if any. The first answer to a guard's
    /// release counts, if it shows a loss. A later one is about late copies (R7).
    pub(in crate::engine) fn report(&mut self, outcome: &Outcome, meter: &Meter) {
        let Verb::Release { mode, fence, .. } = self.call.verb else {
            unreachable!("a token is released by a release")
        };
        let loss = loss_from_release(mode, outcome, self.resent);
        let is_first = !std::mem::replace(&mut self.answered, true);
        // Before the caller is woken: it finds the loss counted.
        if let Some(reason) = loss.filter(|_| is_first && self.is_guards) {
            meter.on_found_lost(reason);
        }
        match std::mem::replace(&mut self.report_to, ReportTo::Nobody) {
            ReportTo::Nobody => {}
            ReportTo::Log => {
                if let Some(reason) = loss.filter(|_| self.is_guards) {
                    let lock = Arc::clone(&self.call.key.name);
                    let loss = Loss {
                        lock,
                        fence,
                        reason,
                    };
                    warn_of_drop(&self.call.key.name, &Error::Lost { loss });
                }
            }
            ReportTo::UntilReply(sender) | ReportTo::UntilFirstAttempt(sender) => {
                // The one message of this channel, which has room for it. The caller may be gone.
                let _ = sender.try_send(loss);
            }
        }
    }

    /// An attempt that was sent had no reply. A caller that waits for no more than that is woken:
    /// its channel is disconnected.
    pub(in crate::engine) fn end_first_attempt(&mut self) {
        if matches!(self.report_to, ReportTo::UntilFirstAttempt(_)) {
            self.report_to = ReportTo::Nobody;
        }
    }
}

/// The call that releases a token that nobody wants. `about` names its lock. If it has attached the
/// lock, that is detached again.
pub(in crate::engine) fn abandon_call(about: &Call, token: Token) -> Call {
    about.with(Verb::Release {
        token,
        fence: 0,
        last: None,
        mode: Mode::Unused,
    })
}

/// The guard of this lock was dropped, and the release failed, or the lock was lost before.
pub(crate) fn warn_of_drop(name: &str, error: &Error) {
    log::warn!(logger: Logger, "dropping the guard of {name:?}: {error}");
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::script::LockSpec;
    use crate::stats::Traffic;
    use crate::store::clock::Time;

    /// How many losses these answers to a release show, one after the other.
    fn losses(mode: Mode, outcomes: &[Outcome]) -> u64 {
        let token = Token::new();
        let fence = 7;
        let call = Call {
            spec: LockSpec::MUTEX,
            key: Key::new("fairlock", "k").expect("it is a name"),
            verb: Verb::Release {
                token,
                fence,
                last: None,
                mode,
            },
        };
        let meter = Meter::new();
        let mut release = TokenRelease::new(call, token, Time::NEVER);
        for outcome in outcomes {
            release.report(outcome, &meter);
        }
        meter.read(Traffic::default()).losses()
    }

    #[test]
    fn only_the_first_answer_to_a_guards_release_counts_as_a_loss() {
        use Outcome::{Already, Forced, Lapsed, Released};
        assert_eq!(losses(Mode::Used, &[Forced, Already, Lapsed]), 1);
        assert_eq!(losses(Mode::Unfinished, &[Lapsed, Lapsed]), 1);
        // Later answers are to releases that catch late copies (R7).
        assert_eq!(losses(Mode::Used, &[Released, Already]), 0);
        assert_eq!(losses(Mode::Lost, &[Lapsed]), 0, "it was counted before");
        assert_eq!(losses(Mode::Unused, &[Lapsed]), 0, "no guard had it");
    }
}
