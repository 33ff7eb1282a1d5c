//! fairlock and its peers, each as its own documentation uses it, and the peers also set to try
//! again sooner.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use crate::floor::Floor;

pub(crate) const TTL: Duration = Duration::from_secs(10);

/// Locks, calls what is to be done while it is locked, and unlocks.
pub(crate) type Cycle = Box<dyn FnMut(&mut dyn FnMut()) + Send>;

pub(crate) trait Subject {
    fn name(&self) -> &'static str;

    /// Whether it promises that waiters are served in order.
    fn is_fair(&self) -> bool {
        false
    }

    /// For one thread.
    fn cycle(&self, name: &str) -> Cycle;
}

/// For names that nobody else wants. The floor is the first.
pub(crate) fn uncontended(url: &str) -> Vec<Box<dyn Subject>> {
    let floor: Box<dyn Subject> = Box::new(Bare(url.to_owned()));
    let ours = [Release::Drop, Release::Unlock].map(|release| fairlock(url, release));
    let ours_and_peers = ours.into_iter().chain(peers(url, Retry::Default));
    [floor].into_iter().chain(ours_and_peers).collect()
}

/// For a name that several threads want.
pub(crate) fn waiting(url: &str) -> Vec<Box<dyn Subject>> {
    let ours = [Release::Drop, Release::Local].map(|release| fairlock(url, release));
    ours.into_iter().chain(peers(url, Retry::Default)).collect()
}

/// The peers, set to try again after a millisecond or less.
pub(crate) fn eager(url: &str) -> Vec<Box<dyn Subject>> {
    peers(url, Retry::Eager)
}

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

/// The least that a lock on Redis can do: `SET NX PX` and a compare-and-delete script.
struct Bare(String);

impl Subject for Bare {
    fn name(&self) -> &'static str {
        "bare commands"
    }

    fn cycle(&self, name: &str) -> Cycle {
        let mut floor = Floor::new(&self.0, &format!("{name}:bare"));
        Box::new(move |held| {
            held();
            floor.cycle();
        })
    }
}

struct Fairlock {
    manager: fairlock::LockManager,
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
}

/// In a row, before Redis is asked again.
const LOCAL_HANDOVERS: u32 = 100;

fn fairlock(url: &str, release: Release) -> Box<dyn Subject> {
    let options = fairlock::LockOptions::new().local_handovers(match release {
        Release::Local => LOCAL_HANDOVERS,
        Release::Drop | Release::Unlock => 0,
    });
    let builder = fairlock::LockManager::builder(url).options(options);
    let manager = builder.build().expect("a Redis that answers");
    Box::new(Fairlock { manager, release })
}

impl Subject for Fairlock {
    fn name(&self) -> &'static str {
        match self.release {
            Release::Drop => "fairlock, drop",
            Release::Unlock => "fairlock, unlock",
            Release::Local => "fairlock, local hand-overs",
        }
    }

    fn is_fair(&self) -> bool {
        true
    }

    fn cycle(&self, name: &str) -> Cycle {
        let lock = self.manager.mutex(name);
        let release = self.release;
        Box::new(move |held| {
            let guard = lock.lock().expect("Redis answers");
            held();
            match release {
                Release::Drop | Release::Local => drop(guard),
                Release::Unlock => guard.unlock().expect("it is still held"),
            }
        })
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
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
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
