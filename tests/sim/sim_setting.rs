//! The setting that runs have in common: one name, and a ttl of 3 s, from which all else is
//! derived.

use std::time::Duration;

use super::model::ModelKind;
use super::plan::{self, LeaseKind};
use crate::config::{Config, Settings};
use crate::key::Key;
use crate::options::LockOptions;
use crate::script::LockSpec;

pub(super) struct SimSetting {
    /// The use of the name.
    pub(super) kind: ModelKind,
    pub(super) config: Config,
    pub(super) key: Key,
    pub(super) ttl: Duration,
    /// The `hold_at_least`, the `max_hold` and, of permits, the fixed lease of callers that ask
    /// for one.
    pub(super) bound: Duration,
    /// How often a process hands a mutex over within itself, in one grant.
    pub(super) local_handovers: u32,
    /// For how long most callers of a mutex keep it unused.
    pub(super) keep: Option<Duration>,
}

impl SimSetting {
    pub(super) fn new(kind: ModelKind) -> SimSetting {
        let ttl = Duration::from_secs(3);
        let config = config(ttl, None);
        let key = Key::new(&config.prefix, "a").expect("it is a name");
        SimSetting {
            kind,
            config,
            key,
            ttl,
            bound: ttl / 3,
            local_handovers: 0,
            keep: None,
        }
    }

    /// The setting of a run: in every third run of a mutex, processes hand it over within
    /// themselves, and in every other third they keep it, too.
    pub(super) fn of_run(seed: u64) -> SimSetting {
        let kind = plan::kind(seed);
        let is_mutex = kind == ModelKind::Mutex;
        let ttl = SimSetting::new(kind).ttl;
        // Every other number is a mutex's.
        let hands_over = matches!(seed % 9, 0 | 3 | 4 | 6 | 7);
        let keep = plan::keep_part(seed).map(|part| ttl / part);
        let common = SimSetting::new(kind);
        SimSetting {
            local_handovers: if is_mutex && hands_over { 2 } else { 0 },
            keep,
            // A deaf process finds that out before its renewals tell it of waiters.
            config: match keep {
                Some(keep) if keep < ttl / 3 => config(ttl, Some(ttl / 15)),
                _ => common.config,
            },
            ..common
        }
    }

    pub(super) fn spec(&self, permits: u32) -> LockSpec {
        match self.kind {
            ModelKind::Mutex => LockSpec::MUTEX,
            ModelKind::Semaphore(all) => LockSpec::semaphore(all, permits),
            ModelKind::ReadWrite(all) if permits == all => LockSpec::write(),
            ModelKind::ReadWrite(_) => LockSpec::read(),
        }
    }

    pub(super) fn options(&self, lease_kind: LeaseKind) -> LockOptions {
        let options = LockOptions::new().ttl(self.ttl);
        match lease_kind {
            LeaseKind::Renewed => options,
            LeaseKind::Fixed if self.kind == ModelKind::Mutex => {
                LockOptions::new().fixed_lease(self.ttl)
            }
            // Shorter than the leases beside it, so that leases of different length meet.
            LeaseKind::Fixed => LockOptions::new().fixed_lease(self.bound),
            LeaseKind::HoldAtLeast => options.hold_at_least(self.bound),
            LeaseKind::MaxHold => options.max_hold(self.bound),
        }
    }

    /// How long a lease with these options is.
    pub(super) fn full_lease(&self, lease_kind: LeaseKind) -> Duration {
        let options = self.options(lease_kind);
        options.lease_length().max(options.least_hold())
    }

    /// How long the server may take to serve one waiter after the one before it: P + 3 T, in ns.
    pub(super) fn per_waiter(&self) -> u64 {
        (self.config.check_period + self.config.command_timeout * 3).as_nanos() as u64
    }

    /// P + T, in ns.
    pub(super) fn step(&self) -> u64 {
        (self.config.check_period + self.config.command_timeout).as_nanos() as u64
    }
}

/// The numbers that are derived from a ttl, or from a check period.
fn config(ttl: Duration, check_period: Option<Duration>) -> Config {
    let wanted = Settings {
        options: LockOptions::new().ttl(ttl),
        check_period,
        command_timeout: check_period.map(|period| period * 2 / 3),
        ..Settings::default()
    };
    let (config, _) = Config::new(wanted).expect("the numbers of a ttl fit each other");
    config
}
