//! A worker process: its threads acquire locks of every kind, hold them, write to the resource, and
//! log everything.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use fairlock::{
    Error, LockGuard, LockManager, LockOptions, MultiGuard, ReadGuard, RwLock, SemaphoreGuard,
    endpoint::Endpoint,
};

use crate::{
    history_writer::{HistoryWriter, now},
    resource::Resource,
    rng::Rng,
    support::child::{receive, report},
};

const MUTEXES: [&str; 4] = ["ledger", "mail", "orders", "stock"];
/// Mutexes that some workers keep. Each is used by one worker more than by the others.
const KEPT: [&str; 4] = ["anvil", "bellows", "forge", "kiln"];
/// After so many ns the workers use other names in their place.
const KEPT_FOR: u64 = 4_000_000_000;
/// So many times in a row, a worker locks one of those.
const MOST_IN_A_ROW: usize = 20;
/// Mutexes that the threads of a worker hand over to each other.
const LINES: [&str; 1] = ["press"];
const LOCAL_HANDOVERS: u32 = 4;
const RW_LOCKS: [&str; 2] = ["atlas", "index"];
const SEMAPHORES: [&str; 2] = ["desks", "looms"];
const PERMITS: u32 = 3;

/// How much a worker does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) kinds: Kinds,
    pub(crate) threads: usize,
    /// Percent of the holds that are longer than a lease lasts without a renewal.
    pub(crate) long_holds: usize,
    pub(crate) outage_limit: Duration,
    /// It keeps mutexes after their guards.
    pub(crate) keeps: bool,
}

/// The kinds of locks that a worker takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kinds {
    All,
    Mutexes,
}

impl Load {
    /// Every kind, with the default outage limit.
    pub(crate) const FULL: Load = Load {
        kinds: Kinds::All,
        threads: 8,
        long_holds: 1,
        outage_limit: Duration::from_secs(10),
        keeps: false,
    };

    fn read(text: &str) -> Option<Load> {
        let words: Vec<&str> = text.split(' ').collect();
        let [kinds, threads, long_holds, outage_limit, keeps] = words[..] else {
            return None;
        };
        Some(Load {
            kinds: match kinds {
                "mutexes" => Kinds::Mutexes,
                _ => Kinds::All,
            },
            threads: threads.parse().ok()?,
            long_holds: long_holds.parse().ok()?,
            outage_limit: Duration::from_millis(outage_limit.parse().ok()?),
            keeps: keeps.parse().ok()?,
        })
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = match self.kinds {
            Kinds::All => "all",
            Kinds::Mutexes => "mutexes",
        };
        let limit = self.outage_limit.as_millis();
        let Load {
            threads,
            long_holds,
            keeps,
            ..
        } = self;
        write!(f, "{kinds} {threads} {long_holds} {limit} {keeps}")
    }
}

/// The parameters of a worker, passed as its arguments.
pub(crate) struct WorkerConfig<'a> {
    pub(crate) url: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) dir: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) who: &'a str,
    pub(crate) seed: u64,
    pub(crate) load: Load,
}

impl WorkerConfig<'_> {
    pub(crate) fn args(&self) -> [String; 7] {
        let ttl = self.ttl.as_millis().to_string();
        let seed = self.seed.to_string();
        [
            self.url.into(),
            ttl,
            self.dir.into(),
            self.resource.into(),
            self.who.into(),
            seed,
            self.load.to_string(),
        ]
    }
}

/// A thread's request for a name.
#[derive(Clone, Copy)]
enum LockRequest {
    Mutex,
    Line,
    Kept,
    Read,
    Write,
    Permits(u32),
}

/// The form that the history uses, see `history::Demand`.
impl fmt::Display for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockRequest::Mutex => write!(f, "1/1"),
            LockRequest::Line => write!(f, "line:{LOCAL_HANDOVERS}"),
            LockRequest::Kept => write!(f, "kept"),
            LockRequest::Read => write!(f, "read"),
            LockRequest::Write => write!(f, "write"),
            LockRequest::Permits(permits) => write!(f, "{permits}/{PERMITS}"),
        }
    }
}

