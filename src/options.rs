//! How a lock is taken and held.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::loss::Loss;
use crate::setting::{FIXED_LEASE, Setting, TTL};

/// A callback of [`LockOptions::on_lost`].
pub(crate) type OnLost = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How a lock is taken and held.
///
/// The manager that a builder builds has the builder's options.
/// [`LockManager::with`](crate::LockManager::with) makes a handle with other options. Options that
/// you do not set there are those of the handle on which you call it:
///
/// ```no_run
/// use std::time::Duration;
/// use fairlock::{LockManager, LockOptions};
///
/// const NIGHTLY: LockOptions = LockOptions::new()
///     .ttl(Duration::from_secs(30))
///     .max_hold(Duration::from_secs(3600));
///
/// let mgr = LockManager::builder("redis://127.0.0.1/")
///     .options(LockOptions::new().label("billing"))
///     .build()?;
/// let nightly = mgr.with(NIGHTLY); // with the label "billing", too
/// let endless = nightly.with(LockOptions::new().no_max_hold()); // with that label and that ttl
/// # let _ = endless;
/// # Ok::<(), fairlock::Error>(())
/// ```
///
/// | option | default | how to get the default back on a handle |
/// |---|---|---|
/// | [`ttl`](LockOptions::ttl) or [`fixed_lease`](LockOptions::fixed_lease) | a ttl of 10 s | `ttl(Duration::from_secs(10))` |
/// | [`max_hold`](LockOptions::max_hold) | no limit | [`no_max_hold`](LockOptions::no_max_hold) |
/// | [`hold_at_least`](LockOptions::hold_at_least) | zero | `hold_at_least(Duration::ZERO)` |
/// | [`local_handovers`](LockOptions::local_handovers) | none | `local_handovers(0)` |
/// | [`keep_idle`](LockOptions::keep_idle) | not kept | [`no_keep_idle`](LockOptions::no_keep_idle) |
/// | [`notify_wanted`](LockOptions::notify_wanted) | no | `notify_wanted(false)` |
/// | [`label`](LockOptions::label) | empty | `label("")` |
/// | [`on_lost`](LockOptions::on_lost) | no callback | [`no_on_lost`](LockOptions::no_on_lost) |
#[derive(Clone, Default)]
pub struct LockOptions {
    lease: Option<LeaseLength>,
    /// `Some(None)`: without a limit, whatever the handle below has.
    max_hold: Option<Option<Duration>>,
    hold_at_least: Option<Duration>,
    local_handovers: Option<u32>,
    /// `Some(None)`: not at all, whatever the handle below does.
    keep: Option<Option<Duration>>,
    notify_wanted: Option<bool>,
    label: Option<Arc<str>>,
    /// `Some(None)`: without a callback, whatever the handle below has.
    on_lost: Option<Option<OnLost>>,
}

/// A panic in `on_lost` is caught. So options with a callback do not keep a handle from being unwind
/// safe.
impl UnwindSafe for LockOptions {}
impl RefUnwindSafe for LockOptions {}

/// A ttl and a fixed lease are one choice: each replaces the other.
#[derive(Clone, Copy)]
enum LeaseLength {
    Renewed(Duration),
    Fixed(Duration),
}

impl LockOptions {
    /// Sets no option. In a builder, an option that is not set has its default. In
    /// [`with`](crate::LockManager::with), it keeps the handle's value.
    pub const fn new() -> LockOptions {
        LockOptions {
            lease: None,
            max_hold: None,
            hold_at_least: None,
            local_handovers: None,
            keep: None,
            notify_wanted: None,
            label: None,
            on_lost: None,
        }
    }

