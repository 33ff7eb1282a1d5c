//! Seeing what is going on: who holds a lock, who waits for it, and taking it away by force.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::glob::Glob;
use crate::key::{self, Key};
use crate::kind::Kind;
use crate::manager::LockManager;
use crate::script::{Call, Family, LockSpec, Mode, Outcome, Seen, Token, Verb};

/// How many waiters [`LockInfo::queue`] names, at most.
pub const MAX_WAITERS_SHOWN: usize = 1000;

/// How many records a page of [`List`] asks for in one pipeline.
const PAGE: usize = 128;

/// What is known of a name that is held, cooling or awaited.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// The name.
    pub name: Arc<str>,
    /// What it is used as.
    pub kind: Kind,
    /// Whether it is held.
    pub state: LockState,
    /// The fence of the newest grant; of a reader/writer lock of the newest writer's, which its readers have too.
    pub fence: u64,
    /// Who holds it; while it cools, who held it last. One of them, if several do.
    pub holder: Option<Party>,
    /// All who hold it, or did while it cools, in no order; at most [`MAX_WAITERS_SHOWN`].
    pub holders: Vec<Party>,
    /// How long the lease or the cooling lasts if nothing happens, the longest if there are several. Zero for a lease that
    /// has lapsed and whose place nobody has taken.
    pub time_left: Duration,
    /// How many wait, those included that died or left without a word.
    pub waiters: u64,
    /// The first waiters, in the order in which they will be served; at most [`MAX_WAITERS_SHOWN`].
    pub queue: Vec<Party>,
}

/// Whether a name is held.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockState {
    /// It has an owner.
    Held,
    /// It was released, but `hold_at_least` keeps it taken.
    Cooling,
    /// It is free, and will go to the first live waiter at its next check.
    Free,
}

/// Who holds a lock or waits for it.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The id of its manager, a random one.
    pub manager: String,
    /// The host.
    pub host: String,
    /// The process on that host.
    pub pid: u32,
    /// The name of the thread, `-` if it has none.
    pub thread: String,
    /// The label of [`LockOptions::label`](crate::LockOptions::label).
    pub label: String,
    /// Since when it holds or waits, by the server's clock.
    pub since: SystemTime,
    /// The ttl or the length of the fixed lease.
    pub ttl: Duration,
    /// The fence by which it holds the lock; `None` while it waits.
    pub fence: Option<u64>,
    /// How many permits of a semaphore it has or asks for; 1 of any other kind, of a writer too.
    pub permits: u32,
}

impl LockManager {
    /// What is known of a name; `None` if it is not held, not cooling and nobody waits for it.
    ///
    /// Writes nothing. Blocks for at most two command timeouts, and twice that for a semaphore or a reader/writer lock.
    ///
    /// # Errors
    /// [`Config`](Error::Config) for a name that is not allowed, [`WrongKind`](Error::WrongKind) for a kind that this version
    /// does not know, [`Unavailable`](Error::Unavailable),
    /// [`Server`](Error::Server).
    pub fn inspect(&self, name: &str) -> Result<Option<LockInfo>> {
        let mut infos = self.inspect_all(vec![self.key(name)?])?;
        infos.pop().unwrap_or(Ok(None))
    }

    /// All names of this prefix that match a glob (`*`, `?`, `[ab]`, `[^a-z]`, `\` escapes) and are held, cooling or
    /// awaited, in no order, each once.
    ///
    /// Reads page by page with SCAN; between pages it holds no connection, and what changes meanwhile may or
    /// may not be seen. All pages together make Redis go through every key of the database, whoever's it is;
    /// each record that matches costs one request more, and the iterator remembers the names it has told. A
    /// page blocks for at most four command timeouts, and two more for every 128 names on it, four if there are semaphores
    /// or reader/writer locks among them.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// for info in mgr.list("invoices:*") {
    ///     let info = info?;
    ///     println!("{}: {:?}, {} waiting", info.name, info.state, info.waiters);
    /// }
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn list(&self, pattern: &str) -> List {
        let glob = Glob::new(pattern);
        List {
            manager: self.clone(),
            pattern: key::scan_pattern(&self.engine().config.prefix, &glob),
            glob,
            cursor: Some(0),
            seen: HashSet::new(),
            page: VecDeque::new(),
        }
    }

