//! The numbers of a manager: their defaults, and the inequalities that they must satisfy.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::{
    LockOptions, MAX_LABEL, MAX_LOCAL_HANDOVERS, MAX_TTL, MIN_FIXED_LEASE, MIN_TTL,
};
use crate::time_text::{down_to_ms, setting as shown, up_to_ms};

/// How long Redis may go without a successful reply before a wait ends with an error.
pub(crate) const DEFAULT_OUTAGE_LIMIT: Duration = Duration::from_secs(10);
/// How long a wait may last before the log has a warning of it.
pub(crate) const DEFAULT_LONG_WAIT: Duration = Duration::from_secs(10);
/// How many connections short calls share.
pub(crate) const DEFAULT_LANES: u32 = 2;
/// How many locks are kept after their guards at a time.
pub(crate) const DEFAULT_MAX_KEPT: u32 = 1024;
/// The most that [`Builder::max_kept`](crate::Builder::max_kept) allows.
pub(crate) const MOST_MAX_KEPT: usize = 1_000_000;
/// The prefix of keys and channels.
pub(crate) const DEFAULT_PREFIX: &str = "fairlock";
/// How long a reply may take: this, or a tenth of the ttl if that is less.
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a process checks each name that it waits for: this, or an eighth of the ttl if that is
/// less.
pub(crate) const DEFAULT_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// How long a silent process keeps its places in queues: this, or half of the ttl if that is less.
/// Never less than a check period and three command timeouts.
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_secs(5);

/// The settings of a [`Builder`](crate::Builder), as the user made them. [`Config::new`] derives
/// the rest from the ttl.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) prefix: Option<String>,
    pub(crate) options: LockOptions,
    pub(crate) lanes: Option<u32>,
    pub(crate) max_kept: Option<u32>,
    pub(crate) wait_on_drop: bool,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) check_period: Option<Duration>,
    pub(crate) horizon: Option<Duration>,
    pub(crate) outage_limit: Option<Duration>,
    pub(crate) long_wait: Option<Duration>,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    /// `None`: yes.
    pub(crate) uptime_check: Option<bool>,
}

/// R18 (replica acks): how many replicas must acknowledge a grant or an extension, and within which
/// time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplicaAcks {
    /// At least 1.
    pub(crate) wanted: u32,
    pub(crate) timeout: Duration,
}

/// The numbers of a manager, checked. All its handles share them.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) prefix: Arc<str>,
    pub(crate) lanes: u32,
    /// The drop of a guard waits for the reply to its release, as `unlock` does.
    pub(crate) wait_on_drop: bool,
    pub(crate) connect_timeout: Duration,
    /// T: how long a reply may take.
    pub(crate) command_timeout: Duration,
    /// P: how often a process checks each name that it waits for.
    pub(crate) check_period: Duration,
    /// H: how long a silent process keeps its places in queues.
    pub(crate) horizon: Duration,
    pub(crate) outage_limit: Duration,
    /// A wait that lasts longer is reported. `Duration::MAX`: none is.
    pub(crate) long_wait: Duration,
    /// The length of a lease by the manager's own options.
    pub(crate) ttl: Duration,
    /// Nodes of a quorum that have run for less than the ttl do not vote.
    pub(crate) uptime_check: bool,
    /// The pause before a failed request is retried.
    pub(crate) back_off: Duration,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    /// The most locks that are kept after their guards at a time.
    pub(crate) max_kept: usize,
}

