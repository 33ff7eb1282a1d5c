//! Several mutexes, all or none.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::{request_to_try, request_to_wait};
use crate::engine::{
    EngineHandle, Lease, LockGroup, Request, WantResult, first_lost, is_transient,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::{Loss, PreviousHolder};
use crate::manager::LockManager;
use crate::script::{LockSpec, Mode};
use crate::store::clock::Time;

/// How many names [`lock_all`](LockManager::lock_all) takes, at most.
pub const MAX_NAMES: usize = 256;

impl LockManager {
    /// Takes the mutexes of all these names, waiting for each in turn for as long as Redis answers; all or none. A name
    /// that stands there twice is taken once.
    ///
    /// If all are free, that is one round trip. Else they are taken one after the other in the order of their keys, which
    /// is the same for every caller, so that callers who name them in different orders do not wait for each other for
    /// ever. Those taken first are held, and renewed, while the later ones are awaited: a `max_hold` or a fixed lease runs
    /// for each name from its own grant, and must outlast that. Blocks for each as [`lock`](LockManager::lock) does.
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
    /// As [`lock`](LockManager::lock), for any of them; [`Config`](Error::Config) also for no name at all and for more than
    /// [`MAX_NAMES`]. [`Lost`](Error::Lost) if one was lost while another was awaited, told within a check period and two
    /// command timeouts, in which the others are given back. After an error none is held.
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiGuard> {
        let wanted = Wanted::new(self, names)?;
        loop {
            // Without a deadline a wait ends with a grant or an error.
            if let Some(guard) = wanted.take(self, Time::NEVER)? {
                return Ok(guard);
            }
        }
    }

    /// Takes them if all are free and nobody waits for any; `None`, and none is kept, if not. Never waits for others. Two that
    /// try for many at the same moment may find some taken by each other, and both get `None`.
    ///
    /// Blocks for at most three command timeouts, the third for giving some back.
    ///
    /// # Errors
    /// As [`lock_all`](LockManager::lock_all), without waiting out an outage.
    pub fn try_lock_all(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Option<MultiGuard>> {
        Wanted::new(self, names)?.try_take(self)
    }

    /// As [`lock_all`](LockManager::lock_all), waiting for at most so long over all; `None`, and none is kept, if that did
    /// not do.
    ///
    /// Blocks for at most `at_most` and two command timeouts, the second for giving back what was taken. Zero is one try.
    ///
    /// # Errors
    /// As [`lock_all`](LockManager::lock_all).
    pub fn try_lock_all_for(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        at_most: Duration,
    ) -> Result<Option<MultiGuard>> {
        Wanted::new(self, names)?.take_until(self, self.engine().now() + at_most)
    }

    /// As [`try_lock_all_for`](LockManager::try_lock_all_for), until a moment. One that has passed is one try.
    ///
    /// # Errors
    /// As there.
    pub fn try_lock_all_until(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        deadline: Instant,
    ) -> Result<Option<MultiGuard>> {
        Wanted::new(self, names)?.take_until(self, self.engine().at(deadline))
    }
}

/// The keys, each once and in their order.
struct Wanted(Vec<Key>);

impl Wanted {
    fn new(
        manager: &LockManager,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Wanted> {
        let mut keys = HashSet::new();
        for name in names {
            keys.insert(manager.key(name.as_ref())?);
            if keys.len() > MAX_NAMES {
                return Err(Error::config(
                    "names",
                    format!("at most {MAX_NAMES} different ones"),
                ));
            }
        }
        if keys.is_empty() {
            return Err(Error::config("names", "at least one"));
        }
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable_by(|a, b| a.record().cmp(b.record()));
        Ok(Wanted(keys))
    }

    fn take_until(&self, manager: &LockManager, until: Time) -> Result<Option<MultiGuard>> {
        if until <= manager.engine().now() {
            self.try_take(manager)
        } else {
            self.take(manager, until)
        }
    }

    fn take(&self, manager: &LockManager, until: Time) -> Result<Option<MultiGuard>> {
        let engine = manager.engine();
        let (requests, whole) = self.requests(manager, request_to_wait)?;
        match engine.try_acquire_all(&requests, until) {
            Ok(Some(leases)) => return Ok(Some(MultiGuard::new(leases, whole, manager))),
            Ok(None) | Err(Error::Lost { .. }) => {}
            // An outage is waited out below.
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        let (requests, whole) = self.requests(manager, request_to_wait)?;
        let leases = engine.acquire_all(&requests, until)?;
        Ok(leases.map(|leases| MultiGuard::new(leases, whole, manager)))
    }

    fn try_take(&self, manager: &LockManager) -> Result<Option<MultiGuard>> {
        let (requests, whole) = self.requests(manager, request_to_try)?;
        let leases = manager.engine().try_acquire_all(&requests, Time::NEVER)?;
        if leases.is_none() {
            manager.engine().counters.missed.add(1);
        }
        Ok(leases.map(|leases| MultiGuard::new(leases, whole, manager)))
    }

    fn requests(
        &self,
        manager: &LockManager,
        request: fn(&LockManager, Key, LockSpec) -> Result<Request>,
    ) -> Result<(Vec<Arc<Request>>, Arc<LockGroup>)> {
        let whole = LockGroup::new();
        let part = |key: &Key| {
            let request = request(manager, key.clone(), LockSpec::MUTEX)?;
            Ok(Arc::new(request.in_group(&whole)))
        };
        Ok((self.0.iter().map(part).collect::<Result<_>>()?, whole))
    }
}

/// Several mutexes that are held; dropping it releases them all.
///
/// # Guarantees
/// Those of a [`LockGuard`](crate::LockGuard) for each name, and that the loss of one is the loss of the whole: `is_held`
/// is true only while all are held.
///
/// # Limits
/// Those of a `LockGuard`. Each name has a fence of its own. While it waits for a later name, others wait for the earlier
/// ones: the longer the list, the longer all wait.
///
/// # Drop
/// Releases all in one round trip and hands each to its first waiter. Never panics; blocks for at most one command timeout.
/// What could not be released goes on in the background, and failing that ends with the TTL.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    leases: Vec<Arc<Lease>>,
    whole: Arc<LockGroup>,
    running: Arc<EngineHandle>,
    /// `unlock` has released them; there is nothing left for Drop to do.
    unlocked: bool,
}

impl MultiGuard {
    fn new(leases: Vec<Arc<Lease>>, whole: Arc<LockGroup>, manager: &LockManager) -> MultiGuard {
        let running = Arc::clone(manager.running());
        leases
            .iter()
            .for_each(|_| running.engine().on_guard_created());
        whole.mark_guarded();
        // One that was lost before was nobody's, and was told to nobody.
        if let Some(loss) = first_lost(&leases, running.engine().now()) {
            whole.report_loss(&loss);
        }
        MultiGuard {
            leases,
            whole,
            running,
            unlocked: false,
        }
    }

    /// The names, each once, in the order of their keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.leases.iter().map(|lease| &*lease.request.key.name)
    }

    /// The fence of one of the names, as [`LockGuard::fence`](crate::LockGuard::fence); `None` for a name that is not among
    /// them.
    pub fn fence(&self, name: &str) -> Option<u64> {
        self.lease(name).map(|lease| lease.fence)
    }

    /// How the holder of one of the names before this one ended; `None` for a name that is not among them.
    pub fn previous_holder(&self, name: &str) -> Option<PreviousHolder> {
        self.lease(name).map(|lease| lease.previous)
    }

    /// Whether all are certainly still ours. Looks at a clock and a flag for each; no I/O, never blocks.
    ///
    /// Once false it is never true again.
    pub fn is_held(&self) -> bool {
        let engine = self.running.engine();
        !engine.is_forked() && self.leases.iter().all(|lease| lease.is_held(engine.now()))
    }

    /// For how long [`is_held`](MultiGuard::is_held) stays true if no renewal succeeds any more; zero if one is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.running.engine().now();
        let least = self.leases.iter().map(|lease| lease.remaining(now)).min();
        if self.is_held() {
            least.unwrap_or_default()
        } else {
            Duration::ZERO
        }
    }

    /// As [`is_held`](MultiGuard::is_held), to be used with `?` between two steps of work.
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

    /// A channel that tells of the first loss, then disconnected; after a clean release it is disconnected at once. For
    /// `select!` beside the work.
    ///
    /// It tells at most one command timeout after [`is_held`](MultiGuard::is_held) turns false, also when Redis is
    /// unreachable.
    pub fn lost(&self) -> &Receiver<Loss> {
        let engine = self.running.engine();
        if engine.is_forked() {
            engine.never()
        } else {
            &self.whole.lost
        }
    }

    /// Releases all and says how that went. Blocks for at most one command timeout.
    ///
    /// # Errors
    /// `Ok`: all were released while they were ours. Otherwise the first of what went wrong, and all that could be released
    /// is: [`Error::Lost`] for one that was not ours any more, [`Error::Unavailable`] if it is not known and goes on in the
    /// background.
    pub fn unlock(mut self) -> Result<()> {
        self.unlocked = true;
        self.whole.close();
        let engine = self.running.engine();
        if engine.is_forked() {
            Err(Error::Closed)
        } else {
            engine.release_all(&self.leases, Mode::Used, WantResult::Yes)
        }
    }

    fn lease(&self, name: &str) -> Option<&Arc<Lease>> {
        self.leases
            .iter()
            .find(|lease| &*lease.request.key.name == name)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        let engine = self.running.engine();
        if engine.is_forked() {
            return;
        }
        self.whole.close();
        if !self.unlocked
            && let Err(error) = engine.release_all(&self.leases, Mode::Used, WantResult::No)
        {
            log::warn!(
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
