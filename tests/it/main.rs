//! The tests that drive fairlock from outside, through its public API.

mod addresses;
mod all_faults;
mod api;
mod backend;
mod bad_input;
mod batched;
mod behaviour;
mod blocked_logger;
#[cfg(feature = "memory")]
mod books;
mod child_roles;
mod connecting;
mod connection_names;
mod connections;
mod counts;
mod crash;
mod credentials;
mod data_loss;
mod dead_waiters;
mod detached;
mod ends;
mod exclusion;
mod exits;
mod fairness;
mod fixtures;
mod footprint;
mod fork;
mod idle_close;
mod keeping;
mod kept;
mod lanes;
mod leftovers;
mod log_capture;
mod long_wait_lines;
mod loss_lines;
mod lost_replies;
mod managers;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "memory")]
#[allow(dead_code, unused_imports, reason = "the simulator uses the rest")]
#[path = "../model/mod.rs"]
mod model;
mod no_new_connections;
mod outage;
#[cfg(feature = "unstable-servers")]
mod own_commands;
mod paused;
mod permit_crash;
mod permit_replies;
mod permit_server;
mod permits;
mod process;
#[cfg(feature = "memory")]
mod property;
mod proxies;
mod refused_writes;
mod renewals;
#[cfg(feature = "memory")]
mod reply;
mod rights;
mod rules;
mod self_waits;
#[cfg(all(feature = "memory", feature = "serde"))]
mod serialized;
mod server_addresses;
mod server_clock;
mod server_faults;
mod server_versions;
mod shutdown;
mod silent_connections;
mod slow_link;
mod small_pool;
mod soak_checker;
mod stack;
mod stats;
mod subscription;
mod sums;
mod support;
mod support_works;
mod tidy;
mod trickle;
mod tries;
mod unread_releases;
mod verbs_once;
mod wanted;
mod worker;

/// Not a test: worker processes begin here, see [`support::Child`].
#[test]
fn child_process() {
    support::child::play(child_roles::ROLES);
}
