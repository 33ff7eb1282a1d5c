//! Fair, renewed, fenced distributed locks on Redis, for threaded programs.
#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod fence;
mod glob;
mod guard;
mod inspect;
mod key;
mod kind;
mod lock;
mod loss;
mod manager;
mod script;
mod stats;
mod store;
mod waiter;

pub use crossbeam_channel;

pub use config::{
    DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_HORIZON, DEFAULT_OUTAGE_LIMIT, DEFAULT_POOL_SIZE,
    DEFAULT_PREFIX, DEFAULT_TTL, LockOptions, MAX_LABEL, MAX_TTL, MIN_FIXED_LEASE, MIN_TTL,
};
pub use error::{Error, Result, Step};
pub use fence::FenceGate;
pub use guard::LockGuard;
pub use inspect::{List, LockInfo, LockState, MAX_WAITERS_SHOWN, Party};
pub use key::MAX_NAME;
pub use kind::Kind;
pub use lock::Mutex;
pub use loss::{Loss, LossReason, PreviousHolder};
pub use manager::{Builder, Endpoint, LockManager, Shutdown};
pub use stats::Stats;
pub use waiter::Waiter;