    /// Takes a lock away from whoever holds it and hands it on, if its fence is still the one that was seen.
    /// `false`: it was not.
    ///
    /// The holder is told [`LossReason::Forced`](crate::LossReason::Forced) at its next renewal, and may believe for up
    /// to a TTL that it holds the lock: only fences keep it from writing. Ends a cooling as well. Blocks for at
    /// most two command timeouts, twice that for a semaphore or a reader/writer lock, and again for every 64 waiters that
    /// died at the head of the queue. Of a reader/writer lock the readers share the last writer's fence: it is taken away
    /// from all of them.
    ///
    /// # Errors
    /// As [`inspect`](LockManager::inspect).
    pub fn force_release(&self, name: &str, fence: u64) -> Result<bool> {
        let key = self.key(name)?;
        let verb = Verb::Release {
            token: Token::new(),
            fence,
            mode: Mode::Forced,
        };
        let mut call = [Call {
            spec: LockSpec::MUTEX,
            key,
            verb,
        }];
        let mut released = false;
        loop {
            let answer = match self
                .engine()
                .ask(&call)?
                .pop()
                .unwrap_or(Err(Error::Closed))
            {
                Err(error) if is_of_permits(&error) && call[0].spec == LockSpec::MUTEX => {
                    call[0].spec = LockSpec::any(Family::Permit);
                    continue;
                }
                answer => answer?,
            };
            // If the first request's reply was lost, the second finds it done.
            let done_before = answer.resent && answer.reply.outcome == Outcome::Already;
            released |= done_before || answer.reply.outcome == Outcome::Released;
            // More dead waiters than one step passes over stand before the next live one.
            if !answer.reply.more {
                return Ok(released);
            }
        }
    }

    fn inspect_all(&self, keys: Vec<Key>) -> Result<Vec<Result<Option<LockInfo>>>> {
        let mut infos = self.inspect_as(LockSpec::MUTEX, &keys)?;
        // What the one family does not know, the other may.
        let others = infos
            .iter()
            .zip(&keys)
            .filter(|(info, _)| info.as_ref().is_err_and(is_of_permits));
        let others: Vec<Key> = others.map(|(_, key)| key.clone()).collect();
        if !others.is_empty() {
            let mut told = self
                .inspect_as(LockSpec::any(Family::Permit), &others)?
                .into_iter();
            for info in infos
                .iter_mut()
                .filter(|info| info.as_ref().is_err_and(is_of_permits))
            {
                *info = told.next().unwrap_or(Ok(None));
            }
        }
        Ok(infos)
    }

    fn inspect_as(&self, spec: LockSpec, keys: &[Key]) -> Result<Vec<Result<Option<LockInfo>>>> {
        let call = |key: &Key| Call {
            spec,
            key: key.clone(),
            verb: Verb::Inspect {
                waiters: MAX_WAITERS_SHOWN,
            },
        };
        let calls: Vec<Call> = keys.iter().map(call).collect();
        let replies = self.engine().ask(&calls)?;
        let infos = keys
            .iter()
            .zip(replies)
            .map(|(key, reply)| match reply?.reply.outcome {
                Outcome::Seen(seen) => Ok(Some(LockInfo::new(key.clone(), *seen))),
                _ => Ok(None),
            });
        Ok(infos.collect())
    }
}

/// The name was asked for as a mutex, and is a kind of the other family.
fn is_of_permits(error: &Error) -> bool {
    matches!(
        error,
        Error::WrongKind {
            is: Kind::Semaphore { .. } | Kind::RwLock,
            ..
        }
    )
}

