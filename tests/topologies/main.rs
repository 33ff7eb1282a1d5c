//! Tests with sets of real servers: TLS, Sentinel, Cluster, quorum and replicas.

#[path = "../it/support/mod.rs"]
mod support;

#[path = "support/cluster_set.rs"]
mod cluster_set;

mod cluster;
mod quorum;
mod replica_acks;
mod right_server;
mod rights;
mod sentinel;
mod tls;
mod urls;
