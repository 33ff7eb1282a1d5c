//! How a lock behaves, whichever store keeps it. Each claim is stated once and holds on a
//! redis-server and in memory.
//!
//! | module | subject |
//! |---|---|
//! | `verbs` | the verbs, what they count, and their `Debug` output |
//! | `guard`, `ends`, `unfinished` | a lock that is held; the ways in which a holding ends |
//! | `local_handovers` | waiters of one manager hand over without Redis |
//! | `kept` | a lock stays with its manager until others want it |
//! | `waiter`, `ready`, `long_waits`, `long_queues`, `grant_or_timeout` | waiting in the queue |
//! | `exclusion`, `fairness` | one holder at a time, in order |
//! | `options`, `inspect`, `shutdown`, `names`, `bad_input` | settings, inspection, refusals |
//! | `renewals` | leases that are renewed together |
//! | `all`, `reentrant` | several locks at once; one lock taken several times |
//! | `semaphore`, `rate_limit`, `rw_lock` | permits, readers and writers |
//! | `changes` | another capacity, fewer permits, another kind of lock |
//! | `delete` | a name that nobody uses goes |
//! | `detach`, `detach_faults` | a lock goes to another process |
//! | `many_holders` | more holders of a name than one call sees |
//! | `permit_order`, `permit_loss` | permits among many; data, time or Redis is lost |
//! | `permit_rules` | the protocol's rules for permits |
//! | `all_faults` | several locks at once when requests, time or Redis are lost |
//! | `outage`, `faults`, `data_loss`, `leftovers` | faults, and what remains after them |
//! | `rules` | the protocol's rules, tested by reading and rewriting the record |
//!
//! Tests that need processes, sockets, a network or a server's settings are in the modules beside
//! this folder.

mod all;
mod all_faults;
pub(crate) mod bad_input;
mod changes;
pub(crate) mod data_loss;
mod delete;
mod detach;
mod detach_faults;
mod ends;
mod exclusion;
mod fairness;
mod faults;
mod grant_or_timeout;
mod guard;
mod inspect;
pub(crate) mod kept;
pub(crate) mod leftovers;
mod local_handovers;
mod long_queues;
mod long_waits;
pub(crate) mod many_holders;
mod names;
mod options;
mod outage;
pub(crate) mod permit_loss;
mod permit_order;
mod permit_rules;
mod rate_limit;
mod ready;
mod reentrant;
mod renewals;
mod rules;
mod rw_lock;
mod semaphore;
pub(crate) mod shutdown;
mod stats;
mod unfinished;
mod verbs;
mod waiter;
