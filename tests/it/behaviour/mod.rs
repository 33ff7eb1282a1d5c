//! How a lock behaves, whatever keeps it: each claim is stated once and holds on a redis-server and in memory.
//!
//! | module | what it is about |
//! |---|---|
//! | `verbs` | the verbs, what they count, how all of it is shown |
//! | `guard`, `ends` | a lock that is held; the ways in which that ends |
//! | `waiter`, `long_waits`, `long_queues`, `grant_or_timeout` | a place in the queue |
//! | `exclusion`, `fairness` | one at a time, in order |
//! | `options`, `inspect`, `shutdown`, `names`, `bad_input` | what is asked for, looked at, ended and refused |
//! | `all`, `reentrant` | several at once; one several times, and keys in stripes |
//! | `semaphore`, `rw_lock` | permits, readers and writers |
//! | `permit_order`, `permit_loss` | the same among many, and when data, time or Redis is lost |
//! | `permit_rules` | the protocol's rules for them |
//! | `all_faults` | several at once, when requests, time or Redis are lost |
//! | `outage`, `faults`, `data_loss`, `leftovers` | what goes wrong, and what is left of it |
//! | `rules` | the protocol's rules, by reading and rewriting the record |
//!
//! What needs processes, sockets, a network or a server's settings stands in the modules beside this folder.

mod all;
mod all_faults;
pub(crate) mod bad_input;
pub(crate) mod data_loss;
mod ends;
mod exclusion;
mod fairness;
mod faults;
mod grant_or_timeout;
mod guard;
mod inspect;
pub(crate) mod leftovers;
mod long_queues;
mod long_waits;
mod names;
mod options;
mod outage;
pub(crate) mod permit_loss;
mod permit_order;
mod permit_rules;
mod reentrant;
mod rules;
mod rw_lock;
mod semaphore;
pub(crate) mod shutdown;
mod verbs;
mod waiter;
