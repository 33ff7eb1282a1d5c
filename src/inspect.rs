//! Shows who holds a lock and who waits for it, and takes a lock away by force.

mod display;
pub(crate) mod list;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::{Access, Kind};
use crate::manager::LockManager;
use crate::script::{
    Call, Family, InspectedHolder, Inspection, LockSpec, Mode, Outcome, Page, Token, Verb,
};

/// The most waiters that [`LockInfo::queue`] lists.
pub const MAX_WAITERS_SHOWN: usize = 1000;

/// The state of a name that is held, cooling or lapsed, or that somebody waits for.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// The name.
    pub name: Arc<str>,
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
    pub time_left: Duration,
    /// How many waiters there are. Includes waiters that died, or that left without telling Redis.
    pub waiters: u64,
    /// The first waiters, in the order in which Redis will serve them. At most
    /// [`MAX_WAITERS_SHOWN`].
    pub queue: Vec<Party>,
}

/// Whether a name is held, cooling, lapsed or free.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockState {
    /// Somebody holds it. Of several holders, some may have [lapsed](Party::lapsed_for).
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
pub struct Party {
    /// The random id of its manager.
    pub manager: String,
    /// The name of the host.
    pub host: String,
    /// The id of the process on that host.
    pub pid: u32,
    /// The name of the thread. `-` if it has none.
    pub thread: String,
    /// The label from [`LockOptions::label`](crate::LockOptions::label).
    pub label: String,
    /// Since when it holds the lock or waits, by the server's clock.
    pub since: SystemTime,
    /// The ttl, or the length of the fixed lease.
    pub ttl: Duration,
    /// The fence under which it holds the lock. `None` while it waits.
    pub fence: Option<u64>,
    /// How many permits of a semaphore it holds, held until it lapsed, or asks for. 1 for any other
    /// kind, including a writer.
    pub permits: u32,
    /// As what it holds or awaits the lock: a mutex's owner, a reader, a writer, or with permits.
    pub access: Access,
    /// How long ago its lease ended without a release, by the server's clock. `None` while it
    /// holds, cools or waits.
    ///
    /// A lapsed holder is shown until somebody takes the lock, or its permits. A semaphore or a
    /// reader/writer lock shows it for longer: until a guard releases properly, but no longer than
    /// Redis remembers it, which is one ttl and the time to the next request for the name. From
    /// then on this counts from the moment when somebody noticed the lapse.
    pub lapsed_for: Option<Duration>,
}

impl LockManager {
    /// The state of a name. `None` if it is free, its last holder released it, and nobody waits for
    /// it.
    ///
    /// Writes nothing. Blocks for at most two command timeouts, or four for a semaphore or a
    /// reader/writer lock, and two more for every 64 holders that it shows.
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
    /// Takes two more for every 64 dead waiters at the head of the queue, and for every 64 holders.
    /// If a lock has more than 64 readers, they do not lose it all in the same moment.
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

    /// What the scripts of one family say about these names. They show the holders of permits page
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
        LockInfo {
            name: key.name,
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
                .filter_map(|waiter| Party::parse(waiter, &kind))
                .collect(),
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

    /// Parses `ticket since manager ttl fixed hold host⇥pid⇥thread⇥label`. For permits their number
    /// comes before the host.
    fn parse(request: &str, kind: &Kind) -> Option<Party> {
        let weighted = matches!(kind, Kind::Semaphore { .. } | Kind::RwLock);
        let mut parts = request.splitn(if weighted { 8 } else { 7 }, ' ');
        let since = parts.nth(1)?.parse().ok()?;
        let manager = parts.next()?.to_owned();
        let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
        let mut rest = parts.skip(2);
        let permits = if weighted {
            rest.next()?.parse().ok()?
        } else {
            1
        };
        let access = Access::of(kind, permits);
        let mut label = rest.next()?.splitn(4, '\t');
        Some(Party {
            manager,
            host: label.next()?.to_owned(),
            pid: label.next()?.parse().ok()?,
            thread: label.next()?.to_owned(),
            label: label.next()?.to_owned(),
            since: server_time(since),
            ttl,
            fence: None,
            permits: access.permits(),
            access,
            lapsed_for: None,
        })
    }
}

fn server_time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
