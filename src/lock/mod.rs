//! What is taken: the kinds of lock. A kind is data for a family of scripts; how it is won and kept is the
//! engine's.

mod mutex;

pub use mutex::Mutex;
