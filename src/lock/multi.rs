//! Several mutexes at once, all or none.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::group::LockGroup;
use super::{count_end, request_to_try, request_to_wait};
use crate::engine::{
    GroupOutcome, HeldLease, LeaseOwner, Request, WantResult, first_lost, is_transient,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease::PanicWatch;
use crate::local::Running;
use crate::logging::Logger;
use crate::loss::{Loss, PreviousHolder};
use crate::manager::LockManager;
use crate::script::{LockSpec, Mode};
use crate::store::clock::Time;

/// The most names that [`lock_all`](LockManager::lock_all) takes.
const MAX_NAMES: usize = 256;

impl LockManager {
    /// Takes the mutexes of all these names, all or none. Waits for each in turn, for as long as
    /// Redis answers.
    ///
    /// A name that is listed twice is taken once. If all are free, this takes one round trip.
    /// Otherwise it takes them one after the other, in the order of their keys. That order is the
    /// same for every caller. So callers that list the same names in different orders do not
    /// deadlock.
    ///
    /// It holds and renews the first names while it waits for the later ones. A `max_hold` or a
    /// fixed lease counts for each name from its own grant, and must outlast that wait.
    ///
    /// First it makes one try for all names. While Redis is silent, that try takes two command
    /// timeouts. After that it blocks for each name as [`lock`](LockManager::lock) does. After an
    /// error it takes at most one command timeout more to release the names that it holds.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let both = mgr.lock_all(["account:1", "account:2"])?;
    /// // … move the money …
    /// both.unlock()?; // or just drop it
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`lock`](LockManager::lock), for any of the names. After an error none is held. Also:
    /// - [`Misused`](Error::Misused): there is no name, or there are more than 256.
    /// - [`Lost`](Error::Lost): one was lost before all were held. Returned within a check
    ///   period and two command timeouts, which includes the release of the others.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiGuard> {
        let keys = SortedKeys::new(self, names)?;
        loop {
            // A wait without a deadline ends with a grant or an error, never with `None`.
            if let Some(guard) = keys.take(self, Time::NEVER)? {
                return Ok(guard);
            }
        }
    }

    /// Takes the mutexes if all are free and nobody waits for any of them. `None`: one of them is
    /// taken, and none is kept.
    ///
    /// Never waits for others. If two callers try for the same names at the same moment, each may
    /// take some of them. Then both get `None`. On a quorum that may happen with a single name.
    ///
    /// If each name that is taken is one that another process keeps for its next guard, those processes
    /// are told, and have 50 ms to let go of them, but no more than one command timeout.
    ///
    /// Blocks for at most three command timeouts, the third to release what was taken. In that exception
    /// for 50 ms and two command timeouts more.
    ///
    /// # Errors
    /// As [`lock_all`](LockManager::lock_all), but without waiting out an outage.
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock_all(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Option<MultiGuard>> {
        SortedKeys::new(self, names)?.try_take(self)
    }

    /// Like [`lock_all`](LockManager::lock_all), but waits for at most `at_most` for all names
    /// together. `None`: that was too short, and none is kept.
    ///
    /// Blocks for at most `at_most` and two command timeouts, the second to release what was taken.
    /// If the outage limit ends first: as [`lock_all`](LockManager::lock_all). Zero is one try, as
    /// by [`try_lock_all`](LockManager::try_lock_all). `Duration::MAX` waits forever.
    ///
    /// # Errors
    /// As [`lock_all`](LockManager::lock_all).
    #[must_use = "bind the guard to `_guard`: `let _ =` drops it at once"]
    pub fn try_lock_all_for(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        at_most: Duration,
    ) -> Result<Option<MultiGuard>> {
        SortedKeys::new(self, names)?.take_until(self, self.engine().now() + at_most)
    }
}

/// The keys of the names, each once, in the order in which every caller takes them.
struct SortedKeys(Vec<Key>);

