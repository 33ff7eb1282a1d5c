//! A worker process: threads that want locks of every kind, hold them, write to what they protect,
//! and note all of it.

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

use fairlock::{Error, LockGuard, LockManager, LockOptions, MultiGuard, ReadGuard, WriteGuard};

use crate::{
    record::{Record, now},
    resource::Resource,
    rng::Rng,
    support::child::{receive, report},
};

const MUTEXES: [&str; 4] = ["ledger", "mail", "orders", "stock"];
const RW_LOCKS: [&str; 2] = ["atlas", "index"];
const SEMAPHORES: [&str; 2] = ["desks", "looms"];
const PERMITS: u32 = 3;
const THREADS: usize = 8;

/// What a worker is told when it is started.
pub(crate) struct Orders<'a> {
    pub(crate) url: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) dir: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) who: &'a str,
    pub(crate) seed: u64,
}

impl Orders<'_> {
    pub(crate) fn args(&self) -> [String; 6] {
        let ttl = self.ttl.as_millis().to_string();
        let seed = self.seed.to_string();
        [
            self.url.into(),
            ttl,
            self.dir.into(),
            self.resource.into(),
            self.who.into(),
            seed,
        ]
    }
}

/// What is wanted of a name.
#[derive(Clone, Copy)]
enum Wish {
    Mutex,
    Read,
    Write,
    Permits(u32),
}

/// As the history has it.
impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Mutex => write!(f, "1/1"),
            Wish::Read => write!(f, "read"),
            Wish::Write => write!(f, "write"),
            Wish::Permits(permits) => write!(f, "{permits}/{PERMITS}"),
        }
    }
}

/// What is held.
enum Guard {
    /// A mutex, or permits.
    One(LockGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
    All(MultiGuard),
}

/// One thread of a worker.
struct Hand {
    manager: LockManager,
    ttl: Duration,
    record: Arc<Record>,
    resource: Resource,
    rng: Rng,
    who: String,
    attempts: usize,
}

/// The role: works until it is told `finish`, and then ends what it has begun.
pub(crate) fn work(args: &[String]) {
    let [url, ttl, dir, resource, who, seed] = args else {
        panic!("what are {args:?}")
    };
    let ttl = Duration::from_millis(ttl.parse().expect("a ttl in ms"));
    let seed: u64 = seed.parse().expect("a seed");
    let record = Arc::new(Record::new(Path::new(dir), who));
    thread::spawn({
        let record = Arc::clone(&record);
        move || record.watch_clock()
    });
    let manager = connect(url, ttl);
    report("ready");
    let finish = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mut hand = Hand {
                manager: manager.clone(),
                ttl,
                record: Arc::clone(&record),
                resource: Resource::connect(resource),
                rng: Rng::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
                who: format!("{who}.{number}"),
                attempts: 0,
            };
            let finish = &finish;
            scope.spawn(move || {
                while !finish.load(Ordering::SeqCst) {
                    hand.attempt();
                }
            });
        }
        scope.spawn(|| watch_queues(&manager, &record, who, &finish));
        while receive().is_some_and(|line| line != "finish") {}
        finish.store(true, Ordering::SeqCst);
    });
}

