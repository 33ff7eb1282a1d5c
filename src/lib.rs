// This file is long because the tutorial is in it: the first page of the documentation.

//! Fair, renewed, fenced distributed locks on Redis, for threaded programs.
//!
//! A [`LockManager`] gives out [`LockGuard`]s that release on drop. Callers that have to wait are
//! in a FIFO queue in Redis. The step that releases a lock hands it to the first waiter. One thread
//! renews all the locks of a manager.
//!
//! ```no_run
//! let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! let _guard = mgr.lock("invoices:42")?; // waits its turn; renewed while held; released on drop
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! This page is the tutorial. It grows one program step by step to [the whole
//! program](#the-whole-program). Then it shows what else there is, [what is
//! promised](#what-is-promised) and [the limits](#limits). More pages:
#![cfg_attr(
    any(doc, doctest),
    doc = "
- [Guide](pages::guide): which lock, which call and how long it blocks, errors, recipes.
- [Servers](pages::servers): one server, Sentinel, Cluster, a quorum, TLS.
- [Configuration](pages::configuration): defaults, ranges, when to change them.
- [Operations](pages::operations): what can go wrong and what you will see, each line of the log, costs.
- [The command line](pages::command_line): locks for the shell, and a look at who holds and who waits.
- [Metrics](pages::metrics): what to graph and to alert on.
- [Safety](pages::safety): how far each promise can be trusted, and what it depends on.
- [Comparison](pages::comparison) with other locks, and how to change over.
- [The protocol](pages::protocol): what is in Redis, and how to read it by hand.
"
)]
//!
//! # A first lock
//!
//! A program bills customers at the end of the month. It runs on several hosts, and two of them
//! must never bill the same customer at the same time:
//!
//! ```no_run
//! use fairlock::LockManager;
//!
//! # fn bill(_: &str) {}
//! fn bill_all() -> fairlock::Result<()> {
//!     let mgr = LockManager::connect("redis://127.0.0.1/")?;
//!     for customer in ["ann", "bob", "cid"] {
//!         let _guard = mgr.lock(format!("customer:{customer}"))?; // waits its turn
//!         bill(customer); // may take long: the lock is renewed
//!     } // released here, in each round, and handed to the first waiter
//!     Ok(())
//! }
//! ```
//!
//! A manager is a handle. Clone it into every thread, and build one for each process and Redis. A
//! name is any text of 1 to 512 bytes, as a `&str`, a `String` or any other `AsRef<str>`.
//! Bind the guard to a variable: [`let _ = mgr.lock(…)` drops it at
//! once](LockGuard#bind-it-to-a-variable).
//!
//! # Skip what is taken
//!
//! The program need not wait for a customer that another host is billing. It is never an error that
//! a lock is taken:
//!
//! ```no_run
//! # use fairlock::LockManager;
//! # fn bill(_: &str) {}
//! fn bill_unless_taken(mgr: &LockManager, customer: &str) -> fairlock::Result<()> {
//!     match mgr.try_lock(format!("customer:{customer}"))? {
//!         Some(guard) => {
//!             bill(customer);
//!             guard.unlock()?; // like drop, but waits for Redis and reports whether you held it
//!         }
//!         None => println!("another host has {customer}, or waits for it"),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`try_lock`](LockManager::try_lock) does not overtake waiters. If a lock is free but others wait
//! for it, it returns `None`. On a quorum it may also do so for a lock that several tried for at once.
//!
//! Dropping a guard sends the release, and mostly does not wait until Redis has run it. Calls of the
//! same manager come after it; other processes find the lock free a moment later.
//! [`unlock`](LockGuard::unlock) returns when Redis has released the lock.
//!
//! # Wait, but not forever
//!
//! [`try_lock_for`](LockManager::try_lock_for) waits its turn, up to a limit. After that, `None`
//! means that others had the lock. If Redis was silent at the end, nobody knows that. Then it
//! returns [`Error::Unavailable`]:
//!
//! ```no_run
//! # use fairlock::LockManager;
//! # fn bill(_: &str) {}
//! use std::time::Duration;
//! use fairlock::Error;
//!
//! fn bill_in_time(mgr: &LockManager, customer: &str) -> fairlock::Result<()> {
//!     match mgr.try_lock_for(format!("customer:{customer}"), Duration::from_secs(3)) {
//!         Ok(Some(_guard)) => bill(customer),
//!         Ok(None) => println!("{customer} was busy for three seconds"),
//!         Err(error @ Error::Unavailable { .. }) => println!("not now: {error}"),
//!         Err(other) => return Err(other),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # When it is lost
//!
//! A lease can end while the work goes on. Redis was away for too long, or the process was stopped
//! past its TTL. Or somebody released the lock by force, or the guard reached its `max_hold`. The
//! guard reports that by a clock and a flag, without I/O. Choose the form that suits you:
//!
//! - [`is_held`](Lease::is_held) returns a `bool`,
//! - [`check`](Lease::check) returns an error for `?`,
//! - [`lost`](Lease::lost) is a channel, to wait for the loss beside other things,
//! - [`on_lost`](LockOptions::on_lost) is a callback.
//!
//! Once a guard is lost it is never held again, whatever a later renewal says.
//!
//! A bill has many items, and the program checks between two of them. A pause can still come between
//! the check and the act, which only a [fence](#fences) makes harmless. The function gets the guard to
//! ask it. The guard of any name fits the parameter, so [check the name](LockGuard#as-a-parameter) where
//! it matters. The guard of a reader or of permits does not fit:
//!
//! ```no_run
//! # use fairlock::LockGuard;
//! # fn bill_item(_: &str) {}
//! use fairlock::PreviousHolder;
//!
//! # fn remove_half_a_bill() {}
//! fn bill_items(guard: &LockGuard, items: &[String]) -> fairlock::Result<()> {
//!     if guard.previous_holder() != PreviousHolder::Released {
//!         remove_half_a_bill(); // the holder before did not finish, or is not known
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
//! The process can be stopped for any time after it looks at `is_held` and before it acts. Only the
//! resource can close this gap. Each grant but a reader's has a larger [`fence`](Lease::fence) than all
//! before of its name. The resource remembers the largest fence that it has seen, and refuses smaller
//! ones. A turn follows one rule: **claim, then read, then write.** In SQL, in one transaction or
//! not:
//!
//! ```sql
//! UPDATE customers SET fence = :fence WHERE id = 42 AND fence <= :fence     -- claim
//! SELECT billed, balance FROM customers WHERE id = 42                       -- read
//! UPDATE customers SET billed = :month WHERE id = 42 AND fence = :fence     -- write
//! ```
//!
//! If an update found no row, stop: a newer holder is there. MySQL and MariaDB must be [asked to
//! count found rows](pages::guide#mysql-and-mariadb). The claim comes first, since an older holder
//! may wake up at any moment. Without the claim, its write could come between the read and the write
//! of the newer one, which would then overwrite it. [SAFETY](pages::safety#fencing) has more on it:
//! several rows, rows that do not exist yet, other stores, and calls that cannot check a fence. For a
//! resource in this process there is [`FenceGate`]. Its page also has the form for data in Redis:
//!
//! ```no_run
//! # use fairlock::{FenceGate, LockGuard};
//! use std::sync::Mutex;
//!
//! #[derive(Default)]
//! struct Ledger {
//!     gate: FenceGate,
//!     lines: Mutex<Vec<String>>,
//! }
//!
//! impl Ledger {
//!     /// The first step of a turn. `None`: a newer holder is there.
//!     fn claim_and_read(&self, guard: &LockGuard) -> Option<Vec<String>> {
//!         let lines = self.lines.lock().unwrap();
//!         self.gate.admit(guard.fence()).then(|| lines.clone())
//!     }
//!
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
//! [`LockOptions`] say how a lock is taken and held. Those of the builder are the default.
//! [`with`](LockManager::with) makes a handle with other options, which costs nothing. Options that
//! you do not set stay as they are:
//!
//! ```no_run
//! use std::time::Duration;
//! use fairlock::{LockManager, LockOptions};
//!
//! const BILLING: LockOptions = LockOptions::new()
//!     .ttl(Duration::from_secs(30)) // the longest delay that a crash causes
//!     .max_hold(Duration::from_secs(3600)); // a bill that hangs loses the lock
//!
//! # fn main() -> fairlock::Result<()> {
//! let mgr = LockManager::builder("redis://127.0.0.1/")
//!     .prefix("billing")
//!     .outage_limit(Duration::from_secs(30))
//!     .build()?;
//! let billing = mgr.with(
//!     BILLING
//!         .label("monthly billing") // inspect shows it
//!         .on_lost(|loss| eprintln!("{loss}")),
//! );
//! # let _ = billing;
//! # Ok(())
//! # }
//! ```
//!
//! A manager derives its timeouts and periods from the ttl of its builder. So a handle may have a
//! longer ttl, but not a much shorter one. If many hosts start a job at the same moment and it must
//! run once, use [`hold_at_least`](LockOptions::hold_at_least). A lock that ends by itself is a
//! [`fixed_lease`](LockOptions::fixed_lease).
//!
//! # End in good order
//!
//! Dropping the last handle, guard or waiter ends the threads. It waits until Redis has confirmed
//! the releases, for at most one command timeout. To end while guards are alive, for instance at a
//! SIGTERM, call [`shutdown`](LockManager::shutdown). The manager grants no more locks, waits end
//! with [`Error::Closed`], and guards have some time left. A guard that is alive after that loses
//! its lock with [`LossReason::Shutdown`]. `shutdown` returns the names of those locks, and their
//! next holders find [`PreviousHolder::Lapsed`]. It returns when Redis has confirmed the releases,
//! so the process may exit then. If Redis does not answer in time, it fails with the names of what is
//! not released: those locks end by their TTL.
//!
//! # The whole program
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fairlock::{Error, LockManager, LockOptions, PreviousHolder};
//!
//! # /// In the database: `UPDATE … SET fence = :fence WHERE … AND fence <= :fence`. Returns whether a row was found.
//! # fn claim(_: &str, _fence: u64) -> bool { true }
//! # fn items_of(_: &str) -> Vec<String> { Vec::new() }
//! # /// In the database: `… WHERE customer = :customer AND fence = :fence`. Returns whether a row was found.
//! # fn remove_half_a_bill(_: &str, _fence: u64) -> bool { true }
//! # /// The same.
//! # fn write(_: &str, _: String, _fence: u64) -> bool { true }
//! # fn on_sigterm(_: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> { std::thread::spawn(|| {}) }
//! fn main() -> fairlock::Result<()> {
//!     let options = LockOptions::new()
//!         .ttl(Duration::from_secs(30))
//!         .max_hold(Duration::from_secs(3600))
//!         .label("monthly");
//!     let mgr = LockManager::builder("redis://127.0.0.1/")
//!         .prefix("billing")
//!         .options(options)
//!         .build()?;
//!     let ending = on_sigterm({
//!         let mgr = mgr.clone();
//!         move || match mgr.shutdown(Duration::from_secs(5)) {
//!             Ok(held) => held.iter().for_each(|name| eprintln!("{name} was still held")),
//!             Err(error) => eprintln!("{error}"), // with its causes
//!         }
//!     });
//!     for customer in ["ann", "bob", "cid"] {
//!         match bill(&mgr, customer) {
//!             Ok(()) => {}
//!             Err(Error::Closed) => {
//!                 let _ = ending.join(); // or the process would end before the shutdown does
//!                 break;
//!             }
//!             Err(error) if error.is_temporary() || matches!(error, Error::Lost { .. }) => {
//!                 eprintln!("{customer} is not finished: {error}")
//!             }
//!             Err(other) => return Err(other),
//!         }
//!     }
//!     Ok(())
//! }
//!
//! fn bill(mgr: &LockManager, customer: &str) -> fairlock::Result<()> {
//!     let name = format!("customer:{customer}");
//!     let Some(guard) = mgr.try_lock_for(name, Duration::from_secs(3))? else {
//!         eprintln!("{customer} is busy: next time");
//!         return Ok(());
//!     };
//!     let fence = guard.fence();
//!     if !claim(customer, fence) {
//!         return Ok(()); // a newer holder is here: it does the rest
//!     }
//!     let is_whole = guard.previous_holder() == PreviousHolder::Released;
//!     if !is_whole && !remove_half_a_bill(customer, fence) {
//!         return Ok(()); // a newer holder has come
//!     }
//!     for item in items_of(customer) {
//!         guard.check()?; // saves useless work
//!         if !write(customer, item, fence) {
//!             break; // a newer holder has come
//!         }
//!     }
//!     // The drop releases the lock. `unlock()?` would turn a loss after the last write into an error,
//!     // though the claim made it harmless.
//!     Ok(())
//! }
//! ```
//!
//! The examples show what else a program may want. They run as they are, by `cargo run --features
//! memory --example hello`, also against the Redis at `REDIS_URL`:
//!
//! - `hello`: the smallest program,
//! - `worker_pool`: many processes that use one resource,
//! - `fencing`: a resource that refuses late writes,
//! - `payment`: an invoice that is paid once, through a provider that checks no fence,
//! - `run_once`: a scheduled job on many hosts,
//! - `leader`: one of many processes leads,
//! - `transfer`: several names at once,
//! - `throttle`: a semaphore,
//! - `rate_limiter`: a semaphore that limits how many calls a service gets in a second,
//! - `per_tenant_worker`: a pool that keeps its locks between small jobs,
//! - `shutdown`: an end in good order,
//! - `unit_test`: how to test code that locks, without a Redis.
//!
//! # Wait in the queue
//!
//! All verbs are made of one primitive. [`enqueue`](LockManager::enqueue) takes a place in the
//! queue and returns a [`Waiter`] without waiting for others. You wait with it in one go or bit by
//! bit. Dropping it leaves the queue:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! let mut waiter = mgr.enqueue("customer:ann")?;
//! let guard = loop {
//!     match waiter.wait_for(Duration::from_millis(500))? {
//!         Some(guard) => break guard,
//!         None => println!("still waiting, at position {:?}", waiter.position()),
//!     }
//! };
//! # drop(guard);
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! If the lock is granted between two calls, the manager renews it until you take it. To wait beside
//! a stop signal or other events, use the channel [`Waiter::ready`] in a `select!`.
//!
//! The first time that a manager waits, it subscribes to the messages about its grants before it
//! enters the queue. That takes at most one command timeout more. The first `enqueue` of a free
//! lock also starts the subscription, but does not wait for it.
//!
//! # Keep a lock between jobs
//!
//! Mostly one process locks the same name many times in a row, and no other process wants it. With
//! [`keep_idle`](LockOptions::keep_idle) the manager keeps the lock after the drop, and the next lock costs no
//! request. When another process wants the name, Redis tells the manager, which lets go:
//!
//! ```no_run
//! use std::time::Duration;
//! use fairlock::LockOptions;
//!
//! # fn bill(_: &str, _fence: u64) {}
//! # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! let customers = mgr.with(LockOptions::new().keep_idle(Duration::from_secs(2)));
//! for item in ["paper", "ink", "glue"] {
//!     let guard = customers.lock("customer:ann")?;
//!     bill(item, guard.fence());
//! } // kept, for 2 s at most if nobody uses it; `unlock` would release it
//! mgr.shutdown(Duration::from_secs(5))?; // releases what is kept
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! End with `shutdown`, or drop the last handle: otherwise a kept lock stays taken for its ttl. [When to keep
//! locks, and when not](pages::guide#kept-locks) has the rest. A holder that works for long can
//! ask whether it [`is_wanted`](Lease::is_wanted), with
//! [`notify_wanted`](LockOptions::notify_wanted).
//!
//! # Look inside
//!
//! [`inspect`](LockManager::inspect) and [`list`](LockManager::list) show who holds a name, since
//! when, and who waits. A lock whose holder crashed is [`Lapsed`](inspect::LockState::Lapsed) there until
//! somebody takes it. [`force_release`](LockManager::force_release) takes a lock away, if its fence
//! is still the one that you saw:
//!
//! ```no_run
//! # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
//! for info in mgr.list("customer:*") {
//!     let info = info?;
//!     let Some(holder) = &info.holder else { continue };
//!     println!("{}: {} on {}, {} waiting", info.name, holder.pid, holder.host, info.waiters);
//!     if holder.host == "the-one-that-burnt" {
//!         mgr.force_release(&info.name, info.fence)?;
//!     }
//! }
//! # Ok::<(), fairlock::Error>(())
//! ```
//!
//! Redis forgets a name an hour after its last use. [`delete`](LockManager::delete) does it at once,
//! for a name that nobody will use again. A quorum refuses it.
//!
//! `inspect` is one request, or two for a semaphore or a reader/writer lock. `list` is for people
//! and monitoring. It makes Redis go through all keys of the database, including keys of other
//! programs, in pages of about 512. It inspects each record that matches, and remembers the names
//! that it has returned.
//!
//! [`stats`](LockManager::stats) counts what the manager has done, with the longest wait and
//! hold. With the feature `metrics`, [the same numbers](pages::metrics) go to Prometheus. The log,
//! through [`log`](https://docs.rs/log), has what needs attention, and never a password. [A logger
//! that blocks](pages::operations#what-is-logged) harms no lock.
//!
//! # To another process
//!
//! [`detach`](LockGuard::detach) makes a value of a lock, which goes into a job, an environment
//! variable or a pipe. [`attach`](LockManager::attach) makes a guard of it, in another process, ahead of
//! all that wait. [The recipe](pages::guide#a-lock-that-goes-with-the-job) says what can go wrong:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use fairlock::{DetachedLock, LockManager};
//! # fn submit(_: String) {}
//! # fn main() -> fairlock::Result<()> {
//! # let mgr = LockManager::connect("redis://127.0.0.1/")?;
//! submit(mgr.lock("order:42")?.detach(Duration::from_secs(600))?.secret_text());
//! # let text = "";
//!
//! // In the worker:
//! let guard = mgr.attach(&text.parse()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Fork
//!
//! Threads and connections do not survive a `fork`. In the child, every verb of a manager from
//! before the fork returns [`Error::Closed`]. Its guards are not held, and dropping them leaves the
//! parent's locks alone. Connect again in the child. A start of another program
//! (`std::process::Command`) has no such effect.
//!
//! # What is promised
//!
//! - **One holder.** At any step of Redis a name has at most one owner. The times in which
//!   [`is_held`](Lease::is_held) is true never overlap, apart from the limits below. This
//!   assumes that the rates of the hosts' clocks differ by less than 500 ppm. A semaphore never has
//!   more permits held than there are. In a reader/writer lock, readers share and writers exclude.
//! - **Rising fences.** Each grant but a reader's has a larger fence than all before of its name, also
//!   after an expiry. After a loss of data this holds if the server's clock has not gone back. A
//!   reader has the fence of the last writer. A resource is safe if each turn claims, then reads,
//!   then writes: see [Fences](#fences).
//! - **First come, first served**, in the order in which Redis ran the requests, among the waiters
//!   that stayed alive. Nobody overtakes a queue. An outage costs no place in the queue, even if it
//!   lasts longer than a TTL: waiters that still wait when Redis is back keep their order. After a
//!   loss of data, the waiters of each process keep their order.
//! - **No lost wake-up.** A free lock is granted to a live waiter at once. If the message is lost,
//!   the waiter has the lock within a check period.
//! - **Crash recovery.** A dead process delays the others on a name by at most one TTL (its
//!   `hold_at_least`, if longer) and one check period, however many of its locks and waiters died
//!   with it. If the dead waiters have fixed leases, it is one lease and the horizon in place of
//!   the TTL. If no live process was waiting, Redis cannot distinguish the dead waiters from
//!   waiters in an outage. Then the next caller waits for one check period and one command timeout
//!   from its arrival, or for one TTL if waiters of another dead process come first.
//! - **A loss is reported once, and stays.** `is_held` is false no later than the local deadline.
//!   That deadline counts from before the request that set it, less a margin, on a clock that runs
//!   on while the host is suspended (on Linux, macOS and OpenBSD). `lost` and `on_lost` follow
//!   within a command timeout, even if Redis cannot be reached. After a resume of the host they
//!   follow within a third of the TTL.
//! - **One grant for each request**, however often it is sent again. A request whose outcome is not
//!   known is rolled back in the background. A request that reaches Redis after its caller gave up
//!   takes nothing.
//! - **Bounded calls.** Each verb says how long it may block. Drop never panics. Mostly it does not
//!   wait for Redis, and it blocks for at most one command timeout.
//! - **Nothing starves.** A waiter uses no connection. Renewals and grants have connections of their
//!   own. A connection that is slow or dead delays only the names on its lane.
//! - **Bad input** gets an [`Error::Misused`] that says what is allowed, and nothing is
//!   written.
//!
//! # Limits
//!
//! - If Redis loses data, it can lose a lock: by a failover with asynchronous replication,
//!   eviction, `FLUSHALL`, `DEL`, or a restart without data. Holders learn of it at their next
//!   renewal. Until then two may believe that they hold the lock.
//! - If the server's clock jumps forward, leases end early. If it jumps back, a dead holder's lease
//!   lasts for one more TTL.
//! - Without a resource that checks fences, from before a turn's first read, a process that was
//!   paused can write late.
//! - [`force_release`](LockManager::force_release) overrules a holder, which learns of it at its
//!   next renewal. A holder with a fixed lease learns of it only when it unlocks or renews.
//! - The lock of a leaked guard is renewed until `max_hold`, or until the process ends.
//! - A thread that takes a name twice deadlocks, except with a [`ReentrantMutex`]. So does a reader
//!   that asks to write.
//! - A failover of Sentinel or Cluster loses the grants that were not replicated, unless all replicas
//!   must acknowledge them ([`Builder::replica_acks`]). A [quorum](endpoint::Endpoint::quorum) keeps only mutexes, and no queue.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The manager: where its locks live, how it is built, and its settings.
mod builder;
mod config;
pub mod endpoint;
mod manager;
mod options;
#[cfg(feature = "unstable-servers")]
#[doc(hidden)]
pub mod servers;

// The locks, and what a caller gets from them.
pub mod credentials;
mod detached;
mod error;
mod fence;
mod guard;
pub mod inspect;
mod kind;
mod lease;
mod lock;
mod loss;
#[cfg(feature = "memory")]
pub mod memory;
pub mod stats;
mod waiter;

// How a lock is won and kept, where it lives, and the scripts that decide who owns it.
mod engine;
mod local;
mod script;
mod store;

// Small parts that all of them use.
mod glob;
mod key;
mod logging;
#[cfg(feature = "serde")]
mod seconds;
mod setting;
mod sync;
mod thread_id;
mod time_text;

// The pages of docs/, and the simulator, which needs private items.
#[cfg(any(doc, doctest))]
pub mod pages;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[doc(hidden)]
#[cfg_attr(
    fairlock_fuzzing,
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
pub use manager::LockManager;
pub use options::LockOptions;

// The locks, and what they give.
pub use detached::DetachedLock;
pub use guard::{DetachError, LockGuard};
pub use lease::Lease;
pub use lock::{
    MultiGuard, Mutex, ReadGuard, ReentrantGuard, ReentrantMutex, RwLock, Semaphore, SemaphoreGuard,
};
pub use waiter::Waiter;

// Errors, and the means against late writes.
pub use error::{Error, Misuse, Result, Step};
pub use fence::FenceGate;
pub use loss::{Loss, LossReason, PreviousHolder};

// The channel type of [`Lease::lost`] and [`Waiter::ready`], for `select!`.
pub use crossbeam_channel;
