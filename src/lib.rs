//! Fair, renewed, fenced distributed locks on Redis, for threaded programs.
//!
//! A [`LockManager`] hands out [`LockGuard`]s that release on drop. Who has to wait stands in a FIFO queue in
//! Redis and is handed the lock by the step that releases it. One thread keeps all the locks of a process alive.
//!
//! ```no_run
//! let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! let _guard = mgr.lock("invoices:42")?; // waits its turn; renewed while it is held; released on drop
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! This page is the guide: one program, grown step by step to [the whole of it](#the-whole-program), then what else there
//! is, [what is promised](#what-is-promised) and [the limits](#limits). More pages:
#![cfg_attr(
    any(doc, doctest),
    doc = "
- [Which lock do I want?](guide::choosing) One or several names, once or again, alone or with others.
- [Which call do I want?](guide::calls) And for how long may it block?
- [What can go wrong](guide::trouble), and what you will see: outages, crashes, every error.
- [How far it can be trusted](guide::safety): each promise, what it counts on, and the tests that attack it.
- [Configuration](guide::configuration): defaults, ranges, when to change them.
- [What is logged](guide::log), line by line.
- [Coming from another lock](guide::migrating): `SET NX`, Redlock, Redisson.
- [How it compares](guide::comparison) with other locks, feature by feature.
- [The protocol](guide::protocol): what is in Redis, and how to read it by hand.
"
)]
//!
//! # A first lock
//!
//! A program bills customers at the end of the month. It runs on several hosts, and no customer must be billed by two of
//! them at a time:
//!
//! ```no_run
//! use fairlock::LockManager;
//!
//! # fn bill(_: &str) {}
//! fn main() -> fairlock::Result<()> {
//!     let mgr = LockManager::connect("redis://127.0.0.1/")?;
//!     for customer in ["ann", "bob", "cid"] {
//!         let _guard = mgr.lock(&format!("customer:{customer}"))?; // waits its turn
//!         bill(customer); // for as long as it takes: the lock is renewed meanwhile
//!     } // released here, each time, and handed to whoever waits first
//!     Ok(())
//! }
//! ```
//!
//! A manager is a handle: clone it into every thread, and build one for each process and Redis. A name is any
//! text of 1 to [`MAX_NAME`] bytes. The guard needs a name, too: `let _ = mgr.lock(…)` drops it at once.
//!
//! # Skip what is taken
//!
//! A customer whom another host is billing need not be waited for. That a lock is taken is never an error:
//!
//! ```no_run
//! # use fairlock::LockManager;
//! # fn bill(_: &str) {}
//! fn bill_unless_taken(mgr: &LockManager, customer: &str) -> fairlock::Result<()> {
//!     match mgr.try_lock(&format!("customer:{customer}"))? {
//!         Some(guard) => {
//!             bill(customer);
//!             guard.unlock()?; // as dropping it, but says whether it was still ours
//!         }
//!         None => println!("somebody else is at {customer}, or waits to be"),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`try_lock`](LockManager::try_lock) does not get past those who wait: a lock that is free but awaited is `None`.
//!
//! # Wait, but not for ever
//!
//! [`try_lock_for`](LockManager::try_lock_for) and [`try_lock_until`](LockManager::try_lock_until) wait their turn
//! and give up. `None` then means that others had the lock; if Redis was silent at the end, so that this is not
//! known, the answer is [`Error::Unavailable`]:
//!
//! ```no_run
//! # use fairlock::LockManager;
//! # fn bill(_: &str) {}
//! use std::time::Duration;
//! use fairlock::Error;
//!
//! fn bill_in_time(mgr: &LockManager, customer: &str) -> fairlock::Result<()> {
//!     match mgr.try_lock_for(&format!("customer:{customer}"), Duration::from_secs(3)) {
//!         Ok(Some(_guard)) => bill(customer),
//!         Ok(None) => println!("{customer} was busy for three seconds"),
//!         Err(Error::Unavailable { step, .. }) => println!("redis is away: no {step}"),
//!         Err(other) => return Err(other),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # When it is lost
//!
//! A lease can end while the work goes on: Redis was away for too long, the process was stopped past its TTL, somebody
//! released the lock by force, `max_hold` was reached. The guard then says so, by a clock and a flag and with no I/O, in
//! the form that suits: [`is_held`](LockGuard::is_held) to ask, [`check`](LockGuard::check) for `?`,
//! [`lost`](LockGuard::lost) to wait for it beside other things, [`on_lost`](LockOptions::on_lost) to be called. Once
//! lost, a guard is never held again, whatever a later renewal says.
//!
//! A bill has many items, and the program looks between two of them:
//!
//! ```no_run
//! # use fairlock::LockGuard;
//! # fn bill_item(_: &str) {}
//! use fairlock::PreviousHolder;
//!
//! # fn remove_half_a_bill() {}
//! fn bill_items(guard: &LockGuard, items: &[String]) -> fairlock::Result<()> {
//!     if guard.previous_holder() != PreviousHolder::Released {
//!         remove_half_a_bill(); // who had it before did not finish, or nothing is known of it
//!     }
//!     for item in items {
//!         guard.check()?; // Error::Lost ends the work between two items
//!         bill_item(item);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Fences
//!
//! Between looking at `is_held` and acting on it a process can be stopped for any time. What closes this gap is the
//! resource: every grant has a [`fence`](LockGuard::fence), larger than all before it, and a resource that remembers
//! the largest it has seen and refuses smaller ones is safe whatever the clocks do. In SQL that is a condition of
//! the write itself:
//!
//! ```sql
//! UPDATE customers SET billed = :month, fence = :fence WHERE id = 42 AND fence <= :fence
//! ```
//!
//! For a resource in this process there is [`FenceGate`], whose page also has the form for data in Redis:
//!
//! ```no_run
//! # use fairlock::{FenceGate, LockGuard};
//! use std::sync::Mutex;
//!
//! #[derive(Default)]
//! struct Books {
//!     gate: FenceGate,
//!     lines: Mutex<Vec<String>>,
//! }
//!
//! impl Books {
//!     fn write(&self, guard: &LockGuard, line: String) -> bool {
//!         let mut lines = self.lines.lock().unwrap();
//!         let admitted = self.gate.admit(guard.fence());
//!         if admitted {
//!             lines.push(line);
//!         }
//!         admitted
//!     }
//! }
//! ```
//!
//! # Options
//!
//! [`LockOptions`] say how a lock is taken. The builder's are the default; [`with`](LockManager::with) makes a handle
//! with others, which costs nothing:
//!
//! ```no_run
//! use std::time::Duration;
//! use fairlock::{LockManager, LockOptions};
//!
//! const BILLING: LockOptions = LockOptions::new()
//!     .ttl(Duration::from_secs(30)) // what a crash may cost the others
//!     .max_hold(Duration::from_secs(3600)); // a bill that hangs is told, and loses the lock
//!
//! # fn main() -> fairlock::Result<()> {
//! let mgr = LockManager::builder("redis://127.0.0.1/")
//!     .prefix("billing")
//!     .outage_limit(Duration::from_secs(30))
//!     .build()?;
//! let billing = mgr.with(
//!     BILLING
//!         .label("monthly billing") // inspect shows it
//!         .on_lost(|loss| eprintln!("lost {}: {}", loss.name, loss.reason)),
//! );
//! # let _ = billing;
//! # Ok(())
//! # }
//! ```
//!
//! The timeouts and periods of a manager are derived from its builder's ttl, so a handle's ttl may be longer, but not
//! much shorter. Work that many hosts start at the same moment and that shall be done once is for
//! [`hold_at_least`](LockOptions::hold_at_least); a lock that ends by itself is a [`fixed_lease`](LockOptions::fixed_lease).
//!
//! # End in good order
//!
//! The last handle, guard or waiter that is dropped ends the threads. To end while guards are alive, for instance at
//! a SIGTERM, use [`shutdown`](LockManager::shutdown): no lock is granted any more, waits end with [`Error::Closed`],
//! and guards have some time left. Those that are alive after it are told [`LossReason::Shutdown`], released and
//! named, and whoever holds those locks next finds [`PreviousHolder::Lapsed`].
//!
//! # The whole program
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fairlock::{Error, LockGuard, LockManager, LockOptions, PreviousHolder};
//!
//! # fn items_of(_: &str) -> Vec<String> { Vec::new() }
//! # fn remove_half_a_bill(_: &str) {}
//! # /// In the database: `… WHERE customer = :customer AND fence <= :fence`; whether a row was changed.
//! # fn write(_: &str, _: String, _fence: u64) -> bool { true }
//! # fn on_sigterm(_: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> { std::thread::spawn(|| {}) }
//! fn main() -> fairlock::Result<()> {
//!     let ttl = LockOptions::new().ttl(Duration::from_secs(30)).max_hold(Duration::from_secs(3600));
//!     let mgr = LockManager::builder("redis://127.0.0.1/").prefix("billing").options(ttl.label("monthly")).build()?;
//!     let ending = on_sigterm({
//!         let mgr = mgr.clone();
//!         move || match mgr.shutdown(Duration::from_secs(5)) {
//!             Ok(left) => left.ended.iter().for_each(|name| eprintln!("{name} was still held")),
//!             Err(error) => eprintln!("{error}"),
//!         }
//!     });
//!     for customer in ["ann", "bob", "cid"] {
//!         match mgr.try_lock_for(&format!("customer:{customer}"), Duration::from_secs(3)) {
//!             Ok(Some(guard)) => match bill(&guard, customer) {
//!                 Ok(()) => guard.unlock()?,
//!                 Err(Error::Lost { loss, .. }) => eprintln!("{customer} is not finished: {}", loss.reason),
//!                 Err(other) => return Err(other),
//!             },
//!             Ok(None) => eprintln!("{customer} is busy: next time"),
//!             Err(Error::Closed) => {
//!                 let _ = ending.join(); // or the process would end before the shutdown has
//!                 break;
//!             }
//!             Err(other) => return Err(other),
//!         }
//!     }
//!     Ok(())
//! }
//!
//! fn bill(guard: &LockGuard, customer: &str) -> fairlock::Result<()> {
//!     if guard.previous_holder() != PreviousHolder::Released {
//!         remove_half_a_bill(customer);
//!     }
//!     for item in items_of(customer) {
//!         guard.check()?;
//!         if !write(customer, item, guard.fence()) {
//!             break; // a newer holder was here: it does the rest
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What else a program may want is in the examples, which run as they are: `hello`; `worker_pool`, many processes at one
//! resource; `fencing`; `run_once`; `leader`; `transfer`, several names at once; `throttle`, a
//! semaphore; `shutdown`; `unit_test`, how to test code that locks, without a Redis.
//!
//! # Stand in the queue
//!
//! All verbs are made of one primitive. [`enqueue`](LockManager::enqueue) takes a place in the queue and answers
//! at once; the [`Waiter`] is waited for as a whole or bit by bit, and leaves the queue when it is dropped:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! let mut waiter = mgr.enqueue("customer:ann")?;
//! let guard = loop {
//!     match waiter.wait_for(Duration::from_millis(500))? {
//!         Some(guard) => break guard,
//!         None => println!("still waiting, at place {:?}", waiter.position()),
//!     }
//! };
//! # drop(guard);
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! A lock that is granted between two calls is kept renewed until it is claimed.
//!
//! The first time that it has to wait, a manager subscribes to the news of its grants before it stands in the queue,
//! which takes at most one command timeout more. The first `enqueue` of a free lock starts that too, and does not wait
//! for it.
//!
//! # Look inside
//!
//! [`inspect`](LockManager::inspect) and [`list`](LockManager::list) tell who holds a name since when, and who waits.
//! [`force_release`](LockManager::force_release) takes a lock away, if its fence is still the one that was seen:
//!
//! ```no_run
//! # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! for info in mgr.list("customer:*") {
//!     let info = info?;
//!     let Some(holder) = &info.holder else { continue };
//!     println!("{}: {} on {} as {:?}, {} waiting", info.name, holder.pid, holder.host, holder.label, info.waiters);
//!     if holder.host == "the-one-that-burnt" {
//!         mgr.force_release(&info.name, info.fence)?;
//!     }
//! }
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! `inspect` is one request, or two for a semaphore or a reader/writer lock. `list` is for people and monitoring: it makes Redis go through all keys of the database,
//! whoever's they are, in pages of about 512, inspects each record that matches, and remembers the names it has told.
//!
//! [`stats`](LockManager::stats) counts what the manager has done. The log has what needs attention, through
//! [`log`](https://docs.rs/log) and never with a password.
//!
//! # Fork
//!
//! Threads and connections do not survive a `fork`. In the child every verb of a manager from before it answers
//! [`Error::Closed`], its guards are not held, and dropping them leaves the parent's locks alone. Connect anew in the
//! child. Starting another program (`std::process::Command`) is not concerned.
//!
//! # What is promised
//!
//! - **One holder.** At most one owner of a name at any step of Redis, and times in which [`is_held`](LockGuard::is_held)
//!   is true never overlap, given host clocks whose rates differ by less than 500 ppm, and apart from the limits below. Of
//!   a semaphore, never more permits than there are; of a reader/writer lock, readers share and writers exclude.
//! - **Rising fences.** Every grant has a larger fence than every earlier one of its name, also after an expiry, and
//!   after a loss of data if the server's clock has not gone back. A reader has the last writer's.
//! - **First come, first served**, in the order in which Redis ran the requests, over the waiters that stayed alive.
//!   Nobody gets past a queue. An outage costs no place, also if it lasts for longer than a TTL: who still waits when
//!   Redis is back stands as before. After a loss of data, each process's waiters keep their order.
//! - **No lost wake-up.** A free lock is granted to a live waiter at once; if the message is lost, within a check period.
//! - **Crash recovery.** A dead process delays the others on a name by at most one TTL (its `hold_at_least`, if longer)
//!   and one check period, however many of its locks and waiters died with it. Between waiting fixed leases it is one
//!   lease and the horizon. If no live process was left waiting, the dead look to whoever comes next like those who sit
//!   out an outage: that one waits for one check period and one command timeout from its arrival, or for one TTL if
//!   waiters of another dead process come first.
//! - **Loss is told once, and stays.** `is_held` is false no later than the local deadline, which counts from before the
//!   request that set it, less a margin, on a clock that runs on while the host is suspended (on Linux, macOS and
//!   OpenBSD). `lost` and `on_lost` follow within a command timeout (after a resume of the host, within a third of the
//!   TTL), also when Redis is unreachable.
//! - **One grant for a request**, whatever is resent; what ended in doubt is taken back in the background, and what
//!   reaches Redis after its caller gave up takes nothing.
//! - **Bounded calls.** Each verb says for how long it may block. Drop never panics, and blocks for at most one command
//!   timeout.
//! - **Nothing starves.** A waiter holds no pooled connection; renewals, releases and wake-ups never wait for the pool.
//! - **Bad input** gets an [`Error::Config`] or [`Error::WrongKind`] that names what is allowed, and nothing is written.
//!
//! # Limits
//!
//! - What Redis loses, a lock can lose: by a failover with asynchronous replication, eviction, `FLUSHALL`, `DEL`, or a
//!   restart without data. Holders learn of it at their next renewal; until then two may believe that they hold.
//! - A step of the server's clock forward ends leases early; a step back lets a dead holder's last for one more TTL.
//! - Without a resource that checks fences, a process that was paused can write late.
//! - [`force_release`](LockManager::force_release) overrules a holder who learns of it at its next renewal; one with a
//!   fixed lease learns of it only when it unlocks or renews.
//! - A leaked guard renews until `max_hold`, or until the process ends.
//! - A thread that takes a name twice waits for itself, but by a [`ReentrantMutex`]; so does a reader that asks to write.
//! - A single node only, in this version: no Sentinel, Cluster or quorum.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The manager: where its locks live, how it is built, and its settings.
mod builder;
mod config;
mod endpoint;
mod manager;
mod options;

