//! What fairlock's own tests judge it by: one vocabulary of what is done with a name and what comes of it, one model of
//! what the server does then, and three ways to use them. Without any promise of stability.
//!
//! | who | sees | tells the model |
//! |---|---|---|
//! | the property test | what clients see | operations and their outcomes. What may go on in the background it guesses: [`PossibleStates`] keeps each [`PossibleState`], a [`ModelLock`] and what is under way, that agrees with what was seen |
//! | the simulator, [`simulate`] | each request at the server, and the record after it | the request, its answer and what is there then, to one [`ModelLock`] |
//! | the search of small worlds, [`small`] | the same | the same, of a [`ModelLock`] made from the record before it |
//!
//! The model has no clock. What the server's clock decides it is told with each request, as a [`ServerView`]: whether the
//! holder's time is over, who was silent for too long, whether the server was away. The property test, which cannot
//! know, says when a lease ends. What the record and the queue show must be what the model has: the holders, their
//! fences, and those who wait in their order; so who is alive must not be passed over, and who is dead must be.
//!
//! # The simulator
//!
//! [`simulate`] plays runs, each of them in one thread and without any host's clock. A run is made from a seed, the
//! same run from the same seed. Every other one is of a mutex, the rest in turn of a semaphore of three permits, of
//! which one to three are asked for at once, and of a reader/writer lock, whose writers downgrade now and then.
//!
//! | part | has | asks |
//! |---|---|---|
//! | `plan` | what is done to whom and when, as a list: somebody wants the lock, a request is lost, a process crashes | nobody |
//! | `run` | the events in the order of their time, the network, the server's clock, data and outages | all below |
//! | `process` | an engine without its threads, its callers, a clock that drifts, connections with their anchors | the shipped engine, by `engine::SteppedEngine` |
//! | the server | the shipped scripts under the in-memory store's interpreter | |
//! | `watch` | the bounds of time that the promises name, after each event | processes and `judge` |
//! | `judge` | the model, which is told each request; `served`, the time that counts for the silent; which grant was given back, which loss of data or clock step came when | only the record, which `books` looks over |
//!
//! `engine::SteppedEngine` is the shipped engine, cut where a thread would block: what a caller or the renewal thread sends is
//! taken from it, and given back with an answer, or with none. So decisions are the shipped code's: places, leases,
//! upkeep, background releases, renewals. Left out are what waits (`Standing::wait` and its outage limit, the bell, the
//! pool, the listener's thread) and kinds of servers that real ones are needed for.
//!
//! *What can fail:* a request or its reply is lost, comes late, or its connection ends and an earlier copy comes after
//! the one sent again; a message is lost or comes late; a subscription ends; a process is paused, cut off in both
//! directions or hears nothing while its requests arrive, or crashes and is followed by another; a place is dropped; a
//! guard is renewed by its owner; somebody takes the lock by force; the server hangs, or restarts with or without data,
//! is flushed, loses the record, the queue or the holders of permits, has its clock put forward or back, or is followed
//! by a replica with older data and another clock. Clocks of hosts run apart by at most 500 ppm. Leases are renewed or
//! fixed, some with a least or a longest time; fixed ones of permits are a third as long as the others.
//!
//! *What is checked at each step:* what the model says of each request: P1 in the record, fences that rise (P2), the
//! order of the queue and who is passed over in it (P3), and that a free lock has been given to whoever waits (P4), or the
//! request is to be sent again, because 64 heads were passed over in it and there are more.
//! Beside it, by the judge: a lease has its full time and no more; while a guard believes that it is held, the record
//! has it as a holder, with its fence (P1); no request takes anything after its caller's patience, and no token is
//! granted again, unless it was given back; what nobody wants by it is given back in P + 3 T (P7); places that were
//! lost with data are taken again in their order (P3); no token is sent for longer than its ttl (R6); `max_hold` is
//! kept; no key lacks a TTL. Whose lease ended without a release is not told that it had been released, and with
//! permits how it ended, for one more ttl (P6). What is counted of permits is right after each request: those that are
//! taken are those of the holders, of what cools, and of holders that were lost, for whose time they count on; and no
//! holder lapses before the next look at them.
//!
//! And by `watch`, of time: who waits and was granted the lock knows it in P + 3 T, and in 3 ms until something goes
//! wrong in a run (P4); while somebody waits whom nothing troubles, the lock does not stay with a process that crashed,
//! is paused or cut off for longer than ttl + P + 2 T and one step of grace, nor for longer than P + 2 T if what is free,
//! or held by leases that are over, is enough for who is next; nor does one who is dead stand before others for what is
//! not there for longer than H + P + 2 T (P5); a loss is told in T once a guard can know it, and what only the server knows in ttl / 3 + 2 T and a back-off
//! (P6); what comes from the queue is claimed with at least half its ttl left (R12); no renewed lease is lost until
//! something goes wrong. Such a bound begins when what troubles the process is over: a pause, a cut, a request that was
//! lost, late or unheard, an outage, a loss of data, a step of the clock.
//!
//! At the end nothing more goes wrong: everybody must be served, one who comes then too, and neither the record nor a
//! registry has anything left. `small` has exact bounds.
//!
//! *What is excused,* of mutexes and of permits if nothing else is said. `excused` has a history that needs each of those
//! that do not follow from their reason, and that is accused without it.
//!
//! | of | what | because |
//! |---|---|---|
//! | P1 | guards of grants from before a loss of data, a step of the clock or a force, until their next renewal must have told them: ttl / 3 + 2 T and a back-off later. It counts from when the guard began, if that was after the force: the first renewal does. Those with fixed leases until their end | only the server knows, and it does not come forward |
//! | P1 | guards whose deadline was counted from a clock that has made a step | R12 trusts that the clock goes on |
//! | P6 | how leases ended, if what knew it was lost with data or is not in the older copy. Of a mutex, how any but the last one did: `unknown`, never `already`. Of permits, after a ttl by the server's clock, or a ttl from when it went back | a mutex has room for one; R15 cuts all that is too long to a ttl |
//! | P7 | what is taken by a request that is dated by an answer from before a step of the clock | R5 trusts that the clock goes on |
//! | P7 | what an older copy of the data may have brought back: tokens that stood in the queue before a failover | that it was given back is not in there |
//! | P7 | a second grant of a token, if the first was given back | a copy of its acquire may be under way; it is given back again (R7) |
//! | P7 | a second grant of a token, if the first never became a guard and has lapsed, for a ttl and 2 T from that one | its process, which has heard nothing, sends it for one ttl (R6) |
//! | P7 | for a ttl, what its process could not give back while it was cut off or the server away | it lapses then |
//! | P5 | what a dead process had sent and comes late | it is a sign of life |
//! | P5 | of permits, a lease that the clock, which went back, has made too long, until the next look at the holders, which comes when the first of them would lapse; one of the dead is waited for from then on | the others are not looked at in between: `books` sees that the time of that look, and the shortest lease, by which a clock that went back is noticed at once, are noted right |
//! | P3 | positions, once somebody has come back to a place that he had left, until the queue has been empty | he has a later ticket than those behind him |
//! | P3 | the order in which lost places are taken again: of who had been granted the lock and had yet to hear of it, and of who heard that he stands after the check was sent whose answer came last, or lost his place after that check | he had no place any more; that answer is not about him |
//! | R11 | how many entries are counted, from a loss of data until it is right again | the next check counts them |
//!
//! A run that fails is played again without this or that of its plan, as long as it still fails, and what is left is
//! told with the seed. [`Defect`] leaves out a rule, or spoils a line of a script, to show that this is found.
//!
//! *Not played:* several names, the outage limit of those who wait, `shutdown`, a link that sends a pipeline again,
//! many holders of one name, and processes with different settings.

mod books;
mod defect;
#[cfg(test)]
mod excused;
pub mod fuzz;
mod judge;
#[allow(dead_code, unused_imports, reason = "the property test uses the rest")]
#[path = "../model/mod.rs"]
mod model;
mod model_tests;
mod plan;
mod process;
mod record;
mod run;
mod served;
mod shown_clock;
mod simulation;
mod small;
mod tests;