/// The iterator of [`LockManager::list`]. After an error it ends.
#[derive(Debug)]
#[must_use = "an iterator does nothing until it is used"]
pub struct List {
    manager: LockManager,
    pattern: String,
    glob: Glob,
    /// `None` after the last page.
    cursor: Option<u64>,
    /// SCAN may name a key twice.
    seen: HashSet<Arc<str>>,
    page: VecDeque<LockInfo>,
}

impl Iterator for List {
    type Item = Result<LockInfo>;

    fn next(&mut self) -> Option<Result<LockInfo>> {
        loop {
            if let Some(info) = self.page.pop_front() {
                return Some(Ok(info));
            }
            let cursor = self.cursor.take()?;
            if let Err(error) = self.turn_page(cursor) {
                self.page.clear();
                self.cursor = None;
                return Some(Err(error));
            }
        }
    }
}

impl List {
    fn turn_page(&mut self, cursor: u64) -> Result<()> {
        let engine = self.manager.engine();
        let (next, records) = engine.scan(cursor, &self.pattern)?;
        self.cursor = (next != 0).then_some(next);
        let prefix = &engine.config.prefix;
        let mut keys: Vec<Key> = records
            .iter()
            .filter_map(|record| Key::from_record(prefix, record))
            .collect();
        keys.retain(|key| self.glob.matches(&key.name) && self.seen.insert(Arc::clone(&key.name)));
        for keys in keys.chunks(PAGE) {
            for info in self.manager.inspect_all(keys.to_vec())? {
                match info {
                    Ok(info) => self.page.extend(info),
                    // Another version's kind, or not ours at all: nothing to tell of it here.
                    Err(Error::WrongKind { .. }) => {}
                    Err(Error::Server { code, .. })
                        if code == "WRONGTYPE" || code == "WRONGVERSION" => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl LockInfo {
    pub(crate) fn new(key: Key, seen: Seen) -> LockInfo {
        let state = match &seen.holders[..] {
            [] => LockState::Free,
            holders if holders.iter().all(|holder| holder.cools) => LockState::Cooling,
            _ => LockState::Held,
        };
        let kind = Kind::from_record(&seen.kind);
        let parse = |text: &str| Party::parse(text, &kind);
        let holders: Vec<Party> = seen
            .holders
            .iter()
            .filter_map(|holder| {
                let party = parse(&holder.request)?;
                let permits = if kind == Kind::RwLock {
                    1
                } else {
                    holder.permits
                };
                Some(Party {
                    since: server_time(holder.granted_at),
                    fence: Some(holder.fence),
                    permits,
                    ..party
                })
            })
            .collect();
        LockInfo {
            name: key.name,
            state,
            fence: seen.fence,
            holder: holders.first().cloned(),
            holders,
            time_left: seen
                .holders
                .iter()
                .map(|holder| holder.left)
                .max()
                .unwrap_or_default(),
            waiters: seen.waiters,
            queue: seen
                .queue
                .iter()
                .filter_map(|waiter| parse(waiter))
                .collect(),
            kind,
        }
    }
}

impl Party {
    /// From `ticket since manager ttl fixed hold host⇥pid⇥thread⇥label`, of permits with their number before the host.
    fn parse(request: &str, kind: &Kind) -> Option<Party> {
        let weighted = matches!(kind, Kind::Semaphore { .. } | Kind::RwLock);
        let mut parts = request.splitn(if weighted { 8 } else { 7 }, ' ');
        let since = parts.nth(1)?.parse().ok()?;
        let manager = parts.next()?.to_owned();
        let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
        let mut rest = parts.skip(2);
        let permits = if weighted {
            rest.next()?.parse().ok()?
        } else {
            1
        };
        let mut label = rest.next()?.splitn(4, '\t');
        Some(Party {
            manager,
            host: label.next()?.to_owned(),
            pid: label.next()?.parse().ok()?,
            thread: label.next()?.to_owned(),
            label: label.next()?.to_owned(),
            since: server_time(since),
            ttl,
            fence: None,
            permits: if *kind == Kind::RwLock { 1 } else { permits },
        })
    }
}

fn server_time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
