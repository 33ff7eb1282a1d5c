//! How fairlock's own tests check it: one model of the server, and three ways to use it. Nothing
//! here is public or stable.
//!
//! The model knows what a client can do with a name, and what may come of it. It is used by:
//!
//! | test | it sees | it passes to the model |
//! |---|---|---|
//! | the property test | what clients see | operations and their outcomes. It guesses what happens in the background: `PossibleStates` keeps each `PossibleState` that agrees with what was seen. A possible state is a `ModelLock` and what is under way |
//! | the simulator, `simulate` | each request at the server, and the record after it | the request, its answer and the record after it, to one `ModelLock` |
//! | the search of small worlds, `small` | the same | the same, to a `ModelLock` made from the record before the request |
//!
//! The model has no clock. With each request it gets a `ServerView`, which says what only the
//! server's clock knows: whether the holder's time is over, who was silent for too long, and
//! whether the server was away. The property test cannot know that, so it says when a lease ends.
//! The record and the queue must show what the model has: the holders, their fences, and the
//! waiters in their order. So no script may pass over a live waiter, and every script must pass
//! over the dead.
//!
//! # The simulator
//!
//! `simulate` plays runs. Each run is made from a seed, in one thread and without any real clock:
//! the same seed makes the same run. Every other run is of a mutex. The rest are in turn of two
//! kinds: a semaphore of three permits, of which callers take one to three at once, and a
//! reader/writer lock, whose writers downgrade now and then. In every third run of a mutex,
//! processes hand it over within themselves, up to twice in one grant. A forced release may then
//! name any fence of the grant. `several_turns` shows script by script which fences count as used.
//! In every other third, three callers in four have their process keep the mutex, which hears when others
//! want it. No name stays cold there. In part of these runs, a process that hears nothing finds that
//! out before its renewals tell it of waiters.
//!
//! | part | what it has | what it uses |
//! |---|---|---|
//! | `plan` | the list of actions and their times: a caller wants the lock, a request is lost, a process crashes | nothing |
//! | `run` | the events in the order of their times, the network, and the server's clock, data and outages | all parts below |
//! | `process` | an engine without its threads, its callers, a clock that drifts, and connections with their anchors | the shipped engine and its lines, through `local::SteppedManager` |
//! | `lane`, `run::lane` | the lane of a process: what it sends again, in which order, and who reads a reply that nobody waits for | |
//! | the server | the shipped scripts, in the interpreter of the in-memory store | |
//! | `time_watch` | the bounds of time that the promises name, checked after each event | processes and the checker |
//! | `checker` | the model, which gets each request; the served time of silent waiters; which grant was released; when data was lost or the clock stepped | the record, which `accounting` checks by itself |
//!
//! `local::SteppedManager` is the shipped engine with its lines, cut where a thread would block. The simulator
//! takes from it what a caller or the renewal thread sends, and hands it the reply, or none. So the
//! shipped code makes all decisions: for waiters, leases, checks, background releases and renewals.
//! The simulator leaves out the code that blocks: the wait itself with its outage limit, the waker,
//! the lanes, and the subscription's thread. It also leaves out differences between kinds of
//! servers, for which tests need real ones.
//!
//! All callers of a process share one lane, since a run has one name. The lane is a FIFO in both
//! directions: requests arrive in the order in which they were sent, and their replies come in that
//! order. If one is lost or late, so is all that is behind it on the connection. When a
//! connection ends, everything without a reply is in doubt: it may have run, or may run yet, in its
//! order. Most guards are dropped and not unlocked. The engine decides whether the caller leaves
//! once its release is written. The renewal thread has a connection of its own. It renews a mutex in one call with two
//! others: a token that never had the lock, and a name without a record.
//!
//! # What can fail
//!
//! - *Requests:* a request or its reply is lost or comes late. Its connection ends, and an earlier
//!   copy arrives after the one that was sent again. The server forgets its scripts.
//! - *Messages:* a message is lost or comes late. A subscription ends, or dies unseen. A message that
//!   others wait comes twice.
//! - *Processes:* a process is paused. It is cut off in both directions, or its requests arrive
//!   while it receives nothing. It crashes, and another takes its slot. It crashes right after its
//!   guards were dropped, and its kernel may reset the connection.
//! - *Callers:* a caller drops its guard and tries to take the lock again at once. A caller drops
//!   its waiter. An owner renews its guard. A caller takes the lock by force.
//! - *The server:* it hangs, or restarts with or without its data. It is flushed. It loses the
//!   record, the queue or the holders of permits. `lose_each_key` has runs with no other fault, and
//!   loses each of these keys after each of their requests. Its clock steps forward or back. A replica with
//!   older data and another clock takes over.
//!
//! In half of the runs, a list is written anew as soon as it has a dead entry. The shipped scripts do
//! so only with more than 64 of them, which no run has.
//!
//! Clocks of hosts run apart by at most 500 ppm. Leases are renewed or fixed. Some have a
//! `hold_at_least` or a `max_hold`. Fixed leases of permits are a third as long as the others.
//!
//! # What is checked at each step
//!
//! The model checks each request:
//!
//! - P1 in the record: no more callers hold than may.
//! - P2: fences rise. Those that a grant has reserved for turns count as used from its release on up
//!   to the one that this names, and all of them if it ends otherwise.
//! - P3: the order of the queue, and who was passed over in it.
//! - P4: a free lock went to the first waiter. The exception is a request that passed over 64 heads
//!   while there were more: it is to be sent again.
//!
//! The checker adds:
//!
//! - A lease has its full time and no more. No answer and no message says that more is left, and no
//!   guard believes in more, whatever the clock did.
//! - P1: as long as a guard believes that it is held, the record has it as a holder, with its
//!   fence.
//! - P7: no request takes anything after its caller has stopped waiting. No token is granted again,
//!   unless it was released. A grant that nobody wants is released in P + 3 T.
//! - P2: the fence of a turn is one that its grant has reserved, and larger than that of the turn
//!   before. A release names the last one.
//! - P3: no waiter waits for more turns of a line than one grant may have. Where a process hears of
//!   waiters, this counts from when it must have heard.
//! - Kept leases: a message about an older grant ends none. A process that has heard nothing for
//!   2 P + T lends none. A caller that asks for the lock in another way finds none of its own process in
//!   its way, and no answer that counts says that one still has the lock which its process let go
//!   before. After trouble with the server, P1 has no exception for a guard that gets one.
//! - Until something goes wrong, no lease counts as lost but those that must end.
//! - P3: a process takes lost places again in their order. No answer that counts says that a guard
//!   still has the lock which its process dropped before it sent the call.
//! - R6 (token lifetime): no token is sent for longer than its ttl.
//! - Every `max_hold` is kept.
//! - No key lacks a TTL.
//! - P6: the holder of a lease that ended without a release never gets the answer that it had
//!   released. For permits it learns how the lease ended, for one more ttl.
//! - The counts of permits are right after each request: the permits that count as taken are those
//!   of holders, those that cool, and those of lost holders, for the time of those holders. No
//!   holder lapses before the next look at the holders.
//!
//! `time_watch` checks these bounds of time:
//!
//! - P4: a waiter that was granted the lock knows it in P + 3 T. Until something goes wrong in a
//!   run, it knows it in 3 ms.
//! - P4: a dropped lock is released in 3 ms, until something goes wrong in a run. If its process
//!   crashes after the drop, it is released 3 ms after the release should have arrived, and not by
//!   its ttl.
//! - P3: a kept lease ends within 3 ms from when another waiter came, until something goes wrong in a
//!   run. After that it ends in 2 P + T, one look and one request.
//! - A kept lease ends when it was unused for `keep_idle` and two requests.
//! - P5, while an undisturbed waiter waits: the lock stays with a crashed, paused or cut-off
//!   process for at most ttl + P + 2 T and one step of grace.
//! - P5: if what is free, or held by leases that are over, is enough for the first waiter, it gets
//!   it in P + 2 T.
//! - P5: a dead waiter that needs more than is free stays first in the queue for at most
//!   H + P + 2 T.
//! - P6: a loss is reported in T once a guard can know it. A loss that only the server knows is
//!   reported in ttl / 3 + 2 T and a back-off.
//! - R12 (doubtful grants): a waiter takes its grant with at least half its ttl left.
//! - P9: no renewed lease is lost until something goes wrong.
//!
//! Such a bound begins when the process's disturbance is over. A disturbance is a pause, a cut, a
//! request that was lost, late or unanswered, an outage, a loss of data, or a step of the clock.
//!
//! At the end of a run nothing more goes wrong. The server must then serve all callers, and one
//! more that comes last. Neither the record nor a registry may have anything left. `small` has
//! exact bounds.
//!
//! # What is excepted
//!
//! Exceptions hold for mutexes and for permits, unless they say otherwise. Where an exception does
//! not follow from its reason, `exceptions` has a history that needs it and that the checker
//! refuses without it.
//!
//! | promise | exception | reason |
//! |---|---|---|
//! | P1 | a guard whose grant came before a loss of data, a step of the clock or a forced release, until its next renewal must have found that: ttl / 3 + 2 T and a back-off later. If the guard began after the forced release, this counts from when the guard began: its first renewal finds it. A fixed lease is excepted until its end, and for one lease at most | only the server knows, and it reports nothing by itself |
//! | P1 | a guard whose deadline was counted from a clock that has stepped since | R12 trusts that the clock goes on |
//! | P6 | how a lease ended, if the server lost that with its data, or the older copy does not have it. A mutex reports it for the last lease only: for others `unknown`, never `already`. Permits report it for a ttl by the server's clock, or for a ttl from when the clock went back | a mutex has room for one; R15 cuts every time that is too long to a ttl |
//! | P7 | what a request takes that was dated by a reply from before a step of the clock | R5 trusts that the clock goes on |
//! | P7 | what an older copy of the data may have brought back: tokens that waited in the queue before a failover | the older copy does not have their release |
//! | P7 | a second grant of a token, if the first was released | a copy of its acquire may be under way; R7 releases that grant, too |
//! | P7 | a second grant of a token, if the first never became a guard and has lapsed, for a ttl and 2 T from the first | its process knows nothing of the first, and sends the token for one ttl (R6) |
//! | P4 | a lock that was dropped before a crash, if its connection was dead or ended, if the server refused the release, or if a caller waited for a reply on the lane when the guard was dropped | nobody is left to send the release again. The reply to a dead process makes its kernel reset the connection, and the server may lose what it has not read |
//! | P3 | the order of a drop and a later call, once the release has failed | the renewal thread sends it then, on its own connection |
//! | P7 | for a ttl, a lock that its process could not release while it was cut off or the server away | the lease lapses then |
//! | P5 | requests of a dead process that arrive late | each is a sign of life |
//! | P5 | for permits, a lease that a clock which went back has made too long, until the next look at the holders. That look comes when the first of them would lapse. From then on, others wait for a dead holder's lease | in between, no script looks at the others. `accounting` checks that the record notes the time of that look, and the shortest lease, right: by these a script sees at once that the clock went back |
//! | P3 | positions, once a waiter has come back to a place that it had left, until the queue has been empty | it has a later ticket than those behind it |
//! | P3 | the order in which a process takes lost places again, for a waiter that had been granted the lock and had yet to learn of it | it had no place any more |
//! | P3 | the same order, for a waiter that learned of its place after the process sent the check whose reply came last, or lost its place after that check | that reply says nothing about it |
//! | R11 | how many entries the record counts, from a loss of data until the count is right again | the next check counts them |
//!
//! # When a run fails
//!
//! The simulator plays the run again without some of its actions, as long as it still fails. The
//! report has the seed and the actions that are left.
//!
//! To show that the checks find what is wrong, `Defect` leaves out a rule of the client, or changes
//! a line of a script. `mutation` changes lines of scripts for the simulator and for `small` alike.
//!
//! # What is not played
//!
//! Several names, cold names, the outage limit of waiters, `shutdown`, a link that sends a pipeline again, many
//! holders of one name, and processes with different settings.

mod accounting;
mod breach;
mod checker;
mod defect;
#[cfg(test)]
mod exceptions;
mod executed_call;
pub mod fuzz;
mod lane;
#[allow(dead_code, unused_imports, reason = "the property test uses the rest")]
#[path = "../model/mod.rs"]
mod model;
mod model_tests;
mod mutation;
#[cfg(test)]
mod passes;
mod plan;
mod process;
#[cfg(test)]
mod recalled;
mod record;
mod run;
#[cfg(test)]
mod scenarios;
mod served_time;
#[cfg(test)]
mod several_turns;
mod shown_clock;
mod sim_setting;
mod simulation;
mod small;
mod tests;
#[cfg(test)]
mod tries;
#[cfg(test)]
mod unread_releases;
#[cfg(test)]
mod unread_store;
#[cfg(test)]
mod wanted;

#[cfg(test)]
pub(crate) use {
    model::Promise,
    mutation::{ScriptMutation, server_with},
    plan::Rng,
};
