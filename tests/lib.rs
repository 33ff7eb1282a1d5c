//! What the tests of this package share. Their tools, which each target compiles for itself, are in `it/support`.

/// The root of the repository, whose files some tests read.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
