//! How a lock is taken and held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::loss::Loss;

/// How long a lock outlives its last renewal, unless [`LockOptions::ttl`] sets another time.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The shortest ttl of a renewed lock. Also the shortest fixed lease of a lock that a caller may
/// wait for.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// The shortest fixed lease. One below [`MIN_TTL`] works with `try_lock` only.
pub const MIN_FIXED_LEASE: Duration = Duration::from_millis(10);
/// The longest ttl, fixed lease, `hold_at_least`, timeout and period.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// The longest label, in bytes of UTF-8.
pub const MAX_LABEL: usize = 256;

/// A callback of [`LockOptions::on_lost`].
pub(crate) type OnLost = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How a lock is taken and held.
///
/// A manager has one set of options as its default.
/// [`LockManager::with`](crate::LockManager::with) makes a handle with another set.
///
/// ```
/// use std::time::Duration;
/// use fairlock::LockOptions;
///
/// const NIGHTLY: LockOptions = LockOptions::new()
///     .ttl(Duration::from_secs(30))
///     .max_hold(Duration::from_secs(3600));
/// ```
#[derive(Clone, Default)]
pub struct LockOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_at_least: Duration,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) on_lost: Option<OnLost>,
}

impl LockOptions {
    /// The defaults: [`DEFAULT_TTL`], renewed, no `max_hold`, no `hold_at_least`, no label, no
    /// callback.
    pub const fn new() -> LockOptions {
        LockOptions {
            ttl: None,
            fixed: false,
            max_hold: None,
            hold_at_least: Duration::ZERO,
            label: None,
            on_lost: None,
        }
    }

    /// How long the lock outlives its last renewal. So this is the longest delay that a crashed
    /// holder can cause.
    ///
    /// The manager renews the lock every third of the ttl. [`MIN_TTL`] to [`MAX_TTL`], in whole
    /// milliseconds; default [`DEFAULT_TTL`]. Managers that share a name should use the same ttl.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> LockOptions {
        self.ttl = Some(ttl);
        self.fixed = false;
        self
    }

    /// Replaces the ttl by a lease of fixed length that no thread renews. The lock ends by itself.
    ///
    /// [`LockGuard::renew`](crate::LockGuard::renew) starts the lease again. [`MIN_FIXED_LEASE`] to
    /// [`MAX_TTL`]. A caller that may wait for the lock needs at least [`MIN_TTL`], and more than
    /// the check period plus two command timeouts.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> LockOptions {
        self.ttl = Some(lease);
        self.fixed = true;
        self
    }

    /// Ends the lock after this time, as a loss with
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold).
    ///
    /// So a guard that hangs or leaks does not block the others forever. Counts from the grant.
    /// More than zero; default: no limit.
    #[must_use]
    pub const fn max_hold(mut self, limit: Duration) -> LockOptions {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the name taken for this time after the grant, even if the holder releases it before.
    ///
    /// So a job that many hosts start at the same moment runs once. At most [`MAX_TTL`]; default
    /// zero.
    #[must_use]
    pub const fn hold_at_least(mut self, least: Duration) -> LockOptions {
        self.hold_at_least = least;
        self
    }

    /// A text that says what the lock is for. [`inspect`](crate::LockManager::inspect) shows it
    /// beside host, process and thread.
    ///
    /// At most [`MAX_LABEL`] bytes, without control characters. Default: empty.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> LockOptions {
        self.label = Some(label.into());
        self
    }

    /// A function that the manager calls when a lock is lost, once for each guard.
    ///
    /// It runs on a thread of the manager that does nothing else. So a slow or panicking callback
    /// delays other callbacks, but no lock. Default: none.
    #[must_use]
    pub fn on_lost(mut self, callback: impl Fn(&Loss) + Send + Sync + 'static) -> LockOptions {
        self.on_lost = Some(Arc::new(callback));
        self
    }
}

impl fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOptions")
            .field("ttl", &self.ttl.unwrap_or(DEFAULT_TTL))
            .field("fixed", &self.fixed)
            .field("max_hold", &self.max_hold)
            .field("hold_at_least", &self.hold_at_least)
            .field("label", &self.label)
            .field("on_lost", &self.on_lost.is_some())
            .finish()
    }
}
