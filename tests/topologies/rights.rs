//! The ACL rule of each topology.