impl Config {
    /// Derives every number that the user did not set, and refuses numbers that do not fit.
    pub(crate) fn new(settings: Settings) -> Result<(Config, LockOptions)> {
        let options = settings.options;
        let ttl = options.lease_length();
        check_ttl(&options)?;
        let given = [
            ("command_timeout", settings.command_timeout),
            ("check_period", settings.check_period),
            ("horizon", settings.horizon),
        ];
        // A fixed lease can be shorter than the periods may be. Only renewed locks, and locks that
        // a caller waits for, depend on the periods.
        let base = ttl.max(MIN_TTL);
        let command_timeout = settings
            .command_timeout
            .unwrap_or(DEFAULT_COMMAND_TIMEOUT.min(base / 10));
        let check_period = settings
            .check_period
            .unwrap_or(DEFAULT_CHECK_PERIOD.min(base / 8));
        let horizon = DEFAULT_HORIZON
            .min(base / 2)
            .max(least_horizon(check_period, command_timeout));
        let config = Config {
            prefix: check_prefix(settings.prefix)?,
            lanes: settings.lanes.unwrap_or(DEFAULT_LANES),
            wait_on_drop: settings.wait_on_drop,
            connect_timeout: settings.connect_timeout.unwrap_or(command_timeout),
            command_timeout,
            check_period,
            horizon: settings.horizon.unwrap_or(horizon),
            outage_limit: settings
                .outage_limit
                .unwrap_or(DEFAULT_OUTAGE_LIMIT.max(command_timeout)),
            long_wait: settings.long_wait.unwrap_or(DEFAULT_LONG_WAIT),
            ttl,
            uptime_check: settings.uptime_check.unwrap_or(true),
            back_off: Duration::from_millis(500).min(base / 20),
            replica_acks: settings.replica_acks.filter(|acks| acks.wanted > 0),
            max_kept: settings.max_kept.unwrap_or(DEFAULT_MAX_KEPT) as usize,
        };
        config.check_numbers()?;
        if !options.is_fixed() {
            config.check_fits(ttl, given)?;
        }
        config.check_options(&options)?;
        Ok((config, options))
    }

    fn check_numbers(&self) -> Result<()> {
        let shortest = Duration::from_millis(1);
        check_range("command_timeout", self.command_timeout, shortest, MAX_TTL)?;
        check_range("connect_timeout", self.connect_timeout, shortest, MAX_TTL)?;
        check_range("check_period", self.check_period, shortest, MAX_TTL)?;
        check_range("horizon", self.horizon, shortest, MAX_TTL)?;
        if self.long_wait < shortest {
            let message = format!(
                "at least {}; it is {}",
                shown(shortest),
                shown(self.long_wait)
            );
            return Err(Error::setting("long_wait", message));
        }
        if self.outage_limit < self.command_timeout {
            let message = format!(
                "at least the command timeout, {}; it is {}",
                shown(self.command_timeout),
                shown(self.outage_limit)
            );
            return Err(Error::setting("outage_limit", message));
        }
        if !(1..=64).contains(&self.lanes) {
            let message = format!("1 to 64 lanes; it is {}", self.lanes);
            return Err(Error::setting("lanes", message));
        }
        if !(1..=MOST_MAX_KEPT).contains(&self.max_kept) {
            let message = format!("1 to {MOST_MAX_KEPT} names; it is {}", self.max_kept);
            return Err(Error::setting("max_kept", message));
        }
        if let Some(acks) = self.replica_acks {
            // The reply to WAIT must come within T, as every other reply.
            let longest = self.command_timeout / 2;
            if acks.timeout < shortest || acks.timeout > longest {
                let message = format!(
                    "a timeout of {} to half the command timeout, {}; it is {}",
                    shown(shortest),
                    shown(down_to_ms(longest)),
                    shown(acks.timeout)
                );
                return Err(Error::setting("replica_acks", message));
            }
        }
        let needed = least_horizon(self.check_period, self.command_timeout);
        if self.horizon < needed {
            let message = format!(
                "at least check_period + 3 × command_timeout, {}; it is {}",
                shown(up_to_ms(needed)),
                shown(self.horizon)
            );
            return Err(Error::setting("horizon", message));
        }
        Ok(())
    }

    /// Refuses options with which no lock can be held. [`Config::check_wait`] has more conditions,
    /// for a caller that may wait.
    pub(crate) fn check_options(&self, options: &LockOptions) -> Result<()> {
        check_ttl(options)?;
        if !options.is_fixed() {
            self.check_renewed_ttl(options.lease_length())?;
        }
        if options.least_hold() > MAX_TTL {
            let message = format!(
                "at most {}; it is {}",
                shown(MAX_TTL),
                shown(options.least_hold())
            );
            return Err(Error::setting("hold_at_least", message));
        }
        if options.hold_limit().is_some_and(|limit| limit.is_zero()) {
            return Err(Error::setting("max_hold", "more than zero; it is zero"));
        }
        check_for_one_guard(options)?;
        check_local_handovers(options)?;
        self.check_keep(options)?;
        let label = options.label_text();
        if label.len() > MAX_LABEL || label.contains(char::is_control) {
            let message = format!(
                "at most {MAX_LABEL} bytes, without control characters; it {}",
                length_or_char(label, char::is_control)
            );
            return Err(Error::setting("label", message));
        }
        Ok(())
    }

