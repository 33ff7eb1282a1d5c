//! TLS: certificates that count, and those that do not.
