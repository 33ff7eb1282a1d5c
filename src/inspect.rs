//! Shows who holds a lock and who waits for it, takes a lock away by force, and deletes a name.

mod display;
pub(crate) mod list;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::{Access, Kind};
use crate::loss::PreviousHolder;
use crate::manager::LockManager;
use crate::script::{
    Call, Family, InspectedHolder, Inspection, LockSpec, Mode, Outcome, Page, Requester, Token,
    Verb,
};

/// The most waiters that [`LockInfo::queue`] lists.
pub const MAX_WAITERS_SHOWN: usize = 1000;

/// The state of a name that is held, cooling or lapsed, or that somebody waits for.
///
/// # Serialized form
///
/// With the feature `serde`, this and its parts implement `Serialize` and `Deserialize`. So do
/// [`Loss`](crate::Loss), [`Stats`](crate::Stats) and [`Shutdown`](crate::Shutdown). The form is
/// stable:
///
/// - Fields and variants have their names here, in snake_case. A variant with fields is an object
///   with one field: `{"semaphore": {"permits": 3}}`. One without is a text: `"mutex"`.
/// - Durations are seconds, and times are seconds since the Unix epoch, by the server's clock. Both
///   are numbers with a fraction, in whole microseconds. The times of a
///   [`Histogram`](crate::Histogram) have nanoseconds.
/// - An absent value is `null`.
/// - A later version may add fields and variants. Unknown fields are ignored. A field that was added
///   may be missing, and then has its default. An unknown variant is an error.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// let json = r#"{
///     "name": "customer:ann", "seen_at": 1700000003.5, "kind": "mutex", "state": "held",
///     "fence": 1700000000123456,
///     "holder": null, "holders": [], "time_left": 9.5, "waiters": 1,
///     "queue": [{
///         "manager": "1f0c", "host": "web-1", "pid": 4711, "thread": "main",
///         "thread_id": 4711, "label": "nightly", "since": 1700000001.25, "ttl": 10.0,
///         "fixed_lease": false, "fence": null, "permits": 1, "access": "owner",
///         "lapsed_for": null, "last_heard": 0.25
///     }],
///     "previous_holder": "released", "served": 17
/// }"#;
/// let info: fairlock::LockInfo = serde_json::from_str(json).unwrap();
/// assert_eq!(info.time_left.as_millis(), 9500);
/// # }
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockInfo {
    /// The name.
    pub name: Arc<str>,
    /// When Redis looked, by the server's clock. A holder has held the lock for `seen_at` minus
    /// [`since`](Party::since). Do not subtract this machine's clock, which may be off by hours.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::since_epoch"))]
    pub seen_at: SystemTime,
    /// The kind of lock that it is used as.
    pub kind: Kind,
    /// Whether it is held, cooling, lapsed or free.
    pub state: LockState,
    /// The fence of the newest grant. For a reader/writer lock: of the newest writer, which its
    /// readers have too.
    pub fence: u64,
    /// The holder, or the last holder while the name cools or after it lapsed. If there are
    /// several, one of them, and one that has not lapsed if there is one.
    pub holder: Option<Party>,
    /// All holders, those for which the name cools, and those that
    /// [lapsed](Party::lapsed_for). First those that have not lapsed; otherwise in no particular
    /// order. At most [`MAX_WAITERS_SHOWN`].
    pub holders: Vec<Party>,
    /// How long the lease or the cooling still lasts if nothing happens. If there are several, the
    /// longest. Zero if nobody holds it and it does not cool.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub time_left: Duration,
    /// How many waiters there are. Includes waiters that died, or that left without telling Redis.
    pub waiters: u64,
    /// The first waiters, in the order in which Redis will serve them. At most
    /// [`MAX_WAITERS_SHOWN`].
    pub queue: Vec<Party>,
    /// How the last holder ended, as far as Redis knows. While the name is held, that is the holder
    /// before. While it cools or after it lapsed, that is the [`holder`](LockInfo::holder).
    ///
    /// `Lapsed` and `Forced` stay until a holder releases the lock properly. The end of a reader
    /// changes nothing.
    #[cfg_attr(feature = "serde", serde(default))]
    pub previous_holder: PreviousHolder,
    /// How many places in the queue have been served: the number of the place that was served last.
    /// While there is a queue, each hand-over adds one, and so does each place before it whose waiter
    /// has left or died. A lock that is taken without waiting adds nothing.
    ///
    /// 0 without a queue: nobody has waited yet, Redis has lost the queue, or it is a lock of a
    /// [`Quorum`](crate::Quorum).
    #[cfg_attr(feature = "serde", serde(default))]
    pub served: u64,
}