/// The server may be away just now.
fn connect(url: &str, ttl: Duration) -> LockManager {
    loop {
        match LockManager::builder(url)
            .options(LockOptions::new().ttl(ttl))
            .build()
        {
            Ok(manager) => return manager,
            Err(Error::Unavailable { .. } | Error::Server { .. }) => {
                thread::sleep(Duration::from_millis(20))
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Nobody is told when his call for permits has reached the queue. So somebody else looks, and
/// knows them by their labels.
fn watch_queues(manager: &LockManager, record: &Record, who: &str, finish: &AtomicBool) {
    let ours = format!("{who}.");
    for name in RW_LOCKS.iter().chain(&SEMAPHORES).cycle() {
        if finish.load(Ordering::SeqCst) {
            return;
        }
        let before = now();
        // The server may be away just now.
        if let Ok(Some(info)) = manager.inspect(name) {
            let after = now();
            let labels = info.queue.iter().map(|party| &party.label);
            for id in labels.filter(|label| label.starts_with(&ours)) {
                record.at(after, format_args!("stands {id} {before}"));
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Hand {
    fn attempt(&mut self) {
        self.attempts += 1;
        let id = format!("{}.{}", self.who, self.attempts);
        match self.rng.below(100) {
            0..=2 => self.attempt_several(&id),
            3..=44 => {
                let name = *self.rng.pick(&MUTEXES);
                self.attempt_one(&id, name, Wish::Mutex);
            }
            45..=74 => {
                let name = *self.rng.pick(&RW_LOCKS);
                let wish = if self.rng.percent(60) {
                    Wish::Read
                } else {
                    Wish::Write
                };
                self.attempt_one(&id, name, wish);
            }
            _ => {
                let name = *self.rng.pick(&SEMAPHORES);
                let wish = Wish::Permits(1 + self.rng.below(PERMITS as usize) as u32);
                self.attempt_one(&id, name, wish);
            }
        }
        thread::sleep(self.rng.ms(0..20));
    }

    fn attempt_one(&mut self, id: &str, name: &str, wish: Wish) {
        let mut verb = *self
            .rng
            .pick(&["enqueue", "enqueue", "lock", "try_lock_for", "try_lock"]);
        if verb == "enqueue" && !matches!(wish, Wish::Mutex) {
            verb = "lock";
        }
        let at_most = self.rng.ms(10..800);
        match verb {
            "try_lock_for" => self.record.now(format_args!(
                "ask {id} {name} {verb}:{} {wish}",
                at_most.as_nanos()
            )),
            _ => self
                .record
                .now(format_args!("ask {id} {name} {verb} {wish}")),
        }
        let manager = self
            .manager
            .with(LockOptions::new().ttl(self.ttl).label(id));
        let (rw, permits) = (manager.rw_lock(name), manager.semaphore(name, PERMITS));
        let got = match (wish, verb) {
            (Wish::Mutex, "enqueue") => self.enqueue(&manager, id, name).map(one),
            (Wish::Mutex, "lock") => manager.lock(name).map(Some).map(one),
            (Wish::Mutex, "try_lock_for") => manager.try_lock_for(name, at_most).map(one),
            (Wish::Mutex, _) => manager.try_lock(name).map(one),
            (Wish::Read, "lock") => rw.read().map(Guard::Reader).map(Some),
            (Wish::Read, "try_lock_for") => rw
                .try_read_for(at_most)
                .map(|guard| guard.map(Guard::Reader)),
            (Wish::Read, _) => rw.try_read().map(|guard| guard.map(Guard::Reader)),
            (Wish::Write, "lock") => rw.write().map(Guard::Writer).map(Some),
            (Wish::Write, "try_lock_for") => rw
                .try_write_for(at_most)
                .map(|guard| guard.map(Guard::Writer)),
            (Wish::Write, _) => rw.try_write().map(|guard| guard.map(Guard::Writer)),
            (Wish::Permits(n), "lock") => permits.acquire_many(n).map(Some).map(one),
            (Wish::Permits(n), "try_lock_for") => permits.try_acquire_many_for(n, at_most).map(one),
            (Wish::Permits(n), _) => permits.try_acquire_many(n).map(one),
        };
        // Who holds permits holds them beside others, so nobody's write can be told from another's.
        let writes = !matches!(wish, Wish::Permits(_));
        self.end(&[(id.to_owned(), name)], writes, got);
    }

    /// Two or three mutexes, all or none.
    fn attempt_several(&mut self, id: &str) {
        let (first, number) = (self.rng.below(MUTEXES.len()), 2 + self.rng.below(2));
        let names = MUTEXES.iter().cycle().skip(first).take(number);
        let parts: Vec<_> = names.map(|name| (format!("{id}+{name}"), *name)).collect();
        let verb = *self
            .rng
            .pick(&["lock_all", "try_lock_all_for", "try_lock_all"]);
        let at_most = self.rng.ms(10..800);
        for (id, name) in &parts {
            match verb {
                "try_lock_all_for" => self.record.now(format_args!(
                    "ask {id} {name} {verb}:{}",
                    at_most.as_nanos()
                )),
                _ => self.record.now(format_args!("ask {id} {name} {verb}")),
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
            Err(e) => kind_of(&e),
        };
        self.record_each(parts, |id| format!("ended {id} {how}"));
    }

    fn enqueue(
        &mut self,
        manager: &LockManager,
        id: &str,
        name: &str,
    ) -> Result<Option<LockGuard>, Error> {
        let mut waiter = manager.enqueue(name)?;
        self.record.now(format_args!("queued {id}"));
        if self.rng.percent(50) {
            return waiter.wait().map(Some);
        }
        for _ in 0..self.rng.below(4) {
            let got = waiter.wait_for(self.rng.ms(1..500));
            if !matches!(got, Ok(None)) {
                return got;
            }
        }
        self.record.now(format_args!("leave {id}"));
        Ok(None)
    }

    fn hold(&mut self, parts: &[(String, &str)], writes: bool, mut guard: Guard) -> String {
        self.record_each(parts, |id| {
            let name = parts
                .iter()
                .find(|part| part.0 == id)
                .map_or("", |part| part.1);
            format!("granted {id} {}", guard.fence(name))
        });
        let mut held = self.work(parts, writes, &guard);
        if let Guard::Writer(writer) = guard {
            if held && self.rng.percent(40) {
                self.record_each(parts, |id| format!("downgrade {id}"));
                guard = match writer.downgrade() {
                    Ok(reader) => Guard::Reader(reader),
                    Err(e) => return kind_of(&e),
                };
                self.record_each(parts, |id| format!("downgraded {id}"));
                held = self.work(parts, writes, &guard);
            } else {
                guard = Guard::Writer(writer);
            }
        }
        if !held {
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(5));
                self.look(parts, &guard);
            }
        }
        self.record_each(parts, |id| format!("release {id}"));
        if self.rng.percent(50) {
            drop(guard);
            return "dropped".to_owned();
        }
        match guard.unlock() {
            Ok(()) => "released".to_owned(),
            Err(e) => kind_of(&e),
        }
    }

    /// Holds it while writing to the resource, or reading from it: each time a look, some work, and
    /// then the write, which is late if the process was stopped between them. Whether it is held at
    /// the end.
    fn work(&mut self, parts: &[(String, &str)], writes: bool, guard: &Guard) -> bool {
        // Some hold for longer than a lease lasts without a renewal.
        let rounds = if self.rng.percent(1) {
            200
        } else {
            self.rng.below(4).max(1)
        };
        for _ in 0..rounds {
            if !self.look(parts, guard) {
                return false;
            }
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
                self.record.at(before, format_args!("held {id} {after}"));
            } else {
                self.record.at(after, format_args!("lost {id}"));
            }
        }
        held
    }

    fn record_each(&self, parts: &[(String, &str)], what: impl Fn(&str) -> String) {
        parts.iter().for_each(|(id, _)| self.record.now(what(id)));
    }
}

fn one(guard: Option<LockGuard>) -> Option<Guard> {
    guard.map(Guard::One)
}

impl Guard {
    fn fence(&self, name: &str) -> u64 {
        match self {
            Guard::One(guard) => guard.fence(),
            Guard::Reader(guard) => guard.fence(),
            Guard::Writer(guard) => guard.fence(),
            Guard::All(guard) => guard.fence(name).expect("it was among them"),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Guard::One(guard) => guard.is_held(),
            Guard::Reader(guard) => guard.is_held(),
            Guard::Writer(guard) => guard.is_held(),
            Guard::All(guard) => guard.is_held(),
        }
    }

    fn unlock(self) -> Result<(), Error> {
        match self {
            Guard::One(guard) => guard.unlock(),
            Guard::Reader(guard) => guard.unlock(),
            Guard::Writer(guard) => guard.unlock(),
            Guard::All(guard) => guard.unlock(),
        }
    }
}

/// An error in one word, for the history.
fn kind_of(error: &Error) -> String {
    match error {
        Error::Lost { loss, .. } => format!("lost:{:?}", loss.reason),
        Error::Unavailable { step, .. } => format!("unavailable:{step:?}"),
        Error::Server { code, .. } => format!("server:{code}"),
        // Nothing that the fault injector does may lead to any other.
        other => panic!("{other}"),
    }
}
