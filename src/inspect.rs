//! Who holds a lock and who waits for it, as [`LockManager::inspect`] and [`LockManager::list`] show it.

mod display;
mod info;
pub(crate) mod list;

use crate::error::{Error, Misuse, Result};
use crate::key::Key;
use crate::manager::LockManager;
use crate::script::{Call, Family, Inspection, LockSpec, Mode, Outcome, Page, Token, Verb};

pub use crate::kind::Kind;
use info::MAX_SHOWN;
pub use info::{LockInfo, LockState, Party};

impl LockManager {
    /// The state of a name. `None` if it is free, its last holder released it, and nobody waits for
    /// it.
    ///
    /// Writes nothing. Blocks for at most two command timeouts, or four for a semaphore or a
    /// reader/writer lock, and two more for every 32 holders that it shows.
    ///
    /// # Errors
    /// - [`Misused`](Error::Misused): the name is not allowed, or this version does not know the kind.
    /// - [`Unavailable`](Error::Unavailable), [`Refused`](Error::Refused): Redis did not answer, or
    ///   refused.
    /// - [`Closed`](Error::Closed) in a forked child.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>> {
        let mut infos = self.inspect_all(vec![self.key(name.as_ref())?])?;
        infos.pop().unwrap_or(Ok(None))
    }

    /// Takes a lock away from its holder and hands it to the next waiter, if its fence is still
    /// `fence`.
    ///
    /// `false`: the lock is free, or its fence is another one. Then nothing changes. Also ends a
    /// cooling. The readers of a reader/writer lock share the fence of the last writer, so all of
    /// them lose the lock.
    ///
    /// The holder learns of it at its next renewal, as
    /// [`LossReason::Forced`](crate::LossReason::Forced). Until then, for up to a TTL, it may
    /// believe that it holds the lock. Only fences keep it from writing during that time. A holder
    /// with a fixed lease learns of it only when it unlocks or renews.
    ///
    /// Blocks for at most two command timeouts, or four for a semaphore or a reader/writer lock.
    /// Takes two more for every 64 dead waiters at the head of the queue, and for every 32 holders.
    /// If a lock has more than 32 readers, they do not lose it all in the same moment.
    ///
    /// # Errors
    /// As [`inspect`](LockManager::inspect).
    pub fn force_release(&self, name: impl AsRef<str>, fence: u64) -> Result<bool> {
        let key = self.key(name.as_ref())?;
        let token = Token::new();
        let (mut spec, mut page) = (LockSpec::MUTEX, Page::default());
        let mut released = false;
        loop {
            let call = Call {
                spec,
                key: key.clone(),
                verb: Verb::Release {
                    token,
                    fence,
                    last: None,
                    mode: Mode::Forced(page),
                },
            };
            let answer = self.engine().ask(&[call])?.pop();
            let answer = match answer.unwrap_or(Err(Error::Closed)) {
                Err(error) if is_permit_lock(&error) && spec == LockSpec::MUTEX => {
                    spec = LockSpec::any(Family::Permit);
                    continue;
                }
                answer => answer?,
            };
            // If the reply to the first copy was lost, the second copy finds the lock released
            // already.
            let done_before = answer.resent && answer.reply.outcome == Outcome::Already;
            released |= done_before || answer.reply.outcome == Outcome::Released;
            // One run of the script looks at one page of holders, and passes over 64 dead waiters
            // at most. If there are more before the next live waiter, only another run can serve
            // it.
            if !answer.reply.more {
                return Ok(released);
            }
            if answer.reply.next_page != 0 {
                page = Page {
                    number: page.number + 1,
                    from: answer.reply.next_page,
                };
            }
        }
    }

    /// Deletes all that Redis keeps about a name that nobody uses. It is for names that are used once,
    /// such as the name of a job, an upload or a test.
    ///
    /// You need not call it: Redis forgets a name by itself an hour after its last use. Delete a name
    /// only when nobody will use it any more:
    ///
    /// - If the first reply to a release was lost, and Redis gets the release again after this, it
    ///   answers that the lock was lost. The unlock of a guard that lost its lease before fails, too.
    /// - The next guard's [`previous_holder`](crate::Lease::previous_holder) is `Unknown`. So a
    ///   warning is deleted as well: nobody learns that an earlier holder's end was
    ///   [`Lapsed`](crate::PreviousHolder::Lapsed) or [`Forced`](crate::PreviousHolder::Forced), and
    ///   that its work may be half done.
    /// - Fences go on rising, from the server's clock. If that clock goes back afterwards, or a
    ///   failover leads to a server whose clock is behind, they fall.
    ///
    /// `true`: Redis keeps nothing about the name any more, or kept nothing before.
    ///
    /// `false`: somebody holds the name or waits for it, or it cools, or its newest fence is ahead
    /// of the server's clock. A lease that is over is not in the way: it ends here, as if somebody had
    /// asked for the lock.
    ///
    /// Blocks for at most four command timeouts. Takes two more if a lease or a waiter ends first, and
    /// two more for every 64 dead waiters at the head of the queue and for every 32 holders.
    ///
    /// # Errors
    /// As [`inspect`](LockManager::inspect), and [`Refused`](Error::Refused) with the code `WRONGTYPE`
    /// if another program uses the key of the name. After [`Unavailable`](Error::Unavailable), Redis may
    /// have deleted the name, or may still delete it when the request arrives late.
    ///
    /// Always [`Misused`](Error::Misused) on a [quorum](crate::endpoint::Endpoint::quorum), which forgets a name only by
    /// itself. A server of it that forgot a name too early could grant it under a smaller fence.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let upload = format!("upload:{}", 4711);
    /// let guard = mgr.lock(&upload)?;
    /// // ... the upload is complete, and its number is never used again.
    /// guard.unlock()?;
    /// mgr.delete(&upload)?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn delete(&self, name: impl AsRef<str>) -> Result<bool> {
        let key = self.key(name.as_ref())?;
        self.running().make_way([&key]);
        self.engine().delete(&key)
    }

    fn inspect_all(&self, keys: Vec<Key>) -> Result<Vec<Result<Option<LockInfo>>>> {
        let mut infos = self.inspect_as(LockSpec::MUTEX, &keys)?;
        // The scripts of mutexes refuse a record of the other family, whose own scripts can read
        // it.
        let others = infos
            .iter()
            .zip(&keys)
            .filter(|(info, _)| info.as_ref().is_err_and(is_permit_lock));
        let others: Vec<Key> = others.map(|(_, key)| key.clone()).collect();
        if !others.is_empty() {
            let mut answers = self
                .inspect_as(LockSpec::any(Family::Permit), &others)?
                .into_iter();
            for info in infos
                .iter_mut()
                .filter(|info| info.as_ref().is_err_and(is_permit_lock))
            {
                *info = answers.next().unwrap_or(Ok(None));
            }
        }
        Ok(infos)
    }

    /// Asks the scripts of one family about these names. They show the holders of permits page
    /// by page, so this asks again for the names with more of them.
    fn inspect_as(&self, spec: LockSpec, keys: &[Key]) -> Result<Vec<Result<Option<LockInfo>>>> {
        let mut all: Vec<Result<Option<Inspection>>> = keys.iter().map(|_| Ok(None)).collect();
        let mut due: Vec<(usize, u64)> = (0..keys.len()).map(|at| (at, 0)).collect();
        while !due.is_empty() {
            let call = |&(at, from): &(usize, u64)| Call {
                spec,
                key: keys[at].clone(),
                verb: Verb::Inspect {
                    waiters: MAX_SHOWN,
                    from,
                },
            };
            let calls: Vec<Call> = due.iter().map(call).collect();
            let replies = self.engine().ask(&calls)?;
            for ((at, _), reply) in std::mem::take(&mut due).into_iter().zip(replies) {
                let reply = match reply {
                    Ok(answer) => answer.reply,
                    Err(error) => {
                        all[at] = Err(error);
                        continue;
                    }
                };
                let Outcome::Inspection(seen) = reply.outcome else {
                    continue;
                };
                let shown = match &mut all[at] {
                    Ok(Some(earlier)) => earlier.add_page(*seen),
                    slot => {
                        let shown = seen.holders.len();
                        *slot = Ok(Some(*seen));
                        shown
                    }
                };
                if reply.next_page != 0 && shown < MAX_SHOWN {
                    due.push((at, reply.next_page));
                }
            }
        }
        let is_used = |seen: &Inspection| !seen.holders.is_empty() || seen.waiters > 0;
        let infos = keys.iter().zip(all).map(|(key, seen)| {
            let seen = seen?.filter(|seen| spec == LockSpec::MUTEX || is_used(seen));
            Ok(seen.map(|mut seen| {
                seen.holders.truncate(MAX_SHOWN);
                LockInfo::new(key.clone(), seen)
            }))
        });
        Ok(infos.collect())
    }
}

/// Whether a call for a mutex was refused because the name is a semaphore or a reader/writer lock.
fn is_permit_lock(error: &Error) -> bool {
    matches!(
        error,
        Error::Misused {
            misuse: Misuse::Kind {
                is: Kind::Semaphore { .. } | Kind::RwLock,
                ..
            },
            ..
        }
    )
}
