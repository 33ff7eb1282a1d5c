//! What the library does unless it is told otherwise, and the values that it allows.
//! docs/CONFIGURATION.md has the same.

use std::time::Duration;

pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const DEFAULT_CHECK_PERIOD: Duration = Duration::from_secs(1);
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_secs(5);
pub(crate) const DEFAULT_OUTAGE_LIMIT: Duration = Duration::from_secs(10);
pub(crate) const DEFAULT_PREFIX: &str = "fairlock";
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// In bytes.
pub(crate) const MAX_LABEL: usize = 256;
