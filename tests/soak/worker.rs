//! A worker process: threads that want locks, hold them, write to what they protect, and note all of it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use fairlock::{Error, LockGuard, LockManager, LockOptions};

use crate::{
    chance::Chance,
    record::{Record, now},
    resource::Resource,
    support::kid::{hear, say},
};

pub(crate) const NAMES: [&str; 4] = ["ledger", "mail", "orders", "stock"];
const THREADS: usize = 4;

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
        [self.url.into(), ttl, self.dir.into(), self.resource.into(), self.who.into(), seed]
    }
}

/// One thread of a worker.
struct Hand {
    manager: LockManager,
    record: Arc<Record>,
    resource: Resource,
    chance: Chance,
    who: String,
    attempts: usize,
}

/// The role: works until it is told `finish`, and then ends what it has begun.
pub(crate) fn work(args: &[String]) {
    let [url, ttl, dir, resource, who, seed] = args else { panic!("what are {args:?}") };
    let ttl = Duration::from_millis(ttl.parse().expect("a ttl in ms"));
    let seed: u64 = seed.parse().expect("a seed");
    let record = Arc::new(Record::new(Path::new(dir), who));
    thread::spawn({
        let record = Arc::clone(&record);
        move || record.watch_clock()
    });
    let manager = connect(url, ttl);
    say("ready");
    let finish = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mut hand = Hand {
                manager: manager.clone(),
                record: Arc::clone(&record),
                resource: Resource::connect(resource),
                chance: Chance::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
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
        while hear().is_some_and(|line| line != "finish") {}
        finish.store(true, Ordering::SeqCst);
    });
}

/// The server may be away just now.
fn connect(url: &str, ttl: Duration) -> LockManager {
    loop {
        match LockManager::builder(url).options(LockOptions::new().ttl(ttl)).build() {
            Ok(manager) => return manager,
            Err(Error::Unavailable { .. } | Error::Server { .. }) => thread::sleep(Duration::from_millis(20)),
            Err(other) => panic!("{other}"),
        }
    }
}

impl Hand {
    fn attempt(&mut self) {
        self.attempts += 1;
        let id = format!("{}.{}", self.who, self.attempts);
        let name = *self.chance.pick(&NAMES);
        let verb = *self.chance.pick(&["enqueue", "enqueue", "lock", "try_lock_for", "try_lock"]);
        let at_most = self.chance.ms(10..800);
        match verb {
            "try_lock_for" => self.record.now(format_args!("ask {id} {name} {verb}:{}", at_most.as_nanos())),
            _ => self.record.now(format_args!("ask {id} {name} {verb}")),
        }
        let got = match verb {
            "enqueue" => self.enqueue(&id, name),
            "lock" => self.manager.lock(name).map(Some),
            "try_lock_for" => self.manager.try_lock_for(name, at_most),
            _ => self.manager.try_lock(name),
        };
        let how = match got {
            Ok(Some(guard)) => self.hold(&id, name, guard),
            Ok(None) => "none".to_owned(),
            Err(e) => kind_of(&e),
        };
        self.record.now(format_args!("ended {id} {how}"));
        thread::sleep(self.chance.ms(0..20));
    }

    fn enqueue(&mut self, id: &str, name: &str) -> Result<Option<LockGuard>, Error> {
        let mut waiter = self.manager.enqueue(name)?;
        self.record.now(format_args!("queued {id}"));
        if self.chance.percent(50) {
            return waiter.wait().map(Some);
        }
        for _ in 0..self.chance.below(4) {
            let got = waiter.wait_for(self.chance.ms(1..500));
            if !matches!(got, Ok(None)) {
                return got;
            }
        }
        self.record.now(format_args!("leave {id}"));
        Ok(None)
    }

    /// Holds it while writing to the resource: each time a look, some work, and then the write, which is late if the
    /// process was stopped between them.
    fn hold(&mut self, id: &str, name: &str, guard: LockGuard) -> String {
        self.record.now(format_args!("granted {id} {}", guard.fence()));
        // Some hold for longer than a lease lasts without a renewal.
        let rounds = if self.chance.percent(1) { 200 } else { self.chance.below(4).max(1) };
        for _ in 0..rounds {
            if !self.look(id, &guard) {
                break;
            }
            thread::sleep(self.chance.ms(1..15));
            self.resource.write(id, name, guard.fence());
        }
        if !self.look(id, &guard) {
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(5));
                self.look(id, &guard);
            }
        }
        self.record.now(format_args!("release {id}"));
        if self.chance.percent(50) {
            drop(guard);
            return "dropped".to_owned();
        }
        match guard.unlock() {
            Ok(()) => "released".to_owned(),
            Err(e) => kind_of(&e),
        }
    }

    fn look(&self, id: &str, guard: &LockGuard) -> bool {
        let before = now();
        let held = guard.is_held();
        let after = now();
        if held {
            self.record.at(before, format_args!("held {id} {after}"));
        } else {
            self.record.at(after, format_args!("lost {id}"));
        }
        held
    }
}

/// An error in one word, for the history.
fn kind_of(error: &Error) -> String {
    match error {
        Error::Lost { loss, .. } => format!("lost:{:?}", loss.reason),
        Error::Unavailable { step, .. } => format!("unavailable:{step:?}"),
        Error::Server { code, .. } => format!("server:{code}"),
        // Nothing that the nemesis does may lead to any other.
        other => panic!("{other}"),
    }
}