    /// How long the lock outlives its last renewal. So this is the longest delay that a crashed
    /// holder can cause.
    ///
    /// The manager renews the lock every third of the ttl. 1 s to 24 h, in whole
    /// milliseconds; default 10 s. Managers that share a name should use the same ttl.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> LockOptions {
        self.lease = Some(LeaseLength::Renewed(ttl));
        self
    }

    /// Replaces the ttl by a lease of fixed length that no thread renews. The lock ends by itself.
    ///
    /// [`Lease::renew`](crate::Lease::renew) starts the lease again. 10 ms to 24 h. A caller that
    /// may wait for the lock needs at least 1 s, and more than the check period plus two command
    /// timeouts.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> LockOptions {
        self.lease = Some(LeaseLength::Fixed(lease));
        self
    }

    /// Ends the lock after this time, as a loss with
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold).
    ///
    /// So a guard that hangs or leaks does not block the others forever. Counts from the grant.
    /// More than zero; default: no limit.
    #[must_use]
    pub const fn max_hold(mut self, limit: Duration) -> LockOptions {
        self.max_hold = Some(Some(limit));
        self
    }

    /// Holds the lock without a limit, even if the handle that gets these options has a
    /// [`max_hold`](LockOptions::max_hold).
    #[must_use]
    pub const fn no_max_hold(mut self) -> LockOptions {
        self.max_hold = Some(None);
        self
    }

    /// Keeps the name taken for this time after the grant, even if the holder releases it before.
    ///
    /// So a job that many hosts start at the same moment runs once, and a semaphore is a
    /// [rate limiter](crate::pages::guide#a-rate-limiter). The time counts grants by the server's
    /// clock, so add a margin for what others count. At most 24 h; default zero.
    #[must_use]
    pub const fn hold_at_least(mut self, least: Duration) -> LockOptions {
        self.hold_at_least = Some(least);
        self
    }

    /// Lets the waiters of this manager hand the lock over to each other, without Redis, up to this
    /// many times. Then the lock goes to the next in Redis's queue.
    ///
    /// A hand-over within the process takes microseconds instead of a round trip, and Redis sees
    /// none of it. The price is fairness between managers: another manager waits for at most
    /// `max` + 1 guards of each manager that is queued before it. Each guard still has a larger fence
    /// than the one before, its own label, [`lost`](crate::Lease::lost) and
    /// [`max_hold`](LockOptions::max_hold). If one guard loses the lock, nobody is handed it; the
    /// waiters queue again.
    ///
    /// The lock is handed over here only while at least half of its ttl is left. That is so as long
    /// as Redis confirms the renewals. Waiters with the same ttl and the same `max` hand over to
    /// each other. [`inspect`](crate::LockManager::inspect) shows the label and the thread of the
    /// first guard.
    ///
    /// For mutexes and re-entrant mutexes that are taken one at a time: with another kind of lock, a
    /// [`fixed_lease`](LockOptions::fixed_lease), [`hold_at_least`](LockOptions::hold_at_least) or a
    /// quorum it is an [`Error::Misused`](crate::Error::Misused). `try_lock` and `lock_all` take no
    /// part in it. At most 65,535; default 0.
    #[must_use]
    pub const fn local_handovers(mut self, max: u32) -> LockOptions {
        self.local_handovers = Some(max);
        self
    }

    /// Keeps the lock for this manager after its guard was dropped, until somebody else wants it.
    ///
    /// The next call for the name returns at once then, without a request. If another manager waits for
    /// the name, Redis tells this one, which releases the lock. If a guard is alive, it does so when that
    /// guard is dropped, or after up to [`local_handovers`](LockOptions::local_handovers) guards more.
    /// [P3](crate::pages::safety#p3-first-come-first-served) says how soon, also if the message is lost.
    /// A lock that no guard had for `unused` is released, too; it may be after three quarters of that time.
    ///
    /// A name is kept if this manager asks Redis for it again within `unused`, and once it has proof that
    /// it hears of others. So the first two or three locks of a name may cost requests, and after a pause
    /// those until a message to itself has come back. If that is lost, or cannot be sent, they do for a
    /// check period. A name that goes to and fro between managers is not kept: if another manager wanted
    /// it after fewer than 6 turns, this one does not keep it for the next 30 to 60 s. However else a turn
    /// ends says nothing about the next one. A manager keeps
    /// [`max_kept`](crate::Builder::max_kept) names at most. A name that no handle
    /// ([`Mutex`](crate::Mutex)) has makes room for another, if it was unused for a quarter of `unused`, and
    /// for twice as long as the other was.
    ///
    /// The callers of this manager share a place in the queue, in their order, whether the name is kept or
    /// not. While nobody else is known to wait, they hand a lock that may be kept over to each other
    /// without a limit.
    ///
    /// The price is in a crash. A process may end without [`shutdown`](crate::LockManager::shutdown)
    /// and without dropping its last handle. Then what it keeps stays taken until the ttl is over, and the
    /// next holder reads [`PreviousHolder::Lapsed`](crate::PreviousHolder::Lapsed). Also, a drop may keep
    /// the lock, and others find it taken. [`unlock`](crate::LockGuard::unlock) releases it, unless a
    /// waiter of this manager gets it. [`abandon`](crate::LockGuard::abandon) and a drop in a panic keep
    /// nothing.
    ///
    /// Calls with `keep_idle`, the same ttl and the same `local_handovers` share a kept lock. Any other call
    /// for the name, `lock_all` included, has it released first.
    ///
    /// For mutexes and re-entrant mutexes that are taken one at a time: with another kind of lock, a
    /// [`fixed_lease`](LockOptions::fixed_lease), [`hold_at_least`](LockOptions::hold_at_least),
    /// [`wait_on_drop`](crate::Builder::wait_on_drop) or a quorum it is an
    /// [`Error::Misused`](crate::Error::Misused). 1 ms to a third of the ttl; default: not kept.
    #[must_use]
    pub const fn keep_idle(mut self, unused: Duration) -> LockOptions {
        self.keep = Some(Some(unused));
        self
    }

    /// Keeps no lock after its guard was dropped, even if the handle that gets these options does.
    #[must_use]
    pub const fn no_keep_idle(mut self) -> LockOptions {
        self.keep = Some(None);
        self
    }

    /// Has other managers tell this one that they wait for a lock that it holds.
    ///
    /// Then [`Lease::is_wanted`](crate::Lease::is_wanted) and
    /// [`Lease::wanted`](crate::Lease::wanted) say so, and a long holder can let go at a good
    /// moment. It costs a subscription, and a message for each grant that somebody waits for.
    ///
    /// Every [`LockGuard`](crate::LockGuard) of such a handle is told, in whichever way it came: by
    /// `lock`, a try, a [`Waiter`](crate::Waiter), a hand-over or
    /// [`attach`](crate::LockManager::attach). With [`keep_idle`](LockOptions::keep_idle) alone, guards are told
    /// while the manager keeps the name. A [`MultiGuard`](crate::MultiGuard) is never told. The option
    /// changes no order: each caller has a place of its own, unless `keep_idle` or `local_handovers` say
    /// otherwise.
    ///
    /// For mutexes and re-entrant mutexes that are taken one at a time, as
    /// [`local_handovers`](LockOptions::local_handovers). Default: false.
    #[must_use]
    pub const fn notify_wanted(mut self, notify: bool) -> LockOptions {
        self.notify_wanted = Some(notify);
        self
    }

    /// A text that says what the lock is for. [`inspect`](crate::LockManager::inspect) shows it
    /// beside host, process and thread.
    ///
    /// At most 256 bytes, without control characters. Default: empty.
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> LockOptions {
        self.label = Some(label.as_ref().into());
        self
    }

    /// A function that the manager calls when a lock is lost, once for each guard.
    ///
    /// It runs on a thread of the manager that does nothing else. So a slow or panicking callback
    /// delays other callbacks, but no lock. Default: none.
    #[must_use]
    pub fn on_lost(mut self, callback: impl Fn(&Loss) + Send + Sync + 'static) -> LockOptions {
        self.on_lost = Some(Some(Arc::new(callback)));
        self
    }

    /// Calls no function when a lock is lost, even if the handle that gets these options has an
    /// [`on_lost`](LockOptions::on_lost).
    #[must_use]
    pub fn no_on_lost(mut self) -> LockOptions {
        self.on_lost = Some(None);
        self
    }

    /// These options. Those that are not set are taken from `below`.
    pub(crate) fn over(self, below: &LockOptions) -> LockOptions {
        // Without `..`, so that the compiler does not let a new option be forgotten.
        let LockOptions {
            lease,
            max_hold,
            hold_at_least,
            local_handovers,
            keep,
            notify_wanted,
            label,
            on_lost,
        } = self;
        LockOptions {
            lease: lease.or(below.lease),
            max_hold: max_hold.or(below.max_hold),
            hold_at_least: hold_at_least.or(below.hold_at_least),
            local_handovers: local_handovers.or(below.local_handovers),
            keep: keep.or(below.keep),
            notify_wanted: notify_wanted.or(below.notify_wanted),
            label: label.or_else(|| below.label.clone()),
            on_lost: on_lost.or_else(|| below.on_lost.clone()),
        }
    }

    /// The ttl, or the length of the fixed lease.
    pub(crate) fn lease_length(&self) -> Duration {
        match self.lease {
            Some(LeaseLength::Renewed(length) | LeaseLength::Fixed(length)) => length,
            None => TTL.default,
        }
    }

    /// The setting that gives this length.
    pub(crate) fn length_setting(&self) -> Setting<Duration> {
        match self.lease {
            Some(LeaseLength::Fixed(_)) => FIXED_LEASE,
            _ => TTL,
        }
    }

    /// Whether the lease has a fixed length and is not renewed.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.lease, Some(LeaseLength::Fixed(_)))
    }

    pub(crate) fn hold_limit(&self) -> Option<Duration> {
        self.max_hold.flatten()
    }

    pub(crate) fn least_hold(&self) -> Duration {
        self.hold_at_least.unwrap_or_default()
    }

    pub(crate) fn most_local_handovers(&self) -> u32 {
        self.local_handovers.unwrap_or(0)
    }

    pub(crate) fn keep_time(&self) -> Option<Duration> {
        self.keep.flatten()
    }

    pub(crate) fn notifies_wanted(&self) -> bool {
        self.notify_wanted.unwrap_or(false)
    }

    /// An option by which guards have one lock after the other, and how to unset it. `None`: no such
    /// option is set.
    pub(crate) fn option_of_lent_locks(&self) -> Option<(&'static str, &'static str)> {
        if self.most_local_handovers() > 0 {
            Some(("local_handovers", "local_handovers(0)"))
        } else if self.keep_time().is_some() {
            Some(("keep_idle", "no_keep_idle()"))
        } else if self.notifies_wanted() {
            Some(("notify_wanted", "notify_wanted(false)"))
        } else {
            None
        }
    }

    pub(crate) fn label_if_set(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    pub(crate) fn label_text(&self) -> &str {
        self.label.as_deref().unwrap_or("")
    }

    pub(crate) fn callback(&self) -> Option<&OnLost> {
        self.on_lost.as_ref()?.as_ref()
    }
}

