//! The state of a name: what a record says, as a value for users.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::key::Key;
use crate::kind::Kind;
use crate::loss::PreviousHolder;
use crate::script::{Family, InspectedHolder, Inspection, Requester};

/// Stands in a record in place of the manager while a lock is detached.
const NO_MANAGER: &str = "-";

/// The most waiters, and the most holders, that a [`LockInfo`] lists.
pub(super) const MAX_SHOWN: usize = 1000;

/// The state of a name that is held, cooling or lapsed, or that somebody waits for.
///
/// # Serialized form
///
/// With the feature `serde`, this and its parts implement `Serialize`. So do
/// [`Loss`](crate::Loss) and [`Stats`](crate::stats::Stats). The form is stable:
///
/// - Fields and variants have their names here, in snake_case. A variant with fields is an object
///   with one field: `{"semaphore": {"permits": 3}}`. One without is a text: `"mutex"`.
/// - Durations are seconds, and times are seconds since the Unix epoch, by the server's clock. Both
///   are numbers with a fraction, in whole microseconds.
/// - An absent value is `null`.
/// - A later version may add fields and variants. A reader should ignore fields that it does not know.
///
/// ```json
/// {
///     "name": "customer:ann", "seen_at": 1700000003.5, "kind": "mutex", "state": "held",
///     "fence": 1700000000123456,
///     "holder": null, "holders": [], "lapsed": [], "time_left": 9.5, "waiters": 1,
///     "queue": [{
///         "manager": "1f0c", "host": "web-1", "pid": 4711, "thread": "main",
///         "thread_id": 4711, "label": "nightly", "since": 1700000001.25, "ttl": 10.0,
///         "fixed_lease": false, "fence": null, "permits": 1, "shared": false,
///         "lapsed_for": null, "last_heard": 0.25, "hands_over": false, "keeps": false
///     }],
///     "previous_holder": "released", "served": 17
/// }
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(
    all(feature = "serde", feature = "unstable-servers"),
    derive(serde::Deserialize)
)]
pub struct LockInfo {
    /// The name.
    pub name: Arc<str>,
    /// When Redis looked, by the server's clock. A holder has held the lock for `seen_at` minus
    /// [`since`](Party::since). Do not subtract this machine's clock, which may be off by hours.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::since_epoch"))]
    pub seen_at: SystemTime,
    /// The kind of lock that it is used as.
    pub kind: Kind,
    /// Whether it is held, detached, cooling, lapsed or free.
    pub state: LockState,
    /// The fence of the newest grant. For a reader/writer lock: of the newest writer, which its
    /// readers have too.
    pub fence: u64,
    /// The holder, or the last holder while the name cools or after it lapsed. If there are
    /// several, one of them, and one that has not lapsed if there is one.
    pub holder: Option<Party>,
    /// The holders, and those for which the name cools, in no particular order. Each of them has taken
    /// the lock, or its permits, from others.
    pub holders: Vec<Party>,
    /// The holders that [lapsed](Party::lapsed_for), in no particular order. With
    /// [`holders`](LockInfo::holders) together, at most 1,000 are shown.
    pub lapsed: Vec<Party>,
    /// How long the lease or the cooling still lasts if nothing happens, or how long a detached lock
    /// can still be attached. If there are several, the
    /// longest. Zero if nobody holds it and it does not cool.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub time_left: Duration,
    /// How many waiters there are. Includes waiters that died, or that left without telling Redis.
    pub waiters: u64,
    /// The first waiters, in the order in which Redis will serve them. At most 1,000.
    pub queue: Vec<Party>,
    /// How the last holder ended, as far as Redis knows. While the name is held, that is the holder
    /// before. While it cools or after it lapsed, that is the [`holder`](LockInfo::holder).
    ///
    /// `Lapsed` and `Forced` stay until a holder releases the lock properly. The end of a reader
    /// changes nothing.
    pub previous_holder: PreviousHolder,
    /// How many places in the queue have been served: the number of the place that was served last.
    /// While there is a queue, each hand-over adds one, and so does each place before it whose waiter
    /// has left or died. A lock that is taken without waiting adds nothing.
    ///
    /// 0 without a queue: nobody has waited yet, Redis has lost the queue, or it is a lock of a
    /// [quorum](crate::endpoint::Endpoint::quorum).
    pub served: u64,
}

