//! The numbers of a manager: their defaults, and the inequalities that they must satisfy.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::LockOptions;
use crate::setting::{
    CHECK_PERIOD, COMMAND_TIMEOUT, CONNECT_TIMEOUT, DEFAULT_PREFIX, HOLD_AT_LEAST, HORIZON,
    KEEP_IDLE, LABEL, LANES, LOCAL_HANDOVERS, LONG_WAIT, MAX_KEPT, OUTAGE_LIMIT, PREFIX,
    REPLICA_ACKS, TTL,
};
use crate::time_text::{down_to_ms, setting as shown, up_to_ms};

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
    pub(crate) max_kept: u32,
}

impl Config {
    /// Derives every number that the user did not set, and refuses numbers that do not fit.
    pub(crate) fn new(settings: Settings) -> Result<(Config, LockOptions)> {
        let options = settings.options;
        let ttl = options.lease_length();
        options.length_setting().check(ttl)?;
        let given = [
            (COMMAND_TIMEOUT.name, settings.command_timeout),
            (CHECK_PERIOD.name, settings.check_period),
            (HORIZON.name, settings.horizon),
        ];
        // A fixed lease can be shorter than the periods may be. Only renewed locks, and locks that
        // a caller waits for, depend on the periods.
        let base = ttl.max(TTL.least);
        let command_timeout = settings
            .command_timeout
            .unwrap_or(COMMAND_TIMEOUT.default.min(base / 10));
        let check_period = settings
            .check_period
            .unwrap_or(CHECK_PERIOD.default.min(base / 8));
        let horizon =
            least_horizon(check_period, command_timeout).max(HORIZON.default.min(base / 2));
        let config = Config {
            prefix: settings.prefix.as_deref().unwrap_or(DEFAULT_PREFIX).into(),
            lanes: settings.lanes.unwrap_or(LANES.default),
            wait_on_drop: settings.wait_on_drop,
            connect_timeout: settings.connect_timeout.unwrap_or(command_timeout),
            command_timeout,
            check_period,
            horizon: settings.horizon.unwrap_or(horizon),
            outage_limit: settings
                .outage_limit
                .unwrap_or(OUTAGE_LIMIT.default.max(command_timeout)),
            long_wait: settings.long_wait.unwrap_or(LONG_WAIT.default),
            ttl,
            uptime_check: settings.uptime_check.unwrap_or(true),
            back_off: Duration::from_millis(500).min(base / 20),
            replica_acks: settings.replica_acks.filter(|acks| acks.wanted > 0),
            max_kept: settings.max_kept.unwrap_or(MAX_KEPT.default),
        };
        config.check_numbers()?;
        if !options.is_fixed() {
            config.check_fits(ttl, given)?;
        }
        config.check_options(&options)?;
        Ok((config, options))
    }

    fn check_numbers(&self) -> Result<()> {
        PREFIX.check_text(&self.prefix, |c| matches!(c, '{' | '}') || c.is_control())?;
        COMMAND_TIMEOUT.check(self.command_timeout)?;
        CONNECT_TIMEOUT.check(self.connect_timeout)?;
        CHECK_PERIOD.check(self.check_period)?;
        HORIZON.check(self.horizon)?;
        LONG_WAIT.check(self.long_wait)?;
        LANES.check(self.lanes)?;
        MAX_KEPT.check(self.max_kept)?;
        if self.outage_limit < self.command_timeout {
            let least = shown(self.command_timeout);
            let allowed = format!("at least the command timeout, {least}");
            return Err(OUTAGE_LIMIT.refusal(allowed, self.outage_limit));
        }
        if let Some(acks) = self.replica_acks {
            // The reply to WAIT must come within T, as every other reply.
            let longest = self.command_timeout / 2;
            if !(REPLICA_ACKS.least..=longest).contains(&acks.timeout) {
                let [least, most] = [REPLICA_ACKS.least, down_to_ms(longest)].map(shown);
                let allowed = format!("a timeout of {least} to half the command timeout, {most}");
                return Err(REPLICA_ACKS.refusal(allowed, acks.timeout));
            }
        }
        let needed = least_horizon(self.check_period, self.command_timeout);
        if self.horizon < needed {
            let least = shown(up_to_ms(needed));
            let allowed = format!("at least check_period + 3 × command_timeout, {least}");
            return Err(HORIZON.refusal(allowed, self.horizon));
        }
        Ok(())
    }

