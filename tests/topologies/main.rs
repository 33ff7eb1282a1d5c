//! Tests with sets of real servers: TLS, Sentinel, Cluster, quorum and replicas.

#[path = "../it/support/mod.rs"]
mod support;

#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "support/sentinel_set.rs"]
mod sentinel_set;

mod cluster;
mod quorum;
mod replica_acks;
mod right_server;
mod rights;
mod sentinel;
mod tls;
mod urls;
