//! Sentinel: the master of a service, wherever it is.

mod set;
