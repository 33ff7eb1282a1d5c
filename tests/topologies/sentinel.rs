//! The master of a service that sentinels watch.
