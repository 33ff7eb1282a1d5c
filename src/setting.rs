//! The settings that have a range, each described once. The checks, their errors and the test of
//! docs/CONFIGURATION.md read this table. Rules between settings are in `config`.
//!
//! To add a setting, add its row here, and its method with the field that carries it: the compiler and
//! that test name the rest.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::time_text;

/// A setting: its default, and the least and the most that it ever allows. Rules between settings may
/// allow less.
pub(crate) struct Setting<T> {
    pub(crate) name: &'static str,
    /// Follows the range in an error. A time is shown with its own.
    unit: &'static str,
    /// Zero if there is no default, or none that is a number.
    pub(crate) default: T,
    pub(crate) least: T,
    /// Zero: no limit.
    pub(crate) most: T,
    shown: fn(T) -> String,
}

// The options of a lock, and then the settings of a manager. Times are in ms.

const DAY: u64 = 24 * 3600 * 1000;

/// How long a lock outlives its last renewal.
pub(crate) const TTL: Setting<Duration> = time("ttl", 10_000, 1_000, DAY);
/// How long a lock without renewals lasts. One below the least ttl works with `try_lock` only.
pub(crate) const FIXED_LEASE: Setting<Duration> = time("fixed_lease", 0, 10, DAY);
/// How long a name stays taken after a grant, even if the lock is released before.
pub(crate) const HOLD_AT_LEAST: Setting<Duration> = time("hold_at_least", 0, 0, DAY);
/// How long an unused lock is kept. At most a third of its ttl.
pub(crate) const KEEP_IDLE: Setting<Duration> = time("keep_idle", 0, 1, DAY / 3);
/// How many guards get a lock from the guard before, in a row.
pub(crate) const LOCAL_HANDOVERS: Setting<u32> =
    number("local_handovers", " hand-overs", 0, 0, 65_535);
/// What the lock is for.
pub(crate) const LABEL: Setting<u32> =
    number("label", " bytes, without control characters", 0, 0, 256);
/// How long a lock stays valid once it is detached.
pub(crate) const VALID_FOR: Setting<Duration> = time("valid_for", 0, 1, DAY);

/// How the names of keys and channels begin.
pub(crate) const PREFIX: Setting<u32> = number(
    "prefix",
    " bytes, without braces and control characters",
    0,
    1,
    128,
);
pub(crate) const DEFAULT_PREFIX: &str = "fairlock";
/// How many connections short calls share.
pub(crate) const LANES: Setting<u32> = number("lanes", " lanes", 2, 1, 64);
/// How many locks are kept after their guards at a time.
pub(crate) const MAX_KEPT: Setting<u32> = number("max_kept", " names", 1024, 1, 1_000_000);
/// How long a reply may take: the default, or a tenth of the ttl if that is less.
pub(crate) const COMMAND_TIMEOUT: Setting<Duration> = time("command_timeout", 500, 1, DAY);
/// How long it may take to open a connection: as long as a reply.
pub(crate) const CONNECT_TIMEOUT: Setting<Duration> = time("connect_timeout", 500, 1, DAY);
/// How often a process checks each name that it waits for: the default, or an eighth of the ttl if
/// that is less.
pub(crate) const CHECK_PERIOD: Setting<Duration> = time("check_period", 1_000, 1, DAY);
/// How long a silent process keeps its places in queues: the default, or half of the ttl if that is
/// less. Never less than a check period and three command timeouts.
pub(crate) const HORIZON: Setting<Duration> = time("horizon", 5_000, 1, DAY);
/// How long Redis may go without a successful reply before a wait ends with an error. At least a
/// command timeout.
pub(crate) const OUTAGE_LIMIT: Setting<Duration> = time("outage_limit", 10_000, 1, 0);
/// How long a wait may last before the log has a warning of it.
pub(crate) const LONG_WAIT: Setting<Duration> = time("long_wait", 10_000, 1, 0);
/// How long replicas may take to acknowledge a grant. At most half a command timeout.
pub(crate) const REPLICA_ACKS: Setting<Duration> = time("replica_acks", 0, 1, DAY / 2);

const fn time(name: &'static str, default: u64, least: u64, most: u64) -> Setting<Duration> {
    Setting {
        name,
        unit: "",
        default: Duration::from_millis(default),
        least: Duration::from_millis(least),
        most: Duration::from_millis(most),
        shown: time_text::setting,
    }
}

const fn number(
    name: &'static str,
    unit: &'static str,
    default: u32,
    least: u32,
    most: u32,
) -> Setting<u32> {
    Setting {
        name,
        unit,
        default,
        least,
        most,
        shown: |number| number.to_string(),
    }
}

impl<T: Copy + Default + PartialOrd> Setting<T> {
    pub(crate) fn check(&self, value: T) -> Result<()> {
        let is_limited = self.most != T::default();
        if value < self.least || is_limited && value > self.most {
            return Err(self.refusal(self.range(), value));
        }
        Ok(())
    }

    /// The error for a value that is not among those that are allowed.
    pub(crate) fn refusal(&self, allowed: String, value: T) -> Error {
        Error::setting(
            self.name,
            format!("{allowed}; it is {}", (self.shown)(value)),
        )
    }

    fn range(&self) -> String {
        let [least, most] = [self.least, self.most].map(self.shown);
        let range = if self.least == T::default() {
            format!("at most {most}")
        } else if self.most == T::default() {
            format!("at least {least}")
        } else {
            format!("{least} to {most}")
        };
        range + self.unit
    }
}

impl Setting<u32> {
    /// For a text. The range is of its bytes.
    pub(crate) fn check_text(&self, text: &str, is_refused: impl Fn(char) -> bool) -> Result<()> {
        let bytes = text.len();
        let why = match text.chars().find(|c| is_refused(*c)) {
            Some(c) => format!("contains {c:?}"),
            None if (self.least as usize..=self.most as usize).contains(&bytes) => return Ok(()),
            None => format!("has {bytes} bytes"),
        };
        Err(Error::setting(
            self.name,
            format!("{}; it {why}", self.range()),
        ))
    }
}
