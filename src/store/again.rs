//! Whether a call is sent again, how often, and what stays in doubt then.
//!
//! Every place of a store that sends a caller's calls asks [`Attempts`], for each topology. That place
//! alone knows the next connection or the next node, and how much time is left: P8 (every call ends),
//! whatever stands here. The renewal thread sends its calls again by itself: its link asks [`Attempts`]
//! only whether to open the next connection at once.
//!
//! | the attempt ended, since           | and is repeated | because                                      |
//! |------------------------------------|-----------------|----------------------------------------------|
//! | its reply came too early           | always          | a call that must run before it runs again    |
//! | the peer had closed the connection | twice           | The first time retires all connections of that age. One that was being opened just then may be closed too. |
//! | no reply came in time              | once            | the connection may have died in silence      |
//! | the server refused it, not running it | three times  | it takes another form of it, or takes it soon |
//! | a node named another one           | always          | after the fifth time, there is a pause       |
//! | no node of the cluster serves it   | always          | after a pause                                |
//! | the node could not be reached      | once            | another one may own its slots soon           |

use super::{Answer, CallResult, StoreFault};

const WHEN_CLOSED: u32 = 2;
const WHEN_REFUSED: u32 = 3;
/// How often a call is sent on without a pause. Two nodes can name each other for a moment.
const SENT_ON_AT_ONCE: u32 = 5;

/// The attempts of one call, or of calls that travel together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attempts {
    closed: u32,
    refused: u32,
    sent_on: u32,
    was_silent: bool,
    was_unreached: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With a result that another attempt would have, too.
    Final,
    /// A call that must run before it is sent again behind it.
    TooEarly,
    /// The peer had closed the connection before it replied.
    Closed,
    /// A reply did not come in time: its own, or one in front of it, so that its connection was closed.
    Silent { is_closed: bool },
    /// The server refused it, and did not run it. It may take another form of it, or the same one soon.
    Refused,
    /// A node of a cluster named another node, or takes the call in another form only.
    SentOn,
    /// No node of a cluster serves the call just now.
    NotServed,
    /// A node of a cluster could not be reached, or closed the connection.
    Unreached,
}

/// The next step after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: its result stands.
    Done,
    /// Another attempt, at once.
    Again,
    /// Another attempt, at once, elsewhere: at the node that was named, or on a connection that is
    /// opened for it.
    Elsewhere,
    /// Another attempt, after a pause.
    Later,
}

impl Ending {
    /// The ending of a request with this outcome. `is_late`: the connection ended because a reply did
    /// not come in time.
    pub(super) fn of<T>(outcome: &Result<T, StoreFault>, is_late: bool) -> Ending {
        let is_closed = outcome.as_ref().is_err_and(StoreFault::is_closed);
        match (is_late, is_closed) {
            (true, _) => Ending::Silent { is_closed },
            (false, true) => Ending::Closed,
            (false, false) => Ending::Final,
        }
    }
}

impl Attempts {
    /// Those of a call that no other connection takes: its caller decides anew if it is closed.
    pub(super) fn on_one_connection() -> Attempts {
        Attempts {
            closed: WHEN_CLOSED,
            ..Attempts::default()
        }
    }

    /// The next step after an attempt that ended so. Counts it.
    pub(super) fn after(&mut self, ending: Ending) -> Next {
        match ending {
            Ending::TooEarly => Next::Again,
            Ending::Silent { .. } if !self.was_silent => {
                self.was_silent = true;
                Next::Elsewhere
            }
            Ending::Closed | Ending::Silent { is_closed: true } if self.closed < WHEN_CLOSED => {
                self.closed += 1;
                Next::Again
            }
            Ending::Refused if self.refused < WHEN_REFUSED => {
                self.refused += 1;
                Next::Again
            }
            Ending::SentOn => {
                self.sent_on += 1;
                Next::Elsewhere
            }
            Ending::NotServed => Next::Later,
            Ending::Unreached if !self.was_unreached => {
                self.was_unreached = true;
                Next::Later
            }
            _ => Next::Done,
        }
    }

    /// Whether no reply was missing so far: a connection that says nothing may be dead.
    pub(super) fn was_never_silent(&self) -> bool {
        !self.was_silent
    }

    /// Whether no connection was closed so far.
    pub(super) fn was_never_closed(&self) -> bool {
        self.closed == 0
    }

    /// How many connections were closed or silent.
    pub(super) fn ended_connections(&self) -> usize {
        self.closed as usize + usize::from(self.was_silent)
    }

    /// Whether it must not be sent on at once any more.
    pub(super) fn was_sent_on_too_often(&self) -> bool {
        self.sent_on > SENT_ON_AT_ONCE
    }
}

impl CallResult {
    /// This result of the latest attempt, joined with that of those before it.
    pub(super) fn after(self, before: Option<CallResult>) -> CallResult {
        match before {
            None => self,
            // It was not sent again.
            Some(before) if self.is_not_ready() => before,
            Some(mut before) => {
                before.take_copy(self);
                before
            }
        }
    }

