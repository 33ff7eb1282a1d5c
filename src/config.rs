//! Options of a lock and of a manager, and the sums that they must fit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::loss::Loss;

/// How long a lock outlives its last renewal, unless told otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The shortest ttl of a lock that is renewed, or that may be waited for.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// The shortest fixed lease, for `try_lock` alone.
pub const MIN_FIXED_LEASE: Duration = Duration::from_millis(10);
/// The longest ttl, fixed lease, `hold_at_least` and timeout.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// After so long without a successful reply a wait ends with an error.
pub const DEFAULT_OUTAGE_LIMIT: Duration = Duration::from_secs(10);
/// Connections in the pool, at most.
pub const DEFAULT_POOL_SIZE: u32 = 8;
/// What keys and channels begin with.
pub const DEFAULT_PREFIX: &str = "fairlock";
/// The longest time to wait for a reply: this, or a tenth of the ttl if that is less.
pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// How often waiting processes look after their queue: this, or an eighth of the ttl if that is less.
pub const DEFAULT_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// For how long a silent process keeps its places: this, or half of the ttl if that is less.
pub const DEFAULT_HORIZON: Duration = Duration::from_secs(5);
/// The longest label, in bytes.
pub const MAX_LABEL: usize = 256;

/// A callback of [`LockOptions::on_lost`].
pub(crate) type OnLost = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How a lock is taken and held. A manager has one set as its default, and
/// [`LockManager::with`](crate::LockManager::with) makes a handle with another.
///
/// ```
/// use std::time::Duration;
/// use fairlock::LockOptions;
///
/// const NIGHTLY: LockOptions = LockOptions::new().ttl(Duration::from_secs(30)).max_hold(Duration::from_secs(3600));
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
    /// The defaults: [`DEFAULT_TTL`], renewed, no `max_hold`, no `hold_at_least`, no label, no callback.
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

    /// How long the lock outlives its last renewal, and so the longest that a crash can delay the others.
    ///
    /// Renewed every third of it. [`MIN_TTL`] to [`MAX_TTL`], in whole milliseconds; default
    /// [`DEFAULT_TTL`]. Managers that share a name should share a ttl.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> LockOptions {
        self.ttl = Some(ttl);
        self.fixed = false;
        self
    }

    /// Replaces the ttl by a lease of fixed length that no thread renews: the lock ends by itself.
    ///
    /// [`LockGuard::renew`](crate::LockGuard::renew) starts it anew. [`MIN_FIXED_LEASE`] to [`MAX_TTL`]; one that may
    /// be waited for needs [`MIN_TTL`], and more than the check period and two command timeouts.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> LockOptions {
        self.ttl = Some(lease);
        self.fixed = true;
        self
    }

    /// Ends the holding after so long, as a loss with [`LossReason::MaxHold`](crate::LossReason::MaxHold): a guard
    /// that hangs or leaks does not block the others for ever. Default: no limit.
    #[must_use]
    pub const fn max_hold(mut self, limit: Duration) -> LockOptions {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the name taken for so long after the grant, even if it is released before: a job that many
    /// hosts start at the same moment runs once. At most [`MAX_TTL`]; default zero.
    #[must_use]
    pub const fn hold_at_least(mut self, least: Duration) -> LockOptions {
        self.hold_at_least = least;
        self
    }

    /// A text that [`inspect`](crate::LockManager::inspect) shows beside host, process and thread: what the lock is
    /// taken for. At most [`MAX_LABEL`] bytes, without control characters.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> LockOptions {
        self.label = Some(label.into());
        self
    }

    /// Called when a lock is lost, once for each guard, on a thread of the manager's that does nothing
    /// else: a slow or panicking callback delays other callbacks, and no lock.
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

/// What a builder was told; what it was not told is derived from the ttl.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) prefix: Option<String>,
    pub(crate) options: LockOptions,
    pub(crate) pool_size: Option<u32>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) check_period: Option<Duration>,
    pub(crate) horizon: Option<Duration>,
    pub(crate) outage_limit: Option<Duration>,
}

