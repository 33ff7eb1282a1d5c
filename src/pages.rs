//! The pages of `docs/`, beyond the tutorial on the [front page](crate). They contain only text.

// In the files, a link to another page names its file. Here the same link leads to a module: of two
// definitions of a link, the first one counts.

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/GUIDE.md")]
pub mod guide {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/SERVERS.md")]
pub mod servers {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/CONFIGURATION.md")]
pub mod configuration {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/OPERATIONS.md")]
pub mod operations {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/COMMAND_LINE.md")]
pub mod command_line {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/METRICS.md")]
pub mod metrics {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/SAFETY.md")]
pub mod safety {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/COMPARISON.md")]
pub mod comparison {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/BENCHMARKS.md")]
pub mod benchmarks {}

#[doc = include_str!("pages/links.md")]
#[doc = include_str!("../docs/PROTOCOL.md")]
pub mod protocol {}