    /// Refuses periods for which the builder's own ttl is too short, in terms of what the user has
    /// set.
    fn check_fits(
        &self,
        ttl: Duration,
        given: [(&'static str, Option<Duration>); 3],
    ) -> Result<()> {
        let needed = least_ttl(self.horizon);
        if ttl >= needed {
            return Ok(());
        }
        let given: Vec<_> = given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let ([(name, value)], Some(most)) = (&given[..], self.most_with(ttl, &given)) else {
            let list: Vec<String> = given
                .iter()
                .map(|(name, value)| format!("{name} {}", shown(*value)))
                .collect();
            let list = list.join(" and ");
            let message = format!(
                "at least {} with {list}; it is {}",
                shown(needed),
                shown(ttl)
            );
            return Err(Error::setting("ttl", message));
        };
        let message = format!(
            "at most {} with the ttl of {}, or a ttl of at least {}; it is {}",
            shown(most),
            shown(ttl),
            shown(needed),
            shown(*value)
        );
        Err(Error::setting(name, message))
    }

    /// The largest value of the one period that the user has set, with this ttl. `None` if there is
    /// none.
    fn most_with(&self, ttl: Duration, given: &[(&str, Duration)]) -> Option<Duration> {
        let horizon = longest_horizon(ttl);
        let most = match given {
            [("command_timeout", _)] => horizon.checked_sub(self.check_period)? / 3,
            [("check_period", _)] => horizon.checked_sub(self.command_timeout * 3)?,
            _ => horizon,
        };
        let whole_ms = down_to_ms(most);
        (!whole_ms.is_zero()).then_some(whole_ms)
    }

    /// Refuses a handle's ttl that is too short for the periods of this manager.
    fn check_renewed_ttl(&self, ttl: Duration) -> Result<()> {
        let needed = least_ttl(self.horizon);
        if ttl < needed {
            let message = format!(
                "at least {} with this manager's horizon of {}; it is {}; give the builder this \
                 ttl, or a shorter horizon",
                shown(needed),
                shown(down_to_ms(self.horizon)),
                shown(ttl)
            );
            return Err(Error::setting("ttl", message));
        }
        Ok(())
    }

    /// Refuses to keep locks for a time that does not fit, or where a drop waits for Redis.
    fn check_keep(&self, options: &LockOptions) -> Result<()> {
        let Some(keep) = options.keep_time() else {
            return Ok(());
        };
        if self.wait_on_drop {
            let message =
                "not with wait_on_drop, by which a drop releases the lock; set no_keep_idle()";
            return Err(Error::setting("keep_idle", message));
        }
        // So an unused lock is renewed once at most.
        let most = options.lease_length() / 3;
        check_range("keep_idle", keep, Duration::from_millis(1), most)
    }

    /// Refuses options that a quorum has not: it has no queue, and a node that restarts has no vote for
    /// the ttl of the builder alone.
    pub(crate) fn check_for_quorum(&self, options: &LockOptions) -> Result<()> {
        if let Some((option, default)) = options.option_of_lent_locks() {
            let message =
                format!("a quorum has no queue, so it does not offer this; set {default}");
            return Err(Error::setting(option, message));
        }
        let lease = if options.is_fixed() {
            "fixed_lease"
        } else {
            "ttl"
        };
        for (option, length) in [
            (lease, options.lease_length()),
            ("hold_at_least", options.least_hold()),
        ] {
            if length > self.ttl {
                let message = format!(
                    "on a quorum at most the ttl of the builder's options, {}; it is {}",
                    shown(self.ttl),
                    shown(length)
                );
                return Err(Error::setting(option, message));
            }
        }
        Ok(())
    }

    /// Refuses a fixed lease that is too short to wait for.
    ///
    /// R16 (hold_at_least, fixed leases): if the message of a grant is lost, the waiter finds the
    /// grant at its next check. Some of the lease must be left by then.
    pub(crate) fn check_wait(&self, options: &LockOptions) -> Result<()> {
        // A lease that no call can use has its own reason, and so has one beside another option.
        check_ttl(options)?;
        check_for_one_guard(options)?;
        let ttl = options.lease_length();
        if !self.may_wait(options.is_fixed(), ttl) {
            let needed = self.least_fixed_wait();
            let message = format!(
                "to wait with it, at least {} and more than check_period + 2 × command_timeout, {}; \
                 it is {}, which only try_lock can use",
                shown(MIN_TTL),
                shown(up_to_ms(needed)),
                shown(ttl)
            );
            return Err(Error::setting("fixed_lease", message));
        }
        Ok(())
    }

    /// R16 (hold_at_least, fixed leases): whether a caller with such a lease may wait for it.
    pub(crate) fn may_wait(&self, is_fixed: bool, ttl: Duration) -> bool {
        !is_fixed || ttl >= MIN_TTL && ttl > self.least_fixed_wait()
    }

    fn least_fixed_wait(&self) -> Duration {
        self.check_period + self.command_timeout * 2
    }
}

/// How long a detached lock may be valid.
pub(crate) fn check_valid_for(valid_for: Duration) -> Result<()> {
    let least = Duration::from_millis(1);
    if (least..=MAX_TTL).contains(&valid_for) {
        return Ok(());
    }
    let message = format!(
        "{} to {}; it is {}",
        shown(least),
        shown(MAX_TTL),
        shown(valid_for)
    );
    Err(Error::setting("valid_for", message))
}

/// Every local deadline is shortened by this: 1 % of the time that this host's clock counts, and
/// 2 ms.
///
/// Clock rates differ by at most 500 ppm under NTP, so this covers far more than that.
pub(crate) fn margin(ttl: Duration, extrapolated: Duration) -> Duration {
    ttl.saturating_add(extrapolated) / 100 + Duration::from_millis(2)
}

/// A live process syncs its queues once per P. Even if requests take long, its signs of life must
/// reach Redis before H is over.
fn least_horizon(check_period: Duration, command_timeout: Duration) -> Duration {
    check_period.saturating_add(command_timeout.saturating_mul(3))
}

/// The shortest ttl with H ≤ 2/3 ttl − ttl/10. It makes sure that a silent process loses its places
/// in queues before it can lose a lease.
fn least_ttl(horizon: Duration) -> Duration {
    // H / (2/3 − 1/10) = H × 30/17, in whole ms
    let ms = (horizon.as_nanos() * 30).div_ceil(17 * 1_000_000);
    Duration::from_millis(ms as u64)
}

/// The longest horizon with which [`least_ttl`] allows this ttl.
fn longest_horizon(ttl: Duration) -> Duration {
    ttl * 17 / 30
}

fn check_ttl(options: &LockOptions) -> Result<()> {
    let ttl = options.lease_length();
    if options.is_fixed() {
        check_range("fixed_lease", ttl, MIN_FIXED_LEASE, MAX_TTL)
    } else {
        check_range("ttl", ttl, MIN_TTL, MAX_TTL)
    }
}

fn check_local_handovers(options: &LockOptions) -> Result<()> {
    let most = options.most_local_handovers();
    if most > MAX_LOCAL_HANDOVERS {
        let message = format!("at most {MAX_LOCAL_HANDOVERS}; it is {most}");
        return Err(Error::setting("local_handovers", message));
    }
    Ok(())
}

/// Refuses options for locks that pass from guard to guard, with others that are about one guard.
fn check_for_one_guard(options: &LockOptions) -> Result<()> {
    let Some((option, default)) = options.option_of_lent_locks() else {
        return Ok(());
    };
    let message = if options.is_fixed() {
        format!("not with a fixed lease, which nothing would make longer; set {default}")
    } else if !options.least_hold().is_zero() {
        format!("not with hold_at_least, which is about one guard; set {default}")
    } else {
        return Ok(());
    };
    Err(Error::setting(option, message))
}

fn check_range(what: &'static str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if value < least || value > most {
        return Err(Error::setting(
            what,
            format!(
                "{} to {}; it is {}",
                shown(least),
                shown(down_to_ms(most)),
                shown(value)
            ),
        ));
    }
    Ok(())
}

fn check_prefix(prefix: Option<String>) -> Result<Arc<str>> {
    let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
    let is_refused = |c: char| matches!(c, '{' | '}') || c.is_control();
    if prefix.is_empty() || prefix.len() > 128 || prefix.contains(is_refused) {
        return Err(Error::setting(
            "prefix",
            format!(
                "1 to 128 bytes, without braces and control characters; it {}",
                length_or_char(&prefix, is_refused)
            ),
        ));
    }
    Ok(prefix.into())
}

/// Why a text is refused: the first character that is not allowed, else its length.
fn length_or_char(text: &str, is_refused: impl Fn(char) -> bool) -> String {
    match text.chars().find(|c| is_refused(*c)) {
        Some(c) => format!("contains {c:?}"),
        None => format!("has {} bytes", text.len()),
    }
}

#[cfg(test)]
mod tests;