/// A manager's numbers: checked, and the same for all its handles.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) prefix: Arc<str>,
    pub(crate) pool_size: u32,
    pub(crate) connect_timeout: Duration,
    /// T
    pub(crate) command_timeout: Duration,
    /// P
    pub(crate) check_period: Duration,
    /// H
    pub(crate) horizon: Duration,
    pub(crate) outage_limit: Duration,
    /// The pause before something that failed is tried again.
    pub(crate) back_off: Duration,
}

impl Config {
    pub(crate) fn new(wanted: Wanted) -> Result<(Config, LockOptions)> {
        let options = wanted.options;
        let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
        check_ttl(&options)?;
        // A fixed lease can be short; the periods are for the locks that are waited for and renewed.
        let base = ttl.max(MIN_TTL);
        let command_timeout = wanted
            .command_timeout
            .unwrap_or(DEFAULT_COMMAND_TIMEOUT.min(base / 10));
        let config = Config {
            prefix: checked_prefix(wanted.prefix)?,
            pool_size: wanted.pool_size.unwrap_or(DEFAULT_POOL_SIZE),
            connect_timeout: wanted.connect_timeout.unwrap_or(command_timeout),
            command_timeout,
            check_period: wanted
                .check_period
                .unwrap_or(DEFAULT_CHECK_PERIOD.min(base / 8)),
            horizon: wanted.horizon.unwrap_or(DEFAULT_HORIZON.min(base / 2)),
            outage_limit: wanted.outage_limit.unwrap_or(DEFAULT_OUTAGE_LIMIT),
            back_off: Duration::from_millis(500).min(base / 20),
        };
        let shortest = Duration::from_millis(1);
        check_range("command_timeout", config.command_timeout, shortest, MAX_TTL)?;
        check_range("connect_timeout", config.connect_timeout, shortest, MAX_TTL)?;
        check_range("check_period", config.check_period, shortest, MAX_TTL)?;
        check_range("horizon", config.horizon, shortest, MAX_TTL)?;
        if config.outage_limit < config.command_timeout {
            return Err(Error::config(
                "outage_limit",
                format!("at least the command timeout, {:?}", config.command_timeout),
            ));
        }
        if !(1..=10_000).contains(&config.pool_size) {
            return Err(Error::config("pool_size", "1 to 10,000 connections"));
        }
        if config.check_period + config.command_timeout * 3 > config.horizon {
            return Err(Error::config(
                "horizon",
                format!(
                    "at least check_period + 3 × command_timeout, {:?}; it is {:?}",
                    config.check_period + config.command_timeout * 3,
                    config.horizon
                ),
            ));
        }
        config.check_options(&options)?;
        Ok((config, options))
    }

    /// Whether a lock may be held on these terms; waiting for one asks more, in [`Config::check_wait`].
    pub(crate) fn check_options(&self, options: &LockOptions) -> Result<()> {
        let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
        check_ttl(options)?;
        if !options.fixed {
            let needed = least_ttl(self.horizon);
            if ttl < needed {
                return Err(Error::config(
                    "ttl",
                    format!(
                        "at least {needed:?} with this manager's horizon of {:?}; give the builder the ttl {ttl:?}, \
                         or a shorter horizon",
                        self.horizon
                    ),
                ));
            }
            let needed = self.check_period + self.command_timeout * 2 + margin(ttl, Duration::ZERO);
            if ttl < needed {
                return Err(Error::config(
                    "ttl",
                    format!("at least check_period + 2 × command_timeout + margin, {needed:?}"),
                ));
            }
        }
        if options.hold_at_least > MAX_TTL {
            return Err(Error::config(
                "hold_at_least",
                format!("at most {MAX_TTL:?}"),
            ));
        }
        if options.max_hold.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::config("max_hold", "more than zero"));
        }
        if let Some(label) = &options.label
            && (label.len() > MAX_LABEL || label.contains(char::is_control))
        {
            return Err(Error::config(
                "label",
                format!("at most {MAX_LABEL} bytes, without control characters"),
            ));
        }
        Ok(())
    }

    /// R16: a fixed lease that is granted while its waiter's message is lost must still be worth having
    /// when the next check finds it.
    pub(crate) fn check_wait(&self, options: &LockOptions) -> Result<()> {
        let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
        let needed = self.check_period + self.command_timeout * 2;
        if options.fixed && (ttl < MIN_TTL || ttl <= needed) {
            return Err(Error::config(
                "fixed_lease",
                format!(
                    "to be waited for, at least {MIN_TTL:?} and more than check_period + 2 × command_timeout, \
                     {needed:?}; shorter ones are for try_lock"
                ),
            ));
        }
        Ok(())
    }
}