/// Whether a name is held, cooling, lapsed or free.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum LockState {
    /// Somebody holds it. If there are several holders, some may have [lapsed](Party::lapsed_for).
    Held,
    /// It was released, but [`hold_at_least`](crate::LockOptions::hold_at_least) keeps it taken.
    Cooling,
    /// The lease of its last holder is over, and was never released: the holder crashed, or cannot
    /// reach Redis. [`Party::lapsed_for`] says since when. Nobody has taken it since, and everybody
    /// can. Until somebody does, a holder that is still alive may renew its lease.
    Lapsed,
    /// It is free. The first live waiter gets it at its next check.
    Free,
}

/// A holder of a lock, or a waiter.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Party {
    /// The random id of its manager.
    pub manager: String,
    /// The name of the host.
    pub host: String,
    /// The id of the process on that host.
    pub pid: u32,
    /// The name of the thread that asked for the lock. `-` if it has none.
    pub thread: String,
    /// The number of that thread. On Linux the kernel's, as `top -H` and gdb show it; elsewhere a
    /// number within the process. `None` if an older version of this crate asked.
    #[cfg_attr(feature = "serde", serde(default))]
    pub thread_id: Option<u32>,
    /// The label from [`LockOptions::label`](crate::LockOptions::label).
    pub label: String,
    /// Since when it holds the lock or waits, by the server's clock.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::since_epoch"))]
    pub since: SystemTime,
    /// The ttl, or the length of the fixed lease.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub ttl: Duration,
    /// Whether its lease is fixed: it ends by itself, and no thread renews it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fixed_lease: bool,
    /// The fence under which it holds the lock. `None` while it waits.
    pub fence: Option<u64>,
    /// How many permits of a semaphore it holds, held until it lapsed, or asks for. 1 for any other
    /// kind, including a writer.
    pub permits: u32,
    /// How it holds the lock, or asks for it: as a mutex's owner, a reader, a writer, or with
    /// permits.
    pub access: Access,
    /// How long ago its lease ended without a release, by the server's clock. `None` while it
    /// holds, cools or waits.
    ///
    /// A lapsed holder is shown until somebody takes the lock, or its permits. A semaphore or a
    /// reader/writer lock shows it for longer: until a guard releases properly, but no longer than
    /// Redis remembers it, which is one ttl and the time to the next request for the name. From
    /// then on this counts from the moment when somebody noticed the lapse.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::seconds::optional"))]
    pub lapsed_for: Option<Duration>,
    /// For a waiter: how long ago its process last checked this name, by the server's clock. A live
    /// process does so once per check period (1 s by default), as long as it can reach Redis. If this
    /// is longer than the [`horizon`](crate::Builder::horizon) of that process, it died, is stopped or
    /// cut off, or Redis was away.
    ///
    /// `None` for a holder, and for a waiter whose process counts as dead since a lease of it lapsed.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::seconds::optional"))]
    pub last_heard: Option<Duration>,
}

