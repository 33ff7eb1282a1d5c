//! The exhaustive check of small worlds: three processes with one waiter each, one name, and all
//! that can happen to them.
//!
//! The name is a mutex, or it has permits ([`SmallSetting`]): readers and writers, or a semaphore
//! of which each process asks for one permit or several. A writer may downgrade to one permit at
//! any moment. With local hand-overs, a grant of the mutex reserves several fences, and the guards
//! of its process use as many of them as they like. Some processes may keep the mutex after its guard was
//! dropped, and let go of it when they hear that others wait.
//!
//! # How it works
//!
//! A world is a plain value of three parts: what the keys hold (`record_state`), what each process
//! knows (`client`), and what is in flight (`world`). `record_keys` turns the state of the record
//! into keys and back. A step is one request with its reply, or a tick of the clock. The search
//! goes breadth first from the empty world, so the first violation that it finds has a shortest
//! trace. It has no bound on time or on the number of locks taken: processes lock and unlock
//! forever. It ends when every reachable world was visited.
//!
//! Four things make it end, and soon:
//! - A request is answered at once, unless a fault is spent on it. The faults are a [`Budget`].
//! - Time goes on only when nobody has anything left to do at that moment. All times are relative
//!   to now, and stop where they no longer matter: a lease that lapsed long ago is a lapsed lease.
//! - After each step, `renumber` numbers fences, tickets, tokens and rows of stamps again, in their
//!   order. The distance of two fences stays, as long as it is at most what a grant reserves. It
//!   also swaps processes that ask for the same number of permits. For permits, it keeps fences
//!   distinct only if they belong to one token. A new fence is compared with the record's, and that
//!   is at least as large as every holder's.
//! - A script does the same to the same record every time. So the interpreter runs each pair of
//!   record and request once, and `script_runner` looks the result up afterwards.
//!
//! # What it checks
//!
//! After each script, the model says what the script has to leave: holders, permits, fences, order
//! (`check`). The check goes further than the model in these points:
//! - Every new holder gets a report, with the right fence and with how the last holder ended.
//! - Permits: the record counts as many permits as taken as the holders have. No holder lapses
//!   before the time from which scripts look for lapsed leases. A lapsed holder can learn of its
//!   lapse.
//! - Local hand-overs: each guard has a larger fence than all guards before it, of whatever process,
//!   and one that its grant has reserved. To check that, the clock does not hide an old fence: it is
//!   behind all of them, so the next fence is the next number.
//! - Kept locks: an owner that hears is told once in a tick that others wait, and nobody else is. As long
//!   as nothing goes wrong, a process that has the lock always knows that others wait for it.
//! - Processes: a process that believes that it holds permits has a holder's entry with that fence,
//!   at least as many permits and at least as much time. All of them together believe in no more
//!   permits than there are.
//!
//! Then the world is left in peace. From each reached world, a run without faults must serve
//! everybody in P + T, and in one TTL more for each process that crashed. It must leave no holder
//! and no waiter's record behind. This finds locks and waiters that are forgotten.
//!
//! The queue may be lost at any step. Then the search also looks at scripts that write a list anew as
//! soon as it has a dead entry.
//!
//! # Its limits
//!
//! In ticks, P, T and the renewal period are 1 and H is 2, at a ttl of 3. So P + 3 T ≤ H does not
//! hold, which `Builder::build` requires. A process whose syncs are lost for more than two ticks
//! counts as dead here while it lives. That only lets more happen, and not less: a live process
//! loses its place, and must take it again without harm. The model calls it silent then, too.
//!
//! The search does not explore:
//! - more than one waiter per process, and so the ticket by which a waiter notices that its turn is
//!   over while other waiters of its process are queued;
//! - leases of different lengths, fixed leases, `hold_at_least`, `try_lock`, forced releases of
//!   permits, and names that change their kind;
//! - queues longer than three, the loss of other keys than the queue's, outages longer than a request,
//!   and clocks that step.
//!
//! The simulator and the tests of the behaviours cover those. Two worlds count as the same if two
//! hashes of 64 bits agree.
//!
//! The crate stateright could do the search itself, which is the short part of this. It has no
//! renumbering, no runs in peace and no table of script results. It also wants states that are
//! cheap to clone and to hash, and so does the search here.

mod check;
mod check_world;
mod client;
mod event;
mod hearing;
mod hearing_tests;
mod keep_tests;
mod peace;
mod permit_short_way_tests;
mod permit_tests;
mod record_keys;
mod record_state;
mod renumber;
mod report;
mod script_runner;
mod search;
mod setting;
mod tests;
mod turn_tests;
mod world;

pub(crate) use report::{Report, SmallViolation};
pub(crate) use search::explore;
pub(crate) use setting::SmallSetting;
pub(crate) use world::Budget;