impl LockRequest {
    fn is_mutex(self) -> bool {
        matches!(
            self,
            LockRequest::Mutex | LockRequest::Line | LockRequest::Kept
        )
    }
}

/// A guard of any kind.
enum Guard {
    Mutex(LockGuard),
    Permits(SemaphoreGuard),
    Reader(ReadGuard),
    Writer(LockGuard),
    All(MultiGuard),
}

/// One thread of a worker.
struct WorkerThread {
    manager: LockManager,
    ttl: Duration,
    history: Arc<HistoryWriter>,
    resource: Resource,
    rng: Rng,
    load: Load,
    /// A quorum has no local hand-overs.
    has_lines: bool,
    who: String,
    attempts: usize,
    /// Percent of the guards that are dropped. The others are unlocked.
    drops: usize,
}

/// The child role: makes attempts until it receives `finish`, and then completes those in progress.
pub(crate) fn work(args: &[String]) {
    let [url, ttl, dir, resource, who, seed, load] = args else {
        panic!("unexpected arguments: {args:?}")
    };
    let ttl = Duration::from_millis(ttl.parse().expect("a TTL in ms"));
    let seed: u64 = seed.parse().expect("a seed");
    let load = Load::read(load).expect("a load");
    let history = Arc::new(HistoryWriter::new(Path::new(dir), who));
    thread::spawn({
        let history = Arc::clone(&history);
        move || history.watch_clock()
    });
    let lanes = 1 + (seed % 2) as u32;
    let manager = connect(url, ttl, lanes, load.outage_limit);
    report("ready");
    let finish = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..load.threads {
            let mut thread = WorkerThread {
                manager: manager.clone(),
                ttl,
                history: Arc::clone(&history),
                resource: Resource::connect(resource),
                rng: Rng::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
                load,
                has_lines: !url.contains(' '),
                who: format!("{who}.{number}"),
                attempts: 0,
                drops: 50,
            };
            let finish = &finish;
            scope.spawn(move || {
                while !finish.load(Ordering::SeqCst) {
                    thread.attempt();
                }
            });
        }
        if load.kinds == Kinds::All {
            scope.spawn(|| watch_queues(&manager, &history, who, &finish));
        }
        while receive().is_some_and(|line| line != "finish") {}
        finish.store(true, Ordering::SeqCst);
    });
    history.log(format_args!("turns {}", manager.stats().kept_turns));
}

