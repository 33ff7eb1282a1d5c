//! Grants that replicas have acknowledged.