    /// Takes over the result of another copy of the same call. A refused copy is gone. One without a
    /// reply, or whose reply came too early, leaves doubt.
    pub(super) fn take_copy(&mut self, next: CallResult) {
        if self.answer.as_ref().is_err_and(|f| !f.is_ambiguous()) {
            *self = next;
        } else {
            self.take_resent(next);
        }
    }

    /// Takes over the result of the same call, sent again although there was an answer. That answer
    /// may have been to a second copy.
    pub(crate) fn take_next(&mut self, next: CallResult) {
        if self.answer.as_ref().is_ok_and(|answer| answer.resent) {
            self.take_resent(next);
        } else {
            self.not_after = self.not_after.max(next.not_after);
            self.answer = next.answer;
        }
    }

    /// Takes over the result of the same call, sent again. The first copy may have been carried
    /// out, so an answer is marked as resent and a failure stays in doubt (P7).
    pub(super) fn take_resent(&mut self, next: CallResult) {
        // R7 (late copies): the later bound covers both copies.
        self.not_after = self.not_after.max(next.not_after);
        self.answer = match next.answer {
            Ok(answer) => Ok(Answer {
                resent: true,
                ..answer
            }),
            Err(fault) if fault.is_ambiguous() && !fault.is_closed() => Err(fault),
            Err(fault) => Err(StoreFault::InDoubt(Box::new(fault))),
        };
    }

    /// The connection was closed, and so was the one before it: more than one connection has come
    /// to its end.
    pub(super) fn note_closed_again(&mut self) {
        if self.answer.as_ref().is_err_and(StoreFault::is_closed) {
            let none = Err(StoreFault::NotReady);
            if let Err(fault) = std::mem::replace(&mut self.answer, none) {
                self.answer = Err(StoreFault::InDoubt(Box::new(fault)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;

    fn failed(fault: StoreFault, not_after: u64) -> CallResult {
        CallResult {
            answer: Err(fault),
            not_after,
        }
    }

    fn refused() -> StoreFault {
        StoreFault::refused("READONLY", "You can't write against a read only replica.")
    }

    /// P7 (one grant for one request): the server may have carried out the first copy.
    #[test]
    fn copy_without_a_reply_leaves_doubt() {
        let mut result = failed(StoreFault::timed_out(Step::Reply), 70);
        result.take_copy(failed(refused(), 50));
        assert!(
            matches!(result.answer, Err(StoreFault::InDoubt(_))),
            "{result:?}"
        );
        // R7 (late copies): the later bound covers both.
        assert_eq!(result.not_after, 70);
    }

    #[test]
    fn refused_copy_leaves_no_doubt() {
        let mut result = failed(refused(), 70);
        result.take_copy(failed(StoreFault::NotReady, 0));
        assert!(
            matches!(result.answer, Err(StoreFault::NotReady)),
            "{result:?}"
        );
        assert_eq!(result.not_after, 0);
    }

    #[test]
    fn call_that_is_not_sent_again_keeps_its_result() {
        let before = failed(refused(), 70);
        let result = failed(StoreFault::NotReady, 0).after(Some(before));
        let is_refused = matches!(result.answer, Err(StoreFault::Server { .. }));
        assert!(is_refused && result.not_after == 70, "{result:?}");
    }

    /// The endings that come after each other, and what follows each of them.
    #[test]
    fn attempts_of_every_ending_end() {
        use Ending::{Closed, Final, Refused, Silent, Unreached};
        use Next::{Again, Done, Elsewhere, Later};
        let [late, behind] = [false, true].map(|is_closed| Silent { is_closed });
        for (endings, follows) in [
            (&[Final][..], &[Done][..]),
            (&[Closed, Closed, Closed], &[Again, Again, Done]),
            (&[late, late], &[Elsewhere, Done]),
            (&[late, Closed, late], &[Elsewhere, Again, Done]),
            (
                &[late, behind, behind, behind],
                &[Elsewhere, Again, Again, Done],
            ),
            (
                &[Refused, Refused, Refused, Refused],
                &[Again, Again, Again, Done],
            ),
            (&[Unreached, Unreached], &[Later, Done]),
        ] {
            let mut attempts = Attempts::default();
            let next: Vec<Next> = endings.iter().map(|e| attempts.after(*e)).collect();
            assert_eq!(next, follows, "{endings:?}");
        }
    }

    #[test]
    fn call_is_sent_on_five_times_without_a_pause() {
        let mut attempts = Attempts::default();
        let sent_on = |attempts: &mut Attempts| {
            let next = attempts.after(Ending::SentOn);
            next == Next::Elsewhere && !attempts.was_sent_on_too_often()
        };
        let at_once = (0..10).filter(|_| sent_on(&mut attempts)).count();
        assert_eq!(at_once, 5);
    }
}