// The locks, and what a caller gets: guards, waiters, errors, a look inside.
mod error;
mod fence;
mod guard;
mod inspect;
mod kind;
mod lock;
mod loss;
#[cfg(feature = "memory")]
pub mod memory;
mod stats;
mod waiter;

// How a lock is won and kept, where it lives, and the scripts that decide.
mod engine;
mod script;
mod store;

// Parts that have no layer of their own: names, patterns, mutexes that a model checker can replace.
mod glob;
mod key;
mod sync;

// The pages of docs/, and the simulator, which needs the insides.
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[doc(hidden)]
#[cfg_attr(
    fuzzing,
    allow(
        dead_code,
        unused_imports,
        reason = "the fuzzer calls the entry points alone"
    )
)]
#[path = "../tests/sim/mod.rs"]
pub mod sim;

// The manager.
pub use builder::Builder;
pub use config::{
    DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_HORIZON, DEFAULT_OUTAGE_LIMIT,
    DEFAULT_POOL_SIZE, DEFAULT_PREFIX,
};
pub use endpoint::Endpoint;
pub use manager::{LockManager, Shutdown};
pub use options::{DEFAULT_TTL, LockOptions, MAX_LABEL, MAX_TTL, MIN_FIXED_LEASE, MIN_TTL};

// The locks, and what they give.
pub use guard::LockGuard;
pub use key::MAX_NAME;
pub use lock::{
    MAX_NAMES, MAX_PERMITS, MultiGuard, Mutex, ReadGuard, ReentrantGuard, ReentrantMutex, RwLock,
    Semaphore, Striped, WriteGuard,
};
pub use waiter::Waiter;

// What goes wrong, and what makes it safe.
pub use error::{Error, Result, Step};
pub use fence::FenceGate;
pub use loss::{Loss, LossReason, PreviousHolder};

// A look inside.
pub use inspect::{List, LockInfo, LockState, MAX_WAITERS_SHOWN, Party};
pub use kind::Kind;
pub use stats::Stats;

// The channel type of [`LockGuard::lost`], for `select!`.
pub use crossbeam_channel;
