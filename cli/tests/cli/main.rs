//! The command line, each command as a process of its own against real servers.

#[path = "../../../tests/it/support/mod.rs"]
mod support;

#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/support/cluster_set.rs"]
mod cluster_set;
#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/support/sentinel_set.rs"]
mod sentinel_set;

mod bench;
#[cfg(feature = "tls")]
#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/tls/certificates.rs"]
mod certificates;
mod connection;
#[allow(dead_code, reason = "the program uses all")]
#[path = "../../src/defaults.rs"]
mod defaults;
mod doctor;
mod documented;
mod follow;
mod generated;
mod last_heard;
mod look;
mod ls;
mod process;
mod release;
mod run;
mod show;
mod terminal;
#[cfg(feature = "tls")]
mod tls;
mod top;
mod topologies;
mod usage;
mod why_waiting;

/// Not a test: worker processes begin here, see [`support::Child`].
#[test]
fn child_process() {
    support::child::play(&[why_waiting::HOLDS_AND_WAITS]);
}
