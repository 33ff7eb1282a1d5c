//! The pages of `docs/`, beyond the guide on the [front page](crate). They contain only text.

#[doc = include_str!("../docs/CALLS.md")]
pub mod calls {}

#[doc = include_str!("../docs/CHOOSING.md")]
pub mod choosing {}

#[doc = include_str!("../docs/RECIPES.md")]
pub mod recipes {}

#[doc = include_str!("../docs/SAFETY.md")]
pub mod safety {}

#[doc = include_str!("../docs/FAULTS.md")]
pub mod faults {}

#[doc = include_str!("../docs/TROUBLE.md")]
pub mod trouble {}

#[doc = include_str!("../docs/DIAGNOSIS.md")]
pub mod diagnosis {}

#[doc = include_str!("../docs/COMMAND_LINE.md")]
pub mod command_line {}

#[doc = include_str!("../docs/METRICS.md")]
pub mod metrics {}

#[doc = include_str!("../docs/CONFIGURATION.md")]
pub mod configuration {}

#[doc = include_str!("../docs/SENTINEL.md")]
pub mod sentinel {}

#[doc = include_str!("../docs/CLUSTER.md")]
pub mod cluster {}

#[doc = include_str!("../docs/QUORUM.md")]
pub mod quorum {}

#[doc = include_str!("../docs/TLS.md")]
pub mod tls {}

#[doc = include_str!("../docs/LOG.md")]
pub mod log {}

#[doc = include_str!("../docs/MIGRATING.md")]
pub mod migrating {}

#[doc = include_str!("../docs/COMPARISON.md")]
pub mod comparison {}

#[doc = include_str!("../docs/BENCHMARKS.md")]
pub mod benchmarks {}

#[doc = include_str!("../docs/COSTS.md")]
pub mod costs {}

#[doc = include_str!("../docs/PROTOCOL.md")]
pub mod protocol {}
