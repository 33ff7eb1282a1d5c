//! What fairlock's own tests judge it by: a vocabulary of what clients do and see, a model of what the promises allow,
//! and a simulator. Without any promise of stability.
//!
//! That model has no clock: a lease ends when it is said to. It knows nothing of the loss of data, of
//! `hold_at_least`, or of the grace that a lease may be given after an outage. [`small`] has another, of processes
//! rather than of what they see, and searches all that can happen to three of them.
//!
//! # The simulator
//!
//! [`simulate`] plays runs, each of them in one thread and without any host's clock. A run is made from a seed, the same
//! run from the same seed:
//!
//! | part | has | asks |
//! |---|---|---|
//! | `plan` | what is done to whom and when, as a list: somebody wants the lock, a request is lost, a process crashes | nobody |
//! | `run` | the events in the order of their time, the network, the server's clock, data and outages | all below |
//! | `process` | an engine without its threads, its callers, a clock that drifts, connections with their anchors | the shipped engine, by `engine::ByHand` |
//! | the server | the shipped scripts under the in-memory store's interpreter | |
//! | `judge` | who stands in the queue, who was granted what, which loss of data or clock step came when | only the record |
//!
//! `engine::ByHand` is the shipped engine, cut where a thread would block: what a caller or the renewal thread sends is
//! taken from it, and given back with an answer, or with none. So decisions are the shipped code's: places, leases,
//! upkeep, background releases, renewals. Left out are what waits (`Standing::wait` and its outage limit, the bell, the
//! pool, the listener's thread) and kinds of servers that real ones are needed for.
//!
//! *What can fail:* a request or its reply is lost, comes late, or its connection ends and an earlier copy comes after the
//! one sent again; a message is lost or comes late; a subscription ends; a process is paused, cut off, or crashes and is
//! followed by another; the server hangs, or restarts with or without data, is flushed, loses the record or the queue, has
//! its clock put forward or back, or is followed by a replica with older data and another clock. Clocks of hosts run
//! apart by at most 500 ppm.
//!
//! *What is checked at each step:* P1: the record changes hands only by its owner or a lapse, and while a guard
//! believes that it is held, the record is its own. P2: fences rise. P3: nobody is passed over who was not dead, silent
//! for longer than the horizon while others were served, or without a place since a loss of data or a lapse. P4: after
//! each script a free lock has been given to whoever waits. P7: what comes after its caller's patience takes nothing, and
//! no token is granted again, unless it was given back; what nobody wants by it is given back in P + 3 T. No key
//! lacks a TTL. At the end nothing more goes wrong: everybody must be served in time (P4, P5), one who comes then too,
//! and neither the record nor a registry has anything left. What the promises except is excepted here, and nothing else:
//! P1 for grants from before a loss of data or a clock step, P2 where the clock went back and the record was lost.
//!
//! A run that fails is played again without this or that of its plan, as long as it still fails, and what is left is
//! told with the seed. [`Defect`] leaves out a rule, or spoils a line of a script, to show that this is found. Of R3 and
//! R10 the judge cannot know, since P3 lets a process that was silent for so long lose its places; R6 shows too rarely.

mod op;
mod grant;
mod model;
mod worlds;
pub mod small;
pub mod fuzz;
mod plan;
mod process;
mod run;
mod judge;
mod defect;
mod simulation;

pub use defect::Defect;
pub use model::{Lock, Promise};
pub use op::{Attempt, Lease, Op, Outcome, Sight};
pub use simulation::{Failure, Tally, simulate};
pub use worlds::{Chance, Violation, Worlds};
