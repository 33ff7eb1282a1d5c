//! The masters of a cluster.