/// What is taken off every local deadline: 1 % of what is counted on this host's clock, and 2 ms. It
/// covers clocks that run apart by far more than the 500 ppm that NTP allows.
pub(crate) fn margin(ttl: Duration, extrapolated: Duration) -> Duration {
    ttl.saturating_add(extrapolated) / 100 + Duration::from_millis(2)
}

/// The shortest ttl with H ≤ 2/3 ttl − ttl/10: a process that loses its places must have lost its
/// leases only later.
fn least_ttl(horizon: Duration) -> Duration {
    // H / (2/3 − 1/10) = H × 30/17, in whole ms
    let ms = (horizon.as_nanos() * 30).div_ceil(17 * 1_000_000);
    Duration::from_millis(ms as u64)
}

fn check_ttl(options: &LockOptions) -> Result<()> {
    let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
    if options.fixed {
        check_range("fixed_lease", ttl, MIN_FIXED_LEASE, MAX_TTL)
    } else {
        check_range("ttl", ttl, MIN_TTL, MAX_TTL)
    }
}

fn check_range(what: &str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if value < least || value > most {
        return Err(Error::config(
            what,
            format!("{least:?} to {most:?}; it is {value:?}"),
        ));
    }
    Ok(())
}

fn checked_prefix(prefix: Option<String>) -> Result<Arc<str>> {
    let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
    if prefix.is_empty()
        || prefix.len() > 128
        || prefix.contains(['{', '}'])
        || prefix.contains(char::is_control)
    {
        return Err(Error::config(
            "prefix",
            "1 to 128 bytes, without braces and control characters",
        ));
    }
    Ok(prefix.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ttl(ms: u64) -> Wanted {
        Wanted {
            options: LockOptions::new().ttl(Duration::from_millis(ms)),
            ..Wanted::default()
        }
    }

    #[test]
    fn derived_numbers_fit_each_other_at_every_ttl() {
        for ms in [1000, 1001, 1999, 5000, 10_000, 60_000, 86_400_000] {
            let (config, _) = Config::new(with_ttl(ms)).unwrap();
            assert!(
                config.check_period + config.command_timeout * 3 <= config.horizon,
                "{ms}"
            );
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let ms = Duration::from_millis;
        let bad = [
            Wanted {
                horizon: Some(ms(2400)),
                ..Wanted::default()
            },
            Wanted {
                horizon: Some(ms(5700)),
                ..Wanted::default()
            },
            // 17/30 of the ttl is 5666.6… ms.
            Wanted {
                horizon: Some(ms(5667) - Duration::from_nanos(1)),
                ..Wanted::default()
            },
            Wanted {
                command_timeout: Some(ms(1400)),
                ..Wanted::default()
            },
            Wanted {
                check_period: Some(Duration::ZERO),
                ..Wanted::default()
            },
            Wanted {
                outage_limit: Some(ms(10)),
                ..Wanted::default()
            },
            Wanted {
                pool_size: Some(0),
                ..Wanted::default()
            },
            Wanted {
                prefix: Some("a{b".into()),
                ..Wanted::default()
            },
            with_ttl(999),
            with_ttl(86_400_001),
            Wanted {
                options: LockOptions::new().ttl(Duration::MAX),
                ..Wanted::default()
            },
        ];
        for wanted in bad {
            assert!(
                matches!(Config::new(wanted.clone()), Err(Error::Config { .. })),
                "{wanted:?}"
            );
        }
    }
}