impl SortedKeys {
    fn new(
        manager: &LockManager,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<SortedKeys> {
        let mut keys = HashSet::new();
        for name in names {
            keys.insert(manager.key(name.as_ref())?);
            if keys.len() > MAX_NAMES {
                return Err(Error::setting(
                    "names",
                    format!("at most {MAX_NAMES} different names; there are more"),
                ));
            }
        }
        if keys.is_empty() {
            return Err(Error::setting("names", "at least one name; there is none"));
        }
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable_by(|a, b| a.record().cmp(b.record()));
        Ok(SortedKeys(keys))
    }

    fn take_until(&self, manager: &LockManager, until: Time) -> Result<Option<MultiGuard>> {
        if until <= manager.engine().now() {
            self.try_take(manager)
        } else {
            self.take(manager, until)
        }
    }

    fn take(&self, manager: &LockManager, until: Time) -> Result<Option<MultiGuard>> {
        let end = self.take_uncounted(manager, until);
        count_end(manager.engine(), &end);
        end
    }

    fn take_uncounted(&self, manager: &LockManager, until: Time) -> Result<Option<MultiGuard>> {
        let engine = manager.engine();
        let asked_at = engine.now();
        let (tried, group) = self.requests(manager, request_to_wait, asked_at)?;
        manager.running().make_way(&self.0);
        match engine.attempt_all(&tried, until) {
            Ok(Some(leases)) => match MultiGuard::new(leases, group, manager) {
                // The leases are so short, or the process so slow. The wait below gets new ones.
                Err(Error::Lost { .. }) => {}
                made => return made.map(Some),
            },
            Ok(None) | Err(Error::Lost { .. }) => {}
            // The wait below outlasts an outage.
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        let (requests, group) = self.requests(manager, request_to_wait, asked_at)?;
        note_taken(&requests, &tried);
        let leases = engine.acquire_all(&requests, until)?;
        leases
            .map(|leases| MultiGuard::new(leases, group, manager))
            .transpose()
    }

    fn try_take(&self, manager: &LockManager) -> Result<Option<MultiGuard>> {
        let end = self.try_take_uncounted(manager);
        count_end(manager.engine(), &end);
        end
    }

    fn try_take_uncounted(&self, manager: &LockManager) -> Result<Option<MultiGuard>> {
        let engine = manager.engine();
        let asked_at = engine.now();
        let (requests, group) = self.requests(manager, request_to_try, asked_at)?;
        manager.running().make_way(&self.0);
        let (leases, group) = match engine.try_acquire_all(&requests)? {
            GroupOutcome::Granted(leases) => (Some(leases), group),
            // The owners of those that are taken may let go at once.
            GroupOutcome::Told => {
                let (again, group) = self.requests(manager, request_to_try, asked_at)?;
                note_taken(&again, &requests);
                (engine.acquire_all_soon(&again)?, group)
            }
            GroupOutcome::Taken | GroupOutcome::Silent(_) => (None, group),
        };
        leases
            .map(|leases| MultiGuard::new(leases, group, manager))
            .transpose()
    }

    fn requests(
        &self,
        manager: &LockManager,
        request: fn(&LockManager, Key, LockSpec) -> Result<Request>,
        asked_at: Time,
    ) -> Result<(Vec<Arc<Request>>, Arc<LockGroup>)> {
        let group = LockGroup::new();
        let part = |key: &Key| {
            let request = request(manager, key.clone(), LockSpec::MUTEX)?;
            let owner: Arc<dyn LeaseOwner> = Arc::clone(&group) as _;
            Ok(Arc::new(request.owned_by(owner).asked_at(asked_at)))
        };
        Ok((self.0.iter().map(part).collect::<Result<_>>()?, group))
    }
}

/// These requests follow others, of which Redis has said that some locks were taken.
fn note_taken(requests: &[Arc<Request>], tried: &[Arc<Request>]) {
    for (request, tried) in requests.iter().zip(tried) {
        if tried.was_taken() {
            request.note_taken();
        }
    }
}

/// Several mutexes that are held. Dropping the guard releases all of them.
///
/// # Guarantees
/// Those of a [`LockGuard`](crate::LockGuard), for each name. The loss of one mutex is the loss of
/// all: `is_held` is true only while all are held.
///
/// # Limits
/// Those of a `LockGuard`. Each name has its own fence. While a caller waits for a later name,
/// others wait for the earlier ones. So the longer the list, the longer everybody waits.
///
/// # Drop
/// Releases all, and hands each to its first waiter. Never panics. Sends all releases before it
/// waits for any reply. For each name the rules of a [`LockGuard`](crate::LockGuard#drop) say
/// whether it waits, and what is true when it returns. Blocks for at most one command timeout in
/// all. A release without an answer goes on in the background. If that fails too, that lock ends
/// with its TTL.
///
/// If the thread panics, the next holder of each name sees [`Lapsed`](PreviousHolder::Lapsed), as
/// after a [`LockGuard`](crate::LockGuard).
#[must_use = "bind it to `_guard`: `let _ =` drops it at once, and that releases the locks"]
pub struct MultiGuard {
    leases: Vec<Arc<HeldLease>>,
    group: Arc<LockGroup>,
    running: Arc<Running>,
    /// `unlock` has released the locks, so Drop must not do it again.
    unlocked: bool,
    panic_watch: PanicWatch,
}

impl MultiGuard {
    /// The guard of these leases. If one is lost by now, there is no guard: that loss is the error,
    /// and the others are released.
    fn new(
        leases: Vec<Arc<HeldLease>>,
        group: Arc<LockGroup>,
        manager: &LockManager,
    ) -> Result<MultiGuard> {
        let running = Arc::clone(manager.running());
        let engine = running.engine();
        // The renewal thread reports no loss of a lock without a guard. From here on it does. So
        // the look at the leases comes after this.
        group.mark_guarded();
        if let Some(loss) = first_lost(&leases, engine.now()) {
            let _ = engine.release_all(&leases, Mode::Unused, WantResult::No);
            return Err(Error::Lost { loss });
        }
        leases
            .iter()
            .for_each(|lease| engine.on_guard_created(lease));
        Ok(MultiGuard {
            leases,
            group,
            running,
            unlocked: false,
            panic_watch: PanicWatch::begin(),
        })
    }

    /// The names, each once, in the order of their keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.leases.iter().map(|lease| &*lease.request.key.name)
    }

    /// The fence of one of the names, like [`Lease::fence`](crate::Lease::fence). `None`
    /// for any other name. Every fence fits an `i64`.
    pub fn fence(&self, name: impl AsRef<str>) -> Option<u64> {
        self.lease(name.as_ref()).map(|lease| lease.fence())
    }

    /// How the previous holder of one of the names ended. `None` for any other name.
    pub fn previous_holder(&self, name: impl AsRef<str>) -> Option<PreviousHolder> {
        self.lease(name.as_ref()).map(|lease| lease.previous)
    }

    /// Whether you certainly still hold all the locks. Reads a clock and a flag for each; no I/O,
    /// never blocks.
    ///
    /// Once it is false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.leases.iter().all(|lease| lease.is_held(engine.now()))
    }

