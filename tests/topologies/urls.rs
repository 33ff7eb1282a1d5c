//! URLs and typed endpoints of every topology.
