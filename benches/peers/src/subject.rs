//! fairlock and its peers for Rust, each as its own documentation uses it, and the peers also set to
//! try again sooner. By default redlock and rslock retry after a random time of less than 200 ms,
//! redis-lock after 1 s. redlock opens a connection for each request and has no other mode.
//! redis-lock and rslock have a connection for each thread; rslock also has a runtime of its own,
//! on which nothing else runs. fairlock has one manager with its lanes.

use std::any::Any;
use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use fairlock::{LockGuard, LockManager, LockOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::floor::Floor;

const TTL: Duration = Duration::from_secs(10);

/// Locks, calls what is to be done while it is locked, and unlocks.
pub(crate) type Cycle = Box<dyn FnMut(&mut dyn FnMut()) + Send>;

pub(crate) trait Subject: Sync {
    fn name(&self) -> &'static str;

    /// For one thread.
    fn cycle(&self, name: &str) -> Cycle;

    /// Whether its cycle waits for its turn.
    fn waits(&self) -> bool {
        true
    }

    /// Holds all of these names until the value is dropped; `None` if it does not renew locks.
    fn hold(&self, _: Vec<String>) -> Option<Box<dyn Any>> {
        None
    }
}

pub(crate) fn subjects(url: &str) -> Vec<Box<dyn Subject>> {
    let ours = [
        Release::Drop,
        Release::Unlock,
        Release::Local,
        Release::Keep,
    ];
    let mut all: Vec<Box<dyn Subject>> = vec![Box::new(BareFloor(url.to_owned()))];
    all.extend(ours.map(|release| fairlock(url, release)));
    all.extend(peers(url, Retry::Default));
    all.extend(peers(url, Retry::Eager));
    all
}

/// The peers that poll.
fn peers(url: &str, retry: Retry) -> Vec<Box<dyn Subject>> {
    let mut all: Vec<Box<dyn Subject>> = Vec::new();
    let client = redis_of_redis_lock::Client::open(url).expect("a URL that names a Redis");
    match redis_lock::sync::setup(&client) {
        Ok(()) => all.push(Box::new(RedisLock { client, retry })),
        Err(e) => eprintln!("redis-lock is left out: {e}"),
    }
    all.push(Box::new(Rslock {
        url: url.to_owned(),
        retry,
    }));
    let mut manager = redlock::RedLock::new(vec![url]);
    if retry == Retry::Eager {
        manager.set_retry(u32::MAX, RANDOM_DELAY.as_millis() as u32);
    }
    all.push(Box::new(Redlock {
        manager: Arc::new(manager),
        retry,
    }));
    all
}

/// When a peer that did not get the lock tries again.
#[derive(Clone, Copy, PartialEq)]
enum Retry {
    /// As it does by default.
    Default,
    Eager,
}

/// The setting of `Retry::Eager` where the delay equals the setting.
const DELAY: Duration = Duration::from_millis(1);
/// Where it is random, in whole milliseconds, and less than what is set.
const RANDOM_DELAY: Duration = Duration::from_millis(2);

/// The least that a lock on Redis does, on a connection for each thread.
struct BareFloor(String);

impl Subject for BareFloor {
    fn name(&self) -> &'static str {
        "bare commands"
    }

    fn cycle(&self, name: &str) -> Cycle {
        let mut floor = Floor::new(&self.0, &format!("{name}:floor"));
        Box::new(move |held| {
            floor.cycle();
            held();
        })
    }

    fn waits(&self) -> bool {
        false
    }
}

struct Fairlock {
    manager: LockManager,
    release: Release,
}

/// How fairlock releases.
#[derive(Clone, Copy, PartialEq)]
enum Release {
    /// Mostly does not wait for the reply.
    Drop,
    Unlock,
    /// A drop that may hand over to a thread of the same process, without Redis.
    Local,
    /// A drop that keeps the lock until another process wants it.
    Keep,
}

/// In a row, before Redis is asked again.
const LOCAL_HANDOVERS: u32 = 100;
/// For how long a lock is kept that nobody uses.
const KEEP: Duration = Duration::from_secs(3);

fn fairlock(url: &str, release: Release) -> Box<dyn Subject> {
    let options = LockOptions::new().ttl(TTL);
    let options = match release {
        Release::Local => options.local_handovers(LOCAL_HANDOVERS),
        Release::Keep => options.keep_idle(KEEP),
        Release::Drop | Release::Unlock => options,
    };
    let builder = LockManager::builder(url).options(options);
    let manager = builder.build().expect("a Redis that answers");
    Box::new(Fairlock { manager, release })
}