    /// How long [`is_held`](MultiGuard::is_held) stays true if no further renewal succeeds, up to
    /// [`max_hold`](crate::LockOptions::max_hold). Zero if one is lost. Never blocks.
    pub fn remaining(&self) -> Duration {
        let now = self.running.engine().now();
        let all = self.leases.iter();
        if self.is_held() {
            all.map(|lease| lease.remaining_for_guard(now))
                .min()
                .unwrap_or_default()
        } else {
            Duration::ZERO
        }
    }

    /// [`Lease::renewal_error`](crate::Lease::renewal_error) of the first name whose renewals fail.
    /// Never blocks.
    pub fn renewal_error(&self) -> Option<Error> {
        self.leases.iter().find_map(|lease| lease.renewal_error())
    }

    /// Like [`is_held`](MultiGuard::is_held), but for use with `?` between two steps of work. Never
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Lost`] with the name and the reason; [`Error::Closed`] in a forked child.
    pub fn check(&self) -> Result<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        first_lost(&self.leases, engine.now()).map_or(Ok(()), |loss| Err(Error::Lost { loss }))
    }

    /// Renews all locks now, in addition to the renewal thread. Fixed leases start again.
    ///
    /// Blocks as [`Lease::renew`](crate::Lease::renew), and for no longer.
    ///
    /// # Errors
    /// As [`Lease::renew`](crate::Lease::renew): the first of them. If one lock is known to be
    /// lost, nothing is sent. Otherwise Redis is asked for all of them, although one fails.
    pub fn renew(&self) -> Result<()> {
        self.running.engine().renew(&self.leases)
    }

    /// A channel that receives the first [`Loss`], and is disconnected after that. For `select!`
    /// beside the work. Never blocks.
    ///
    /// The message comes at most one command timeout after [`is_held`](MultiGuard::is_held) turns
    /// false, even if Redis cannot be reached. After a clean release the channel is disconnected at
    /// once.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.life().never()
        } else {
            &self.group.lost
        }
    }

    /// Releases all the locks, waits for Redis's replies, and reports whether you held the locks to
    /// the end.
    ///
    /// Blocks for at most one command timeout for all together. `Ok`: all were released while you
    /// held them.
    ///
    /// # Errors
    /// The first error, a loss before any other. Every lock that could be released is released all
    /// the same.
    /// - [`Error::Lost`]: you did not hold one of them any more.
    /// - [`Error::Unavailable`], [`Error::Refused`]: not known. The release goes on in the
    ///   background.
    /// - [`Error::Closed`] in a forked child.
    pub fn unlock(self) -> Result<()> {
        let mode = self.panic_watch.mode();
        self.release(mode)
    }

    /// Releases all the locks like [`unlock`](MultiGuard::unlock), but says that the work is half
    /// done: the next holder of each name sees [`Lapsed`](PreviousHolder::Lapsed). See
    /// [`LockGuard::abandon`](crate::LockGuard::abandon).
    ///
    /// Blocks for at most one command timeout for all together.
    ///
    /// # Errors
    /// As [`unlock`](MultiGuard::unlock).
    pub fn abandon(self) -> Result<()> {
        self.release(Mode::Unfinished)
    }

    fn release(mut self, mode: Mode) -> Result<()> {
        let engine = self.running.engine();
        if engine.is_forked() {
            return Err(Error::Closed);
        }
        self.unlocked = true;
        self.group.close();
        let errors = engine.release_all(&self.leases, mode, WantResult::Yes);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Whether this is a loss that was known before the release: the renewal thread warns of it.
    fn is_known(&self, error: &Error) -> bool {
        let Error::Lost { loss } = error else {
            return false;
        };
        self.lease(&loss.lock)
            .is_some_and(|lease| lease.loss().is_some())
    }

    fn lease(&self, name: &str) -> Option<&Arc<HeldLease>> {
        self.leases
            .iter()
            .find(|lease| &*lease.request.key.name == name)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        let engine = self.running.engine();
        // As in `LockGuard`.
        if !self.unlocked && engine.is_forked() {
            return;
        }
        self.group.close();
        let mode = self.panic_watch.mode();
        if !self.unlocked
            && let errors = engine.release_all(&self.leases, mode, WantResult::No)
            && let Some(error) = errors.into_iter().find(|error| !self.is_known(error))
        {
            log::warn!(
                logger: Logger,
                "dropping the one guard of {:?}: {error}",
                self.names().collect::<Vec<_>>()
            );
        }
        self.leases.iter().for_each(|_| engine.on_guard_dropped());
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("names", &self.names().collect::<Vec<_>>())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
