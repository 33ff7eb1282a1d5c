//! What comes from outside, as a fuzzer makes it up. Each function takes any bytes, and panics if they bring about what
//! must not be: whatever a fuzzer finds is a failed assertion here. `fuzz/` has a target for each of them.

mod corpus;
mod engine;
mod names;
mod replies;
mod settings;
mod shapes;
mod tape;
mod values;
mod wire;

pub use engine::engine;
pub use names::names;
pub use replies::replies;
pub use settings::{config, url};
pub use wire::wire;

/// What a fuzzer calls.
pub type Target = fn(&[u8]);

/// All of them, by the names of their targets.
pub const TARGETS: [(&str, Target); 6] = [
    ("url", url),
    ("config", config),
    ("names", names),
    ("replies", replies),
    ("wire", wire),
    ("engine", engine),
];
