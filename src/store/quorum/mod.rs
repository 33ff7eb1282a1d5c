//! The store that is a majority of independent nodes.

pub(crate) mod decision;
