//! How the renewal thread gives back tokens that others could not wait to see gone.

use crossbeam_channel::Sender;

use crate::engine::background::{Errand, RenewalThread, Task};
use crate::engine::release::release_loss;
use crate::loss::LossReason;
use crate::script::{Call, Mode, Token, Verb};
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// An outage adds few jobs of places to those of its beginning, since nobody takes one without a connection. Should there
/// be more errands than this, those that are older than a ttl are left to their turn, and to R13.
const MANY: usize = 1 << 14;

/// A token to be given back in the background.
pub(crate) struct Job {
    pub(crate) call: Call,
    pub(crate) token: Token,
    /// A reply must show a later server time, or a delayed acquire could still take the token (R7).
    pub(crate) not_after: u64,
    /// Past this a lease of the token has lapsed by itself.
    pub(crate) expires: Time,
    /// It may have a place instead, which lasts for as long as others of this process wait: only an answer ends it.
    pub(crate) may_stand: bool,
    pub(crate) resent: bool,
    pub(crate) tell: Option<Sender<Option<LossReason>>>,
    /// Who is told does not wait for another try.
    at_once: bool,
}

impl Job {
    pub(crate) fn new(about: &Call, token: Token, fence: u64, mode: Mode, expires: Time) -> Job {
        let call = Call {
            spec: about.spec,
            key: about.key.clone(),
            verb: Verb::Release { token, fence, mode },
        };
        Job {
            call,
            token,
            not_after: 0,
            expires,
            may_stand: false,
            resent: false,
            tell: None,
            at_once: false,
        }
    }

    pub(crate) fn until(self, not_after: u64) -> Job {
        Job { not_after, ..self }
    }

    pub(crate) fn queued(self) -> Job {
        Job {
            may_stand: true,
            ..self
        }
    }

    pub(crate) fn resent(self) -> Job {
        Job {
            resent: true,
            ..self
        }
    }

    /// Whether the token is over with this, and not only some of its permits.
    fn ends_it(&self) -> bool {
        !matches!(
            self.call.verb,
            Verb::Release {
                mode: Mode::Downgrade,
                ..
            }
        )
    }

    pub(crate) fn telling(self, tell: Sender<Option<LossReason>>) -> Job {
        Job {
            tell: Some(tell),
            ..self
        }
    }

    /// The same, for who wants to hear only of the first try.
    pub(crate) fn telling_at_once(self, tell: Sender<Option<LossReason>>) -> Job {
        Job {
            tell: Some(tell),
            at_once: true,
            ..self
        }
    }
}

/// R7: whether no copy of an acquire that was sent with this `not_after`, or 0 for none, can take anything any more. Not
/// every answer says how late it is.
pub(crate) fn settles(answer: &Answer, not_after: u64) -> bool {
    not_after == 0 || answer.reply.now.is_some_and(|server| server > not_after)
}

impl RenewalThread {
    pub(crate) fn done(&mut self, job: Job, answer: Result<Answer, StoreFault>) {
        let now = self.engine.now();
        match answer {
            Ok(answer) => {
                self.engine.note_release_answered();
                if let Some(tell) = &job.tell {
                    let _ = tell.try_send(release_loss(&answer.reply.outcome, job.resent));
                }
                if answer.reply.more {
                    self.errands
                        .put(now, Errand::Job(Job { tell: None, ..job }));
                } else if !settles(&answer, job.not_after) && now < job.expires {
                    let again = now + self.engine.config.command_timeout;
                    self.errands
                        .put(again, Errand::Job(Job { tell: None, ..job }));
                } else {
                    if job.ends_it() {
                        self.engine.waiters.forget_guarded(job.token);
                    }
                    if job.resent {
                        // The reply that was lost may have had the grant of a waiter of ours.
                        self.engine.sync_now(&job.call.key);
                    }
                }
            }
            Err(fault)
                if fault.is_transient()
                    && (now < job.expires || job.may_stand && self.errands.len() < MANY) =>
            {
                let resent = job.resent || fault.is_ambiguous();
                let was_tried = !matches!(fault, StoreFault::NotReady);
                let tell = job.tell.filter(|_| !(job.at_once && was_tried));
                // In an outage that lasts there may be many, and none is in a hurry.
                let again = if now < job.expires {
                    self.again_at(&fault)
                } else {
                    now + self.engine.config.check_period
                };
                self.errands.put(
                    again,
                    Errand::Job(Job {
                        resent,
                        tell,
                        ..job
                    }),
                );
            }
            Err(fault) => {
                if job.ends_it() {
                    self.engine.waiters.forget_guarded(job.token);
                }
                let name = &job.call.key.name;
                match job.call.verb {
                    Verb::Release {
                        mode: Mode::Used, ..
                    } => {
                        log::warn!(
                            "{name:?} could not be released and is left to its ttl: {fault}"
                        );
                    }
                    // Nobody has a lock by it, or whoever had it was told of its loss.
                    _ => log::debug!(
                        "a token of {name:?} could not be given back and is left to its ttl or its turn: {fault}"
                    ),
                }
            }
        }
    }

    /// Gives back what is still to be given back, as far as one command timeout goes.
    pub(crate) fn finish(&mut self) {
        let until = self.engine.now() + self.engine.config.command_timeout;
        loop {
            let jobs: Vec<Job> = self
                .errands
                .take_all()
                .into_iter()
                .filter_map(|errand| {
                    if let Errand::Job(job) = errand {
                        Some(job)
                    } else {
                        None
                    }
                })
                .collect();
            if jobs.is_empty() || self.engine.now() >= until {
                return;
            }
            let batch = jobs.into_iter().map(|job| {
                let call = job.call.clone();
                (Task::Job(job), call)
            });
            self.carry_out(batch.collect());
            // Rung when a connection is ready; what is not settled yet is put again at a slower pace.
            let again = self.engine.now() + self.engine.config.command_timeout / 8;
            let _ = self.engine.clock.receive(&self.waker, again.min(until));
        }
    }
}