impl fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOptions")
            .field("ttl", &self.lease_length())
            .field("fixed", &self.is_fixed())
            .field("max_hold", &self.hold_limit())
            .field("hold_at_least", &self.least_hold())
            .field("local_handovers", &self.most_local_handovers())
            .field("keep_idle", &self.keep_time())
            .field("notify_wanted", &self.notifies_wanted())
            .field("label", &self.label_text())
            .field("on_lost", &self.callback().is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(5);
    const LONG: Duration = Duration::from_secs(60);

    /// Each option: options that set it, options that set it otherwise, and its default by name.
    fn table() -> [[LockOptions; 3]; 9] {
        let new = LockOptions::new;
        [
            [new().ttl(SHORT), new().ttl(LONG), new().ttl(TTL.default)],
            [
                new().fixed_lease(SHORT),
                new().fixed_lease(LONG),
                new().ttl(TTL.default),
            ],
            [
                new().max_hold(SHORT),
                new().max_hold(LONG),
                new().no_max_hold(),
            ],
            [
                new().hold_at_least(SHORT),
                new().hold_at_least(LONG),
                new().hold_at_least(Duration::ZERO),
            ],
            [
                new().local_handovers(1),
                new().local_handovers(2),
                new().local_handovers(0),
            ],
            [
                new().keep_idle(SHORT),
                new().keep_idle(LONG),
                new().no_keep_idle(),
            ],
            [
                new().notify_wanted(true),
                new().notify_wanted(true).keep_idle(SHORT).no_keep_idle(),
                new().notify_wanted(false),
            ],
            [new().label("a"), new().label("b"), new().label("")],
            [
                new().on_lost(|_| {}),
                new().on_lost(|_| ()),
                new().no_on_lost(),
            ],
        ]
    }

    /// All that the rest of the crate sees of options.
    fn shown(options: &LockOptions) -> String {
        let callback = options
            .callback()
            .map(|callback| Arc::as_ptr(callback).addr());
        format!("{options:?} {callback:?}")
    }

    #[test]
    fn options_set_above_cover_those_below_and_the_rest_show_through() {
        let none = LockOptions::new();
        let over = |above: &LockOptions, below: &LockOptions| shown(&above.clone().over(below));
        for (row, [set, otherwise, unset]) in table().iter().enumerate() {
            assert_ne!(shown(set), shown(&none));
            assert_eq!(over(&none, set), shown(set));
            assert_eq!(over(set, &none), shown(set));
            assert_eq!(over(set, otherwise), shown(set));
            assert_eq!(over(unset, set), shown(&none));
            for (other_row, [other, ..]) in table().iter().enumerate() {
                // Two options do not affect each other. The first two rows are one option.
                if row.max(1) != other_row.max(1) {
                    let both = set.clone().over(other);
                    assert_eq!(over(&none, &both), shown(&both));
                    assert_ne!(shown(&both), shown(set));
                    assert_ne!(shown(&both), shown(other));
                }
            }
        }
    }
}