/// Whether a name is held, detached, cooling, lapsed or free.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(
    all(feature = "serde", feature = "unstable-servers"),
    derive(serde::Deserialize)
)]
pub enum LockState {
    /// Somebody holds it. Other holders may have [lapsed](LockInfo::lapsed).
    Held,
    /// Its guard has [detached](crate::LockGuard::detach) it, and nobody has attached it yet. No process
    /// holds it. [`time_left`](LockInfo::time_left) says for how long it can still be attached, and
    /// [`holder`](LockInfo::holder) which thread has detached it.
    Detached,
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
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(
    all(feature = "serde", feature = "unstable-servers"),
    derive(serde::Deserialize)
)]
pub struct Party {
    /// The random id of its manager. `-` for the holder of a lock that is
    /// [detached](LockState::Detached), which is then the thread that detached it.
    pub manager: String,
    /// The name of the host.
    pub host: String,
    /// The id of the process on that host.
    pub pid: u32,
    /// The name of the thread that asked for the lock. `-` if it has none.
    pub thread: String,
    /// The number of that thread. On Linux the kernel's, as `top -H` and gdb show it; elsewhere a
    /// number within the process.
    pub thread_id: u32,
    /// The label from [`LockOptions::label`](crate::LockOptions::label).
    pub label: String,
    /// Since when it holds the lock or waits, by the server's clock.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::since_epoch"))]
    pub since: SystemTime,
    /// The ttl, or the length of the fixed lease.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub ttl: Duration,
    /// Whether its lease is fixed: it ends by itself, and no thread renews it.
    pub fixed_lease: bool,
    /// The fence under which it holds the lock. `None` while it waits.
    pub fence: Option<u64>,
    /// How many permits of a semaphore it holds, held until it lapsed, or asks for. 1 for any other
    /// kind, including a writer.
    pub permits: u32,
    /// Whether it holds the lock, or asks for it, as a reader: beside other readers. `false` for a
    /// writer, and for any other kind.
    pub shared: bool,
    /// How long ago its lease ended without a release, by the server's clock. `None` while it
    /// holds, cools or waits.
    ///
    /// A lapsed holder is shown until somebody takes the lock, or its permits. A semaphore or a
    /// reader/writer lock shows it for longer: until a guard releases properly, but no longer than
    /// Redis remembers it, which is one ttl and the time to the next request for the name. From
    /// then on this counts from the moment when somebody noticed the lapse.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::optional"))]
    pub lapsed_for: Option<Duration>,
    /// For a waiter: how long ago its process last checked this name, by the server's clock. A live
    /// process does so once per check period (1 s by default), as long as it can reach Redis. If this
    /// is longer than the [`horizon`](crate::Builder::horizon) of that process, it died, is stopped or
    /// cut off, or Redis was away.
    ///
    /// `None` for a holder, and for a waiter whose process counts as dead since a lease of it lapsed.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds::optional"))]
    pub last_heard: Option<Duration>,
    /// Whether its process may pass the lock from guard to guard without Redis: by
    /// [`local_handovers`](crate::LockOptions::local_handovers), or since it [keeps](Party::keeps) it. Then
    /// `thread`, `thread_id` and `label` are those of the first guard. Another one may have the lock by
    /// now.
    pub hands_over: bool,
    /// For a holder: whether its process keeps the lock after a guard, for its next one, until somebody
    /// else wants it. So perhaps no guard has it at this moment. `false` for a waiter.
    pub keeps: bool,
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
        let (lapsed, holders): (Vec<Party>, Vec<Party>) = seen
            .holders
            .iter()
            .filter_map(|holder| Party::of_holder(holder, &kind))
            .partition(|holder| holder.lapsed_for.is_some());
        let holder = holders.first().or(lapsed.first()).cloned();
        // Nobody may have noticed the lapse yet, so the record may not say it. A reader leaves
        // nothing half done.
        let is_half_done = lapsed.iter().any(|holder| !holder.shared);
        // hold_at_least may last for longer than a detached lock is valid.
        let valid_for = holder.as_ref().and_then(|holder| valid_for(holder, &seen));
        let left = seen.holders.iter().map(|holder| holder.left).max();
        let (state, time_left) = match (state, valid_for) {
            (LockState::Held, Some(Duration::ZERO)) => (LockState::Cooling, left),
            (LockState::Held, Some(valid)) => (LockState::Detached, left.min(Some(valid))),
            _ => (state, left),
        };
        LockInfo {
            name: key.name,
            seen_at: server_time(seen.seen_at),
            state,
            fence: seen.fence,
            holder,
            holders,
            lapsed,
            time_left: time_left.unwrap_or_default(),
            waiters: seen.waiters,
            queue: seen
                .queue
                .iter()
                .filter_map(|waiter| {
                    Some(Party {
                        last_heard: waiter.last_heard,
                        keeps: false,
                        ..Party::parse(&waiter.request, &kind)?
                    })
                })
                .collect(),
            previous_holder: if is_half_done {
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
        let (shared, permits) = if holder.lapsed_for.is_some() {
            (party.shared, party.permits)
        } else {
            use_of(kind, holder.permits)
        };
        Some(Party {
            since: server_time(holder.granted_at),
            fence: Some(holder.fence),
            permits,
            shared,
            lapsed_for: holder.lapsed_for,
            keeps: party.keeps && !holder.cools,
            ..party
        })
    }

    fn parse(request: &str, kind: &Kind) -> Option<Party> {
        let requester = Requester::read(request, family_of(kind))?;
        let (params, origin) = (requester.params, requester.params.origin);
        let (shared, permits) = use_of(kind, params.permits);
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
            permits,
            shared,
            lapsed_for: None,
            last_heard: None,
            hands_over: params.hands_over(),
            keeps: params.keeps,
        })
    }
}

/// Whether these permits of the script are those of a reader, and how many permits of a semaphore they
/// are: 1 for any other kind.
fn use_of(kind: &Kind, permits: u32) -> (bool, u32) {
    match kind {
        Kind::Semaphore { .. } => (false, permits),
        Kind::RwLock => (permits == 1, 1),
        Kind::Mutex | Kind::Other(_) => (false, 1),
    }
}

/// For how long a detached lock can still be attached. `None` for a holder that is a guard.
fn valid_for(holder: &Party, seen: &Inspection) -> Option<Duration> {
    let ends = holder.since + holder.ttl;
    let left = ends.duration_since(server_time(seen.seen_at));
    (holder.manager == NO_MANAGER).then(|| left.unwrap_or_default())
}

fn family_of(kind: &Kind) -> Family {
    match kind {
        Kind::Semaphore { .. } | Kind::RwLock => Family::Permit,
        _ => Family::Mutex,
    }
}

fn server_time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
