//! Kept locks where a server, processes, a network or much time is needed. On Redis alone. The claims
//! about both stores are in `behaviour/kept`.
//!
//! | module | subject |
//! |---|---|
//! | `heard` | other managers get a kept lock although messages are lost, or the keeper is deaf |
//! | `releases` | the release of a kept lock, or a reply, is held back or lost |
//! | `names` | which names are kept |
//! | `trouble` | connections, data, time or memory are lost while locks are kept |
//! | `shares` | managers that all want a name that they would keep |
//! | `processes` | a keeper is stopped, killed, forked, or exits |

mod heard;
mod names;
pub(crate) mod processes;
mod releases;
mod shares;
mod trouble;
