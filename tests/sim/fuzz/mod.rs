//! Targets for a fuzzer: everything that parses or trusts words from outside.
//!
//! Each function takes any bytes, and panics if a check fails. So everything that a fuzzer finds is
//! a failed assertion here. `fuzz/` has a target for each function, and `corpus` replays the inputs
//! that are kept there.
//!
//! | target | what the bytes make up | what is checked |
//! |---|---|---|
//! | `url` | a URL, often with a password | no refusal shows the password, and an accepted URL is read as it was written |
//! | `config` | the settings of a builder and of a handle | accepted settings keep the bounds of docs/CONFIGURATION.md |
//! | `names` | lock names, a prefix, a pattern | names and keys convert both ways, and patterns miss no name |
//! | `replies` | one answer of a script, or one message | exactly the documented answers and messages are accepted |
//! | `wire` | the bytes that a server sends on a connection | each answer belongs to its own call |
//! | `engine` | what callers do, and what a server answers | no guard without a grant, and no lease is trusted too long |

mod corpus;
mod engine;
mod input;
mod names;
mod replies;
mod settings;
mod shapes;
mod values;
mod wire;

pub use engine::engine;
pub use names::names;
pub use replies::replies;
pub use settings::{config, url};
pub use wire::wire;

/// A function that a fuzzer calls.
pub type FuzzTarget = fn(&[u8]);

/// All targets by their names.
pub const TARGETS: [(&str, FuzzTarget); 6] = [
    ("url", url),
    ("config", config),
    ("names", names),
    ("replies", replies),
    ("wire", wire),
    ("engine", engine),
];