/// Connects, and retries while the server is away. Several URLs with spaces between them are a
/// quorum.
fn connect(url: &str, ttl: Duration, lanes: u32, outage_limit: Duration) -> LockManager {
    loop {
        let endpoint = if url.contains(' ') {
            Endpoint::quorum(url.split(' '))
        } else {
            Endpoint::from(url)
        };
        match LockManager::builder(endpoint)
            .options(LockOptions::new().ttl(ttl))
            .lanes(lanes)
            .outage_limit(outage_limit)
            .build()
        {
            Ok(manager) => return manager,
            Err(Error::Unavailable { .. } | Error::Refused { .. }) => {
                // A pause between two polls.
                thread::sleep(Duration::from_millis(20))
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// A blocking call does not report when it is queued. So this thread inspects the queues, and
/// recognizes the calls by their labels.
fn watch_queues(manager: &LockManager, history: &HistoryWriter, who: &str, finish: &AtomicBool) {
    let ours = format!("{who}.");
    for name in RW_LOCKS.iter().chain(&SEMAPHORES).cycle() {
        if finish.load(Ordering::SeqCst) {
            return;
        }
        let before = now();
        // The server may be away right now.
        if let Ok(Some(info)) = manager.inspect(name) {
            let after = now();
            let labels = info.queue.iter().map(|party| &party.label);
            for id in labels.filter(|label| label.starts_with(&ours)) {
                history.log_at(after, format_args!("waiting {id} {before}"));
            }
        }
        // A pause between two polls.
        thread::sleep(Duration::from_millis(5));
    }
}

impl WorkerThread {
    fn attempt(&mut self) {
        self.attempts += 1;
        let id = format!("{}.{}", self.who, self.attempts);
        let kind = match self.load.kinds {
            Kinds::All => self.rng.below(100),
            Kinds::Mutexes => self.rng.below(45),
        };
        match kind {
            0..=2 => self.attempt_several(&id),
            3..=17 if self.has_lines => {
                let name = *self.rng.pick(&LINES);
                self.attempt_one(&id, name, LockRequest::Line);
            }
            18..=37 if self.has_lines => self.attempt_in_a_row(&id),
            3..=44 => {
                let name = *self.rng.pick(&MUTEXES);
                self.attempt_one(&id, name, LockRequest::Mutex);
            }
            45..=74 => {
                let name = *self.rng.pick(&RW_LOCKS);
                let request = if self.rng.percent(60) {
                    LockRequest::Read
                } else {
                    LockRequest::Write
                };
                self.attempt_one(&id, name, request);
            }
            _ => {
                let name = *self.rng.pick(&SEMAPHORES);
                let request = LockRequest::Permits(1 + self.rng.below(PERMITS as usize) as u32);
                self.attempt_one(&id, name, request);
            }
        }
        // Time itself is under test: attempts begin at random times.
        thread::sleep(self.rng.ms(0..20));
    }

    /// The same name a few times, mostly one that the other workers seldom use.
    fn attempt_in_a_row(&mut self, id: &str) {
        let is_own = self.rng.percent(97);
        let name = if is_own {
            let slot = self.who.split('.').next();
            let slot: usize = slot.map_or(0, |at| at.parse().expect("a number"));
            KEPT[slot % KEPT.len()]
        } else {
            *self.rng.pick(&KEPT)
        };
        // A name that others wanted too often is not kept for longer than a short run.
        let name = format!("{name}.{}", now() / KEPT_FOR);
        let request = if self.load.keeps {
            LockRequest::Kept
        } else {
            LockRequest::Mutex
        };
        let most = if is_own { MOST_IN_A_ROW } else { 2 };
        // A lock that is unlocked is not kept.
        self.drops = if self.load.keeps { 98 } else { 50 };
        for turn in 0..=self.rng.below(most) {
            self.attempt_one(&format!("{id}.{turn}"), &name, request);
        }
        self.drops = 50;
    }

    fn attempt_one(&mut self, id: &str, name: &str, request: LockRequest) {
        let mut verb = *self
            .rng
            .pick(&["enqueue", "enqueue", "lock", "try_lock_for", "try_lock"]);
        let is_mutex = request.is_mutex();
        if verb == "enqueue" && !is_mutex {
            verb = "lock";
        }
        let at_most = self.rng.ms(10..800);
        match verb {
            "try_lock_for" => self.history.log(format_args!(
                "ask {id} {name} {verb}:{} {request}",
                at_most.as_nanos()
            )),
            _ => self
                .history
                .log(format_args!("ask {id} {name} {verb} {request}")),
        }
        let mut options = LockOptions::new().ttl(self.ttl).label(id);
        if matches!(request, LockRequest::Line) {
            options = options.local_handovers(LOCAL_HANDOVERS);
        }
        if matches!(request, LockRequest::Kept) {
            // The guards of a kept lock have the same options, so nothing is asked for the next one.
            options = LockOptions::new().ttl(self.ttl).keep_idle(self.ttl / 4);
        }
        let manager = self.manager.with(options);
        let rw = manager.rw_lock(name);
        let permits = manager.semaphore(name, PERMITS);
        let got = match (request, verb) {
            (_, "enqueue") => self.enqueue(&manager, id, name).map(mutex),
            (_, "lock") if is_mutex => manager.lock(name).map(Some).map(mutex),
            (_, "try_lock_for") if is_mutex => manager.try_lock_for(name, at_most).map(mutex),
            (LockRequest::Mutex | LockRequest::Line | LockRequest::Kept, _) => {
                manager.try_lock(name).map(mutex)
            }
            (LockRequest::Read, "lock") => rw.read().map(Guard::Reader).map(Some),
            (LockRequest::Read, "try_lock_for") => rw
                .try_read_for(at_most)
                .map(|guard| guard.map(Guard::Reader)),
            (LockRequest::Read, _) => rw.try_read().map(|guard| guard.map(Guard::Reader)),
            (LockRequest::Write, "lock") => rw.write().map(Guard::Writer).map(Some),
            (LockRequest::Write, "try_lock_for") => rw
                .try_write_for(at_most)
                .map(|guard| guard.map(Guard::Writer)),
            (LockRequest::Write, _) => rw.try_write().map(|guard| guard.map(Guard::Writer)),
            (LockRequest::Permits(n), "lock") => permits.acquire(n).map(Guard::Permits).map(Some),
            (LockRequest::Permits(n), "try_lock_for") => permits
                .try_acquire_for(n, at_most)
                .map(|guard| guard.map(Guard::Permits)),
            (LockRequest::Permits(n), _) => permits
                .try_acquire(n)
                .map(|guard| guard.map(Guard::Permits)),
        };
        // Several holders of permits hold at once, so the fences do not order their writes.
        let writes = !matches!(request, LockRequest::Permits(_));
        self.end(&[(id.to_owned(), name)], writes, got);
    }

    /// Two or three mutexes, all or none.
    fn attempt_several(&mut self, id: &str) {
        let first = self.rng.below(MUTEXES.len());
        let number = 2 + self.rng.below(2);
        let names = MUTEXES.iter().cycle().skip(first).take(number);
        let parts: Vec<_> = names.map(|name| (format!("{id}+{name}"), *name)).collect();
        let verb = *self
            .rng
            .pick(&["lock_all", "try_lock_all_for", "try_lock_all"]);
        let at_most = self.rng.ms(10..800);
        for (id, name) in &parts {
            match verb {
                "try_lock_all_for" => self.history.log(format_args!(
                    "ask {id} {name} {verb}:{}",
                    at_most.as_nanos()
                )),
                _ => self.history.log(format_args!("ask {id} {name} {verb}")),
            }
        }
        let names = parts.iter().map(|(_, name)| name);
        let got = match verb {
            "lock_all" => self.manager.lock_all(names).map(Some),
            "try_lock_all_for" => self.manager.try_lock_all_for(names, at_most),
            _ => self.manager.try_lock_all(names),
        };
        self.end(&parts, true, got.map(|guard| guard.map(Guard::All)));
    }

    fn end(&mut self, parts: &[(String, &str)], writes: bool, got: Result<Option<Guard>, Error>) {
        let how = match got {
            Ok(Some(guard)) => self.hold(parts, writes, guard),
            Ok(None) => "none".to_owned(),
            Err(e) => error_word(&e),
        };
        self.log_each(parts, |id| format!("ended {id} {how}"));
    }

    fn enqueue(
        &mut self,
        manager: &LockManager,
        id: &str,
        name: &str,
    ) -> Result<Option<LockGuard>, Error> {
        let mut waiter = manager.enqueue(name)?;
        self.history.log(format_args!("queued {id}"));
        if self.rng.percent(50) {
            return waiter.wait().map(Some);
        }
        for _ in 0..self.rng.below(4) {
            let got = waiter.wait_for(self.rng.ms(1..500));
            if !matches!(got, Ok(None)) {
                return got;
            }
        }
        self.history.log(format_args!("cancel {id}"));
        Ok(None)
    }

    fn hold(&mut self, parts: &[(String, &str)], writes: bool, mut guard: Guard) -> String {
        self.log_each(parts, |id| {
            let name = parts
                .iter()
                .find(|part| part.0 == id)
                .map_or("", |part| part.1);
            format!("granted {id} {}", guard.fence(name))
        });
        let mut held = self.work(parts, writes, &guard);
        if let Guard::Writer(writer) = guard {
            if held && self.rng.percent(40) {
                self.log_each(parts, |id| format!("downgrade {id}"));
                guard = match RwLock::downgrade(writer) {
                    Ok(reader) => Guard::Reader(reader),
                    Err(e) => return error_word(&e),
                };
                self.log_each(parts, |id| format!("downgraded {id}"));
                held = self.work(parts, writes, &guard);
            } else {
                guard = Guard::Writer(writer);
            }
        }
        if !held {
            for _ in 0..3 {
                // A pause between two polls.
                thread::sleep(Duration::from_millis(5));
                self.look(parts, &guard);
            }
        }
        self.log_each(parts, |id| format!("release {id}"));
        if self.rng.percent(self.drops) {
            drop(guard);
            return "dropped".to_owned();
        }
        match guard.unlock() {
            Ok(()) => "released".to_owned(),
            Err(e) => error_word(&e),
        }
    }

    /// Holds it while writing to the resource, or reading from it. Each round checks `is_held`,
    /// works, and then writes; the write is late if the process was stopped in between. Returns
    /// whether it is held at the end.
    fn work(&mut self, parts: &[(String, &str)], writes: bool, guard: &Guard) -> bool {
        let rounds = if self.rng.percent(self.load.long_holds) {
            200
        } else {
            self.rng.below(4).max(1)
        };
        for _ in 0..rounds {
            if !self.look(parts, guard) {
                return false;
            }
            // Time itself is under test: it holds the lock for a while.
            thread::sleep(self.rng.ms(1..15));
            for (id, name) in parts.iter().filter(|_| writes) {
                self.resource.write(id, name, guard.fence(name));
            }
        }
        self.look(parts, guard)
    }

    fn look(&self, parts: &[(String, &str)], guard: &Guard) -> bool {
        let before = now();
        let held = guard.is_held();
        let after = now();
        for (id, _) in parts {
            if held {
                self.history
                    .log_at(before, format_args!("held {id} {after}"));
            } else {
                self.history.log_at(after, format_args!("lost {id}"));
            }
        }
        held
    }

    fn log_each(&self, parts: &[(String, &str)], what: impl Fn(&str) -> String) {
        parts.iter().for_each(|(id, _)| self.history.log(what(id)));
    }
}

fn mutex(guard: Option<LockGuard>) -> Option<Guard> {
    guard.map(Guard::Mutex)
}

impl Guard {
    fn fence(&self, name: &str) -> u64 {
        match self {
            Guard::Mutex(guard) => guard.fence(),
            Guard::Permits(guard) => guard.fence(),
            Guard::Reader(guard) => guard.fence(),
            Guard::Writer(guard) => guard.fence(),
            Guard::All(guard) => guard.fence(name).expect("the guard has this name"),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Guard::Mutex(guard) => guard.is_held(),
            Guard::Permits(guard) => guard.is_held(),
            Guard::Reader(guard) => guard.is_held(),
            Guard::Writer(guard) => guard.is_held(),
            Guard::All(guard) => guard.is_held(),
        }
    }

    fn unlock(self) -> Result<(), Error> {
        match self {
            Guard::Mutex(guard) => guard.unlock(),
            Guard::Permits(guard) => guard.unlock(),
            Guard::Reader(guard) => guard.unlock(),
            Guard::Writer(guard) => guard.unlock(),
            Guard::All(guard) => guard.unlock(),
        }
    }
}

/// An error in one word, for the history.
fn error_word(error: &Error) -> String {
    match error {
        Error::Lost { loss, .. } => format!("lost:{:?}", loss.reason),
        Error::Unavailable { step, .. } => format!("unavailable:{step:?}"),
        Error::Refused { code, .. } => format!("server:{code}"),
        // The injected faults must cause no other error.
        other => panic!("{other}"),
    }
}
