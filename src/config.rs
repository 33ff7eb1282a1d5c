//! A manager's numbers, and the sums that they must fit.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::{DEFAULT_TTL, LockOptions, MAX_LABEL, MAX_TTL, MIN_FIXED_LEASE, MIN_TTL};

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

/// What a builder was told; what it was not told is derived from the ttl.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
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
    pub(crate) fn new(settings: Settings) -> Result<(Config, LockOptions)> {
        let options = settings.options;
        let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
        check_ttl(&options)?;
        // A fixed lease can be short; the periods are for the locks that are waited for and renewed.
        let base = ttl.max(MIN_TTL);
        let command_timeout = settings
            .command_timeout
            .unwrap_or(DEFAULT_COMMAND_TIMEOUT.min(base / 10));
        let config = Config {
            prefix: checked_prefix(settings.prefix)?,
            pool_size: settings.pool_size.unwrap_or(DEFAULT_POOL_SIZE),
            connect_timeout: settings.connect_timeout.unwrap_or(command_timeout),
            command_timeout,
            check_period: settings
                .check_period
                .unwrap_or(DEFAULT_CHECK_PERIOD.min(base / 8)),
            horizon: settings.horizon.unwrap_or(DEFAULT_HORIZON.min(base / 2)),
            outage_limit: settings.outage_limit.unwrap_or(DEFAULT_OUTAGE_LIMIT),
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

    fn with_ttl(ms: u64) -> Settings {
        Settings {
            options: LockOptions::new().ttl(Duration::from_millis(ms)),
            ..Settings::default()
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
            Settings {
                horizon: Some(ms(2400)),
                ..Settings::default()
            },
            Settings {
                horizon: Some(ms(5700)),
                ..Settings::default()
            },
            // 17/30 of the ttl is 5666.6… ms.
            Settings {
                horizon: Some(ms(5667) - Duration::from_nanos(1)),
                ..Settings::default()
            },
            Settings {
                command_timeout: Some(ms(1400)),
                ..Settings::default()
            },
            Settings {
                check_period: Some(Duration::ZERO),
                ..Settings::default()
            },
            Settings {
                outage_limit: Some(ms(10)),
                ..Settings::default()
            },
            Settings {
                pool_size: Some(0),
                ..Settings::default()
            },
            Settings {
                prefix: Some("a{b".into()),
                ..Settings::default()
            },
            with_ttl(999),
            with_ttl(86_400_001),
            Settings {
                options: LockOptions::new().ttl(Duration::MAX),
                ..Settings::default()
            },
        ];
        for settings in bad {
            assert!(
                matches!(Config::new(settings.clone()), Err(Error::Config { .. })),
                "{settings:?}"
            );
        }
    }
}