    /// Refuses options with which no lock can be held. [`Config::check_wait`] has more conditions,
    /// for a caller that may wait.
    pub(crate) fn check_options(&self, options: &LockOptions) -> Result<()> {
        options.length_setting().check(options.lease_length())?;
        if !options.is_fixed() {
            self.check_renewed_ttl(options.lease_length())?;
        }
        HOLD_AT_LEAST.check(options.least_hold())?;
        if options.hold_limit().is_some_and(|limit| limit.is_zero()) {
            return Err(Error::setting("max_hold", "more than zero; it is zero"));
        }
        check_for_one_guard(options)?;
        LOCAL_HANDOVERS.check(options.most_local_handovers())?;
        self.check_keep(options)?;
        LABEL.check_text(options.label_text(), char::is_control)
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
        let needed = shown(needed);
        let ([(name, value)], Some(most)) = (&given[..], self.most_with(ttl, &given)) else {
            let list: Vec<String> = given
                .iter()
                .map(|(name, value)| format!("{name} {}", shown(*value)))
                .collect();
            let allowed = format!("at least {needed} with {}", list.join(" and "));
            return Err(TTL.refusal(allowed, ttl));
        };
        let [most, ttl, value] = [most, ttl, *value].map(shown);
        let allowed =
            format!("at most {most} with the ttl of {ttl}, or a ttl of at least {needed}");
        Err(Error::setting(name, format!("{allowed}; it is {value}")))
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
        if (KEEP_IDLE.least..=most).contains(&keep) {
            return Ok(());
        }
        let [least, most] = [KEEP_IDLE.least, down_to_ms(most)].map(shown);
        Err(KEEP_IDLE.refusal(format!("{least} to {most}"), keep))
    }

    /// Refuses options that a quorum has not: it has no queue, and a node that restarts has no vote for
    /// the ttl of the builder alone.
    pub(crate) fn check_for_quorum(&self, options: &LockOptions) -> Result<()> {
        if let Some((option, default)) = options.option_of_lent_locks() {
            let message =
                format!("a quorum has no queue, so it does not offer this; set {default}");
            return Err(Error::setting(option, message));
        }
        for (setting, length) in [
            (options.length_setting(), options.lease_length()),
            (HOLD_AT_LEAST, options.least_hold()),
        ] {
            if length > self.ttl {
                let most = shown(self.ttl);
                let allowed =
                    format!("on a quorum at most the ttl of the builder's options, {most}");
                return Err(setting.refusal(allowed, length));
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
        options.length_setting().check(options.lease_length())?;
        check_for_one_guard(options)?;
        let ttl = options.lease_length();
        if !self.may_wait(options.is_fixed(), ttl) {
            let needed = self.least_fixed_wait();
            let message = format!(
                "to wait with it, at least {} and more than check_period + 2 × command_timeout, {}; \
                 it is {}, which only try_lock can use",
                shown(TTL.least),
                shown(up_to_ms(needed)),
                shown(ttl)
            );
            return Err(Error::setting("fixed_lease", message));
        }
        Ok(())
    }

    /// R16 (hold_at_least, fixed leases): whether a caller with such a lease may wait for it.
    pub(crate) fn may_wait(&self, is_fixed: bool, ttl: Duration) -> bool {
        !is_fixed || ttl >= TTL.least && ttl > self.least_fixed_wait()
    }

    fn least_fixed_wait(&self) -> Duration {
        self.check_period + self.command_timeout * 2
    }
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

#[cfg(test)]
mod tests;
