//! Tests with sets of real servers: TLS, Sentinel, Cluster, quorum and replicas.

#[path = "../it/support/mod.rs"]
mod support;

#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "support/cluster_set.rs"]
mod cluster_set;
#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "support/sentinel_set.rs"]
mod sentinel_set;

mod cluster;
mod connection_names;
mod credentials;
mod damaged_records;
#[path = "../it/keeping.rs"]
mod keeping;
mod link_local;
mod no_new_connections;
mod quorum;
mod replica_acks;
mod right_server;
mod rights;
mod sentinel;
mod server_addresses;
mod silent_connections;
#[path = "../it/sums.rs"]
mod sums;
#[cfg(feature = "tls")]
mod tls;
mod urls;
#[path = "../it/verbs_once.rs"]
mod verbs_once;

/// Not a test: worker processes begin here, see [`support::Child`].
#[test]
fn child_process() {
    support::child::play(&[
        cluster::WANTS,
        link_local::AT_LINK_LOCAL,
        quorum::WARNINGS,
        sentinel::SET_UP_ANEW,
        sentinel::TURNS,
        #[cfg(feature = "tls")]
        tls::DROPS_AND_EXITS,
        #[cfg(feature = "tls")]
        tls::SIGNALLED,
        #[cfg(feature = "tls")]
        tls::SMALL_STACK,
    ]);
}