impl LockManager {
    /// The state of a name. `None` if it is free, its last holder released it, and nobody waits for
    /// it.
    ///
    /// Writes nothing. Blocks for at most two command timeouts, or four for a semaphore or a
    /// reader/writer lock, and two more for every 32 holders that it shows.
    ///
    /// # Errors
    /// - [`Config`](Error::Config): the name is not allowed.
    /// - [`WrongKind`](Error::WrongKind): this version does not know the kind.
    /// - [`Unavailable`](Error::Unavailable), [`Server`](Error::Server): Redis did not answer, or
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
    /// - The next guard's [`previous_holder`](crate::LockGuard::previous_holder) is `Unknown`. So a
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
    /// As [`inspect`](LockManager::inspect), and [`Server`](Error::Server) with the code `WRONGTYPE`
    /// if another program uses the key of the name. After [`Unavailable`](Error::Unavailable), Redis may
    /// have deleted the name, or may still delete it when the request arrives late.
    ///
    /// Always [`Config`](Error::Config) on a [`Quorum`](crate::Quorum), which forgets a name only by
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
        self.engine().delete(&self.key(name.as_ref())?)
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
                    waiters: MAX_WAITERS_SHOWN,
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
                if reply.next_page != 0 && shown < MAX_WAITERS_SHOWN {
                    due.push((at, reply.next_page));
                }
            }
        }
        let is_used = |seen: &Inspection| !seen.holders.is_empty() || seen.waiters > 0;
        let infos = keys.iter().zip(all).map(|(key, seen)| {
            let seen = seen?.filter(|seen| spec == LockSpec::MUTEX || is_used(seen));
            Ok(seen.map(|mut seen| {
                seen.holders.truncate(MAX_WAITERS_SHOWN);
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
        Error::WrongKind {
            is: Kind::Semaphore { .. } | Kind::RwLock,
            ..
        }
    )
}

impl LockInfo {
    pub(crate) fn new(key: Key, seen: Inspection) -> LockInfo {
        let mut live = seen.holders.iter().filter(|h| h.lapsed_for.is_none());
        let state = match live.next() {
            Some(first) if first.cools && live.all(|holder| holder.cools) => LockState::Cooling,
            Some(_) => LockState::Held,
            None if seen.holders.is_empty() => LockState::Free,
            None => LockState::Lapsed,
        };
        let kind = Kind::from_record(&seen.kind);
        let mut holders: Vec<Party> = seen
            .holders
            .iter()
            .filter_map(|holder| Party::of_holder(holder, &kind))
            .collect();
        holders.sort_by_key(|holder| holder.lapsed_for.is_some());
        // Nobody may have noticed the lapse yet, so the record may not say it. A reader leaves
        // nothing half done.
        let leaves_work = |holder: &Party| holder.access != Access::Reader;
        let lapsed = holders
            .iter()
            .any(|holder| holder.lapsed_for.is_some() && leaves_work(holder));
        LockInfo {
            name: key.name,
            seen_at: server_time(seen.seen_at),
            state,
            fence: seen.fence,
            holder: holders.first().cloned(),
            holders,
            time_left: seen
                .holders
                .iter()
                .map(|holder| holder.left)
                .max()
                .unwrap_or_default(),
            waiters: seen.waiters,
            queue: seen
                .queue
                .iter()
                .filter_map(|waiter| {
                    Some(Party {
                        last_heard: waiter.last_heard,
                        ..Party::parse(&waiter.request, &kind)?
                    })
                })
                .collect(),
            previous_holder: if lapsed {
                PreviousHolder::Lapsed
            } else {
                seen.previous
            },
            served: seen.served,
            kind,
        }
    }
}

impl Party {
    fn of_holder(holder: &InspectedHolder, kind: &Kind) -> Option<Party> {
        let party = Party::parse(&holder.request, kind)?;
        // A lapsed holder may have no permits any more: then the request says how many it had.
        let access = if holder.lapsed_for.is_some() {
            party.access
        } else {
            Access::of(kind, holder.permits)
        };
        Some(Party {
            since: server_time(holder.granted_at),
            fence: Some(holder.fence),
            permits: access.permits(),
            access,
            lapsed_for: holder.lapsed_for,
            ..party
        })
    }

    fn parse(request: &str, kind: &Kind) -> Option<Party> {
        let family = match kind {
            Kind::Semaphore { .. } | Kind::RwLock => Family::Permit,
            _ => Family::Mutex,
        };
        let requester = Requester::read(request, family)?;
        let (params, origin) = (requester.params, requester.params.origin);
        let access = Access::of(kind, params.permits);
        Some(Party {
            manager: requester.manager.to_owned(),
            host: origin.host.to_owned(),
            pid: origin.pid,
            thread: origin.thread.to_owned(),
            thread_id: origin.thread_id,
            label: origin.label.to_owned(),
            since: server_time(requester.since),
            ttl: Duration::from_millis(params.ttl_ms),
            fixed_lease: params.fixed,
            fence: None,
            permits: access.permits(),
            access,
            lapsed_for: None,
            last_heard: None,
        })
    }
}

fn server_time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