impl Subject for Fairlock {
    fn name(&self) -> &'static str {
        match self.release {
            Release::Drop => "fairlock, drop",
            Release::Unlock => "fairlock, unlock",
            Release::Local => "fairlock, local hand-overs",
            Release::Keep => "fairlock, kept",
        }
    }

    fn cycle(&self, name: &str) -> Cycle {
        let lock = self.manager.mutex(name);
        let release = self.release;
        Box::new(move |held| {
            let guard = lock.lock().expect("Redis answers");
            held();
            match release {
                Release::Drop | Release::Local | Release::Keep => drop(guard),
                Release::Unlock => guard.unlock().expect("it is still held"),
            }
        })
    }

    /// Once, since they differ only in the release.
    fn hold(&self, names: Vec<String>) -> Option<Box<dyn Any>> {
        let lock = |name: String| self.manager.lock(name).expect("nobody else wants it");
        let hold = || -> Vec<LockGuard> { names.into_iter().map(lock).collect() };
        (self.release == Release::Drop).then(|| -> Box<dyn Any> { Box::new(hold()) })
    }
}

struct RedisLock {
    client: redis_of_redis_lock::Client,
    retry: Retry,
}

impl Subject for RedisLock {
    fn name(&self) -> &'static str {
        match self.retry {
            Retry::Default => "redis-lock 0.5",
            Retry::Eager => "redis-lock 0.5, retry 1 ms",
        }
    }

    fn cycle(&self, name: &str) -> Cycle {
        let mut lock =
            redis_lock::sync::MultiResourceLock::new(&self.client).expect("Redis answers");
        let sleep = if self.retry == Retry::Eager {
            DELAY
        } else {
            redis_lock::DEFAULT_SLEEP
        };
        // A key beside those of others.
        let names = [format!("{name}:redis-lock")];
        Box::new(move |held| {
            let guard = lock.lock(&names, TTL, redis_lock::DEFAULT_TIMEOUT, sleep);
            let guard = guard
                .expect("Redis answers")
                .expect("its turn within a minute");
            held();
            drop(guard);
        })
    }
}

struct Rslock {
    url: String,
    retry: Retry,
}

impl Subject for Rslock {
    fn name(&self) -> &'static str {
        match self.retry {
            Retry::Default => "rslock 0.10",
            Retry::Eager => "rslock 0.10, retry 0..1 ms",
        }
    }

    fn cycle(&self, name: &str) -> Cycle {
        let runtime = runtime();
        let mut manager = rslock::LockManager::new(vec![self.url.as_str()]);
        if self.retry == Retry::Eager {
            manager.set_retry(u32::MAX, RANDOM_DELAY);
        }
        let name = format!("{name}:rslock");
        Box::new(move |held| {
            runtime.block_on(async {
                let guard = manager
                    .acquire(name.as_str(), TTL)
                    .await
                    .expect("Redis answers");
                held();
                guard.release().await;
            });
        })
    }

    /// By its `using`, in a task for each name.
    fn hold(&self, names: Vec<String>) -> Option<Box<dyn Any>> {
        if self.retry == Retry::Eager {
            return None;
        }
        let manager = rslock::LockManager::new(vec![self.url.as_str()]);
        let (end, ended) = oneshot::channel::<()>();
        let held = Arc::new(Barrier::new(2));
        let all_held = Arc::clone(&held);
        thread::spawn(move || {
            let tasks = LocalSet::new();
            let left = Rc::new(Cell::new(names.len()));
            for name in names {
                let (manager, left, held) = (manager.clone(), Rc::clone(&left), Arc::clone(&held));
                tasks.spawn_local(async move {
                    let routine = async || {
                        left.set(left.get() - 1);
                        if left.get() == 0 {
                            held.wait();
                        }
                        pending::<()>().await;
                    };
                    manager.using(name.as_bytes(), TTL, routine).await
                });
            }
            // Ends when the sender is dropped, and all tasks with it.
            let _ = tasks.block_on(&runtime(), ended);
        });
        all_held.wait();
        Some(Box::new(end))
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

struct Redlock {
    manager: Arc<redlock::RedLock>,
    retry: Retry,
}

impl Subject for Redlock {
    fn name(&self) -> &'static str {
        match self.retry {
            Retry::Default => "redlock 2.0",
            Retry::Eager => "redlock 2.0, retry 0..1 ms",
        }
    }

    fn cycle(&self, name: &str) -> Cycle {
        let manager = Arc::clone(&self.manager);
        let name = format!("{name}:redlock");
        Box::new(move |held| {
            let guard = manager
                .acquire(name.as_bytes(), TTL.as_millis() as usize)
                .expect("Redis answers");
            held();
            drop(guard);
        })
    }
}
